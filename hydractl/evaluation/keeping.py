"""The predictions file of a row that is measured: begun, or gone on with, and what its header says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from hydractl.evaluation.predictions.header import FittedCalibrationEntry, ModelHeader, ScoreDataEntry
from hydractl.evaluation.predictions.reading import is_predictions
from hydractl.evaluation.predictions.store import PredictionsWriter
from hydractl.evaluation.providers.running import RunningModel
from hydractl.evaluation.sets import EvalSet
from hydractl.files.atomic import Output
from hydractl.log import Log


@dataclass(frozen=True)
class KeptRow:
    """What is kept of one row.

    Attributes:
        model: the row.
        sets: the data sets, in the order of the file.
        seen: how many samples of each set it has seen, by the name of the set.
        feature_scores: names of the OOD scores on features that are kept beside the logits.
        scores_fitted_on: the training data that these are fitted to, as the header holds them; None without.
    """

    model: RunningModel
    sets: Sequence[EvalSet]
    seen: Mapping[str, int]
    feature_scores: Sequence[str] = ()
    scores_fitted_on: ScoreDataEntry | None = None

    def header(self) -> ModelHeader:
        """Return what the header says of the model."""
        model = self.model
        described: ModelHeader = {
            "name": model.name.encode("utf-8", "backslashreplace").decode("utf-8"),  # that of a file may be no UTF-8
            "sha256": model.sha256,
            "labels": None if model.labels is None else list(model.labels),
            "heads": model.heads,
            "cost": model.cost,
        }
        header = cast("ModelHeader", {**described, **model.decisive()})
        if self.feature_scores:
            header["feature_scores"] = list(self.feature_scores)
            if self.scores_fitted_on is not None:
                header["fitted_on"] = self.scores_fitted_on
        if model.training:
            header["training"] = list(model.training)
        _add_stored(header, model)
        return header

    def writer(self, path: Path, resume: bool) -> PredictionsWriter:
        """Return the unfinished predictions file, beside the finished one to be."""
        sets = [replace(dataset, seen=self.seen.get(dataset.name, 0)) for dataset in self.sets]
        return PredictionsWriter(
            path,
            self.header(),
            sets,
            members=self.model.members,
            classes=self.model.classes,
            kind="F64" if self.model.options.dtype == "float64" else "F32",
            scores=self.feature_scores,
            resume=resume,
        )


def _add_stored(header: ModelHeader, model: RunningModel) -> None:
    """Add what the model's own file holds of a calibration, an OOD score and a threshold."""
    stored = model.stored
    if stored.calibration is not None:
        calibration = cast("FittedCalibrationEntry", stored.calibration.to_json())
        if stored.fitted_on is not None:
            calibration["fitted_on"] = stored.fitted_on
        header["calibration"] = calibration
    if stored.score is not None:
        header["ood_score"] = {"score": stored.score}
    if stored.threshold is not None:
        header["threshold"] = stored.threshold


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
        left = sum(int(writer.missing(index).sum()) for index in range(len(row.sets)))
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
    lacking = [(dataset.dataset, rows) for dataset, rows in zip(sets, missing, strict=True) if len(rows)]
    for dataset, _ in lacking:
        if dataset is None or dataset.skipped is None:
            return False
    for dataset, rows in lacking:
        assert dataset is not None and dataset.skipped is not None
        for row in rows:
            dataset.skipped[int(row)] = "it could not be read for these predictions"
    return True
