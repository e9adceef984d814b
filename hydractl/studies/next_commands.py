"""The commands to run after a study: predict with ``best.st``, export and calibrate it.

If the single model is as good with a free score, one more command writes that model.
"""

from __future__ import annotations

from hydractl.expressions.models import ModelRef
from hydractl.files.study_answer import NextCommandRecord, Purpose
from hydractl.studies.plan import Plan
from hydractl.studies.steps import Step
from hydractl.studies.verdict import Rung

_HOW_IT_RUNS = ("device", "batch_size", "dtype", "workers", "max_length")
"""The options of a study that say how a model runs; the commands after it get them, too."""

_WHICH_SAMPLES = ("limit", "seed")
"""The options of a study that say which samples it takes; the same calibration needs the same samples."""


def next_commands(plan: Plan, used: Rung, free_score: str | None) -> list[NextCommandRecord]:
    """Return the commands that are shown after a study: predict with ``best.st``, export it, and calibrate it again.

    The data of the study stand in place of the user's. If the single model is as good with a score that costs nothing,
    a fourth command writes that model.

    Args:
        plan: the plan of the study; the files of the commands go to its folder, too.
        used: the row that ``best.st`` was made from, with its OOD score.
        free_score: a free score with which the single model is as good as ``best.st`` or better; None if there is none.
    """
    request = plan.request
    single = plan.rows[0]
    (used_row,) = (row for row in plan.rows if row.name == used.row)  # exactly one

    # Paths and options: the first OOD test set to predict, the same samples to calibrate on.
    best = str(plan.folder / "best.st")
    inputs = (best, str(request.ood[0].spec))
    report = {"report": str(plan.folder / "predictions.json")}
    recalibrated = plan.calibration(used_row, used.score)
    samples = (*_HOW_IT_RUNS, *_WHICH_SAMPLES)

    # The commands, by their purpose. Of the study's options each gets those in "shared" that somebody gave.
    steps: dict[Purpose, Step] = {
        "predict": plan.step("predict", inputs, report, ["predictions.jsonl"], shared=_HOW_IT_RUNS),
        "export": plan.step("export", [best], {}, ["best.onnx"], shared=("max_length",)),
        "recalibrate": plan.step("calibrate", [best], recalibrated, ["recalibrated.st"], shared=samples),
    }
    if free_score is not None:
        free = ModelRef.of_row("free", [single.model])
        steps["free score"] = plan.step("calibrate", [free], plan.calibration(single, free_score), ["free.st"])
    return [NextCommandRecord(purpose=purpose, command=step.words()) for purpose, step in steps.items()]
