"""The options of ``predict``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from hydractl.expressions.conditions import parse_requirement
from hydractl.options.option import ends_in, option
from hydractl.settings.common import Batched, Requiring, Rule, file_option
from hydractl.settings.measuring import Measured

predict_option = partial(option, "Predicting")

LINE_FILES = (".jsonl", ".csv", ".parquet")
"""The endings of files that predictions are written to, a line or a row for each sample."""


def _inputs_once(settings: PredictSettings) -> list[str]:
    """Return a problem if there is no input, if there are inputs of two kinds, or if standard input is named twice."""
    if not settings.model:
        return []
    if settings.inputs and settings.of_this_verb("data"):
        return [f"give only one of INPUT, --data{settings.where('data')}"]
    if not settings.inputs and settings.data is None:
        return ["predict needs an INPUT: a folder, a file, - for standard input, or --data SPEC"]
    if settings.inputs.count("-") > 1:
        return ["standard input can be read once, and - is given twice"]
    return []


def _lines_or_report_on_stdout(settings: PredictSettings) -> list[str]:
    """Return a problem if ``--output`` has an ending to which no lines can be written."""
    if settings.output is None or settings.output == "-":
        return []
    if settings.output.lower().endswith(LINE_FILES):
        return []
    endings = ", ".join(LINE_FILES)
    where = settings.where("output")
    return [f"--output {settings.output}: predictions are written to {endings}{where}"]


def _file_to_resume(settings: PredictSettings) -> list[str]:
    """Return a problem if ``--resume`` is given without an output file."""
    has_file = settings.output is not None and settings.output != "-"
    if has_file or not settings.resume:
        return []
    return ["--resume needs --output: what was printed is not kept"]


@dataclass(kw_only=True)
class PredictSettings(Requiring, Measured, Batched):
    """Options of ``predict``; ``model`` is the MODEL and its INPUTs."""

    verb: ClassVar[str] = "predict"
    many_models: ClassVar[bool] = True
    models_called: ClassVar[str] = "MODEL [INPUT...]"
    models_help: ClassVar[str] = (
        "A checkpoint, and what to predict: image files, SPECs as of --data, or - for standard input with a path, or "
        "a text, in each line"
    )
    rules: ClassVar[tuple[Rule, ...]] = (
        _inputs_once,
        _lines_or_report_on_stdout,
        _file_to_resume,
    )
    lacks: ClassVar[tuple[str, ...]] = ("tower",)

    output: str | None = file_option(
        "File of the predictions, .jsonl, .csv or .parquet, a line for each sample [default: lines on standard "
        "output, on a terminal a table of the first]",
        metavar="FILE",
        short="-o",
        writes=True,
        often=True,
    )
    on_bad: str = predict_option(
        "An image that cannot be read: error stops and names it; skip leaves it out, counts and lists it",
        "error",
        choices=("error", "skip"),
    )
    top: int = predict_option("List the N most probable classes of each sample [classes]", 0, at_least=0, often=True)
    members: bool = predict_option("Say what each member predicts, too", False, often=True)
    report: str | None = predict_option(
        "Write the summary, which is else only printed: how many samples are flagged, with an interval",
        metavar="FILE.json",
        check=ends_in(".json"),
        writes=True,
        often=True,
    )
    resume: bool = predict_option("Resume the unfinished file of the same command", False)
    require: list[str] = predict_option(
        "Exit with 4 unless it holds: ood_share, confidence, n or skipped, as KEY<=NUMBER; repeat it for more",
        [],
        metavar="EXPR",
        check=parse_requirement,
        often=True,
    )

    @property
    def inputs(self) -> list[str]:
        """The INPUTs."""
        return self.model[1:]
