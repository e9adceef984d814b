"""The metrics of one model as ``eval.json`` (schema ``hydractl.eval/1``) holds them: blocks and their keys."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hydractl.metrics.declaration import Metric, MetricKind, metrics
from hydractl.metrics.ood import Curve, curve_of
from hydractl.metrics.probabilities import Floats
from hydractl.metrics.sample_metrics import pairs
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
"""Keys of the metrics that are taken; None for all."""


def _asked_for(kind: MetricKind, names: Names) -> list[Metric]:
    """Return the metrics of a kind that are taken."""
    return [metric for metric in metrics(kind) if names is None or metric.key in names]


def id_block(samples: Samples | Resample, names: Names = None) -> dict[str, Any]:
    """Return n and the metrics of labelled ID data, by name.

    Returns:
        All but n are None when there is no sample. Only n for data without labels.
    """
    block: dict[str, Any] = {"n": len(samples)}
    if samples.labels is None:
        return block
    for metric in _asked_for("id", names):
        block[metric.key] = metric(samples) if len(samples) else metric.missing
    return block


def ood_block(curve: Curve | None, names: Names = None) -> dict[str, float | None]:
    """Return the OOD metrics of one curve by name; all None without one."""
    block: dict[str, float | None] = {}
    for metric in _asked_for("ood", names):
        block[metric.key] = None if curve is None else metric(curve)
    return block


def diversity_block(samples: Samples | Resample, names: Names = None) -> dict[str, float | None]:
    """Return how much the members differ on one data set, by the name of the metric."""
    block: dict[str, float | None] = {}
    for metric in _asked_for("diversity", names):
        block[metric.key] = metric(samples) if len(samples) else None
    return block


def little_diversity(values: Mapping[str, Any], where: str) -> str | None:
    """Return a warning of members that hardly differ on some data; None where they do.

    Args:
        values: as of :func:`diversity_block`; one member has no ``disagreement``, and nothing is said.
        where: the data, for the warning.
    """
    mi, disagreement = values.get("mi"), values.get("disagreement")
    if mi is None or disagreement is None or mi >= LITTLE_MI or disagreement >= LITTLE_DISAGREEMENT:
        return None
    return (
        f"members hardly differ on {where}: disagreement {disagreement:.2g}, mutual information {mi:.2g} nats; "
        "try heads chosen by other seeds or methods, fewer shared sites, or training from other seeds"
    )


def group_averages(sets: Mapping[str, Mapping[str, Any]], names: Names = None) -> dict[str, dict[str, float | None]]:
    """Return the unweighted means of the OOD metrics over the near, the far and all data sets.

    Args:
        sets: by data set name, the values of :func:`ood_block` and a ``group``: "near", "far" or anything else
            (None), which counts in ``ood_avg`` alone.
        names: of the metrics.

    Returns:
        ``near_avg``, ``far_avg`` and ``ood_avg``; a mean is None when the group has no data set or when one of its data
        sets has None.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {"near_avg": [], "far_avg": [], "ood_avg": []}
    for block in sets.values():
        groups["ood_avg"].append(block)
        if block.get("group") in ("near", "far"):
            groups[f"{block['group']}_avg"].append(block)
    averages: dict[str, dict[str, float | None]] = {}
    for name, blocks in groups.items():
        averages[name] = {}
        for metric in _asked_for("ood", names):
            values = [block[metric.key] for block in blocks]
            averages[name][metric.key] = _mean(values)
    return averages


Curves = Mapping[str, Curve | None]
"""By OOD data set the curve of the ID samples against it; None where either is empty, or the score says nothing."""


def measured_blocks(
    samples: Mapping[str, Samples | Resample],
    groups: Mapping[str, str | None],
    curves: Curves,
    beside: Mapping[str, Curves],
    names: Names = None,
) -> dict[str, Any]:
    """Return ``id``, ``ood``, the averages, ``diversity`` and ``scores`` of one model, on its data or on a resample.

    Args:
        samples: the ID samples, named ``id``, and those of each OOD data set.
        groups: "near", "far" or None for each OOD data set.
        curves: of the OOD score that leads.
        beside: of each score that is reported beside, by its name; ``scores`` is left out where there are none. The
            one that leads may be among them: given the very curves that lead, it is measured once.
        names: of the metrics.
    """
    leading = _detection(curves, samples, groups, names)
    diversity = {name: diversity_block(of_set, names) for name, of_set in samples.items()}
    row: dict[str, Any] = {"id": id_block(samples["id"], names), **leading, "diversity": diversity}
    if beside:
        row["scores"] = {}
    for score, of_score in beside.items():
        if of_score is curves:
            row["scores"][score] = leading
        else:
            row["scores"][score] = _detection(of_score, samples, groups, names)
    return row


def _detection(
    curves: Curves,
    samples: Mapping[str, Samples | Resample],
    groups: Mapping[str, str | None],
    names: Names,
) -> dict[str, Any]:
    """Return ``ood`` and the averages by one score; the arguments are those of :func:`measured_blocks`."""
    sets: dict[str, dict[str, Any]] = {}
    for name, curve in curves.items():
        sets[name] = {"group": groups[name], "n": len(samples[name]), **ood_block(curve, names)}
    return {"ood": sets, **group_averages(sets, names)}


def row_blocks(inside: Samples, outside: Mapping[str, Samples], groups: Mapping[str, str | None]) -> dict[str, Any]:
    """Return ``id``, ``ood``, the averages, ``diversity`` (of each pair of members too) and ``scores`` of one model.

    Args:
        inside: the ID samples.
        outside: the samples of each OOD data set, by its name.
        groups: "near", "far" or None for each OOD data set.
    """
    leading = {name: of_set.score for name, of_set in outside.items()}
    beside: dict[str, Curves] = {}
    for score, id_scores in inside.scores.items():
        ood_scores = {name: of_set.scores[score] for name, of_set in outside.items()}
        beside[score] = _curves(id_scores, ood_scores)
    samples = {"id": inside, **outside}
    row = measured_blocks(samples, groups, _curves(inside.score, leading), beside)
    for name, of_set in samples.items():
        row["diversity"][name]["pairs"] = pairs(of_set)
    return row


def _curves(id_scores: Floats | None, ood_scores: Mapping[str, Floats | None]) -> Curves:
    """Return the curve against each OOD data set by one score."""
    curves: dict[str, Curve | None] = dict.fromkeys(ood_scores)
    if id_scores is None:
        return curves
    for name, scores in ood_scores.items():
        if scores is not None:
            curves[name] = curve_of(id_scores, scores)
    return curves


def row_keys(ood_sets: Iterable[str], scores: Iterable[str] = ()) -> list[str]:
    """Return the dotted keys of the numbers that the row of one model may hold, for ``--require``."""
    sets = list(ood_sets)
    places = [""]
    for score in scores:
        places.append(f"scores.{score}.")
    groups = [f"ood.{name}" for name in sets]
    if sets:
        groups += AVERAGES
    keys = ["id.n"]
    for metric in metrics("id"):
        keys += [f"id.{key}" for key in metric.keys]
    for place, group, metric in itertools.product(places, groups, metrics("ood")):
        keys.append(f"{place}{group}.{metric.key}")
    for place, name in itertools.product(places, sets):
        keys.append(f"{place}ood.{name}.n")
    for name, metric in itertools.product(["id", *sets], metrics("diversity")):
        keys.append(f"diversity.{name}.{metric.key}")
    return keys


def id_metrics(member_logits: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """Return the metrics of :func:`id_block`, from logits.

    Args:
        member_logits: [M, N, C], any float type.
        labels: [N] integers in 0..C-1.

    Raises:
        NonFiniteError: a logit is NaN or infinite.
        InputError: a label is outside 0..C-1.
    """
    return id_block(samples_of(member_logits, labels))


def ood_metrics(id_scores: np.ndarray, ood_scores: np.ndarray) -> dict[str, Any]:
    """Return n and the metrics of :func:`ood_block`, from scores.

    Args:
        id_scores: of the ID samples, [N].
        ood_scores: of the OOD samples, [K]; n is K.

    Raises:
        NonFiniteError: a score is NaN or infinite.
    """
    return {"n": len(ood_scores), **ood_block(curve_of(id_scores, ood_scores))}


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean, exactly rounded whatever the order of the data sets; None without values or when one is None."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    return math.fsum(known) / len(known)
