"""The steps of a study: commands of ``hydractl``, each with the files that show that it is finished."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

Value = str | bool | list[str]
"""The value of an option: text as on the command line, a switch, or one text for each time the flag is repeated."""


@dataclass(frozen=True)
class Step:
    """One command.

    Attributes:
        verb: the verb (subcommand).
        models: its MODEL arguments.
        options: by name (``ood_score``), the values of its options, without ``output``.
        outputs: the files that it writes.
        needs: the steps whose outputs it reads.
        output: the value of ``-o``; None for the first file of ``outputs``.
        has_output: whether the command has ``-o``; if not, other options name its files.
    """

    verb: str
    models: tuple[str, ...]
    options: Mapping[str, Value]
    outputs: tuple[Path, ...]
    needs: tuple[Step, ...] = ()
    output: Path | None = None
    has_output: bool = True

    @property
    def done(self) -> bool:
        """Whether all outputs exist. A file that exists is complete, because files are put in place when finished."""
        exists = [path.exists() for path in self.outputs]
        return all(exists)

    @property
    def given(self) -> dict[str, Value]:
        """The values of all options and of the MODEL arguments (``model``), by name."""
        values: dict[str, Value] = {"model": list(self.models)}
        values.update(self.options)
        values.update(self._output_option)
        return values

    @property
    def _output_option(self) -> dict[str, Value]:
        """The option ``output`` by its name; empty for a command without it."""
        if not self.has_output:
            return {}
        path = self.output or self.outputs[0]
        return {"output": str(path)}

    def argv(self) -> list[str]:
        """Return the command line as one types it, as a list of words without ``hydractl``."""
        words = [self.verb, *self.models]
        for name, value in self.options.items():
            flag = name.replace("_", "-")
            words += _flag_words(flag, value)
        for value in self._output_option.values():
            words += ["-o", str(value)]
        return words


def _flag_words(flag: str, value: Value) -> list[str]:
    """Return the words that give a flag its value on the command line."""
    if value is True:
        return [f"--{flag}"]
    if value is False:
        return [f"--no-{flag}"]
    if isinstance(value, str):
        return [f"--{flag}", value]
    words = []
    for text in value:
        words += [f"--{flag}", text]
    return words


def in_order(steps: Iterable[Step]) -> list[Step]:
    """Return the steps and all steps that they need, without repetition, each after the steps that it needs."""
    ordered: list[Step] = []
    for step in steps:
        for needed in [*in_order(step.needs), step]:
            if needed not in ordered:
                ordered.append(needed)
    return ordered


def script(best: Iterable[Step], others: Iterable[Step], folder: Path, here: Path) -> str:
    """Return a shell script of the commands: first those that lead to the best row, then the others.

    Args:
        best, others: the steps.
        folder: the folder of the study; the first argument of the script replaces it.
        here: the working directory that relative paths start from.
    """
    steps_to_best = in_order(best)
    lines = [
        "#!/bin/sh",
        "# The commands of this study. sh study.sh FOLDER makes its files again in another folder.",
        "set -eu",
        "DIR=${1:-}",
        f'[ "$DIR" ] || DIR={shlex.quote(str(folder.resolve()))}',
        'mkdir -p -- "$DIR"',
        'DIR=$(CDPATH= cd -- "$DIR" && pwd)',
        'mkdir -p "$DIR/choose" "$DIR/test"',
        f"cd -- {shlex.quote(str(here))}",
        "export HYDRACTL_CONFIG=/dev/null  # every option is given here",
        "",
        "# best.st and its figures on the test data",
    ]
    lines += [_line(step, folder) for step in steps_to_best]

    lines += ["", "# the other rows"]
    for step in in_order(others):
        if step not in steps_to_best:
            lines.append(_line(step, folder))
    lines.append("")
    return "\n".join(lines)


def _line(step: Step, folder: Path) -> str:
    """Return the line of the script for a step; the line skips the command if the last output of the step exists."""
    last_output = str(step.outputs[-1])
    shell_words = [_in_folder(word, folder) for word in step.argv()]
    command = " ".join(shell_words)
    return f"[ -e {_in_folder(last_output, folder)} ] || hydractl {command}"


def _in_folder(word: str, folder: Path) -> str:
    """Return a word quoted for the shell, with ``$DIR`` in place of ``folder`` in a ``PATH`` or ``NAME=PATH``."""
    name, equals, path = word.rpartition("=")
    if not path.startswith(f"{folder}/"):
        return shlex.quote(word)
    quoted_name = ""
    if name:
        quoted_name = shlex.quote(name)
    path_in_folder = path.removeprefix(str(folder))
    quoted_path = shlex.quote(path_in_folder)
    return f'{quoted_name}{equals}"$DIR"{quoted_path}'
