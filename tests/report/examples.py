"""Documents for tests of reports: from one bare row to twenty rows with everything that can be in one."""

from __future__ import annotations

import copy
import hashlib
from functools import cache
from typing import Any

import numpy as np

from hydractl.files.eval_answer import EvalAnswer
from hydractl.files.study_answer import RuledOutRecord, StudyAnswer
from hydractl.metrics.bootstrap import intervals, paired_differences, resample
from hydractl.metrics.curves import curves
from hydractl.metrics.rows import id_block, row_blocks
from hydractl.metrics.samples import samples_of

SETS = {"letters": "near", "photos": "far", "noise": None}
SITES = [f"blocks.{n}.attn" for n in range(6)]


def answer_of(document: dict[str, Any]) -> EvalAnswer:
    """The answer that a document stands for, as tables and pages take it."""
    return EvalAnswer.model_validate(document)


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
    rows = []
    resampled = []
    for index, (name, members) in enumerate(models):
        good = 3 + index / len(models)
        logits = drawn_logits(draw, labels, members, good, 0)
        inside = samples_of(logits, labels)
        alone = [samples_of(member[np.newaxis], labels) for member in logits] if members > 1 else []
        outside = {}
        for place, (other, _) in enumerate(sets):
            false = draw.integers(5, size=n // 2 + 10 * place)
            outside[other] = samples_of(drawn_logits(draw, false, members, good * (0.2 + 0.3 * place), 0))
        heads = []
        for site in SITES:
            kept_by_member = [kept(draw, members > 1) for _ in range(members)]
            heads.append({"site": site, "tower": "main", "heads": 8, "kept": kept_by_member})
        row: dict[str, Any] = {
            "name": name,
            "sha256": digest(name),
            **row_blocks(inside, outside, dict(sets)).to_dict(),
        }
        row |= {"members": [id_block(member).to_dict() for member in alone], "heads": heads}
        row["curves"] = curves(inside, outside).to_dict()
        row["cost"] = {"params": 1000 * members, "macs": 10**6 * (1 + members), "single_macs": 2 * 10**6}
        rows.append(row)
        if rounds:
            resampled.append(resample(inside, outside, dict(sets), rounds=rounds, names={"accuracy", "auroc"}))
    for row, figures in zip(rows, resampled, strict=False):
        row["ci"] = intervals(figures)
        if row is not rows[0]:
            row["difference"] = paired_differences(resampled[0], figures)
    for row in rows:
        row["ood_score"] = "msp"
    data = {"id": n, **{name: block["n"] for name, block in rows[0]["ood"].items()}}
    test = {
        name: {"spec": f"builtin:{name}/test", "n": size, "fingerprint": digest(name)} for name, size in data.items()
    }
    conventions = {"accuracy": "Share of samples whose class of highest p is the label."}
    answer = {"schema": "hydractl.eval/2", "models": rows, "test": test, "conventions": conventions}
    if rounds:
        answer["bootstrap"] = {"rounds": rounds, "level": 0.95, "seed": 0}
    return answer


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def kept(draw: np.random.Generator, pruned: bool) -> list[int]:
    """Some of 8 heads, or all of them."""
    if not pruned:
        return list(range(8))
    heads = draw.permutation(8)
    count = int(draw.integers(4, 8))
    return sorted(heads[:count].tolist())


def everything() -> dict[str, Any]:
    """An eval with every optional part."""
    answer = sample()
    last = answer["models"][-1]
    data = {"spec": "builtin:val/train", "n": 100, "fingerprint": digest("val")}
    last["calibration"] = {"kind": "temperature", "temperature": 1.25, "scale": None, "bias": None, "fitted_on": data}
    last["conformal"] = {
        "method": "lac",
        "alpha": 0.1,
        "qhat": 0.71,
        "n_val": 100,
        "coverage": 0.91,
        "mean_size": 1.34,
        "empty": 0.02,
    }
    last["threshold"] = {
        "score": "msp",
        "value": -0.6,
        "rule": "ood:0.95",
        "id_flagged": 0.2,
        "ood_flagged": {"letters": 0.9, "photos": 0.5, "noise": None},
    }
    last["training"] = [training(member, epochs) for member, epochs in enumerate((2, 2, 3))]
    answer["models"][0]["training"] = [training(0, 1)]
    last["seen"] = {"id": 12, "letters": 3, "photos": 0, "noise": 0}
    for row in answer["models"]:
        add_corruptions(row)
    return answer


def add_corruptions(row: dict[str, Any]) -> None:
    """Add two corruptions, one of them at three severities only, and the means over corruptions."""
    start = row["id"]
    noise = {}
    means = {}
    for severity in range(1, 6):
        worse = {
            "accuracy": start["accuracy"] * 0.93**severity,
            "brier": start["brier"] * 1.1**severity,
            "ece": start["ece"] * 1.1**severity,
        }
        noise[str(severity)] = {"n": 200, **worse}
        means[str(severity)] = worse
    row["corruptions"] = {"gaussian_noise": noise, "fog": {severity: noise[severity] for severity in ("1", "2", "3")}}
    row["corruption_avg"] = means


def training(member: int, epochs: int) -> dict[str, Any]:
    course = []
    for epoch in range(1, epochs + 1):
        figures = {"loss": 1.5 / (epoch + member), "val_accuracy": 0.5 + 0.1 * epoch, "val_nll": 1 / epoch}
        course.append({"epoch": epoch, "steps": 40 * epoch, **figures})
    return {"member": member, "steps": 40 * epochs, "kept_epoch": epochs, "n": 320, "n_val": 50, "epochs": course}


def study_of(document: dict[str, Any], used: str) -> StudyAnswer:
    """A study of the rows of an eval, the first of which is the single model; one of them is to be used."""
    rows = []
    for row in document["models"]:
        test = {key: row[key] for key in ("id", "ood", "near_avg", "far_avg", "ood_avg", "diversity")}
        rows.append(
            {
                "name": row["name"],
                "chosen": row["name"] == used,
                "used": row["name"] == used,
                "members": max(1, len(row["members"])),
                "mac_ratio": row["cost"]["macs"] / row["cost"]["single_macs"],
                "temperature": 1.5,
                "score": "msp",
                "validation": {"accuracy": 0.5, "nll": 0.5, "mi": 0.0, "auroc": {"msp": {"val": 0.75}}},
                "test": {**test, "ood_score": "msp"},
            }
        )
    found = {"value": 0.1, "ci": [0.05, 0.15], "kind": "better"}
    verdict: dict[str, Any] = {"answer": "helps", "lines": ["It helps.", "Not by much."], "doubts": [], "footnote": "-"}
    verdict |= {"rivals": {}, "afterwards": {}, "sets": {}, "against_hardest": []}
    verdict["against_baseline"] = [{"metric": "ood_avg.auroc", **found}, {"metric": "ood_avg.fpr95", **found}]
    stability = {"row": 1.0, "score": 1.0}
    choice = {"row": used, "score": "msp", "rule": "-", "telling": ["val"], "blind": [], "stability": stability}
    return StudyAnswer.model_validate(
        {
            "model": {"name": "vit", "sha256": digest("vit")},
            "verdict": verdict,
            "use": {"row": used, "score": "msp", "temperature": 1.5, "stepped_down": False},
            "choice": choice,
            "ladder": [{"row": used, "score": "msp", "against_next": []}],
            "common_score": "msp",
            "baseline": rows[0]["test"],
            "rows": rows,
            "steps": [],
        }
    )


_NOT_MEASURED = ("name", "sha256", "heads", "curves", "seen")
_NO_METRICS = ("group", "kind", "method", "rule", "score", "fitted_on", "a", "b", "n")


def without_values(answer: Any) -> Any:
    """The same document with null for every measured number."""
    rows = []
    for row in answer["models"]:
        bare = {"name": row["name"], "sha256": row["sha256"]}
        for key, value in row.items():
            if key not in _NOT_MEASURED:
                bare[key] = nulls(value)
        rows.append(bare)
    return {**answer, "models": rows}


def nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: inner if key in _NO_METRICS else nulls(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [nulls(inner) for inner in value]
    return None


HOSTILE = (
    "<script>alert(1)</script>",
    "a\u202egnp.exe\u2066",
    "x" * 10_000,
    "$\\frac{1}{2}$ | **bold** `code` & \"quotes' \x1b[31m\x00",
    "../../etc/passwd",
    "</title><img src=http://example.org/x onerror=alert(1)>",
)


def with_a_row_ruled_out(study: StudyAnswer) -> StudyAnswer:
    """The same study with a further row, ``late``, that did not run on the test data."""
    validation = study.rows[-1].test.model_dump(exclude={"ood_score"}, by_alias=True)
    out = {"name": "late", "reason": "-", "members": 2, "mac_ratio": 1.5, "temperature": 1.0}
    record = RuledOutRecord.model_validate({**out, "validation": {**validation, "ood_score": "msp"}})
    return study.model_copy(update={"ruled_out": [record]})
