"""Several ID and OOD sets in one search: the weighted mean over them, against Algorithm 1 written naively."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from hydractl.circuit.evaluator import Evaluator
from hydractl.circuit.search import GreedySearch
from tests.circuit import naive
from tests.circuit.test_search import HEADS, model_of, names, samples
from tests.pico import stock, without_heads
from tests.pico_clip import pico_clip, publish_clip
from tests.running import quiet as run

WEIGHTS = (2, 1)
DRAW = 4


def _parts() -> tuple[naive.Data, naive.Data]:
    return naive.data(inside=11, outside=7, draw=1), naive.data(inside=6, outside=5, draw=3)


def _naive(objective: str, budget: int, weights: tuple[int, ...], tasks: list[naive.Data]) -> list[naive.Head]:
    model = stock("class-token")
    removed: list[naive.Head] = []
    for _ in range(budget):
        left = [(f"blocks.{i}.attn", h) for i in range(3) for h in range(3) if (f"blocks.{i}.attn", h) not in removed]
        scores = []
        for head in left:
            with without_heads(model, [*removed, head]):
                own = [naive.score(model, objective, task) for task in tasks]
            scores.append(sum(Fraction(w) * s for w, s in zip(weights, own, strict=True)) / sum(weights))
        removed.append(left[naive.first_highest(scores)])
    return removed


@pytest.mark.parametrize("objective", ["acc", "avg"])
def test_two_tasks_are_searched_as_the_naive_algorithm_does(objective: str) -> None:
    tasks = _parts()
    batches = [replace(one, tasks=(t,)) for t, task in enumerate(tasks) for one in samples(task)]
    model = model_of(stock("class-token"), "class-token")
    expected = _naive(objective, 3, WEIGHTS, list(tasks))
    for bounds in (True, False):
        evaluator = Evaluator(model, batches, weights=WEIGHTS)
        found = GreedySearch(evaluator, HEADS, bounds=bounds).run([objective], 3)[objective]
        evaluator.close()
        assert names(model, found) == expected


def test_one_id_set_against_two_ood_sets_runs_it_once() -> None:
    one, two = naive.data(inside=11, outside=7, draw=1), naive.data(inside=6, outside=5, draw=DRAW)
    both = [naive.Data(one.inside, one.labels, other.outside) for other in (one, two)]
    inside = [replace(batch, tasks=(0, 1)) for batch in samples(one) if batch.labels is not None]
    outside = [replace(b, tasks=(t,)) for t, task in enumerate(both) for b in samples(task) if b.labels is None]
    model = model_of(stock("class-token"), "class-token")
    evaluator = Evaluator(model, [*inside, *outside], weights=(1, 1))
    found = GreedySearch(evaluator, HEADS).run(["avg"], 3)["avg"]
    assert names(model, found) == _naive("avg", 3, (1, 1), both)
    assert evaluator.size == 11 + 7 + 5
    exact = sum(Fraction(naive.score(stock("class-token"), "avg", task)) for task in both) / 2
    assert found.base.score("avg") == pytest.approx(float(exact), abs=1e-12)


def test_each_id_set_of_a_zero_shot_model_has_classes_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    publish_clip(pico_clip(), "clip", tmp_path / "model")
    draw = np.random.default_rng(0)
    for name, classes in (("a", ["cat", "dog", "owl"]), ("b", ["car", "ship", "cat", "tree"])):
        pixels = draw.integers(0, 256, (9, 16, 16, 3), dtype=np.uint8)
        np.savez(f"{name}.npz", x=pixels, y=np.arange(9) % len(classes), classes=np.array(classes))
        np.savez(f"{name}.ood.npz", x=draw.integers(0, 99, (6, 16, 16, 3), dtype=np.uint8))
    sets = {name: ["--data", f"{name}.npz", "--ood", f"{name}.ood.npz"] for name in "ab"}
    how = ["--tower", "visual", "--budget", "1"]
    for name, options in (("a", sets["a"]), ("b", sets["b"]), ("both", [*sets["a"], *sets["b"], "--paired"])):
        run("extract-circuit", "./model", *options, *how, "-o", f"{name}.json")
    a, b, both = (json.loads(Path(f"{name}.json").read_text())["base"]["score"] for name in ("a", "b", "both"))
    assert both == pytest.approx((a + b) / 2, abs=1e-12)
