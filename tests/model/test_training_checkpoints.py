"""Checkpoints as the training scripts of timm and torchvision write them: read as data, by what the scripts noted."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from hydractl.data.names import read_labels
from hydractl.errors import InputError, UsageError
from hydractl.families.torchvision_operators import declare_operators
from hydractl.model.loading import build_model
from hydractl.model.source import ModelOptions, Source, open_source
from hydractl.verbs.info import describe
from tests.pico import close
from tests.running import refused

declare_operators()

import timm  # noqa: E402
import torchvision  # noqa: E402
from timm.utils import CheckpointSaver, ModelEmaV3  # noqa: E402
from torchvision.transforms._presets import ImageClassification, InterpolationMode  # noqa: E402

SIZES: dict[str, Any] = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}


def timm_model(seed: int) -> Any:
    torch.manual_seed(seed)
    return timm.create_model("vit_tiny_patch16_224", num_classes=3, **SIZES).eval()


def timm_checkpoint(folder: Path, *, averaged: bool, **changed: Any) -> tuple[Path, Any, argparse.Namespace]:
    """What ``train.py`` leaves; returns the file, the model whose weights count, and the script's arguments."""
    model, model_ema = timm_model(0), timm_model(1)
    arguments = argparse.Namespace(
        model="vit_tiny_patch16_224",
        num_classes=3,
        in_chans=None,
        gp=None,
        model_kwargs=dict(SIZES),
        img_size=16,
        input_size=None,
        mean=[0.1, 0.2, 0.3],
        std=None,
        interpolation="bilinear",
        crop_pct=0.8,
        lr=0.05,
        data_dir="/data",
    )
    vars(arguments).update(changed)
    optimizer = torch.optim.AdamW(model.parameters())
    with torch.enable_grad():
        model(torch.zeros(1, 3, 16, 16)).sum().backward()
    optimizer.step()
    saver = CheckpointSaver(
        model=torch.nn.DataParallel(model),
        optimizer=optimizer,
        args=arguments,
        model_ema=ModelEmaV3(model_ema) if averaged else None,
        checkpoint_dir=str(folder),
        unwrap_fn=lambda wrapped: wrapped,  # so that names keep "module.", as older versions left them
    )
    saver.save_checkpoint(3, metric=71.5)
    trained = model_ema if averaged else model
    return folder / "checkpoint-3.pth.tar", trained.cpu().eval(), arguments  # DataParallel moves models to a GPU


def opened(path: Path, **options: Any) -> Source:
    return open_source(str(path), ModelOptions(**options))


def hint_of(path: Path) -> str:
    """What is said where ``--arch`` is missing."""
    with pytest.raises(InputError, match="does not describe itself") as refusal:
        opened(path)
    return refusal.value.hint or ""


def arch_of_hint(path: Path) -> str:
    """What the hint says to write, as a shell would read it."""
    found = re.search(r"--arch (.*); with --labels", hint_of(path))
    (arch,) = shlex.split(found[1])
    return arch


@torch.no_grad()
@pytest.mark.parametrize("averaged", [False, True])
def test_the_hint_leads_to_the_model_that_timm_trained(averaged: bool, tmp_path: Path) -> None:
    path, trained, arguments = timm_checkpoint(tmp_path, averaged=averaged)
    assert arch_of_hint(path) == "timm:vit_tiny_patch16_224?num_classes=3"
    sizes = "&".join(
        f"{name}={value}" for name, value in SIZES.items()
    )  # of --model-kwargs, which are the user's to add
    source = opened(path, arch=f"{arch_of_hint(path)}&{sizes}")
    assert source.name == "checkpoint-3"
    pixels = torch.randn(2, 3, 16, 16)
    close(build_model(source).member_logits(pixels)[0], trained(pixels))
    # Images are prepared as the script prepared those that it evaluated with.
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype=np.uint8))
    settings = timm.data.resolve_data_config(vars(arguments), model=trained)
    ours = source.family.collate(source.description.preprocess)([image])
    assert torch.equal(ours[0], timm.data.create_transform(**settings)(image))


@torch.no_grad()
@pytest.mark.parametrize("averaged", [False, True])
def test_the_hint_leads_to_the_model_that_torchvision_trained(averaged: bool, tmp_path: Path) -> None:
    # The script has no options of size; those of a smaller model are added to what the hint says.
    sizes = {"image_size": 16, "patch_size": 8, "hidden_dim": 24, "num_layers": 2, "num_heads": 3, "mlp_dim": 48}
    of_timm = "img_size=16&patch_size=8&embed_dim=24&depth=2&num_heads=3&mlp_ratio=2"
    model = torchvision.models.VisionTransformer(**sizes, num_classes=3).eval()
    content: dict[str, Any] = {
        "model": model.state_dict(),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1).state_dict(),
        "epoch": 7,
        "args": argparse.Namespace(model="vit_b_32", val_resize_size=240, interpolation="bicubic", lr=0.1),
    }
    if averaged:
        mean = torch.optim.swa_utils.AveragedModel(model)
        with torch.no_grad():
            mean.module.heads.head.bias += 1
        content["model_ema"] = mean.state_dict()
        model = mean.module
    path = tmp_path / "checkpoint.pth"
    torch.save(content, path)
    arch = arch_of_hint(path)
    assert arch == "timm:vit_base_patch32_224?num_classes=3"
    source = opened(path, arch=f"{arch}&{of_timm}")
    pixels = torch.randn(2, 3, 16, 16)
    close(build_model(source).member_logits(pixels)[0], model(pixels))
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (240, 260, 3), dtype=np.uint8))
    theirs = ImageClassification(crop_size=16, resize_size=240, interpolation=InterpolationMode.BICUBIC)
    assert torch.equal(source.family.collate(source.description.preprocess)([image])[0], theirs(image))


def test_plain_weights_need_the_number_of_heads_that_they_do_not_show(tmp_path: Path) -> None:
    torch.save(timm_model(0).state_dict(), tmp_path / "vit.pth")
    assert hint_of(tmp_path / "vit.pth").startswith("write --arch timm:NAME")
    wider = "timm:vit_base_patch16_224?img_size=16&patch_size=8&embed_dim=24&depth=2&num_classes=3"
    error = refused(UsageError, opened, tmp_path / "vit.pth", arch=wider)
    assert error.message == "timm:vit_base_patch16_224 with embed_dim needs num_heads, which no weights show"


def test_info_says_what_a_checkpoint_holds_and_how_to_open_it(tmp_path: Path) -> None:
    path, trained, _ = timm_checkpoint(tmp_path, averaged=True)
    info = describe(path)
    assert info.holds == "a state dict, its entry state_dict_ema"
    assert info.tensors == len(trained.state_dict())
    assert info.parameters == sum(tensor.numel() for tensor in trained.state_dict().values())
    assert info.note == f"does not describe itself; {hint_of(path)}"


@pytest.mark.parametrize("entry", ["model", "state_dict"])
def test_weights_under_a_name_need_no_script(entry: str, tmp_path: Path) -> None:
    weights = timm_model(0).state_dict()
    torch.save({"model_ema": {}, entry: weights, "epoch": 3}, tmp_path / "vit.pth")
    assert hint_of(tmp_path / "vit.pth").startswith("write --arch timm:NAME")
    sizes = "&".join(f"{name}={value}" for name, value in SIZES.items())
    source = opened(tmp_path / "vit.pth", arch=f"timm:vit_tiny_patch16_224?num_classes=3&{sizes}")
    assert {*source.tensors.names()} == {*weights}
    assert torch.equal(source.tensors.read("head.weight"), weights["head.weight"])


@pytest.mark.fault(18, 39, 40)
def test_arguments_of_a_script_are_no_commands(tmp_path: Path) -> None:
    words = {"img_size": 16, "\x1b[2J": 1, "a": "x; rm -rf ~", "b": "$(true)", "c": [1, 2], "depth": 2}
    path, _, _ = timm_checkpoint(tmp_path, averaged=False, model_kwargs=words)
    assert arch_of_hint(path) == "timm:vit_tiny_patch16_224?num_classes=3"
    path, _, _ = timm_checkpoint(tmp_path, averaged=False, model="no_such_model; ls")
    refusal = refused(InputError, opened, path)
    assert "no_such_model" not in str(refusal.hint)


class _Runs:
    def __reduce__(self) -> Any:
        return exec, ("open('ran', 'w')",)


@pytest.mark.fault(18, 39)
@pytest.mark.parametrize("place", ["args", "in args", "optimizer"])
def test_nothing_in_a_checkpoint_runs(place: str, here: Path) -> None:
    content: dict[str, Any] = {"state_dict": timm_model(0).state_dict(), "args": argparse.Namespace()}
    if place == "in args":
        content["args"].model = _Runs()
    else:
        content[place] = _Runs()
    torch.save(content, "w.pth.tar")
    with pytest.raises(InputError, match="it asks for more than tensors"):
        opened(Path("w.pth.tar"), arch="timm:vit_tiny_patch16_224")
    assert not Path("ran").exists()


def test_a_name_that_two_tensors_would_have_is_refused(tmp_path: Path) -> None:
    weights = {"module.a": torch.ones(1), "a": torch.ones(1)}
    torch.save({"state_dict": weights, "args": argparse.Namespace()}, tmp_path / "w.pth")
    with pytest.raises(InputError, match="'a' is there twice"):
        opened(tmp_path / "w.pth", arch="timm:vit_tiny_patch16_224")


def test_class_folders_name_classes_as_training_scripts_number_them(tmp_path: Path) -> None:
    for name in ("dog", "cat", ".cache"):
        (tmp_path / name).mkdir()
    (tmp_path / "notes.txt").write_text("no class")
    assert read_labels(str(tmp_path)) == ["cat", "dog"]
    for name in ("n2", "n10"):
        (tmp_path / name).mkdir()
    with pytest.raises(InputError, match=r"class 2 is n10 where .* \(torchvision\), and n2 where .* \(timm\)"):
        read_labels(str(tmp_path))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no folders of classes"):
        read_labels(str(tmp_path / "empty"))
