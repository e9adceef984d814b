"""Numbers that are fitted to too little, or tell nothing apart, are refused or said by every verb that fits them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hydractl
from hydractl.cli.app import main
from hydractl.data import open_data
from hydractl.errors import InputError, UsageError
from tests.running import evaluated, link_files

TEST = ["--test", "builtin:digits/test", "--limit", "60"]


@pytest.fixture(scope="module")
def made(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of one sample, 31 of a class, 300 with shuffled labels, 300 with wrong labels, and 15 as they are."""
    folder = tmp_path_factory.mktemp("attacks")
    data = open_data("builtin:digits/val")
    pixels = np.stack([np.asarray(data[row]) for row in range(len(data))])
    labels = np.array(data.labels)
    rows_of_class = np.flatnonzero(labels == 3)[:31]
    shuffled = np.random.default_rng(0).permutation(labels)
    np.savez(folder / "one.npz", x=pixels[:1], y=labels[:1])
    np.savez(folder / "class.npz", x=pixels[rows_of_class], y=labels[rows_of_class])
    np.savez(folder / "shuffled.npz", x=pixels, y=shuffled)
    rows = hydractl.predict(models / "base.st", data="builtin:digits/val").rows
    predicted = np.array([int(row["predicted"]) for row in rows])
    np.savez(folder / "wrong.npz", x=pixels, y=(predicted + 1) % 10)
    np.savez(folder / "few.npz", x=pixels[:15], y=labels[:15])
    return folder


@pytest.fixture
def attacks(inside: None, made: Path) -> None:
    """These files in the folder of the test."""
    link_files(made, Path())


@pytest.mark.fault(88)
@pytest.mark.usefixtures("attacks")
@pytest.mark.parametrize(("data", "words"), [("one.npz", "here 1 sample can be read"), ("class.npz", "of one class")])
def test_fault_88_no_verb_fits_to_one_sample_or_one_class(
    data: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind in ("fit", "vector"):
        fitted = ["--val", data, "--temperature", kind]
        assert main(["calibrate", "base.st", *fitted, "-o", "k.st"]) == 3
        assert words in capsys.readouterr().err
        assert main(["eval", "a=base.st", "b=hydra.st", *TEST, *fitted, "-o", "e.json"]) == 3
        assert words in capsys.readouterr().err
    assert not Path("k.st").exists() and not Path("e.json").exists()
    with pytest.raises(InputError, match=words):
        hydractl.calibrate("base.st", val=data, temperature="fit")
    # The ways through.
    assert main(["calibrate", "base.st", "--val", data, "--temperature", "2", "-o", "k.st"]) == 0


@pytest.mark.fault(88)
@pytest.mark.usefixtures("attacks")
def test_fault_88_a_score_that_is_fitted_to_one_class(capsys: pytest.CaptureFixture[str]) -> None:
    fitted = ["--train", "class.npz", "--ood-score", "mahalanobis", "-o", "k.st"]
    assert main(["calibrate", "base.st", "--val", "builtin:digits/val", *fitted]) == 0
    assert "--train class.npz: all 31 samples are of one class, 3" in capsys.readouterr().err


@pytest.mark.fault(88)
@pytest.mark.usefixtures("attacks")
def test_fault_88_shuffled_labels_and_few_samples_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    fitted = ["--temperature", "fit", "-o", "k.st", "--force"]
    assert main(["calibrate", "base.st", "--val", "shuffled.npz", *fitted]) == 0
    assert "its 95 % interval" in capsys.readouterr().err
    assert main(["calibrate", "base.st", "--val", "wrong.npz", *fitted]) == 0
    told = capsys.readouterr().err
    assert "warning: base: the temperature 100 is at the end of its range" in told
    assert "warning: base: --val: accuracy" in told
    wrong = ["--val", "wrong.npz", "--temperature", "fit"]
    warnings = evaluated("a=base.st", *TEST, *wrong)["warnings"]
    assert any(warning.startswith("a: the temperature 100 ") for warning in warnings)
    few = ["--val", "few.npz", "--threshold", "id:0.05", "--conformal", "0.1"]
    assert main(["calibrate", "base.st", *few, "-o", "few.st"]) == 0
    told = capsys.readouterr().err
    assert "the threshold id:0.05" in told and "is a quantile of 15 samples of --val" in told
    assert "the prediction sets are by a quantile of 15 samples" in told
    # The file that has them is not told again.
    assert not any("quantile" in warning for warning in evaluated("few.st", *TEST).get("warnings", []))


@pytest.mark.fault(88)
@pytest.mark.usefixtures("attacks")
def test_fault_88_a_number_alone_is_no_threshold(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in (["calibrate", "base.st", "-o", "k.st"], ["eval", "base.st", *TEST]):
        assert main([*verb, "--val", "builtin:digits/val", "--threshold", "0.05"]) == 2
        told = capsys.readouterr().err
        assert "id:0.05" in told and "score:0.05" in told
    assert main(["calibrate", "base.st", "--threshold", "-3", "-o", "k.st"]) == 2
    told = capsys.readouterr().err
    assert "score:-3" in told and "id:-3" not in told
    Path("hydra.yaml").write_text("calibrate:\n  threshold: 0.05\n")
    assert main(["calibrate", "base.st", "-o", "k.st"]) == 2
    assert "id:0.05" in capsys.readouterr().err
    Path("hydra.yaml").unlink()
    with pytest.raises(UsageError, match="score:0.05"):
        hydractl.calibrate("base.st", val="builtin:digits/val", threshold=0.05)  # type: ignore[arg-type]

    # A value of the score is stored as it is, and tried where there is validation data.
    assert main(["calibrate", "base.st", "--threshold", "score:-0.4", "-o", "given.st"]) == 0
    assert "flags" not in capsys.readouterr().err
    assert evaluated("given.st", *TEST)["models"][0]["threshold"]["value"] == -0.4
    assert main(["calibrate", "base.st", "--val", "few.npz", "--threshold", "score:0.05", "-o", "none.st"]) == 0
    assert "the threshold score:0.05 flags none of the 15 samples of --val" in capsys.readouterr().err
