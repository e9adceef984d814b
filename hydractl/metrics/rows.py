"""The metrics of one model as ``eval.json`` (schema ``hydractl.eval/1``) holds them: blocks and their keys."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from hydractl.metrics.declaration import Kind, Metric, metrics
from hydractl.metrics.ood import Curve, curve_of
from hydractl.metrics.probabilities import Floats
from hydractl.metrics.sample_metrics import pairs
from hydractl.metrics.samples import Resample, Samples, samples_of

AVERAGES = ("near_avg", "far_avg", "ood_avg")

LITTLE_MI, LITTLE_DISAGREEMENT = 0.001, 0.005
"""Mutual information in nats and disagreement below which, both, an ensemble is as good as one of its members."""

PAIRS = "mi and disagreement of each two members a < b alone, members counted from 0; empty for one member."

CONVENTIONS = {
    "near_avg": "Unweighted mean over the near-OOD data sets; null when there is none or one of them has no value.",
    "far_avg": "Unweighted mean over the far-OOD data sets; null when there is none or one of them has no value.",
    "ood_avg": "Unweighted mean over all OOD data sets; null when there is none or one of them has no value.",
}


Names = Collection[str] | None
"""Keys of the metrics that are taken; None for all."""


def _taken(kind: Kind, names: Names) -> list[Metric]:
    return [metric for metric in metrics(kind) if names is None or metric.key in names]


def id_block(samples: Samples | Resample, names: Names = None) -> dict[str, Any]:
    """The metrics of labelled ID data by name, after n.

    Returns:
        All but n are None when there is no sample. Only n for data without labels.
    """
    n = len(samples)
    if samples.labels is None:
        return {"n": n}
    return {"n": n, **{metric.key: metric(samples) if n else metric.missing for metric in _taken("id", names)}}


def ood_block(curve: Curve | None, names: Names = None) -> dict[str, float | None]:
    """The OOD metrics of one curve by name; all None without one."""
    return {metric.key: None if curve is None else metric(curve) for metric in _taken("ood", names)}


def diversity_block(samples: Samples | Resample, names: Names = None) -> dict[str, float | None]:
    """How much the members differ on one data set."""
    return {metric.key: metric(samples) if len(samples) else None for metric in _taken("diversity", names)}


def little_diversity(values: Mapping[str, Any], where: str) -> str | None:
    """A warning of members that hardly differ on some data, from ``mi`` and ``disagreement`` there; None where they do.

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
    """Unweighted means of the OOD metrics over the near, the far and all data sets.

    Args:
        sets: by data set name, the values of :func:`ood_block` and a ``group``: "near", "far" or anything else
            (None), which counts in ``ood_avg`` alone.
        names: of the metrics.

    Returns:
        ``near_avg``, ``far_avg`` and ``ood_avg``; a mean is None when the group has no data set or when one of its data
        sets has None.
    """
    groups = {
        "near_avg": [dataset for dataset in sets.values() if dataset.get("group") == "near"],
        "far_avg": [dataset for dataset in sets.values() if dataset.get("group") == "far"],
        "ood_avg": list(sets.values()),
    }
    return {
        name: {metric.key: _mean(values[metric.key] for values in members) for metric in _taken("ood", names)}
        for name, members in groups.items()
    }


Curves = Mapping[str, Curve | None]
"""By OOD data set the curve of the ID samples against it; None where either is empty, or the score says nothing."""


def measured(
    samples: Mapping[str, Samples | Resample],
    groups: Mapping[str, str | None],
    curves: Curves,
    beside: Mapping[str, Curves],
    names: Names = None,
) -> dict[str, Any]:
    """``id``, ``ood``, the averages, ``diversity`` and ``scores`` of one model, on its data or on a resample of them.

    Args:
        samples: the ID samples, named ``id``, and those of each OOD data set.
        groups: "near", "far" or None for each OOD data set.
        curves: of the OOD score that leads.
        beside: of each score that is reported beside, by its name; ``scores`` is left out where there are none. The
            one that leads may be among them: given the very curves that lead, it is measured once.
        names: of the metrics.
    """

    def detection(curves: Curves) -> dict[str, Any]:
        sets = {
            name: {"group": groups[name], "n": len(samples[name]), **ood_block(curve, names)}
            for name, curve in curves.items()
        }
        return {"ood": sets, **group_averages(sets, names)}

    leading = detection(curves)
    scores = {score: leading if own is curves else detection(own) for score, own in beside.items()}
    return {
        "id": id_block(samples["id"], names),
        **leading,
        "diversity": {name: diversity_block(own, names) for name, own in samples.items()},
        **({"scores": scores} if beside else {}),
    }


def row_blocks(inside: Samples, outside: Mapping[str, Samples], groups: Mapping[str, str | None]) -> dict[str, Any]:
    """``id``, ``ood``, the averages, ``diversity`` (of each pair of members too) and ``scores`` of one model.

    Args:
        inside: the ID samples.
        outside: the samples of each OOD data set, by its name.
        groups: "near", "far" or None for each OOD data set.
    """
    samples = {"id": inside, **outside}
    curves = {name: _curve(inside.score, own.score) for name, own in outside.items()}
    beside = {
        score: {name: _curve(values, own.scores[score]) for name, own in outside.items()}
        for score, values in inside.scores.items()
    }
    row = measured(samples, groups, curves, beside)
    for name, own in samples.items():
        row["diversity"][name]["pairs"] = pairs(own)
    return row


def _curve(inside: Floats | None, outside: Floats | None) -> Curve | None:
    return None if inside is None or outside is None else curve_of(inside, outside)


def row_keys(ood_sets: Iterable[str], scores: Iterable[str] = ()) -> list[str]:
    """The dotted keys of the numbers that the row of one model may hold, for ``--require``."""
    sets = list(ood_sets)
    places = ("", *(f"scores.{score}." for score in scores))
    groups = [f"{place}{group}" for place in places for group in (*(f"ood.{name}" for name in sets), *AVERAGES)]
    groups = groups if sets else []
    return [
        "id.n",
        *(f"id.{key}" for metric in metrics("id") for key in metric.keys),
        *(f"{group}.{metric.key}" for group in groups for metric in metrics("ood")),
        *(f"{place}ood.{name}.n" for place in places for name in sets),
        *(f"diversity.{name}.{metric.key}" for name in ("id", *sets) for metric in metrics("diversity")),
    ]


def id_metrics(member_logits: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """The metrics of :func:`id_block`, from logits.

    Args:
        member_logits: [M, N, C], any float type.
        labels: [N] integers in 0..C-1.

    Raises:
        NonFiniteError: a logit is NaN or infinite.
        InputError: a label is outside 0..C-1.
    """
    return id_block(samples_of(member_logits, labels))


def ood_metrics(id_scores: np.ndarray, ood_scores: np.ndarray) -> dict[str, Any]:
    """n (OOD samples) and the metrics of :func:`ood_block`, from scores of the ID samples [N] and OOD samples [K].

    Raises:
        NonFiniteError: a score is NaN or infinite.
    """
    return {"n": len(ood_scores), **ood_block(curve_of(id_scores, ood_scores))}


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean, exactly rounded whatever the order of the data sets; None without values or when one is None."""
    numbers = list(values)
    known = [value for value in numbers if value is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(numbers) else None
