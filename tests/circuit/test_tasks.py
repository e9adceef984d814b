"""Several ID and OOD sets in one search: the mean over them, against Algorithm 1 written naively."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hydractl.circuit.evaluator import Evaluator
from hydractl.circuit.search import GreedySearch
from tests.circuit import naive
from tests.circuit.test_search import HEADS, model_of, names, samples
from tests.pico import stock
from tests.pico_clip import pico_clip, publish_clip
from tests.running import quiet as run
from tests.running import read_json

DRAW = 4


PATHS = [f"blocks.{block}.attn" for block in range(3)]


def naive_removals(objective: str, budget: int, tasks: Sequence[naive.Data]) -> list[naive.Head]:
    """Return what Algorithm 1 removes by the mean over tasks."""

    def mean_score(model: Any) -> Fraction:
        scores = [Fraction(naive.score(model, objective, task)) for task in tasks]
        return sum(scores, Fraction(0)) / len(scores)

    steps = naive.ranking(stock("class-token"), mean_score, budget, PATHS)
    return [(path, head) for path, head, _ in steps]


def test_one_id_set_against_two_ood_sets_runs_it_once() -> None:
    first = naive.data(inside=11, outside=7, draw=1)
    second = naive.data(inside=6, outside=5, draw=DRAW)
    tasks = [first, naive.Data(first.inside, first.labels, second.outside)]
    batches = [replace(batch, tasks=(0, 1)) for batch in samples(first) if batch.labels is not None]
    for number, task in enumerate(tasks):
        batches += [replace(batch, tasks=(number,)) for batch in samples(task) if batch.labels is None]
    model = model_of(stock("class-token"), "class-token")
    expected = naive_removals("avg", 3, tasks)
    for bounds in (True, False):
        evaluator = Evaluator(model, batches, tasks=2)
        ranking = GreedySearch(evaluator, HEADS, bounds=bounds).run(["avg"], 3)["avg"]
        evaluator.close()
        assert names(model, ranking) == expected
        assert sum(batch.size for batch in evaluator.batches) == 11 + 7 + 5
    scores = [Fraction(naive.score(stock("class-token"), "avg", task)) for task in tasks]
    assert ranking.base.score("avg") == pytest.approx(float(sum(scores) / 2), abs=1e-12)


def test_each_id_set_of_a_zero_shot_model_has_classes_of_its_own(here: Path) -> None:
    (here / "model").mkdir()
    publish_clip(pico_clip(), "clip", here / "model")
    draw = np.random.default_rng(0)
    for name, classes in (("a", ["cat", "dog", "owl"]), ("b", ["car", "ship", "cat", "tree"])):
        id_pixels = draw.integers(0, 256, (9, 16, 16, 3), dtype=np.uint8)
        ood_pixels = draw.integers(0, 99, (6, 16, 16, 3), dtype=np.uint8)
        np.savez(f"{name}.npz", x=id_pixels, y=np.arange(9) % len(classes), classes=np.array(classes))
        np.savez(f"{name}.ood.npz", x=ood_pixels)

    def searched(name: str, *sets: str) -> Any:
        run("extract-circuit", "./model", *sets, "--tower", "visual", "--budget", "1", "-o", f"{name}.json")
        return read_json(f"{name}.json")

    set_a = ["--val", "a.npz", "--ood-val", "a.ood.npz"]
    set_b = ["--val", "b.npz", "--ood-val", "b.ood.npz"]
    mean = (searched("a", *set_a)["base"]["score"] + searched("b", *set_b)["base"]["score"]) / 2
    both = searched("both", *set_a, *set_b, "--paired")
    assert both["base"]["score"] == pytest.approx(mean, abs=1e-12)
    tasks = both["source"]["settings"]["tasks"]
    assert [(task["val"]["spec"], task["ood_val"]["spec"], task["weight"]) for task in tasks] == [
        ("a.npz", "a.ood.npz", 1),
        ("b.npz", "b.ood.npz", 1),
    ]
    assert Counter(one["as"] for one in both["seen"]) == {"id": 2, "ood": 2}
