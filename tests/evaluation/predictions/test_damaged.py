"""Predictions files and calibrations that nobody wrote: one line and exit code 3, whatever stands in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from hydractl.cli.app import main
from hydractl.evaluation.predictions.store import PredictionsWriter
from hydractl.evaluation.sets import EvalSet
from hydractl.files import header
from tests.running import described

HEADS = [{"site": "blocks.0.attn", "tower": "main", "heads": 3, "kept": [[0, 1]]}]
MODEL = {
    "name": "m",
    "sha256": "0" * 64,
    "labels": ["a", "b", "c"],
    "heads": HEADS,
    "cost": {"params": 10, "macs": None, "single_macs": None},
    "calibration": {"kind": "vector", "temperature": None, "scale": [1.0, 1.0, 1.0], "bias": [0.0, 0.1, 0.2]},
    "threshold": {"score": "msp", "value": -0.5, "rule": "id:0.05"},
}
SETS = [
    EvalSet("id", "id", None, ["a0", "a1", "a2", "a3"], np.array([0, 1, 2, 0]), "f0"),
    EvalSet("s", "ood", "near", ["b0", "b1"], None, "f1"),
    EvalSet("fog/1", "corruption", None, ["a0", "a1", "a2", "a3"], np.array([0, 1, 2, 0]), "f2"),
    EvalSet("snow/1", "corruption", None, ["a0", "a1", "a2", "a3"], np.array([0, 1, 2, 0]), "f3"),
]


def written(path: Path, change: Any = lambda document: None) -> Path:
    with PredictionsWriter(path, MODEL, SETS, members=1, classes=3) as writer:
        for index, one in enumerate(SETS):
            logits = np.random.default_rng(index).normal(size=(1, len(one.ids), 3)).astype(np.float32)
            writer.write(index, range(len(one.ids)), logits)
    return described(path, path, change)


def put(*keys: Any, value: Any) -> Any:
    def change(document: Any) -> None:
        for key in keys[:-1]:
            document = document[key]
        if value is ...:
            del document[keys[-1]]
        else:
            document[keys[-1]] = value

    return change


def test_the_file_itself_is_a_row(tmp_path: Path, capsys: Any) -> None:
    path = written(tmp_path / "p.st")
    assert main(["eval", str(path), "--json", "-q"]) == 0
    row = json.loads(capsys.readouterr().out)["models"][0]
    assert row["id"]["n"] == 4 and row["threshold"]["value"] == -0.5 and set(row["corruptions"]) == {"fog", "snow"}


@pytest.mark.fault(57)
@pytest.mark.parametrize(
    "change",
    [
        put("model", "labels", value=True),
        put("model", "labels", value=["a", "b"]),
        put("model", "heads", 0, "kept", value=[["a"]]),
        put("model", "heads", 0, "site", value=...),
        put("model", "cost", "macs", value=10**400),
        put("model", "calibration", "bias", 0, value=10**400),
        put("model", "threshold", "value", value=10**400),
        put("model", "threshold", "rule", value=...),
        put("model", value=[]),
        put("model", "name", value=...),
        put("sets", 1, "role", value="test"),
        put("sets", 1, "name", value="id"),
        put("sets", 1, "name", value="edges"),
        put("sets", 0, "name", value="tested"),
        put("sets", 3, "name", value="snow/2"),
    ],
)
def test_damage_is_one_error(change: Any, tmp_path: Path, capsys: Any) -> None:
    path = written(tmp_path / "p.st", change)
    assert main(["eval", str(path), "--json", "-q"]) == 3
    found = capsys.readouterr()
    assert found.err.startswith("error: ") and "p.st" in found.err and "internal" not in found.err and not found.out


@pytest.mark.parametrize("shape", [(2, 2, 3), (1, 2, 4), (1, 3, 3)])
def test_sets_of_other_shapes_are_refused(shape: tuple[int, ...], tmp_path: Path, capsys: Any) -> None:
    """The second set, of two samples, has other members, classes or samples than the header and the first set say."""
    tensors = safetensors.numpy.load_file(written(tmp_path / "p.st"))
    tensors["sets.1.logits"] = np.zeros(shape, np.float32)
    description = header.read_header(tmp_path / "p.st").metadata["hydractl"]
    safetensors.numpy.save_file(tensors, tmp_path / "other.st", {"hydractl": description})
    assert main(["eval", str(tmp_path / "other.st"), "-q"]) == 3
    assert "sets.1.logits is missing or of another shape" in capsys.readouterr().err


def test_a_checkpoint_with_a_broken_threshold_is_refused() -> None:
    from hydractl.model.prediction import Chosen

    for threshold in (True, [], {"score": "msp", "value": None, "rule": "given"}, {"score": "msp", "value": 0.0}):
        with pytest.raises(Exception, match="m.st: what calibrate has chosen is broken"):
            Chosen.of({"threshold": threshold}, "m.st")
