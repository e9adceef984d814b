"""Run the commands that a script of this folder prints with ``DRY=1``, all in one process: what ``SMALL=1`` does.

    SMALL=1 DRY=1 sh examples/paper/table6.sh > commands
    python examples/paper/play.py commands --data runs/paper-small/data

Starting Python and its libraries takes longer than anything that these models do. A command whose output, the comment
behind it, is there is skipped, but for tables, which show what is there by now.
"""

from __future__ import annotations

import argparse
import gc
import runpy
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

from standins import make_images, make_pairs_and_clip, make_texts_and_bert

from hydractl.cli.app import main as run_command


def steps(text: str) -> Iterable[tuple[list[str], str]]:
    """Yield the words of each command, and the file that it makes."""
    for line in text.splitlines():
        command, _, output = line.rpartition("  # ")
        yield shlex.split(command), output


def make_data(folder: Path, text: str) -> None:
    """Make the models and data sets that commands name and that are not there."""
    named_in_commands = {
        "imagenet": ("imagenet", "cifar100", "openood"),
        "bert": ("bert",),
        "clip": ("clip",),
    }
    makers = {"imagenet": make_images, "bert": make_texts_and_bert, "clip": make_pairs_and_clip}
    for made, names in named_in_commands.items():
        is_named = any(f"{folder}/{name}" in text for name in names)
        is_made = folder / f"{made}.made"
        if is_named and not is_made.exists():
            makers[made](folder)
            is_made.touch()


def run_step(words: list[str]) -> None:
    """Run a ``hydractl`` command, or a script of Python, here."""
    if words[0] == "hydractl":
        code = run_command([*words[1:], "-q"])
        if code:
            sys.exit(code)
        return
    before = sys.argv, list(sys.path)
    sys.argv = words[1:]
    sys.path.insert(0, str(Path(words[1]).parent))
    try:
        runpy.run_path(words[1], run_name="__main__")
    finally:
        sys.argv, sys.path[:] = before


def play(text: str, data: Path) -> None:
    """Run all commands whose outputs are not there.

    Args:
        text: a command a line, its output behind it.
        data: the folder of what stands in for data sets and checkpoints.
    """
    make_data(data, text)
    for words, output in steps(text):
        if Path(output).exists() and not output.endswith(".md"):
            continue
        Path(output).parent.mkdir(parents=True, exist_ok=True)
        print(f"$ {shlex.join(words)}", flush=True)
        run_step(words)
        gc.freeze()  # the libraries, which are imported by now: fusing collects garbage, and they are most it sees


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commands", type=Path)
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="where the stand-ins go")
    asked = parser.parse_args()
    play(asked.commands.read_text(encoding="utf-8"), asked.data)
