"""The metrics of one model in the form of ``eval.json`` (schema ``hydractl.eval/2``): blocks and their keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from hydractl.files.eval_answer import OodSetMetrics, RowMetrics, SampleMetrics
from hydractl.files.results import Metrics
from hydractl.metrics.declaration import Metric, MetricKind, metrics
from hydractl.metrics.errors import Answers, answers_by_score
from hydractl.metrics.ood import Curve, curve_of
from hydractl.metrics.probabilities import Floats
from hydractl.metrics.sample_metrics import pairs
from hydractl.metrics.samples import Resample, Samples, samples_of

AVERAGES = ("near_avg", "far_avg", "ood_avg")
"""The names of the blocks with means over several OOD data sets."""

LITTLE_MI, LITTLE_DISAGREEMENT = 0.001, 0.005
"""If the mutual information in nats and the disagreement are both below these, the members are as good as one."""

PAIRS_CONVENTION = "mi and disagreement of each two members a < b alone, members counted from 0; empty for one member."

CONVENTIONS = {
    "near_avg": "Unweighted mean over the near-OOD data sets; null when there is none or one of them has no value.",
    "far_avg": "Unweighted mean over the far-OOD data sets; null when there is none or one of them has no value.",
    "ood_avg": "Unweighted mean over all OOD data sets; null when there is none or one of them has no value.",
}


Names = Collection[str] | None
"""Keys of the metrics to measure; None means all."""

Blocks = dict[str, Any]
"""Values of metrics by key, or blocks of them by name: plain, because thousands of resamples are measured."""


def _asked_for(kind: MetricKind, names: Names) -> list[Metric]:
    """Return the metrics of a kind whose keys are in ``names``; all of the kind if ``names`` is None."""
    of_kind = list(metrics(kind))
    if names is None:
        return of_kind
    return [metric for metric in of_kind if metric.key in names]


def id_values(samples: Samples | Resample, names: Names = None) -> Blocks:
    """Return the number of ID samples ``n`` and the metrics of labelled ID data, by key.

    Without samples all values but n are None; without labels there is only n.
    """
    n = len(samples)
    values: Blocks = {"n": n}
    if samples.labels is None:
        return values
    for metric in _asked_for("id", names):
        values[metric.key] = metric(samples) if n else metric.missing
    return values


def id_block(samples: Samples, names: Names = None) -> SampleMetrics:
    """Return the record of :func:`id_values`."""
    return SampleMetrics(**id_values(samples, names))


def ood_values(curve: Curve | None, names: Names = None) -> Blocks:
    """Return the OOD metrics of one curve, by key; all are None if there is no curve."""
    values: Blocks = {}
    for metric in _asked_for("ood", names):
        values[metric.key] = None if curve is None else metric(curve)
    return values


def diversity_values(samples: Samples | Resample, names: Names = None) -> Blocks:
    """Return the metrics of how much the members differ on one data set, by key; all are None without samples."""
    n = len(samples)
    values: Blocks = {}
    for metric in _asked_for("diversity", names):
        values[metric.key] = metric(samples) if n else None
    return values


def little_diversity(values: Metrics, where: str) -> str | None:
    """Return a warning that the members hardly differ on some data; None if they do differ.

    Args:
        values: the metrics of :func:`diversity_values`. A single member has no ``disagreement``, and gets no warning.
        where: the name of the data, for the warning.
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


def group_averages(sets: Mapping[str, Blocks], names: Names = None) -> Blocks:
    """Return the unweighted means of the OOD metrics over the near, the far and all OOD data sets.

    Args:
        sets: the metrics of :func:`ood_values` for each data set, by its name, and its ``group``: "near", "far" or
            None; a set of None counts only in ``ood_avg``.
        names: the keys of the metrics to average; None means all.

    Returns:
        The means under ``near_avg``, ``far_avg`` and ``ood_avg``. A mean is None if the group has no data set, or if
        one of its data sets has None.
    """
    averages: Blocks = {}
    for average_name in AVERAGES:
        group = average_name.removesuffix("_avg")
        averaged = [values for values in sets.values() if group in ("ood", values["group"])]
        means: Blocks = {}
        for metric in _asked_for("ood", names):
            means[metric.key] = _mean([values[metric.key] for values in averaged])
        averages[average_name] = means
    return averages


Curves = Mapping[str, Curve | None]
"""The curve of the ID samples against each OOD data set, by the name of the set; None if one of the two has no samples,
or if the score is constant for a model of one member."""


class ScoreReadings(NamedTuple):
    """The curves of one OOD score on a model's data, and the answers to its ID samples; None without labels."""

    curves: Curves
    answers: Answers | None


def measured_blocks(
    samples: Mapping[str, Samples | Resample],
    groups: Mapping[str, str | None],
    leading: ScoreReadings,
    beside: Mapping[str, ScoreReadings],
    names: Names = None,
) -> Blocks:
    """Return the values of a :class:`RowMetrics`, all metrics of one model, on its data or on a resample of them.

    One OOD score, the leading one, fills the blocks of the row itself, e.g. ``row["ood"]["svhn"]["auroc"]``. If more
    scores are reported beside it, each has the same blocks below ``scores``, e.g.
    ``row["scores"]["energy"]["ood"]["svhn"]["auroc"]``.

    Args:
        samples: the samples of each data set by its name; the ID samples are named ``id``.
        groups: "near", "far" or None for each OOD data set.
        leading: the curves and answers of the leading OOD score.
        beside: the curves and answers of each score that is reported beside it, by name; if empty, the row has no
            ``scores``. If one of them is the same object as ``leading``, it is measured only once.
        names: the keys of the metrics to measure; None means all.
    """
    # The leading score fills the blocks of the row itself.
    by_leading = _detection(leading, samples, groups, names)

    # How much the members differ on each data set, ID and OOD. This does not depend on a score.
    diversity = {}
    for name, samples_of_set in samples.items():
        diversity[name] = diversity_values(samples_of_set, names)

    # Each score beside it has the same blocks, below ``scores``. The leading score may be among them: it is measured
    # only once.
    scores = {}
    for score, readings in beside.items():
        if readings is leading:
            scores[score] = by_leading
        else:
            scores[score] = _detection(readings, samples, groups, names)
    return {"id": id_values(samples["id"], names), **by_leading, "diversity": diversity, "scores": scores}


def _detection(
    readings: ScoreReadings,
    samples: Mapping[str, Samples | Resample],
    groups: Mapping[str, str | None],
    names: Names,
) -> Blocks:
    """Return the metrics of one score: by OOD set, their averages, and, for labelled ID data, those of wrong answers.

    Args:
        readings: the curves and answers of the score.
        samples, groups, names: see :func:`measured_blocks`.
    """
    sets: dict[str, Blocks] = {}
    for name, curve in readings.curves.items():
        sets[name] = {"group": groups[name], "n": len(samples[name]), **ood_values(curve, names)}
    blocks: Blocks = {"ood": sets, **group_averages(sets, names)}
    if readings.answers is not None:
        blocks["errors"] = {metric.key: metric(readings.answers) for metric in _asked_for("errors", names)}
    return blocks


def row_blocks(inside: Samples, outside: Mapping[str, Samples], groups: Mapping[str, str | None]) -> RowMetrics:
    """Return all metrics of one model, measured on its data; ``diversity`` includes each pair of members.

    Args:
        inside: the ID samples.
        outside: the samples of each OOD data set, by its name.
        groups: "near", "far" or None for each OOD data set.
    """
    # The leading score: its curve against each OOD set, and the answers it orders.
    leading_scores = {name: samples.score for name, samples in outside.items()}
    leading = ScoreReadings(
        curves=for_each_set(curve_of, inside.score, leading_scores),
        answers=answers_by_score(inside, inside.leading, inside.score),
    )

    # The same for each score that is reported beside it.
    beside: dict[str, ScoreReadings] = {}
    for score, id_scores in inside.scores.items():
        ood_scores = {name: samples.scores[score] for name, samples in outside.items()}
        beside[score] = ScoreReadings(
            curves=for_each_set(curve_of, id_scores, ood_scores),
            answers=answers_by_score(inside, score, id_scores),
        )

    # Measure them. A resample has no pairs, so those are added here.
    sets = {"id": inside, **outside}
    row = measured_blocks(sets, groups, leading, beside)
    for name, samples in sets.items():
        row["diversity"][name]["pairs"] = pairs(samples)
    return RowMetrics.model_validate(row)


AnyCurve = TypeVar("AnyCurve")


def for_each_set(
    make: Callable[[Floats, Floats], AnyCurve], id_scores: Floats | None, ood_scores: Mapping[str, Floats | None]
) -> dict[str, AnyCurve | None]:
    """Make a curve of the ID scores [N] against the scores [K] of each OOD data set.

    Args:
        make: makes a curve from ID scores and OOD scores, e.g. ``curve_of``.
        id_scores: the ID samples' scores; None if the score is constant for a model of one member.
        ood_scores: the same score of the samples of each OOD data set, by the name of the set.

    Returns:
        The curve of each OOD data set, by its name; None if the scores of one side are None.
    """
    curves: dict[str, AnyCurve | None] = dict.fromkeys(ood_scores)
    if id_scores is None:
        return curves
    for name, scores in ood_scores.items():
        if scores is not None:
            curves[name] = make(id_scores, scores)
    return curves


def row_keys(ood_sets: Iterable[str], scores: Iterable[str] = ()) -> list[str]:
    """Return the dotted keys of all numbers that the row of one model may hold, for ``--require``.

    A dotted key is the path to a number in the nested row, the name of its block first.
    Examples: ``id.nll``, ``ood.NAME.auroc``, ``scores.energy.near_avg.auroc``, ``diversity.id.mi``.

    Args:
        ood_sets: the names of the OOD data sets.
        scores: the names of the OOD scores that are reported beside the leading one.
    """
    sets = list(ood_sets)
    keys = ["id.n"]
    for metric in metrics("id"):
        keys += [f"id.{key}" for key in metric.keys]

    # The blocks of the leading score are in the row itself, those of each other score below ``scores.NAME``. So each
    # key of OOD metrics and wrong answers comes once without a prefix, and once with the prefix of each other score.
    prefixes = [""]
    for score in scores:
        prefixes.append(f"scores.{score}.")

    # Each OOD set has a block of OOD metrics, ``ood.NAME``. If there is any, so have the averages: ``near_avg``,
    # ``far_avg`` and ``ood_avg``. The metrics of wrong answers need no OOD set: they are in one block, ``errors``.
    ood_blocks = [f"ood.{name}" for name in sets]
    if sets:
        ood_blocks += AVERAGES
    for prefix in prefixes:
        keys += [f"{prefix}errors.{metric.key}" for metric in metrics("errors")]
        for ood_block_name in ood_blocks:
            keys += [f"{prefix}{ood_block_name}.{metric.key}" for metric in metrics("ood")]
    # Each OOD set also has its number of samples, n. An average has none.
    for prefix in prefixes:
        keys += [f"{prefix}ood.{name}.n" for name in sets]

    # Diversity is measured on every set, ID and OOD, and does not depend on a score.
    for name in ("id", *sets):
        keys += [f"diversity.{name}.{metric.key}" for metric in metrics("diversity")]
    return keys


def id_metrics(member_logits: np.ndarray, labels: np.ndarray) -> SampleMetrics:
    """Return n and the metrics of labelled ID data, as :func:`id_values` does, but from logits.

    Args:
        member_logits: [M, N, C], any float type.
        labels: [N] integers in 0..C-1.

    Raises:
        NonFiniteError: a logit is NaN or infinite.
        InputError: a label is outside 0..C-1.
    """
    return id_block(samples_of(member_logits, labels))


def ood_metrics(id_scores: np.ndarray, ood_scores: np.ndarray) -> OodSetMetrics:
    """Return n and the OOD metrics, as :func:`ood_values` does, but from scores.

    Args:
        id_scores: the scores of the ID samples, [N].
        ood_scores: the scores of the OOD samples, [K]; n is K.

    Raises:
        NonFiniteError: a score is NaN or infinite.
    """
    return OodSetMetrics(n=len(ood_scores), **ood_values(curve_of(id_scores, ood_scores)))


def _mean(values: Sequence[Any]) -> float | None:
    """Return the mean, rounded once so that the order does not matter; None if empty or if one value is None."""
    known = [value for value in values if value is not None]
    all_known = len(known) == len(values)
    if not known or not all_known:
        return None
    exact_sum = math.fsum(known)
    return exact_sum / len(known)
