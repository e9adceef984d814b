"""The metrics of one model in the form of ``eval.json`` (schema ``hydractl.eval/2``): blocks and their keys."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hydractl.files.eval_answer import OodSetMetrics, RowMetrics, SampleMetrics
from hydractl.metrics.declaration import Metric, MetricKind, metrics
from hydractl.metrics.errors import OrderedAnswers
from hydractl.metrics.ood import Counts, Thresholds, curve_of, each_once
from hydractl.metrics.samples import Resample, Samples, samples_of

AVERAGES = ("near_avg", "far_avg", "ood_avg")
"""The names of the blocks with means over several OOD data sets."""

LITTLE_MI, LITTLE_DISAGREEMENT = 0.001, 0.005
"""If the mutual information in nats and the disagreement are both below these, the members are as good as one."""

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


def _values(kind: MetricKind, data: Any, names: Names) -> Blocks:
    """Return the metrics of a kind by key; where ``data``, what they are computed from, is None they have no value."""
    values: Blocks = {}
    for metric in _asked_for(kind, names):
        values[metric.key] = metric.missing if data is None else metric(data)
    return values


def _id_values(samples: Samples | Resample, names: Names) -> Blocks:
    """Return the number of ID samples ``n`` and the metrics of labelled ID data, by key.

    Without samples all values but n are None; without labels there is only n.
    """
    n = len(samples)
    if samples.labels is None:
        return {"n": n}
    return {"n": n, **_values("id", samples if n else None, names)}


def id_block(samples: Samples, names: Names = None) -> SampleMetrics:
    """Return the number of ID samples ``n`` and, with labels, the metrics of ID data; None without samples."""
    return SampleMetrics(**_id_values(samples, names))


def diversity_values(samples: Samples | Resample, names: Names = None) -> Blocks:
    """Return the metrics of how much the members differ on one data set, by key; all are None without samples."""
    return _values("diversity", samples if len(samples) else None, names)


def little_diversity(mi: float | None, disagreement: float | None, where: str) -> str | None:
    """Return a warning that the members hardly differ on some data; None if they do, or for a single member.

    Args:
        mi, disagreement: the metrics of :func:`diversity_values`; the latter is None for a single member.
        where: the name of the data, for the warning.
    """
    if mi is None or disagreement is None or mi >= LITTLE_MI or disagreement >= LITTLE_DISAGREEMENT:
        return None
    return (
        f"members hardly differ on {where}: disagreement {disagreement:.2g}, mutual information {mi:.2g} nats; "
        "try heads chosen by other seeds or methods, fewer shared sites, or training from other seeds"
    )


def group_averages(sets: Mapping[str, Blocks], names: Names = None) -> Blocks:
    """Return the unweighted means of the OOD metrics over the near, the far and all OOD data sets.

    They are under ``near_avg``, ``far_avg`` and ``ood_avg``, each by the key of the metric, e.g.
    ``near_avg["auroc"]``. A mean is None if the group has no data set, or if one of its data sets has None.

    Args:
        sets: the OOD metrics of each data set by key, and its ``group``: "near", "far" or None; a set of None counts
            only in ``ood_avg``.
        names: the keys of the metrics to average; None means all.
    """
    averages: Blocks = {}
    keys = [metric.key for metric in _asked_for("ood", names)]
    for average_name in AVERAGES:
        group = average_name.removesuffix("_avg")  # "near", "far" or "ood"
        averaged = [*sets.values()]
        if group != "ood":
            averaged = [values for values in averaged if values["group"] == group]
        averages[average_name] = means_of(averaged, keys)
    return averages


def means_of(blocks: Sequence[Mapping[str, Any]], keys: Iterable[str]) -> Blocks:
    """Return the unweighted mean of each metric over several blocks (the metrics of one data set by key).

    The mean of a metric is None without a block, or if it is None in one of them.
    """
    means: Blocks = {}
    for key in keys:
        values = [block[key] for block in blocks]
        means[key] = None
        if values and None not in values:
            means[key] = math.fsum(values) / len(values)  # rounded once: the order does not matter
    return means


class ModelFigures:
    """All metrics of one model on its data, and on samples that are drawn from them.

    One OOD score, the leading one, fills the blocks of the row itself, e.g. ``row["ood"]["svhn"]["auroc"]``. If there
    are several, each has the same blocks below ``scores``, e.g.
    ``row["scores"]["energy"]["ood"]["svhn"]["auroc"]``.

    Args:
        inside: the ID samples.
        outside: the samples of each OOD data set, by its name.
        groups: "near", "far" or None for each OOD data set.
    """

    def __init__(self, inside: Samples, outside: Mapping[str, Samples], groups: Mapping[str, str | None]) -> None:
        self.sets = {"id": inside, **outside}
        self._groups = groups
        self._by_score = {score: _ScoreFigures(inside, outside, score) for score in inside.scores}

    def blocks(self, counts: Mapping[str, Counts] | None = None, names: Names = None) -> Blocks:
        """Return all metrics of the model, in the nested form of :class:`RowMetrics`.

        Its keys are ``id``, those of the first (main) OOD score (``ood``, ``near_avg``, ..., ``errors``),
        ``diversity``, and ``scores``, which is empty if there is one score.

        Args:
            counts: for each data set, how often each of its samples is drawn into the resample that is measured; the ID
                data are named ``id``. None measures the samples as they are.
            names: the keys of the metrics to measure; None means all.
        """
        # The data as they are, each sample counted once, or a resample of every set.
        measured: dict[str, Samples | Resample] = {}
        counts_by_set: dict[str, Counts] = {}
        for name, samples in self.sets.items():
            if counts is None:
                measured[name] = samples
                counts_by_set[name] = each_once(len(samples))
            else:
                measured[name] = Resample(samples, counts[name])
                counts_by_set[name] = counts[name]

        # The metrics that depend on no score: of the ID data, and of the members on each data set.
        of_id = _id_values(measured["id"], names)
        diversity = {name: diversity_values(samples_of_set, names) for name, samples_of_set in measured.items()}

        # The metrics by the first score, and if there are several scores also by each of them.
        by_score = {score: self._detection(figures, counts_by_set, names) for score, figures in self._by_score.items()}
        by_first_score = next(iter(by_score.values()))
        has_several = len(by_score) > 1
        scores = by_score if has_several else {}
        return {"id": of_id, **by_first_score, "diversity": diversity, "scores": scores}

    def _detection(self, figures: _ScoreFigures, counts: Mapping[str, Counts], names: Names) -> Blocks:
        """Return the metrics by one OOD score: of each OOD set, their averages, and of wrong answers.

        Their keys are ``ood``, ``near_avg``, ``far_avg``, ``ood_avg`` and, for labelled ID data only, ``errors``.

        Args:
            figures: what the metrics of the score are computed from.
            counts: for each data set, how often each sample counts.
            names: the keys of the metrics to measure; None means all.
        """
        sets: dict[str, Blocks] = {}
        for name, thresholds in figures.thresholds.items():
            # The counts of flagged ID and OOD samples. If the score is constant for the model, there is no curve, and
            # every metric is None.
            curve = None
            if thresholds is not None:
                curve = thresholds.curve(counts["id"], counts[name])
            samples = len(self.sets[name])  # as many as are drawn
            sets[name] = {"group": self._groups[name], "n": samples, **_values("ood", curve, names)}
        blocks: Blocks = {"ood": sets, **group_averages(sets, names)}
        if figures.answers is not None:
            blocks["errors"] = _values("errors", figures.answers.of_draw(counts["id"]), names)
        return blocks


class _ScoreFigures:
    """What the metrics of one score are computed from.

    Attributes:
        thresholds: for each OOD set those of the ID samples and its own; None if the score is constant for a model of
            one member.
        answers: the answers to the ID samples that the score orders; None for data without labels.
    """

    def __init__(self, inside: Samples, outside: Mapping[str, Samples], name: str) -> None:
        self.thresholds: dict[str, Thresholds | None] = dict.fromkeys(outside)
        id_scores = inside.scores[name]
        for data_set, samples in outside.items():
            ood_scores = samples.scores[name]
            if id_scores is not None and ood_scores is not None:
                self.thresholds[data_set] = Thresholds(id_scores, ood_scores)
        self.answers = None if inside.labels is None else OrderedAnswers(inside, name)


def row_blocks(inside: Samples, outside: Mapping[str, Samples], groups: Mapping[str, str | None]) -> RowMetrics:
    """Return all metrics of one model, measured on its data; the arguments are those of :class:`ModelFigures`."""
    return RowMetrics.model_validate(ModelFigures(inside, outside, groups).blocks())


def row_keys(ood_sets: Iterable[str], scores: Collection[str] = (), *, labelled: bool = True) -> list[str]:
    """Return the dotted keys of all numbers that the row of one model may hold, for ``--require``.

    A dotted key is the path to a number in the nested row, the name of its block first.
    Examples: ``id.nll``, ``ood.NAME.auroc``, ``scores.energy.near_avg.auroc``, ``diversity.id.mi``.

    Args:
        ood_sets: the names of the OOD data sets; without one, averages over OOD sets have no keys.
        scores: the names of the OOD scores; several are reported beside the leading one.
        labelled: whether the ID data have labels.
    """
    # Measured on no samples every value is None, but all keys are there.
    nothing = no_samples(scores or ["msp"], labelled=labelled)
    sets = list(ood_sets)
    blocks = ModelFigures(nothing, dict.fromkeys(sets, nothing), dict.fromkeys(sets)).blocks()
    keys = [key for key, _ in dotted_numbers(blocks)]
    if not sets:
        keys = [key for key in keys if "_avg." not in key]
    return keys


def no_samples(scores: Collection[str], *, labelled: bool) -> Samples:
    """Return the predictions of a model of two members and two classes on no samples, with these OOD scores."""
    no_scores = {name: np.zeros(0) for name in scores}
    labels = np.zeros(0, dtype=np.int64) if labelled else None
    return samples_of(np.zeros((2, 0, 2)), labels, scores=list(no_scores), fitted_scores=no_scores)


def dotted_numbers(blocks: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and the value of every number in nested blocks, e.g. ("id.nll", 0.5); groups are left out.

    Args:
        blocks: blocks of metrics by name, e.g. {"id": {"n": 10, "nll": 0.5}}.
        prefix: what every key begins with.
    """
    for key, value in blocks.items():
        # Most values are numbers, and the test for a float is ten times as fast as the test for a mapping.
        if not isinstance(value, float) and isinstance(value, Mapping):
            yield from dotted_numbers(value, f"{prefix}{key}.")
        elif key != "group":
            yield f"{prefix}{key}", value


def id_metrics(member_logits: np.ndarray, labels: np.ndarray) -> SampleMetrics:
    """Return n and the metrics of labelled ID data, from logits.

    Args:
        member_logits: [M, N, C], any float type.
        labels: [N] integers in 0..C-1.

    Raises:
        NonFiniteError: a logit is NaN or infinite.
        InputError: a label is outside 0..C-1.
    """
    return id_block(samples_of(member_logits, labels))


def ood_metrics(id_scores: np.ndarray, ood_scores: np.ndarray) -> OodSetMetrics:
    """Return n and the OOD metrics, from scores.

    Args:
        id_scores: the scores of the ID samples, [N].
        ood_scores: the scores of the OOD samples, [K]; n is K.

    Raises:
        NonFiniteError: a score is NaN or infinite.
    """
    return OodSetMetrics(n=len(ood_scores), **_values("ood", curve_of(id_scores, ood_scores), None))
