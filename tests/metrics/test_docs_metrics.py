"""The page on metrics: its example works, and it names everything there is."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from hydractl.metrics import ood_scores, samples
from hydractl.metrics.ood_scores import OOD_SCORES
from hydractl.metrics.probabilities import per_sample, pooled_probabilities
from hydractl.metrics.summary import ID_METRICS, OOD_METRICS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")


def test_every_metric_and_score_has_a_row() -> None:
    named = re.findall(r"^\| `([a-z0-9_]+)", PAGE, flags=re.MULTILINE)
    assert named == [*ID_METRICS, "accuracy_at", *OOD_METRICS, *OOD_SCORES]


def test_the_example_is_a_score(monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    names: dict = dict(vars(ood_scores))
    exec(compile(example, "docs/metrics.md", "exec"), names)
    monkeypatch.setitem(ood_scores.BLOCK_SCORES, "margin", names["margin"])
    logits = np.random.default_rng(0).normal(size=(3, 50, 4)) * 2
    expected = [sorted(row)[-2] - max(row) for row in pooled_probabilities(logits)]
    assert samples.samples_of(logits, score="margin").score == pytest.approx(expected, abs=1e-15)
    assert per_sample(names["margin"])(np.zeros((1, 2, 1))).tolist() == [-1.0, -1.0]
