"""The commands to run after a study: predict with ``best.st``, export and calibrate it.

If the single model is as good with a free score, one more command writes that model.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hydractl.files.study_answer import NextCommandRecord
from hydractl.studies.request import StudyRequest
from hydractl.studies.steps import Step, Value

_HOW_IT_RUNS = ("device", "batch_size", "dtype", "workers", "max_length")
"""The options of a study that say how a model runs; the commands after it get them, too."""

_WHICH_SAMPLES = ("limit", "seed")
"""The options of a study that say which samples it takes; the same calibration needs the same samples."""


def next_commands(
    request: StudyRequest, folder: Path, calibration: Mapping[str, Value], free: Step | None = None
) -> list[NextCommandRecord]:
    """Return commands that use ``best.st``, with the data of the study in place of the user's data.

    Args:
        request: what is asked of the study.
        folder: the folder with ``best.st``; the files of the commands go there, too.
        calibration: the options of ``calibrate`` that ``best.st`` was written with.
        free: the step that writes the single model with a free score that is as good as ``best.st`` or better; None if
            there is no such score.
    """
    best = str(folder / "best.st")
    predictions = folder / "predictions.jsonl"
    summary = folder / "predictions.json"
    predict = Step(
        verb="predict",
        models=(best, request.test.text, request.ood[0].spec.text),
        options={**request.common(_HOW_IT_RUNS), "report": str(summary)},
        outputs=(predictions,),
    )
    export = Step(
        verb="export",
        models=(best,),
        options=request.common(("max_length",)),
        outputs=(folder / "best.onnx",),
    )
    recalibrate = Step(
        verb="calibrate",
        models=(best,),
        options={**request.common((*_HOW_IT_RUNS, *_WHICH_SAMPLES)), **calibration},
        outputs=(folder / "recalibrated.st",),
    )
    commands = [
        NextCommandRecord(purpose="predict", command=predict.argv()),
        NextCommandRecord(purpose="export", command=export.argv()),
        NextCommandRecord(purpose="recalibrate", command=recalibrate.argv()),
    ]
    if free is not None:
        commands.append(NextCommandRecord(purpose="free score", command=free.argv()))
    return commands
