"""docs/ensembles.md: the adapter that it shows, and the numbers of its table."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from hydractl.methods.batch_ensemble.factors import BatchEnsemble
from hydractl.methods.lora.matrices import LoRA
from hydractl.model.loading import build_model
from hydractl.training.adapters import Adapter
from hydractl.training.options import WeightOptions
from hydractl.training.start import trainable
from tests.pico import shared_stock, source_of, stock

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "ensembles.md").read_text(encoding="utf-8")


def test_the_adapter_of_the_page(tmp_path: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "bias_only.py").write_text(code)
    spec = importlib.util.spec_from_file_location("bias_only", tmp_path / "bias_only.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    reference = stock("class-token")
    model = build_model(source_of(reference, "class-token"))
    adapter: Adapter = module.METHOD.adapter({"bias_only": True})
    adapter.add(model, 0)
    trained = trainable(model, WeightOptions(adapter=adapter))
    biases = sum(p.numel() for name, p in reference.named_parameters() if name.endswith("bias"))
    assert sum(p.numel() for p in trained.values()) == biases + reference.head.weight.numel()


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
