"""Reading the logits of one row: from the model with progress, and through a predictions file where one is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hydractl.data.batching import longest_first
from hydractl.evaluate.contenders import Batches, Contender, Running
from hydractl.evaluate.eval_set import EvalSet
from hydractl.evaluate.predictions.store import PredictionsWriter, SetEntry
from hydractl.log import Log
from hydractl.settings import EvalSettings

Reader = Callable[[EvalSet], Batches]
"""The logits of a data set, batch by batch."""


class Reading:
    """A :data:`Reader` of one row.

    Args:
        contender: the row.
        sets: the data sets of the command, in the order of the predictions file.
        writer: the predictions file to fill, None for none.
        log: hears of the progress.
    """

    def __init__(
        self, contender: Contender, sets: Sequence[EvalSet], writer: PredictionsWriter | None, log: Log
    ) -> None:
        self._contender, self._sets, self._writer, self._log = contender, list(sets), writer, log
        self._asked: set[int] = set()

    def unread(self) -> list[EvalSet]:
        """Sets that nothing has asked for yet."""
        return [one for index, one in enumerate(self._sets) if index not in self._asked]

    def __call__(self, one: EvalSet) -> Batches:
        self._asked.add(self._sets.index(one))
        title = f"{self._contender.name} on {one.name}"
        with self._log.progress(title, len(one), "samples") as progress:
            for rows, logits in self._batches(one):
                yield rows, logits
                progress.advance(len(rows))

    def _batches(self, one: EvalSet) -> Batches:
        writer = self._writer
        if writer is None:
            yield from self._contender.batches(one)
            return
        index = self._sets.index(one)
        left: list[int] | None = None
        if writer.resumed:
            kept, left = self._kept(writer, index, one)
            for rows in kept:
                yield rows, writer.read(index, rows)
            if not left:
                return
        for part, logits in self._contender.batches(one, left):
            writer.write(index, part, logits)
            yield part, logits

    def _kept(self, writer: PredictionsWriter, index: int, one: EvalSet) -> tuple[list[list[int]], list[int]]:
        """The batches of the unbroken run that the file has whole, and the samples of the others."""
        assert isinstance(self._contender, Running) and one.dataset is not None
        size, order = self._contender.batch_size, longest_first(one.dataset)
        missing = writer.missing(index)
        parts = [order[start : start + size] for start in range(0, len(order), size)]
        kept = [rows for rows in parts if not missing[rows].any()]
        return kept, [row for rows in parts if missing[rows].any() for row in rows]


def predictions_writer(
    path: Path, contender: Running, sets: Sequence[EvalSet], seen: dict[str, int], settings: EvalSettings
) -> PredictionsWriter:
    """The unfinished predictions file of one row, beside the finished one to be."""
    model: dict[str, Any] = {
        "name": contender.name,
        "sha256": contender.sha256,
        "labels": None if contender.labels is None else list(contender.labels),
        "heads": contender.heads,
        "cost": contender.cost,
        **contender.decisive(),
    }
    if contender.training:
        model["training"] = list(contender.training)
    if contender.calibration is not None:
        model["calibration"] = contender.calibration.to_json()
        if contender.fitted_on is not None:
            model["calibration"]["fitted_on"] = dict(contender.fitted_on)
    if contender.threshold is not None:
        model["threshold"] = dict(contender.threshold)
    entries = [
        SetEntry(
            one.name, one.role, one.group, one.ids, None if one.labels is None else np.asarray(one.labels),
            one.fingerprint, seen.get(one.name, 0),
        )
        for one in sets
    ]  # fmt: skip
    return PredictionsWriter(
        path,
        model,
        entries,
        members=contender.members,
        classes=contender.classes,
        kind="F64" if settings.dtype == "float64" else "F32",
        resume=settings.resume,
    )
