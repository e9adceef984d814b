"""Predictions of one command that several processes share: what each leaves behind, and how that becomes one file.

The parts are those of ``--part``: neighbouring samples, cut where batches begin. So every batch holds the samples that
it holds in a single process, and the joined lines are the bytes that a single process writes. Under ``torchrun`` each
rank keeps its part in an unfinished file beside the output. With ``--devices`` or ``--slurm`` each part is a command
of its own, which writes into a folder beside the output.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hydractl.errors import HydraError, InputError, Interrupted, OutputError, UsageError
from hydractl.evaluation.predicting import PredictionTally, Window
from hydractl.evaluation.predictions.unfinished import unfinished_path
from hydractl.files.atomic import Output, open_own, storing, write_json
from hydractl.files.predict_answer import PredictAnswer
from hydractl.jsonio import differences, parse_json, read_json_file
from hydractl.log import Log
from hydractl.settings.predicting import PredictSettings
from hydractl.settings.sources import to_argv
from hydractl.training.checkpointing import Interruptions
from hydractl.verbs.children import Ended
from hydractl.verbs.jobs import run_side_by_side

SCHEMA = "hydractl.predict-parts/1"

_ROWS_A_WINDOW = 1024
_BEGIN_ANEW = "leave --resume out to begin anew"
_REPLACED = (
    "output",
    "report",
    "require",
    "parts",
    "device",
    "devices",
    "slurm",
    "resume",
    "force",
    "json",
    "config",
    "dry_run",
    "quiet",
    "verbose",
)
"""Options of the command that the command of a part is given anew, or not at all."""


# --- ranks of torchrun ------------------------------------------------------------------------------------------------


def unfinished_of_rank(target: Path, rank: int, size: int) -> Path:
    """Return where a rank keeps its predictions: for a single process where it keeps them without ``torchrun``."""
    if size == 1:
        return unfinished_path(target)
    return target.with_name(f"{target.name}.{rank + 1}of{size}.part")


def refuse_other_division(target: Path, size: int) -> None:
    """Refuse to resume what another number of processes has begun.

    Raises:
        UsageError: files of another number of processes are beside the output.
    """
    for path in target.parent.glob("*.part"):
        name = path.name.removeprefix(target.name)
        match = re.fullmatch(r"(?:\.[0-9]+of([0-9]+))?\.part", name)
        if match is None or not path.name.startswith(target.name):
            continue
        begun_by = int(match[1] or 1)
        if begun_by != size:
            raise UsageError(
                f"{path} is of a run of {begun_by} processes, and this one has {size}",
                hint=f"start {begun_by} of them, or {_BEGIN_ANEW}",
            )


def unfinished_of_team(target: Path, size: int) -> list[Path]:
    """Return the files of all ranks, in their order.

    Raises:
        InputError: one of them is not there.
    """
    paths = [unfinished_of_rank(target, rank, size) for rank in range(size)]
    for path in paths:
        if not path.exists():
            raise InputError(f"{path} is not there", hint="all machines must see the folder of the output")
    return paths


# --- commands side by side --------------------------------------------------------------------------------------------


class PredictionParts:
    """The parts of one output that are predicted by commands of their own, in the folder ``OUTPUT.parts``.

    Whoever makes it holds the lock of the output.

    Args:
        target: the output.
        fingerprint: what decides the predictions, and how they are divided.
        count: how many parts there are.
        resume: keep the parts that are there.
        log: hears what becomes of them.

    Raises:
        InputError: the parts that are there are of another command.
        OutputError: what is there is no such folder, or cannot be written.
    """

    def __init__(self, target: Path, fingerprint: Mapping[str, Any], count: int, *, resume: bool, log: Log) -> None:
        self.folder = target.with_name(f"{target.name}.parts")
        self._count = count
        plan = {"schema": SCHEMA, "fingerprint": {**fingerprint, "parts": count}}
        with storing(self.folder):
            if self.folder.is_symlink() or (self.folder.exists() and not self._plan.is_file()):
                raise OutputError(f"{self.folder} is no folder of unfinished predictions", hint="remove it")
            if self.folder.exists() and resume:
                self._check_same_command(plan)
                return
            if self.folder.exists():
                log.info(f"the unfinished {self.folder} is begun anew; --resume would have gone on with it")
                shutil.rmtree(self.folder)
            elif resume:
                log.info(f"nothing to resume: {target} is begun")
            self.folder.mkdir()
        with Output(self._plan) as output:
            write_json(output, plan)

    @property
    def _plan(self) -> Path:
        return self.folder / "plan.json"

    def _lines(self, number: int) -> Path:
        """Return the file of the lines of a part, counted from 1."""
        return self.folder / f"{number}.jsonl"

    def _summary(self, number: int) -> Path:
        """Return the file of the summary of a part, which is written behind its lines."""
        return self.folder / f"{number}.json"

    def _is_done(self, number: int) -> bool:
        return self._summary(number).exists() and self._lines(number).exists()

    def _check_same_command(self, plan: Mapping[str, Any]) -> None:
        document = read_json_file(str(self._plan))
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise InputError(f"{self._plan} is no plan of predictions", hint=_BEGIN_ANEW)
        before = document.get("fingerprint")
        problems = differences(before, plan["fingerprint"], "in the folder") if isinstance(before, dict) else ["?"]
        if problems:
            hint = f"give the settings it was begun with, or {_BEGIN_ANEW}"
            raise InputError(f"{self.folder} is of another command", hint=hint, problems=problems)

    def run(self, settings: PredictSettings, log: Log) -> None:
        """Predict the parts that are not there, on devices or as jobs.

        Raises:
            Interrupted: a signal came before all had ended.
            HydraError: some failed; it has the hint and the exit code of the first.
        """
        commands = {}
        for number in range(1, self._count + 1):
            name = f"{number}of{self._count}"
            if self._is_done(number):
                log.info(f"{name}: predicted before, nothing to do")
            else:
                commands[name] = self._command(number, settings)
        if not commands:
            return
        folder = self.folder.parent
        with Interruptions() as signals:
            ended = run_side_by_side(commands, settings.places, settings.slurm, folder, log, signals)
        left = [number for number in range(1, self._count + 1) if not self._is_done(number)]
        if left and signals.requested:
            done = self._count - len(left)
            hint = f"add --resume to the same command to go on; {done} of {self._count} parts are predicted"
            raise Interrupted(hint=hint)
        _raise_failures(ended)

    def _command(self, number: int, settings: PredictSettings) -> Callable[[str], list[str]]:
        """Return a function from a device to the command line of a part, without ``hydractl``."""

        without = list(_REPLACED)
        if settings.inputs:
            without.append("data")  # what hydra.yaml says of it for every verb is set aside

        def on_device(device: str) -> list[str]:
            words = ["predict", *to_argv(settings, without)]
            words.append(f"--part={number}/{self._count}")
            words.append(f"--output={self._lines(number)}")
            words.append(f"--report={self._summary(number)}")
            words.append(f"--device={device}")
            # A part that was cut off goes on; one whose summary was not written yet is predicted again.
            words += ["--resume", "--force", "--quiet"]
            return [*words, "--", *settings.model]

        return on_device

    def windows(self, tally: PredictionTally) -> Iterator[Window]:
        """Yield the rows of all parts in order, and count what could not be read.

        Raises:
            InputError: a part holds something else than predictions.
        """
        stop = 0
        for number in range(1, self._count + 1):
            rows: list[dict[str, Any]] = []
            for row in self._rows(number):
                rows.append(row)
                if len(rows) == _ROWS_A_WINDOW:
                    stop += len(rows)
                    yield Window(stop, rows, {})
                    rows = []
            stop += len(rows)
            yield Window(stop, rows, {})
            summary = PredictAnswer.from_json(read_json_file(str(self._summary(number))))
            if summary.skipped is not None:
                tally.skip(summary.skipped.n, summary.skipped.ids)

    def _rows(self, number: int) -> Iterator[dict[str, Any]]:
        path = self._lines(number)
        with storing(path), open(path, "rb", opener=open_own) as lines:
            for place, line in enumerate(lines, start=1):
                row = parse_json(line, f"line {place} of {path}")
                if not isinstance(row, dict):
                    raise InputError(f"line {place} of {path} is no prediction", hint=_BEGIN_ANEW)
                yield row

    def remove(self) -> None:
        """Remove the folder, when its predictions are where they belong."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _raise_failures(ended: Mapping[str, Ended]) -> None:
    """Raise the errors of the commands that failed as one.

    Raises:
        HydraError: with the hint and the exit code of the first.
    """
    failed = [end for end in ended.values() if end.code != 0]
    if not failed:
        return
    problems = []
    for end in failed:
        message = end.message or "it said nothing"
        problems.append(f"{end.name}: {message} (exit code {end.code})")
        problems += [f"{end.name}: {problem}" for problem in end.problems]
    hint = failed[0].hint or "add --resume to the same command to predict the others"
    error = HydraError(f"{len(failed)} of the parts failed, first {failed[0].name}", hint, problems)
    error.exit_code = failed[0].code
    raise error
