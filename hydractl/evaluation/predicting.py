"""Predicts data sets of any size, sample by sample in their order, with a constant amount of memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from hydractl.data import Dataset
from hydractl.data.base import MOST_LISTED
from hydractl.data.batching import longest_first
from hydractl.evaluation.gathering import check_finite_batch
from hydractl.evaluation.providers.running import RunningModel, models_of
from hydractl.evaluation.sets import ID, EvalSet
from hydractl.files.predict_answer import (
    FlaggedRecord,
    PredictAnswer,
    PredictedClassRecord,
    PredictingModelRecord,
    SkippedRecord,
)
from hydractl.metrics.confidence import share_interval
from hydractl.metrics.ood_scores import ON_FEATURES
from hydractl.model.prediction import Prediction, prediction_of

PredictionRow = dict[str, Any]
"""The line of one sample in the output: its fields by name."""

FLAG = "is_ood"
"""An additional field of a line, if there is a threshold."""
CUT = "cut"
"""An additional field of texts: whether the model does not read the end of it."""

WINDOW_BATCHES = 16
"""The number of batches in a window of texts. Texts are sorted by length within a window, so that little is padded."""


def window_size(dataset: Dataset, batch_size: int) -> int:
    """Return the number of samples in a window. A window is sorted by length and then cut into batches.

    Stopped runs resume only at the beginning of a window. Every batch then has the same samples as in one complete run,
    and so every prediction is equal bit by bit.
    """
    has_texts = dataset.lengths() is not None
    return batch_size * WINDOW_BATCHES if has_texts else batch_size


class Window(NamedTuple):
    """The predictions of one window.

    Attributes:
        stop: the index of the first sample after the window.
        rows: the rows of all samples that could be read, in their order in the data set.
        skipped: the ids of all other samples.
    """

    stop: int
    rows: list[PredictionRow]
    skipped: list[str]


def predicted_windows(model: RunningModel, dataset: Dataset, start: int = 0, *, top: int = 0) -> Iterator[Window]:
    """Yield the predictions for a data set, window by window, in their order in the data set.

    A window is one batch or, of texts, 16 batches, within which the longest texts run first. Samples that cannot be
    read are listed in their window.

    Args:
        model: the model, with what was chosen for it.
        dataset: the samples.
        start: the index of the first sample to predict, where a window begins.
        top: the number of most probable classes that a line lists; 0 lists none.

    Raises:
        NonFiniteError: if a logit is not finite; the message names the first such sample.
    """
    samples = range(start, len(dataset))
    if not samples:  # the weights need not be read
        return
    loaded = model.loaded()
    if model.stored.score in ON_FEATURES:
        (single_model,) = models_of(loaded)
        model.detector = single_model.fitted_detector(model.stored.score)

    # List all windows, and the order in which all samples run: within a window the longest texts come first.
    size = window_size(dataset, model.options.batch_size)
    windows = [samples[first : first + size] for first in range(0, len(samples), size)]
    running_order = [sample for window in windows for sample in longest_first(dataset, window)]

    # A window is complete when each of its samples has a line or was skipped. A batch without any readable sample is
    # not yielded, so the next one may be of a later window.
    inputs = EvalSet("inputs", ID, None, dataset.ids, dataset.labels, dataset=dataset)
    batches = model.batches(inputs, running_order)
    line_by_sample: dict[int, PredictionRow] = {}
    skipped = {} if dataset.skipped is None else dataset.skipped  # is filled while batches are read
    with model.log.progress(f"{model.name} predicts", len(samples), "samples") as progress:
        for window in windows:
            while not all(sample in line_by_sample or sample in skipped for sample in window):
                batch = next(batches, None)
                if batch is None:  # the last batches had no readable sample
                    break
                check_finite_batch(batch, dataset.ids, model.name)
                logits = torch.from_numpy(batch.logits)
                prediction = prediction_of(logits, batch.mean_scores, model.stored, model.labels)
                lines = _lines_of_batch(prediction, batch.rows, dataset, loaded.preprocess, top)
                line_by_sample.update(zip(batch.rows, lines, strict=True))
            progress.advance(len(window))
            skipped_ids = [dataset.ids[sample] for sample in window if sample not in line_by_sample]
            rows = [line_by_sample.pop(sample) for sample in window if sample in line_by_sample]
            yield Window(window.stop, rows, skipped_ids)


def _lines_of_batch(
    prediction: Prediction, rows: Sequence[int], dataset: Dataset, collate: Any, top: int
) -> Iterator[PredictionRow]:
    """Yield the line of each sample in a batch; entropy and mutual information are in nats.

    Args:
        prediction: the prediction of the batch.
        rows: the indices of the samples in the data set.
        dataset: the data set.
        collate: makes the inputs of the model; for texts, see :func:`hydractl.data.text.cut_warning`.
        top: see :func:`predicted_windows`.
    """
    names = prediction.labels or range(prediction.probabilities.shape[1])  # of the classes; without names, numbers

    true_names: list[str | int | None] = [None] * len(rows)
    if dataset.labels is not None:
        labels = dataset.labels[list(rows)].tolist()
        true_names = [names[label] for label in labels]

    # The values of each field, a list with one for each sample. A score may say nothing of a model of one member.
    columns: dict[str, list[Any]] = {
        "id": [dataset.ids[row] for row in rows],
        "label": true_names,
        "predicted": [names[index] for index in prediction.predicted.tolist()],
        "confidence": prediction.confidence.tolist(),
        "entropy": prediction.entropy.tolist(),
        "mi": prediction.mi.tolist(),
        "ood_score": [None] * len(rows) if prediction.ood_score is None else prediction.ood_score.tolist(),
    }
    # Fields that only some lines have.
    if prediction.is_ood is not None:
        columns[FLAG] = prediction.is_ood.tolist()
    if dataset.kind == "text":
        columns[CUT] = collate.cut(dataset[row] for row in rows)
    if prediction.sets is not None:
        columns["set"] = [[names[index] for index in in_set.nonzero().flatten().tolist()] for in_set in prediction.sets]
    if top:
        # Of equally probable classes the one with the lower number comes first.
        probabilities, classes = torch.sort(prediction.probabilities, dim=1, descending=True, stable=True)  # [B, C]
        columns["top"] = []
        for numbers, values in zip(classes[:, :top].tolist(), probabilities[:, :top].tolist(), strict=True):
            entries = zip(numbers, values, strict=True)
            columns["top"].append([{"label": names[number], "p": value} for number, value in entries])
    for values_of_sample in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values_of_sample, strict=True))


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
    _cut: int = 0
    _confidence_sum: float = 0.0
    _classes: Counter[str | int] = field(default_factory=Counter)

    def counted(self, windows: Iterable[Window]) -> Iterator[PredictionRow]:
        """Yield the rows of all windows, one row for each prediction, and count them for :meth:`answer`.

        A window is some consecutive samples. All of it is counted before its first row is yielded.
        """
        for window in windows:
            self.predicted += len(window.rows)
            self._skipped += len(window.skipped)
            self._skipped_ids = [*self._skipped_ids, *window.skipped][:MOST_LISTED]
            for row in window.rows:
                self._flagged += bool(row.get(FLAG))  # as OOD; None without a threshold
                self._cut += row.get(CUT, False)  # a text that was too long
                self._confidence_sum += row["confidence"]
                self._classes[row["predicted"]] += 1
            yield from window.rows

    def answer(self, model: PredictingModelRecord, output: str | None) -> PredictAnswer:
        """Return the summary of all predictions that were counted; there must be at least one.

        Args:
            model: the record of the model.
            output: the file with the lines; None if they were printed.
        """
        # Samples flagged as OOD: the share, and its 95 % interval.
        flagged = None
        if model.threshold is not None:
            low, high = share_interval(self._flagged, self.predicted)
            flagged = FlaggedRecord(n=self._flagged, share=self._flagged / self.predicted, ci=(low, high))
        return PredictAnswer(
            model=model,
            n=self.predicted,
            confidence=self._confidence_sum / self.predicted,
            ood=flagged,
            classes=[PredictedClassRecord(label=label, n=count) for label, count in self._classes.most_common()],
            skipped=SkippedRecord(n=self._skipped, ids=self._skipped_ids) if self._skipped else None,
            cut=self._cut or None,
            output=output,
        )
