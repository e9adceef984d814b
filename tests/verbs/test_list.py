"""``hydractl list``: every registry to the last entry, patterns, both doors, and how little is imported for it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import hydractl
from hydractl.cli.app import main
from hydractl.criteria import CRITERIA
from hydractl.data.corruptions import TABLE
from hydractl.data.suites import SUITES
from hydractl.errors import UsageError
from hydractl.families import FAMILIES
from hydractl.methods import METHODS
from hydractl.metrics.declaration import metrics
from hydractl.metrics.feature_scores.scores import FEATURE_SCORES
from hydractl.metrics.ood_scores import SCORES
from hydractl.settings.yaml_files import recipe_names
from hydractl.verbs.list import KINDS

REGISTRIES = {
    "scores": [*SCORES, *FEATURE_SCORES],
    "metrics": [
        *(metric.key for kind in ("id", "ood", "diversity") for metric in metrics(kind)),
        *(f"errors.{metric.key}" for metric in metrics("errors")),
    ],
    "methods": METHODS.names,
    "criteria": CRITERIA.names,
    "suites": [*SUITES],
    "corruptions": [*TABLE],
    "recipes": recipe_names(),
    "models": [f"{name}:NAME" for name in FAMILIES.names],
}


def names(kind: str, pattern: str = "") -> list[str]:
    return [entry["name"] for entry in hydractl.available(kind, pattern)["entries"]]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_listed_is_what_there_is(kind: str) -> None:
    entries = hydractl.available(kind)["entries"]
    assert sorted(entry["name"] for entry in entries) == sorted(REGISTRIES[kind])
    assert all(entry["about"] and not entry["about"].endswith(".") for entry in entries)
    assert len(KINDS[kind].names()) == len(entries)


def test_the_kinds_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["schema"] == "hydractl.list/1" and "kind" not in answer) or answer["kind"] is None
    counts = {entry["name"]: entry["count"] for entry in answer["entries"]}
    assert counts == {kind: len(registered) for kind, registered in REGISTRIES.items()}


def test_what_an_entry_needs() -> None:
    needs = {}
    for kind in ("scores", "criteria", "corruptions", "methods"):
        needs.update({entry["name"]: entry["needs"] for entry in hydractl.available(kind)["entries"]})
    assert needs["msp"] == "" and needs["variance"] == "several members"
    assert needs["mahalanobis"] == "labelled training data (--train)" and needs["ash"] == ""
    assert needs["neglabel"] == "words that name no class (--negative-words)" and needs["mcm"] == ""
    assert needs["taylor"] == "labelled samples (--data)" and needs["random"] == ""
    assert needs["frost"] == "images of frost (--photographs)" and needs["fog"] == ""
    assert needs["lora"] == "training data" and needs["mc_dropout"] == ""


def test_scores_for_features_that_are_not_negative_say_so() -> None:
    about = {entry["name"]: entry["about"] for entry in hydractl.available("scores")["entries"]}
    assert [name for name, text in about.items() if "not negative" in text] == ["react", "ash", "scale"]


def test_patterns() -> None:
    assert names("scores", "ENTR") == ["entropy"]
    assert names("corruptions", "*_blur") == ["defocus_blur", "glass_blur", "motion_blur", "zoom_blur"]
    assert names("models", "vit_b_*") == ["torchvision:vit_b_16", "torchvision:vit_b_32"]
    assert "timm:vit_base_patch16_224" in names("models", "timm:vit_base_patch1?_224")
    assert "open_clip:ViT-B-32" in names("models", "open_clip:vit-b-32")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["scors"], "recipes, models, not 'scors'; did you mean scores?"),
        (["scores", "m", "n"], "list takes a kind and a pattern, not scores m n"),
        (["scores", "zzz"], "none of the scores fits 'zzz'"),
    ],
)
def test_what_makes_no_sense(words: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", *words]) == 2
    assert problem in capsys.readouterr().err


def test_a_model_for_other_verbs_is_no_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hydra.yaml").write_text("model: vit.st\ndata: train/")
    assert main(["list"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("scores ")


def test_in_python_there_is_no_such_kind_either() -> None:
    with pytest.raises(UsageError, match="list takes one of scores"):
        hydractl.available("score")


WITHOUT_TORCH = """
import sys
from hydractl.cli.app import main
for kind in sys.argv[1:]:
    assert main(["list", kind]) == 0, kind
    assert "torch" not in sys.modules, kind
"""


def test_torch_is_not_imported() -> None:
    kinds = ["metrics", "methods", "criteria", "suites", "corruptions", "recipes", "models"]
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *kinds], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
