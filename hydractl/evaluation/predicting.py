"""Predictions of inputs without labels, sample by sample in the order of the inputs, in memory that does not grow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hydractl.data import Batch, Dataset, batches
from hydractl.errors import InputError, NonFiniteError
from hydractl.files.predict_answer import (
    FlaggedRecord,
    PredictAnswer,
    PredictedClassRecord,
    PredictingModelRecord,
    SkippedRecord,
)
from hydractl.metrics.confidence import share_interval
from hydractl.model.prediction import Prediction
from hydractl.model.runtime import HydraModel, move

PredictionRow = dict[str, Any]
"""What is said of one sample, by the name of the field."""

WINDOW_BATCHES = 16
"""Batches whose texts are sorted by length together, so that little is padded; the order of images stays."""

_MOST_IDS = 1000
"""Skipped samples that a summary lists by their ids."""


class Part(NamedTuple):
    """Which of some equal parts of the inputs is predicted.

    Attributes:
        number: of this part, from 1.
        parts: how many there are.
    """

    number: int
    parts: int


def window_size(dataset: Dataset, batch_size: int) -> int:
    """Return how many samples are ordered among themselves before they are cut into batches.

    Parts begin, and a run that was stopped goes on, only where such a window does: then every batch holds the same
    samples, and every prediction has the same bits, as in one unbroken run.
    """
    if dataset.lengths() is None:
        return batch_size
    return batch_size * WINDOW_BATCHES


def rows_of_part(samples: int, window: int, part: Part) -> range:
    """Return the samples of one part: neighbouring windows, shared out as evenly as windows can be."""
    windows = -(-samples // window)  # rounded up
    first = windows * (part.number - 1) // part.parts
    behind_last = windows * part.number // part.parts
    return range(min(first * window, samples), min(behind_last * window, samples))


class Window(NamedTuple):
    """The predictions of one window.

    Attributes:
        stop: the first sample that comes after it.
        rows: of the samples that could be read, in their order.
        skipped: why each of the others could not, by its id.
    """

    stop: int
    rows: list[PredictionRow]
    skipped: dict[str, str]


@dataclass(frozen=True)
class LineForm:
    """What a line says of a sample.

    Attributes:
        top: how many of the most probable classes it lists.
        members: whether it says what each member predicts.
    """

    top: int = 0
    members: bool = False


class Predicting:
    """Predicts the samples of a data set window by window.

    Args:
        model: the model, with its weights.
        name: what messages call it.
        dataset: the samples.
        form: what is said of each.
        batch_size: samples that run together.
        workers: processes that read samples.
    """

    def __init__(
        self, model: HydraModel, name: str, dataset: Dataset, form: LineForm, batch_size: int, workers: int = 0
    ) -> None:
        self._model = model
        self._name = name
        self._dataset = dataset
        self._form = form
        self._batch_size = batch_size
        self._workers = workers
        self._lengths = dataset.lengths()
        self._window = window_size(dataset, batch_size)

    def windows(self, samples: range) -> Iterator[Window]:
        """Yield the predictions of some samples, which begin where a window does."""
        if not samples:
            return
        order: list[int] = []
        for start in range(samples.start, samples.stop, self._window):
            order += self._longest_first(range(start, min(start + self._window, samples.stop)))
        start = samples.start
        rows: dict[int, PredictionRow] = {}
        for batch_rows, prediction in self._predictions(order):
            rows.update(zip(batch_rows, self._rows(batch_rows, prediction), strict=True))
            # A batch of nothing but samples that cannot be read does not come: several windows may be whole now.
            while start < samples.stop and self._is_whole(start, samples.stop, rows):
                window = self._finished(start, samples.stop, rows)
                yield window
                start = window.stop
        while start < samples.stop:
            window = self._finished(start, samples.stop, rows)
            yield window
            start = window.stop

    def _longest_first(self, window: range) -> list[int]:
        """Return the samples of a window in the order in which they run."""
        lengths = self._lengths
        if lengths is None:
            return list(window)
        return sorted(window, key=lambda row: -lengths[row])

    def _predictions(self, order: Sequence[int]) -> Iterator[tuple[Sequence[int], Prediction]]:
        """Yield the samples of each batch, and what is predicted of them."""
        parameter = next(self._model.parameters())
        read = batches(self._dataset, self._model.preprocess, self._batch_size, workers=self._workers, indices=order)
        for batch in self._readable(read, order):
            inputs = move(batch.inputs, parameter.device, parameter.dtype)
            try:
                with torch.inference_mode():
                    prediction = self._model.predict(inputs)
            except NonFiniteError as error:
                first_id = self._dataset.ids[batch.indices[0]]
                raise NonFiniteError(
                    f"{self._name}: {error.message}, in the batch that begins with {first_id}", hint=error.hint
                ) from None
            yield batch.indices, prediction

    def _readable(self, read: Iterator[Batch], order: Sequence[int]) -> Iterator[Batch]:
        """Yield the batches; none, instead of an error, where every sample is skipped: other parts may have some."""
        try:
            yield from read
        except InputError:
            skipped = self._dataset.skipped or {}
            if not all(row in skipped for row in order):
                raise

    def _is_whole(self, start: int, stop: int, rows: Mapping[int, PredictionRow]) -> bool:
        """Return whether every sample of the window that begins at ``start`` is predicted or skipped."""
        skipped = self._dataset.skipped or {}
        behind = min(start + self._window, stop)
        return all(row in rows or row in skipped for row in range(start, behind))

    def _finished(self, start: int, stop: int, rows: dict[int, PredictionRow]) -> Window:
        """Return a window whose batches have all come, and take its samples out of ``rows``."""
        behind = min(start + self._window, stop)
        in_order = []
        skipped = {}
        reasons = self._dataset.skipped or {}
        for row in range(start, behind):
            if row in rows:
                in_order.append(rows.pop(row))
            else:
                skipped[self._dataset.ids[row]] = reasons[row]
        return Window(behind, in_order, skipped)

    def _rows(self, batch_rows: Sequence[int], prediction: Prediction) -> list[PredictionRow]:
        """Return what is said of the samples of a batch, from their numbers in the data set."""
        names = prediction.labels
        # Lists of numbers, once for the batch: taking them out of tensors one by one costs more than a small model.
        columns: dict[str, Sequence[Any]] = {
            "id": [self._dataset.ids[row] for row in batch_rows],
            "label": [self._label(row) for row in batch_rows],
            "predicted": [_class_name(index, names) for index in prediction.predicted.tolist()],
            "confidence": prediction.confidence.tolist(),
            "entropy": prediction.entropy.tolist(),
            "mi": prediction.mi.tolist(),
            "ood_score": [None] * len(batch_rows),
        }
        if prediction.ood_score is not None:
            columns["ood_score"] = prediction.ood_score.tolist()
        if prediction.is_ood is not None:
            columns["is_ood"] = prediction.is_ood.tolist()
        if prediction.sets is not None:
            columns["set"] = _classes_in(prediction.sets, names)
        if self._form.top:
            columns["top"] = _most_probable(prediction.probabilities, self._form.top, names)
        if self._form.members:
            columns["members"] = _of_members(prediction.member_probabilities, names)
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def _label(self, row: int) -> str | int | None:
        """Return the true label of a sample; None where there is none."""
        labels = self._dataset.labels
        if labels is None or labels[row] < 0:
            return None
        return _class_name(int(labels[row]), self._model.labels)


def _class_name(index: int, names: Sequence[str] | None) -> str | int:
    return index if names is None else names[index]


def _classes_in(sets: Tensor, names: Sequence[str] | None) -> list[list[str | int]]:
    """Return the classes in each prediction set, from bool ``[B, C]``."""
    listed = []
    for in_set in sets:
        indices = in_set.nonzero().flatten().tolist()
        listed.append([_class_name(index, names) for index in indices])
    return listed


def _most_probable(probabilities: Tensor, top: int, names: Sequence[str] | None) -> list[list[dict[str, Any]]]:
    """Return the most probable classes of each sample, from p ``[B, C]``; of equal ones the lower number first."""
    falling, order = torch.sort(probabilities, dim=1, descending=True, stable=True)
    listed = []
    for indices, values in zip(order[:, :top].tolist(), falling[:, :top].tolist(), strict=True):
        classes = []
        for index, probability in zip(indices, values, strict=True):
            classes.append({"label": _class_name(index, names), "p": probability})
        listed.append(classes)
    return listed


def _of_members(probabilities: Tensor, names: Sequence[str] | None) -> list[list[dict[str, Any]]]:
    """Return for each sample the class that each member predicts and its probability, from p ``[M, B, C]``."""
    confidence, predicted = probabilities.max(dim=2)  # [M, B]
    listed = []
    for of_sample, indices in zip(confidence.T.tolist(), predicted.T.tolist(), strict=True):
        members = []
        for probability, index in zip(of_sample, indices, strict=True):
            members.append({"predicted": _class_name(index, names), "confidence": probability})
        listed.append(members)
    return listed


# --- the summary ------------------------------------------------------------------------------------------------------


@dataclass
class PredictionTally:
    """Counts predictions as they come, and makes the summary of them.

    Attributes:
        predicted: how many samples were predicted.
    """

    predicted: int = 0
    _skipped: int = 0
    _skipped_ids: list[str] = field(default_factory=list)
    _flagged: int = 0
    _confidence: float = 0.0
    _classes: Counter[str | int] = field(default_factory=Counter)

    def add(self, window: Window) -> None:
        """Count the samples of one window."""
        self.predicted += len(window.rows)
        self._skipped += len(window.skipped)
        room = _MOST_IDS - len(self._skipped_ids)
        self._skipped_ids += list(window.skipped)[:room]
        for row in window.rows:
            self._flagged += row.get("is_ood", False)
            self._confidence += row["confidence"]
            self._classes[row["predicted"]] += 1

    def answer(self, model: PredictingModelRecord, output: str | None) -> PredictAnswer:
        """Return the summary.

        Args:
            model: what is known of the model.
            output: the file that the lines are in; None where they were printed.
        """
        flagged = None
        if model.threshold is not None:
            flagged = self._flagged_record()
        mean_confidence = None
        if self.predicted:
            mean_confidence = self._confidence / self.predicted
        classes = []
        for label, count in self._classes.most_common():
            classes.append(PredictedClassRecord(label=label, n=count))
        return PredictAnswer(
            model=model,
            n=self.predicted,
            confidence=mean_confidence,
            ood=flagged,
            classes=classes,
            skipped=SkippedRecord(n=self._skipped, ids=self._skipped_ids) if self._skipped else None,
            output=output,
        )

    def _flagged_record(self) -> FlaggedRecord:
        """Return how many samples reach the threshold."""
        if not self.predicted:
            return FlaggedRecord(n=0, share=None, ci=None)
        low, high = share_interval(self._flagged, self.predicted)
        return FlaggedRecord(n=self._flagged, share=self._flagged / self.predicted, ci=(low, high))
