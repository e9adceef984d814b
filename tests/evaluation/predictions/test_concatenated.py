"""Predictions files side by side are the ensemble that runs their models one after another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hydractl.data import open_data
from hydractl.evaluation.predictions import store
from hydractl.evaluation.predictions.concatenated import concatenated
from hydractl.evaluation.predictions.reading import read_predictions
from hydractl.evaluation.predictions.store import PredictionsWriter
from hydractl.evaluation.sets import EvalSet
from hydractl.files.model_records import CostRecord
from tests.running import evaluated, run

TEST = ["--test", "builtin:digits/test", "--limit", "30", "--ood", "l:far=builtin:letters", "--allow-seen"]
OWN = {"members": 1, "classes": 3}


@pytest.mark.long
def test_the_row_is_that_of_the_models_that_run() -> None:
    names = ["hydra", "t0", "c"]
    for name in names:
        run("eval", f"{name}.st", *TEST, "--predictions", f"{name}.pred.st", "-o", f"{name}.json", "-q")
    options = ["--ood-score", "mi", "--bootstrap", "10"]
    ran = evaluated("all=" + "+".join(f"{name}.st" for name in names), *TEST, *options)
    text = "+".join(f"{name}.pred.st" for name in names)
    found = evaluated(f"all={text}", "--allow-seen", *options)
    row, expected = found["models"][0], ran["models"][0]
    for one in (row, expected):
        for spread in one["diversity"].values():
            spread["mi"] = round(spread["mi"], 12)  # a sum over batches, which may be others
    assert row == expected and len(row["members"]) == 5 and len(row["sha256"]) == 3
    assert found["test"]["id"]["spec"] == text
    beside = evaluated("base.st", text, *TEST)["models"]
    assert beside[1]["name"] == "hydra.pred+t0.pred+c.pred" and beside[1]["id"] == row["id"]


def write(
    name: str, seed: int = 0, *, limit: int = 12, called: str = "o", model: dict[str, Any] | None = None, **changes: Any
) -> Path:
    """Random logits for some digits in three classes, and for two samples of an OOD set."""
    data = open_data("builtin:digits/test", limit=limit)
    entry = EvalSet("id", "id", None, data.ids, np.asarray(data.labels) % 3, data.fingerprint())
    other = {"group": None, "ids": ["a", "b"], "labels": None, "known_fingerprint": "f", "seen": seed, **changes}
    entries = [entry, EvalSet(called, "ood", **other)]
    given = {
        "name": name,
        "batch_size": 64,
        "cost": {"params": 10 + seed, "macs": 5, "single_macs": 7},
        **(model or {}),
    }
    path = Path(f"{name}.st")
    with PredictionsWriter(path, given, entries, **OWN) as writer:
        for index, one in enumerate(entries):
            rows = [i for i in range(len(one.ids)) if (name, i) != ("gap", 3)]
            logits = np.random.default_rng(seed + index).normal(size=(1, len(one.ids), 3))
            writer.write(index, rows, logits[:, rows])
    return path


def test_logits_lie_side_by_side_in_any_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [read_predictions(write(name, seed)) for seed, name in enumerate(("x", "y", "gap"))]
    whole = [np.concatenate([logits for _, logits, _ in part.batches(part.sets[0])], axis=1) for part in parts]
    there = [i for i in range(12) if i != 3]  # which the last one could not read
    expected = np.concatenate([whole[0][:, there], whole[1][:, there], whole[2]])
    monkeypatch.setattr(store, "BLOCK_BYTES", 3 * 3 * 4 * 5)
    found = concatenated(parts)
    pieces = list(found.batches(found.sets[0]))
    assert [len(rows) for rows, *_ in pieces] == [4, 5, 2] and found.shape(0) == (3, 12, 3)
    assert [row for rows, *_ in pieces for row in rows] == there
    assert np.array_equal(np.concatenate([logits for _, logits, _ in pieces], axis=1), expected)
    assert found.record.cost == CostRecord(params=33, macs=15, single_macs=7)
    assert [one.seen for one in found.sets] == [0, 2]


@pytest.mark.parametrize(
    ("other", "complaint"),
    [
        ({"limit": 11}, "b.st: samples of id id: 12 in a.st, 11 now"),
        ({"known_fingerprint": "g"}, "b.st: fingerprint of ood o: 'f' in a.st, 'g' now"),
        ({"group": "far"}, "b.st: group of ood o: None in a.st, 'far' now"),
        ({"called": "p"}, "b.st: samples of ood p: nothing in a.st, 2 now"),
        ({"model": {"batch_size": 32, "dtype": "float64"}}, "b.st: batch_size: 64 in a.st, 32 now"),
        ({"model": {"labels": ["i", "j", "k"]}}, "b.st: labels: None in a.st"),
        ({"model": {"mc_dropout": {"p": 0.1, "passes": 2, "seed": 0}}}, "b.st: mc_dropout: nothing in a.st"),
    ],
)
def test_what_differs_is_named(capsys: Any, other: dict[str, Any], complaint: str) -> None:
    write("a")
    write("b", **other)
    run("eval", "a.st+b.st", code=3)
    assert complaint in capsys.readouterr().err


def test_predictions_and_models_do_not_mix(capsys: Any) -> None:
    write("a")
    run("eval", "a.st+base.st", *TEST, code=2)
    text = capsys.readouterr().err
    assert "a.st is a predictions file and base.st is a model" in text and "predictions of all of them" in text
    run("eval", "a.st+b.st", *TEST, code=3)
    assert "no such file: b.st" in capsys.readouterr().err
    Path("b.st").write_bytes(Path("a.st").read_bytes()[:-9])
    run("eval", "a.st+b.st", *TEST, code=3)
    assert "b.st" in capsys.readouterr().err


def test_calibrations_of_the_parts_are_left_out_with_a_warning(capsys: Any) -> None:
    write("a", model={"calibration": {"kind": "temperature", "temperature": 2.0, "scale": None, "bias": None}})
    write("b")
    run("eval", "a.st+b.st", "-o", "e.json", "--allow-seen")
    assert "the stored calibration is left out" in capsys.readouterr().err
