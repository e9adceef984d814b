"""Data and results that cannot be what was meant are warned of; honest ones are not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hydractl
from hydractl.data import open_data
from tests.running import evaluated, read_json, run

NAMES = [str(digit) for digit in range(10)]


def digits(split: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    data = open_data(f"builtin:digits/{split}", limit=count)
    assert data.labels is not None
    return np.stack([np.asarray(data[i]) for i in range(count)]), data.labels


@pytest.fixture(scope="module")
def right(models: Path) -> tuple[np.ndarray, np.ndarray]:
    """Test images, and labels by which ``base.st``, hardly trained, is always right."""
    images, _ = digits("test", 400)
    rows = hydractl.predict(models / "base.st", data=images, device="cpu").rows
    return images, np.array([int(row["predicted"]) for row in rows])


@pytest.mark.fault(65)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x, y: (x, y), None),
        (lambda x, y: (x, 9 - y), "with another order of the labels (label 0 as 9, 1 as 8, "),
        (lambda x, y: (x, (y + 3) % 10), "with another order of the labels (label "),
        (lambda x, y: (x * 0, y), "64 of 64 images that were looked at are of one colour each"),
    ],
)
def test_data_that_make_no_sense(
    right: tuple[np.ndarray, np.ndarray], change: Callable[..., Any], said: str | None
) -> None:
    images, labels = change(*right)
    np.savez("data.npz", x=images, y=labels)
    warnings = evaluated("base.st", "--test", "data.npz").get("warnings", [])
    assert (warnings == []) if said is None else any(said in warning for warning in warnings)


@pytest.mark.fault(65)
def test_a_handful_of_samples_proves_nothing() -> None:
    images, labels = digits("test", 10)
    np.savez("data.npz", x=images, y=9 - labels)
    assert "warnings" not in evaluated("base.st", "--test", "data.npz")


@pytest.mark.long
@pytest.mark.fault(65)
def test_a_temperature_is_advised_where_none_is_fitted_later(right: tuple[np.ndarray, np.ndarray]) -> None:
    images, labels = right
    every_third = np.arange(len(labels)) % 3 == 0
    np.savez("data.npz", x=images, y=np.where(every_third, (labels + 1) % 10, labels))
    overconfident = ["base.st", "--test", "data.npz", "--temperature", "0.005"]
    (warning,) = evaluated(*overconfident)["warnings"]
    assert warning.startswith("base: --test data.npz: NLL ")
    assert warning.endswith("that of the uniform prediction: fit a temperature with --temperature fit --val SPEC")
    # A command that reads stored logits can fit one to them; a study does.
    (warning,) = evaluated(*overconfident, "--predictions", "stored.st")["warnings"]
    assert warning.endswith("that of the uniform prediction")


@pytest.mark.fault(65)
def test_prediction_sets_of_all_classes() -> None:
    test = ["base.st", "--test", "builtin:digits/test", "--limit", "60", "--conformal", "0.1"]
    (warning,) = evaluated(*test, "--val", "builtin:digits/val?take=7")["warnings"]
    assert warning.startswith("base: every conformal set holds all 10 classes") and "7 validation samples" in warning
    assert "warnings" not in evaluated(*test, "--val", "builtin:digits/val")


@pytest.mark.fault(64)
def test_what_is_chosen_by_samples_the_model_was_trained_on() -> None:
    test = ["base.st", "--test", "builtin:digits/test", "--limit", "100"]
    said = "base was trained on 100 of 100 samples of --val"
    for chosen in (["--temperature", "fit"], ["--threshold", "id:0.1"], ["--conformal", "0.1"]):
        warnings = evaluated(*test, *chosen, "--val", "builtin:digits/train")["warnings"]
        (warning,) = (text for text in warnings if text.startswith(said))  # what was fitted may be odd besides
        assert "give validation data of its own" in warning
    assert "warnings" not in evaluated(*test, *chosen, "--val", "builtin:digits/val")
    assert "warnings" not in evaluated(*test, "--temperature", "2", "--val", "builtin:digits/train")  # chosen by nobody


@pytest.mark.long
@pytest.mark.fault(64)
def test_what_other_verbs_choose_by_samples_the_model_was_trained_on(capsys: pytest.CaptureFixture[str]) -> None:
    said = "base was trained on 100 of 100 samples of --val"
    data = ["--train", "builtin:digits/test", "--val", "builtin:digits/train", "--limit", "100"]
    run("finetune", "base.st", *data, "--ensemble", "laplace", "-o", "l.st", "--json")
    out, error = capsys.readouterr()
    assert said in error and said in json.loads(out)["warnings"][0]


@pytest.mark.fault(64)
def test_a_temperature_chosen_by_other_data(right: tuple[np.ndarray, np.ndarray]) -> None:
    np.savez("right.npz", x=right[0], y=right[1])
    images = np.stack([np.asarray(image) for image in open_data("builtin:letters", limit=300)])
    np.savez("letters.npz", x=images, y=np.arange(300) % 10)
    test = ["base.st", "--test", "right.npz", "--temperature", "fit"]
    warnings = evaluated(*test, "--val", "letters.npz")["warnings"]
    assert any(text.startswith("base: --val: accuracy 0.") for text in warnings)


@pytest.mark.fault(62)
@pytest.mark.parametrize(("shared", "warnings", "code"), [(4, 0, 0), (30, 1, 0), (60, 0, 3)])
def test_test_sets_that_share_samples(
    capsys: pytest.CaptureFixture[str], shared: int, warnings: int, code: int
) -> None:
    images, _ = digits("test", 200)
    other = np.stack([np.asarray(image) for image in open_data("builtin:letters", limit=100 - shared)])
    np.savez("mixed.npz", x=np.concatenate([images[:shared], other]))
    test = ["--test", "builtin:digits/test", "--limit", "200", "--ood", "mixed=mixed.npz"]
    run("eval", "base.st", *test, "-o", "o.json", code=code)
    text = f"{shared} of 100 samples of --ood mixed are among the 200 of --test"
    assert capsys.readouterr().err.count(text) == (1 if code or warnings else 0)
    if code == 0:
        assert len(read_json("o.json").get("warnings", [])) == warnings


@pytest.mark.fault(62)
def test_training_samples_are_no_validation_samples() -> None:
    train, val = digits("train", 60), digits("val", 100)
    np.savez("val.npz", x=np.concatenate([val[0], train[0][:3]]), y=np.concatenate([val[1], train[1][:3]]))
    np.savez("fit.npz", x=train[0], y=train[1])
    options = ["--test", "builtin:digits/test", "--limit", "200", "--train", "fit.npz", "--ood-score", "knn"]
    document = evaluated("base.st", *options, "--val", "val.npz", "--temperature", "fit")
    assert document["models"][0]["calibration"]["fitted_on"]["n"] == 100
    assert document["models"][0]["calibration"]["fitted_on"]["left_out"] == 3


@pytest.mark.fault(61)
@pytest.mark.parametrize(
    ("names", "code", "said"),
    [
        (NAMES[::-1], 3, "--labels gives 10 of the 10 classes of base the names of others: '9' is its class 9"),
        (
            [*NAMES[:8], "9", "8"],
            3,
            "--labels gives 2 of the 10 classes of base the names of others: '9' is its class 9",
        ),
        ([*NAMES[1:], "ten"], 3, "--labels gives 9 of the 10 classes of base the names of others"),
        ([*NAMES[:9], "nine"], 0, None),
        (NAMES, 0, None),
        (
            [f"n{name}" for name in NAMES],
            0,
            "base: --labels gives all 10 classes other names (0 is now n0, 1 is now n1, ",
        ),
    ],
)
def test_names_of_a_classifier_do_not_change_places(
    capsys: pytest.CaptureFixture[str], names: list[str], code: int, said: str | None
) -> None:
    images, labels = digits("test", 60)
    np.savez("data.npz", x=images, y=labels)
    Path("names.txt").write_text("\n".join(names))
    run("eval", "base.st", "--test", "data.npz", "--labels", "names.txt", "-o", "o.json", code=code)
    error = capsys.readouterr().err
    assert ("--labels gives" not in error) if said is None else said in error
    if code:
        assert "hint: leave --labels out" in error and "--label-map FILE of eval" in error


@pytest.mark.fault(61)
def test_names_that_say_nothing_become_real_ones() -> None:
    from hydractl.data.names import renaming_warning

    assert renaming_warning(["LABEL_0", "LABEL_1"], ["negative", "positive"], "bert") is None
    assert renaming_warning(["aquarium_fish", "bear"], ["aquarium fish", "bear"], "vit") is None
