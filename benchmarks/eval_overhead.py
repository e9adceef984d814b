"""Overhead of ``eval`` and ``predict`` over a bare loop on the same batches: everything between logits and the result.

    python benchmarks/eval_overhead.py [--model MODEL ...] [--samples 128] [--batch-size 32] [--rounds 5]
    python benchmarks/eval_overhead.py --layers -o FILE [--model MODEL ...] [--rounds 5]  # what mahalanobis-layers adds
    python benchmarks/eval_overhead.py --metrics [BEFORE] [--rounds 7]  # no model: the metrics of drawn logits alone

All sides read, preprocess and run the same images in the same batches, in turn, in an order drawn by ``--seed``; one
throws the logits away, one makes the whole row of ``eval.json`` of them, OOD set included, and one the lines of
``predict``. Wall and CPU time are medians of the ratio within a round.

With ``--layers``: CPU time of ``eval`` from the model's name to the rows, with ``mahalanobis`` alone and with
``mahalanobis-layers`` beside it, both fitted to as many training images as it tests; ``-o`` keeps every round.

With ``--metrics``: CPU time a sample of all that ``eval`` computes from the logits of three members and 1,000 classes,
in batches of 256; with BEFORE, a folder with another version of the source (``git worktree add ../before COMMIT``), in
turns with it, each time in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hydractl
from hydractl.data import batches
from hydractl.evaluation.gathering import gather
from hydractl.evaluation.measuring import Measuring
from hydractl.evaluation.options import EvalOptions
from hydractl.evaluation.predicting import predicted_windows
from hydractl.evaluation.predictions.lines import json_line
from hydractl.evaluation.predictions.store import LogitsBatch
from hydractl.evaluation.providers.running import RunningModel
from hydractl.evaluation.rows import open_rows_and_sets
from hydractl.evaluation.sets import EvalSet
from hydractl.expressions.data_sets import DataSpec, OodSet
from hydractl.expressions.models import ModelRef
from hydractl.log import Log
from hydractl.model.runtime import move
from hydractl.model.source import ModelOptions

HERE = Path(__file__).resolve().parents[1]
MODELS = ("timm:vit_small_patch16_224?pretrained=0&num_classes=1000", "timm:vit_tiny_patch16_224?pretrained=0")


def images(path: Path, count: int, seed: int, in_pairs: bool = False) -> str:
    """A data set of noise, labelled by chance or with two images a class."""
    generator = np.random.default_rng(seed)
    pixels = generator.integers(0, 256, (count, 224, 224, 3), dtype=np.uint8)
    labels = generator.integers(0, 1000, count)
    if in_pairs:  # a class of one sample has no spread that a covariance could be fitted to
        labels = np.arange(count) // 2
    np.savez(path, x=pixels, y=labels)
    return str(path)


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def bare(sets: list[EvalSet], model: Any, batch_size: int) -> None:
    """Run the model over all data sets and keep nothing."""
    parameter = next(model.parameters())
    with torch.inference_mode():
        for one in sets:
            for batch in batches(one.dataset, model.preprocess, batch_size):
                model.member_logits(move(batch.inputs, parameter.device, parameter.dtype))


def whole(model: RunningModel, sets: list[EvalSet], options: EvalOptions) -> None:
    """Make the row."""
    release, model.release = model.release, lambda: None  # type: ignore[method-assign]
    Measuring(sets, options, Log()).row(model, None, {})
    model.release = release  # type: ignore[method-assign]


def line_by_line(model: RunningModel, sets: list[EvalSet]) -> None:
    """Write a line for each sample."""
    with open(os.devnull, "wb") as handle:
        for one in sets:
            assert one.dataset is not None
            for window in predicted_windows(model, one.dataset):
                for row in window.rows:
                    handle.write(json_line(row))


def compare_layers(models: list[str], samples: int, batch_size: int, rounds: int, dice: random.Random) -> Any:
    """Print the CPU time of ``eval`` without and with the distances of all layers; return that of every round."""
    sides = {"without": ["mahalanobis"], "with": ["mahalanobis", "mahalanobis-layers"]}
    print("| model | samples | without | with | with / without |\n|---|---:|---:|---:|---:|")
    measured = []
    with tempfile.TemporaryDirectory() as folder:
        train = images(Path(folder, "train.npz"), samples, 0, in_pairs=True)
        test, ood = (images(Path(folder, f"{name}.npz"), samples, seed) for name, seed in (("test", 1), ("ood", 2)))
        for model in models:
            evaluation = partial(
                hydractl.evaluate, model, test=test, ood={"noise": ood}, train=train, batch_size=batch_size
            )
            evaluation(ood_score=sides["with"])  # warms up; whole, as a part may have no class of two samples
            of_rounds = []
            for _ in range(rounds):
                of_round = {}
                for side in dice.sample(sorted(sides), len(sides)):
                    _, of_round[side] = timed(partial(evaluation, ood_score=sides[side]))
                of_rounds.append(of_round)
            ratios = [of_round["with"] / of_round["without"] for of_round in of_rounds]
            taken = [statistics.median(of_round[side] for of_round in of_rounds) for side in sides]
            spread = f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
            print(f"| {model} | 3 x {samples} | {taken[0]:.1f} s | {taken[1]:.1f} s | {spread} |", flush=True)
            measured.append({"model": model, "samples": samples, "batch_size": batch_size, "rounds": of_rounds})
    return measured


MEMBERS, BATCH, CLASSES = 3, 256, 1000
SETS = {"ID": "labelled, and each member alone", "OOD": "not labelled"}


def microseconds_of_metrics() -> dict[str, float]:
    """Return the CPU microseconds a sample of reducing a batch of each kind of set, the median of five calls."""
    generator = np.random.default_rng(0)
    common = generator.normal(size=(1, BATCH, CLASSES))
    differences = generator.normal(size=(MEMBERS, BATCH, CLASSES))
    logits = (2 * common + differences).astype(np.float32)
    labels = generator.integers(0, CLASSES, BATCH)
    ids = [str(index) for index in range(BATCH)]
    taken = {}
    for name in SETS:
        is_id = name == "ID"
        drawn = EvalSet(name, name.lower(), None, ids, labels if is_id else None, name)
        seconds = []
        for _ in range(6):
            start = time.process_time()
            gather(iter([LogitsBatch(range(BATCH), logits, {})]), drawn, "model", alone=is_id)
            seconds.append(time.process_time() - start)
        taken[name] = 1e6 * statistics.median(seconds[1:]) / BATCH  # the first call warms up
    return taken


def compare_metrics(before: Path | None, rounds: int, dice: random.Random) -> None:
    """Print the CPU time a sample of the metrics, by version of the source, and the ratio within a round."""
    sources = {"now": HERE}
    if before is not None:
        sources = {"before": before.resolve(), "now": HERE}
    measured: list[dict[str, dict[str, float]]] = []  # for each round, by version and set
    for _ in range(rounds):
        of_round = {}
        for version in dice.sample(sorted(sources), len(sources)):
            environment = {**os.environ, "PYTHONPATH": str(sources[version]), "OMP_NUM_THREADS": "1"}
            command = [sys.executable, __file__, "--metrics-once"]
            output = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout
            of_round[version] = json.loads(output)
        measured.append(of_round)
    print("| set | version | microseconds a sample | now / before |\n|---|---|---:|---:|")
    for name, words in SETS.items():
        for version in sources:
            times = [of_round[version][name] for of_round in measured]
            taken = f"{statistics.median(times):.0f} ({min(times):.0f} to {max(times):.0f})"
            ratio = ""
            if version == "now" and before is not None:
                ratios = [of_round["now"][name] / of_round["before"][name] for of_round in measured]
                ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            print(f"| {name}: {words} | {version} | {taken} | {ratio} |")


def main() -> None:
    """Print a line for each model, or the times of the metrics alone."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=list(MODELS))
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layers", action="store_true")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--metrics", nargs="*", type=Path, metavar="BEFORE")
    parser.add_argument("--metrics-once", action="store_true", help=argparse.SUPPRESS)  # a process of --metrics
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    dice = random.Random(options.seed)
    if options.metrics_once:
        print(json.dumps(microseconds_of_metrics()))
        return
    if options.metrics is not None:
        compare_metrics(next(iter(options.metrics), None), options.rounds, dice)
        return
    if options.layers:
        measured = compare_layers(options.model, options.samples, options.batch_size, options.rounds, dice)
        if options.output is not None:
            options.output.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
        return
    print("| model | samples | side | wall ratio | CPU ratio |\n|---|---:|---|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        data = images(Path(folder, "id.npz"), options.samples, 1)
        ood = images(Path(folder, "ood.npz"), options.samples, 2)
        for text in options.model:
            evaluation = EvalOptions(
                batch_size=options.batch_size,
                device="auto",
                test=DataSpec.of_option("--test", data),
                ood=[OodSet.of_option("--ood", f"noise:far={ood}")],
            )
            (model,), sets = open_rows_and_sets([ModelRef(text)], ModelOptions(), evaluation, Log())
            assert isinstance(model, RunningModel)
            sides = {
                "bare": partial(bare, sets, model.loaded(), options.batch_size),
                "eval": partial(whole, model, sets, evaluation),
                "predict": partial(line_by_line, model, sets),
            }
            for work in sides.values():
                work()
            ratios: dict[str, list[tuple[float, float]]] = {"eval": [], "predict": []}
            for _ in range(options.rounds):
                found = {side: timed(sides[side]) for side in dice.sample(sorted(sides), len(sides))}
                bare_wall, bare_cpu = found["bare"]
                for side, of_side in ratios.items():
                    wall, cpu = found[side]
                    of_side.append((wall / bare_wall, cpu / bare_cpu))
            for side, of_side in ratios.items():
                wall, cpu = (statistics.median(column) for column in zip(*of_side, strict=True))
                row = f"| {model.name} | 2 x {options.samples} | {side} | {wall:.3f} | {cpu:.3f} |"
                print(row, flush=True)


if __name__ == "__main__":
    main()
