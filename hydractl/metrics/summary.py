"""The metrics of one model as ``eval.json`` (schema ``hydractl.eval/1``) holds them: names, conventions, blocks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from hydractl.metrics import (
    bootstrap,
    calibration,
    calibrators,
    classification,
    conformal,
    curves,
    ood,
    probabilities,
    selective,
    threshold,
)
from hydractl.metrics import diversity as diversity_of
from hydractl.metrics.rows import (
    AVERAGES,
    ID_METRICS,
    OOD_METRICS,
    diversity_block,
    group_averages,
    id_block,
    ood_block,
    ood_metrics,
    row_blocks,
)
from hydractl.metrics.samples import samples_of

__all__ = [
    "AVERAGES",
    "CONVENTIONS",
    "ID_METRICS",
    "OOD_METRICS",
    "diversity",
    "diversity_block",
    "group_averages",
    "id_block",
    "id_metrics",
    "ood_block",
    "ood_metrics",
    "row_blocks",
    "row_keys",
]

CONVENTIONS: dict[str, str] = {
    "n": "Number of samples; of the OOD samples in a block of OOD metrics.",
    **probabilities.CONVENTIONS,
    **classification.CONVENTIONS,
    **calibration.CONVENTIONS,
    **selective.CONVENTIONS,
    **ood.CONVENTIONS,
    "near_avg": "Unweighted mean over the near-OOD data sets; null when there is none or one of them has no value.",
    "far_avg": "Unweighted mean over the far-OOD data sets; null when there is none or one of them has no value.",
    "ood_avg": "Unweighted mean over all OOD data sets; null when there is none or one of them has no value.",
    **diversity_of.CONVENTIONS,
    **curves.CONVENTIONS,
    **calibrators.CONVENTIONS,
    **bootstrap.CONVENTIONS,
    **conformal.CONVENTIONS,
    **threshold.CONVENTIONS,
}
"""One sentence a metric, by its name in the JSON; those of the OOD scores are in ``ood_scores.CONVENTIONS``."""


def row_keys(ood_sets: Iterable[str]) -> list[str]:
    """The dotted keys of the numbers that the row of one model may hold, for ``--require``.

    Args:
        ood_sets: names of the OOD data sets.
    """
    sets = list(ood_sets)
    return [
        "id.n",
        *(f"id.{metric}" for metric in ID_METRICS),
        *(f"id.accuracy_at.{selective.share_name(percent)}" for percent in selective.SHARES),
        *(f"{group}.{metric}" for group in (*(f"ood.{name}" for name in sets), *AVERAGES) for metric in OOD_METRICS),
        *(f"ood.{name}.n" for name in sets),
        *(f"diversity.{name}.{metric}" for name in ("id", *sets) for metric in ("mi", "disagreement")),
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


def diversity(member_logits: np.ndarray) -> dict[str, float | None]:
    """How much the members differ on one data set: mi (nats) and disagreement, from logits [M, N, C].

    Raises:
        NonFiniteError: a logit is NaN or infinite.
    """
    return {"mi": diversity_of.mi(member_logits), "disagreement": diversity_of.disagreement(member_logits)}
