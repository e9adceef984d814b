"""A million predictions: evaluated in bounded memory, whatever the number of classes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hydractl.evaluation.predictions.store import PredictionsWriter
from hydractl.evaluation.sets import EvalSet
from tests.running import read_json

MOST_BYTES = 700
"""A sample, of two members."""

MEASURED = """
import resource, sys
from hydractl.cli.app import main
code = main(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""


def write(path: Path, samples: int, classes: int) -> None:
    random = np.random.default_rng(0)
    labels = random.integers(0, classes, samples)
    entry = EvalSet("id", "id", None, [str(i) for i in range(samples)], labels, "f")
    with PredictionsWriter(path, {"name": "m"}, [entry], members=2, classes=classes) as writer:
        for start in range(0, samples, 50_000):
            rows = np.arange(start, min(samples, start + 50_000))
            logits = random.standard_normal((2, len(rows), classes), dtype=np.float32)
            logits[:, np.arange(len(rows)), labels[rows]] += 2
            writer.write(0, rows.tolist(), logits)


def peak(path: Path) -> int:
    """Bytes of memory at most of an eval of one file."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    command = [sys.executable, "-c", MEASURED, "eval", str(path), "-o", f"{path}.json", "-q"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stderr.split()[-1]) * 1024


@pytest.mark.release
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux")
def test_memory_grows_with_samples_and_not_with_classes(tmp_path: Path) -> None:
    for name, samples, classes in (("one", 1000, 3), ("many", 1_000_000, 3), ("wide", 100_000, 100)):
        write(tmp_path / f"{name}.st", samples, classes)
    small = peak(tmp_path / "one.st")
    assert peak(tmp_path / "many.st") - small < 1_000_000 * MOST_BYTES
    # 80 MB of logits; some tens of MiB are pieces of them on their way.
    assert peak(tmp_path / "wide.st") - small < 100_000 * MOST_BYTES
    row = read_json(tmp_path / "many.st.json")["models"][0]
    assert row["id"]["n"] == 1_000_000 and 0.8 < row["id"]["accuracy"] < 0.99
