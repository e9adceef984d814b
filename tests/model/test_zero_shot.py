"""Zero-shot models and their class names: built-in lists, sets of prompts, ensembles, against open_clip itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import hydractl
from hydractl.cli.app import main
from hydractl.errors import InputError, UsageError
from tests.model.conftest import LABELS
from tests.running import quiet as run
from tests.running import read_json


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
    found, expected = read_json("e.json")["models"], read_json("f.json")["models"]
    for one, other in zip(found, expected, strict=True):
        assert one["id"] == other["id"] and one["diversity"] == other["diversity"]
    assert read_json("e.json")["conventions"]["prompt"] == {"b+a": ["one {label}"], "b": ["one {label}"]}
