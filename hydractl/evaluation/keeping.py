"""The predictions file of a row that is measured: begun, or gone on with, and what its header says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hydractl.evaluation.predictions.reading import is_predictions
from hydractl.evaluation.predictions.store import PredictionsWriter
from hydractl.evaluation.providers.running import RunningModel
from hydractl.evaluation.providers.stored_fit import StoredFit
from hydractl.evaluation.sets import EvalSet
from hydractl.files.atomic import Output
from hydractl.files.model_records import CalibrationRecord, ScoreDataRecord, ThresholdRecord
from hydractl.files.predictions_header import PredictedModelRecord, StoredScoreRecord
from hydractl.log import Log


@dataclass(frozen=True)
class KeptRow:
    """What is kept of one row.

    Attributes:
        model: the row.
        sets: the data sets, in the order of the file.
        seen: how many samples of each set it has seen, by the name of the set.
        feature_scores: names of the OOD scores on features that are kept beside the logits.
        scores_fitted_on: the training data and the words that these are fitted to, as the header holds them; None
            without.
    """

    model: RunningModel
    sets: Sequence[EvalSet]
    seen: Mapping[str, int]
    feature_scores: Sequence[str] = ()
    scores_fitted_on: Mapping[str, object] | None = None

    def header(self) -> PredictedModelRecord:
        """Return what the header of the predictions file says of the model, with the fit that its own file holds."""
        model = self.model
        stored = model.stored
        fitted_on = None
        if self.feature_scores and self.scores_fitted_on is not None:
            fitted_on = ScoreDataRecord.from_json(self.scores_fitted_on)
        threshold = None
        if stored.threshold is not None:
            threshold = ThresholdRecord.from_json(stored.threshold)
        ood_score = None
        if stored.score is not None:
            ood_score = StoredScoreRecord(score=stored.score)
        name_bytes = model.name.encode("utf-8", "backslashreplace")  # the name of a file may be no UTF-8
        return PredictedModelRecord(
            name=name_bytes.decode("utf-8"),
            sha256=model.sha256,
            labels=model.labels,
            heads=model.heads,
            training=model.training,
            cost=model.cost,
            decisive=model.decisive(),
            calibration=_calibration_record(stored),
            threshold=threshold,
            ood_score=ood_score,
            feature_scores=self.feature_scores or None,
            fitted_on=fitted_on,
        )

    def writer(self, path: Path, resume: bool) -> PredictionsWriter:
        """Return the predictions file at a path for writing: a new one, or with ``resume`` the one that is there."""
        sets = []
        for dataset in self.sets:
            seen = self.seen.get(dataset.name, 0)
            sets.append(replace(dataset, seen=seen))
        kind = "F32"
        if self.model.options.dtype == "float64":
            kind = "F64"
        return PredictionsWriter(
            path,
            self.header().to_json(),
            sets,
            members=self.model.members,
            classes=self.model.classes,
            kind=kind,
            scores=self.feature_scores,
            resume=resume,
        )


def _calibration_record(stored: StoredFit) -> CalibrationRecord | None:
    """Return the calibration that the model's own file holds; None without one."""
    if stored.calibration is None:
        return None
    document: dict[str, object] = {**stored.calibration.to_json()}
    if stored.fitted_on is not None:
        document["fitted_on"] = stored.fitted_on
    return CalibrationRecord.from_json(document)


def open_writer(row: KeptRow, output: Output, resume: bool, log: Log) -> PredictionsWriter:
    """Open the predictions file to fill, and tell how far it is.

    Args:
        row: what is kept.
        output: the finished file to be.
        resume: go on with the unfinished file that a stopped run has left; if there is none, a finished file of the
            same run is returned, which is only read.
        log: receives messages.

    Raises:
        InputError: with ``resume``, the file is of other settings or data.
    """
    unfinished = output.target.with_name(f"{output.target.name}.part")
    is_unfinished = unfinished.exists()
    if resume and not is_unfinished:
        finished = _finished_file(row, output)
        if finished is not None:
            log.info(f"{output.path} is complete: its predictions are read")
            return finished
        log.info(f"nothing to resume: {output.path} is begun")
    if is_unfinished and not resume:
        log.info(f"an unfinished {unfinished} is begun anew; --resume would have gone on with it")

    writer = row.writer(unfinished, resume)
    if writer.resumed:
        left = 0
        for index in range(len(row.sets)):
            left += int(writer.missing(index).sum())
        samples = sum(len(dataset) for dataset in row.sets)
        log.info(f"{unfinished} is resumed: {left:,} of {samples:,} samples are left")
    return writer


def _finished_file(row: KeptRow, output: Output) -> PredictionsWriter | None:
    """Return the finished file of the same run, open for reading; None where there is none.

    Samples that it has no logits of are noted as skipped. If a set may not skip any, the file does not count as
    finished.

    Raises:
        InputError: it is of other settings or data, as for an unfinished file.
    """
    if not is_predictions(output.target):
        return None
    finished = row.writer(output.target, resume=True)
    missing = []
    for index in range(len(row.sets)):
        rows_without_logits = np.flatnonzero(finished.missing(index))
        missing.append(rows_without_logits)
    if _note_as_skipped(row.sets, missing):
        return finished
    finished.close()
    return None


def _note_as_skipped(sets: Sequence[EvalSet], missing: Sequence[npt.NDArray[np.int64]]) -> bool:
    """Note the samples that a finished file has no logits of as skipped, unless a set of them may not skip any.

    Args:
        sets: the data sets.
        missing: the rows without logits of each set.

    Returns:
        Whether they were noted: all of them, or none.
    """
    skipped_by_set = []  # of the sets that lack logits: the samples that are skipped already, and the rows to add
    for dataset, rows in zip(sets, missing, strict=True):
        if not len(rows):
            continue
        opened = dataset.dataset
        if opened is None or opened.skipped is None:  # it may not skip any
            return False
        skipped_by_set.append((opened.skipped, rows))

    for skipped, rows in skipped_by_set:
        for row in rows:
            skipped[int(row)] = "it could not be read for these predictions"
    return True
