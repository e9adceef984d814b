"""The script that measures on a GPU: at a small size on a CPU, and what it leaves when it is cut off."""

from __future__ import annotations

import importlib
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.running import read_json

ROOT = Path(__file__).resolve().parents[1]
SMALL = "timm:vit_tiny_patch16_224?pretrained=0&img_size=32&embed_dim=24&depth=4&num_heads=3&num_classes=5"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("gpu_cost")


@pytest.fixture
def run(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Runs it with arguments, the last of which is the file that it writes."""

    def call(*arguments: str | Path) -> dict[str, Any]:
        common = ["gpu_cost.py", "--device", "cpu", "--rounds", "2", "--warmup", "0"]
        monkeypatch.setattr(sys, "argv", [*common, *map(str, arguments)])
        monkeypatch.setattr(script, "BEGUN", time.perf_counter())
        script.main()
        document: dict[str, Any] = read_json(arguments[-1])
        return document

    return call


FUSED = ["fused, 2 shared", "fused, 0 shared"]
NAMES = [
    *("single", "whole + circuit, last 2", *FUSED),
    *(f"{name}, not batched" for name in ("whole + circuit, last 2", *FUSED)),
    *("members one after another", "first member alone", "deep ensemble", "stock"),
]


@pytest.mark.long
def test_every_row_is_measured_and_ratios_are_to_the_single_model(
    run: Callable[..., dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["--arch", f"{SMALL},bert-tiny", "--batches", "4", "--dtypes", "bfloat16", "--modes", "eager"]
    document = run(*few, "--shared", "0,2,10", "-o", tmp_path / "g.json")
    assert document["missing"] == [
        f"{arch}, bfloat16, batch 4, eager: fused, 10 shared{way}: the model has {sites} sites"
        for arch, sites in ((SMALL, 4), ("bert-tiny", 3))
        for way in ("", ", not batched")
    ]
    found = [(row["arch"], row["batch_size"], row["model"]) for row in document["rows"]]
    assert found == [(arch, 4, name) for arch in (SMALL, "bert-tiny") for name in NAMES]
    for row in document["rows"]:
        assert len(row["latency_ms"]["runs"]) == len(row["device_runs_ms"]) == 2
        assert row["kernels"] >= row["operators"] / 2 and row["kernel_ms"] > 0
        if row["model"] == "single":
            assert row["ratio"] == row["mac_ratio"] == row["device_ratio"] == 1.0
    rows = {row["model"]: row for row in document["rows"] if row["arch"] == SMALL}
    work = {name: row["mac_ratio"] for name, row in rows.items()}
    assert work["deep ensemble"] == 3 and work["stock"] > 1
    assert work["fused, 2 shared"] < work["fused, 0 shared"] <= work["members one after another"] < 3
    assert work["first member alone"] < 1 < work["whole + circuit, last 2"] < 2
    counted = {name: row["operators"] for name, row in rows.items()}
    # Four blocks, in which two products and their joining are one for all members or one for each.
    assert counted["fused, 0 shared"] <= counted["single"] + 6
    assert counted["fused, 0 shared, not batched"] >= counted["fused, 0 shared"] + 4 * 6
    assert [(aim["arch"], aim["mode"], aim["model"], aim["aim"]) for aim in document["aims"]] == [
        (arch, "eager", "fused, 0 shared", 1.07) for arch in (SMALL, "bert-tiny")
    ]
    printed = capsys.readouterr().out
    assert printed.count("| single |") == 2 and '"torch"' in printed
    assert "at most 1.07" in printed


# --- cut off ----------------------------------------------------------------------------------------------------------

DRIVER = """
import json, sys, time
from pathlib import Path
from gpu.rows import Clock, Place, Record, measure_all

record = Record(Path(sys.argv[1]), {"rows": 60})
record.set_machine({"device": "stand-in"})
places = [Place("vit", "bfloat16", batch, mode, f"row {n}")
          for batch in (4, 1) for mode in ("compiled", "eager") for n in range(15)]

def measure(place):
    time.sleep(0.004)  # the device computes
    return {"ratio": 1.0, "runs": [0.5] * 2000}

print("begins", flush=True)
measure_all(places, record, Clock(1e6, time.perf_counter()), measure)
print("ends", flush=True)
"""
"""The loop and the file of the script, with a device that sleeps: what it needs starts in a tenth of a second."""


def test_it_ends_in_time_whatever_it_is_doing(tmp_path: Path) -> None:
    file = tmp_path / "gpu.json"
    source = DRIVER.replace("time.sleep(0.004)", "time.sleep(0.004 if place.batch_size == 4 else 60)")
    begins = 'record.end_in_time(Clock(0.6, time.perf_counter()), places, lambda: print("said"))\n'
    source = source.replace('print("begins", flush=True)\n', begins)
    environment = {"PYTHONPATH": f"{ROOT / 'benchmarks'}:{ROOT}", "PATH": ""}
    command = [sys.executable, "-c", source, str(file)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=50)
    assert ended.stdout == "said\n"
    document = read_json(file)
    assert len(document["rows"]) + len(document["missing"]) == 60
    assert "vit, bfloat16, batch 1, eager: row 14: no time left" in document["missing"]


def test_what_is_there_is_not_measured_again(script: ModuleType, tmp_path: Path) -> None:
    file, clock = tmp_path / "g.json", script.Clock(1e6, time.perf_counter())
    places = [script.Place("vit", "bfloat16", 4, "compiled", name) for name in "abc"]
    first = script.Record(file, {"rounds": 2})
    first.set_machine({"device": "one"})
    script.measure_all(places[:2], first, clock, lambda place: {"ratio": 1.0})
    again = script.Record(file, {"rounds": 2})
    script.measure_all(places, again, clock, lambda place: {"ratio": 2.0})
    assert [(row["model"], row["ratio"]) for row in again.rows] == [("a", 1.0), ("b", 1.0), ("c", 2.0)]
    assert read_json(file)["rows"] == again.rows
    with pytest.raises(SystemExit, match=r"other settings \(rounds\)"):
        script.Record(file, {"rounds": 3})
    with pytest.raises(SystemExit, match=r"measured elsewhere \(device\)"):
        script.Record(file, {"rounds": 2}).set_machine({"device": "another"})
