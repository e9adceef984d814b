"""Opens the predictions file of a row that is measured: a new one, or that of a stopped run; and makes its header."""

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
    """Everything about one row that its predictions file needs.

    Attributes:
        model: the model of the row.
        sets: the data sets, in the order of the file.
        seen: the number of samples that the model has seen, by the name of the data set.
        feature_scores: the names of the OOD scores on features that are stored beside the logits.
        scores_fitted_on: the record of the training data and words to which these scores are fitted, or None.
    """

    model: RunningModel
    sets: Sequence[EvalSet]
    seen: Mapping[str, int]
    feature_scores: Sequence[str] = ()
    scores_fitted_on: Mapping[str, object] | None = None

    def header(self) -> PredictedModelRecord:
        """Return the record of the model in the header of the predictions file.

        It includes the calibration, threshold and OOD score that were stored in the model's own file.
        """
        model = self.model
        stored_fit = model.stored

        # The data to which OOD scores on features were fitted.
        fitted_on = None
        if self.feature_scores and self.scores_fitted_on is not None:
            fitted_on = ScoreDataRecord.model_validate(self.scores_fitted_on)

        # What was stored in the model's file.
        threshold = None
        if stored_fit.threshold is not None:
            threshold = ThresholdRecord.model_validate(stored_fit.threshold)
        ood_score = None
        if stored_fit.score is not None:
            ood_score = StoredScoreRecord(score=stored_fit.score)

        # The name comes from a file name, which may have bytes that are not valid UTF-8.
        name_bytes = model.name.encode("utf-8", "backslashreplace")
        return PredictedModelRecord(
            name=name_bytes.decode("utf-8"),
            sha256=model.sha256,
            labels=model.labels,
            heads=model.heads,
            training=model.training,
            cost=model.cost,
            **dict(model.decisive()),
            calibration=_calibration_record(stored_fit),
            threshold=threshold,
            ood_score=ood_score,
            feature_scores=self.feature_scores or None,
            fitted_on=fitted_on,
        )

    def writer(self, path: Path, resume: bool) -> PredictionsWriter:
        """Open the predictions file at a path for writing.

        Args:
            path: the file.
            resume: whether to continue an existing file; otherwise a new one is begun.
        """
        sets_with_seen = []
        for dataset in self.sets:
            seen = self.seen.get(dataset.name, 0)
            sets_with_seen.append(replace(dataset, seen=seen))
        kind = "F32"
        if self.model.options.dtype == "float64":
            kind = "F64"
        return PredictionsWriter(
            path,
            self.header().to_dict(),
            sets_with_seen,
            members=self.model.members,
            classes=self.model.classes,
            kind=kind,
            scores=self.feature_scores,
            resume=resume,
        )


def _calibration_record(stored: StoredFit) -> CalibrationRecord | None:
    """Return the record of the calibration in the model's own file; None if there is none."""
    if stored.calibration is None:
        return None
    document: dict[str, object] = {**stored.calibration.to_json()}
    if stored.fitted_on is not None:
        document["fitted_on"] = stored.fitted_on
    return CalibrationRecord.model_validate(document)


def open_writer(row: KeptRow, output: Output, resume: bool, log: Log) -> PredictionsWriter:
    """Open the predictions file of a row, and log how complete it is.

    While it is filled, the file is called ``NAME.part``.

    Args:
        row: the row.
        output: the finished file.
        resume: whether to continue the unfinished file of a stopped run. If there is none, but a finished file of the
            same run exists, that file is returned and will only be read.
        log: receives messages.

    Raises:
        InputError: with ``resume``, if the file was made with other settings or data.
    """
    unfinished = output.target.with_name(f"{output.target.name}.part")
    unfinished_exists = unfinished.exists()
    if resume and not unfinished_exists:
        finished = _finished_file(row, output)
        if finished is not None:
            log.info(f"{output.path} is complete: its predictions are read")
            return finished
        log.info(f"nothing to resume: {output.path} is begun")
    if unfinished_exists and not resume:
        log.info(f"an unfinished {unfinished} is begun anew; --resume would have gone on with it")

    writer = row.writer(unfinished, resume)
    if writer.resumed:
        missing_samples = 0
        for index in range(len(row.sets)):
            missing_samples += int(writer.missing(index).sum())
        all_samples = sum(len(dataset) for dataset in row.sets)
        log.info(f"{unfinished} is resumed: {missing_samples:,} of {all_samples:,} samples are left")
    return writer


def _finished_file(row: KeptRow, output: Output) -> PredictionsWriter | None:
    """Return the finished predictions file of the same run, open for reading; None if there is none.

    Samples without logits in the file are noted as skipped in their data sets. If a data set may not skip samples, the
    file does not count as finished.

    Raises:
        InputError: if the file was made with other settings or data.
    """
    if not is_predictions(output.target):
        return None
    finished = row.writer(output.target, resume=True)
    missing_by_set = []
    for index in range(len(row.sets)):
        rows_without_logits = np.flatnonzero(finished.missing(index))
        missing_by_set.append(rows_without_logits)
    if _note_as_skipped(row.sets, missing_by_set):
        return finished
    finished.close()
    return None


def _note_as_skipped(sets: Sequence[EvalSet], missing: Sequence[npt.NDArray[np.int64]]) -> bool:
    """Note samples as skipped in their data sets, in place, unless one of the sets may not skip samples.

    Args:
        sets: the data sets.
        missing: for each set, the indices of the samples to note.

    Returns:
        True if all samples were noted; False if none was, because a set may not skip samples.
    """
    # First check all sets, so that nothing is changed if one of them may not skip samples.
    skipped_and_missing = []  # for each set with missing samples: its dict of skipped samples, and the indices to add
    for dataset, indices in zip(sets, missing, strict=True):
        if not len(indices):
            continue
        opened = dataset.dataset
        if opened is None or opened.skipped is None:  # this set may not skip samples
            return False
        skipped_and_missing.append((opened.skipped, indices))

    for skipped, indices in skipped_and_missing:
        for index in indices:
            skipped[int(index)] = "it could not be read for these predictions"
    return True
