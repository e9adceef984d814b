"""The script that compares scores over blocks, on vectors whose answer is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hydractl.metrics.feature_scores.layers import add_to_sums, empty_sums
from hydractl.metrics.feature_scores.scores import FEATURE_SCORES, MemberTraining
from tests.running import script

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
WIDTH, CLASSES = 6, 3


@pytest.fixture
def layered(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return script(BENCHMARKS / "layered_scores.py")


def case(layered: Any) -> tuple[Any, dict[str, list[np.ndarray]], np.ndarray]:
    """A case of two blocks, the vectors of its layers by set, and the labels of what was fitted to."""
    random = np.random.default_rng(0)
    labels = np.arange(90) % CLASSES
    layers: dict[str, list[np.ndarray]] = {}
    for name, count in (("fit", 90), ("val", 30), ("test", 40), ("near", 20), ("far", 20)):
        layers[name] = [random.normal(size=(count, WIDTH)) + (name == "far") for _ in range(4)]
    places = [(0, 0), (0, 1), (1, 0), (2, 0)]  # the token read and the others, that of the last block, the classifier's
    distances = {name: np.full((3, 3, 2, 3, 2, len(each[0])), np.nan) for name, each in layers.items()}
    for number, place in enumerate(places):
        vectors = {name: each[number] for name, each in layers.items()}
        made = layered.log_distances(vectors["fit"], labels, vectors)
        for name, values in made.items():
            distances[name][place] = values
    about = {"blocks": 2, "reads_all": False, "near": ["near"], "far": ["far"]}
    return layered.Case(about, distances, {}), layers, labels


def test_the_score_is_hydractl_s(layered: Any) -> None:
    made, layers, labels = case(layered)
    (sums,) = empty_sums([[WIDTH] * 4], CLASSES)
    order = (3, 0, 1, 2)  # the features of the classifier come first
    add_to_sums(sums, np.concatenate([layers["fit"][place] for place in order], axis=1), labels)
    unused = np.zeros((CLASSES, WIDTH))
    data = MemberTraining(layers["fit"][3], labels, labels * 1.0, unused, unused[:, 0], layers=sums)
    score = FEATURE_SCORES["mahalanobis-layers"]
    given = np.concatenate([layers["test"][place] for place in order], axis=1)
    expected = score.score(score.fit(data), given, given)
    assert layered.scores_of(made, layered.Variant(), ["test"])["test"] == pytest.approx(expected)
