"""Predicts data sets of any size, sample by sample in their order, with a constant amount of memory."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

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
from hydractl.model.arriving import one_behind
from hydractl.model.prediction import Chosen, Prediction
from hydractl.model.runtime import HydraModel, move

PredictionRow = dict[str, Any]
"""The line of one sample in the output: its fields by name."""

WINDOW_BATCHES = 16
"""The number of batches in a window of texts. Texts are sorted by length within a window, so that little is padded."""

_MOST_IDS = 1000
"""The most skipped samples that a summary lists by their ids, so that it stays short."""


class Part(NamedTuple):
    """One of several equal parts of the inputs; under ``torchrun`` each process predicts one.

    Attributes:
        number: the number of this part, from 1.
        parts: the number of all parts.
    """

    number: int
    parts: int


def window_size(dataset: Dataset, batch_size: int) -> int:
    """Return the number of samples in a window. A window is sorted by length and then cut into batches.

    Parts begin, and stopped runs resume, only at the beginning of a window. Every batch then has the same samples as in
    one complete run, and so every prediction is equal bit by bit.
    """
    has_texts = dataset.lengths() is not None
    if not has_texts:
        return batch_size
    return batch_size * WINDOW_BATCHES


def rows_of_part(samples: int, window: int, part: Part) -> range:
    """Return the range of samples in one part. Parts consist of whole, neighbouring windows, as equal as possible.

    Args:
        samples: the number of samples in all parts together.
        window: the number of samples in a window.
        part: the part.
    """
    windows = -(-samples // window)  # rounded up
    first_window = windows * (part.number - 1) // part.parts
    stop_window = windows * part.number // part.parts

    # The last window may be shorter than the others, so limit both ends to the number of samples.
    start = min(first_window * window, samples)
    stop = min(stop_window * window, samples)
    return range(start, stop)


class Window(NamedTuple):
    """The predictions of one window.

    Attributes:
        stop: the index of the first sample after the window.
        rows: the rows of all samples that could be read, in their order in the data set.
        skipped: for each other sample, by its id, the reason why it could not be read.
    """

    stop: int
    rows: list[PredictionRow]
    skipped: dict[str, str]


@dataclass(frozen=True)
class LineForm:
    """The optional fields of a sample's line.

    Attributes:
        top: the number of most probable classes to list; 0 lists none.
        members: whether to list the prediction of each member.
    """

    top: int = 0
    members: bool = False


class Predicting:
    """Predicts the samples of a data set window by window.

    Args:
        model: the model, with its weights.
        name: the name of the model in messages.
        dataset: the samples.
        form: the optional fields of the lines.
        batch_size: the number of samples that run together.
        workers: the number of processes that read samples.
    """

    def __init__(
        self,
        model: HydraModel,
        name: str,
        dataset: Dataset,
        form: LineForm,
        batch_size: int,
        workers: int | None = None,
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
        """Predict a range of samples, and yield the results window by window, in order.

        Samples that cannot be read are listed in their window with the reason.

        Args:
            samples: indices in the data set; the range must begin where a window begins.
        """
        if not samples:
            return

        # List all windows, and the order in which all samples run: within a window the longest texts come first.
        waiting_windows: deque[range] = deque()
        running_order: list[int] = []
        for start in range(samples.start, samples.stop, self._window):
            stop = min(start + self._window, samples.stop)
            window = range(start, stop)
            waiting_windows.append(window)
            running_order += self._longest_first(window)

        # Run the batches. Results are collected by the index of the sample until their window is complete.
        rows_by_sample: dict[int, PredictionRow] = {}
        for batch_samples, prediction in self._predict_batches(running_order):
            batch_rows = self._rows_of_batch(batch_samples, prediction)
            rows_by_sample.update(zip(batch_samples, batch_rows, strict=True))
            # One batch can complete several windows, because a batch without any readable sample is not yielded.
            while waiting_windows and self._is_complete(waiting_windows[0], rows_by_sample):
                yield self._take_finished_window(waiting_windows.popleft(), rows_by_sample)

        # Windows remain if the last batches had no readable sample.
        while waiting_windows:
            yield self._take_finished_window(waiting_windows.popleft(), rows_by_sample)

    def _longest_first(self, window: range) -> list[int]:
        """Return the samples of a window in the order in which they run: the longest texts first, images in order."""
        lengths = self._lengths
        if lengths is None:
            return list(window)
        return sorted(window, key=lambda sample: -lengths[sample])

    def _predict_batches(self, order: Sequence[int]) -> Iterator[tuple[Sequence[int], Prediction]]:
        """Run the model batch by batch; yield the indices of the samples in each batch, and its prediction.

        Args:
            order: the indices of all samples to run, in this order.

        Raises:
            NonFiniteError: if an output of the model is not finite; the message names the model and the batch.
        """
        parameter = next(self._model.parameters())
        for indices, finish in one_behind(self._started_batches(order, parameter), parameter.device):
            with self._naming_batch(indices), torch.inference_mode():
                prediction = finish()
            yield indices, prediction

    def _started_batches(
        self, order: Sequence[int], parameter: nn.Parameter
    ) -> Iterator[tuple[Sequence[int], Callable[[], Prediction]]]:
        """Start the model on each batch; yield the indices of its samples, and a function that returns its prediction.

        Args:
            order: the indices of all samples to run, in this order.
            parameter: a weight of the model; inputs are moved to its device and dtype.
        """
        all_batches = batches(
            self._dataset, self._model.preprocess, self._batch_size, workers=self._workers, indices=order
        )
        for batch in self._readable_batches(all_batches, order):
            inputs = move(batch.inputs, parameter.device, parameter.dtype)
            with self._naming_batch(batch.indices), torch.inference_mode():
                finish = self._model.start_predicting(inputs)
            yield batch.indices, finish

    @contextmanager
    def _naming_batch(self, indices: Sequence[int]) -> Iterator[None]:
        """Name the model and the batch in the error that an output is not finite, if the block raises it.

        Args:
            indices: the indices of the samples in the batch.
        """
        try:
            yield
        except NonFiniteError as error:
            first_id = self._dataset.ids[indices[0]]
            raise NonFiniteError(
                f"{self._name}: {error.message}, in the batch that begins with {first_id}", hint=error.hint
            ) from None

    def _readable_batches(self, read: Iterator[Batch], order: Sequence[int]) -> Iterator[Batch]:
        """Yield the batches in ``read``, and ignore the error that is raised if every sample was skipped.

        Another part of the inputs may have readable samples.

        Args:
            read: the batches.
            order: the indices of all samples in them.
        """
        try:
            yield from read
        except InputError:
            skipped = self._skip_reasons()
            all_skipped = all(sample in skipped for sample in order)
            if not all_skipped:
                raise

    def _skip_reasons(self) -> Mapping[int, str]:
        """Return the reason for each sample that was skipped so far, by the index of the sample."""
        return self._dataset.skipped or {}

    def _is_complete(self, window: range, rows: Mapping[int, PredictionRow]) -> bool:
        """Return whether every sample of a window is predicted (a key of ``rows``) or skipped."""
        skipped = self._skip_reasons()
        return all(sample in rows or sample in skipped for sample in window)

    def _take_finished_window(self, window: range, rows: dict[int, PredictionRow]) -> Window:
        """Return the predictions of a window whose batches have all run, and remove its samples from ``rows``.

        Args:
            window: the indices of its samples.
            rows: all collected rows, by the index of the sample.
        """
        reasons = self._skip_reasons()
        rows_in_order = []
        skipped = {}
        for sample in window:
            if sample in rows:
                rows_in_order.append(rows.pop(sample))
            else:
                sample_id = self._dataset.ids[sample]
                skipped[sample_id] = reasons[sample]
        return Window(window.stop, rows_in_order, skipped)

    def _rows_of_batch(self, batch_rows: Sequence[int], prediction: Prediction) -> list[PredictionRow]:
        """Return the rows of the samples in a batch.

        Args:
            batch_rows: the indices of the samples in the data set.
            prediction: the prediction of the batch.
        """
        ids = [self._dataset.ids[row] for row in batch_rows]
        true_labels = [self._true_label(row) for row in batch_rows]
        return prediction_rows(prediction, ids, true_labels, self._form)

    def _true_label(self, sample: int) -> str | int | None:
        """Return the name (or number) of the true class of a sample; None if it has no label."""
        labels = self._dataset.labels
        if labels is None:
            return None
        index = int(labels[sample])
        if index < 0:  # a sample without a label in a labelled data set
            return None
        return _class_name(index, self._model.labels)


def prediction_rows(
    prediction: Prediction, ids: Sequence[str], true_labels: Sequence[str | int | None], form: LineForm
) -> list[PredictionRow]:
    """Return one row for each sample of a batch: a dict of fields.

    Args:
        prediction: the prediction of the batch.
        ids: the id of each sample.
        true_labels: the true label of each sample; None if a sample has none.
        form: the optional fields of the rows.
    """
    names = prediction.labels
    # Convert tensors to lists once for the whole batch. Reading single numbers from tensors would take longer than
    # running a small model.
    columns: dict[str, Sequence[Any]] = {
        "id": ids,
        "label": true_labels,
        "predicted": [_class_name(index, names) for index in prediction.predicted.tolist()],
        "confidence": prediction.confidence.tolist(),
        "entropy": prediction.entropy.tolist(),
        "mi": prediction.mi.tolist(),
        "ood_score": [None] * len(ids),
    }
    if prediction.ood_score is not None:
        columns["ood_score"] = prediction.ood_score.tolist()
    if prediction.is_ood is not None:
        columns["is_ood"] = prediction.is_ood.tolist()
    if prediction.sets is not None:
        columns["set"] = _classes_in_sets(prediction.sets, names)
    if form.top:
        columns["top"] = _most_probable(prediction.probabilities, form.top, names)
    if form.members:
        columns["members"] = _predictions_of_members(prediction.member_probabilities, names)

    # Transpose: from one list for each field to one dict for each sample.
    rows = []
    for values_of_sample in zip(*columns.values(), strict=True):
        row = dict(zip(columns, values_of_sample, strict=True))
        rows.append(row)
    return rows


def _class_name(index: int, names: Sequence[str] | None) -> str | int:
    """Return the name of a class, or its number if there are no names."""
    if names is None:
        return index
    return names[index]


def _classes_in_sets(sets: Tensor, names: Sequence[str] | None) -> list[list[str | int]]:
    """Return the classes in the prediction set of each sample.

    Args:
        sets: bool ``[batch, classes]``.
        names: the names of the classes; None if they have only numbers.
    """
    classes_by_sample = []
    for in_set in sets:
        indices = in_set.nonzero().flatten().tolist()
        classes_by_sample.append([_class_name(index, names) for index in indices])
    return classes_by_sample


def _most_probable(probabilities: Tensor, top: int, names: Sequence[str] | None) -> list[list[dict[str, Any]]]:
    """Return the ``top`` most probable classes of each sample, the most probable first, each with its probability.

    Of equally probable classes the one with the lower number comes first.

    Args:
        probabilities: the probabilities, ``[batch, classes]``.
        top: the number of classes to list.
        names: the names of the classes; None if they have only numbers.

    Returns:
        For each sample a list of ``{"label": NAME, "p": PROBABILITY}``.
    """
    sorted_probabilities, sorted_classes = torch.sort(probabilities, dim=1, descending=True, stable=True)
    top_classes = sorted_classes[:, :top].tolist()
    top_probabilities = sorted_probabilities[:, :top].tolist()

    entries_by_sample = []
    for class_indices, class_probabilities in zip(top_classes, top_probabilities, strict=True):
        entries = []
        for index, probability in zip(class_indices, class_probabilities, strict=True):
            entries.append({"label": _class_name(index, names), "p": probability})
        entries_by_sample.append(entries)
    return entries_by_sample


def _predictions_of_members(probabilities: Tensor, names: Sequence[str] | None) -> list[list[dict[str, Any]]]:
    """Return the predicted class and its probability for each sample and each member.

    Args:
        probabilities: the probabilities, ``[members, batch, classes]``.
        names: the names of the classes; None if they have only numbers.

    Returns:
        For each sample a list with one ``{"predicted": NAME, "confidence": PROBABILITY}`` for each member.
    """
    confidence, predicted = probabilities.max(dim=2)  # each [members, batch]
    confidence_by_sample = confidence.T.tolist()  # [batch, members]
    predicted_by_sample = predicted.T.tolist()

    entries_by_sample = []
    for member_confidences, member_classes in zip(confidence_by_sample, predicted_by_sample, strict=True):
        entries = []
        for probability, index in zip(member_confidences, member_classes, strict=True):
            entries.append({"predicted": _class_name(index, names), "confidence": probability})
        entries_by_sample.append(entries)
    return entries_by_sample


def predicting_model_record(name: str, sha256: str, members: int, chosen: Chosen) -> PredictingModelRecord:
    """Return the record of a model for the answer of ``predict``.

    Args:
        name: the name of the model.
        sha256: the SHA-256 of its file.
        members: the number of members.
        chosen: the OOD score, threshold, calibration and prediction sets in its file.
    """
    temperature = None
    if chosen.calibration is not None:
        temperature = chosen.calibration.to_json()["temperature"]
    alpha = None
    if chosen.conformal is not None:
        alpha = chosen.conformal.alpha
    return PredictingModelRecord(
        name=name,
        sha256=sha256,
        members=members,
        ood_score=chosen.score,
        threshold=chosen.threshold,
        temperature=temperature,
        conformal=alpha,
    )


# --- the summary ------------------------------------------------------------------------------------------------------


@dataclass
class PredictionTally:
    """Counts predictions window by window, and makes their summary.

    Attributes:
        predicted: the number of samples that were predicted so far.
    """

    predicted: int = 0
    _skipped: int = 0
    _skipped_ids: list[str] = field(default_factory=list)
    _flagged: int = 0
    _confidence_sum: float = 0.0
    _classes: Counter[str | int] = field(default_factory=Counter)

    def add(self, window: Window) -> None:
        """Count the samples of one window."""
        self.predicted += len(window.rows)
        self._skipped += len(window.skipped)
        room = _MOST_IDS - len(self._skipped_ids)
        self._skipped_ids += list(window.skipped)[:room]
        for row in window.rows:
            is_ood = row.get("is_ood")  # None without a threshold
            if is_ood:
                self._flagged += 1
            self._confidence_sum += row["confidence"]
            predicted_class = row["predicted"]
            self._classes[predicted_class] += 1

    def answer(self, model: PredictingModelRecord, output: str | None) -> PredictAnswer:
        """Return the summary of all predictions that were counted.

        Args:
            model: the record of the model.
            output: the file with the lines; None if they were printed.
        """
        flagged = None
        if model.threshold is not None:
            flagged = self._flagged_record()
        mean_confidence = None
        if self.predicted:
            mean_confidence = self._confidence_sum / self.predicted
        classes = []
        for label, count in self._classes.most_common():
            classes.append(PredictedClassRecord(label=label, n=count))
        skipped = None
        if self._skipped:
            skipped = SkippedRecord(n=self._skipped, ids=self._skipped_ids)
        return PredictAnswer(
            model=model,
            n=self.predicted,
            confidence=mean_confidence,
            ood=flagged,
            classes=classes,
            skipped=skipped,
            output=output,
        )

    def _flagged_record(self) -> FlaggedRecord:
        """Return the number and share of samples that reach the threshold, with a confidence interval of the share."""
        if not self.predicted:
            return FlaggedRecord(n=0, share=None, ci=None)
        share = self._flagged / self.predicted
        low, high = share_interval(self._flagged, self.predicted)
        return FlaggedRecord(n=self._flagged, share=share, ci=(low, high))
