"""The circuit file, and how far a circuit agrees with another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hydractl.circuit.cost import FusedCost
from hydractl.circuit.objective import LOSS_UNIT, LOSSES, OBJECTIVES
from hydractl.circuit.scope import Scope, SearchOptions
from hydractl.circuit.search import Found
from hydractl.circuit.tasks import Task, role_of
from hydractl.circuit.tower import Candidate
from hydractl.data.base import Dataset
from hydractl.errors import InputError
from hydractl.expressions.conditions import parse_constraint
from hydractl.files.description import provenance
from hydractl.files.fingerprints import entry, merged
from hydractl.heads.mask import Head
from hydractl.heads.overlap import jaccard_at, kendall_tau
from hydractl.jsonio import shown
from hydractl.model.matching import asked_classes
from hydractl.report.texts import number

_MOST_SCORE = 1e6

LOW_GAIN = 0.2
"""Circuits that correct a smaller share of the wrongly ordered pairs of validation samples were seen not to help.

On other OOD data of the same model, circuits that corrected 2 to 17 % did not help, and those that corrected 21 to 71 %
did (docs/circuits.md).
"""


def document_of(
    scope: Scope,
    options: SearchOptions,
    objective: str,
    found: Found,
    names: Mapping[Candidate, Head],
    data: Mapping[str, Dataset],
    tasks: Sequence[Task],
    cost: FusedCost | None = None,
) -> dict[str, Any]:
    """The circuit of one objective, ``hydractl.circuit/1``, from its ranking and the sets and tasks of the search.

    With ``cost``, every step says what the fused model costs.
    """
    source = scope.source
    mask = source.description.mask
    search = {
        "objective": objective,
        "algorithm": options.algorithm,
        "approx": options.approx,
        "ood_score": options.ood_score,
        **({"ensemble_with": [one.sha256 for one in scope.members]} if scope.members else {}),
        "budget": scope.total - scope.budget + len(found.steps),
        **({"max_drop": options.max_drop} if options.max_drop is not None else {}),
        **({"max_cost": options.max_cost} if options.max_cost is not None else {}),
        **({"subject_to": list(options.subject_to)} if options.subject_to else {}),
    }
    # Steps hold the losses that decided them.
    losses = [parse_constraint(text).key for text in options.subject_to]
    details = {
        **search,
        **scope.details,
        "batch_size": options.batch_size,
        "dtype": options.dtype,
        "max_length": source.description.preprocess.get("max_length"),
        **asked_classes(source, options.tower),
        "data": data["id"].fingerprint(),
        "ood": data["ood"].fingerprint() if "ood" in data else None,
        **({"tasks": joint} if (joint := _joint(data, tasks)) else {}),
    }
    removed = []
    for index, step in enumerate(found.steps, start=1):
        site, head = names[step.candidate]
        dear = _ratio(cost, [names[one] for one in found.removed[:index]])
        removed.append({"step": index, "site": site, "head": head, **step.measured.to_json(objective, losses), **dear})
    document: dict[str, Any] = {
        "schema": "hydractl.circuit/1",
        "arch": source.description.arch,
        **search,
        **({"ended": found.ended} if found.ended else {}),
        **({"loss_unit": LOSS_UNIT} if {objective, *losses} & set(LOSSES) else {}),
        "sites": dict(mask.heads),
        "base": {**found.base.to_json(objective, losses), **_ratio(cost, [])},
        "removed": removed,
        **({"gain": gain} if (gain := _gain(scope, options, objective, found)) else {}),
        **({"rounding": rounding} if (rounding := _undecided(objective, found, names)) else {}),
        "source": provenance("extract-circuit", options.seed, [source.sha256], details, source.lineage),
    }
    if options.tower not in (None, "both"):
        document["tower"] = options.tower
    if not mask.is_full:
        document["start_mask"] = mask.to_json()
    inside = [dataset.fingerprint() for name, dataset in data.items() if role_of(name) == "id"]
    own = [
        entry("extract-circuit", role_of(name), part)
        for name, dataset in data.items()
        for part in dataset.origins()
        if part is dataset or part.fingerprint() not in inside
    ]
    document["seen"] = [dict(one) for one in merged(source.description.seen, scope.seen, own)]
    return document


def _joint(data: Mapping[str, Dataset], tasks: Sequence[Task]) -> list[dict[str, Any]]:
    """Return the weight of each task with the SPECs and fingerprints of its sets; empty for a single task."""
    found = []
    for task in tasks if len(tasks) > 1 else ():
        sets = {"data": data[task.data]} | ({"ood": data[task.ood]} if task.ood else {})
        named = {role: {"spec": one.spec, "fingerprint": one.fingerprint()} for role, one in sets.items()}
        found.append({**named, "weight": task.weight})
    return found


def _ratio(cost: FusedCost | None, removed: Sequence[Head]) -> dict[str, float]:
    return {} if cost is None else {"mac_ratio": float(cost.without(removed))}


def _gain(scope: Scope, options: SearchOptions, objective: str, found: Found) -> dict[str, Any] | None:
    """Return how the AUROC on the validation samples rose, or None.

    It is None unless a greedy search of an objective that reads OOD samples removed something, and where the AUROC was
    1 before.
    """
    if options.algorithm != "greedy" or not OBJECTIVES[objective].needs_ood or not found.steps:
        return None
    before, after = (measured.score("ood") for measured in (found.base, found.steps[-1].measured))
    if before == 1:
        return None
    corrected = (after - before) / (1 - before)
    low = None if scope.members else corrected < LOW_GAIN  # of ensembles nothing is known that would say so
    return {"before": before, "after": after, "corrected": corrected, "low": low}


def _undecided(objective: str, found: Found, names: Mapping[Candidate, Head]) -> list[dict[str, Any]]:
    """List the steps at which a machine that rounds otherwise may remove another head.

    Returns:
        For each its number, its ``lead`` over the best other head, the ``least`` score that it may have elsewhere; and
        the other heads, each with its score and the ``most`` that it may have elsewhere.
    """
    steps: list[dict[str, Any]] = []
    for index, step in enumerate(found.steps, start=1):
        if not step.rivals:
            continue
        rivals: list[dict[str, Any]] = []
        for rival in step.rivals:
            site, head = names[rival.candidate]
            score, most = (measured.score(objective) for measured in (rival.measured, rival.measured.most))
            rivals.append({"site": site, "head": head, "score": score, "most": most})
        lead = step.measured.score(objective) - rivals[0]["score"]
        steps.append({"step": index, "lead": lead, "least": step.measured.least.score(objective), "rivals": rivals})
    return steps


def agreement(document: Mapping[str, Any], exact: Sequence[Head], other: Mapping[str, Any]) -> dict[str, Any]:
    """Compare the removals of a circuit with those of an exact one.

    Returns:
        ``jaccard``: of the first N removals of both, for N at a quarter, half, three quarters and all of the shorter;
        ``kendall_tau``: of the orders, over the heads both remove; ``score_lost``: the score of the exact circuit
        minus that of this one after as many removals, None where they are of different objectives or data.
    """
    own = [(step["site"], step["head"]) for step in document["removed"]]
    most = min(len(own), len(exact))
    budgets = sorted({max(1, round(most * share)) for share in (0.25, 0.5, 0.75, 1.0)})
    lost = None
    same = all(
        document.get(key) == other.get(key) for key in ("objective", "ood_score", "ensemble_with", "sites", "base")
    )
    if same and _data(document) == _data(other):
        lost = other["removed"][most - 1]["score"] - document["removed"][most - 1]["score"]
    return {
        "removals": most,
        "jaccard": {str(n): value for n, value in jaccard_at(own, exact, budgets).items()},
        "kendall_tau": kendall_tau(own, list(exact)),
        "score_lost": lost,
    }


def agreement_text(document: Mapping[str, Any]) -> str:
    """Say in a line how far a circuit agrees with an exact one."""
    own = document["agreement"]
    jaccard = ", ".join(f"{number(value, 3)} of the first {n}" for n, value in own["jaccard"].items())
    lost = "another objective, model or data" if own["score_lost"] is None else f"{own['score_lost']:.4f}"
    return f"Jaccard {jaccard}; Kendall's tau {number(own['kendall_tau'], 3)}; score lost {lost}"


def tied_text(document: Mapping[str, Any]) -> str | None:
    """A warning of a search whose score is at its maximum in the first steps, where ties decide; None for others."""
    objective, steps = document["objective"], document["removed"]
    perfect = 1.0 if objective in ("acc", "ood", "avg") else 0.0
    tied = next((i for i, step in enumerate(steps) if step["score"] < perfect), len(steps))
    if not tied:
        return None
    return (
        f"{objective}: the score is at its maximum, {perfect:g}, in the first {tied} of {len(steps)} steps, so ties "
        "and not the data decide which heads they remove: give more --data, or held-out samples that the model was not "
        "trained on, or --objective nll"
    )


def gain_text(document: Mapping[str, Any]) -> str:
    """Say in a line how much the validation AUROC rose, and where that is little, what to make of it."""
    gain = document["gain"]
    text = (
        f"{document['objective']}: validation AUROC {number(gain['before'], 3)} -> {number(gain['after'], 3)}, "
        f"{gain['corrected']:.0%} of the wrongly ordered pairs put right"
    )
    if not gain["low"]:
        return text
    return (
        f"{text}; below {LOW_GAIN:.0%} circuits were seen not to detect other OOD data better than the whole model: "
        "compare them on a set of its own before you use them"
    )


def repeated_text(documents: Mapping[str, Mapping[str, Any]]) -> str | None:
    """A warning of circuits that remove the same heads; None where there are none."""
    by_heads: dict[frozenset[Head], list[str]] = {}
    for objective, document in documents.items():
        by_heads.setdefault(frozenset((s["site"], s["head"]) for s in document["removed"]), []).append(objective)
    same = "; ".join(" and ".join(names) for names in by_heads.values() if len(names) > 1)
    return same and f"the same heads are removed: {same}: fused, a member that repeats another costs and gives nothing"


def ended_text(document: Mapping[str, Any]) -> str:
    """Say in a line what ended a search before its budget."""
    objective, count = document["objective"], len(document["removed"])
    if document["ended"] == "max_cost":
        return f"{objective}: {count} heads are removed: with any further one the fused model would cost too much"
    ended = f"--max-drop {document['max_drop']:g}" if document["ended"] == "max_drop" else ""
    ended = ended or f"--subject-to {', '.join(document['subject_to'])}"
    if not count:
        return f"{objective}: no head can go within {ended}: the circuit is the whole model"
    return f"{objective}: {count} heads are removed: a further one would not keep {ended}"


def dear_text(document: Mapping[str, Any]) -> str | None:
    """A warning of a search that did not come down to its ``--max-cost``; None for others."""
    most, last = document.get("max_cost"), [document["base"], *document["removed"]][-1]
    if most is None or last["mac_ratio"] <= most:
        return None
    return (
        f"{document['objective']}: fused, this circuit and the other members cost {last['mac_ratio']:.3f} times the "
        f"mult-adds of the model, above --max-cost {most:g}: remove more heads, or keep --sites to the last ones"
    )


def check_exact(document: Mapping[str, Any], path: str, arch: str) -> None:
    """Check that a circuit can be what others are compared with.

    Raises:
        InputError: for a circuit that is not exact, of another architecture, empty or without scores.
    """
    problems = [] if document["removed"] else ["it removes nothing"]
    if document.get("approx") is not None or document.get("algorithm", "greedy") != "greedy":
        problems.append("it is not the result of an exact search")
    if document.get("arch", arch) != arch:
        problems.append(f"it is of {shown(document['arch'])}, the model is {arch!r}")
    scores = [step.get("score") for step in document["removed"]]
    if not all(type(score) in (int, float) and abs(score) < _MOST_SCORE for score in scores):
        problems.append("a step has no score")
    if problems:
        raise InputError(f"{path} is nothing to compare with", hint="see --check-against", problems=problems)


def _data(document: Mapping[str, Any]) -> list[Any]:
    source = document.get("source")
    settings = source.get("settings") if isinstance(source, Mapping) else None
    if not isinstance(settings, Mapping):
        return []
    return [settings.get("data"), settings.get("ood"), settings.get("tasks")]
