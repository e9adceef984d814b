"""How much of the time of an evaluation goes into waiting for data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hydractl.data import Batch, batching
from hydractl.data.batching import TimedBatches
from tests.pico import TIMM
from tests.running import run


def test_time_in_which_the_next_batch_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(batching, "perf_counter", lambda: now[0])

    def read() -> Iterator[Batch]:
        for index in range(2):
            now[0] += 3.0  # what reading takes
            yield Batch(None, None, [index])
        now[0] += 1.0  # workers end

    timed = TimedBatches(read())
    assert str(timed) == "0% of 0.0 s went into waiting for data"
    indices = []
    for batch in timed:
        indices += batch.indices
        now[0] += 0.5  # what the model takes
    assert indices == [0, 1]
    assert timed.waited_s == 7.0
    assert timed.total_s == 8.0
    assert str(timed) == "88% of 8.0 s went into waiting for data"


def test_it_is_said_with_v(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    pixels = np.zeros((4, 16, 16, 3), dtype=np.uint8)
    np.savez("test.npz", x=pixels, y=[0, 1, 2, 3])
    command = ["eval", f"timm:{TIMM['class-token']}", "--test", "test.npz", "--device", "cpu", "-o", "eval.json"]
    run(*command)
    assert "waiting for data" not in capsys.readouterr().err
    run(*command, "--force", "-v")
    assert "s went into waiting for data" in capsys.readouterr().err
