"""The comparison study: every row is made, a second call makes nothing again, and nothing leaks into the SST-2 data."""

from __future__ import annotations

import gzip
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import yaml

from tests.running import read_json

STUDY = Path(__file__).resolve().parents[1] / "examples" / "comparison"
TINY = (
    "timm:vit_tiny_patch16_224?pretrained=0&img_size=8&patch_size=4&in_chans=1"
    "&embed_dim=12&depth=2&num_heads=3&mlp_ratio=1&num_classes=3"
)
Load = Callable[[str, str], ModuleType]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Import a module of the study, working in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(STUDY))

    def find(folder: str, name: str) -> ModuleType:
        monkeypatch.syspath_prepend(str(STUDY / folder))
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    return find


def fashion(folder: Path) -> None:
    """Noise in the place of Fashion-MNIST and the other sets."""
    folder.mkdir()
    random = np.random.default_rng(0)
    for name, count in (("fashion_mnist_train", 54), ("fashion_mnist_test", 24), *((f"{n}_test", 12) for n in OTHERS)):
        pixels = random.integers(0, 256, (count, 8, 8), dtype=np.uint8)
        np.savez(folder / f"{name}.npz", x=pixels, y=np.arange(count) % 3, classes=np.array(["a", "b", "c"]))


OTHERS = ("mnist", "cifar10", "cifar100")


@pytest.mark.release
def test_every_row_is_made_and_nothing_twice(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fashion(tmp_path / "data")
    options = yaml.safe_load((STUDY / "fashion-mnist" / "hydra.yaml").read_text())
    options["extract-circuit"] |= {"budget": 2, "limit": 9}
    options["finetune"] |= {"batch_size": 12}
    options["x-study"]["base"] = TINY
    members = options["x-study"]["members"]
    members |= {"taylor": "--method taylor --keep 2", "mc-dropout": "--mc-dropout 0.1 --passes 2"}
    options["x-study"]["pretraining"] = "--epochs 1"
    members |= {"deep": "--init random --epochs 1"}
    Path("hydra.yaml").write_text(yaml.safe_dump(options))
    prepare = load("fashion-mnist", "prepare")
    monkeypatch.setattr(prepare, "VALIDATION", 24)
    monkeypatch.setattr(prepare, "CALIBRATION", 12)
    study = load("fashion-mnist", "study")
    monkeypatch.setattr(study, "SEEDS", ("0", "1"))
    monkeypatch.setattr(sys, "argv", ["study.py", str(tmp_path / "data")])
    study.main()
    answer = read_json("runs/eval.json")["models"]
    rows = {row["name"]: row for row in answer}
    assert list(rows) == list(study.Comparison("", members).rows)
    single = rows["single"]["cost"]["macs"]
    for name in ("deep", "batch-ensemble", "mc-dropout"):
        assert rows[name]["cost"]["macs"] == 2 * single, name
    assert rows["lora"]["cost"]["params"] < rows["deep"]["cost"]["params"]
    assert rows["hydra-circuit-tuned"]["cost"]["params"] < rows["members-circuit-tuned"]["cost"]["params"]
    text = Path("runs/table.md").read_text()
    assert f"| deep | {rows['deep']['id']['accuracy']:.3f} |" in text
    capsys.readouterr()

    Path("runs/table.md").unlink()
    study.main()
    assert "$ hydractl" not in capsys.readouterr().out, "everything was there"
    assert Path("runs/table.md").read_text() == text


def test_nothing_is_trained_on_that_is_tested_or_chosen_on(load: Load, tmp_path: Path) -> None:
    module = load("sst2", "prepare")
    module.VALIDATION, module.CALIBRATION = 4, 1
    train = [f"phrase {i}" for i in range(4)] + ["Phrase  2", "seen", "new", "a test", "last"]
    rows = {"sst2_train": train, "sst2_test": ["a TEST", "another"]}
    rows.update({name: ["x", "y", "z"] for name in (*module.OOD, module.OOD_VALIDATION)})
    for name, texts in rows.items():
        with gzip.open(tmp_path / f"{name}.jsonl.gz", "wt") as file:
            file.writelines(json.dumps({"text": text, "label": 0}) + "\n" for text in texts)
    report = module.cut(tmp_path, tmp_path / "parts", 2, 2)

    def texts(name: str) -> list[str]:
        return [json.loads(row)["text"] for row in module.lines(tmp_path / "parts" / f"{name}.jsonl.gz")]

    assert texts("val") == ["phrase 0", "phrase 1", "phrase 2"] and texts("calibration") == ["phrase 3"]
    assert texts("train") == ["seen", "new"]  # the second phrase 2 is left out
    module.cut(tmp_path, tmp_path / "parts", 9, 2)
    assert texts("train") == ["seen", "new", "last"]
    assert texts("trec") == ["x", "y"] and texts("agnews_val") == ["x", "y", "z"]
    assert list(report.values()) == [0, 1, 1]
