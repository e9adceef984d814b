"""The parts of the SST-2 study: stacked predictions are those of the ensemble, and nothing leaks."""

from __future__ import annotations

import gzip
import importlib
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from hydractl.cli.app import main

STUDY = Path(__file__).resolve().parents[1] / "examples" / "sst2-study"
TINY = (
    "timm:vit_tiny_patch16_224?pretrained=0&img_size=8&patch_size=4&in_chans=1"
    "&embed_dim=12&depth=2&num_heads=3&mlp_ratio=1&num_classes=3"
)


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Import a module of the study, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(STUDY))

    def find(name: str) -> ModuleType:
        monkeypatch.delitem(importlib.import_module("sys").modules, name, raising=False)
        return importlib.import_module(name)

    return find


def evaluate(*words: str) -> None:
    data = ["--data", "test.npz", "--ood", "noise:far=ood.npz", "--val", "val.npz", "-q"]
    assert main(["eval", *words, *data]) == 0


def test_stacked_predictions_are_those_of_the_ensemble(load) -> None:  # type: ignore[no-untyped-def]
    random = np.random.default_rng(0)
    for name, count in (("test", 24), ("val", 12), ("ood", 20)):
        np.savez(f"{name}.npz", x=random.integers(0, 256, (count, 8, 8), dtype=np.uint8), y=np.arange(count) % 3)
    for seed in "012":
        assert (
            main(["prune", TINY, "--method", "random", "--keep", "2", "--seed", seed, "-o", f"m{seed}.st", "-q"]) == 0
        )
        evaluate(f"m{seed}=m{seed}.st", "--predictions", f"m{seed}.pred.st", "-o", f"m{seed}.json")
    evaluate("all=m0.st+m1.st+m2.st", "--predictions", "run.pred.st", "-o", "run.json")
    members = [Path(f"m{seed}.pred.st") for seed in "012"]
    load("stack").stack(members, Path("all.pred.st"))
    assert Path("all.pred.st").read_bytes() == Path("run.pred.st").read_bytes()
    assert members[0].read_bytes() != members[1].read_bytes()

    both = ["m0=m0.pred.st", "all=all.pred.st", "--bootstrap", "20", "-q"]
    assert main(["eval", *both, "-o", "eval.json"]) == 0
    assert main(["eval", *both, "--val", "val.npz", "--temperature", "fit", "-o", "calibrated.json"]) == 0
    text = load("table").tables(Path("eval.json"), Path("calibrated.json"))
    row = json.loads(Path("eval.json").read_text())["models"][1]
    line = next(line for line in text.splitlines() if line.startswith("| all |"))
    assert f"| {row['id']['accuracy']:.3f} |" in line and f"{row['ood_avg']['auroc']:.3f}" in line


def test_predictions_of_other_samples_are_not_stacked(load) -> None:  # type: ignore[no-untyped-def]
    random = np.random.default_rng(0)
    for name in ("test", "val", "ood", "other"):
        np.savez(f"{name}.npz", x=random.integers(0, 256, (6, 8, 8), dtype=np.uint8), y=np.arange(6) % 3)
    evaluate(f"a={TINY}", "--predictions", "a.pred.st", "-o", "a.json")
    words = ["eval", f"b={TINY}", "--data", "other.npz", "--ood", "noise:far=ood.npz", "--val", "val.npz", "-q"]
    assert main([*words, "--predictions", "b.pred.st", "-o", "b.json"]) == 0
    with pytest.raises(SystemExit, match="different samples"):
        load("stack").stack([Path("a.pred.st"), Path("b.pred.st")], Path("c.pred.st"))
    assert not Path("c.pred.st").exists()


def test_nothing_is_trained_on_that_is_tested_or_chosen_on(load, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    module = load("prepare")
    module.VALIDATION, module.CALIBRATION = 4, 1
    train = [f"phrase {i}" for i in range(4)] + ["Phrase  2", "seen", "new", "a test", "last"]
    rows = {"sst2_train": train, "sst2_test": ["a TEST", "another"]}
    rows.update({name: ["x", "y", "z"] for name in (*module.OOD, module.OOD_VALIDATION)})
    for name, texts in rows.items():
        with gzip.open(tmp_path / f"{name}.jsonl.gz", "wt") as file:
            file.writelines(json.dumps({"text": text, "label": 0}) + "\n" for text in texts)
    report = module.prepare(tmp_path, tmp_path / "parts", 2, 2)

    def texts(name: str) -> list[str]:
        return [json.loads(row)["text"] for row in module.lines(tmp_path / "parts" / f"{name}.jsonl.gz")]

    assert texts("val") == ["phrase 0", "phrase 1", "phrase 2"] and texts("calibration") == ["phrase 3"]
    assert texts("train") == ["seen", "new"]  # the second phrase 2 is left out
    module.prepare(tmp_path, tmp_path / "parts", 9, 2)
    assert texts("train") == ["seen", "new", "last"]
    assert texts("trec") == ["x", "y"] and texts("agnews_val") == ["x", "y", "z"]
    assert list(report.values()) == [0, 1, 1]
