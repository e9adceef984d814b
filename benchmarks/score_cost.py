"""What an OOD score adds to a forward pass: CPU time to fit it, and per sample, by the code that ``eval`` runs.

Features and logits are random, of the sizes of a ViT-B/16 on ImageNet unless told otherwise; time does not depend on
their values. The forward pass beside them is that of timm's ViT-B/16 with random weights, in float32, on this machine.

    OMP_NUM_THREADS=1 python benchmarks/score_cost.py --train 10000
    OMP_NUM_THREADS=1 python benchmarks/score_cost.py --train 10000 --classes 10 --scores rmd,knn
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

import hydractl
from hydractl.metrics.feature_scores.layers import empty_sums
from hydractl.metrics.feature_scores.scores import FEATURE_SCORES, MemberTraining
from hydractl.metrics.ood_scores import OF_LAYERS, SCORES
from hydractl.metrics.samples import samples_of


def timed(work: Callable[[], object], rounds: int) -> float:
    """Median CPU seconds of a call, the first one left out."""
    times = []
    for _ in range(rounds + 1):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return statistics.median(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = (
        ("width", 768),
        ("classes", 1000),
        ("train", 10_000),
        ("blocks", 12),
        ("words", 70_000),
        ("batch", 64),
        ("rounds", 5),
    )
    for name, default in sizes:
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--scores", default=",".join([*SCORES, *FEATURE_SCORES]), help="which, by commas [all]")
    asked = parser.parse_args()
    rng = np.random.default_rng(0)
    features = rng.normal(size=(asked.train, asked.width))
    weight, bias = rng.normal(size=(asked.classes, asked.width)), np.zeros(asked.classes)
    labels = rng.integers(0, asked.classes, asked.train)
    words = rng.normal(size=(asked.words, asked.width))
    batch = rng.normal(size=(asked.batch, asked.width))
    logits = batch @ weight.T
    # The features, and two vectors of each block but the last, which gives one.
    vectors = [asked.width] * (2 * asked.blocks)
    (layers,) = empty_sums([vectors], asked.classes)
    started = time.process_time()
    if not set(OF_LAYERS).isdisjoint(asked.scores.split(",")):
        for sums in layers:
            sums.add(features, labels)
    summed = time.process_time() - started
    layers_of_batch = np.tile(batch, len(vectors))
    data = MemberTraining(features, labels, np.ones(asked.train), weight, bias, words=words, layers=layers)

    model = hydractl.load("timm:vit_base_patch16_224?pretrained=0", device="cpu")
    images = model.example_inputs(asked.batch)
    with torch.inference_mode():
        forward = timed(lambda: model.member_logits(images), max(1, asked.rounds // 2))
    print(f"{'':12} {'fit, s':>8} {'ms a sample':>12} {'of a forward pass':>18}")
    print(f"{'ViT-B/16':12} {'':>8} {1000 * forward / asked.batch:12.3f} {'100 %':>18}")
    for name in asked.scores.split(","):
        fit = ""
        if name in FEATURE_SCORES:
            start = time.process_time()
            fitted = FEATURE_SCORES[name].fit(data)
            of_layers = name in OF_LAYERS
            fit = f"{time.process_time() - start + summed * of_layers:.2f}"
            given = layers_of_batch if of_layers else batch
            taken = timed(partial(FEATURE_SCORES[name].score, fitted, given, logits), asked.rounds)
        else:
            taken = timed(partial(samples_of, logits[None], scores=[name]), asked.rounds)
        print(f"{name:12} {fit:>8} {1000 * taken / asked.batch:12.3f} {100 * taken / forward:16.1f} %")


if __name__ == "__main__":
    main()
