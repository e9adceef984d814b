"""The steps of a study: calls of verbs, each with the files that show that it is finished."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydractl.options.command import Command


@dataclass(frozen=True)
class Step:
    """One call of a verb.

    Attributes:
        command: the call.
        outputs: the files that it writes.
    """

    command: Command
    outputs: tuple[Path, ...]

    @property
    def done(self) -> bool:
        """Whether all outputs exist. A file that exists is complete, because files are put in place when finished."""
        exists = [path.exists() for path in self.outputs]
        return all(exists)


def script(steps: Sequence[Step], folder: Path, here: Path, held: Collection[str] = ()) -> str:
    """Return a shell script of the steps of a plan.

    Args:
        steps: the steps, each behind those that it needs.
        folder: the folder of the study; the first argument of the script replaces it.
        here: the working directory that relative paths start from.
        held: the names of objects in memory, for which there must be files.
    """
    lines = [
        "#!/bin/sh",
        "# The commands of this study. sh study.sh FOLDER makes its files again in another folder.",
        *(f"# {name} was in memory: write it to a file, and put its name in the place of this one." for name in held),
        "set -eu",
        "DIR=${1:-}",
        f'[ "$DIR" ] || DIR={shlex.quote(str(folder.resolve()))}',
        'mkdir -p -- "$DIR"',
        'DIR=$(CDPATH= cd -- "$DIR" && pwd)',
        'mkdir -p "$DIR/choose" "$DIR/test"',
        f"cd -- {shlex.quote(str(here))}",
        "export HYDRACTL_CONFIG=/dev/null  # every option is given here",
        "",
    ]
    lines += [_line(step, folder) for step in steps]
    lines.append("")
    return "\n".join(lines)


def _line(step: Step, folder: Path) -> str:
    """Return the line of the script for a step; the line skips the command if the last output of the step exists."""
    last_output = str(step.outputs[-1])
    shell_words = [_in_folder(word, folder) for word in step.command.words()]
    command = " ".join(shell_words)
    return f"[ -e {_in_folder(last_output, folder)} ] || hydractl {command}"


def _in_folder(word: str, folder: Path) -> str:
    """Return a word quoted for the shell, with ``$DIR`` in place of ``folder`` in a ``PATH`` or ``NAME=PATH``."""
    _, _, path = word.rpartition("=")
    if not path.startswith(f"{folder}/"):
        return shlex.quote(word)
    name = word.removesuffix(path)
    quoted_name = shlex.quote(name) if name else ""
    path_in_folder = path.removeprefix(str(folder))
    return f'{quoted_name}"$DIR"{shlex.quote(path_in_folder)}'
