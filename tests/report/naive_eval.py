"""An ``eval.json`` whose every number is computed from member logits by the plainest code, for tests of reports."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

BINS = 15
_OF_A_BIN = ("n", "confidence", "accuracy", "low", "high")
Logits = Mapping[str, np.ndarray]  # by data set, [members, samples, classes]


def document(
    models: Mapping[str, Logits],
    labels: np.ndarray,
    groups: Mapping[str, str | None],
    rounds: int = 0,
    more: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """The document of these models.

    Args:
        models: for each its logits on ``id`` and on every set of ``groups``.
        labels: of the ID samples.
        groups: ``near``, ``far`` or None for every OOD set.
        rounds: of the bootstrap; none for no intervals.
        more: further entries of a model's row, such as ``heads`` and ``cost``.
    """
    rows = [{**row(name, logits, labels, groups), **(more or {}).get(name, {})} for name, logits in models.items()]
    if rounds:
        add_intervals(rows, models, labels, rounds)
    first = next(iter(models.values()))
    data = {
        name: {"spec": f"builtin:{name}/test", "n": values.shape[1], "fingerprint": digest(name)}
        for name, values in first.items()
    }
    conventions = {"accuracy": "Share of samples whose class of highest p is the label.", "ood_score": "msp"}
    found = {"schema": "hydractl.eval/1", "models": rows, "data": data, "conventions": conventions}
    return {**found, "bootstrap": {"rounds": rounds, "level": 0.95, "seed": 0}} if rounds else found


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def row(name: str, logits: Logits, labels: np.ndarray, groups: Mapping[str, str | None]) -> dict[str, Any]:
    probs = {key: softmax(values).mean(axis=0) for key, values in logits.items()}
    scores = {key: -p.max(axis=1) for key, p in probs.items()}
    ood = {key: {"group": groups[key], **ood_numbers(scores["id"], scores[key])} for key in groups}
    members = logits["id"]
    return {
        "name": name,
        "sha256": digest(name),
        "id": id_numbers(probs["id"], labels),
        "ood": ood,
        **{
            f"{group}_avg": average([one for one in ood.values() if one["group"] == group]) for group in ("near", "far")
        },
        "ood_avg": average(list(ood.values())),
        "diversity": {key: diversity(values) for key, values in logits.items()},
        "members": [id_numbers(softmax(one), labels) for one in members] if len(members) > 1 else [],
        "curves": curves(probs["id"], labels, scores),
    }


def id_numbers(p: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    n = len(labels)
    confidence, correct = p.max(axis=1), p.argmax(axis=1) == labels
    order = np.argsort(-confidence, kind="stable")
    risks = [1 - correct[order[:k]].mean() for k in range(1, n + 1)]
    at = {f"{s:.2f}": float(correct[order[: math.ceil(s * n)]].mean()) for s in (0.8, 0.9, 0.95)}
    return {
        "n": n,
        "accuracy": float(correct.mean()),
        "brier": float(
            np.mean([sum((q[c] - (c == y)) ** 2 for c in range(len(q))) for q, y in zip(p, labels, strict=True)])
        ),
        "nll": float(np.mean([-math.log(q[y]) for q, y in zip(p, labels, strict=True)])),
        "ece": gap([np.flatnonzero(bins_of(confidence) == b) for b in range(BINS)], confidence, correct),
        "aece": gap(np.array_split(np.argsort(confidence, kind="stable"), BINS), confidence, correct),
        "aurc": float(np.mean(risks)),
        "accuracy_at": at,
    }


def bins_of(confidence: np.ndarray) -> np.ndarray:
    return np.minimum((confidence * BINS).astype(int), BINS - 1)


def gap(bins: Any, confidence: np.ndarray, correct: np.ndarray) -> float:
    n = len(confidence)
    return float(sum(len(b) / n * abs(correct[b].mean() - confidence[b].mean()) for b in bins if len(b)))


def ood_numbers(inside: np.ndarray, outside: np.ndarray) -> dict[str, Any]:
    truth, score = np.r_[np.zeros(len(inside)), np.ones(len(outside))], np.r_[inside, outside]
    threshold = np.sort(outside)[::-1][math.ceil(0.95 * len(outside)) - 1]
    fpr = float((inside >= threshold).mean())
    aupr = float(average_precision_score(truth, score))
    found = {"auroc": float(roc_auc_score(truth, score)), "fpr95": fpr, "fpr95_nearest": fpr, "aupr": aupr}
    of_id = float(average_precision_score(1 - truth, -score))
    return {"n": len(outside), **found, "aupr_trapezoid": aupr, "aupr_in": of_id}


def average(sets: list[dict[str, Any]]) -> dict[str, Any]:
    keys = ("auroc", "fpr95", "fpr95_nearest", "aupr", "aupr_trapezoid", "aupr_in")
    return {key: sum(one[key] for one in sets) / len(sets) if sets else None for key in keys}


def diversity(logits: np.ndarray) -> dict[str, Any]:
    pairs = [{"a": a, "b": b, **spread(logits[[a, b]])} for a, b in combinations(range(len(logits)), 2)]
    apart = float(np.mean([one["disagreement"] for one in pairs])) if pairs else None
    return {"mi": spread(logits)["mi"], "disagreement": apart, "pairs": pairs}


def spread(logits: np.ndarray) -> dict[str, float]:
    p = softmax(logits)
    mean = p.mean(axis=0)
    mi = (-(mean * np.log(mean)).sum(axis=1) + (p * np.log(p)).sum(axis=2).mean(axis=0)).mean()
    votes = logits.argmax(axis=2)
    return {"mi": max(float(mi), 0.0), "disagreement": float((votes[0] != votes[-1]).mean())}


def curves(p: np.ndarray, labels: np.ndarray, scores: Mapping[str, np.ndarray]) -> dict[str, Any]:
    n, confidence, correct = len(labels), p.max(axis=1), p.argmax(axis=1) == labels
    order, where = np.argsort(-confidence, kind="stable"), bins_of(confidence)
    kept = np.unique(np.linspace(1, n, 201).round().astype(int))
    outside = {key: values for key, values in scores.items() if key != "id"}
    edges = np.linspace(min(s.min() for s in scores.values()), max(s.max() for s in scores.values()), 41)
    found: dict[str, Any] = {
        "reliability": {"edges": [b / BINS for b in range(BINS + 1)], **{key: [] for key in _OF_A_BIN}},
        "risk_coverage": {"coverage": [float(k / n) for k in kept]},
        "roc": {key: roc(scores["id"], values) for key, values in outside.items()},
        "scores": {"edges": edges.tolist(), **{key: np.histogram(v, edges)[0].tolist() for key, v in scores.items()}},
    }
    found["risk_coverage"]["risk"] = [float(1 - correct[order[:k]].mean()) for k in kept]
    for b in range(BINS):
        inside = where == b
        count, right = int(inside.sum()), int(correct[inside].sum())
        low, high = wilson(right, count) if count else (None, None)
        values = (
            count,
            float(confidence[inside].mean()) if count else None,
            right / count if count else None,
            low,
            high,
        )
        for key, value in zip(_OF_A_BIN, values, strict=True):
            found["reliability"][key].append(value)
    return found


def wilson(right: int, n: int, z: float = 1.959963984540054) -> tuple[float, float]:
    p, centre = right / n, (right + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * math.sqrt(n * p * (1 - p) + z * z / 4)
    return max(centre - half, 0.0), min(centre + half, 1.0)


def roc(inside: np.ndarray, outside: np.ndarray) -> dict[str, list[float]]:
    fpr, tpr, _ = roc_curve(np.r_[np.zeros(len(inside)), np.ones(len(outside))], np.r_[inside, outside])
    some = np.unique(np.linspace(0, len(fpr) - 1, 201).round().astype(int))
    return {"fpr": fpr[some].tolist(), "tpr": tpr[some].tolist()}


def add_intervals(rows: list[dict[str, Any]], models: Mapping[str, Logits], labels: np.ndarray, rounds: int) -> None:
    """Percentile intervals of accuracy and of every AUROC, and of the paired difference to the first row."""
    draw = np.random.default_rng(0)
    n, found = len(labels), [{key: [] for key in interval_keys(one)} for one in rows]
    probs = {name: {key: softmax(v).mean(axis=0) for key, v in sets.items()} for name, sets in models.items()}
    for _ in range(rounds):
        chosen = draw.integers(n, size=n)
        picked = {key: draw.integers(one["n"], size=one["n"]) for key, one in rows[0]["ood"].items()}
        for sums, p in zip(found, probs.values(), strict=True):
            sums["id.accuracy"].append(float((p["id"][chosen].argmax(axis=1) == labels[chosen]).mean()))
            areas = []
            for key, some in picked.items():
                areas.append(ood_numbers(-p["id"][chosen].max(axis=1), -p[key][some].max(axis=1))["auroc"])
                sums[f"ood.{key}.auroc"].append(areas[-1])
            if areas:
                sums["ood_avg.auroc"].append(float(np.mean(areas)))
    for one, drawn in zip(rows, found, strict=True):
        one["ci"] = {key: np.percentile(values, [2.5, 97.5]).tolist() for key, values in drawn.items()}
        if one is not rows[0]:
            one["difference"] = {}
            for key, values in drawn.items():
                ends = np.percentile(np.subtract(values, found[0][key]), [2.5, 97.5]).tolist()
                one["difference"][key] = {"value": at(one, key) - at(rows[0], key), "ci": ends}


def interval_keys(one: Mapping[str, Any]) -> list[str]:
    return ["id.accuracy", *(f"ood.{key}.auroc" for key in one["ood"]), *(["ood_avg.auroc"] if one["ood"] else [])]


def at(one: Any, key: str) -> float:
    for part in key.split("."):
        one = one[part]
    return float(one)
