"""Temperatures, thresholds and prediction sets: chosen on validation data, kept in a checkpoint, used afterwards."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hydractl
from hydractl.data import open_data
from tests.running import evaluated, run
from tests.spread import marked_long

TEST = ["--test", "builtin:digits/test"]
VAL = ["--val", "builtin:digits/val"]


def log_p(model: str, spec: str) -> tuple[np.ndarray, np.ndarray]:
    """log p ``[N, 10]`` in float64 and labels, by torch alone."""
    found, data = hydractl.load(model, device="cpu"), open_data(spec)
    with torch.no_grad():
        logits = found.member_logits(found.preprocess([data[i] for i in range(len(data))])).double()
    p = logits.softmax(-1).mean(0)
    return p.log().numpy(), np.asarray(data.labels)


def nll(values: np.ndarray, labels: np.ndarray) -> float:
    values = values - np.logaddexp.reduce(values, axis=1, keepdims=True)
    return float(-values[np.arange(len(labels)), labels].mean())


def test_the_fitted_temperature_is_the_best_of_a_fine_grid() -> None:
    row = evaluated("hydra.st", *TEST, *VAL, "--temperature", "fit", "--allow-seen")["models"][0]
    values, labels = log_p("hydra.st", "builtin:digits/val")
    grid = np.exp(np.linspace(-2, 2, 2001))
    best = grid[np.argmin([nll(values / t, labels) for t in grid])]
    found = row["calibration"]
    assert found["temperature"] == pytest.approx(best, rel=2e-3)
    assert found["kind"] == "temperature" and found["fitted_on"]["n"] == len(labels)
    tested, truth = log_p("hydra.st", "builtin:digits/test")
    assert row["id"]["nll"] == pytest.approx(nll(tested / found["temperature"], truth), abs=1e-5)


@pytest.mark.parametrize(
    ("rule", "side", "outside"),
    [
        ("ood:0.9", "builtin:symbols", "s=builtin:symbols"),
        *marked_long(
            [
                ("ood:0.9", "builtin:digits/val?ood=auto", "auto"),
                ("id:0.05", "builtin:digits/val", "s=builtin:symbols"),
            ]
        ),
    ],
)
def test_a_threshold_holds_on_what_it_was_chosen_on(rule: str, side: str, outside: str) -> None:
    sets = ["--ood", "l=builtin:letters", "--ood-val", outside, *VAL]
    row = evaluated("base.st", *TEST, *sets, "--threshold", rule)["models"][0]["threshold"]
    scores = -np.exp(log_p("base.st", side)[0]).max(1)
    # Rounding may differ between batches: what is chosen lies on a score, or next to one.
    if rule == "ood:0.9":
        assert (scores >= row["value"] - 1e-6).mean() >= 0.9
    else:
        assert (scores >= row["value"] + 1e-6).mean() <= 0.05
    tested = -np.exp(log_p("base.st", "builtin:digits/test")[0]).max(1)
    assert row["id_flagged"] == pytest.approx((tested >= row["value"]).mean(), abs=0.01)
    assert set(row["ood_flagged"]) == {"l"} and row["rule"] == rule


def test_prediction_sets_hold_the_label_often_enough() -> None:
    for score in ("aps", "lac"):
        found = evaluated("base.st", *TEST, *VAL, "--conformal", "0.1", "--conformal-score", score)["models"][0]
        sets = found["conformal"]
        assert sets["method"] == score and sets["n_val"] == len(open_data("builtin:digits/val"))
        assert sets["coverage"] > 0.85 and 1 <= sets["mean_size"] < 10
    values, labels = log_p("base.st", "builtin:digits/test")
    inside = 1 - np.exp(values) <= sets["qhat"]
    assert sets["coverage"] == pytest.approx(inside[np.arange(len(labels)), labels].mean(), abs=0.005)
    assert sets["mean_size"] == pytest.approx(inside.sum(1).mean(), abs=0.02)


@pytest.mark.long
def test_what_was_chosen_stays_with_the_checkpoint() -> None:
    chosen = [*VAL, "--ood-val", "s=builtin:symbols", "--temperature", "fit", "--threshold", "ood:0.95"]
    run("calibrate", "base.st", *chosen, "-o", "k.st")
    temperature = evaluated("k.st", *TEST)["models"][0]["calibration"]["temperature"]
    plain = evaluated("k.st", *TEST, "--temperature", "none")["models"][0]
    assert plain["id"] == evaluated("base.st", *TEST)["models"][0]["id"]
    assert "calibration" not in plain and "threshold" not in plain
    values, _ = log_p("base.st", "builtin:digits/test")
    model, data = hydractl.load("k.st", device="cpu"), open_data("builtin:digits/test")
    with torch.no_grad():
        found = model(model.preprocess([data[i] for i in range(len(data))])).double().numpy()
    scaled = values / temperature
    expected = scaled - np.logaddexp.reduce(scaled, axis=1, keepdims=True)
    assert np.allclose(found, expected, atol=1e-4)


def test_other_weights_drop_what_was_chosen() -> None:
    run("calibrate", "base.st", "--temperature", "3", "-o", "k.st")
    run("prune", "k.st", "--method", "magnitude", "--keep", "2", "-o", "p.st")
    assert "calibration" not in evaluated("p.st", *TEST)["models"][0]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--temperature", "fit"], "--temperature fit needs --val"),
        (["--temperature", "0"], "--temperature must be fit, vector, none or a number above 0"),
        (["--threshold", "id:0.01"], "--threshold id:0.01 needs --val"),
        (["--threshold", "ood:0.9"], "--threshold ood:0.9 needs --ood-val"),
        (["--threshold", "high"], "--threshold must be ood:SHARE, id:SHARE or score:X"),
        (["--conformal", "0.1"], "--conformal needs --val"),
        (["--conformal", "1"], "--conformal must be less than 1"),
        (["--ood-val", "builtin:symbols"], "--ood-val must be NAME"),
        (["--ood-val", "o=auto"], "--ood-val auto needs --val"),
    ],
)
def test_what_makes_no_sense_is_refused(capsys: pytest.CaptureFixture[str], options: list[str], complaint: str) -> None:
    run("eval", "base.st", *TEST, *options, code=2)
    assert complaint in capsys.readouterr().err


def test_any_number_can_be_required(capsys: pytest.CaptureFixture[str]) -> None:
    options = [*TEST, *VAL, "--conformal", "0.1", "--bootstrap", "20", "-o", "e.json"]
    ask = ["--require", "conformal.coverage>=0.5", "--require", "ci.id.accuracy.0>=0.1", "--require", "cost.params>1"]
    run("eval", "base.st", *options, *ask)
    run("eval", "base.st", *options, "--force", "--require", "ci.id.accuracy.1<0.1", code=4)
    run("eval", "base.st", *options, "--force", "--require", "ci.id.accurcy.1<0.1", code=2)
    assert "did you mean ci.id.accuracy.1" in capsys.readouterr().err
