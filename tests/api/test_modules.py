"""Stock modules in memory: opened with the weights they have, and refused where they do not say what they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers

import hydractl
from hydractl.families.torchvision_operators import declare_operators

declare_operators()  # before timm, whose import needs them
import timm  # noqa: E402

X = np.random.default_rng(0).integers(0, 256, (4, 16, 16, 3), dtype=np.uint8)
ARGUMENTS = {"img_size": 16, "patch_size": 8, "embed_dim": 12, "depth": 2, "num_heads": 3}
QUERY = "&".join(f"{name}={value}" for name, value in ARGUMENTS.items())


def log_probabilities(model: hydractl.Model) -> torch.Tensor:
    module = model.load("cpu")
    with torch.no_grad():
        result: torch.Tensor = module(module.preprocess(X))
    return result


@pytest.fixture(scope="module")
def of_timm() -> torch.nn.Module:
    torch.manual_seed(0)
    return timm.create_model("vit_tiny_patch16_224", num_classes=5, **ARGUMENTS).eval()


def test_a_module_of_timm(of_timm: torch.nn.Module) -> None:
    arch = f"timm:vit_tiny_patch16_224?num_classes=5&{QUERY}"
    opened = hydractl.open(of_timm, arch=arch, labels=list("abcde"))
    assert opened.description.labels == list("abcde")
    module = opened.load("cpu")
    inputs = module.preprocess(X)
    with torch.no_grad():
        assert torch.allclose(module(inputs), of_timm(inputs).log_softmax(-1), atol=1e-5)
    pruned = hydractl.prune(opened, method="magnitude", keep=2)
    assert pruned.description.mask.counts() == [2, 2]
    with pytest.raises(hydractl.errors.InputError, match="has other weights") as refusal:
        hydractl.open(of_timm)  # its name alone stands for another width
    assert refusal.value.hint is not None
    assert "arch='timm:vit_tiny_patch16_224?num_classes=5&img_size=16&depth=6'" in refusal.value.hint


def test_a_module_of_timm_says_its_size_of_images() -> None:
    torch.manual_seed(0)
    module = timm.create_model("test_vit", num_classes=5, img_size=64).eval()
    opened = hydractl.open(module)
    inputs = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.allclose(opened.load("cpu")(inputs), module(inputs).log_softmax(-1), atol=1e-5)


def test_a_module_of_transformers() -> None:
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=24,
        image_size=16,
        patch_size=8,
        num_labels=5,
    )
    module = transformers.ViTForImageClassification(config).eval()
    processor = transformers.ViTImageProcessor(size={"height": 16, "width": 16})
    opened = hydractl.open(module, processor=processor, name="mine")
    inputs: Any = opened.load("cpu").preprocess(X)
    with torch.no_grad():
        assert torch.allclose(log_probabilities(opened), module(inputs).logits.log_softmax(-1), atol=1e-5)
    assert opened.name == "mine"
    result = hydractl.evaluate(opened, test=(X, [0, 1, 2, 3]))
    assert result.names == ["mine"]


def test_what_says_nothing_of_itself_is_refused(of_timm: torch.nn.Module) -> None:
    with pytest.raises(hydractl.errors.UsageError, match="a Linear does not say what its architecture is"):
        hydractl.open(torch.nn.Linear(2, 2))
    with pytest.raises(hydractl.errors.UsageError, match="processor is for a model of transformers"):
        hydractl.open(of_timm, processor=object())
