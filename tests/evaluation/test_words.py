"""Scores on class texts: MCM and NegLabel, against open_clip's own features and their definitions in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import hydractl
from hydractl.evaluation.predictions.reading import read_predictions
from tests.pico_clip import class_features, pico_clip, publish_clip
from tests.running import evaluated, json_lines, read_json, run

LABELS = ["tin", "oak", "salt"]
WORDS = ["lamp", "river", "cloud", "green", "mouse", "a very long road"]
TEST = ["--test", "data.npz", "--ood", "o=ood.npz"]


@pytest.fixture(autouse=True)
def clips(inside: None) -> None:
    """Two published CLIPs, ``data.npz`` with class names, ``ood.npz``, and words of which one names a class."""
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (40, 16, 16, 3), dtype=np.uint8)
    np.savez("data.npz", x=pixels, y=np.arange(40) % 3, classes=np.array(LABELS))
    train = random.integers(0, 256, (60, 16, 16, 3), dtype=np.uint8)
    np.savez("train.npz", x=train, y=np.arange(60) % 3, classes=np.array(LABELS))
    np.savez("ood.npz", x=random.integers(0, 256, (17, 16, 16, 3), dtype=np.uint8))
    Path("words.txt").write_text("\n".join([*WORDS, "OAK", WORDS[0], ""]))
    for seed, name in enumerate(("first", "second")):
        Path(name).mkdir()
        publish_clip(pico_clip("clip", seed), "clip", Path(name))


@torch.no_grad()
def expected(seed: int, images: torch.Tensor) -> dict[str, np.ndarray]:
    """Both scores of one member, by the features that the library makes."""
    stock = pico_clip("clip", seed)
    templates = ["A photo of a {}."]
    image_features = stock.encode_image(images, normalize=True).double().numpy()
    of_classes = image_features @ class_features(stock, "clip", LABELS, templates).double().numpy().T
    of_words = image_features @ class_features(stock, "clip", WORDS, templates).double().numpy().T
    powers = np.exp(of_classes)
    inside = np.exp(of_classes / 0.01).sum(axis=1)
    outside = np.exp(of_words / 0.01).sum(axis=1)
    return {
        "mcm": -(powers / powers.sum(axis=1, keepdims=True)).max(axis=1),
        "neglabel": -inside / (inside + outside),
    }


def pixels_of(path: str) -> torch.Tensor:
    model = hydractl.load("first", device="cpu")
    return model.preprocess(list(np.load(path)["x"]))


def test_both_are_those_of_open_clip_for_one_model_and_for_an_ensemble() -> None:
    asked = [*TEST, "--ood-score", "neglabel,mcm", "--negative-words", "words.txt"]
    run("eval", "first+second", *asked, "--predictions", "p.pred.st", "-o", "e.json")
    predictions = read_predictions("p.pred.st")
    of_members = [expected(seed, pixels_of("data.npz")) for seed in (0, 1)]
    for name, tolerance in (("mcm", 1e-6), ("neglabel", 1e-3)):
        (batch,) = predictions.batches(predictions.sets[0])
        kept = batch.scores[name]
        assert kept == pytest.approx(np.stack([scores[name] for scores in of_members]), abs=tolerance)
    row = read_json("e.json")["models"][0]
    assert list(row["scores"]) == ["neglabel", "mcm"] and len(row["fitted_on"]["negative_words"]) == 64
    # MCM is a probability, NegLabel is none of the answer.
    assert row["scores"]["mcm"]["errors"]["ece"] > 0 and row["scores"]["neglabel"]["errors"]["ece"] is None
    assert row["scores"]["mcm"]["errors"]["auroc"] is not None


def test_a_checkpoint_keeps_the_words() -> None:
    asked = ["--ood-score", "neglabel", "--negative-words", "words.txt", "--val", "data.npz", "--threshold", "id:0.1"]
    run("calibrate", "first", *asked, "-o", "k.st")
    model = hydractl.load("k.st", device="cpu")
    found = model.predict(pixels_of("ood.npz")).ood_score
    wanted = expected(0, pixels_of("ood.npz"))["neglabel"]
    assert found.tolist() == pytest.approx(wanted.tolist(), abs=1e-3)
    run("predict", "k.st", "ood.npz", "-o", "lines.jsonl")
    lines = json_lines("lines.jsonl")
    assert [line["ood_score"] for line in lines if "ood_score" in line] == pytest.approx(found.tolist(), abs=1e-6)
    # Without words those of the file are taken, also beside a score that is fitted to training data.
    both = ["--train", "train.npz", "--ood-score", "neglabel,vim", "--allow-seen"]
    first = evaluated("k.st", *TEST, "--allow-seen")["models"][0]
    second = evaluated("k.st", *TEST, *both)["models"][0]
    assert first["ood"]["o"] == second["scores"]["neglabel"]["ood"]["o"] and "vim" in second["scores"]
    # Others, where they are given.
    Path("others.txt").write_text("tree\nhouse\n")
    others = ["--ood-score", "neglabel", "--negative-words", "others.txt", "--allow-seen"]
    third = evaluated("k.st", *TEST, *others)["models"][0]
    assert third["fitted_on"]["negative_words"] != first["fitted_on"]["negative_words"]


@pytest.mark.parametrize(
    ("model", "options", "code", "complaint"),
    [
        ("first", ["--ood-score", "neglabel"], 2, "--ood-score neglabel needs --negative-words FILE"),
        ("first", ["--negative-words", "words.txt"], 2, "--negative-words (flag) needs --ood-score neglabel"),
        ("first", ["--ood-score", "neglabel", "--negative-words", "no.txt"], 3, "--negative-words no.txt: cannot read"),
        ("first", ["--ood-score", "neglabel", "--negative-words", "blank.txt"], 3, "no words in the file"),
        ("first", ["--ood-score", "neglabel", "--negative-words", "classes.txt"], 3, "names a class"),
        (
            "base.st",
            ["--ood-score", "neglabel", "--negative-words", "words.txt"],
            2,
            "--ood-score neglabel is of class texts, and base is not zero-shot",
        ),
    ],
)
def test_what_is_refused(
    capsys: pytest.CaptureFixture[str], model: str, options: list[str], code: int, complaint: str
) -> None:
    Path("blank.txt").write_text("\n \n")
    Path("classes.txt").write_text("tin\nSalt\n")
    data = "data.npz" if model == "first" else "builtin:digits/test"
    run("eval", model, "--test", data, *options, "-o", "e.json", code=code)
    error = capsys.readouterr().err
    assert complaint in error
    if options == ["--ood-score", "neglabel"]:
        assert "a text file of words that name no class, one a line" in error
