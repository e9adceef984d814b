"""Whether a circuit search in bfloat16 could choose the candidates for one in float32, on a processor made for it.

    python benchmarks/search_formats.py MODEL --data SPEC --ood SPEC --limit 150 --steps 6 -o FILE.json

Two exact searches, one in each format, remove the same heads, those of float32. In each step, in an order drawn by
--seed, each chooses its head. Printed are the time of the step in bfloat16 over that in float32, whether the head is
the same, and how many candidates of bfloat16 may be the best in float32 as far as its rounding tells: a search in
float32 would have to evaluate those again. Then, of the whole model, the largest difference of logits between the
formats, beside the tolerance that this number of candidates rests on.
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

import torch
from extract_circuit import orders

from hydractl.circuit.counting import LOGIT_TOLERANCE
from hydractl.circuit.evaluator import Evaluator
from hydractl.circuit.samples import SampleSet
from hydractl.circuit.search import GreedySearch
from hydractl.circuit.winners import CandidateHead
from hydractl.data import batches, open_data
from hydractl.model.loading import build_model
from hydractl.model.runtime import move
from hydractl.model.source import open_source

OBJECTIVE = "avg"
FORMATS = ("float32", "bfloat16")


def searches(source: Any, datasets: Sequence[Any], batch_size: int) -> dict[str, GreedySearch]:
    """Return a search in each format, over the samples in one order."""
    models = {dtype: build_model(source, "cpu", dtype) for dtype in FORMATS}
    order = orders(datasets, models["float32"], OBJECTIVE, batch_size, True)
    heads = [(index, head) for index, site in enumerate(source.sites) for head in range(site.heads)]
    found = {}
    for dtype, model in models.items():
        sets = []
        for dataset, of_set in zip(datasets, order, strict=True):
            is_id = dataset is datasets[0]
            sets.append(SampleSet(dataset, of_set, model, batch_size, 0, labelled=is_id))
        evaluator = Evaluator(model, [batch for one in sets for batch in one.batches])
        found[dtype] = GreedySearch(evaluator, heads)
    return found


def step_of(search: GreedySearch, removed: Sequence[CandidateHead]) -> tuple[Any, float]:
    """Return the winner of a step, and the seconds that it took."""
    begun = time.perf_counter()
    search.evaluator.go_to_model_without(removed)
    left = [head for head in search.heads if head not in removed]
    winner = search.choose_winners([OBJECTIVE], len(removed) + 1, left)[OBJECTIVE]
    return winner, time.perf_counter() - begun


@torch.inference_mode()
def largest_difference(source: Any, datasets: Sequence[Any], batch_size: int) -> float:
    """Return the largest difference of a sample's logits between the formats, over its largest logit or 1."""
    models = {dtype: build_model(source, "cpu", dtype) for dtype in FORMATS}
    largest = 0.0
    for dataset in datasets:
        for batch in batches(dataset, models["float32"].preprocess, batch_size):
            logits = []
            for model in models.values():
                inputs = move(batch.inputs, torch.device("cpu"), model.dtype)
                logits.append(model.member_logits(inputs)[0].double())
            exact, rounded = logits
            scale = exact.abs().amax(dim=1).clamp(min=1)
            largest = max(largest, float(((exact - rounded).abs().amax(dim=1) / scale).max()))
    return largest


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
    dice = random.Random(options.seed)
    source = open_source(options.model)
    datasets = [open_data(spec, limit=options.limit) for spec in (options.data, options.ood)]
    sides = searches(source, datasets, options.batch_size)
    for side in sides.values():  # what is made once is no part of a step
        side.evaluator.go_to_model_without([])
        for batch in range(len(side.evaluator.batches)):
            side.evaluator.current_values(batch)

    removed: list[CandidateHead] = []
    steps = []
    print("| step | candidates | over float32 | same head | perhaps best in float32 |\n|---:|---:|---:|---|---:|")
    for number in range(1, options.steps + 1):
        found = {dtype: step_of(sides[dtype], removed) for dtype in dice.sample(FORMATS, 2)}
        (exact, exact_seconds), (rounded, rounded_seconds) = (found[dtype] for dtype in FORMATS)
        step = {
            "candidates": len(sides["float32"].heads) - len(removed),
            "seconds": {"float32": exact_seconds, "bfloat16": rounded_seconds},
            "ratio": rounded_seconds / exact_seconds,
            "same": rounded.head == exact.head,
            "perhaps": 1 + len(rounded.rivals),
        }
        steps.append(step)
        same = "yes" if step["same"] else "no"
        print(f"| {number} | {step['candidates']} | {step['ratio']:.2f} | {same} | {step['perhaps']} |", flush=True)
        removed.append(exact.head)

    ratios = [step["ratio"] for step in steps]
    difference = largest_difference(source, datasets, options.batch_size)
    tolerance = LOGIT_TOLERANCE[torch.bfloat16]
    print(
        f"\nbfloat16 takes {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) of float32's time"
    )
    print(f"logits differ by up to {difference:.3f} of the largest or 1; {tolerance:g} is what doubts rest on")
    if options.output is not None:
        machine = {"machine": platform.machine(), "torch": torch.__version__, "threads": options.threads}
        settings = {"steps": options.steps, "limit": options.limit, "batch_size": options.batch_size}
        document = {"machine": machine, "settings": settings, "steps": steps}
        document |= {"difference": difference, "tolerance": tolerance}
        options.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
