"""What a verb costs before it computes: processor time of verbs on a tiny model, over that of ``import torch``.

    python benchmarks/start_up.py                                    # this source
    python benchmarks/start_up.py ../before --rounds 7 -o FILE.json  # beside another version of the source, in turns

Each round runs ``import torch`` and every verb of every version once, each in a process of its own with one thread, in
an order drawn by --seed. Ratios are medians of the ratios within a round, with the smallest and the largest. BEFORE is
a folder with another version of the source (``git worktree add ../before COMMIT``).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parents[1]
MODEL = "timm:vit_tiny_patch16_224?pretrained=0&img_size=16&patch_size=8&embed_dim=16&depth=2&num_heads=2&num_classes=3"
IMPORT = "import torch"
VERBS = {
    "score": ["score", MODEL, "--method", "taylor", "--data", "data.npz", "-o", "scores.json"],
    "prune": ["prune", MODEL, "--method", "taylor", "--keep", "1", "--data", "data.npz", "-o", "pruned.st"],
    "fuse": ["fuse", "a.st", "b.st", "-o", "fused.st"],
    "eval": ["eval", "a.st", "--test", "test.npz", "-o", "eval.json"],
    "predict": ["predict", "a.st", "test.npz", "-o", "predictions.jsonl"],
}


def prepare(folder: Path) -> None:
    """Write the data, and two models that differ."""
    generator = np.random.default_rng(0)
    for name in ("data", "test"):
        images = generator.integers(0, 256, (8, 16, 16, 3), dtype=np.uint8)
        np.savez(folder / f"{name}.npz", x=images, y=np.arange(8) % 3)
    for seed, name in enumerate(("a.st", "b.st")):
        words = ["prune", MODEL, "--method", "random", "--keep", "1", "--seed", str(seed), "-o", name]
        cpu_seconds(HERE, words, folder)


def cpu_seconds(source: Path, words: list[str], folder: Path) -> float:
    """Return the processor time of a process that runs a verb of a version of the source; without words, an import."""
    command = [sys.executable, "-c", IMPORT]
    if words:
        command = [sys.executable, "-m", "hydractl", *words, "--force", "--quiet"]
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # as where a package is installed
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"{shlex.join(command)} failed")
    return usage.ru_utime + usage.ru_stime


def measure(sources: dict[str, Path], verbs: list[str], rounds: int, seed: int) -> list[dict[str, float]]:
    """Return the processor seconds of every row, by name, for each round."""
    rows: dict[str, tuple[Path, list[str]]] = {IMPORT: (HERE, [])}
    for version, source in sources.items():
        for verb in verbs:
            rows[f"{verb}, {version}"] = (source, VERBS[verb])
    order = random.Random(seed)
    seconds: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        for _ in range(rounds):
            names = list(rows)
            order.shuffle(names)
            of_round = {}
            for row in names:
                source, words = rows[row]
                of_round[row] = cpu_seconds(source, words, folder)
            seconds.append(of_round)
    return seconds


def ratios(seconds: list[dict[str, float]], row: str) -> dict[str, float]:
    """Return a row's time over that of the import of the same round: median, smallest and largest."""
    of_rounds = [of_round[row] / of_round[IMPORT] for of_round in seconds]
    return {"median": statistics.median(of_rounds), "smallest": min(of_rounds), "largest": max(of_rounds)}


def main() -> None:
    """Measure, print a table, and write what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", nargs="?", type=Path)
    parser.add_argument("--verbs", default=",".join(VERBS), help="some of them, with commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", dest="output", type=Path)
    options = parser.parse_args()
    sources = {"now": HERE}
    if options.before is not None:
        sources = {"before": options.before.resolve(), "now": HERE}
    seconds = measure(sources, options.verbs.split(","), options.rounds, options.seed)
    table = {row: ratios(seconds, row) for row in sorted(seconds[0]) if row != IMPORT}
    print(f"processor time over that of {IMPORT}, median of {options.rounds} rounds (smallest to largest)")
    for row, figures in table.items():
        print(f"{row:18}{figures['median']:6.2f} ({figures['smallest']:.2f} to {figures['largest']:.2f})")
    if options.output is not None:
        document = {"seconds": seconds, "ratios": table}
        options.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
