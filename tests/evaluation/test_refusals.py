"""What an eval refuses before it computes anything, and what its predictions hold in any case."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hydractl.evaluation.predictions.reading import read_predictions
from tests.running import read_json, run

TEST = ["--test", "builtin:digits/test", "--limit", "30"]
KNN = ["--train", "builtin:digits/train", "--ood-score", "knn"]


@pytest.fixture(autouse=True)
def nothing_is_computed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases named ``early`` fail when a model is asked for a logit."""
    if "early" in request.node.name:
        from hydractl.evaluation.providers.running import RunningModel

        def computes(*_: object) -> None:
            raise AssertionError("this is refused too late")

        monkeypatch.setattr(RunningModel, "batches", computes)


def test_resume_replaces_no_file_but_predictions(capsys: Any) -> None:
    weights = Path("base.st").read_bytes()
    Path("copy.st").write_bytes(weights)
    run("eval", "c.st", *TEST, "--predictions", "copy.st", "--resume", "-o", "e.json", code=5)
    assert "copy.st" in capsys.readouterr().err and Path("copy.st").read_bytes() == weights
    Path("copy.st").write_bytes(b"not even safetensors")
    run("eval", "c.st", *TEST, "--predictions", "copy.st", "--resume", "-o", "e.json", code=5)
    assert Path("copy.st").read_bytes() == b"not even safetensors" and not Path("e.json").exists()
    run("eval", "c.st", *TEST, "--predictions", "copy.st", "--resume", "--force", "-o", "e.json")
    assert read_predictions("copy.st").name == "c"


@pytest.mark.fault(110)
def test_without_an_output_the_table_is_printed_and_nothing_written(capsys: Any) -> None:
    before = sorted(Path().iterdir())
    for _ in range(2):
        run("eval", "c.st", *TEST, "-q")
        assert "acc" in capsys.readouterr().out
    assert sorted(Path().iterdir()) == before


def test_a_dry_run_of_resume_is_refused_where_the_run_is() -> None:
    run("eval", "c.st", *TEST, "--predictions", "p.st", "-o", "e.json")
    again = ["eval", "c.st", *TEST, "--predictions", "p.st", "--resume", "-o", "f.json"]
    run(*again, "--dry-run")
    run(*again)
    run(*again[:-4], "base.st", "--resume", "-o", "g.json", "--dry-run", code=5)


def test_predictions_have_validation_sets_that_nothing_was_chosen_on(capsys: Any) -> None:
    sets = [*TEST, "--val", "builtin:digits/val", "--ood-val", "s=builtin:symbols"]
    run("eval", "base.st", *sets, "--predictions", "p.st", "-o", "e.json")
    kept = {one.name: one for one in read_predictions("p.st").sets}
    assert {"id", "val", "s"} <= set(kept)
    chosen = ["--threshold", "ood:0.9", "--temperature", "fit"]
    run("eval", "base.st", *sets, *chosen, "-o", "model.json")
    run("eval", "base=p.st", *sets[4:], "--limit", "30", *chosen, "-o", "stored.json")
    one, other = (read_json(name)["models"][0] for name in ("model.json", "stored.json"))
    assert one["threshold"] == other["threshold"] and one["calibration"] == other["calibration"]
    capsys.readouterr()
    run("eval", "base.st", *sets, "--predictions", "p.st", "--resume", "-o", "f.json")
    assert "p.st is complete" in capsys.readouterr().err


@pytest.mark.parametrize(
    "asked",
    [
        ["base=p.st", "--ood", "s=builtin:symbols"],
        ["base=p.st", "--limit", "3"],
        ["base=p.st", "--corruptions", "snow"],
        ["c.st", "p.st", *TEST, "--predictions", "q.st"],
        ["c.st", *TEST, "--ood-val", "s=builtin:symbols", "--threshold", "ood:0"],
        ["c.st", *TEST, "--val", "builtin:digits/val", "--threshold", "id:1"],
        ["c.st", *TEST, "--threshold", "score:1e999"],
        ["c.st", *TEST, "--temperature", "1e-200"],
    ],
    ids=lambda asked: "early " + " ".join(asked[1:])[:40],
)
def test_what_has_no_effect_or_no_meaning_is_refused_early(asked: list[str], capsys: Any) -> None:
    from tests.evaluation.stored import write_predictions

    write_predictions("p.st")
    run("eval", *asked, "-o", "e.json", code=2)
    assert capsys.readouterr().err.startswith("error: ")
    assert not Path("e.json").exists() and not Path("q.st").exists()


def test_two_outputs_have_names_of_their_own(capsys: Any) -> None:
    run("eval", "c.st", *TEST, "--predictions", "q.st", "-o", "./q.st", code=2)
    assert "--predictions and --output name one file: ./q.st" in capsys.readouterr().err and not Path("q.st").exists()


def test_a_limit_is_for_validation_data_beside_predictions() -> None:
    sets = ["--val", "builtin:digits/val", "--limit", "20"]
    run("eval", "base.st", "--test", "builtin:digits/test", *sets, "--predictions", "p.st", "-o", "e.json")
    run("eval", "p.st", *sets, "--temperature", "fit", "-o", "f.json")
    found = read_json("f.json")["models"][0]
    assert found["calibration"]["fitted_on"]["n"] == 20 and found["id"]["n"] == 20


def test_what_corruptions_give_can_be_required() -> None:
    sets = [*TEST, "--corruptions", "fog,contrast", "--severities", "1,4"]
    keys = ["corruption_avg.4.accuracy<=1", "corruptions.fog.1.n>=30", "corruptions.contrast.4.ece>=0"]
    wanted = [word for key in keys for word in ("--require", key)]
    run("eval", "base.st", *sets, *wanted, "-o", "e.json")
    run("eval", "base.st", *sets, "--require", "corruption_avg.3.accuracy<=1", "-o", "f.json", code=2)


def test_an_unreadable_image_is_told_of_once(capsys: Any) -> None:
    for i in range(6):
        Path(f"images/{i % 2}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), 40 * i, np.uint8)).save(f"images/{i % 2}/{i}.png")
    Path("images/1/bad.png").write_bytes(b"")
    sets = ["--test", "images", "--on-bad", "skip", "--corruptions", "fog,snow"]
    run("eval", "base.st", *sets, "-o", "e.json")
    assert capsys.readouterr().err.count("bad.png") == 1
