"""``calibrate``: chosen on validation data alone, as ``eval`` would choose, and written."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hydractl
from hydractl.cli.app import main
from hydractl.data import open_data
from hydractl.errors import InputError, UsageError
from hydractl.evaluation.fitting import as_good_as_the_best
from hydractl.files.calibrate_answer import ComparedScoreRecord
from hydractl.metrics.plausibility import chance_warning
from hydractl.model.source import open_source
from tests.running import evaluated, read_json, run, tensors

VAL = ["--val", "builtin:digits/val", "--limit", "60"]
OOD_VAL = ["--ood-val", "s=builtin:symbols"]
TEST = ["--test", "builtin:digits/test", "--limit", "60"]


def calibrated(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["calibrate", *arguments, "--json", "-q"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_it_chooses_what_eval_chooses_and_eval_takes_it_from_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = [*OOD_VAL, "--temperature", "fit", "--threshold", "ood:0.9", "--conformal", "0.2", "--ood-score", "energy"]
    document = calibrated(capsys, "base.st", *VAL, *chosen, "--note", "the only one", "-o", "k.st")
    (row,) = evaluated("base.st", *TEST, *VAL[:2], *chosen)["models"]
    assert document["schema"] == "hydractl.calibrate/1" and document["ood_score"] == "energy"
    assert document["calibration"] == row["calibration"]
    assert document["threshold"] == {key: row["threshold"][key] for key in ("score", "value", "rule")}
    assert document["conformal"]["qhat"] == row["conformal"]["qhat"] and document["val"]["n"] == 60
    (applied,) = evaluated("k.st", *TEST)["models"]
    assert applied["id"] == row["id"] and applied["threshold"] == row["threshold"]
    assert "threshold" not in evaluated("k.st", *TEST, "--ood-score", "msp")["models"][0]
    assert open_source("k.st").description.provenance["note"] == "the only one"
    before = tensors("base.st")
    assert all(np.array_equal(before[name], value) for name, value in tensors("k.st").items())


def test_more_numbers_than_samples_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    said = "base: --temperature vector fits 20 numbers to 19 validation samples: give more of them, or fit one number"
    few = ["--val", f"{VAL[1]}?take=19", "--temperature", "vector"]
    (warning,) = calibrated(capsys, "base.st", *few, "-o", "k.st")["warnings"]
    assert warning.startswith(said)
    assert any(warning.startswith(said) for warning in evaluated("base.st", *TEST, *few)["warnings"])
    # The file that has it is not told again, and as many samples as numbers will do, if every class has some.
    assert not any("numbers" in warning for warning in evaluated("k.st", *TEST).get("warnings", []))
    few[1] = f"{VAL[1]}?take=20"
    (warning,) = calibrated(capsys, "base.st", *few, "-o", "k6.st")["warnings"]
    assert "20 validation samples, of which 1 of 10 classes have none" in warning
    few[1] = f"{VAL[1]}?take=60"
    assert "warnings" not in calibrated(capsys, "base.st", *few, "-o", "k7.st")


@pytest.mark.long
def test_what_fits_no_longer_is_left_out_and_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    calibrated(
        capsys, "base.st", *VAL, "--temperature", "2", "--threshold", "id:0.1", "--conformal", "0.2", "-o", "k.st"
    )
    document = calibrated(capsys, "k.st", *VAL, "--temperature", "3", "-o", "again.st")
    assert any(
        "k: the stored threshold and conformal is left out: it was chosen with another calibration or OOD score; to "
        "choose anew: --threshold and --conformal" in warning
        for warning in document["warnings"]
    )
    assert not {"threshold", "conformal"} & open_source("again.st").description.extra.keys()
    document = calibrated(capsys, "k.st", *VAL, "--threshold", "id:0.2", "-o", "other.st")
    assert "warnings" not in document and "conformal" in open_source("other.st").description.extra


def test_a_file_without_prediction_sets_leaves_those_of_the_same_calibration(
    capsys: pytest.CaptureFixture[str],
) -> None:
    calibrated(capsys, "base.st", *VAL, "--temperature", "2", "--conformal", "0.2", "-o", "with_sets.st")
    sets = open_source("with_sets.st").description.extra["conformal"]
    calibrated(capsys, "with_sets.st", *VAL, "--threshold", "id:0.2", "-o", "threshold.json")
    document = calibrated(capsys, "with_sets.st", "--calibration", "threshold.json", "-o", "kept.st")
    assert "warnings" not in document and open_source("kept.st").description.extra["conformal"] == sets
    calibrated(capsys, "with_sets.st", *VAL, "--temperature", "3", "-o", "other.json")
    calibrated(capsys, "with_sets.st", "--calibration", "other.json", "-o", "left_out.st")
    assert "conformal" not in open_source("left_out.st").description.extra


def test_of_several_scores_the_one_with_the_highest_auroc_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["msp", "energy", "margin", "mi"]
    asked = [*VAL, *OOD_VAL, "--ood-score", ",".join(names), "--threshold", "ood:0.9"]
    document = calibrated(capsys, "base.st", *asked, "-o", "k.st")
    seen = ["--test", "builtin:digits/val", "--limit", "60", "--ood", "s=builtin:symbols"]
    (row,) = evaluated("base.st", *seen, "--ood-score", ",".join(names))["models"]
    aurocs = {name: row["scores"][name]["ood"]["s"]["auroc"] for name in names}
    compared = document["compared"]
    assert {name: compared[name]["auroc"] for name in names} == aurocs and aurocs["mi"] is None
    best = max(value for value in aurocs.values() if value is not None)
    near = [name for name, value in aurocs.items() if value is not None and best - value < 0.005]
    assert [document["ood_score"], *document.get("near_ties", [])] == near
    assert document["threshold"]["score"] == document["ood_score"]
    # The file is the answer for a script; the log says what was chosen, and what the threshold flags.
    assert main(["calibrate", "base.st", *asked, "-o", "again.st"]) == 0
    out, error = capsys.readouterr()
    assert out == "again.st\n"
    assert re.search(f"OOD score +{document['ood_score']}", error)
    value = f"score:{document['threshold']['value']!r}"
    (row,) = evaluated("base.st", *seen, "--ood-score", document["ood_score"], "--threshold", value)["models"]
    assert document["flagged"] == {"val": row["threshold"]["id_flagged"], **row["threshold"]["ood_flagged"]}
    assert f"{100 * document['flagged']['s']:.1f} % of s" in " ".join(error.split())


def test_a_score_that_tells_no_more_than_chance_is_warned_of() -> None:
    generator = np.random.default_rng(0)
    inside, alike, other = generator.normal(size=300), generator.normal(size=200), generator.normal(1, size=200)
    warning = chance_warning("energy", inside, {"a": alike})
    assert warning is not None
    assert warning.startswith("energy tells --ood-val from --val no better than chance may with 300 samples of --val (")
    assert "hedge" in warning
    assert chance_warning("energy", inside, {"a": alike, "o": other}) is None
    told_apart_by_one = chance_warning("energy", inside.min(keepdims=True) - 9, {"o": other})
    assert told_apart_by_one is not None and "with 1 samples of --val (AUROC 1.000): give more" in told_apart_by_one
    assert chance_warning("energy", None, {"a": alike}) is None and chance_warning("energy", inside, {}) is None


def test_near_ties_are_told_and_the_order_given_decides() -> None:
    means = {"msp": 0.9, "mi": None, "energy": 0.904, "gen": 0.88}
    compared = {name: ComparedScoreRecord(auroc=mean, by_set={}) for name, mean in means.items()}
    assert as_good_as_the_best(compared) == ["msp", "energy"]
    assert as_good_as_the_best({"energy": compared["energy"], "msp": compared["msp"]}) == ["energy", "msp"]


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        ([*VAL], 2, "calibrate needs something to choose"),
        (["--temperature", "fit"], 2, "--temperature fit needs --val"),
        ([*VAL, "--temperature", "base=2"], 2, "--temperature must be fit, vector, none or a number"),
        ([*VAL, "--ood-score", "msp,energy"], 2, "--ood-score msp,energy needs --ood-val (auto makes some)"),
        ([*VAL, "--ood-val", "s=builtin:digits/val", "--threshold", "ood:0.9"], 3, "are the same samples"),
        ([*VAL, "--ood-score", "mi", "--threshold", "id:0.05"], 3, "--ood-score mi is constant for base, a single"),
        ([*VAL, *OOD_VAL, "--ood-score", "mi,variance"], 3, "--ood-score mi,variance is constant for base"),
        ([*VAL, "--ood-score", "knn"], 2, "--ood-score knn needs --train SPEC"),
    ],
)
def test_what_makes_no_sense_is_refused(
    words: list[str], code: int, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", "base.st", *words, "-o", "k.st", "-q"]) == code
    assert problem in capsys.readouterr().err and not Path("k.st").exists()


def test_what_is_not_one_checkpoint_is_calibrated_to_a_file_for_eval(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = [*OOD_VAL, "--temperature", "fit", "--threshold", "ood:0.9", "--ood-score", "energy"]
    (row,) = evaluated("t0.st+t1.st", *TEST, *VAL[:2], *chosen)["models"]
    assert main(["calibrate", "t0.st+t1.st", *VAL, *chosen, "-o", "members.json", "-q"]) == 0
    stored = "stored.pred.st"
    kept = [*VAL, *OOD_VAL, "--temperature", "fit", "--threshold", "ood:0.9", "--predictions", stored]
    assert main(["eval", "t0.st+t1.st", *TEST, *kept, "-o", "kept.json", "-q"]) == 0
    assert main(["calibrate", stored, *VAL, *chosen, "-o", "stored.json", "-q"]) == 0
    documents = [read_json(file) for file in ("members.json", "stored.json")]
    for document in documents:
        assert document["calibration"] == row["calibration"] and document["ood_score"] == "energy"
        assert document["threshold"] == {key: row["threshold"][key] for key in ("score", "value", "rule")}
    # Each is for both: the members that run, and their predictions; a row of another model is left as it is.
    for file in ("members.json", "stored.json"):
        rows = evaluated("m=t0.st+t1.st", f"p={stored}", "t0.st", *TEST, "--calibration", file)["models"]
        for applied in rows[:2]:
            assert applied["calibration"] == {**row["calibration"], "stored": True}
            assert (applied["id"], applied["threshold"]) == (row["id"], row["threshold"])
        assert "calibration" not in rows[2] and rows[2]["ood_score"] == "msp"
    # Options of the command come first, and the file is for its models alone.
    (again,) = evaluated("t0.st+t1.st", *TEST, "--calibration", "members.json", "--temperature", "none")["models"]
    assert "calibration" not in again and "threshold" not in again
    capsys.readouterr()
    assert main(["eval", "t0.st", *TEST, "--calibration", "members.json"]) == 3
    assert "--calibration members.json is of another model, t0+t1" in capsys.readouterr().err
    for model in ("t0.st+t1.st", stored):
        assert main(["calibrate", model, "--temperature", "2", "-o", "k.st"]) == 2
        assert f"{model} is not one checkpoint: what is chosen for it is written as JSON" in capsys.readouterr().err


def test_validation_data_of_such_a_file_are_no_test_data_either(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "t0.st+t1.st", *VAL, "--temperature", "fit", "-o", "members.json", "-q"]) == 0
    own = ["t0.st+t1.st", "--test", "builtin:digits/val", "--calibration", "members.json"]
    assert main(["eval", *own, "-q"]) == 3
    assert "60 by calibrate (val)" in capsys.readouterr().err
    # Of stored predictions, which hold no samples, the whole set is recognised.
    assert main(["eval", "base.st", "--test", *VAL[1:], "--predictions", "p.st", "-o", "e.json", "-q"]) == 0
    assert main(["calibrate", "p.st", *VAL, "--temperature", "fit", "-o", "p.json", "-q"]) == 0
    capsys.readouterr()
    assert main(["eval", "p.st", "--calibration", "p.json", "-q"]) == 3
    assert "60 of 60 samples of --test (all of them by calibrate (val))" in capsys.readouterr().err
    assert main(["eval", "p.st", "-q"]) == 0


def test_a_checkpoint_may_be_calibrated_to_a_file_too() -> None:
    found = hydractl.calibrate("base.st", temperature=3, ood_score="energy", output="base.json")
    assert found.result.calibration.temperature == 3 and [file.name for file in found.result.files] == ["base.json"]
    with pytest.raises(UsageError, match="no checkpoint was written"):
        _ = found.source
    rows = hydractl.evaluate({"a": "base.st", "b": "hydra.st"}, test="builtin:digits/test", calibration="base.json")
    assert [row.ood_score for row in rows.models] == ["energy", "msp"]


def test_in_python_it_is_a_model_too() -> None:
    found = hydractl.calibrate("base.st", val="builtin:digits/val", limit=60, temperature=2.5, threshold="score:0.5")
    chosen = found.result
    assert (chosen.calibration.temperature, chosen.threshold.value, chosen.ood_score) == (2.5, 0.5, None)
    assert len(found.refs) == 1 and "temperature" in str(chosen)


def test_a_threshold_is_chosen_without_labels_and_a_temperature_is_not() -> None:
    dataset = open_data("builtin:digits/val", limit=60)
    np.savez("unlabelled.npz", x=np.stack([np.asarray(dataset[place]) for place in range(60)]))
    labelled = hydractl.calibrate("base.st", val="builtin:digits/val", limit=60, threshold="id:0.1")
    found = hydractl.calibrate("base.st", val="unlabelled.npz", threshold="id:0.1", output="other.st")
    assert found.result.threshold.value == labelled.result.threshold.value
    with pytest.raises(InputError, match="no label for sample"):
        hydractl.calibrate("base.st", val="unlabelled.npz", temperature="fit", output="third.st")


def test_a_calibration_with_the_name_of_a_row_is_for_that_row_alone() -> None:
    run("calibrate", "hot=base.st", *VAL, "--temperature", "2.5", "-o", "hot.json")
    rows = evaluated("cold=base.st", "hot=base.st", *TEST, "--calibration", "hot.json")["models"]
    assert [row.get("calibration") is None for row in rows] == [True, False]
    rows = evaluated("cold=base.st", "other=base.st", *TEST, "--calibration", "hot.json")["models"]
    assert [row.get("calibration") is None for row in rows] == [False, False]
