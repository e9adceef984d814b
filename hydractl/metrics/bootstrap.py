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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydractl.metrics.declaration import metrics
from hydractl.metrics.ood import Curve
from hydractl.metrics.probabilities import Floats
from hydractl.metrics.rows import Names, measured, row_blocks
from hydractl.metrics.samples import Resample, Samples

CONVENTIONS = {
    "ci": "Percentile bootstrap interval: ID samples and the samples of each OOD data set are drawn anew with"
    " replacement in each round, the same draws for every model; of a calibration error, which is biased, the rounds"
    " are moved so that their median is the value on the data; null for a metric without a value.",
    "difference": "This row minus the first row, and the percentile bootstrap interval of that difference over rounds"
    " in which both rows have the same samples (paired).",
}

Counts = NDArray[np.int64]

_BLOCK = 1 << 19
"""Draws of the largest data set that are counted together: 4 MiB."""


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
    names: Names = None,
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
        names: of the metrics, where some are enough.
        advance: called with 1 after each round.
    """
    on_data = dict(_numbers(row_blocks(inside, outside, groups)))
    values = {key: value for key, value in on_data.items() if names is None or key.rpartition(".")[2] in names}
    sets = {"id": inside, **outside}
    draws = {name: draw(seed, name, len(samples)) for name, samples in sets.items()}
    curves = {name: _Curves(inside.score, samples.score) for name, samples in outside.items()}
    beside = {
        score: {name: _Curves(values, samples.scores[score]) for name, samples in outside.items()}
        for score, values in inside.scores.items()
    }
    leading = [score for score in beside if _leads(score, sets.values())]
    per_round = {key: np.empty(rounds) for key, value in values.items() if value is not None}
    for i in range(rounds):
        drawn = {name: Resample(samples, next(draws[name])) for name, samples in sets.items()}
        counts = {name: one.counts for name, one in drawn.items()}
        leads = _drawn(curves, counts)
        others = {score: leads if score in leading else _drawn(own, counts) for score, own in beside.items()}
        row = dict(_numbers(measured(drawn, groups, leads, others, names)))
        for key, of_rounds in per_round.items():
            of_rounds[i] = row[key]
        advance(1)
    return Resampled(values, per_round)


def resample_aurocs(
    id_scores: Mapping[str, Floats],
    ood_scores: Mapping[str, Mapping[str, Floats]],
    *,
    rounds: int = 1000,
    seed: int = 0,
) -> dict[str, Resampled]:
    """The AUROC against each OOD data set under its name, of several scores: the rounds of :func:`resample`, faster.

    The draws are made once for all scores, and many rounds are counted together, in integers until the last division.

    Args:
        id_scores: OOD scores of the ID samples by the name of the score, [N] each.
        ood_scores: by data set those of its samples, likewise.
        rounds, seed: as there.
    """
    size = len(next(iter(id_scores.values()), ()))
    sizes = {name: len(next(iter(scores.values()), ())) for name, scores in ood_scores.items()}
    draws = {name: draw(seed, name, n) for name, n in {"id": size, **sizes}.items()}
    with_value = [name for name, n in sizes.items() if size and n]
    orders = {score: _Order(values) for score, values in id_scores.items()}
    pairs = {name: 2 * size * sizes[name] for name in with_value}

    def aurocs(score: str, inside: Counts, outside: Mapping[str, Counts]) -> dict[str, Floats]:
        below = orders[score].below(inside)
        scores = {name: ood_scores[name][score] for name in with_value}
        return {name: orders[score].twice_u(below, scores[name], outside[name]) / pairs[name] for name in with_value}

    once = {name: np.ones((n, 1), dtype=np.int64) for name, n in {"id": size, **sizes}.items()}
    step = max(1, _BLOCK // max(1, size, *sizes.values()))
    blocks = [range(start, min(rounds, start + step)) for start in range(0, rounds, step)]
    by_score = {score: {name: np.empty(rounds) for name in with_value} for score in id_scores}
    for block in blocks:
        counts = {name: np.stack([next(own) for _ in block], axis=1) for name, own in draws.items()}
        for score, of_rounds in by_score.items():
            for name, found in aurocs(score, counts["id"], counts).items():
                of_rounds[name][block.start : block.stop] = found
    answer = {}
    for score, of_rounds in by_score.items():
        on_data = {name: float(value[0]) for name, value in aurocs(score, once["id"], once).items()}
        answer[score] = Resampled({name: on_data.get(name) for name in sizes}, of_rounds)
    return answer


def mean_over_sets(of_sets: Resampled, key: str) -> Resampled:
    """The unweighted mean over the data sets of :func:`resample_aurocs`, under one key; no value where one has none.

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
        # Whether it is a number is told ten times as fast as whether it is a mapping, and most are numbers.
        if not isinstance(value, float) and isinstance(value, Mapping):
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
    lower = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=lower[1:])
    return len(counts) - lower[below]


def _leads(score: str, sets: Iterable[Samples]) -> bool:
    """Whether a score that is reported beside has the values of the one that leads, on all sets."""
    for samples in sets:
        leading, own = samples.score, samples.scores[score]
        if leading is None or own is None or not np.array_equal(leading, own):
            return False
    return True


class _Order:
    """The ID samples in the order of an OOD score, for the AUROC of many rounds at once."""

    def __init__(self, id_scores: Floats) -> None:
        self._order = np.argsort(id_scores, kind="stable")
        self._sorted = id_scores[self._order]

    def below(self, inside: Counts) -> Counts:
        """From how often each ID sample is drawn, [N, R], how many drawn ones are among the first 0..N, [N + 1, R]."""
        drawn = np.zeros((len(inside) + 1, inside.shape[1]), dtype=np.int64)
        np.cumsum(inside[self._order], axis=0, out=drawn[1:])
        return drawn

    def twice_u(self, below: Counts, ood_scores: Floats, outside: Counts) -> Counts:
        """Twice the Mann-Whitney U of the OOD side in each round, [R].

        Args:
            below: as :meth:`below` gives it.
            ood_scores: of the OOD samples, [K].
            outside: how often each of them is drawn, [K, R].
        """
        lower = below[np.searchsorted(self._sorted, ood_scores, side="left")]
        lower_or_equal = below[np.searchsorted(self._sorted, ood_scores, side="right")]
        return np.asarray(np.einsum("kr,kr->r", lower + lower_or_equal, outside), dtype=np.int64)
