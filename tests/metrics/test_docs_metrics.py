"""The page on metrics names everything there is."""

from __future__ import annotations

import re
from pathlib import Path

from hydractl.metrics.declaration import metrics
from hydractl.metrics.ood_scores import ON_FEATURES, SCORES

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")


def test_every_metric_and_score_has_a_row() -> None:
    named = re.findall(r"^\| `([a-z0-9_-]+)", PAGE, flags=re.MULTILINE)
    keys = [metric.key for metric in (*metrics("id"), *metrics("ood"), *metrics("errors"))]
    assert named == [*keys, *SCORES, *ON_FEATURES]
