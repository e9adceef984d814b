"""Predictions of one command that several processes share: the files of each part, and how they become one file.

The parts are those of ``--part``: neighbouring samples, cut where batches begin. So every batch holds the same samples
as in a single process, and the joined lines are byte for byte what a single process writes. Under ``torchrun`` each
rank keeps its part in an unfinished file beside the output. With ``--devices`` or ``--slurm`` a command of its own
predicts each part, and writes into a folder beside the output.
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
"""Options that are not copied from the command to that of a part: it gets its own value, or none."""


# --- ranks of torchrun ------------------------------------------------------------------------------------------------


def unfinished_of_rank(target: Path, rank: int, size: int) -> Path:
    """Return the file in which a process of ``torchrun`` keeps its predictions until all processes are done.

    Args:
        target: the output; the file lies beside it.
        rank: the number of the process, from 0.
        size: the number of processes. A single process uses the same file as without ``torchrun``.
    """
    if size == 1:
        return unfinished_path(target)
    return target.with_name(f"{target.name}.{rank + 1}of{size}.part")


def refuse_other_division(target: Path, size: int) -> None:
    """Refuse to resume what another number of processes has begun.

    The number is in the names of unfinished files: beside the output OUT, a single process leaves ``OUT.part``, and the
    first of three processes ``OUT.1of3.part``.

    Args:
        target: the output.
        size: the number of processes now.

    Raises:
        UsageError: files of another number of processes are beside the output.
    """
    for path in target.parent.glob("*.part"):
        if not path.name.startswith(target.name):
            continue
        ending = path.name.removeprefix(target.name)
        match = re.fullmatch(r"(?:\.[0-9]+of([0-9]+))?\.part", ending)
        if match is None:
            continue
        earlier_size = 1
        if match[1] is not None:
            earlier_size = int(match[1])
        if earlier_size != size:
            raise UsageError(
                f"{path} is of a run of {earlier_size} processes, and this one has {size}",
                hint=f"start {earlier_size} of them, or {_BEGIN_ANEW}",
            )


def unfinished_of_team(target: Path, size: int) -> list[Path]:
    """Return the unfinished files of all ranks, in the order of the ranks.

    Raises:
        InputError: one of the files does not exist.
    """
    paths = [unfinished_of_rank(target, rank, size) for rank in range(size)]
    for path in paths:
        if not path.exists():
            raise InputError(f"{path} is not there", hint="all machines must see the folder of the output")
    return paths


# --- commands side by side --------------------------------------------------------------------------------------------


class PredictionParts:
    """The parts of one output, each predicted by a command of its own, in the folder ``OUTPUT.parts``.

    Creating it prepares the folder. The caller must hold the lock of the output.

    Args:
        target: the output.
        fingerprint: what decides the predictions, by key.
        count: the number of parts.
        resume: keep the parts in an existing folder.
        log: receives whether the parts are resumed or begun anew.

    Raises:
        InputError: the existing parts belong to another command.
        OutputError: the existing folder is not a folder of parts, or cannot be written.
    """

    def __init__(self, target: Path, fingerprint: Mapping[str, Any], count: int, *, resume: bool, log: Log) -> None:
        self.folder = target.with_name(f"{target.name}.parts")
        self._count = count
        fingerprint_with_parts = {**fingerprint, "parts": count}
        with storing(self.folder):
            exists = self.folder.exists()
            is_other_folder = exists and not self._plan_file.is_file()
            # A link is refused too: it could lead to another user's folder, which would be removed below.
            if is_other_folder or self.folder.is_symlink():
                raise OutputError(f"{self.folder} is no folder of unfinished predictions", hint="remove it")

            # Resume in the existing folder, or begin with an empty one.
            if exists and resume:
                self._check_same_command(fingerprint_with_parts)
                return
            if exists:
                log.info(f"the unfinished {self.folder} is begun anew; --resume would have gone on with it")
                shutil.rmtree(self.folder)
            elif resume:
                log.info(f"nothing to resume: {target} is begun")
            self.folder.mkdir()

        # The plan lets a later command see whether these parts are its own.
        with Output(self._plan_file) as output:
            write_json(output, {"schema": SCHEMA, "fingerprint": fingerprint_with_parts})

    @property
    def _plan_file(self) -> Path:
        """The file that says which command the folder belongs to."""
        return self.folder / "plan.json"

    def _lines_file(self, number: int) -> Path:
        """Return the file that holds the predicted lines of a part; parts are counted from 1."""
        return self.folder / f"{number}.jsonl"

    def _summary_file(self, number: int) -> Path:
        """Return the file that holds the summary of a part; it is written after the lines. Parts are counted from 1."""
        return self.folder / f"{number}.json"

    def _is_done(self, number: int) -> bool:
        """Return whether a part (counted from 1) was predicted to its end."""
        has_lines = self._lines_file(number).exists()
        return has_lines and self._summary_file(number).exists()

    def _check_same_command(self, fingerprint: Mapping[str, Any]) -> None:
        """Refuse to continue parts that another command has begun.

        Args:
            fingerprint: what decides the predictions of this command, and the number of parts.

        Raises:
            InputError: the plan in the folder has another fingerprint, or cannot be read.
        """
        document = read_json_file(str(self._plan_file))
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise InputError(f"{self._plan_file} is no plan of predictions", hint=_BEGIN_ANEW)
        begun_with = document.get("fingerprint")
        if isinstance(begun_with, dict):
            problems = differences(begun_with, fingerprint, "in the folder")
        else:
            problems = ["?"]  # the plan does not say what it was begun with
        if problems:
            hint = f"give the settings it was begun with, or {_BEGIN_ANEW}"
            raise InputError(f"{self.folder} is of another command", hint=hint, problems=problems)

    def run(self, settings: PredictSettings, log: Log) -> None:
        """Run one command for each part that is not predicted yet, side by side on devices or as jobs of Slurm.

        Args:
            settings: the options of the whole command, with its devices or Slurm options.
            log: receives the lines of all parts.

        Raises:
            Interrupted: a signal came before all parts were predicted.
            HydraError: parts failed; it has the hint and the exit code of the first of them.
        """
        commands = {}
        for number in self._numbers:
            name = f"{number}of{self._count}"
            if self._is_done(number):
                log.info(f"{name}: predicted before, nothing to do")
            else:
                commands[name] = self._command_for_device(number, settings)
        if not commands:
            return

        folder_of_output = self.folder.parent
        with Interruptions() as signals:
            ended = run_side_by_side(commands, settings.places, settings.slurm, folder_of_output, log, signals)

        # After a signal, say how to go on, and not that each command was interrupted.
        done_count = sum(self._is_done(number) for number in self._numbers)
        if signals.requested and done_count < self._count:
            hint = f"add --resume to the same command to go on; {done_count} of {self._count} parts are predicted"
            raise Interrupted(hint=hint)
        _raise_failures(ended)

    @property
    def _numbers(self) -> range:
        """The numbers of all parts, counted from 1."""
        return range(1, self._count + 1)

    def _command_for_device(self, number: int, settings: PredictSettings) -> Callable[[str], list[str]]:
        """Return a function that returns the command line for predicting a part on a given device.

        The command line begins with the name of the command, without ``hydractl``.
        """
        options_left_out = list(_REPLACED)
        if settings.inputs:
            options_left_out.append("data")  # the inputs replace a --data from the settings file

        def command_on(device: str) -> list[str]:
            arguments = ["predict", *to_argv(settings, options_left_out)]
            arguments.append(f"--part={number}/{self._count}")
            arguments.append(f"--output={self._lines_file(number)}")
            arguments.append(f"--report={self._summary_file(number)}")
            arguments.append(f"--device={device}")
            # --resume continues a part that was cut off; --force predicts a part again that lacks only its summary.
            arguments += ["--resume", "--force", "--quiet"]
            return [*arguments, "--", *settings.model]

        return command_on

    def windows(self, tally: PredictionTally) -> Iterator[Window]:
        """Yield the predicted rows of all parts in order, in windows of at most 1024 rows of one part.

        After the rows of each part, its samples that could not be read are added to ``tally``.

        Raises:
            InputError: the file of a part holds something other than predictions.
        """
        rows_yielded = 0
        for number in self._numbers:
            rows_of_window: list[dict[str, Any]] = []
            for row in self._predicted_rows(number):
                rows_of_window.append(row)
                if len(rows_of_window) == _ROWS_A_WINDOW:
                    rows_yielded += len(rows_of_window)
                    yield Window(rows_yielded, rows_of_window, {})
                    rows_of_window = []
            # The last window of the part has the rest of its rows, perhaps none.
            rows_yielded += len(rows_of_window)
            yield Window(rows_yielded, rows_of_window, {})
            summary = PredictAnswer.from_json(read_json_file(str(self._summary_file(number))))
            if summary.skipped is not None:
                tally.skip(summary.skipped.n, summary.skipped.ids)

    def _predicted_rows(self, number: int) -> Iterator[dict[str, Any]]:
        """Yield the rows in the file of a part (counted from 1).

        Raises:
            InputError: a line is not a JSON object.
        """
        path = self._lines_file(number)
        with storing(path), open(path, "rb", opener=open_own) as lines:
            for line_number, line in enumerate(lines, start=1):
                name_of_line = f"line {line_number} of {path}"
                row = parse_json(line, name_of_line)
                if not isinstance(row, dict):
                    raise InputError(f"{name_of_line} is no prediction", hint=_BEGIN_ANEW)
                yield row

    def remove(self) -> None:
        """Remove the folder, after its predictions have been written to the output."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _raise_failures(ended: Mapping[str, Ended]) -> None:
    """Raise one error for all commands that failed; return if none failed.

    Args:
        ended: how the command of each part ended, by the name of the part.

    Raises:
        HydraError: commands failed. Its problems are their messages; it has the hint and the exit code of the first.
    """
    failed = [command for command in ended.values() if command.code != 0]
    if not failed:
        return
    problems = []
    for command in failed:
        message = command.message or "it said nothing"
        problems.append(f"{command.name}: {message} (exit code {command.code})")
        for problem in command.problems:
            problems.append(f"{command.name}: {problem}")
    first = failed[0]
    hint = first.hint or "add --resume to the same command to predict the others"
    error = HydraError(f"{len(failed)} of the parts failed, first {first.name}", hint, problems)
    error.exit_code = first.code
    raise error
