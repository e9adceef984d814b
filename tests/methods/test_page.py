"""docs/ensembles.md: the numbers of its table."""

from __future__ import annotations

from pathlib import Path

import pytest

from hydractl.methods.batch_ensemble.factors import BatchEnsemble
from hydractl.methods.lora.matrices import LoRA
from hydractl.model.loading import build_model
from hydractl.training.adapters import Adapter
from hydractl.training.options import WeightOptions
from hydractl.training.start import trainable
from tests.pico import shared_stock, source_of

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "ensembles.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", ["lora", "batch_ensemble"])
def test_the_table_counts_what_is_trained(kind: str) -> None:
    """Its formulas, for three blocks of width 24 with MLPs of width 96, and five classes."""
    d, m, blocks, classes, r = 24, 96, 3, 5, 4
    adapter: Adapter = LoRA(r, 8.0) if kind == "lora" else BatchEnsemble(0.1)
    text = "8 d r L + (d + 1) C" if kind == "lora" else "(15 d + 3 m) L + (d + 1) C"
    assert f"| {text} |" in PAGE
    model = build_model(source_of(shared_stock("class-token"), "class-token"))
    adapter.add(model, 0)
    count = 8 * d * r * blocks if kind == "lora" else (15 * d + 3 * m) * blocks
    trained = trainable(model, WeightOptions(adapter=adapter))
    assert sum(p.numel() for p in trained.values()) == count + (d + 1) * classes
