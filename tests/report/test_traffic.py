"""Inputs over time: several summaries of ``predict``, in the order given, as a table and a picture."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from hydractl.files.predict_answer import PredictAnswer, PredictingModelRecord
from hydractl.files.watching_records import TrafficAnswer, TrafficFileRecord, WatchedRecord
from hydractl.metrics.watching import WatchOfAll, reference_of
from hydractl.report.traffic import draw_traffic, traffic_table
from tests.running import run


def watched(shifted: float, n: int, seed: int = 1) -> WatchedRecord:
    """Inputs, a share of which is moved up, beside 2,000 of the same kind that are not."""
    known = np.random.default_rng(0).normal(size=2000)
    watch = WatchOfAll(reference_of(known, np.ones(2000), {"a": 1000, "b": 1000}, int((known > 1.6).sum())))
    generator = np.random.default_rng(seed)
    for place in range(n):
        score = generator.normal() + 3.0 * (place % 100 < 100 * shifted)
        watch.add(score, bool(score > 1.6), "ab"[place % 2], 0.5)
    return watch.finished()


def summary(name: str, record: WatchedRecord | None, sha256: str = "0" * 64) -> str:
    """Write the summary of a run of predict, and return the name of the file."""
    model = PredictingModelRecord(name="m", sha256=sha256, members=1, ood_score="msp", threshold=0.5)
    n = 300 if record is None else record.whole.n
    answer = PredictAnswer(model=model, n=n, confidence=0.5, classes=[], watched=record)
    Path(name).write_text(json.dumps(answer.to_json()), encoding="utf-8")
    return name


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def printed(answer: TrafficAnswer) -> list[str]:
    console = Console(file=io.StringIO(), width=200)
    console.print(traffic_table(answer, 200))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def answer_of(*records: WatchedRecord) -> TrafficAnswer:
    files = []
    for place, record in enumerate(records):
        files.append(TrafficFileRecord(name=f"day{place}", model="0" * 64, n=record.whole.n, watched=record))
    return TrafficAnswer(files=files)


def test_a_line_for_every_window_and_every_file() -> None:
    lines = printed(answer_of(watched(0.0, 1500), watched(0.5, 1000), watched(0.0, 50)))
    assert [line.split()[:2] for line in lines[1:6]] == [
        ["day0", "1-1,000"],
        ["1,001-1,500", lines[2].split()[1]],
        ["1-1,500", lines[3].split()[1]],
        ["day1", "1-1,000"],
        ["day2", "1-50"],
    ]
    assert lines[4].endswith("alarm") and lines[5].rstrip().endswith("too few to tell")
    whole = answer_of(watched(0.5, 1000)).files[0].watched.whole
    assert whole.auroc is not None
    low, high = whole.auroc.ci
    assert f"{whole.auroc.auroc:.3f} ({low:.3f} to {high:.3f})" in lines[4]


def test_of_very_many_windows_each_file_has_a_line() -> None:
    one_day = watched(0.0, 1000)
    windows = [one_day.windows[0]] * 70
    long_run = WatchedRecord(reference=one_day.reference, windows=windows, whole=one_day.whole)
    lines = printed(answer_of(long_run, one_day))
    assert [line.split()[0] for line in lines[1:3]] == ["day0", "day1"] and lines[3] == ""


def test_the_same_runs_give_the_same_picture() -> None:
    answer = answer_of(watched(0.0, 1500), watched(0.5, 1000))
    pictures = []
    for _ in range(2):
        handle = io.BytesIO()
        draw_traffic(answer, handle, ".svg")
        pictures.append(handle.getvalue())
    assert pictures[0] == pictures[1]
    text = pictures[0].decode()
    assert all(word in text for word in ("day0", "day1", "AUROC of shift", "alarm", "flagged"))


def test_report_takes_them_in_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    monday = summary("monday.json", watched(0.0, 1000, 3))
    tuesday = summary("tuesday.json", watched(0.5, 1000))
    run("report", tuesday, monday, "--json")
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert document["schema"] == "hydractl.traffic/1" and [f["name"] for f in document["files"]] == [
        "tuesday",
        "monday",
    ]
    run("report", monday, tuesday, "--plots", "watch.svg", "--require", "alarms<=0", code=4)
    assert Path("watch.svg").stat().st_size > 1000
    run("report", monday, "--require", "alarms<=0")
    other = summary("other.json", watched(0.0, 300), sha256="1" * 64)
    capsys.readouterr()
    run("report", monday, other)
    assert "predictions of 2 models, each beside its own reference" in capsys.readouterr().err


def test_what_cannot_be_drawn_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    good = summary("good.json", watched(0.0, 300))
    for words, code, problem in (
        ([summary("bare.json", None)], 3, "bare.json compares nothing: m held no reference"),
        ([good, "--html", "x.html"], 2, "--html is of an eval, and good.json is of predict"),
        ([good, "--plots", "folder"], 2, "--plots of predictions is one picture"),
    ):
        run("report", *words, code=code)
        assert problem in capsys.readouterr().err
