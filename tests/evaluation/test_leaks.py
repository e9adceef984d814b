"""Samples that something was chosen on are refused as test data, wherever the model came from."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.running import evaluated, read_json, run
from tests.spread import marked_long

VAL = ["--test", "builtin:digits/val", "--limit", "40"]
TEST = ["--test", "builtin:digits/test", "--limit", "30"]


def seen(name: str) -> list[tuple[str, str, int]]:
    document = read_json(name)
    return [(one["by"], one["as"], one["n"]) for one in document.get("seen", [])]


def test_the_samples_of_a_circuit_travel_with_its_masks() -> None:
    expected = [("extract-circuit", "id", 40), ("extract-circuit", "ood", 40)]
    assert seen("circuit.json")[-2:] == expected
    assert [one for one in seen("c.mask.json") if one[0] == "extract-circuit"] == expected


@pytest.mark.parametrize("model", ["c.st", "hydra.st", "deep=t0.st+c.st"])
def test_what_a_circuit_saw_is_no_test_data(capsys: pytest.CaptureFixture[str], model: str) -> None:
    run("eval", model, *VAL, code=3)
    text = capsys.readouterr().err
    assert "test data that has been seen" in text and "40 of 40 samples of --test" in text
    assert "by extract-circuit (id)" in text and "--allow-seen" in text
    run("eval", model, *TEST, "--ood", "s=builtin:symbols", code=3)
    assert "samples of --ood s" in capsys.readouterr().err


def test_a_part_of_the_samples_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    """Three of the samples, copied into another file under other names."""
    from hydractl.data import open_data

    data = open_data("builtin:digits/val", limit=10)
    images = np.stack([np.asarray(data[i]) for i in range(7, 10)])
    other = np.random.default_rng(0).integers(0, 256, size=(5, *images.shape[1:]), dtype=np.uint8)
    np.savez("mixed.npz", x=np.concatenate([other, images]))
    run("eval", "c.st", "--test", "mixed.npz", code=3)
    assert "3 of 8 samples of --test" in capsys.readouterr().err


def test_seen_samples_may_be_measured_and_are_marked() -> None:
    sets = ["--ood", "s=builtin:symbols", "--ood", "l=builtin:letters"]
    row = evaluated("c.st", *VAL, *sets, "--allow-seen")["models"][0]
    assert row["seen"] == {"id": 40, "s": 40}
    assert "seen" not in evaluated("c.st", *TEST)["models"][0]


def test_pruning_by_mask_hands_on_what_the_mask_has_seen() -> None:
    run("prune", "base.st", "--mask", "c.mask.json", "-o", "again.st")
    run("eval", "again.st", *VAL, code=3)


@pytest.mark.parametrize("by", ["prune", *marked_long(["score"])])
def test_the_samples_that_scores_were_measured_on_are_no_test_data(capsys: pytest.CaptureFixture[str], by: str) -> None:
    """Those drawn, and not the rest of the set; two draws from one set are two entries."""
    draw = ["--method", "gate", "--data", "builtin:digits/val", "--samples", "9"]
    for seed in "01":
        if by == "score":
            run("score", "base.st", *draw, "--seed", seed, "-o", f"s{seed}.json")
            assert seen(f"s{seed}.json")[-1] == ("score", "calibration", 9)
            draw_or_scores = ["--scores", f"s{seed}.json"]
        else:
            draw_or_scores = [*draw, "--seed", seed]
        run("prune", "base.st", *draw_or_scores, "--keep", "2", "-o", f"m{seed}.st")
        assert seen(f"m{seed}.mask.json")[-1] == (by, "calibration", 9)
    run("fuse", "m0.st", "m1.st", "-o", "m.st")
    capsys.readouterr()
    run("eval", "m.st", "--test", "builtin:digits/val", code=3)
    assert f"9 by {by} (calibration), 9 by {by} (calibration)" in capsys.readouterr().err
    assert 9 < evaluated("m.st", "--test", "builtin:digits/val", "--allow-seen")["models"][0]["seen"]["id"] <= 18


def test_a_search_that_begins_with_a_mask_has_seen_what_the_mask_has() -> None:
    search = ["--val", "builtin:digits/test", "--limit", "20", "--objective", "acc", "--budget", "3"]
    run("extract-circuit", "base.st", *search, "--start-mask", "c.mask.json", "-o", "more.json", "-q")
    assert [one for one in seen("more.json") if one[1] == "id"] == [
        ("extract-circuit", "id", 40), ("extract-circuit", "id", 20),
    ]  # fmt: skip


def test_what_is_chosen_on_in_the_same_command_is_no_test_data(capsys: pytest.CaptureFixture[str]) -> None:
    run("eval", "base.st", *TEST, "--val", "builtin:digits/test", "--temperature", "fit", code=3)
    assert "of --test (all of them by eval (val))" in capsys.readouterr().err
    from hydractl.data import open_data

    data = open_data("builtin:digits/test", limit=12)
    x, y = np.stack([np.asarray(data[i]) for i in range(12)]), np.asarray(data.labels)
    np.savez("overlap.npz", x=x, y=y)
    run("eval", "base.st", *TEST, "--val", "overlap.npz", "--temperature", "fit", code=3)
    assert "12 of 30 samples of --test (12 by eval (val))" in capsys.readouterr().err


def test_info_says_what_was_seen(capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    run("--info", "hydra.st", "--json")
    found = json.loads(capsys.readouterr().out)
    assert "40 samples (id) by extract-circuit" in json.dumps(found)
