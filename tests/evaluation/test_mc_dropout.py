"""``eval --mc-dropout``: passes are members, at the cost of all of them, to the same bytes whenever it is run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from hydractl.cli.app import main
from hydractl.evaluation.predictions.reading import read_predictions
from tests.running import evaluated, read_json, run

TEST = ["--test", "builtin:digits/test", "--limit", "40", "--allow-seen"]
SETS = ["--ood", "letters:far=builtin:letters"]
MC = ["--mc-dropout", "0.2", "--passes", "4"]


@pytest.mark.long
def test_passes_are_members_and_cost_as_much() -> None:
    files = ["base.st", "hydra.st", "two=t0.st+t1.st"]
    plain = evaluated(*files, *TEST)["models"]
    found = evaluated(*files, *TEST, *SETS, *MC, "--bootstrap", "10")
    Path("e.json").write_text(json.dumps(found))
    assert main(["report", "e.json", "--html", "r.html", "-q"]) == 0
    for row, one, members in zip(found["models"], plain, (1, 3, 2), strict=True):
        assert row["name"] == one["name"] and row["heads"] == one["heads"]
        assert len(row["members"]) == 4 * members
        assert row["cost"] == {**one["cost"], "macs": 4 * one["cost"]["macs"]}
        assert row["mc_dropout"] == {"p": 0.2, "passes": 4, "seed": 0} and "mc_dropout" not in one
        assert row["diversity"]["id"]["mi"] > max(1e-5, one["diversity"]["id"]["mi"])
        assert row["id"] != one["id"] and len({m["nll"] for m in row["members"]}) == 4 * members
    page = Path("r.html").read_text()
    assert "4 passes, dropout rate 0.2, seed 0" in page


def command(name: str, *more: str) -> list[str]:
    files = ["--predictions", f"{name}.st", "-o", f"{name}.json", "-q"]
    return ["eval", "hydra.st", *TEST, *SETS, *MC, "--batch-size", "7", *files, *more]


@pytest.mark.long
def test_the_same_command_gives_the_same_bytes_also_after_a_kill(capsys: Any) -> None:
    run(*command("a"))
    run(*command("b", "--seed", "1"))
    whole = Path("a.st").read_bytes()
    assert Path("b.st").read_bytes() != whole
    logits = safetensors.numpy.load_file("a.st")["sets.0.logits"]
    assert logits.shape == (12, 40, 10) and len({one.tobytes() for one in logits}) == 12

    # What a kill leaves: two of the batches of the ID data and the end of the letters are not there yet.
    begun = read_predictions("a.st")
    part = bytearray(whole)
    data = safetensors.numpy.load_file("a.st")
    for index, samples in ((0, [*range(7, 14), *range(21, 28)]), (1, range(14, len(begun.sets[1].ids)))):
        values = data[f"sets.{index}.logits"]
        start = whole.index(values.tobytes())
        for member in range(12):
            for sample in samples:
                at = start + (member * values.shape[1] + sample) * 40
                part[at : at + 40] = b"\xff" * 40
    Path("e.st.part").write_bytes(part)
    run(*command("e", "--resume"))
    assert Path("e.st").read_bytes() == whole

    Path("d.st.part").write_bytes(part)
    run(*["5" if word == "4" else word for word in command("d", "--resume")], code=3)
    assert "mc_dropout: " in capsys.readouterr().err
    row, again = read_json("a.json")["models"][0], evaluated("a.st", "--allow-seen")["models"][0]
    assert {**again, "name": "hydra"} == row


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["base.st", "--passes", "5"], "--passes (flag) needs --mc-dropout"),
        (["base.st", "--mc-dropout", "1"], "--mc-dropout must be less than 1"),
        (["base.st", "--mc-dropout", "-0.1"], "--mc-dropout must be at least 0"),
        (["base.st", *MC[:2], "--passes", "1"], "--passes must be at least 2"),
        (["base.st", "p.st", *MC], "--mc-dropout runs a model, and p.st is a predictions file"),
    ],
)
def test_what_makes_no_sense_is_refused(capsys: Any, words: list[str], complaint: str) -> None:
    from tests.evaluation.stored import write_predictions

    write_predictions("p.st")
    run("eval", *words, "--test", "builtin:digits/test", code=2)
    assert complaint in capsys.readouterr().err


def test_a_stored_temperature_is_left_out_with_a_warning(capsys: Any) -> None:
    run("calibrate", "base.st", "--temperature", "3", "-o", "k.st")
    capsys.readouterr()
    for words in (["k.st", *MC], ["k.st+t0.st"]):
        assert "calibration" not in evaluated(*words, *TEST)["models"][0]
        run("eval", *words, *TEST, "-o", "e.json", "--force")
        assert "the stored calibration is left out" in capsys.readouterr().err
    run("eval", "k.st", *MC, *TEST, "--temperature", "none", "-o", "e.json", "--force")
    assert "left out" not in capsys.readouterr().err
    assert np.isfinite(read_json("e.json")["models"][0]["id"]["nll"])
