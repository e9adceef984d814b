"""How far does a reader of one command walk? Which files a command enters, in order, and how often it climbs back.

    python benchmarks/walks.py [-o walks.json] [--show]

Runs ``prune``, ``fuse``, ``eval`` and ``study`` on a model of random weights and made data, and follows the calls of
the package's functions, from the verb's own first one on. Printed are the number of different files, and of steps into
a file that was entered before and lies in a room above the one that is left (rooms in the order of
``tests/test_layers.py``): within the first 400 steps from one file into another, and from the start to the first time
that an attention runs. What runs while a module is imported is no step, nor is a generator that goes on: it was entered
when it was made. The second figure is of the same piece of work however long the way to it is; within 400 steps
a shorter way gets further, into more files. Both are figures of the code, not of the machine; they are for comparing
two versions of it.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import hydractl  # noqa: E402
from hydractl.cli import app  # noqa: E402
from tests.test_layers import ROOMS  # noqa: E402

PACKAGE = f"{Path(hydractl.__file__).parent}/"
MODEL = "timm:vit_tiny_patch16_224?pretrained=0&img_size=16&patch_size=8&embed_dim=16&depth=2&num_heads=2&num_classes=3"
STEPS = 400
FORWARD = ("model/attention.py", "forward")
"""The file and the function that run when a model does."""
COMMANDS = {
    "prune": f"prune {MODEL} --method taylor --keep 1 --data data.npz -o pruned.st",
    "fuse": "fuse pruned.st pruned.st -o fused.st",
    "eval": "eval pruned.st --test test.npz --ood noise=ood.npz --ood-score msp,energy -o eval.json",
    "study": f"study {MODEL} --train data.npz --val val.npz --ood-val made=auto --test test.npz "
    "--ood noise=ood.npz --rows single,taylor --no-timed -o study",
}


class Walk:
    """The files that calls enter, one after another, from the first function of a verb to the first forward pass.

    Attributes:
        files: those entered, in order.
        to_forward: how many of them come before the first forward pass, with the one that it is in.
    """

    def __init__(self, verb: str) -> None:
        self.files: list[str] = []
        self._start = f"verbs/{verb}.py"
        self._has_run = False
        # Kept, so that no later frame gets the place of an earlier one in memory.
        self._generators: dict[int, FrameType] = {}
        self.to_forward = 0

    def follow(self, frame: FrameType, event: str, argument: Any) -> None:
        """Note a call of a function of the package; a module or a class that is defined is no call."""
        is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
        if event != "call" or not is_function or (self._has_run and len(self.files) >= STEPS):
            return
        path = frame.f_code.co_filename
        if not path.startswith(PACKAGE):
            return
        file = path.removeprefix(PACKAGE)
        if not self.files and file != self._start:
            return
        if self._goes_on(frame) or is_importing(frame):
            return
        if not self.files or self.files[-1] != file:
            self.files.append(file)
        if (file, frame.f_code.co_name) == FORWARD and not self._has_run:
            self._has_run = True
            self.to_forward = len(self.files)

    def _goes_on(self, frame: FrameType) -> bool:
        """Whether a generator was entered before."""
        if not frame.f_code.co_flags & inspect.CO_GENERATOR:
            return False
        if id(frame) in self._generators:
            return True
        self._generators[id(frame)] = frame
        return False


def is_importing(frame: FrameType) -> bool:
    """Whether a function was called because a module is imported."""
    caller = frame.f_back
    while caller is not None:
        if caller.f_code.co_filename.startswith("<frozen importlib"):
            return True
        caller = caller.f_back
    return False


def climbs(files: Sequence[str]) -> int:
    """Return how many steps go back up, into a file that was entered before."""
    count = 0
    entered: set[str] = set()
    for before, file in pairwise(files):
        entered.add(before)
        if file in entered and floor(file) < floor(before):
            count += 1
    return count


@dataclass(frozen=True)
class Figures:
    """The figures of a piece of a walk: the steps, the files that differ, and the climbs back."""

    steps: int
    files: int
    climbs: int

    def __str__(self) -> str:
        return f"{self.files} files, {self.climbs} climbs back in {self.steps} steps"


def figures_of(files: Sequence[str]) -> Figures:
    """Count the steps of a piece of a walk."""
    return Figures(len(files), len(set(files)), climbs(files))


def floor(file: str) -> int:
    """Return the place of a file's room, 0 for the uppermost."""
    return ROOMS.index(file.partition("/")[0].removesuffix(".py"))


def walk(verb: str, run: Callable[[], Any]) -> Walk:
    """Run something and follow its calls."""
    steps = Walk(verb)
    sys.setprofile(steps.follow)
    try:
        run()
    except SystemExit as end:
        if end.code:
            raise
    finally:
        sys.setprofile(None)
    return steps


def make_data() -> None:
    """Write small data sets of noise into the folder."""
    random = np.random.default_rng(0)
    for name, count in (("data", 48), ("val", 48), ("test", 24), ("ood", 24)):
        pixels = random.integers(0, 256, (count, 16, 16, 3), dtype=np.uint8)
        np.savez(f"{name}.npz", x=pixels, y=np.arange(count) % 3)


def main() -> None:
    """Run the commands in a folder of their own and print their walks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="a JSON file with the figures and the files in order")
    parser.add_argument("--show", action="store_true", help="print the files of each walk in order")
    arguments = parser.parse_args()
    output = None if arguments.output is None else arguments.output.resolve()
    walks: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        make_data()
        for verb, command in COMMANDS.items():
            words = [*shlex.split(command), "-q", "--device", "cpu"]
            steps = walk(verb, lambda words=words: app.main(words))  # type: ignore[misc]
            first_steps = figures_of(steps.files[:STEPS])
            to_forward = figures_of(steps.files[: steps.to_forward])
            walks[verb] = {"first": asdict(first_steps), "to_forward": asdict(to_forward), "walk": steps.files}
            print(f"{verb}: {first_steps}; {to_forward} to the first forward pass")
            if arguments.show:
                print("  " + " > ".join(steps.files))
    if output is not None:
        output.write_text(json.dumps(walks, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
