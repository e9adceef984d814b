"""What an answer says beside its numbers, and what is run for nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hydractl.evaluation.answer import sentences
from tests.running import evaluated, read_json, run

TEST = ["--test", "builtin:digits/test", "--limit", "30"]
VAL = ["--val", "builtin:digits/val"]


def test_an_answer_explains_every_key() -> None:
    assert set(evaluated("base.st", *TEST)["conventions"]) == {*sentences(), "ood_score", "ood_scores"}


def test_validation_data_are_run_only_for_what_is_chosen_on_them(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from hydractl.evaluation.providers.running import RunningModel

    ran: list[str] = []
    batches = RunningModel.batches

    def spy(self: Any, one: Any, rows: Any = None) -> Any:
        ran.append(one.name)
        return batches(self, one, rows)

    monkeypatch.setattr(RunningModel, "batches", spy)
    sets = [*TEST, *VAL, "--ood-val", "s=builtin:symbols", "-o", "e.json", "--force"]

    def asked(*options: str) -> list[str]:
        ran.clear()
        capsys.readouterr()
        run("eval", "base.st", *sets, *options)
        return sorted(ran)

    assert asked() == ["id"]
    told = capsys.readouterr().err
    assert "--val is not run: nothing is chosen on it" in told and "--ood-val s is not run" in told
    assert asked("--temperature", "2") == ["id"]
    assert asked("--threshold", "score:-0.5") == ["id", "val"]
    for options in (["--temperature", "vector"], ["--threshold", "id:0.1"], ["--conformal", "0.1"]):
        assert asked(*options) == ["id", "val"]
        assert "--val is not run" not in capsys.readouterr().err
    assert asked("--threshold", "ood:0.9") == ["id", "s", "val"]
    assert asked("--predictions", "p.st") == ["id", "s", "val"]
    assert "not run" not in capsys.readouterr().err


def test_a_stored_calibration_says_what_it_was_fitted_on() -> None:
    fitted = evaluated("base.st", *TEST, *VAL, "--temperature", "fit")["models"][0]["calibration"]
    run("calibrate", "base.st", *VAL, *TEST[2:], "--temperature", "fit", "-o", "k.st")
    assert fitted["stored"] is False and fitted["fitted_on"]["spec"] == "builtin:digits/val"
    again = evaluated("k.st", *TEST, "--predictions", "p.st")["models"][0]["calibration"]
    assert again == {**fitted, "stored": True}
    assert evaluated("p.st")["models"][0]["calibration"] == again
    other = evaluated("k.st", *TEST, "--temperature", "2")["models"][0]["calibration"]
    assert other["stored"] is False and other["fitted_on"] is None
    run("calibrate", "k.st", "--threshold", "score:-0.5", "-o", "m.st")
    assert evaluated("m.st", *TEST)["models"][0]["calibration"] == again


def test_a_finished_file_with_skipped_samples_is_finished(capsys: Any) -> None:
    for i in range(6):
        Path(f"images/{i % 2}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), 40 * i, np.uint8)).save(f"images/{i % 2}/{i}.png")
    Path("images/1/bad.png").write_bytes(b"")
    words = ["eval", "base.st", "--test", "images", "--on-bad", "skip", "--predictions", "p.st", "--resume"]
    run(*words, "-o", "e.json")
    before = Path("p.st").stat().st_mtime_ns
    capsys.readouterr()
    run(*words, "-o", "f.json")
    text = capsys.readouterr().err
    assert "p.st is complete" in text and "bad.png" in text and Path("p.st").stat().st_mtime_ns == before
    first, second = (read_json(name) for name in ("e.json", "f.json"))
    assert first["test"] == second["test"] and first["test"]["id"]["skipped"]["n"] == 1
    assert [row["id"] for row in first["models"]] == [row["id"] for row in second["models"]]
    run(*[word for word in words if word not in ("--on-bad", "skip")], "-o", "g.json", code=3)


def test_what_is_chosen_on_the_test_data_is_marked_if_allowed() -> None:
    own = ["--val", "builtin:digits/test", "--temperature", "fit", "--limit", "30"]
    run("eval", "base.st", *TEST, *own, code=3)
    assert evaluated("base.st", *TEST, *own, "--allow-seen")["models"][0]["seen"] == {"id": 30}
    run("eval", "base.st", *TEST, "--predictions", "p.st", "-o", "e.json")
    run("eval", "p.st", *own, code=3)
    assert evaluated("p.st", *own, "--allow-seen")["models"][0]["seen"] == {"id": 30}
    run("eval", "base.st", *TEST, "--ood", "o=builtin:digits/test", "--allow-seen", code=3)
