"""The steps of a study: calls of verbs, each with the files that show that it is finished."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hydractl.options.command import Command


@dataclass(frozen=True)
class Step(Command):
    """One call of a verb, with the files that it writes.

    Attributes:
        outputs: these files.
    """

    outputs: tuple[Path, ...]

    @property
    def done(self) -> bool:
        """Whether all outputs exist. A file that exists is complete, because files are put in place when finished."""
        exists = [path.exists() for path in self.outputs]
        return all(exists)


def script(steps: Sequence[Step], folder: Path, here: Path, held: Sequence[str] = ()) -> str:
    """Return a shell script of the steps of a plan, which skips those whose files are there.

    Args:
        steps: the steps, each behind those that it needs.
        folder: the folder of the study.
        here: the working directory that relative paths start from.
        held: the names of objects in memory, for which there must be files.
    """
    folders = [shlex.quote(str(folder / purpose)) for purpose in ("choose", "test")]
    lines = [
        "#!/bin/sh",
        "# The commands of this study: those run whose files are not there.",
        *(f"# {name} was in memory: write it to a file, and put its name in the place of this one." for name in held),
        "set -eu",
        f"cd -- {shlex.quote(str(here))}",
        f"mkdir -p -- {' '.join(folders)}",
        "export HYDRACTL_CONFIG=/dev/null  # every option is given here",
        "",
    ]
    for step in steps:
        last_output = shlex.quote(str(step.outputs[-1]))
        lines.append(f"[ -e {last_output} ] || hydractl {shlex.join(step.words())}")
    return "\n".join([*lines, ""])
