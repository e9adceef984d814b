"""What ``fuse`` found, in sentences, from its document alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydractl.report.texts import count_text, number

LOST = 0.02
"""Accuracy, or AUROC, that averaging and rounding may cost before it is a warning."""


def averaging_words(document: dict[str, Any]) -> str | None:
    """Say what ``--merge auto`` decided, why and at what cost; None for a fusion that was told what to do."""
    averaging = document.get("averaging")
    if averaging is None or averaging["asked"] != "auto":
        return None
    parts = ",".join(averaging["parts"])
    if not max(averaging["distance"]):
        return f"--merge auto averages {parts}, which are equal in all members: nothing changes"
    if averaging["done"]:
        more = "" if "on_data" in document else "; --data SPEC measures it on data"
        return f"--merge auto averages {parts}: {_effect(averaging, 'moves')}{more}"
    whole, least = (count_text(n) for n in (document["cost"]["fused"]["params"], averaging["parameters"]))
    return (
        f"--merge auto keeps members whole: {_effect(averaging, 'would move')}; this costs {whole} parameters "
        f"instead of {least}"
    )


def warnings_of(document: dict[str, Any]) -> list[str]:
    """Warn of averaging that was asked for and harms, and of the accuracy of what came out."""
    averaging, found = document.get("averaging"), []
    if averaging is not None and averaging["done"] and averaging["harmful"]:
        parts = ",".join(averaging["parts"])
        found.append(f"--merge {parts} destroys what members learnt: {_effect(averaging, 'moves')}; {_WHOLE}")
    data = document.get("on_data")
    if data is not None:
        before, after = data["before"]["ensemble"], data["after"]["ensemble"]
        if before - after > LOST:
            fall = f"from {number(before)} to {number(after)} on {data['n']} samples"
            found.append(f"averaging takes the accuracy of the ensemble {fall}; {_WHOLE}")
    return found + ([] if "cascade" not in document else cascade_warnings(document["cascade"]))


def cascade_words(cascade: dict[str, Any]) -> str:
    """Say who answers alone, for how many samples, and what that saves and loses on the validation data."""
    first, every = cascade["first_macs"], cascade["first_macs"] + cascade["rest_macs"]
    losses = ", ".join(
        f"{name} {number(loss['value'])} (at most {number(loss['upper'])})" for name, loss in cascade["losses"].items()
    )
    return (
        f"cascade: member {cascade['member']} answers alone where its {cascade['score']} is below "
        f"{cascade['value']:.4g}; {cascade['share']:.1%} of {cascade['fitted_on']['n']} samples go on: "
        f"{cascade['macs'] / first:.2f} times its mult-adds, or {every / first:.2f} if all did; lost: {losses}"
    )


def cascade_warnings(cascade: dict[str, Any]) -> list[str]:
    """Warn of what a cascade does not promise, and where it makes no ensemble."""
    found = []
    if not cascade["fitted_on_ood"]:
        found.append("the cascade promises nothing of OOD detection: it was fitted without --cascade-ood")
    if not cascade["share"]:
        found.append("in the cascade no validation sample goes on: the first member alone is as good on them")
    return found


_WHOLE = "--merge none keeps members whole"


def _effect(averaging: dict[str, Any], moves: str) -> str:
    far, most = averaging["limits"]["distance"], averaging["limits"]["log_p"]
    if "merge_log_p" not in averaging:
        apart = f"weights lie up to {max(averaging['distance']):.2g} of their size from their mean (limit {far:g})"
        return (
            f"{apart}, and averaging {moves} features on random inputs by up to {max(averaging['merge_max_abs']):.2g}"
        )
    kept, shift = min(averaging["merge_agreement"]), max(averaging["merge_log_p"])
    return (
        f"weights lie up to {max(averaging['distance']):.2g} of their size from their mean (limit {far:g}), and "
        f"averaging {moves} log p on random inputs by up to {shift:.2g} nats (limit {most:g}) and up to {1 - kept:.0%} "
        "of the answers"
    )


def data_words(data: dict[str, Any]) -> str:
    """Return the accuracy before and after averaging, in words."""
    one, other = (f"members {_each(v['members'])}, ensemble {number(v['ensemble'])}" for v in _both(data))
    return f"accuracy on {data['n']} samples: {one}" + ("" if one == other else f"; after averaging {other}")


def rounding_words(entry: dict[str, Any]) -> tuple[str | None, bool]:
    """Say what rounding the weights of an exported file does to answers, and whether it costs too much.

    None instead of words for a file whose weights are not rounded.
    """
    check, path = entry["check"], entry["path"]
    if check["tolerance"] is not None:
        return None, False
    data = check.get("on_data")
    if data is None:
        moved = f"probabilities of random inputs move by up to {check['probabilities_max_abs']:.2g}"
        return f"{path}: {moved}; --data SPEC, with --ood, measures what that does", False
    before, after = _both(data)
    falls = {"accuracy": (before["accuracy"], after["accuracy"])}
    falls |= {f"AUROC of {name}": (value, after["auroc"][name]) for name, value in before["auroc"].items()}
    words = ", ".join(f"{what} from {number(one)} to {number(other)}" for what, (one, other) in falls.items())
    harmful = any(one is not None and other is not None and one - other > LOST for one, other in falls.values())
    return f"{path}: {words}, {data['agreement']:.1%} of the answers the same, on {data['n']} samples", harmful


def _both(data: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    return data["before"], data["after"]


def _each(values: Sequence[float]) -> str:
    return ", ".join(number(value) for value in values)


def sharing_words(document: dict[str, Any]) -> str:
    """Say what is stored and run once, and the cost against one model and against the members run separately."""
    cost, counts = document["cost"], document["parameters"]
    fused, members, dense = cost["fused"], cost["members"], {"params": cost["dense_params"], "macs": cost["dense_macs"]}
    once = counts["averaged"] + counts.get("equal", 0)
    ratios = [
        f"{name} {fused[key] / dense[key]:.2f} times the single model's, {fused[key] / members[key]:.2f} times the "
        "separate members'"
        for name, key in (("mult-adds", "macs"), ("parameters", "params"))
    ]
    runs = "; ".join(f"{_tower(tower)}{', '.join(once_of(tower)) or 'nothing'}" for tower in document["shared"])
    return f"stored once: {once / fused['params']:.0%} of the parameters; run once: {runs}; {'; '.join(ratios)}"


def _tower(tower: dict[str, Any]) -> str:
    return "" if tower["tower"] == "main" else f"of the {tower['tower']} tower "


def once_of(tower: dict[str, Any]) -> list[str]:
    """Return the parts of one tower that run once for all members."""
    return [
        *(["the stem"] if tower["stem"] else []),
        *([f"{tower['blocks_once']} of {tower['blocks']} blocks"] if tower["blocks_once"] else []),
        *(["the attention behind them"] if tower["attention_once"] else []),
    ]
