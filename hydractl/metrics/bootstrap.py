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
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from hydractl.metrics.declaration import metrics
from hydractl.metrics.ood import Curve
from hydractl.metrics.probabilities import Floats
from hydractl.metrics.rows import Curves, Names, for_each_set, measured_blocks, row_blocks
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


class PairedDifferenceEntry(TypedDict):
    """A metric of one row minus that of the first: on the data, and its interval; both None where one has no value."""

    value: float | None
    ci: list[float] | None


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
    values: dict[str, float | None] = {}
    for key, value in _numbers(row_blocks(inside, outside, groups)):
        _, _, name = key.rpartition(".")
        if names is None or name in names:
            values[key] = value
    sets = {"id": inside, **outside}
    draws = {name: draw(seed, name, len(samples)) for name, samples in sets.items()}
    curves = _ResampledCurves(inside, outside)
    per_round = {key: np.empty(rounds) for key, value in values.items() if value is not None}
    for i in range(rounds):
        counts = {name: next(draws_of_set) for name, draws_of_set in draws.items()}
        drawn = {name: Resample(samples, counts[name]) for name, samples in sets.items()}
        leading, beside = curves.drawn(counts)
        row = dict(_numbers(measured_blocks(drawn, groups, leading, beside, names)))
        for key, values_in_rounds in per_round.items():
            values_in_rounds[i] = row[key]
        advance(1)
    return Resampled(values, per_round)


def resample_aurocs(
    id_scores: Mapping[str, Floats],
    ood_scores: Mapping[str, Mapping[str, Floats]],
    *,
    rounds: int = 1000,
    seed: int = 0,
) -> dict[str, Resampled]:
    """Return the AUROC against each OOD data set under its name, of several scores, in the rounds of :func:`resample`.

    It is faster: the draws are made once for all scores, and many rounds are counted together, in integers until the
    last division.

    Args:
        id_scores: OOD scores of the ID samples by the name of the score, [N] each.
        ood_scores: by data set those of its samples, likewise.
        rounds, seed: as there.
    """
    sizes = {"id": _size(id_scores)}
    for name, scores in ood_scores.items():
        sizes[name] = _size(scores)
    with_value = [name for name in ood_scores if sizes["id"] and sizes[name]]
    aurocs_by_score = {}
    for score, inside in id_scores.items():
        outside = {name: ood_scores[name][score] for name in with_value}
        aurocs_by_score[score] = _ScoreAurocs(inside, outside, rounds)

    draws = {name: draw(seed, name, size) for name, size in sizes.items()}
    step = max(1, _BLOCK // max(1, *sizes.values()))
    for start in range(0, rounds, step):
        block = range(start, min(rounds, start + step))
        counts = {name: _next_rounds(draws_of_set, len(block)) for name, draws_of_set in draws.items()}
        for aurocs in aurocs_by_score.values():
            aurocs.add(block, counts)

    # The data themselves, as one round in which each sample is drawn once.
    data = {name: np.ones((size, 1), dtype=np.int64) for name, size in sizes.items()}
    resampled = {}
    for score, aurocs in aurocs_by_score.items():
        values: dict[str, float | None] = dict.fromkeys(ood_scores)
        for name, value in aurocs.in_rounds(data).items():
            values[name] = float(value[0])
        resampled[score] = Resampled(values, aurocs.rounds)
    return resampled


def _next_rounds(draws: Iterator[Counts], rounds: int) -> Counts:
    """Return how often each sample is drawn in the next rounds, [N, rounds]."""
    return np.stack([next(draws) for _ in range(rounds)], axis=1)


def _size(scores: Mapping[str, Floats]) -> int:
    """Return the number of samples that all scores are of."""
    return len(next(iter(scores.values()), ()))


def mean_over_sets(of_sets: Resampled, key: str) -> Resampled:
    """Return the unweighted mean over the data sets of :func:`resample_aurocs`; no value where one has none.

    Args:
        of_sets: the AUROC against each data set.
        key: of the mean.
    """
    values = [value for value in of_sets.values.values() if value is not None]
    sets = len(values)
    if not values or sets < len(of_sets.values):
        return Resampled({key: None}, {})
    rounds = np.stack(list(of_sets.rounds.values()))  # [sets, R]
    # Rounded as the means of :func:`resample` are, whatever the order of the data sets.
    sums = np.asarray([math.fsum(values_in_round) for values_in_round in rounds.T])
    return Resampled({key: math.fsum(values) / sets}, {key: sums / sets})


def resample_id(inside: Samples, *, rounds: int = 1000, seed: int = 0) -> Resampled:
    """Compute ``id.accuracy`` and ``id.nll`` alone, in the same rounds as :func:`resample` and much faster.

    Args:
        inside: labelled ID samples.
        rounds, seed: as there.
    """
    assert inside.label_log_probs is not None  # as the labels
    draws = draw(seed, "id", len(inside))
    terms = {"id.accuracy": inside.correct.astype(np.float64), "id.nll": -inside.label_log_probs}
    counts = np.stack([next(draws) for _ in range(rounds)])  # [R, N]
    values: dict[str, float | None] = {}
    per_round = {}
    for key, terms_of_samples in terms.items():
        values[key] = float(terms_of_samples.mean())
        per_round[key] = counts @ terms_of_samples / len(inside)
    return Resampled(values, per_round)


def intervals(resampled: Resampled, level: float = 0.95) -> dict[str, list[float] | None]:
    """Return ``[low, high]`` of every metric by its dotted key: quantiles of the rounds.

    These are the (1 - level)/2 and (1 + level)/2 quantiles; None where the metric has no value on the data.
    """
    by_key: dict[str, list[float] | None] = {}
    for key, value in resampled.values.items():
        if value is None:
            by_key[key] = None
            continue
        rounds = _centred(key, resampled.rounds[key], value)
        low, high = _interval(rounds, level)
        if _is_biased(key):
            low = max(low, 0.0)  # the rounds were moved, but no error is negative
        by_key[key] = [low, high]
    return by_key


def paired_differences(first: Resampled, other: Resampled, level: float = 0.95) -> dict[str, PairedDifferenceEntry]:
    """Return other minus first, paired, of every metric by its dotted key.

    The two must come from the same data, seed and number of rounds.

    Raises:
        ValueError: the two differ in their number of rounds.
    """
    table: dict[str, PairedDifferenceEntry] = {}
    for key, value in other.values.items():
        before = first.values.get(key)
        if value is None or before is None:
            table[key] = {"value": None, "ci": None}
            continue
        if len(first.rounds[key]) != len(other.rounds[key]):
            raise ValueError("two rows of different numbers of rounds cannot be compared")
        difference = value - before
        rounds = _centred(key, other.rounds[key] - first.rounds[key], difference)
        table[key] = {"value": difference, "ci": _interval(rounds, level)}
    return table


def _centred(key: str, rounds: Floats, value: float) -> Floats:
    """Return the rounds of a metric, those of a biased one around its value on the data."""
    if not _is_biased(key):
        return rounds
    bias = np.median(rounds) - value
    return rounds - bias


def _is_biased(key: str) -> bool:
    """Return whether a dotted key is that of a metric whose rounds lie above the value on the data."""
    for metric in metrics("id"):
        endings = tuple(f".{name}" for name in metric.keys)
        if metric.biased and key.endswith(endings):
            return True
    return False


def draw(seed: int, name: str, n: int) -> Iterator[Counts]:
    """Yield, for ever, how often each of n samples is drawn in a round, [n]; they add up to n.

    The same for the same seed, name of the data set and n.
    """
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()
    words = np.frombuffer(digest, dtype="<u4").tolist()
    generator = np.random.default_rng([seed, *words])
    while True:
        if n:
            yield np.bincount(generator.integers(0, n, n), minlength=n)
        else:
            yield np.zeros(0, dtype=np.int64)


def _interval(values: Floats, level: float) -> list[float]:
    shares = [(1 - level) / 2, (1 + level) / 2]
    low, high = np.quantile(values, shares)
    return [float(low), float(high)]


def _numbers(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float | None]]:
    """Yield all metrics below, by dotted key; counts, groups and pairs are no metrics."""
    for key, value in row.items():
        # Whether it is a number is told ten times as fast as whether it is a mapping, and most are numbers.
        if not isinstance(value, float) and isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{key}.")
        elif key not in ("n", "group", "pairs"):
            yield f"{prefix}{key}", value


# --- curves of resamples ----------------------------------------------------------------------------------------------


class _ResampledCurve:
    """The curve of one OOD data set on resamples: the thresholds stay, only what they flag is counted anew.

    Args:
        id_scores: OOD scores of the ID samples, [N].
        ood_scores: those of the OOD samples, [K].
    """

    def __init__(self, id_scores: Floats, ood_scores: Floats) -> None:
        thresholds = np.unique(np.concatenate([id_scores, ood_scores]))[::-1]
        self._id_order = np.argsort(id_scores, kind="stable")
        self._ood_order = np.argsort(ood_scores, kind="stable")
        self._id_below = np.searchsorted(id_scores[self._id_order], thresholds, side="left")
        self._ood_below = np.searchsorted(ood_scores[self._ood_order], thresholds, side="left")

    def drawn(self, inside: Counts, outside: Counts) -> Curve | None:
        """Return the curve, given how often each sample is drawn; None if a side is empty."""
        if not len(inside) or not len(outside):
            return None
        true_positives = _at_least(outside[self._ood_order], self._ood_below)
        false_positives = _at_least(inside[self._id_order], self._id_below)
        return Curve(true_positives, false_positives)


_CurveOfSet = _ResampledCurve | None
"""None where the score says nothing."""


class _ResampledCurves:
    """The curves of all OOD data sets, by the score that leads and by each that is reported beside."""

    def __init__(self, inside: Samples, outside: Mapping[str, Samples]) -> None:
        leading = {name: samples.score for name, samples in outside.items()}
        self._leading = for_each_set(_ResampledCurve, inside.score, leading)
        self._beside: dict[str, dict[str, _CurveOfSet]] = {}
        for score, id_scores in inside.scores.items():
            if _leads(score, [inside, *outside.values()]):
                self._beside[score] = self._leading  # counted once
                continue
            ood_scores = {name: samples.scores[score] for name, samples in outside.items()}
            self._beside[score] = for_each_set(_ResampledCurve, id_scores, ood_scores)

    def drawn(self, counts: Mapping[str, Counts]) -> tuple[Curves, dict[str, Curves]]:
        """Return the curves of the score that leads, and those of the others by name.

        Args:
            counts: by data set how often each sample is drawn, the ID data as ``id``.
        """
        leading = _drawn(self._leading, counts)
        beside = {}
        for score, curves in self._beside.items():
            if curves is self._leading:
                beside[score] = leading
            else:
                beside[score] = _drawn(curves, counts)
        return leading, beside


def _drawn(curves: Mapping[str, _CurveOfSet], counts: Mapping[str, Counts]) -> Curves:
    """Return the curve of every OOD data set, given how often each sample is drawn."""
    drawn: dict[str, Curve | None] = dict.fromkeys(curves)
    for name, curve in curves.items():
        if curve is not None:
            drawn[name] = curve.drawn(counts["id"], counts[name])
    return drawn


def _at_least(counts: Counts, below: Counts) -> Counts:
    """Return the samples at or above each threshold.

    Args:
        counts: how often each sample is drawn, in the order of the scores; they add up to the number of samples.
        below: how many scores are below each threshold.
    """
    lower = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=lower[1:])
    return len(counts) - lower[below]


def _leads(score: str, sets: Iterable[Samples]) -> bool:
    """Return whether a score that is reported beside has the values of the one that leads, on all sets."""
    for samples in sets:
        leading = samples.score
        beside = samples.scores[score]
        if leading is None or beside is None or not np.array_equal(leading, beside):
            return False
    return True


class _ScoreAurocs:
    """The AUROC of one score against each OOD data set, in many rounds at once.

    Args:
        id_scores: of the ID samples, [N].
        ood_scores: by data set those of its samples, [K].
        rounds: R.

    Attributes:
        rounds: by data set the AUROC in each round, [R].
    """

    def __init__(self, id_scores: Floats, ood_scores: Mapping[str, Floats], rounds: int) -> None:
        self._order = np.argsort(id_scores, kind="stable")
        self._sorted = id_scores[self._order]
        self._ood_scores = ood_scores
        self.rounds = {name: np.empty(rounds) for name in ood_scores}

    def add(self, block: range, counts: Mapping[str, Counts]) -> None:
        """Take some rounds r, given how often each sample is drawn in them, [N, r] by data set."""
        for name, aurocs in self.in_rounds(counts).items():
            self.rounds[name][block.start : block.stop] = aurocs

    def in_rounds(self, counts: Mapping[str, Counts]) -> dict[str, Floats]:
        """Return the AUROC against each data set in some rounds, [r]."""
        inside = counts["id"]
        samples, rounds = inside.shape
        below = np.zeros((samples + 1, rounds), dtype=np.int64)  # drawn ones among the first 0..N by rising score
        np.cumsum(inside[self._order], axis=0, out=below[1:])
        aurocs = {}
        for name, scores in self._ood_scores.items():
            pairs = 2 * len(self._sorted) * len(scores)
            aurocs[name] = self._twice_u(below, scores, counts[name]) / pairs
        return aurocs

    def _twice_u(self, below: Counts, ood_scores: Floats, outside: Counts) -> Counts:
        """Return twice the Mann-Whitney U of the OOD side in each round, [r].

        Args:
            below: how many drawn ID samples are among the first 0..N by rising score, [N + 1, r].
            ood_scores: of the OOD samples, [K].
            outside: how often each of them is drawn, [K, r].
        """
        lower = below[np.searchsorted(self._sorted, ood_scores, side="left")]
        lower_or_equal = below[np.searchsorted(self._sorted, ood_scores, side="right")]
        twice_lower = lower + lower_or_equal  # twice the ID samples below each OOD sample, ties half: [K, r]
        return np.asarray(np.einsum("kr,kr->r", twice_lower, outside), dtype=np.int64)
