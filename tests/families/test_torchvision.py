"""torchvision's vision transformers: a file of their weights, their preprocessing, folders, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from hydractl.errors import HydraError
from hydractl.families.torchvision_operators import declare_operators
from hydractl.model.loading import build_model
from hydractl.model.source import ModelOptions, open_source
from tests.pico import TORCHVISION, close, images, shared_stock
from tests.running import refused

declare_operators()

import torchvision  # noqa: E402

NAME = TORCHVISION["torchvision"].replace("pretrained=0&", "")


@torch.no_grad()
def test_a_file_of_weights_opens_by_the_name_of_its_architecture(tmp_path: Path) -> None:
    stock = shared_stock("torchvision")
    save_file(stock.state_dict(), tmp_path / "vit.safetensors")
    source = open_source(str(tmp_path / "vit.safetensors"), ModelOptions(arch=f"torchvision:{NAME}"))
    close(build_model(source).member_logits(images())[0], stock(images()))
    torch.save(stock.state_dict(), tmp_path / "vit.pth")  # as torchvision publishes them
    published = open_source(str(tmp_path / "vit.pth"), ModelOptions(arch=f"torchvision:{NAME}"))
    close(build_model(published).member_logits(images())[0], stock(images()))
    (tmp_path / "out").mkdir()
    weights = source.family.export_folder(tmp_path / "out", source.description.config, {}, None)
    save_file(load_file(tmp_path / "vit.safetensors"), tmp_path / "out" / weights)
    close(build_model(open_source(str(tmp_path / "out"))).member_logits(images())[0], stock(images()))


def test_images_are_prepared_as_by_torchvision() -> None:
    source = open_source("torchvision:vit_b_16?pretrained=0&num_layers=1&hidden_dim=24&num_heads=3&mlp_dim=8")
    pixels = np.random.default_rng(0).integers(0, 256, (300, 260, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    ours = source.family.collate(source.description.preprocess)([image, image.convert("L")])
    theirs = torchvision.models.ViT_B_16_Weights.IMAGENET1K_V1.transforms()
    assert torch.equal(ours[0], theirs(image)) and ours.shape == (2, 3, 224, 224)


REFUSED = {
    "vit_b_99?pretrained=0": "torchvision has no vision transformer 'vit_b_99'",
    "vit_b_16": "torchvision publishes vit_b_16 as a pickle only, which hydractl never opens",
    "vit_b_16?pretrained=0&depth=3": "torchvision:vit_b_16 takes no option depth",
    "vit_b_16?pretrained=0&num_heads=7": "torchvision cannot build its VisionTransformer: embed_dim must be "
    "divisible by num_heads",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    caught = refused(HydraError, open_source, f"torchvision:{name}")
    assert caught.message == REFUSED[name]
    if name == "vit_b_16":
        assert "--arch torchvision:vit_b_16" in str(caught.hint)
