"""Documents for tests of reports: from one bare row to twenty rows with everything that can be in one."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import numpy as np

from hydractl.files.eval_answer import EvalAnswer
from tests.report.naive_eval import digest, document

SETS = {"letters": "near", "photos": "far", "noise": None}
SITES = [f"blocks.{n}.attn" for n in range(6)]


def answer_of(document: dict[str, Any]) -> EvalAnswer:
    """The answer that a document stands for, as tables and pages take it."""
    return EvalAnswer.from_json(document)


def drawn_logits(draw: np.random.Generator, labels: np.ndarray, members: int, good: float, shift: float) -> np.ndarray:
    """Logits ``[members, samples, 5]`` that favour the label; the members share most of their noise."""
    hits = good * (labels[:, None] == np.arange(5)) - shift
    return hits + draw.normal(size=(len(labels), 5)) + 0.4 * draw.normal(size=(members, len(labels), 5))


def sample(
    models: dict[str, int] | None = None, *, sets: dict[str, Any] | None = None, n: int = 200, rounds: int = 20
) -> dict[str, Any]:
    """An eval with curves, heads and costs.

    Args:
        models: the number of members of each.
        sets: the OOD sets and their groups.
    """
    models = models or {"base": 1, "taylor": 1, "hydra": 3}
    sets = SETS if sets is None else sets
    return copy.deepcopy(_sample(tuple(models.items()), tuple(sets.items()), n, rounds))


@cache
def _sample(models: tuple[tuple[str, int], ...], sets: tuple[tuple[str, Any], ...], n: int, rounds: int) -> Any:
    draw = np.random.default_rng(1)
    labels = draw.integers(5, size=n)
    logits, more = {}, {}
    for index, (name, members) in enumerate(models):
        good = 3 + index / len(models)
        logits[name] = {"id": drawn_logits(draw, labels, members, good, 0)}
        for place, (other, _) in enumerate(sets):
            false = draw.integers(5, size=n // 2 + 10 * place)
            logits[name][other] = drawn_logits(draw, false, members, good * (0.2 + 0.3 * place), 0)
        heads = [
            {"site": site, "tower": "main", "heads": 8, "kept": [kept(draw, members > 1) for _ in range(members)]}
            for site in SITES
        ]
        cost = {"params": 1000 * members, "macs": 10**6 * (1 + members), "single_macs": 2 * 10**6}
        more[name] = {"heads": heads, "cost": cost}
    return document(logits, labels, dict(sets), rounds, more)


def kept(draw: np.random.Generator, pruned: bool) -> list[int]:
    return sorted(draw.permutation(8)[: int(draw.integers(4, 8))].tolist()) if pruned else list(range(8))


def everything() -> dict[str, Any]:
    """An eval with every optional part."""
    found = sample()
    one = found["models"][-1]
    on = {"spec": "builtin:val/train", "n": 100, "fingerprint": digest("val")}
    one["calibration"] = {"kind": "temperature", "temperature": 1.25, "scale": None, "bias": None, "fitted_on": on}
    sizes = {"n_val": 100, "coverage": 0.91, "mean_size": 1.34, "empty": 0.02}
    one["conformal"] = {"method": "lac", "alpha": 0.1, "qhat": 0.71, **sizes}
    flagged = {"letters": 0.9, "photos": 0.5, "noise": None}
    one["threshold"] = {"score": "msp", "value": -0.6, "rule": "ood:0.95", "id_flagged": 0.2, "ood_flagged": flagged}
    one["training"] = [training(member, epochs) for member, epochs in enumerate((2, 2, 3))]
    found["models"][0]["training"] = [training(0, 1)]
    one["seen"] = {"id": 12, "letters": 3, "photos": 0, "noise": 0}
    for row in found["models"]:
        start = row["id"]
        by = {
            str(s): {"n": 200, **{k: start[k] * f**s for k, f in (("accuracy", 0.93), ("brier", 1.1), ("ece", 1.1))}}
            for s in range(1, 6)
        }
        row["corruptions"] = {"gaussian_noise": by, "fog": {s: by[s] for s in ("1", "2", "3")}}
        row["corruption_avg"] = {s: {k: v for k, v in by[s].items() if k != "n"} for s in by}
    return found


def training(member: int, epochs: int) -> dict[str, Any]:
    course = [
        {"epoch": e, "steps": 40 * e, "loss": 1.5 / (e + member), "val_accuracy": 0.5 + 0.1 * e, "val_nll": 1 / e}
        for e in range(1, epochs + 1)
    ]
    return {"member": member, "steps": 40 * epochs, "kept_epoch": epochs, "n": 320, "n_val": 50, "epochs": course}


def without_values(found: Any) -> Any:
    """The same document with null for every measured number."""
    rows = []
    for row in found["models"]:
        bare = {"name": row["name"], "sha256": row["sha256"]}
        bare.update({key: nulls(row[key]) for key in row if key not in ("name", "sha256", "heads", "curves", "seen")})
        rows.append(bare)
    return {**found, "models": rows}


_NO_METRICS = ("group", "kind", "method", "rule", "score", "fitted_on", "a", "b", "n")


def nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: inner if key in _NO_METRICS else nulls(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [nulls(one) for one in value]
    return None


HOSTILE = (
    "<script>alert(1)</script>",
    "a\u202egnp.exe\u2066",
    "x" * 10_000,
    "$\\frac{1}{2}$ | **bold** `code` & \"quotes' \x1b[31m\x00",
    "../../etc/passwd",
    "</title><img src=http://example.org/x onerror=alert(1)>",
)
