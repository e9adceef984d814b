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
        """Return what the header says of the model."""
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
            calibration=_calibration(stored),
            threshold=threshold,
            ood_score=ood_score,
            feature_scores=self.feature_scores or None,
            fitted_on=fitted_on,
        )

    def writer(self, path: Path, resume: bool) -> PredictionsWriter:
        """Return the unfinished predictions file, beside the finished one to be."""
        sets = [replace(dataset, seen=self.seen.get(dataset.name, 0)) for dataset in self.sets]
        kind = "F64" if self.model.options.dtype == "float64" else "F32"
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


def _calibration(stored: StoredFit) -> CalibrationRecord | None:
    """Return the calibration that the model's own file holds; None without one."""
    if stored.calibration is None:
        return None
    document: dict[str, object] = {**stored.calibration.to_json()}
    if stored.fitted_on is not None:
        document["fitted_on"] = stored.fitted_on
    return CalibrationRecord.from_json(document)


def open_writer(row: KeptRow, output: Output, resume: bool, log: Log) -> PredictionsWriter:
    """Open the predictions file to fill; with ``resume``, a finished one of the same run, which is only read."""
    unfinished = output.target.with_name(f"{output.target.name}.part")
    if resume and not unfinished.exists():
        finished = _finished(row, output)
        if finished is not None:
            log.info(f"{output.path} is complete: its predictions are read")
            return finished
        log.info(f"nothing to resume: {output.path} is begun")
    elif unfinished.exists() and not resume:
        log.info(f"an unfinished {unfinished} is begun anew; --resume would have gone on with it")
    writer = row.writer(unfinished, resume)
    if writer.resumed:
        left = 0
        for index in range(len(row.sets)):
            left += int(writer.missing(index).sum())
        samples = sum(len(dataset) for dataset in row.sets)
        log.info(f"{unfinished} is resumed: {left:,} of {samples:,} samples are left")
    return writer


def _finished(row: KeptRow, output: Output) -> PredictionsWriter | None:
    """Return the finished file of the same run; None where there is none.

    One of other settings or data is refused, as an unfinished one would be.
    """
    if not is_predictions(output.target):
        return None
    finished = row.writer(output.target, resume=True)
    missing = [np.flatnonzero(finished.missing(index)) for index in range(len(row.sets))]
    if _skip_again(row.sets, missing):
        return finished
    finished.close()
    return None


def _skip_again(sets: Sequence[EvalSet], missing: Sequence[npt.NDArray[np.int64]]) -> bool:
    """Note the samples that a finished file has no logits of as skipped.

    Returns:
        Whether they are left out now too: where a set may not leave any out, nothing is noted.
    """
    lacking = []
    for dataset, rows in zip(sets, missing, strict=True):
        if len(rows):
            lacking.append((dataset.dataset, rows))
    for opened, _ in lacking:
        if opened is None or opened.skipped is None:
            return False
    for opened, rows in lacking:
        assert opened is not None and opened.skipped is not None
        for row in rows:
            opened.skipped[int(row)] = "it could not be read for these predictions"
    return True
