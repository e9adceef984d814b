"""What each ensemble costs to make and to run, over one training of the model and over the model itself.

    python benchmarks/ensemble_cost.py --rounds 3 -o FILE.json

Every way of docs/ensembles.md makes its model from the same random weights with the same training data, epochs and
batches, by hydractl's own commands in one process, in an order drawn anew each round; the time of a way is that of all
its commands over that of the single training in the same round. Then ``hydractl bench`` runs what was made. The model
is a small ViT on the digits of scikit-learn, large enough that most of the time goes into its mult-adds; quality plays
no part.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydractl.cli.app import main as hydractl

MODEL = (
    "timm:vit_tiny_patch16_224?pretrained=0&img_size=64&patch_size=8&embed_dim=96&depth=6&num_heads=3&num_classes=10"
)
SAMPLES = "builtin:digits/train?take=512"
TRAIN = ["--train", SAMPLES, "--batch-size", "64"]
PRUNE = ["--data", SAMPLES, "--batch-size", "64"]
CIRCUITS = [*("--val", "builtin:digits/val", "--ood-val", "builtin:symbols"), *("--limit", "100", "--budget", "6")]
NAMES = ("0", "1", "2")

Command = Sequence[str]


def trained(name: str, *options: str, start: str = "base.st") -> Command:
    """The command of a training."""
    return ["finetune", start, *TRAIN, "--epochs", "1", *options, "-o", f"{name}.st"]


def seeded(name: str, *options: str) -> list[Command]:
    """The commands of three trainings, of which ``--ensemble deep:3`` would start each in a process of its own."""
    return [trained(f"{name}.{m}", *options, "--seed", m) for m in NAMES]


def fused(name: str, parts: Sequence[str], *options: str) -> Command:
    """The command that fuses its members."""
    return ["fuse", *parts, *options, "-o", f"{name}.st"]


def ways() -> dict[str, list[Command]]:
    """The commands of every way, by the name of its row and of the file it ends with."""
    counted = {way: [f"{way}.{m}.st" for m in (1, 2, 3)] for way in ("packed", "mimo", "heads")}
    seeds = {way: [f"{way}.{m}.st" for m in NAMES] for way in ("deep", "lora", "batch-ensemble")}
    none = ["--merge", "none"]
    pruned = {way: [f"{way}.{m}.tuned.st" for m in NAMES] for way in ("taylor", "circuits")}
    return {
        "single": [trained("single")],
        "deep": [*seeded("deep", "--init", "random"), fused("deep", seeds["deep"], *none)],
        "lora": [*seeded("lora", "--ensemble", "lora:4,8"), fused("lora", seeds["lora"])],
        "batch-ensemble": [
            *seeded("batch-ensemble", "--ensemble", "batch-ensemble:0.1"),
            fused("batch-ensemble", seeds["batch-ensemble"], *none),
        ],
        "packed": [
            trained("packed", "--init", "random", "--ensemble", "packed:3,2"),
            fused("packed", counted["packed"], *none),
        ],
        "mimo": [trained("mimo", "--ensemble", "mimo:3"), fused("mimo", counted["mimo"])],
        "heads": [trained("heads", "--ensemble", "classifiers:3"), fused("heads", counted["heads"])],
        "laplace": [["finetune", "base.st", *TRAIN, "--ensemble", "laplace", "-o", "laplace.st"]],
        "oba": [
            [
                *("prune", "base.st", "--weights", "0.9", "--method", "oba", "--weight-steps", "1"),
                *(*PRUNE, "--samples", "128", "-o", "oba.0.st"),
            ],
            trained("oba", start="oba.0.st"),
        ],
        "taylor, pruned": [
            *(
                [
                    "prune",
                    "base.st",
                    "--method",
                    "taylor",
                    *PRUNE,
                    "--scope",
                    "global",
                    "--remove",
                    "6",
                    "--seed",
                    m,
                    "-o",
                    f"taylor.{m}.st",
                ]
                for m in NAMES
            ),
            fused("taylor, pruned", [f"taylor.{m}.st" for m in NAMES]),
        ],
        "taylor, fine-tuned": [
            *(trained(f"taylor.{m}.tuned", start=f"taylor.{m}.st") for m in NAMES),
            fused("taylor, fine-tuned", pruned["taylor"]),
        ],
        "circuits, pruned": [
            ["extract-circuit", "base.st", *CIRCUITS, "--objective", "acc,ood,avg", "-o", "circuit.json"],
            *(
                ["prune", "base.st", "--circuit", f"circuit.{one}.json", "-o", f"circuits.{m}.st"]
                for m, one in zip(NAMES, ("acc", "ood", "avg"), strict=True)
            ),
            fused("circuits, pruned", [f"circuits.{m}.st" for m in NAMES]),
        ],
        "circuits, fine-tuned": [
            *(trained(f"circuits.{m}.tuned", start=f"circuits.{m}.st") for m in NAMES),
            fused("circuits, fine-tuned", pruned["circuits"]),
        ],
    }


def run(command: Command) -> None:
    """One command in this process; it has to succeed."""
    code = hydractl([*command, "--force", "-q", "--device", "cpu"])
    if code:
        sys.exit(f"exit {code}: hydractl {' '.join(command)}")


def made(methods: Sequence[str], rounds: int, seed: int) -> dict[str, list[float]]:
    """Seconds of every way in every round; one round before them is not counted.

    What is fine-tuned was pruned in the same round, and costs that too.
    """
    taken: dict[str, list[float]] = {name: [] for name in ways() if method_of(name) in methods}
    order = random.Random(seed)
    groups = [[name for name in taken if method_of(name) == method] for method in methods]
    for number in range(rounds + 1):
        order.shuffle(groups)
        for names in groups:
            before = 0.0
            for name in names:
                start = time.perf_counter()
                for command in ways()[name]:
                    run(command)
                before += time.perf_counter() - start
                if number:
                    taken[name].append(before)
                print(f"round {number}: {name} {before:.1f} s", file=sys.stderr, flush=True)
    return taken


def method_of(name: str) -> str:
    """Return the method of a row, which may be one of two: pruned, and fine-tuned."""
    return name.partition(",")[0]


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    methods = list(dict.fromkeys(map(method_of, ways())))
    parser.add_argument("--ways", default=",".join(methods), help="some of them, with commas; single is always one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-size", default="1,32", help="of the models that are run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("runs/ensemble-cost"))
    parser.add_argument("-o", "--output", type=Path, default=Path("ensemble-cost.json"))
    asked = parser.parse_args()
    output = asked.output.resolve()
    asked.folder.mkdir(parents=True, exist_ok=True)
    os.chdir(asked.folder)
    run(["finetune", MODEL, *TRAIN, "--steps", "1", "-o", "base.st"])  # which gives it the names of the classes
    chosen = [method for method in methods if method in ("single", *asked.ways.split(","))]
    taken = made(chosen, asked.rounds, asked.seed)
    models = [f"{name.replace(', ', '-')}={name}.st" for name in taken]
    measure = ["--batch-size", asked.batch_size, "--rounds", str(2 * asked.rounds + 5)]
    run(["bench", *models, *measure, "-o", "bench.json"])
    bench = json.loads(Path("bench.json").read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = []
    for name, seconds in taken.items():
        ratios = [one / single for one, single in zip(seconds, taken["single"], strict=True)]
        cost = {"seconds": seconds, "ratio": statistics.median(ratios), "range": [min(ratios), max(ratios)]}
        rows.append({"name": name, "make": cost})
    document = {"settings": {"rounds": asked.rounds, "seed": asked.seed}, "rows": rows, "bench": bench}
    output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
