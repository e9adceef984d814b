"""Predictions of inputs without labels, sample by sample in the order of the inputs, in memory that does not grow."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

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
from hydractl.metrics.watching import WatchOfAll
from hydractl.model.prediction import Chosen, Prediction
from hydractl.model.runtime import move

PredictionRow = dict[str, Any]
"""The fields of a sample's line, by their names."""

WINDOW_BATCHES = 16
"""Batches whose texts are sorted by length together, so that little is padded; the order of images stays."""

_MOST_IDS = 1000
"""The most skipped samples that a summary lists by their ids, so that it stays short."""


class Part(NamedTuple):
    """One of some equal parts of the inputs, which is predicted by itself.

    Attributes:
        number: the number of this part, from 1.
        parts: how many parts there are.
    """

    number: int
    parts: int


def window_size(dataset: Dataset, batch_size: int) -> int:
    """Return the size of a window: how many samples are sorted among themselves before they are cut into batches.

    A part begins, and a stopped run resumes, only where a window begins: then every batch holds the same samples,
    and every prediction has the same bits, as in one unbroken run.
    """
    has_texts = dataset.lengths() is not None
    if not has_texts:
        return batch_size
    return batch_size * WINDOW_BATCHES


def rows_of_part(samples: int, window: int, part: Part) -> range:
    """Return the range of samples of one part: neighbouring windows, shared out as evenly as windows can be.

    Args:
        samples: how many samples there are in all parts.
        window: how many samples a window has.
        part: the part.
    """
    windows = -(-samples // window)  # rounded up
    first_window = windows * (part.number - 1) // part.parts
    stop_window = windows * part.number // part.parts

    # The last window may be shorter than the others.
    start = min(first_window * window, samples)
    stop = min(stop_window * window, samples)
    return range(start, stop)


class Window(NamedTuple):
    """The predictions of one window.

    Attributes:
        stop: the first sample after the window.
        rows: the rows of the samples that could be read, in the order of the samples.
        skipped: the reason why each of the other samples could not be read, by its id.
    """

    stop: int
    rows: list[PredictionRow]
    skipped: dict[str, str]


@dataclass(frozen=True)
class LineForm:
    """The parts of a sample's line that an option asks for.

    Attributes:
        top: how many of the most probable classes the line lists.
        members: whether the line lists the prediction of each member.
    """

    top: int = 0
    members: bool = False


class Predictor(Protocol):
    """A model that gives whole answers: a loaded checkpoint, or an exported file.

    Attributes:
        labels: the names of its classes; None where they have only numbers.
        preprocess: makes inputs of a list of raw samples.
    """

    labels: list[str] | None
    preprocess: Callable[[list[Any]], Any]

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield its weights, whose device and number format inputs take; none where it takes them as they are."""

    def predict(self, inputs: Any) -> Prediction:
        """Return the whole answer to a batch."""


class Predicting:
    """Predicts the samples of a data set window by window.

    Args:
        model: the model, with its weights.
        name: the name of the model in messages.
        dataset: the samples.
        form: the optional parts of the lines.
        batch_size: the number of samples that run together.
        workers: the number of processes that read samples.
    """

    def __init__(
        self, model: Predictor, name: str, dataset: Dataset, form: LineForm, batch_size: int, workers: int = 0
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
        """Yield the predictions of a range of samples window by window; the range begins where a window begins.

        Samples that cannot be read stand in their window with the reason.
        """
        if not samples:
            return

        # The windows, and the order in which their samples run.
        waiting: deque[range] = deque()
        order: list[int] = []
        for start in range(samples.start, samples.stop, self._window):
            stop = min(start + self._window, samples.stop)
            window = range(start, stop)
            waiting.append(window)
            order += self._longest_first(window)

        # Each window is yielded as soon as all its batches have come.
        rows: dict[int, PredictionRow] = {}  # of the windows that wait, by the number of the sample
        for batch_rows, prediction in self._predict_batches(order):
            predicted = self._rows_of_batch(batch_rows, prediction)
            rows.update(zip(batch_rows, predicted, strict=True))
            # A batch in which no sample can be read does not come: several windows may be complete now.
            while waiting and self._is_complete(waiting[0], rows):
                yield self._take_finished_window(waiting.popleft(), rows)

        # The batches at the end did not come either if none of their samples can be read.
        while waiting:
            yield self._take_finished_window(waiting.popleft(), rows)

    def _longest_first(self, window: range) -> list[int]:
        """Return the samples of a window in the order in which they run: texts by falling length."""
        lengths = self._lengths
        if lengths is None:
            return list(window)
        return sorted(window, key=lambda row: -lengths[row])

    def _predict_batches(self, order: Sequence[int]) -> Iterator[tuple[Sequence[int], Prediction]]:
        """Yield the samples of each batch, by their numbers in the data set, and the prediction of the batch.

        Raises:
            NonFiniteError: if an output of the model is not finite; the message names the model and the batch.
        """
        parameter = next(self._model.parameters(), None)
        read = batches(self._dataset, self._model.preprocess, self._batch_size, workers=self._workers, indices=order)
        for batch in self._readable_batches(read, order):
            inputs = batch.inputs
            if parameter is not None:  # inputs go to the device and take the type of the weights
                inputs = move(inputs, parameter.device, parameter.dtype)
            try:
                with torch.inference_mode():
                    prediction = self._model.predict(inputs)
            except NonFiniteError as error:
                first_id = self._dataset.ids[batch.indices[0]]
                raise NonFiniteError(
                    f"{self._name}: {error.message}, in the batch that begins with {first_id}", hint=error.hint
                ) from None
            yield batch.indices, prediction

    def _readable_batches(self, read: Iterator[Batch], order: Sequence[int]) -> Iterator[Batch]:
        """Yield the batches that were read.

        Reading raises an error if every sample is skipped. Here that is none: other parts may have readable samples.
        """
        try:
            yield from read
        except InputError:
            skipped = self._skip_reasons()
            all_skipped = all(sample in skipped for sample in order)
            if not all_skipped:
                raise

    def _skip_reasons(self) -> Mapping[int, str]:
        """Return the reason why each sample that was skipped until now cannot be read, by its number."""
        return self._dataset.skipped or {}

    def _is_complete(self, window: range, rows: Mapping[int, PredictionRow]) -> bool:
        """Return whether every sample of a window is predicted or skipped."""
        skipped = self._skip_reasons()
        return all(sample in rows or sample in skipped for sample in window)

    def _take_finished_window(self, window: range, rows: dict[int, PredictionRow]) -> Window:
        """Return a window whose batches have all come, and take its samples out of ``rows``."""
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
        """Return the rows of the samples of a batch.

        Args:
            batch_rows: the numbers of the samples in the data set.
            prediction: the prediction of the batch.
        """
        ids = [self._dataset.ids[row] for row in batch_rows]
        true_labels = [self._true_label(row) for row in batch_rows]
        return prediction_rows(prediction, ids, true_labels, self._form)

    def _true_label(self, sample: int) -> str | int | None:
        """Return the true label of a sample; None for a sample without a label."""
        labels = self._dataset.labels
        if labels is None:
            return None
        index = int(labels[sample])
        if index < 0:  # the data set is labelled, this sample is not
            return None
        return _class_name(index, self._model.labels)


def prediction_rows(
    prediction: Prediction, ids: Sequence[str], true_labels: Sequence[str | int | None], form: LineForm
) -> list[PredictionRow]:
    """Return one row for each sample of a batch, which holds its fields by their names.

    Args:
        prediction: the prediction of the batch.
        ids: the id of each sample.
        true_labels: the true label of each sample; None for one without a label.
        form: the optional parts of the rows.
    """
    names = prediction.labels
    # Lists of numbers, once for the batch: taking them out of tensors one by one costs more than a small model.
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

    # One row a sample: its value in each of the columns.
    rows = []
    for values_of_sample in zip(*columns.values(), strict=True):
        row = dict(zip(columns, values_of_sample, strict=True))
        rows.append(row)
    return rows


def _class_name(index: int, names: Sequence[str] | None) -> str | int:
    """Return the name of a class; its number if the model has no names."""
    if names is None:
        return index
    return names[index]


def _classes_in_sets(sets: Tensor, names: Sequence[str] | None) -> list[list[str | int]]:
    """Return the classes in the prediction set of each sample, from bool ``[batch, classes]``."""
    classes_by_sample = []
    for in_set in sets:
        indices = in_set.nonzero().flatten().tolist()
        classes_by_sample.append([_class_name(index, names) for index in indices])
    return classes_by_sample


def _most_probable(probabilities: Tensor, top: int, names: Sequence[str] | None) -> list[list[dict[str, Any]]]:
    """Return the ``top`` most probable classes of each sample, the most probable first, each with its probability.

    Of equally probable classes the one of the lower number comes first.

    Args:
        probabilities: the probabilities, ``[batch, classes]``.
        top: how many classes are listed.
        names: the names of the classes; None if they have only numbers.
    """
    falling, order = torch.sort(probabilities, dim=1, descending=True, stable=True)  # each [batch, classes]
    top_indices = order[:, :top].tolist()
    top_values = falling[:, :top].tolist()

    listed = []
    for indices, values in zip(top_indices, top_values, strict=True):
        classes = []
        for index, probability in zip(indices, values, strict=True):
            classes.append({"label": _class_name(index, names), "p": probability})
        listed.append(classes)
    return listed


def _predictions_of_members(probabilities: Tensor, names: Sequence[str] | None) -> list[list[dict[str, Any]]]:
    """Return for each sample the class that each member predicts and its probability.

    Args:
        probabilities: the probabilities, ``[members, batch, classes]``.
        names: the names of the classes; None if they have only numbers.
    """
    confidence, predicted = probabilities.max(dim=2)  # each [members, batch]
    confidence_by_sample = confidence.T.tolist()
    predicted_by_sample = predicted.T.tolist()

    listed = []
    for confidences, indices in zip(confidence_by_sample, predicted_by_sample, strict=True):
        members = []
        for probability, index in zip(confidences, indices, strict=True):
            members.append({"predicted": _class_name(index, names), "confidence": probability})
        listed.append(members)
    return listed


def predicting_model_record(name: str, sha256: str, members: int, chosen: Chosen) -> PredictingModelRecord:
    """Return the record of a model that predicts.

    Args:
        name: the name of the model.
        sha256: the SHA-256 of its file.
        members: how many members it has.
        chosen: the OOD score, threshold, calibration and prediction sets that its file holds.
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
    """Counts predictions as they come, and makes the summary of them.

    Attributes:
        watch: what compares them with the reference; None without one.
        predicted: how many samples were predicted.
    """

    watch: WatchOfAll | None = None
    predicted: int = 0
    _skipped: int = 0
    _skipped_ids: list[str] = field(default_factory=list)
    _flagged: int = 0
    _confidence_sum: float = 0.0
    _classes: Counter[str | int] = field(default_factory=Counter)

    def add(self, window: Window) -> None:
        """Count the samples of one window, and compare them with the reference if there is one."""
        self.predicted += len(window.rows)
        skipped_ids = list(window.skipped)
        self.skip(len(skipped_ids), skipped_ids)
        for row in window.rows:
            is_ood = row.get("is_ood")  # None without a threshold
            confidence = row["confidence"]
            predicted_class = row["predicted"]
            if is_ood:
                self._flagged += 1
            self._confidence_sum += confidence
            self._classes[predicted_class] += 1
            if self.watch is not None:
                self.watch.add(row["ood_score"], is_ood, predicted_class, confidence)

    def skip(self, count: int, ids: Sequence[str]) -> None:
        """Count samples that could not be read, and keep their ids as long as the summary has room for them.

        Args:
            count: how many samples.
            ids: their ids, or those of the first of them.
        """
        self._skipped += count
        room = _MOST_IDS - len(self._skipped_ids)
        self._skipped_ids += ids[:room]

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
        watched = None
        if self.watch is not None:
            watched = self.watch.finished()
        return PredictAnswer(
            model=model,
            n=self.predicted,
            confidence=mean_confidence,
            ood=flagged,
            classes=classes,
            skipped=skipped,
            watched=watched,
            output=output,
        )

    def _flagged_record(self) -> FlaggedRecord:
        """Return how many samples reach the threshold, and their share with its confidence interval."""
        if not self.predicted:
            return FlaggedRecord(n=0, share=None, ci=None)
        share = self._flagged / self.predicted
        low, high = share_interval(self._flagged, self.predicted)
        return FlaggedRecord(n=self._flagged, share=share, ci=(low, high))
