"""The metrics of one model as ``eval.json`` (schema ``hydractl.eval/2``) holds them: blocks and their keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NotRequired, TypedDict, TypeVar

import numpy as np

from hydractl.files.records import Metrics, MetricValue
from hydractl.metrics.declaration import Metric, MetricKind, metrics
from hydractl.metrics.errors import Answers, answers_by_score
from hydractl.metrics.ood import Curve, curve_of
from hydractl.metrics.probabilities import Floats
from hydractl.metrics.sample_metrics import PairBlock, pairs
from hydractl.metrics.samples import Resample, Samples, samples_of

AVERAGES = ("near_avg", "far_avg", "ood_avg")

LITTLE_MI, LITTLE_DISAGREEMENT = 0.001, 0.005
"""Mutual information in nats and disagreement below which, both, an ensemble is as good as one of its members."""

PAIRS_CONVENTION = "mi and disagreement of each two members a < b alone, members counted from 0; empty for one member."

CONVENTIONS = {
    "near_avg": "Unweighted mean over the near-OOD data sets; null when there is none or one of them has no value.",
    "far_avg": "Unweighted mean over the far-OOD data sets; null when there is none or one of them has no value.",
    "ood_avg": "Unweighted mean over all OOD data sets; null when there is none or one of them has no value.",
}


Names = Collection[str] | None
"""Keys of the metrics that are measured; None for all."""

MetricValues = dict[str, float | None]
"""Metrics by key; None where one has no value."""


class DetectionBlocks(TypedDict):
    """The OOD metrics of one score for each OOD data set, and their averages over near, far and all sets.

    Each data set has its ``group`` and ``n`` beside the metrics. ``errors`` holds the metrics of wrong answers on
    labelled ID data.
    """

    errors: NotRequired[MetricValues]

    ood: dict[str, dict[str, str | float | None]]
    near_avg: MetricValues
    far_avg: MetricValues
    ood_avg: MetricValues


class RowBlocks(DetectionBlocks):
    """Everything that is measured of one model.

    ``id`` is that of :func:`id_block`; ``diversity`` is by data set, with ``pairs`` beside the metrics where each pair
    of members is measured; ``scores`` holds the scores that are reported beside the one that leads, by name.
    """

    id: dict[str, MetricValue]
    diversity: dict[str, dict[str, float | list[PairBlock] | None]]
    scores: NotRequired[dict[str, DetectionBlocks]]


def _asked_for(kind: MetricKind, names: Names) -> list[Metric]:
    """Return the metrics of a kind that have one of the names; all of the kind where ``names`` is None."""
    of_kind = list(metrics(kind))
    if names is None:
        return of_kind
    return [metric for metric in of_kind if metric.key in names]


def id_block(samples: Samples | Resample, names: Names = None) -> dict[str, Any]:
    """Return n and the metrics of labelled ID data, by name.

    Returns:
        The block of the row. All values but n are None when there is no sample. Data without labels have n alone.
    """
    n = len(samples)
    block: dict[str, MetricValue] = {"n": n}
    if samples.labels is None:
        return block
    for metric in _asked_for("id", names):
        if n:
            block[metric.key] = metric(samples)
        else:
            block[metric.key] = metric.missing
    return block


def ood_block(curve: Curve | None, names: Names = None) -> MetricValues:
    """Return the OOD metrics of one curve by name; all None without one."""
    block: MetricValues = {}
    for metric in _asked_for("ood", names):
        if curve is None:
            block[metric.key] = None
        else:
            block[metric.key] = metric(curve)
    return block


def errors_block(answers: Answers, names: Names = None) -> MetricValues:
    """Return the metrics of wrong answers by name; all None without samples or without a score."""
    block: MetricValues = {}
    for metric in _asked_for("errors", names):
        block[metric.key] = metric(answers)
    return block


def diversity_block(samples: Samples | Resample, names: Names = None) -> MetricValues:
    """Return how much the members differ on one data set, by the name of the metric; all None without samples."""
    n = len(samples)
    block: MetricValues = {}
    for metric in _asked_for("diversity", names):
        if n:
            block[metric.key] = metric(samples)
        else:
            block[metric.key] = None
    return block


def little_diversity(values: Metrics, where: str) -> str | None:
    """Return a warning that the members hardly differ on some data; None where they do differ.

    Args:
        values: as of :func:`diversity_block`; a single member has no ``disagreement``, and there is no warning.
        where: the data, for the warning.
    """
    mi = values.get("mi")
    disagreement = values.get("disagreement")
    if mi is None or isinstance(mi, Mapping):
        return None
    if disagreement is None or isinstance(disagreement, Mapping):
        return None
    if mi >= LITTLE_MI or disagreement >= LITTLE_DISAGREEMENT:
        return None
    return (
        f"members hardly differ on {where}: disagreement {disagreement:.2g}, mutual information {mi:.2g} nats; "
        "try heads chosen by other seeds or methods, fewer shared sites, or training from other seeds"
    )


def group_averages(
    sets: Mapping[str, MetricValues], groups: Mapping[str, str | None], names: Names = None
) -> dict[str, MetricValues]:
    """Return the unweighted means of the OOD metrics over the near, the far and all data sets.

    Args:
        sets: by data set the values of :func:`ood_block`.
        groups: "near", "far" or None for each data set; those of None count in ``ood_avg`` alone.
        names: of the metrics.

    Returns:
        ``near_avg``, ``far_avg`` and ``ood_avg``; a mean is None when the group has no data set or when one of its data
        sets has None.
    """
    blocks_by_average: dict[str, list[MetricValues]] = {"near_avg": [], "far_avg": [], "ood_avg": []}
    for name, block in sets.items():
        blocks_by_average["ood_avg"].append(block)
        group = groups[name]
        if group in ("near", "far"):
            blocks_by_average[f"{group}_avg"].append(block)
    averages: dict[str, MetricValues] = {}
    for average_name, blocks in blocks_by_average.items():
        average: MetricValues = {}
        for metric in _asked_for("ood", names):
            values = [block[metric.key] for block in blocks]
            average[metric.key] = _mean(values)
        averages[average_name] = average
    return averages


Curves = Mapping[str, Curve | None]
"""The curve of the ID samples against each OOD data set, by its name; None where one of the two is empty, or the score
says nothing of a single member."""


class ScoreReadings(NamedTuple):
    """One OOD score on the data of a model: the curves, and the answers to labelled ID samples; None without labels."""

    curves: Curves
    answers: Answers | None


def measured_blocks(
    samples: Mapping[str, Samples | Resample],
    groups: Mapping[str, str | None],
    leading: ScoreReadings,
    beside: Mapping[str, ScoreReadings],
    names: Names = None,
) -> RowBlocks:
    """Return ``id``, ``errors``, ``ood``, the averages, ``diversity`` and ``scores`` of one model, on its data or on a
    resample.

    Args:
        samples: the ID samples, named ``id``, and those of each OOD data set.
        groups: "near", "far" or None for each OOD data set.
        leading: the readings of the leading OOD score.
        beside: those of each score that is reported beside it, by its name; ``scores`` is left out where there are
            none. The leading score may be among them: where its readings are the same object, it is measured once.
        names: of the metrics.
    """
    by_leading = _detection(leading, samples, groups, names)
    row: RowBlocks = {
        "id": id_block(samples["id"], names),
        "ood": by_leading["ood"],
        "near_avg": by_leading["near_avg"],
        "far_avg": by_leading["far_avg"],
        "ood_avg": by_leading["ood_avg"],
        "diversity": {},
    }
    if "errors" in by_leading:
        row["errors"] = by_leading["errors"]
    for name, samples_of_set in samples.items():
        diversity = diversity_block(samples_of_set, names)
        row["diversity"][name] = {**diversity}
    scores: dict[str, DetectionBlocks] = {}
    for score, readings in beside.items():
        if readings is leading:
            scores[score] = by_leading
        else:
            scores[score] = _detection(readings, samples, groups, names)
    if scores:
        row["scores"] = scores
    return row


def _detection(
    readings: ScoreReadings,
    samples: Mapping[str, Samples | Resample],
    groups: Mapping[str, str | None],
    names: Names,
) -> DetectionBlocks:
    """Return ``errors``, ``ood`` and the averages by one score; arguments are as of :func:`measured_blocks`."""
    metrics_of_sets = {name: ood_block(curve, names) for name, curve in readings.curves.items()}
    averages = group_averages(metrics_of_sets, groups, names)
    blocks: DetectionBlocks = {
        "ood": {},
        "near_avg": averages["near_avg"],
        "far_avg": averages["far_avg"],
        "ood_avg": averages["ood_avg"],
    }
    for name, metrics_of_set in metrics_of_sets.items():
        blocks["ood"][name] = {"group": groups[name], "n": len(samples[name]), **metrics_of_set}
    if readings.answers is None:
        return blocks
    return {"errors": errors_block(readings.answers, names), **blocks}


def row_blocks(inside: Samples, outside: Mapping[str, Samples], groups: Mapping[str, str | None]) -> RowBlocks:
    """Return ``id``, ``ood``, the averages, ``diversity`` (also of each pair of members) and ``scores`` of one model.

    Args:
        inside: the ID samples.
        outside: the samples of each OOD data set, by its name.
        groups: "near", "far" or None for each OOD data set.
    """
    leading_scores = {name: samples.score for name, samples in outside.items()}
    leading = ScoreReadings(
        curves=for_each_set(curve_of, inside.score, leading_scores),
        answers=answers_by_score(inside, inside.leading, inside.score),
    )

    beside: dict[str, ScoreReadings] = {}
    for score, id_scores in inside.scores.items():
        ood_scores = {}
        for name, samples in outside.items():
            ood_scores[name] = samples.scores[score]
        beside[score] = ScoreReadings(
            curves=for_each_set(curve_of, id_scores, ood_scores),
            answers=answers_by_score(inside, score, id_scores),
        )

    sets = {"id": inside, **outside}
    row = measured_blocks(sets, groups, leading, beside)
    for name, samples in sets.items():
        row["diversity"][name]["pairs"] = pairs(samples)
    return row


AnyCurve = TypeVar("AnyCurve")


def for_each_set(
    make: Callable[[Floats, Floats], AnyCurve], id_scores: Floats | None, ood_scores: Mapping[str, Floats | None]
) -> dict[str, AnyCurve | None]:
    """Make a curve of the ID scores [N] against the scores [K] of each OOD data set; None where there are no scores.

    Args:
        make: makes the curve, from ID scores and OOD scores.
        id_scores: one OOD score of the ID samples; None where it says nothing of a single member.
        ood_scores: the same score of the samples of each OOD data set.
    """
    curves: dict[str, AnyCurve | None] = dict.fromkeys(ood_scores)
    if id_scores is None:
        return curves
    for name, scores in ood_scores.items():
        if scores is not None:
            curves[name] = make(id_scores, scores)
    return curves


def row_keys(ood_sets: Iterable[str], scores: Iterable[str] = ()) -> list[str]:
    """Return the dotted keys of the numbers that the row of one model may hold, for ``--require``."""
    sets = list(ood_sets)
    keys = ["id.n"]
    for metric in metrics("id"):
        keys += [f"id.{key}" for key in metric.keys]

    # The leading score stands in the row itself, the others below ``scores``.
    prefixes = [""]
    for score in scores:
        prefixes.append(f"scores.{score}.")
    groups = [f"ood.{name}" for name in sets]
    if sets:
        groups += AVERAGES
    for prefix in prefixes:
        keys += [f"{prefix}errors.{metric.key}" for metric in metrics("errors")]
        for group in groups:
            keys += [f"{prefix}{group}.{metric.key}" for metric in metrics("ood")]
    for prefix in prefixes:
        keys += [f"{prefix}ood.{name}.n" for name in sets]

    for name in ("id", *sets):
        keys += [f"diversity.{name}.{metric.key}" for metric in metrics("diversity")]
    return keys


def id_metrics(member_logits: np.ndarray, labels: np.ndarray) -> dict[str, MetricValue]:
    """Return n and the metrics of :func:`id_block`, from logits.

    Args:
        member_logits: [M, N, C], any float type.
        labels: [N] integers in 0..C-1.

    Raises:
        NonFiniteError: a logit is NaN or infinite.
        InputError: a label is outside 0..C-1.
    """
    samples = samples_of(member_logits, labels)
    return id_block(samples)


def ood_metrics(id_scores: np.ndarray, ood_scores: np.ndarray) -> MetricValues:
    """Return n and the metrics of :func:`ood_block`, from scores.

    Args:
        id_scores: of the ID samples, [N].
        ood_scores: of the OOD samples, [K]; n is K.

    Raises:
        NonFiniteError: a score is NaN or infinite.
    """
    curve = curve_of(id_scores, ood_scores)
    return {"n": len(ood_scores), **ood_block(curve)}


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean, exactly rounded whatever the order of the data sets; None without values or when one is None."""
    known = [value for value in values if value is not None]
    all_known = len(known) == len(values)
    if not known or not all_known:
        return None
    exact_sum = math.fsum(known)
    return exact_sum / len(known)
