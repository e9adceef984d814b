"""Percentile bootstrap intervals of every metric of a row, and of the paired differences between two rows.

A round draws samples with replacement from the ID data and from each OOD data set, as many as the set has. Each set has
its own random generator. The draws depend only on the seed, the name and the size of the data set. Every model is
therefore measured on the same resamples, and two models can be compared round by round (paired differences).

A round computes each metric on the samples as they were drawn, repetitions included; nothing is approximated. What
needs an order is sorted once, and a round repeats the sorted values (:class:`~hydractl.metrics.samples.Resample`).
scipy's bootstrap would draw anew for each metric and each model, so that nothing would be paired or shared.

Wrong answers are some of the ID samples, so their number differs between rounds, and a round may have none. Metrics of
wrong answers have no value in such a round. A metric without a value in more than a tenth of the rounds, as happens
with one or two wrong answers, has no interval.

A calibration error adds up distances, which grow with noise, and a resample is noisier than the data. The error in the
rounds therefore lies above the error on the data. The rounds are moved so that their median is the value on the data
(:attr:`Metric.biased`).

Source: Efron and Tibshirani 1993, chapters 13 (percentile interval), 8.3 (several samples) and 10 (bias).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from hydractl.metrics.declaration import metrics
from hydractl.metrics.ood import Counts, each_once
from hydractl.metrics.probabilities import Floats
from hydractl.metrics.rows import ModelFigures, Names, dotted_numbers
from hydractl.metrics.samples import Samples

CONVENTIONS = {
    "ci": "Percentile bootstrap interval: ID samples and the samples of each OOD data set are drawn anew with"
    " replacement in each round, the same draws for every model; of a calibration error, which is biased, the rounds"
    " are moved so that their median is the value on the data; null for a metric without a value, or with a value in"
    " fewer than nine tenths of the rounds.",
    "difference": "This row minus the first row, and the percentile bootstrap interval of that difference over rounds"
    " in which both rows have the same samples (paired).",
}

_FEWEST_ROUNDS = 0.9
"""The share of the rounds in which a metric must have a value; with fewer it has no interval."""

_LEVEL = 0.95
"""The share of the rounds that an interval holds: their middle."""


@dataclass(frozen=True, eq=False)
class Resampled:
    """The metrics of one model, on the data and on each resample.

    Attributes:
        values: the metric on the data, by its dotted key (e.g. "id.nll"); None if it has no value there.
        rounds: the metric in each of R rounds, [R], by its dotted key; NaN in a round without a value. It has only the
            keys that have a value on the data.
    """

    values: dict[str, float | None]
    rounds: dict[str, Floats]


class PairedDifferenceEntry(TypedDict):
    """A metric of one row minus the same metric of the first row, and its interval; both None if a row lacks it."""

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
    """Return every metric of a model on the data, and again in each bootstrap round (a resample of all data sets).

    Only a metric with a value on the data is computed in the rounds. It then has a value in every round, except that a
    metric of wrong answers is NaN in a round that draws no wrong answer.

    Args:
        inside: the ID samples.
        outside: the samples of each OOD data set, by its name.
        groups: "near", "far" or None for each OOD data set.
        rounds: the number of resamples.
        seed: the seed of the draws.
        names: the names of the metrics to compute; None means all.
        advance: called with 1 after each round.
    """
    # Measure the data themselves. A dotted key is e.g. "ood.svhn.auroc", of which "auroc" is the name of the metric.
    values: dict[str, float | None] = {}
    values_in_rounds: dict[str, Floats] = {}  # [R] each, filled below
    figures = ModelFigures(inside, outside, groups)
    for key, value in dotted_numbers(figures.blocks(names=names)):
        _, _, name = key.rpartition(".")
        if name == "n":  # the number of samples is the same in every round
            continue
        values[key] = value
        if value is not None:
            values_in_rounds[key] = np.empty(rounds)

    # Each round draws from every set. `draws` has an endless iterator for each set, of which each step says how often
    # every sample is drawn in the next round: [2, 0, 1] repeats the first of three samples and leaves the second out.
    sets = {"id": inside, **outside}
    draws = {name: draw(seed, name, len(samples)) for name, samples in sets.items()}
    for round_index in range(rounds):
        counts = {name: next(draws_of_set) for name, draws_of_set in draws.items()}
        values_of_round = dict(dotted_numbers(figures.blocks(counts, names)))  # the same dotted keys as on the data
        for key, rounds_of_key in values_in_rounds.items():
            rounds_of_key[round_index] = values_of_round[key]  # None becomes NaN
        advance(1)
    return Resampled(values, values_in_rounds)


def resample_aurocs(
    inside: Samples,
    outside: Mapping[str, Samples],
    scores: Collection[str],
    *,
    rounds: int,
    seed: int = 0,
) -> dict[str, Resampled]:
    """Return the AUROC of several OOD scores against each OOD data set, on the data and in R bootstrap rounds.

    They are those of :func:`resample`, three times as fast: nothing else is measured, and no other threshold counted.
    The AUROC against a set is None, and has no rounds, if this set or the ID data have no samples.

    Args:
        inside: the ID samples.
        outside: the samples of each OOD data set, by its name.
        scores: the names of the scores. Those that are constant for the model are left out.
        rounds: the number of resamples.
        seed: the seed of the draws.

    Returns:
        For each score, by its name, the AUROC against each OOD data set; the keys are the names of the data sets.
    """
    sets = {"id": inside, **outside}
    each_sample_once = {name: each_once(len(samples)) for name, samples in sets.items()}

    # The AUROC on the data, and room for the rounds.
    resampled: dict[str, Resampled] = {}
    pairs: dict[tuple[str, str], _Pairs] = {}  # by score and OOD set, where both sides have samples
    for score, id_scores in inside.scores.items():
        if score not in scores or id_scores is None:
            continue
        resampled[score] = Resampled({}, {})
        for name, samples in outside.items():
            ood_scores = samples.scores[score]
            resampled[score].values[name] = None
            if ood_scores is not None and len(inside) and len(samples):
                pairs[score, name] = _Pairs(id_scores, ood_scores)
                resampled[score].values[name] = pairs[score, name].auroc(each_sample_once["id"], each_sample_once[name])
                resampled[score].rounds[name] = np.empty(rounds)

    # All scores are measured on the same draws.
    draws = {name: draw(seed, name, len(samples)) for name, samples in sets.items()}
    for round_index in range(rounds):
        counts = {name: next(draws_of_set) for name, draws_of_set in draws.items()}
        for (score, name), pairs_of_set in pairs.items():
            resampled[score].rounds[name][round_index] = pairs_of_set.auroc(counts["id"], counts[name])
    return resampled


class _Pairs:
    """The pairs of an ID and an OOD sample, of which the AUROC is the share with a higher OOD score; ties count half.

    Args:
        id_scores: the scores of the ID samples, [N].
        ood_scores: the scores of the OOD samples, [K].
    """

    def __init__(self, id_scores: Floats, ood_scores: Floats) -> None:
        self._order = np.argsort(id_scores, kind="stable")
        rising = id_scores[self._order]
        # For each OOD sample: the number of ID samples below it, and at or below it, [K].
        self._below = np.searchsorted(rising, ood_scores)
        self._at_or_below = np.searchsorted(rising, ood_scores, side="right")

    def auroc(self, inside: Counts, outside: Counts) -> float:
        """Return the AUROC of a draw, from how often it has each ID sample, [N], and each OOD sample, [K]."""
        # Entry i: the drawn samples among the i of lowest score. Counts of 2, 0, 1 by rising score give 0, 2, 2, 3.
        drawn_among_first = np.zeros(len(inside) + 1, dtype=np.int64)
        np.cumsum(inside[self._order], out=drawn_among_first[1:])
        # A drawn ID sample that scores lower counts 2 (once in each term), an equal one 1, [K].
        twice_below = drawn_among_first[self._below] + drawn_among_first[self._at_or_below]
        twice_pairs_won = int(twice_below @ outside)
        return twice_pairs_won / (2 * len(inside) * len(outside))  # of N * K pairs


def mean_over_sets(of_sets: Resampled, key: str) -> Resampled:
    """Return the unweighted mean over the OOD data sets of the AUROCs of one score, on the data and in each round.

    The mean is None, and has no rounds, if one of the sets has no AUROC, or if there are no sets.

    Args:
        of_sets: the AUROC against each data set.
        key: the dotted key that the mean gets in the result.
    """
    values = [*of_sets.values.values()]
    if not values or None in values:
        return Resampled({key: None}, {})
    aurocs = np.array(values, dtype=np.float64)  # [sets]
    aurocs_in_rounds = np.stack([*of_sets.rounds.values()], axis=1)  # [R, sets]
    # fsum rounds an exact sum once. The mean is then the same in any order of the sets, and the same as in `resample`.
    sums_in_rounds = [math.fsum(of_round) for of_round in aurocs_in_rounds]
    return Resampled({key: math.fsum(aurocs) / len(values)}, {key: np.asarray(sums_in_rounds) / len(values)})


def intervals(resampled: Resampled) -> dict[str, list[float] | None]:
    """Return the 95 % interval ``[low, high]`` of every metric by its dotted key, e.g. "id.nll".

    It goes from the 0.025 to the 0.975 quantile of a metric's values in the bootstrap rounds. It is None if the metric
    has no value on the data, or a value in fewer than nine tenths of the rounds.
    """
    interval_by_key: dict[str, list[float] | None] = {}
    for key, value in resampled.values.items():
        if value is None:
            interval_by_key[key] = None
            continue

        # Calibration errors and other distances are biased: higher in the rounds than on the data. Their rounds are
        # moved so that their median is the value on the data; the rounds of all other metrics stay as they are.
        rounds = _with_bias_removed(key, resampled.rounds[key], value)
        interval = _interval(rounds)

        # Moving may have pushed some rounds below 0, but no biased metric can be negative.
        if interval is not None and _is_biased(key):
            low, high = interval
            interval = [max(low, 0.0), high]
        interval_by_key[key] = interval
    return interval_by_key


def paired_differences(first: Resampled, other: Resampled) -> dict[str, PairedDifferenceEntry]:
    """Return the difference ``other - first`` of every metric by its dotted key, each with its 95 % interval.

    The differences are paired: each round has a difference, ``other`` minus ``first`` on the same samples, and the
    interval is that of these. If one of the two lacks a metric, the difference and the interval are None. Both must
    come from the same data, seed and number of rounds.

    Args:
        first, other: the metrics of two rows, on the data and in the same rounds.
    """
    differences: dict[str, PairedDifferenceEntry] = {}
    for key, value in other.values.items():
        value_of_first = first.values.get(key)
        if value is None or value_of_first is None:
            differences[key] = {"value": None, "ci": None}
            continue
        difference = value - value_of_first
        # The difference in each round, [R]; of biased metrics moved, so that the median is the difference on the data.
        difference_in_rounds = _with_bias_removed(key, other.rounds[key] - first.rounds[key], difference)
        differences[key] = {"value": difference, "ci": _interval(difference_in_rounds)}
    return differences


def _with_bias_removed(key: str, rounds: Floats, value: float) -> Floats:
    """Return the values of a metric in the rounds; if the metric is biased, shifted so that their median is ``value``.

    Args:
        key: the dotted key of the metric.
        rounds: its values in the rounds, [R].
        value: its value on the data.
    """
    if not _is_biased(key):
        return rounds
    bias = np.median(rounds) - value
    return rounds - bias


def _is_biased(key: str) -> bool:
    """Return whether the metric of a dotted key (e.g. "id.ece") is biased: higher in the rounds than on the data."""
    for metric in (*metrics("id"), *metrics("errors")):
        if metric.biased and any(key.endswith(f".{metric_key}") for metric_key in metric.keys):
            return True
    return False


def draw(seed: int, name: str, n: int) -> Iterator[Counts]:
    """Yield without end, for one round after another, how often each of n samples is drawn, [n], n times in all.

    For example [2, 0, 1] for three samples. The same seed, name of the data set and n give the same rounds.

    Args:
        seed: the seed of all draws.
        name: the name of the data set.
        n: its number of samples.
    """
    # Each data set has draws of its own: seed the generator with the seed and 8 words of 32 bits from the name.
    encoded_name = name.encode("utf-8", "surrogatepass")
    digest = hashlib.sha256(encoded_name).digest()
    words = np.frombuffer(digest, dtype="<u4").tolist()
    generator = np.random.default_rng([seed, *words])
    while True:
        if not n:
            yield np.zeros(0, dtype=np.int64)
            continue
        drawn_samples = generator.integers(0, n, n)  # n indices with repetitions, e.g. [0, 2, 0]
        yield np.bincount(drawn_samples, minlength=n)  # how often each index occurs, e.g. [2, 0, 1]


def _interval(values: Floats) -> list[float] | None:
    """Return ``[low, high]``, the ends of the middle 95 % of the values [R]; NaN values are left out.

    None if more than a tenth of the values are NaN.
    """
    known = values[~np.isnan(values)]
    if len(known) < _FEWEST_ROUNDS * len(values):
        return None
    lower_share = (1 - _LEVEL) / 2
    upper_share = (1 + _LEVEL) / 2
    low, high = np.quantile(known, [lower_share, upper_share])
    return [float(low), float(high)]
