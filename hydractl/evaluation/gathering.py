"""The logits of one row, from the model or its predictions file, reduced batch by batch to what metrics take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from hydractl.data.batching import longest_first
from hydractl.errors import InputError, NonFiniteError
from hydractl.evaluation.models import Batches, Model, RunningModel
from hydractl.evaluation.options import MSP, RowScores
from hydractl.evaluation.predictions.store import PredictionsWriter
from hydractl.evaluation.sets import EvalSet, option_of
from hydractl.log import Log
from hydractl.metrics.calibrators import Calibration
from hydractl.metrics.samples import Samples, samples_of

Reader = Callable[[EvalSet], Batches]
"""The logits of a data set, batch by batch."""

Sink = Callable[[Sequence[int], npt.NDArray[Any]], None]
"""Is given the rows and the logits ``[M, rows, C]`` of each batch."""


@dataclass
class Gathered:
    """One model on one data set.

    Attributes:
        samples: of the averaged prediction, in the order of the data set.
        rows: which samples of the data set, ascending: all but those that could not be read.
        members: of each member alone; empty for one.
    """

    samples: Samples
    rows: npt.NDArray[np.int64]
    members: list[Samples] = field(default_factory=list)


def gather(
    batches: Batches,
    one: EvalSet,
    name: str,
    *,
    scores: RowScores = MSP,
    calibration: Calibration | None = None,
    alone: bool = False,
    pairs: bool = True,
    sinks: Sequence[Sink] = (),
) -> Gathered:
    """Reduce the logits of a data set.

    Args:
        batches: every sample that can be read once, in any order.
        one: the data set.
        name: of the model, for errors.
        scores: the OOD scores.
        calibration: of the averaged prediction.
        alone: whether each member is measured alone as well.
        pairs: whether each two members are compared.
        sinks: who else wants the logits.

    Raises:
        InputError: there is not a single sample.
        NonFiniteError: at the first batch with a logit that is not finite, naming a sample.
    """
    rows: list[Sequence[int]] = []
    pooled: list[Samples] = []
    members: list[list[Samples]] = []
    for part, logits, by_member in batches:
        check_finite(logits, part, one, name)
        given = {score: each.mean(axis=0) for score, each in by_member.items()}
        labels = None if one.labels is None else one.labels[list(part)]
        rows.append(part)
        own: dict[str, Any] = {
            "score": scores.leading,
            "beside": scores.beside,
            "calibration": calibration,
            "pairs": pairs,
            "given": given,
        }
        pooled.append(samples_of(logits, labels, **own))
        if alone and len(logits) > 1:
            members.append([samples_of(logits[m : m + 1], labels) for m in range(len(logits))])
        for sink in sinks:
            sink(part, logits)
    if not rows:
        raise InputError(f"{name} has no predictions of {option_of(one)}: none of its {len(one)} samples could be read")
    which = np.concatenate([np.asarray(part, dtype=np.int64) for part in rows])
    order = np.argsort(which, kind="stable")
    members_alone = list(map(list, zip(*members, strict=True)))
    return Gathered(concatenated(pooled, order), which[order], [concatenated(parts, order) for parts in members_alone])


def concatenated(parts: Sequence[Samples], order: npt.NDArray[np.int64]) -> Samples:
    """Samples of several batches, sorted into the order of the data set."""
    values: dict[str, Any] = {}
    counts = np.array([len(part) for part in parts])
    for one in fields(Samples):
        own = [getattr(part, one.name) for part in parts]
        if one.name == "pair_mi":  # a mean over samples already
            values[one.name] = (np.stack(own) * counts[:, None]).sum(axis=0) / counts.sum()
        elif one.name == "scores":
            values[one.name] = {name: _in_order([scores[name] for scores in own], order) for name in own[0]}
        else:
            values[one.name] = _in_order(own, order)
    return Samples(**values)


def _in_order(parts: Sequence[Any], order: npt.NDArray[np.int64]) -> Any:
    return None if parts[0] is None else np.concatenate(parts, axis=-1)[..., order]


def check_finite(logits: npt.NDArray[Any], rows: Sequence[int], one: EvalSet, name: str) -> None:
    """Refuse logits that are no numbers.

    Raises:
        NonFiniteError: naming a sample.
    """
    # A sum is finite only where every number is; the other way round it may overflow, which is looked at again.
    if np.isfinite(logits.sum()):
        return
    bad = ~np.isfinite(logits).all(axis=(0, 2))
    if bad.any():
        first = one.ids[int(list(rows)[int(bad.argmax())])]
        raise NonFiniteError(
            f"{name} gives NaN or infinite logits for {int(bad.sum())} samples of one batch, the first is {first}",
            hint="run with --dtype float32, or check the checkpoint's weights",
        )


class Logits:
    """A sink that keeps all logits, for validation data, which are few."""

    def __init__(self) -> None:
        self._batches: list[tuple[Sequence[int], npt.NDArray[Any]]] = []

    def __call__(self, rows: Sequence[int], logits: npt.NDArray[Any]) -> None:
        """Keep one batch."""
        self._batches.append((rows, logits))

    def logits(self) -> npt.NDArray[Any]:
        """``[M, N, C]``, in the order of the data set."""
        rows = np.concatenate([np.asarray(part, dtype=np.int64) for part, _ in self._batches])
        return np.concatenate([logits for _, logits in self._batches], axis=1)[:, np.argsort(rows, kind="stable")]


class WentOn:
    """A sink that counts the samples that did not stop in a cascade: the others have one answer of all members."""

    def __init__(self) -> None:
        self._n = self._on = 0

    def __call__(self, rows: Sequence[int], logits: npt.NDArray[Any]) -> None:
        """Count those of one batch."""
        self._n += len(rows)
        self._on += int((logits != logits[:1]).any(axis=(0, 2)).sum())

    @property
    def share(self) -> float:
        """Their share of all samples."""
        return self._on / self._n


class Reading:
    """A :data:`Reader` of one row, with progress, through its predictions file where one is kept.

    Args:
        model: the row.
        sets: the data sets of the command, in the order of the predictions file.
        writer: the predictions file to fill, None for none; what it holds already is read from it.
        log: hears of the progress.
    """

    def __init__(self, model: Model, sets: Sequence[EvalSet], writer: PredictionsWriter | None, log: Log) -> None:
        self._model, self._sets, self._writer, self._log = model, list(sets), writer, log
        self._read: set[int] = set()

    def unread(self) -> list[EvalSet]:
        """Sets that nothing has read yet."""
        return [one for index, one in enumerate(self._sets) if index not in self._read]

    def __call__(self, one: EvalSet) -> Batches:
        self._read.add(self._sets.index(one))
        title = f"{self._model.name} on {one.name}"
        with self._log.progress(title, len(one), "samples") as progress:
            for rows, logits, scores in self._batches(one):
                yield rows, logits, scores
                progress.advance(len(rows))

    def _batches(self, one: EvalSet) -> Batches:
        writer = self._writer
        if writer is None:
            yield from (self._model.known(one) or self._model).batches(one)
            return
        index = self._sets.index(one)
        left: list[int] | None = None
        if writer.resumed:
            kept, left = self._kept(writer, index, one)
            for rows in kept:
                yield rows, writer.read(index, rows), writer.read_scores(index, rows)
            if not left:
                return
        for part, logits, scores in self._model.batches(one, left):
            writer.write(index, part, logits, scores)
            yield part, logits, scores

    def _kept(self, writer: PredictionsWriter, index: int, one: EvalSet) -> tuple[list[list[int]], list[int]]:
        """The batches of the unbroken run that the file has whole, and the samples of the others.

        Samples that are known to be unreadable are in none, as in the unbroken run.
        """
        assert isinstance(self._model, RunningModel) and one.dataset is not None
        size, order = self._model.options.batch_size, longest_first(one.dataset)
        missing, skipped = writer.missing(index), one.dataset.skipped or {}
        batches = [order[start : start + size] for start in range(0, len(order), size)]
        parts = [[row for row in rows if row not in skipped] for rows in batches]
        kept = [rows for rows in parts if rows and not missing[rows].any()]
        return kept, [row for rows in parts if missing[rows].any() for row in rows]
