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
"""The logits of a data set, batch by batch."""

LogitsSink = Callable[[Sequence[int], npt.NDArray[Any]], None]
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
    """Reduce the logits of a data set.

    Args:
        batches: every sample that can be read once, in any order.
        dataset: the data set.
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
    all_rows: list[npt.NDArray[np.int64]] = []
    pooled: list[Samples] = []
    of_members: list[list[Samples]] = []  # by batch, then by member
    for rows, logits, scores_of_members in batches:
        check_finite_batch(logits, rows, dataset, name)
        labels = None if dataset.labels is None else dataset.labels[list(rows)]
        # The score of an ensemble on features is the mean of its members'.
        given = {score: values.mean(axis=0) for score, values in scores_of_members.items()}
        samples = samples_of(
            logits,
            labels,
            score=scores.leading,
            beside=scores.beside,
            fitted_scores=given,
            calibration=calibration,
            pairs=pairs,
        )
        pooled.append(samples)
        all_rows.append(np.asarray(rows, dtype=np.int64))
        if alone and len(logits) > 1:
            of_members.append(_of_each_member(logits, labels))
        for sink in sinks:
            sink(rows, logits)
    if not all_rows:
        raise InputError(
            f"{name} has no predictions of {option_of(dataset)}: none of its {len(dataset)} samples could be read"
        )
    rows_as_read = np.concatenate(all_rows)
    order = np.argsort(rows_as_read, kind="stable")
    members = [concatenated_samples(parts, order) for parts in zip(*of_members, strict=True)]
    return Gathered(concatenated_samples(pooled, order), rows_as_read[order], members)


def _of_each_member(logits: npt.NDArray[Any], labels: npt.NDArray[np.int64] | None) -> list[Samples]:
    """Return the samples of each member alone, from logits ``[M, B, C]``."""
    alone = []
    for member in range(len(logits)):
        alone.append(samples_of(logits[member : member + 1], labels))
    return alone


def concatenated_samples(parts: Sequence[Samples], order: npt.NDArray[np.int64]) -> Samples:
    """Return the samples of several batches, sorted into the order of the data set.

    Args:
        parts: of the batches.
        order: for each place in the data set, the place of its sample among those of all batches.
    """
    values: dict[str, Any] = {}
    for attribute in fields(Samples):
        of_parts = [getattr(part, attribute.name) for part in parts]
        if attribute.name == "pair_mi":
            values["pair_mi"] = _mean_over_samples(of_parts, [len(part) for part in parts])
        elif attribute.name == "scores":
            values["scores"] = _scores_in_order(of_parts, order)
        else:
            values[attribute.name] = _in_order(of_parts, order)
    return Samples(**values)


def _mean_over_samples(means: Sequence[Floats], sizes: Sequence[int]) -> Floats:
    """Return the mean over all samples from the means of the batches, which differ in size."""
    weights = np.array(sizes)
    totals = (np.stack(means) * weights[:, None]).sum(axis=0)
    return np.asarray(totals / weights.sum())


def _scores_in_order(parts: Sequence[Mapping[str, Floats | None]], order: npt.NDArray[np.int64]) -> dict[str, Any]:
    """Return the OOD scores that are reported beside, by name."""
    scores = {}
    for name in parts[0]:
        of_parts = [part[name] for part in parts]
        scores[name] = _in_order(of_parts, order)
    return scores


def _in_order(parts: Sequence[Any], order: npt.NDArray[np.int64]) -> Any:
    if parts[0] is None:
        return None
    return np.concatenate(parts, axis=-1)[..., order]


def check_finite_batch(logits: npt.NDArray[Any], rows: Sequence[int], dataset: EvalSet, name: str) -> None:
    """Refuse logits that are no numbers.

    Raises:
        NonFiniteError: naming a sample.
    """
    # A sum is finite only where every number is; the other way round it may overflow, which is looked at again.
    if np.isfinite(logits.sum()):
        return
    bad = ~np.isfinite(logits).all(axis=(0, 2))
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
        """Return ``[M, N, C]``, in the order of the data set."""
        order = np.argsort(np.concatenate(self._rows), kind="stable")
        return np.concatenate(self._logits, axis=1)[:, order]


class WentOn:
    """A sink that counts the samples that did not stop in a cascade.

    All members give the same answer for a sample that stops: that of the first one.
    """

    def __init__(self) -> None:
        self._samples = 0
        self._went_on = 0

    def __call__(self, rows: Sequence[int], logits: npt.NDArray[Any]) -> None:
        """Count those of one batch."""
        differs = (logits != logits[:1]).any(axis=(0, 2))  # [rows]
        self._samples += len(rows)
        self._went_on += int(differs.sum())

    @property
    def share(self) -> float:
        """Their share of all samples."""
        return self._went_on / self._samples


# --- where logits come from -------------------------------------------------------------------------------------------


class _Resumed(NamedTuple):
    """A data set in a predictions file that is gone on with.

    Attributes:
        kept: the batches of the unbroken run that the file has whole.
        left: the samples of the other batches.
    """

    kept: list[list[int]]
    left: list[int]


class Reading:
    """A :data:`LogitsReader` of one row, with progress, through its predictions file where one is kept.

    Args:
        model: the row.
        sets: the data sets of the command, in the order of the predictions file.
        writer: the predictions file to fill, None for none; what it holds already is read from it.
        log: hears of the progress.
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
        return [dataset for index, dataset in enumerate(self._sets) if index not in self._read]

    def __call__(self, dataset: EvalSet) -> LogitsBatches:
        self._read.add(self._sets.index(dataset))
        title = f"{self._model.name} on {dataset.name}"
        with self._log.progress(title, len(dataset), "samples") as progress:
            for batch in self._batches(dataset):
                yield batch
                progress.advance(len(batch.rows))

    def _batches(self, dataset: EvalSet) -> LogitsBatches:
        if self._writer is not None:
            yield from self._through_file(dataset, self._writer)
            return
        known = self._model.known(dataset)
        yield from (known or self._model).batches(dataset)

    def _through_file(self, dataset: EvalSet, writer: PredictionsWriter) -> LogitsBatches:
        """Yield what the file holds already, and what is computed and written now."""
        index = self._sets.index(dataset)
        left: list[int] | None = None
        if writer.resumed:
            kept, left = self._resumed(writer, index, dataset)
            for kept_rows in kept:
                yield LogitsBatch(kept_rows, writer.read(index, kept_rows), writer.read_scores(index, kept_rows))
            if not left:
                return
        for rows, logits, scores in self._model.batches(dataset, left):
            writer.write(index, rows, logits, scores)
            yield LogitsBatch(rows, logits, scores)

    def _resumed(self, writer: PredictionsWriter, index: int, dataset: EvalSet) -> _Resumed:
        """Return which batches of a set are whole, and which samples are left.

        Samples that are known to be unreadable are in none, as in the unbroken run.
        """
        assert isinstance(self._model, RunningModel) and dataset.dataset is not None
        batch_size = self._model.options.batch_size
        order = longest_first(dataset.dataset)
        missing = writer.missing(index)
        skipped = dataset.dataset.skipped or {}
        kept: list[list[int]] = []
        left: list[int] = []
        for start in range(0, len(order), batch_size):
            rows = [row for row in order[start : start + batch_size] if row not in skipped]
            if missing[rows].any():
                left += rows
            elif rows:
                kept.append(rows)
        return _Resumed(kept, left)
