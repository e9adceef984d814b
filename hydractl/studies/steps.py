"""The steps of a study: literal commands, each with the files that show that it is finished."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

Value = str | bool | list[str]
"""What an option is given: text as on the command line, a switch, or a text for each time the flag is repeated."""


@dataclass(frozen=True)
class Step:
    """One command.

    Attributes:
        verb: the verb.
        models: its MODEL arguments.
        options: what its options are given, by name (``ood_score``), without ``output``.
        outputs: the files it leaves; ``-o`` names ``output``, else the first of them.
        needs: the steps whose outputs it reads.
        output: the value of ``-o`` where it is no file of its own.
        has_output: whether it has ``-o``; else its files are named by other options.
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
        """Whether its outputs are there; each is written at once and in full."""
        return all(path.exists() for path in self.outputs)

    @property
    def given(self) -> dict[str, Value]:
        """All its options, and its MODEL arguments, by name."""
        return {"model": list(self.models), **self.options, **self._output_option}

    @property
    def _output_option(self) -> dict[str, Value]:
        """``output`` by its name; nothing for a command without it."""
        if not self.has_output:
            return {}
        return {"output": str(self.output or self.outputs[0])}

    def argv(self) -> list[str]:
        """Return the command as it is typed, without ``hydractl``."""
        words = [self.verb, *self.models]
        for name, value in self.options.items():
            words += _flag_words(name.replace("_", "-"), value)
        for value in self._output_option.values():
            words += ["-o", str(value)]
        return words


def _flag_words(name: str, value: Value) -> list[str]:
    """Return a flag as it is typed, with its value."""
    if value is True:
        return [f"--{name}"]
    if value is False:
        return [f"--no-{name}"]
    if isinstance(value, str):
        return [f"--{name}", value]
    words = []
    for text in value:
        words += [f"--{name}", text]
    return words


def in_order(steps: Iterable[Step]) -> list[Step]:
    """Return the steps and all that they need, each once, behind what it needs."""
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
        folder: of the study; another one is the script's argument.
        here: the working directory that relative paths are of.
    """
    steps_to_best = in_order(best)
    argument = f'"${{1:-{_quoted(folder.resolve())}}}"'
    lines = [
        "#!/bin/sh",
        "# The commands of this study. sh study.sh FOLDER makes its files again in another folder.",
        "set -eu",
        f"mkdir -p {argument}",
        f"DIR=$(cd {argument} && pwd)",
        'mkdir -p "$DIR/choose" "$DIR/test"',
        f"cd {shlex.quote(str(here))}",
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


def _quoted(path: Path) -> str:
    """Return a path as it stands inside double quotes."""
    quoted = ""
    for character in str(path):
        if character in '\\"$`':
            quoted += "\\"
        quoted += character
    return quoted


def _line(step: Step, folder: Path) -> str:
    """Return the line of a step, which is skipped where its last output is there."""
    last_output = _in_folder(str(step.outputs[-1]), folder)
    words = " ".join(_in_folder(word, folder) for word in step.argv())
    return f"[ -e {last_output} ] || hydractl {words}"


def _in_folder(word: str, folder: Path) -> str:
    """Return a word for the shell; a path of the folder, also behind ``NAME=``, is one of ``$DIR``."""
    name, equals, path = word.rpartition("=")
    if not path.startswith(f"{folder}/"):
        return shlex.quote(word)
    quoted_name = shlex.quote(name) if name else ""
    rest = path.removeprefix(str(folder))
    return f'{quoted_name}{equals}"$DIR"{shlex.quote(rest)}'
