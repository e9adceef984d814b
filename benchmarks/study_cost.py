"""Processor time of a whole study with two versions of the source, in turns: what a change saved.

    python benchmarks/study_cost.py ../before digits.st
    python benchmarks/study_cost.py ../before vit.st --study "--val v.npz --ood-val auto --test t.npz --ood o=o.npz"

BEFORE is a folder with another version of the source (``git worktree add ../before COMMIT``); the other side is the
source that this script is part of, or that of --after. Each round runs the same study with both, in an order drawn by
--seed, each in a process of its own and into a new folder. Its time is that of the processor, user and system, which
other work on the machine disturbs less than the clock. The ratio is the median over rounds of after over before in the
same round. --study are the options of the study, else those of ``make demo``, all default rows; --study-before are
those that the source before takes, where it calls them something else.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
DIGITS = (
    "--train builtin:digits/train --val builtin:digits/val --ood-val builtin:symbols --test builtin:digits/test "
    "--ood letters:near=builtin:letters --ood photos:far=builtin:photos"
)


def seconds() -> float:
    """Processor time of the processes that this one has waited for; its own, which only waits, is next to nothing."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def study(source: Path, model: str, options: str, folder: Path) -> float:
    """Processor seconds of one study with a version of the source."""
    command = [sys.executable, "-m", "hydractl", "study", model, *shlex.split(options), "--no-timed"]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    begun = seconds()
    subprocess.run([*command, "-q", "-o", str(folder)], env=environment, check=True, stdout=subprocess.DEVNULL)
    taken = seconds() - begun
    shutil.rmtree(folder)
    return taken


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("before", type=Path, metavar="BEFORE")
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--after", type=Path, default=HERE)
    parser.add_argument("--study", default=DIGITS)
    parser.add_argument("--study-before", default=None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    dice = random.Random(arguments.seed)
    sides = {"before": arguments.before.resolve(), "after": arguments.after.resolve()}
    options = {"before": arguments.study_before or arguments.study, "after": arguments.study}
    rounds: list[dict[str, float]] = []
    print("| round | before | after | after over before |\n|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        for number in range(1, arguments.rounds + 1):
            order = dice.sample(sorted(sides), len(sides))
            taken = {side: study(sides[side], arguments.model, options[side], Path(folder, side)) for side in order}
            rounds.append({side: taken[side] for side in sides})
            ratio = taken["after"] / taken["before"]
            print(f"| {number} | {taken['before']:.1f} s | {taken['after']:.1f} s | {ratio:.3f} |", flush=True)
            if arguments.output:  # after each round: a benchmark that is stopped keeps what it has
                arguments.output.write_text(json.dumps(document(arguments, rounds), indent=2) + "\n", encoding="utf-8")
    found = document(arguments, rounds)
    low, high = found["range"]
    print(f"\nafter over before: {found['ratio']:.3f} ({low:.3f} to {high:.3f} in {len(rounds)} rounds)")


def document(arguments: argparse.Namespace, rounds: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """What was measured, as JSON."""
    ratios = [one["after"] / one["before"] for one in rounds]
    return {
        "model": Path(arguments.model).name,
        "study": arguments.study,
        "rounds": list(rounds),
        "ratio": statistics.median(ratios),
        "range": [min(ratios), max(ratios)],
    }


if __name__ == "__main__":
    main()
