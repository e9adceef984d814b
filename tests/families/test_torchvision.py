"""Weights of torchvision's vision transformers open as timm's: the same logits, from images prepared as there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import hydractl
from hydractl.families.torchvision_operators import declare_operators
from hydractl.model.loading import build_model
from hydractl.model.source import ModelOptions, Source, open_source
from tests.pico import close, images

declare_operators()

import torchvision  # noqa: E402
from torchvision.transforms._presets import ImageClassification  # noqa: E402

ARCH = (
    "timm:vit_base_patch16_224?img_size=16&patch_size=8&embed_dim=24&depth=3&num_heads=3&mlp_ratio=2&num_classes=1000"
)


def of_torchvision() -> torch.nn.Module:
    """A small model of the library's class."""
    sizes = {"image_size": 16, "patch_size": 8, "hidden_dim": 24, "num_layers": 3, "num_heads": 3, "mlp_dim": 48}
    model = torchvision.models.VisionTransformer(**sizes).eval()
    for parameter in model.parameters():  # as they are drawn, mistakes would be invisible
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def opened(path: Path) -> Source:
    return open_source(str(path), ModelOptions(arch=ARCH))


@torch.no_grad()
def test_a_file_of_weights_gives_the_librarys_logits(tmp_path: Path) -> None:
    stock = of_torchvision()
    expected = stock(images())
    weights = stock.state_dict()
    save_file(weights, tmp_path / "vit.safetensors")
    close(build_model(opened(tmp_path / "vit.safetensors")).member_logits(images())[0], expected)
    # The files that torchvision publishes have older names of the layers of MLPs.
    older = {
        name.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2."): weights[name] for name in weights
    }
    torch.save(older, tmp_path / "vit.pth")
    close(build_model(opened(tmp_path / "vit.pth")).member_logits(images())[0], expected)
    close(hydractl.open(stock, arch=ARCH).load("cpu").member_logits(images())[0], expected)


@pytest.mark.parametrize(("size", "resized"), [(224, 256), (16, 18), (384, 439)])
def test_images_are_prepared_as_by_torchvision(size: int, resized: int, tmp_path: Path) -> None:
    stock = torchvision.models.VisionTransformer(size, size, num_layers=1, hidden_dim=24, num_heads=3, mlp_dim=48)
    torch.save(stock.state_dict(), tmp_path / "vit.pth")
    arch = f"timm:vit_base_patch16_224?img_size={size}&patch_size={size}&embed_dim=24&depth=1&num_heads=3&mlp_ratio=2"
    source = open_source(str(tmp_path / "vit.pth"), ModelOptions(arch=arch))
    pixels = np.random.default_rng(0).integers(0, 256, (500, 460, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    ours = source.family.collate(source.description.preprocess)([image, image.convert("L")])
    theirs = ImageClassification(crop_size=size, resize_size=resized)
    assert torch.equal(ours[0], theirs(image))
