"""The script that measures on a GPU, at a small size on a CPU."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
SMALL = "timm:vit_tiny_patch16_224?pretrained=0&img_size=32&embed_dim=24&depth=4&num_heads=3&num_classes=5"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("gpu_cost")


@pytest.fixture
def run(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs it with arguments."""

    def call(*arguments: str | Path) -> None:
        common = ["gpu_cost.py", "--device", "cpu", "--rounds", "2"]
        monkeypatch.setattr(sys, "argv", [*common, *map(str, arguments)])
        script.main()

    return call


@pytest.mark.long
def test_every_row_is_measured_and_ratios_are_to_the_single_model(
    run: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["--arch", f"{SMALL},bert-tiny", "--batches", "1,2", "--dtypes", "float32", "--modes", "eager"]
    run(*few, "--shared", "0,2,10", "-o", tmp_path / "g.json")
    document = json.loads((tmp_path / "g.json").read_text())
    assert document["missing"] == []
    names = ["single", *(f"fused, {n} shared{way}" for n in (0, 2) for way in ("", ", not batched"))]
    names += ["members one after another", "deep ensemble"]
    found = [(row["arch"], row["batch_size"], row["model"]) for row in document["rows"]]
    assert found == [(arch, batch, name) for arch in (SMALL, "bert-tiny") for batch in (1, 2) for name in names]
    for row in document["rows"]:
        assert len(row["latency_ms"]["runs"]) == 2
        if row["model"] == "single":
            assert row["ratio"] == row["mac_ratio"] == 1.0
    work = {row["model"]: row["mac_ratio"] for row in document["rows"] if row["arch"] == SMALL}
    assert work["deep ensemble"] == 3
    assert work["fused, 2 shared"] < work["fused, 0 shared"] <= work["members one after another"] < 3
    counted = {row["model"]: row["operators"] for row in document["rows"] if row["arch"] == SMALL}
    # Four blocks, in which two products and their joining are one for all members or one for each.
    assert counted["fused, 0 shared"] <= counted["single"] + 6
    assert counted["fused, 0 shared, not batched"] >= counted["fused, 0 shared"] + 4 * 6
    printed = capsys.readouterr().out
    assert printed.count("| single |") == 4 and '"torch"' in printed


def test_what_the_time_does_not_allow_is_said(
    run: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("--arch", SMALL, "--batches", "1", "--dtypes", "float32", "--seconds", "0", "-o", tmp_path / "g.json")
    document = json.loads((tmp_path / "g.json").read_text())
    assert document["rows"] == []
    assert document["missing"] == [f"{SMALL}, float32, batch 1, {mode}: no time left" for mode in ("eager", "compiled")]
    assert "not measured" in capsys.readouterr().out


@pytest.mark.parametrize("off", [0.0, 1.0])
def test_members_that_differ_are_never_timed(off: float, script: ModuleType) -> None:
    import torch

    class Model:
        def example_inputs(self, batch: int, seed: int) -> torch.Tensor:
            return torch.ones(batch, 3)

        def __init__(self, more: float) -> None:
            self.more = more

        def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs + self.more

    if off:
        with pytest.raises(SystemExit, match="b .float32.: differs by"):
            script.difference(Model(0.0), Model(off), "float32", "b")
    else:
        assert script.difference(Model(0.0), Model(off), "float32", "b") == 0
