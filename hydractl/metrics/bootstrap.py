"""Percentile bootstrap intervals of every metric of a row, and of the paired differences between two rows.

A round draws as many samples as there are, with replacement, from the ID data and from each OOD data set, each with a
generator of its own. The draws depend on the seed, the name and the size of the data set alone: every model is
measured on the same resamples, so that the difference of two models is taken round by round (paired).

A round takes each metric of the literally repeated samples; nothing is approximated. Whatever needs an order is
sorted once, and a round repeats the sorted values (:class:`~hydractl.metrics.samples.Resample`). scipy's bootstrap
would draw each metric and each model anew: no pairs, and no sharing of what is sorted.

A calibration error adds up distances, which grow with noise, and a resample is noisier than the data: its rounds lie
above the value on the data. They are moved by the distance of their median from it (:attr:`Metric.biased`).

Source: Efron and Tibshirani 1993, chapters 13 (percentile interval), 8.3 (several samples) and 10 (bias).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydractl.metrics.declaration import metrics
from hydractl.metrics.ood import Curve, auroc
from hydractl.metrics.probabilities import Floats
from hydractl.metrics.rows import measured, row_blocks
from hydractl.metrics.samples import Resample, Samples

CONVENTIONS = {
    "ci": "Percentile bootstrap interval: ID samples and the samples of each OOD data set are drawn anew with"
    " replacement in each round, the same draws for every model; of a calibration error, which is biased, the rounds"
    " are moved so that their median is the value on the data; null for a metric without a value.",
    "difference": "This row minus the first row, and the percentile bootstrap interval of that difference over rounds"
    " in which both rows have the same samples (paired).",
}

Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Resampled:
    """The metrics of one model, on the data and on its resamples.

    Attributes:
        values: by dotted key, the metric on the data itself; None where it has no meaning.
        rounds: by dotted key, the metric in each round, [R]; only for keys with a value.
    """

    values: dict[str, float | None]
    rounds: dict[str, Floats]


def resample(
    inside: Samples,
    outside: Mapping[str, Samples],
    groups: Mapping[str, str | None],
    *,
    rounds: int = 1000,
    seed: int = 0,
    advance: Callable[[int], None] = lambda rounds: None,
) -> Resampled:
    """Take every metric of a row in each round.

    A metric that has a value on the data has one in every round, because no data set changes its size.

    Args:
        inside: the ID samples.
        outside: the samples of each OOD data set, by its name.
        groups: "near", "far" or None for each OOD data set.
        rounds: how many resamples.
        seed: of the draws.
        advance: called with 1 after each round.
    """
    values = dict(_numbers(row_blocks(inside, outside, groups)))
    sets = {"id": inside, **outside}
    draws = {name: draw(seed, name, len(samples)) for name, samples in sets.items()}
    curves = {name: _Curves(inside.score, samples.score) for name, samples in outside.items()}
    beside = {
        score: {name: _Curves(values, samples.scores[score]) for name, samples in outside.items()}
        for score, values in inside.scores.items()
    }
    per_round = {key: np.empty(rounds) for key, value in values.items() if value is not None}
    for i in range(rounds):
        drawn = {name: Resample(samples, next(draws[name])) for name, samples in sets.items()}
        counts = {name: one.counts for name, one in drawn.items()}
        others = {score: _drawn(own, counts) for score, own in beside.items()}
        row = dict(_numbers(measured(drawn, groups, _drawn(curves, counts), others)))
        for key, of_rounds in per_round.items():
            of_rounds[i] = row[key]
        advance(1)
    return Resampled(values, per_round)


def resample_auroc(
    id_scores: Floats, ood_scores: Mapping[str, Floats], *, rounds: int = 1000, seed: int = 0
) -> Resampled:
    """The AUROC against each OOD data set under its name, in the same rounds as :func:`resample` and much faster.

    Args:
        id_scores: OOD scores of the ID samples, [N].
        ood_scores: those of each OOD data set, by its name.
        rounds, seed: as there.
    """
    sizes = {"id": len(id_scores), **{name: len(scores) for name, scores in ood_scores.items()}}
    draws = {name: draw(seed, name, size) for name, size in sizes.items()}
    curves = {name: _Curves(id_scores, scores) for name, scores in ood_scores.items()}

    def aurocs(counts: Mapping[str, Counts]) -> list[float | None]:
        drawn = _drawn(curves, counts)
        return [None if curve is None else auroc(curve) for curve in drawn.values()]

    once = {name: np.ones(size, dtype=np.int64) for name, size in sizes.items()}
    values = dict(zip(curves, aurocs(once), strict=True))
    each_round = [aurocs({name: next(own) for name, own in draws.items()}) for _ in range(rounds)]
    by_set = np.asarray(each_round, dtype=np.float64).reshape(rounds, len(curves)).T
    with_value = {name: row for name, row in zip(curves, by_set, strict=True) if values[name] is not None}
    return Resampled(dict(values), with_value)


def mean_over_sets(of_sets: Resampled, key: str) -> Resampled:
    """The unweighted mean over the data sets of :func:`resample_auroc`, under one key; no value where one has none.

    Args:
        of_sets: the AUROC against each data set.
        key: of the mean.
    """
    values = [value for value in of_sets.values.values() if value is not None]
    if not values or len(values) < len(of_sets.values):
        return Resampled({key: None}, {})
    by_set = np.stack(list(of_sets.rounds.values()))
    # Rounded as the means of :func:`resample` are, whatever the order of the data sets.
    sums = np.asarray([math.fsum(of_round) for of_round in by_set.T])
    return Resampled({key: math.fsum(values) / len(values)}, {key: sums / len(values)})


def resample_id(inside: Samples, *, rounds: int = 1000, seed: int = 0) -> Resampled:
    """Compute ``id.accuracy`` and ``id.nll`` alone, in the same rounds as :func:`resample` and much faster.

    Args:
        inside: labelled ID samples.
        rounds, seed: as there.
    """
    assert inside.label_log_probs is not None  # as the labels
    draws = draw(seed, "id", len(inside))
    terms = {"id.accuracy": inside.correct.astype(np.float64), "id.nll": -inside.label_log_probs}
    counts = np.stack([next(draws) for _ in range(rounds)])
    each_round = {key: counts @ of_samples / len(inside) for key, of_samples in terms.items()}
    return Resampled({key: float(of_samples.mean()) for key, of_samples in terms.items()}, each_round)


def intervals(resampled: Resampled, level: float = 0.95) -> dict[str, list[float] | None]:
    """Return ``[low, high]`` of every metric by its dotted key: quantiles of the rounds.

    These are the (1 - level)/2 and (1 + level)/2 quantiles; None where the metric has no value on the data.
    """
    found: dict[str, list[float] | None] = {}
    for key, value in resampled.values.items():
        if value is None:
            found[key] = None
            continue
        low, high = _interval(_centred(key, resampled.rounds[key], value), level)
        found[key] = [max(low, 0.0), high] if _is_biased(key) else [low, high]  # moved, but no error is negative
    return found


def differences(first: Resampled, other: Resampled, level: float = 0.95) -> dict[str, dict[str, Any]]:
    """Return other minus first, paired: ``{"value": on the data, "ci": [low, high]}`` of every metric by its key.

    Both are None where either model has no value. The two must come from the same data, seed and number of rounds.

    Raises:
        ValueError: the two differ in their number of rounds.
    """
    table: dict[str, dict[str, Any]] = {}
    for key, value in other.values.items():
        before = first.values.get(key)
        if value is None or before is None:
            table[key] = {"value": None, "ci": None}
            continue
        if len(first.rounds[key]) != len(other.rounds[key]):
            raise ValueError("two rows of different numbers of rounds cannot be compared")
        apart, rounds = value - before, other.rounds[key] - first.rounds[key]
        table[key] = {"value": apart, "ci": _interval(_centred(key, rounds, apart), level)}
    return table


def _centred(key: str, rounds: Floats, value: float) -> Floats:
    """Return the rounds of a metric, those of a biased one around its value on the data."""
    return rounds - (np.median(rounds) - value) if _is_biased(key) else rounds


def _is_biased(key: str) -> bool:
    """Return whether a dotted key is that of a metric whose rounds lie above the value on the data."""
    names = [name for declared in metrics("id") if declared.biased for name in declared.keys]
    return any(key.endswith(f".{name}") for name in names)


def draw(seed: int, name: str, n: int) -> Iterator[Counts]:
    """Yield, for ever, how often each of n samples is drawn in a round, [n]; they add up to n.

    The same for the same seed, name of the data set and n.
    """
    words = np.frombuffer(hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest(), dtype="<u4")
    generator = np.random.default_rng([seed, *words.tolist()])
    while True:
        yield np.bincount(generator.integers(0, n, n), minlength=n) if n else np.zeros(0, dtype=np.int64)


def _interval(values: Floats, level: float) -> list[float]:
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return [float(low), float(high)]


def _numbers(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float | None]]:
    """Yield all metrics below, by dotted key; counts, groups and pairs are no metrics."""
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{key}.")
        elif key not in ("n", "group", "pairs"):
            yield f"{prefix}{key}", value


class _Curves:
    """The curve of one OOD data set on resamples: the thresholds stay, only what they flag is counted anew."""

    def __init__(self, id_scores: Floats | None, ood_scores: Floats | None) -> None:
        self.known = id_scores is not None and ood_scores is not None
        if id_scores is None or ood_scores is None:
            return
        self.id_order, self.ood_order = (np.argsort(scores, kind="stable") for scores in (id_scores, ood_scores))
        thresholds = np.unique(np.concatenate([id_scores, ood_scores]))[::-1]
        self.id_below = np.searchsorted(id_scores[self.id_order], thresholds, side="left")
        self.ood_below = np.searchsorted(ood_scores[self.ood_order], thresholds, side="left")

    def drawn(self, inside: Counts, outside: Counts) -> Curve | None:
        """Return the curve, given how often each sample is drawn; None if a side is empty or the score says nothing."""
        if not self.known or not len(inside) or not len(outside):
            return None
        detected = _at_least(outside[self.ood_order], self.ood_below)
        return Curve(detected, _at_least(inside[self.id_order], self.id_below))


def _drawn(curves: Mapping[str, _Curves], counts: Mapping[str, Counts]) -> dict[str, Curve | None]:
    """Return the curve of every OOD data set, given how often each sample is drawn."""
    return {name: one.drawn(counts["id"], counts[name]) for name, one in curves.items()}


def _at_least(counts: Counts, below: Counts) -> Counts:
    """Samples at or above each threshold, from counts in the order of the scores and how many scores are below it."""
    return np.asarray(len(counts) - np.concatenate([[0], np.cumsum(counts)])[below], dtype=np.int64)
