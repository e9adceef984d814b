"""Zero-shot models and their class names: built-in lists, sets of prompts, ensembles, against open_clip itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hydractl
from hydractl.cli.app import main
from hydractl.errors import InputError, UsageError
from tests.model.conftest import LABELS
from tests.model.test_two_towers import read, removed
from tests.pico import close
from tests.pico_clip import clip_images, clip_tokenizer, open_clip, pico_clip, zero_clip_columns
from tests.running import quiet as run


@pytest.mark.long
def test_imagenet_with_eighty_prompts_equals_the_library(clip: str) -> None:
    """The 1,000 classes and both published sets of templates, by the names of the options."""
    asked = ["--labels", "imagenet", "--prompt", "simple-imagenet"]
    run("prune", clip, "--method", "random", "--remove", "4", *asked, "-o", "a.st")
    model = hydractl.load("a.st", device="cpu")
    from open_clip.zero_shot_metadata import IMAGENET_CLASSNAMES, OPENAI_IMAGENET_TEMPLATES, SIMPLE_IMAGENET_TEMPLATES

    stock = zero_clip_columns(pico_clip("clip"), removed("a.mask.json"))
    images = clip_images()

    def expected(names: list[str], templates: Any) -> torch.Tensor:
        features = open_clip.build_zero_shot_classifier(stock, clip_tokenizer(), names, templates, 100)
        return stock.logit_scale.exp() * stock.encode_image(images, normalize=True) @ features

    with torch.no_grad():
        assert len(model.labels) == 1000
        close(model.member_logits(images)[0], expected(list(IMAGENET_CLASSNAMES), SIMPLE_IMAGENET_TEMPLATES))
        few = model.zero_shot(IMAGENET_CLASSNAMES[:20], "openai-imagenet")
        close(few.member_logits(images)[0], expected(list(IMAGENET_CLASSNAMES[:20]), OPENAI_IMAGENET_TEMPLATES))


def test_python_takes_names_of_lists_too(clip: str) -> None:
    model = hydractl.load(clip, device="cpu")
    assert model.zero_shot("cifar10").labels == model.zero_shot("builtin:cifar10").labels
    assert model.zero_shot("cifar10").classes == 10, "and not the letters of the name"
    assert model.zero_shot(["cat", "dog"], ["one {}", "two {}"]).prompted.templates == ["one {}", "two {}"]
    with pytest.raises(InputError, match="labels cat: neither a file nor a list of class names"):
        model.zero_shot("cat")
    with pytest.raises(UsageError, match="no place for the class name"):
        model.zero_shot(["cat"], "a photo")


def test_what_was_fitted_to_other_classes_or_prompts_is_left_out(clip: str, capsys: pytest.CaptureFixture[str]) -> None:
    fitted = ["--temperature", "fit", "--threshold", "id:0.1", "--conformal", "0.4"]
    run("calibrate", clip, "--val", "data.npz", *fitted, "-o", "k.st")
    Path("two.txt").write_text("cat\ndog\n")
    for asked in (["--labels", "two.txt"], ["--prompt", "one {label}"]):
        assert main(["predict", "k.st", "ood.npz", *asked, "-o", "p.jsonl", "--force", "--device", "cpu"]) == 0
        said = "k: calibration, threshold, conformal left out: fitted to other classes, to another order of them, or to"
        assert f"warning: {said} other prompts\n" in capsys.readouterr().err
        line = json.loads(Path("p.jsonl").read_text().splitlines()[0])
        assert not {"is_ood", "set"} & line.keys()
    # The classes and the prompt that it has already are no change.
    Path("same.txt").write_text("".join(f"{name}\n" for name in LABELS))
    asked = ["--labels", "same.txt", "--prompt", "A photo of a {label}."]
    assert main(["predict", "k.st", "ood.npz", *asked, "-o", "p.jsonl", "--force", "--device", "cpu"]) == 0
    assert "left out" not in capsys.readouterr().err
    assert {"is_ood", "set"} <= json.loads(Path("p.jsonl").read_text().splitlines()[0]).keys()


def test_members_without_class_names_take_those_of_the_others(clip: str) -> None:
    """Names come from --labels, else a member, else another row, and only then from the data."""
    Path("turned.json").write_text(json.dumps(LABELS[::-1]))
    run("prune", clip, "--method", "random", "--remove", "3", "--seed", "1", "-o", "b.st")
    asked = ["--labels", "turned.json", "--prompt", "one {label}"]
    run("prune", clip, "--method", "random", "--remove", "3", *asked, "-o", "a.st")
    run("prune", clip, "--method", "random", "--remove", "3", "--seed", "1", *asked, "-o", "c.st")
    # Where b.st took the names of the data, their order would differ from that of a.st.
    run("eval", "b.st+a.st", "b.st", "--test", "data.npz", "-o", "e.json")
    run("eval", "c.st+a.st", "c.st", "--test", "data.npz", "-o", "f.json")
    found, expected = read("e.json")["models"], read("f.json")["models"]
    for one, other in zip(found, expected, strict=True):
        assert one["id"] == other["id"] and one["diversity"] == other["diversity"]
    assert read("e.json")["conventions"]["prompt"] == {"b+a": ["one {label}"], "b": ["one {label}"]}


def test_classes_of_a_published_data_set_are_found_by_the_names_it_has(clip: str) -> None:
    with np.load("plain.npz") as plain:
        pixels, labels = plain["x"], plain["y"]
    np.savez("land.npz", x=pixels, y=labels, classes=["SeaLake", "AnnualCrop", "HerbaceousVegetation"])
    np.savez("plain.npz", x=pixels, y=np.array([9, 0, 2])[labels])
    run("eval", clip, "--test", "land.npz", "--labels", "eurosat", "-o", "a.json")
    run("eval", clip, "--test", "plain.npz", "--labels", "eurosat", "-o", "b.json")
    assert read("a.json")["models"][0]["id"] == read("b.json")["models"][0]["id"]
