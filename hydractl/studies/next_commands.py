"""The commands to run after a study: predict with ``best.st``, export and calibrate it.

If the single model is as good with a free score, one more command writes that model.
"""

from __future__ import annotations

from hydractl.files.study_answer import NextCommandRecord, Purpose
from hydractl.options.command import Command
from hydractl.studies.plan import Plan
from hydractl.studies.verdict import Rung

_HOW_IT_RUNS = ("device", "batch_size", "dtype", "workers", "max_length")
"""The options of a study that say how a model runs; the commands after it get them, too."""

_WHICH_SAMPLES = ("limit", "seed")
"""The options of a study that say which samples it takes; the same calibration needs the same samples."""


def next_commands(plan: Plan, used: Rung, free_score: str | None) -> list[NextCommandRecord]:
    """Return commands that use ``best.st``, with the data of the study in place of the user's data.

    Args:
        plan: the plan of the study; the files of the commands go to its folder, too.
        used: the row that ``best.st`` was made from, with its OOD score.
        free_score: a free score with which the single model is as good as ``best.st`` or better; None if there is none.
    """
    request = plan.request
    (row,) = (row for row in plan.rows if row.name == used.row)
    running = request.given_of(_HOW_IT_RUNS)

    best = str(plan.folder / "best.st")
    written = {"report": str(plan.folder / "predictions.json"), "output": str(plan.folder / "predictions.jsonl")}
    predict = Command("predict", (best, str(request.test), str(request.ood[0].spec)), {**running, **written})

    as_for_export = {**request.given_of(("max_length",)), "output": str(plan.folder / "best.onnx")}
    export = Command("export", (best,), as_for_export)

    as_before = {**running, **request.given_of(_WHICH_SAMPLES), **plan.calibration(row, used.score)}
    recalibrate = Command("calibrate", (best,), {**as_before, "output": str(plan.folder / "recalibrated.st")})

    commands: dict[Purpose, Command] = {"predict": predict, "export": export, "recalibrate": recalibrate}
    if free_score is not None:
        commands["free score"] = plan.free_command(free_score)
    return [NextCommandRecord(purpose=purpose, command=command.words()) for purpose, command in commands.items()]
