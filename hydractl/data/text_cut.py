"""Texts that are longer than a model takes: how many, said before they are cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydractl.data.base import Dataset
from hydractl.log import Log


def report_cut(dataset: Dataset, collate: Any, log: Log, indices: Sequence[int] | None = None) -> int | None:
    """Count the texts that a model cuts, and warn of them.

    Args:
        dataset: any data set.
        collate: the model's ``preprocess``.
        log: hears of it.
        indices: the samples that are used; None: all.

    Returns:
        How many are cut; None for images, which are never cut.
    """
    if dataset.kind != "text":
        return None
    used = range(len(dataset)) if indices is None else indices
    cut: int = collate.cut(dataset[i] for i in used)
    if cut:
        verb = "is" if cut == 1 else "are"
        log.warn(
            f"{dataset.where}: {cut} of {len(used)} texts {verb} longer than {collate.max_length} tokens, "
            "and what is behind them is not read"
        )
    return cut
