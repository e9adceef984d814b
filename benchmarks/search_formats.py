"""Whether a circuit search could choose in bfloat16 whom to evaluate in float32, on a processor made for bfloat16.

    python benchmarks/search_formats.py MODEL --data SPEC --ood SPEC --limit 150 --steps 6 -o FILE.json

First, of the whole model, the largest difference of a logit of a sample between the formats. Each logit of a candidate
may move as far, so two of them twice as far apart. Then in each step, in an order drawn by --seed, a search in float32
chooses among all candidates, and one in bfloat16 does; those that may be the best in float32, as far as such moves go,
are evaluated again in float32. Printed are how many these are, the time in bfloat16 over that in float32, that of both
parts together, and whether bfloat16 by itself, and both parts, find the head of float32. All remove the heads of
float32.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from extract_circuit import orders

from hydractl.circuit.counting import LOGIT_TOLERANCE
from hydractl.circuit.evaluator import Evaluator
from hydractl.circuit.samples import SampleSet
from hydractl.circuit.search import GreedySearch
from hydractl.circuit.winners import CandidateHead, Trial
from hydractl.data import batches, open_data
from hydractl.model.loading import build_model
from hydractl.model.runtime import HydraModel, move
from hydractl.model.source import open_source

OBJECTIVE = "avg"
EXACT, SCREEN, CONFIRM = "float32", "bfloat16", "float32 again"
TWO_LOGITS = 2
"""Two logits may move apart by twice as much as one of them moves."""


@torch.inference_mode()
def largest_difference(models: Sequence[HydraModel], datasets: Sequence[Any], batch_size: int) -> float:
    """Return the largest difference of a sample's logits between two models, over its largest logit or 1."""
    largest = 0.0
    for dataset in datasets:
        for batch in batches(dataset, models[0].preprocess, batch_size):
            logits = []
            for model in models:
                inputs = move(batch.inputs, torch.device("cpu"), model.dtype)
                logits.append(model.member_logits(inputs)[0].double())
            exact, rounded = logits
            scale = exact.abs().amax(dim=1).clamp(min=1)
            differences = (exact - rounded).abs().amax(dim=1) / scale
            largest = max(largest, float(differences.max()))
    return largest


class Side:
    """A search with states of its own.

    Args:
        model: the model, in the format of the search.
        datasets: ID samples and OOD samples.
        order: of the samples of each.
        batch_size: of all.
    """

    def __init__(
        self, model: HydraModel, datasets: Sequence[Any], order: Sequence[Sequence[int]], batch_size: int
    ) -> None:
        sets = []
        for dataset, of_set in zip(datasets, order, strict=True):
            is_id = dataset is datasets[0]
            sets.append(SampleSet(dataset, of_set, model, batch_size, 0, labelled=is_id))
        evaluator = Evaluator(model, [batch for one in sets for batch in one.batches])
        heads = [(index, head) for index, site in enumerate(model.sites) for head in range(site.heads)]
        self.search = GreedySearch(evaluator, heads)
        evaluator.go_to_model_without([])  # what is made once is no part of a step
        for batch in range(len(evaluator.batches)):
            evaluator.current_values(batch)

    def step(self, removed: Sequence[CandidateHead], among: Sequence[CandidateHead]) -> tuple[Trial, float]:
        """Return the best of some candidates, and the seconds that it took."""
        begun = time.perf_counter()
        self.search.evaluator.go_to_model_without(removed)
        winner = self.search.choose_winners([OBJECTIVE], len(removed) + 1, list(among))[OBJECTIVE]
        return winner, time.perf_counter() - begun


def main() -> None:
    """Print a line for each step, and write everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--data", required=True, metavar="SPEC", help="in-distribution samples")
    parser.add_argument("--ood", required=True, metavar="SPEC", help="out-of-distribution samples")
    parser.add_argument("--limit", type=int, metavar="N", help="use only the first N samples of each set")
    parser.add_argument("--steps", type=int, default=6, metavar="N", help="heads to remove [6]")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of torch [1]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    source = open_source(options.model)
    datasets = [open_data(spec, limit=options.limit) for spec in (options.data, options.ood)]
    exact, rounded = (build_model(source, "cpu", dtype) for dtype in ("float32", "bfloat16"))

    difference = largest_difference([exact, rounded], datasets, options.batch_size)
    tolerance = TWO_LOGITS * difference
    print(f"a logit moves by up to {difference:.3f} of the largest or 1, two of them apart by {tolerance:.3f}\n")
    with mock.patch.dict(LOGIT_TOLERANCE, {torch.bfloat16: tolerance}):
        document = compare(options, exact, rounded, datasets)
    document = {**document, "difference": difference, "tolerance": tolerance}
    if options.output is not None:
        options.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def compare(
    options: argparse.Namespace, exact: HydraModel, rounded: HydraModel, datasets: Sequence[Any]
) -> dict[str, Any]:
    """Print a line for each step, and return what was measured."""
    dice = random.Random(options.seed)
    order = orders(datasets, exact, OBJECTIVE, options.batch_size, True)
    of_side = {EXACT: exact, SCREEN: rounded, CONFIRM: exact}
    sides = {name: Side(model, datasets, order, options.batch_size) for name, model in of_side.items()}
    removed: list[CandidateHead] = []
    steps = []
    print("| step | candidates | evaluated again | bfloat16 | with float32 again | bfloat16's head | of both |")
    print("|---:|---:|---:|---:|---:|---|---|", flush=True)
    for number in range(1, options.steps + 1):
        left = [head for head in sides[EXACT].search.heads if head not in removed]
        seconds: dict[str, float] = {}
        for part in dice.sample((EXACT, SCREEN), 2):
            if part == EXACT:
                best, seconds[EXACT] = sides[EXACT].step(removed, left)
                continue
            screened, seconds[SCREEN] = sides[SCREEN].step(removed, left)
            perhaps = sorted([screened.head, *(rival.head for rival in screened.rivals)])
            confirmed, seconds[CONFIRM] = sides[CONFIRM].step(removed, perhaps)
        step = {
            "candidates": len(left),
            "again": len(perhaps),
            "seconds": seconds,
            "screen": seconds[SCREEN] / seconds[EXACT],
            "both": (seconds[SCREEN] + seconds[CONFIRM]) / seconds[EXACT],
            "screen_same": screened.head == best.head,
            "same": confirmed.head == best.head,
        }
        steps.append(step)
        ratios = f"{step['screen']:.2f} | {step['both']:.2f}"
        found = " | ".join("same" if step[part] else "another" for part in ("screen_same", "same"))
        print(f"| {number} | {len(left)} | {len(perhaps)} | {ratios} | {found} |", flush=True)
        removed.append(best.head)

    both = [step["both"] for step in steps]
    print(f"\nboth parts take {statistics.median(both):.2f} ({min(both):.2f} to {max(both):.2f}) of float32's time")
    machine = {"machine": platform.machine(), "torch": torch.__version__, "threads": options.threads}
    settings = {"steps": options.steps, "limit": options.limit, "batch_size": options.batch_size}
    return {"machine": machine, "settings": settings, "steps": steps}


if __name__ == "__main__":
    main()
