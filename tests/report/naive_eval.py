"""An ``eval.json`` whose every number is computed from member logits by the plainest code, for tests of reports."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

BINS = 15
Logits = Mapping[str, np.ndarray]  # by data set, [members, samples, classes]
Block = dict[str, Any]
"""An object of the document."""


def document(
    models: Mapping[str, Logits],
    labels: np.ndarray,
    groups: Mapping[str, str | None],
    rounds: int = 0,
    more: Mapping[str, Mapping[str, Any]] | None = None,
) -> Block:
    """The document of these models.

    Args:
        models: for each its logits on ``id`` and on every set of ``groups``.
        labels: of the ID samples.
        groups: ``near``, ``far`` or None for every OOD set.
        rounds: of the bootstrap; none for no intervals.
        more: further entries of a model's row, such as ``heads`` and ``cost``.
    """
    rows = []
    for name, logits in models.items():
        rows.append({**row(name, logits, labels, groups), **(more or {}).get(name, {})})
    if rounds:
        add_intervals(rows, models, labels, rounds)
    first = next(iter(models.values()))
    data = {}
    for name, values in first.items():
        data[name] = {"spec": f"builtin:{name}/test", "n": values.shape[1], "fingerprint": digest(name)}
    conventions = {"accuracy": "Share of samples whose class of highest p is the label.", "ood_score": "msp"}
    answer = {"schema": "hydractl.eval/2", "models": rows, "test": data, "conventions": conventions}
    if rounds:
        answer["bootstrap"] = {"rounds": rounds, "level": 0.95, "seed": 0}
    return answer


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def row(name: str, logits: Logits, labels: np.ndarray, groups: Mapping[str, str | None]) -> Block:
    probs = {key: softmax(values).mean(axis=0) for key, values in logits.items()}
    scores = {key: -p.max(axis=1) for key, p in probs.items()}
    ood: dict[str, Block] = {}
    for key, group in groups.items():
        ood[key] = {"group": group, **ood_numbers(scores["id"], scores[key])}
    near = [block for block in ood.values() if block["group"] == "near"]
    far = [block for block in ood.values() if block["group"] == "far"]
    members = []
    if len(logits["id"]) > 1:
        members = [id_numbers(softmax(member), labels) for member in logits["id"]]
    return {
        "name": name,
        "sha256": digest(name),
        "id": id_numbers(probs["id"], labels),
        "ood": ood,
        "near_avg": average(near),
        "far_avg": average(far),
        "ood_avg": average(list(ood.values())),
        "diversity": {key: diversity(values) for key, values in logits.items()},
        "members": members,
        "curves": curves(probs["id"], labels, scores),
    }


# --- metrics ----------------------------------------------------------------------------------------------------------


def id_numbers(p: np.ndarray, labels: np.ndarray) -> Block:
    confidence = p.max(axis=1)
    correct = p.argmax(axis=1) == labels
    order = np.argsort(-confidence, kind="stable")
    equal_width = [np.flatnonzero(bins_of(confidence) == index) for index in range(BINS)]
    equal_mass = np.array_split(np.argsort(confidence, kind="stable"), BINS)
    losses = [-math.log(q[label]) for q, label in zip(p, labels, strict=True)]
    risks = [1 - correct[order[:kept]].mean() for kept in range(1, len(labels) + 1)]
    return {
        "n": len(labels),
        "accuracy": float(correct.mean()),
        "brier": brier(p, labels),
        "nll": float(np.mean(losses)),
        "ece": gap(equal_width, confidence, correct),
        "aece": gap(equal_mass, confidence, correct),
        "aurc": float(np.mean(risks)),
        "accuracy_at": accuracy_at(correct[order]),
    }


def brier(p: np.ndarray, labels: np.ndarray) -> float:
    losses = []
    for q, label in zip(p, labels, strict=True):
        losses.append(sum((q[c] - (c == label)) ** 2 for c in range(len(q))))
    return float(np.mean(losses))


def accuracy_at(correct: np.ndarray) -> dict[str, float]:
    """Accuracy of the most confident share of the samples, which stand in that order."""
    found = {}
    for share in (0.8, 0.9, 0.95):
        kept = math.ceil(share * len(correct))
        found[f"{share:.2f}"] = float(correct[:kept].mean())
    return found


def bins_of(confidence: np.ndarray) -> np.ndarray:
    return np.minimum((confidence * BINS).astype(int), BINS - 1)


def gap(bins: Any, confidence: np.ndarray, correct: np.ndarray) -> float:
    total = 0.0
    for members in bins:
        if len(members):
            total += len(members) / len(correct) * abs(correct[members].mean() - confidence[members].mean())
    return float(total)


def ood_numbers(inside: np.ndarray, outside: np.ndarray) -> Block:
    truth = np.r_[np.zeros(len(inside)), np.ones(len(outside))]
    score = np.r_[inside, outside]
    threshold = np.sort(outside)[::-1][math.ceil(0.95 * len(outside)) - 1]
    fpr = float((inside >= threshold).mean())
    aupr = float(average_precision_score(truth, score))
    return {
        "n": len(outside),
        "auroc": float(roc_auc_score(truth, score)),
        "fpr95": fpr,
        "fpr95_nearest": fpr,
        "aupr": aupr,
        "aupr_trapezoid": aupr,
        "aupr_in": float(average_precision_score(1 - truth, -score)),
    }


def average(sets: Sequence[Block]) -> Block:
    found: Block = {}
    for key in ("auroc", "fpr95", "fpr95_nearest", "aupr", "aupr_trapezoid", "aupr_in"):
        found[key] = sum(block[key] for block in sets) / len(sets) if sets else None
    return found


def diversity(logits: np.ndarray) -> Block:
    pairs = []
    for a, b in combinations(range(len(logits)), 2):
        pairs.append({"a": a, "b": b, **spread(logits[[a, b]])})
    apart = float(np.mean([pair["disagreement"] for pair in pairs])) if pairs else None
    return {"mi": spread(logits)["mi"], "disagreement": apart, "pairs": pairs}


def spread(logits: np.ndarray) -> dict[str, float]:
    p = softmax(logits)
    mean = p.mean(axis=0)
    entropy_of_mean = -(mean * np.log(mean)).sum(axis=1)
    mean_negative_entropy = (p * np.log(p)).sum(axis=2).mean(axis=0)
    mi = (entropy_of_mean + mean_negative_entropy).mean()
    votes = logits.argmax(axis=2)
    return {"mi": max(float(mi), 0.0), "disagreement": float((votes[0] != votes[-1]).mean())}


# --- curves -----------------------------------------------------------------------------------------------------------


def curves(p: np.ndarray, labels: np.ndarray, scores: Mapping[str, np.ndarray]) -> Block:
    confidence = p.max(axis=1)
    correct = p.argmax(axis=1) == labels
    outside = {key: values for key, values in scores.items() if key != "id"}
    return {
        "reliability": reliability(confidence, correct),
        "risk_coverage": risk_coverage(confidence, correct),
        "roc": {key: roc(scores["id"], values) for key, values in outside.items()},
        "scores": histograms(scores),
    }


def reliability(confidence: np.ndarray, correct: np.ndarray) -> Block:
    found: Block = {"edges": [index / BINS for index in range(BINS + 1)]}
    found |= {"n": [], "confidence": [], "accuracy": [], "low": [], "high": []}
    for index in range(BINS):
        inside = bins_of(confidence) == index
        count = int(inside.sum())
        right = int(correct[inside].sum())
        low, high = wilson(right, count) if count else (None, None)
        found["n"].append(count)
        found["confidence"].append(float(confidence[inside].mean()) if count else None)
        found["accuracy"].append(right / count if count else None)
        found["low"].append(low)
        found["high"].append(high)
    return found


def risk_coverage(confidence: np.ndarray, correct: np.ndarray) -> Block:
    n = len(correct)
    order = np.argsort(-confidence, kind="stable")
    kept = np.unique(np.linspace(1, n, 201).round().astype(int))
    risk = [float(1 - correct[order[:count]].mean()) for count in kept]
    return {"coverage": [float(count / n) for count in kept], "risk": risk}


def histograms(scores: Mapping[str, np.ndarray]) -> Block:
    low = min(values.min() for values in scores.values())
    high = max(values.max() for values in scores.values())
    edges = np.linspace(low, high, 41)
    counts = {key: np.histogram(values, edges)[0].tolist() for key, values in scores.items()}
    return {"edges": edges.tolist(), **counts}


def wilson(right: int, n: int, z: float = 1.959963984540054) -> tuple[float, float]:
    p = right / n
    centre = (right + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * math.sqrt(n * p * (1 - p) + z * z / 4)
    return max(centre - half, 0.0), min(centre + half, 1.0)


def roc(inside: np.ndarray, outside: np.ndarray) -> dict[str, list[float]]:
    truth = np.r_[np.zeros(len(inside)), np.ones(len(outside))]
    fpr, tpr, _ = roc_curve(truth, np.r_[inside, outside])
    some = np.unique(np.linspace(0, len(fpr) - 1, 201).round().astype(int))
    return {"fpr": fpr[some].tolist(), "tpr": tpr[some].tolist()}


# --- intervals --------------------------------------------------------------------------------------------------------


def add_intervals(rows: list[Block], models: Mapping[str, Logits], labels: np.ndarray, rounds: int) -> None:
    """Percentile intervals of accuracy and of every AUROC, and of the paired difference to the first row."""
    figures = resampled(rows, models, labels, rounds)
    first = rows[0]
    for index, (block, drawn) in enumerate(zip(rows, figures, strict=True)):
        block["ci"] = {key: np.percentile(values, [2.5, 97.5]).tolist() for key, values in drawn.items()}
        if not index:
            continue
        block["difference"] = {}
        for key, values in drawn.items():
            ends = np.percentile(np.subtract(values, figures[0][key]), [2.5, 97.5]).tolist()
            block["difference"][key] = {"value": at(block, key) - at(first, key), "ci": ends}


def resampled(
    rows: Sequence[Block], models: Mapping[str, Logits], labels: np.ndarray, rounds: int
) -> list[dict[str, list[float]]]:
    """For each row, by dotted key, its figures on resamples, which are the same for all rows."""
    draw = np.random.default_rng(0)
    n = len(labels)
    sizes = {key: block["n"] for key, block in rows[0]["ood"].items()}
    figures: list[dict[str, list[float]]] = [{key: [] for key in interval_keys(block)} for block in rows]
    probs = []
    for sets in models.values():
        probs.append({key: softmax(values).mean(axis=0) for key, values in sets.items()})
    for _ in range(rounds):
        chosen = draw.integers(n, size=n)
        picked = {key: draw.integers(size, size=size) for key, size in sizes.items()}
        for drawn, p in zip(figures, probs, strict=True):
            drawn["id.accuracy"].append(float((p["id"][chosen].argmax(axis=1) == labels[chosen]).mean()))
            areas = []
            for key, some in picked.items():
                area = ood_numbers(-p["id"][chosen].max(axis=1), -p[key][some].max(axis=1))["auroc"]
                drawn[f"ood.{key}.auroc"].append(area)
                areas.append(area)
            if areas:
                drawn["ood_avg.auroc"].append(float(np.mean(areas)))
    return figures


def interval_keys(block: Mapping[str, Any]) -> list[str]:
    keys = ["id.accuracy", *(f"ood.{key}.auroc" for key in block["ood"])]
    if block["ood"]:
        keys.append("ood_avg.auroc")
    return keys


def at(block: Any, key: str) -> float:
    for part in key.split("."):
        block = block[part]
    return float(block)
