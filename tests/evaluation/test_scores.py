"""Several OOD scores in one answer, and another score for every row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hydractl
from hydractl.data import open_data
from hydractl.metrics.bootstrap import draw
from hydractl.metrics.ood import OOD_SCORES
from hydractl.metrics.ood_scores import SCORES
from hydractl.metrics.rows import ood_metrics
from tests.running import evaluated, read_json, run

SETS = {"id": "builtin:digits/test?take=120", "l": "builtin:letters?take=110", "s": "builtin:symbols?take=100"}
TEST = ["--test", SETS["id"], "--ood", f"l:near={SETS['l']}", "--ood", f"s:far={SETS['s']}", "--allow-seen"]


def logits_of(model: str) -> dict[str, np.ndarray]:
    """Of every test set, by the model as it is loaded."""
    import torch

    found = hydractl.load(model, device="cpu")
    with torch.no_grad():
        data = {name: open_data(spec) for name, spec in SETS.items()}
        return {
            n: found.member_logits(found.preprocess([d[i] for i in range(len(d))])).numpy() for n, d in data.items()
        }


def same(block: dict[str, Any], scores: dict[str, np.ndarray]) -> None:
    for name in ("l", "s"):
        expected = ood_metrics(scores["id"], scores[name]).metrics
        assert {key: block["ood"][name][key] for key in expected} == pytest.approx(expected, abs=1e-9)
    assert block["near_avg"]["auroc"] == block["ood"]["l"]["auroc"]
    assert block["ood_avg"]["auroc"] == pytest.approx((block["ood"]["l"]["auroc"] + block["ood"]["s"]["auroc"]) / 2)


def test_every_score_asked_for_stands_in_the_row() -> None:
    (row,) = evaluated("hydra.st", *TEST, "--ood-score", "energy,mi,gen", "--batch-size", "500")["models"]
    logits = logits_of("hydra.st")
    assert row["ood_score"] == "energy" and list(row["scores"]) == ["energy", "mi", "gen"]
    for name, block in row["scores"].items():
        same(block, {part: OOD_SCORES[name](values) for part, values in logits.items()})
        assert set(block) == {"errors", "ood", "near_avg", "far_avg", "ood_avg"}
        assert block["ood"]["l"]["group"] == "near"
    assert {key: row[key] for key in row["scores"]["energy"]} == row["scores"]["energy"]


@pytest.mark.long
def test_all_passes_over_what_says_nothing_of_a_single_model(capsys: pytest.CaptureFixture[str]) -> None:
    found = evaluated("base.st", "hydra.st", *TEST, "--limit", "100", "--ood-score", "all")
    base, hydra = found["models"]
    assert set(hydra["scores"]) - set(base["scores"]) == {"mi", "variance"} and "warnings" not in found
    assert list(hydra["scores"]) == list(SCORES)
    run("eval", "base.st", *TEST, "--ood-score", "mi", "--threshold", "score:0.1", "-o", "e.json")
    assert "base: no OOD metrics by mi, which of a single model is constant" in capsys.readouterr().err
    (row,) = read_json("e.json")["models"]
    assert row["ood"]["l"]["auroc"] is None and row["ood"]["l"]["n"] > 0 and row["ood_avg"]["auroc"] is None
    assert row["ood_score"] == "mi" and "threshold" not in row and row["curves"]["scores"] is None
    run("report", "e.json", "--html", "r.html")


def test_rows_with_scores_of_their_own_are_compared_in_pairs() -> None:
    run("calibrate", "hydra.st", "--ood-score", "energy", "-o", "hydra.json")
    rounds = ["--bootstrap", "20", "--calibration", "hydra.json"]
    found = evaluated("base.st", "hydra.st", *TEST, *rounds, "--batch-size", "500")
    base, hydra = found["models"]
    assert (base["ood_score"], hydra["ood_score"]) == ("msp", "energy") and "scores" not in hydra
    assert found["bootstrap"]["rounds"] == 20 and "difference" not in base
    assert found["conventions"]["ood_score"] == {"base": "msp", "hydra": "energy"}
    assert found["conventions"]["ood_scores"] == {name: SCORES[name].convention for name in ("msp", "energy")}
    both = [
        {part: OOD_SCORES[score](values) for part, values in logits_of(model).items()}
        for model, score in (("base.st", "msp"), ("hydra.st", "energy"))
    ]
    draws = {name: draw(0, name, len(values)) for name, values in both[0].items()}
    gaps = []
    for _ in range(20):
        rows = {name: np.repeat(np.arange(len(both[0][name])), next(draws[name])) for name in SETS}
        first, other = (ood_metrics(one["id"][rows["id"]], one["l"][rows["l"]]).auroc for one in both)
        gaps.append(other - first)
    assert hydra["difference"]["ood.l.auroc"]["ci"] == pytest.approx(np.quantile(gaps, [0.025, 0.975]), abs=1e-9)


def test_intervals_and_requirements_reach_every_score() -> None:
    asked = [*TEST, "--limit", "100", "--bootstrap", "10", "--ood-score", "msp,energy"]
    row = evaluated("base.st", "hydra.st", *asked, "--require", "hydra:scores.energy.ood_avg.auroc>0")["models"][1]
    assert row["ci"]["scores.msp.ood.l.auroc"] == row["ci"]["ood.l.auroc"]
    alone = evaluated("base.st", "hydra.st", *asked[:-1], "energy")["models"][1]
    for kind in ("ci", "difference"):
        assert row[kind]["scores.energy.ood_avg.auroc"] == alone[kind]["ood_avg.auroc"]
    run("eval", "hydra.st", *asked, "--require", "ci.scores.energy.ood_avg.auroc.0>1", "-o", "e.json", code=4)
    run("eval", "hydra.st", *asked, "--require", "scores.entropy.ood_avg.auroc>0", "-o", "f.json", code=2)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["energi"], "did you mean energy?"),
        (["msp", "energy,msp"], "--ood-score lists something twice: msp,energy,msp"),
        (["all,msp"], "--ood-score all names every score: leave out the others"),
        (["base=msp"], "--ood-score must be one of"),
    ],
)
def test_what_is_no_score_is_refused(capsys: pytest.CaptureFixture[str], options: list[str], complaint: str) -> None:
    asked = [text for one in options for text in ("--ood-score", one)]
    run("eval", "base.st", "--test", "builtin:digits/test", *asked, code=2)
    assert complaint in capsys.readouterr().err
