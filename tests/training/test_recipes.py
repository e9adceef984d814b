"""Recipes: the numbers of the paper (C.1, D.2), what weighs more than a recipe, and that every name means something."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hydractl.api.finetune import recipe_options
from hydractl.cli.app import main
from hydractl.errors import UsageError
from hydractl.log import Log
from hydractl.options.call import gather
from hydractl.options.verbs import declared, options_of_verb
from hydractl.options.yaml_files import RECIPES, recipe_names
from tests.calls import checked, values_when_ready

BASES = ["base-cifar100", "base-imagenet1k", "base-imagenet21k"]
NAMES = [*BASES, "cifar100", "clip-locked-image", "default", "imagenet1k", "sst2"]
VIT = {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.0, "label_smoothing": 0.1, "schedule": "cosine",
       "lr_floor": 1e-5, "freeze": ["patch", "position", "class_token", "layer_scale"]}  # fmt: skip
WHOLE = {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.0, "dropout": 0.0, "warmup": 500, "schedule": "cosine",
         "lr_floor": 0.0, "label_smoothing": 0.0, "augment": ["crop:0.08", "flip"], "init": "given",
         "reset_head": True, "freeze": []}  # fmt: skip
PAPER: dict[str, dict[str, Any]] = {
    "base-imagenet21k": {"init": "random", "optimizer": "adamw", "lr": [1e-3], "dropout": 0.1, "weight_decay": 0.03,
                         "betas": [0.9, 0.999], "warmup": 10000, "schedule": "linear", "epochs": 90,
                         "augment": ["crop:0.08", "flip"], "label_smoothing": 0.0},
    "base-imagenet1k": {**WHOLE, "lr": [0.003, 0.01, 0.03, 0.06], "steps": 20000},
    "base-cifar100": {**WHOLE, "lr": [0.001, 0.003, 0.01, 0.03], "steps": 10000},
    "imagenet1k": {**VIT, "lr": [0.003, 0.01, 0.03, 0.06], "steps": 120000, "warmup": 5000, "dropout": 0.1,
                   "augment": ["crop", "flip", "randaugment:2:12"], "train_last": None},
    "cifar100": {**VIT, "lr": [0.001, 0.003, 0.01, 0.03], "steps": 10000, "warmup": 500, "train_last": 5,
                 "reset_head": True, "augment": ["crop", "flip"], "dropout": None},
    "sst2": {"optimizer": "adamw", "lr": [1e-5], "weight_decay": 0.01, "warmup": 0.1, "schedule": "linear", "clip": 1.0,
             "max_length": 128, "epochs": 7, "patience": 2, "min_delta": 5e-4},
    "clip-locked-image": {"tower": "text", "epochs": 1, "batch_size": 1500 * 16, "accumulate": 4,
                          "schedule": "cosine", "lr": [5e-5], "warmup": 100, "optimizer": "adamw",
                          "betas": [0.9, 0.98], "eps": 1e-6, "weight_decay": 0.2, "loss": "contrastive",
                          "augment": ["crop:0.9"], "clip": 0.0, "lr_floor": 0.0, "train": "captions:d.csv"},
}  # fmt: skip


class Told(Log):
    """A log that keeps what a person is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def info(self, message: str) -> None:
        self.told.append(message)


def settings(**arguments: Any) -> Any:
    """The values in effect of a call, with what it logged."""
    given = {"model": ["x.st"], "train": "d", "val": "v", **arguments}
    call = gather(declared("finetune"), {name: value for name, value in given.items() if value is not None})
    call.log = log = Told()
    return SimpleNamespace(**values_when_ready(call), notes=log.told)


def test_the_recipes_are_these() -> None:
    assert recipe_names() == NAMES
    help_text = next(one.help for one in options_of_verb("finetune") if one.name == "recipe")
    for name in NAMES:
        assert name in help_text and "about: " in (RECIPES / f"{name}.yaml").read_text()


@pytest.mark.parametrize("name", PAPER)
def test_a_recipe_says_what_the_paper_says(name: str) -> None:
    made = settings(recipe=name, train=PAPER[name].get("train", "d"))
    made.train = made.train.text
    assert {key: getattr(made, key) for key in PAPER[name]} == PAPER[name]


def test_the_default_recipe_changes_nothing() -> None:
    plain, named = settings(), settings(recipe="default")
    assert [getattr(plain, o.name) for o in recipe_options()] == [getattr(named, o.name) for o in recipe_options()]


def test_flag_over_variable_over_file_over_recipe(tmp_path: Path) -> None:
    (tmp_path / "hydra.yaml").write_text("clip: 3\nfinetune: {recipe: sst2, warmup: 0.2, clip: 4}\nweight_decay: 7\n")
    flags: dict[str, Any] = {"model": ["a.st"], "train": "d", "val": "v", "patience": "5"}
    made = checked("finetune", flags, {"HYDRACTL_CLIP": "5"}, tmp_path)
    assert (made.patience, made.clip, made.warmup, made.weight_decay) == (5, 5.0, 0.2, 7.0)
    assert (made.epochs, made.schedule, made.max_length) == (7, "linear", 128)
    assert made.sources["schedule"] == "recipe sst2"
    assert made.sources["clip"] == "HYDRACTL_CLIP"
    assert made.label_smoothing == 0.0 and made.sources["label_smoothing"] == "default"
    steps = checked("finetune", {**flags, "steps": "9"}, {}, tmp_path)
    assert (steps.steps, steps.epochs) == (9, None)


def test_what_a_recipe_says_gives_way_where_it_means_nothing(tmp_path: Path) -> None:
    flags: dict[str, Any] = {"model": ["a.st"], "train": "d", "val": "v", "recipe": "imagenet1k", "optimizer": "adamw"}
    made = checked("finetune", {**flags, "schedule": "constant"}, {}, tmp_path)
    assert (made.optimizer, made.schedule, made.momentum) == ("adamw", "constant", 0.9)
    assert (made.weight_decay, made.steps) == (0.0, 120000)


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("about: mine\nlr: [0.1, 0.2]\nlabel-smoothing: 0.3\nbatch_size: 4\n")
    made = settings(recipe=str(file))
    assert (made.lr, made.label_smoothing, made.batch_size) == ([0.1, 0.2], 0.3, 4)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("lrr: 1\n", "mine.yaml: a recipe has no key 'lrr'; did you mean 'lr'?"),
        ("resume: true\n", "mine.yaml: a recipe has no key 'resume'"),
        ("lr: high\n", "--lr must be a number, not 'high' (recipe "),
        ("lr: -1\n", "--lr must be greater than 0, not -1.0 (recipe "),
        ("steps: 5\nepochs: 5\n", "give only one of --epochs"),
        ("- lr\n", "must be a mapping"),
        ("lr: [[1]]\n", "is nested too deeply"),
    ],
)
def test_a_wrong_recipe_is_refused(text: str, complaint: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        settings(recipe=str(file))
    assert complaint in "\n".join([caught.value.message, *caught.value.problems])


def test_a_recipe_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="there is no recipe 'sst'; did you mean sst2"):
        settings(recipe="sst")
    with pytest.raises(UsageError, match="cannot read gone.yaml"):
        settings(recipe="gone.yaml")


def test_several_learning_rates_need_validation() -> None:
    with pytest.raises(UsageError, match=r"several values of --lr \(recipe cifar100\) need --val"):
        settings(recipe="cifar100", val=None)


def test_early_stopping_needs_validation() -> None:
    made = settings(recipe="sst2")
    assert (made.patience, made.min_delta, made.epochs, made.schedule) == (2, 5e-4, 7, "linear")
    with pytest.raises(UsageError, match=r"--patience \(recipe sst2\) needs --val"):
        settings(recipe="sst2", val=None)


def test_a_dry_run_prints_the_recipe_in_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = (
        "timm:vit_tiny_patch16_224?pretrained=0&img_size=8&patch_size=4&embed_dim=24&depth=6&num_heads=3&num_classes=3"
    )
    command: list[str] = ["finetune", model, "--train", "builtin:digits/train", "--val", "builtin:digits/val",
                          "--recipe", "cifar100", "--lr", "0.5", "--dry-run", "--limit", "20"]  # fmt: skip
    assert main([*command, "--json"]) == 0
    recipe = json.loads(capsys.readouterr().out)["recipe"]
    assert recipe["lr"] == {"value": [0.5], "source": "flag"}
    assert recipe["train_last"] == {"value": 5, "source": "recipe cifar100"}
    assert recipe["clip"]["value"] == 0.0
    assert recipe["patience"] == {"value": None, "source": "default"}
    assert main(command) == 0
    table = capsys.readouterr().out
    assert "recipe cifar100" in table and "train_last" in table


@pytest.mark.parametrize("item", ["randaugment:2:31", "randaugment:0:5", "crop:0"])
def test_an_augmentation_that_torchvision_does_not_have_is_refused(item: str) -> None:
    with pytest.raises(UsageError, match="must be crop"):
        settings(augment=[item])
    assert settings(augment=["randaugment:2:30", "crop:0.5"]).augment


def test_the_log_is_no_other_file_of_the_training(tmp_path: Path) -> None:
    from hydractl.training.outputs import RunFiles

    for log in (str(tmp_path / "a.st"), str(tmp_path / "a.st.state"), f"{tmp_path}/./a.st"):
        with pytest.raises(UsageError, match="another file of this training"):
            RunFiles.of_output(str(tmp_path / "a.st"), log)
    assert RunFiles.of_output(str(tmp_path / "a.st"), str(tmp_path / "b.jsonl")).log == tmp_path / "b.jsonl"
