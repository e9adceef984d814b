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
    """

    verb: str
    models: tuple[str, ...]
    options: Mapping[str, Value]
    outputs: tuple[Path, ...]
    needs: tuple[Step, ...] = ()
    output: Path | None = None

    @property
    def done(self) -> bool:
        """Whether its outputs are there; each is written at once and in full."""
        return all(path.exists() for path in self.outputs)

    @property
    def given(self) -> dict[str, Value]:
        """All its options, and its MODEL arguments, by name."""
        return {"model": list(self.models), **self.options, "output": str(self.output or self.outputs[0])}

    def argv(self) -> list[str]:
        """The command as it is typed, without ``hydractl``."""
        words = [self.verb, *self.models]
        for name, value in self.options.items():
            flag = f"--{name.replace('_', '-')}"
            if isinstance(value, bool):
                words += [flag if value else f"--no-{flag[2:]}"]
            else:
                words += [word for text in ([value] if isinstance(value, str) else value) for word in (flag, text)]
        return [*words, "-o", str(self.output or self.outputs[0])]


def in_order(steps: Iterable[Step]) -> list[Step]:
    """The steps and all that they need, each once, behind what it needs."""
    found: list[Step] = []
    for step in steps:
        found += [one for one in (*in_order(step.needs), step) if one not in found]
    return found


def script(best: Iterable[Step], others: Iterable[Step], folder: Path, here: Path) -> str:
    """A shell script of the commands: first those that lead to the best row, then the others.

    Args:
        best, others: the steps.
        folder: of the study; another one is the script's argument.
        here: the working directory that relative paths are of.
    """
    first = in_order(best)
    rest = [step for step in in_order(others) if step not in first]
    return "\n".join(
        [
            "#!/bin/sh",
            "# The commands of this study. sh study.sh FOLDER makes its files again in another folder.",
            "set -eu",
            f'mkdir -p "${{1:-{_quoted(folder.resolve())}}}"',
            f'DIR=$(cd "${{1:-{_quoted(folder.resolve())}}}" && pwd)',
            'mkdir -p "$DIR/choose" "$DIR/test"',
            f"cd {shlex.quote(str(here))}",
            "export HYDRACTL_CONFIG=/dev/null  # every option is given here",
            "",
            "# best.st and its figures on the test data",
            *(_line(step, folder) for step in first),
            "",
            "# the other rows",
            *(_line(step, folder) for step in rest),
            "",
        ]
    )


def _quoted(path: Path) -> str:
    """A path inside double quotes."""
    return "".join(f"\\{character}" if character in '\\"$`' else character for character in str(path))


def _line(step: Step, folder: Path) -> str:
    """A step, skipped where its last output is there."""
    words = " ".join(_in_folder(word, folder) for word in step.argv())
    return f"[ -e {_in_folder(str(step.outputs[-1]), folder)} ] || hydractl {words}"


def _in_folder(word: str, folder: Path) -> str:
    """A word for the shell; a path of the folder, also behind ``NAME=``, is one of ``$DIR``."""
    name, equals, path = word.rpartition("=")
    if not path.startswith(f"{folder}/"):
        return shlex.quote(word)
    rest = path.removeprefix(str(folder))
    return f'{shlex.quote(name) if name else ""}{equals}"$DIR"{shlex.quote(rest)}'
