"""The logits of one row, from the model or its predictions file, reduced batch by batch to what metrics take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hydractl.data.batching import longest_first
from hydractl.errors import InputError, NonFiniteError
from hydractl.evaluation.options import MSP, RowScores
from hydractl.evaluation.predictions.reading import LogitsBatch
from hydractl.evaluation.predictions.store import PredictionsWriter
from hydractl.evaluation.providers.interface import LogitsBatches, LogitsProvider
from hydractl.evaluation.providers.running import RunningModel
from hydractl.evaluation.sets import EvalSet, option_of
from hydractl.log import Log
from hydractl.metrics.calibrators import Calibration
from hydractl.metrics.probabilities import Floats
from hydractl.metrics.samples import Samples, samples_of

LogitsReader = Callable[[EvalSet], LogitsBatches]
"""Returns the logits of a data set, batch by batch."""

LogitsSink = Callable[[Sequence[int], npt.NDArray[Any]], None]
"""Takes the rows ``[B]`` and the logits ``[M, B, C]`` of each batch."""


@dataclass
class Gathered:
    """The predictions of one model on one data set.

    Attributes:
        samples: the samples with the averaged prediction, in the order of the data set.
        rows: the numbers of these samples in the data set, ascending: all but those that could not be read.
        members: the samples with the prediction of each member alone; empty for a single member.
    """

    samples: Samples
    rows: npt.NDArray[np.int64]
    members: list[Samples] = field(default_factory=list)


# --- reducing logits --------------------------------------------------------------------------------------------------


def gather(
    batches: LogitsBatches,
    dataset: EvalSet,
    name: str,
    *,
    scores: RowScores = MSP,
    calibration: Calibration | None = None,
    alone: bool = False,
    pairs: bool = True,
    sinks: Sequence[LogitsSink] = (),
) -> Gathered:
    """Reduce the logits of a data set to samples, batch by batch.

    Args:
        batches: the batches; every sample that can be read is in one of them, in any order.
        dataset: the data set.
        name: the name of the model in errors.
        scores: the OOD scores to compute.
        calibration: the calibration of the averaged prediction.
        alone: whether each member is measured alone as well.
        pairs: whether each two members are compared.
        sinks: callables that take the logits of each batch too.

    Raises:
        InputError: if not a single sample could be read.
        NonFiniteError: at the first batch with a logit that is not finite, naming a sample.
    """
    # Reduce each batch as it comes.
    batch_rows: list[npt.NDArray[np.int64]] = []
    batch_samples: list[Samples] = []
    batch_members: list[list[Samples]] = []  # by batch, then by member
    for rows, logits, scores_of_members in batches:
        check_finite_batch(logits, rows, dataset, name)
        labels = None
        if dataset.labels is not None:
            labels = dataset.labels[list(rows)]  # [B]
        # The score of an ensemble on features is the mean of its members' scores, [M, B] to [B].
        mean_scores = {score: values.mean(axis=0) for score, values in scores_of_members.items()}
        samples = samples_of(
            logits,
            labels,
            score=scores.leading,
            beside=scores.beside,
            fitted_scores=mean_scores,
            calibration=calibration,
            pairs=pairs,
        )
        batch_rows.append(np.asarray(rows, dtype=np.int64))
        batch_samples.append(samples)
        if alone and len(logits) > 1:
            batch_members.append(_members_alone(logits, labels))
        for sink in sinks:
            sink(rows, logits)
    if not batch_rows:
        raise InputError(
            f"{name} has no predictions of {option_of(dataset)}: none of its {len(dataset)} samples could be read"
        )

    # Join the batches in the order of the data set.
    rows_as_read = np.concatenate(batch_rows)
    order = np.argsort(rows_as_read, kind="stable")
    all_samples = concatenated_samples(batch_samples, order)
    all_members = []
    for batches_of_member in zip(*batch_members, strict=True):
        all_members.append(concatenated_samples(batches_of_member, order))
    return Gathered(all_samples, rows_as_read[order], all_members)


def _members_alone(logits: npt.NDArray[Any], labels: npt.NDArray[np.int64] | None) -> list[Samples]:
    """Return the samples of each member alone, from logits ``[M, B, C]``."""
    alone = []
    for member in range(len(logits)):
        member_logits = logits[member : member + 1]  # [1, B, C]
        alone.append(samples_of(member_logits, labels))
    return alone


def concatenated_samples(parts: Sequence[Samples], order: npt.NDArray[np.int64]) -> Samples:
    """Return the samples of several batches, sorted into the order of the data set.

    Args:
        parts: the samples of each batch.
        order: for each position in the data set, the position of its sample among those of all batches.
    """
    sizes = [len(part) for part in parts]
    attributes: dict[str, Any] = {}
    for attribute in fields(Samples):
        name = attribute.name
        values = [getattr(part, name) for part in parts]
        if name == "pair_mi":  # a mean over samples, not a value of each
            attributes[name] = _mean_over_samples(values, sizes)
        elif name == "scores":  # values by the name of the score
            attributes[name] = _scores_joined_in_order(values, order)
        elif name == "leading":  # the name of a score, the same in every part
            attributes[name] = values[0]
        else:
            attributes[name] = _joined_in_order(values, order)
    return Samples(**attributes)


def _mean_over_samples(means: Sequence[Floats], sizes: Sequence[int]) -> Floats:
    """Return the mean over all samples from the means of the batches, which differ in size."""
    weights = np.array(sizes)  # [batches]
    weighted = np.stack(means) * weights[:, None]
    totals = weighted.sum(axis=0)
    return np.asarray(totals / weights.sum())


def _scores_joined_in_order(
    parts: Sequence[Mapping[str, Floats | None]], order: npt.NDArray[np.int64]
) -> dict[str, Any]:
    """Return the OOD scores that are reported beside the leading one, by name, in the order of the data set."""
    scores = {}
    for name in parts[0]:
        batch_scores = [part[name] for part in parts]
        scores[name] = _joined_in_order(batch_scores, order)
    return scores


def _joined_in_order(parts: Sequence[Any], order: npt.NDArray[np.int64]) -> Any:
    """Return arrays of batches, whose last dimension is the samples, joined in an order; None if they are None."""
    if parts[0] is None:
        return None
    as_read = np.concatenate(parts, axis=-1)
    return as_read[..., order]


def check_finite_batch(logits: npt.NDArray[Any], rows: Sequence[int], dataset: EvalSet, name: str) -> None:
    """Check that all logits ``[M, B, C]`` of a batch are finite.

    Raises:
        NonFiniteError: naming the first sample whose logits are not.
    """
    # A finite sum proves that every logit is finite, and is quick. One that is not proves nothing: it may overflow.
    if np.isfinite(logits.sum()):
        return
    bad = ~np.isfinite(logits).all(axis=(0, 2))  # [B]
    if not bad.any():
        return
    first_bad = list(rows)[int(bad.argmax())]
    raise NonFiniteError(
        f"{name} gives NaN or infinite logits for {int(bad.sum())} samples of one batch, "
        f"the first is {dataset.ids[int(first_bad)]}",
        hint="run with --dtype float32, or check the checkpoint's weights",
    )


# --- sinks ------------------------------------------------------------------------------------------------------------


class Logits:
    """A sink that keeps all logits, for validation data, which are few."""

    def __init__(self) -> None:
        self._rows: list[npt.NDArray[np.int64]] = []
        self._logits: list[npt.NDArray[Any]] = []

    def __call__(self, rows: Sequence[int], logits: npt.NDArray[Any]) -> None:
        """Keep one batch."""
        self._rows.append(np.asarray(rows, dtype=np.int64))
        self._logits.append(logits)

    def logits(self) -> npt.NDArray[Any]:
        """Return the logits ``[M, N, C]``, in the order of the data set."""
        rows_as_read = np.concatenate(self._rows)
        logits_as_read = np.concatenate(self._logits, axis=1)
        order = np.argsort(rows_as_read, kind="stable")
        return logits_as_read[:, order]


class WentOn:
    """A sink that counts the samples that did not stop at the first member of a cascade.

    For a sample that stops, all members have the logits of the first one.
    """

    def __init__(self) -> None:
        self._samples = 0
        self._went_on = 0

    def __call__(self, rows: Sequence[int], logits: npt.NDArray[Any]) -> None:
        """Count the samples of one batch, with logits ``[M, B, C]``."""
        first_logits = logits[:1]
        went_on = (logits != first_logits).any(axis=(0, 2))  # [B]
        self._samples += len(rows)
        self._went_on += int(went_on.sum())

    @property
    def share(self) -> float:
        """The share of all samples that went on."""
        return self._went_on / self._samples


# --- where logits come from -------------------------------------------------------------------------------------------


class _ResumedSet(NamedTuple):
    """The state of a data set in a predictions file that a stopped run has left.

    Attributes:
        kept: the batches that the file holds completely.
        left: the samples of the other batches, which have to run.
    """

    kept: list[list[int]]
    left: list[int]


class Reading:
    """A :data:`LogitsReader` of one row that shows progress and fills the predictions file, if one is kept.

    Args:
        model: the model of the row.
        sets: the data sets of the command, in the order of the predictions file.
        writer: the predictions file to fill, None for none; logits that it holds already are read from it.
        log: shows the progress.
    """

    def __init__(
        self, model: LogitsProvider, sets: Sequence[EvalSet], writer: PredictionsWriter | None, log: Log
    ) -> None:
        self._model = model
        self._sets = list(sets)
        self._writer = writer
        self._log = log
        self._read: set[int] = set()

    def unread(self) -> list[EvalSet]:
        """Return the sets that nothing has read yet."""
        left = []
        for index, dataset in enumerate(self._sets):
            if index not in self._read:
                left.append(dataset)
        return left

    def __call__(self, dataset: EvalSet) -> LogitsBatches:
        self._read.add(self._sets.index(dataset))
        title = f"{self._model.name} on {dataset.name}"
        with self._log.progress(title, len(dataset), "samples") as progress:
            for batch in self._batches(dataset):
                yield batch
                progress.advance(len(batch.rows))

    def _batches(self, dataset: EvalSet) -> LogitsBatches:
        """Return the logits from the predictions file to fill, else from stored ones, else from the model."""
        if self._writer is not None:
            return self._kept_then_computed(dataset, self._writer)
        stored = self._model.reusable_predictions(dataset)
        if stored is not None:
            return stored.batches(dataset)
        return self._model.batches(dataset)

    def _kept_then_computed(self, dataset: EvalSet, writer: PredictionsWriter) -> LogitsBatches:
        """Yield the logits that the predictions file holds already, then those that are computed and written now."""
        index = self._sets.index(dataset)
        left: list[int] | None = None  # all samples
        if writer.resumed:
            kept, left = self._split_for_resuming(writer, index, dataset)
            for kept_rows in kept:
                kept_logits = writer.read(index, kept_rows)
                kept_scores = writer.read_scores(index, kept_rows)
                yield LogitsBatch(kept_rows, kept_logits, kept_scores)
            if not left:
                return
        for rows, logits, scores in self._model.batches(dataset, left):
            writer.write(index, rows, logits, scores)
            yield LogitsBatch(rows, logits, scores)

    def _split_for_resuming(self, writer: PredictionsWriter, index: int, dataset: EvalSet) -> _ResumedSet:
        """Return the batches of a set that the file holds, and the samples that are left to run.

        The batches are those of the unbroken run, without the samples that are known to be unreadable. Where any sample
        of a batch has no logits, the whole batch runs again, so that every logit has the bits of the unbroken run.
        """
        assert isinstance(self._model, RunningModel) and dataset.dataset is not None
        batch_size = self._model.options.batch_size
        order = longest_first(dataset.dataset)
        missing = writer.missing(index)  # [N]
        skipped = dataset.dataset.skipped or {}
        kept: list[list[int]] = []
        left: list[int] = []
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            rows = [row for row in batch if row not in skipped]
            if missing[rows].any():
                left += rows
            elif rows:
                kept.append(rows)
        return _ResumedSet(kept, left)
