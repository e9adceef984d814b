"""Relative terms: published sizes, training, and what is refused. The rest is in the tests of every family."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from hydractl.errors import InputError
from hydractl.families import get_family
from hydractl.files.checkpoint import MappedTensors
from hydractl.files.description import Description
from hydractl.files.header import tensor_info
from hydractl.heads.mask import HeadMask
from hydractl.model.cost import cost_of
from hydractl.model.runtime import HydraModel
from hydractl.model.source import open_source
from tests.pico import inputs, logits, source_of, stock

# Name -> heads of each site, as published, and parameters.
TIMM = {
    "beitv2_base_patch16_224": ([12] * 12, 86_530_984),
    "swin_tiny_patch4_window7_224": ([3] * 2 + [6] * 2 + [12] * 6 + [24] * 2, 28_288_354),
}


def multiply_adds(model: Any, batch: Any) -> int:
    """What torch counts of the library's own model."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        logits(model, batch)
    return int(counter.get_total_flops()) // 2


def costs(family: Any, config: Any, preprocess: Any) -> dict[str, int]:
    """Of a model without weights."""
    masks = [HeadMask.full(family.sites(config))]
    description = Description("dense", family.name, family.version, "arch", config, preprocess, None, masks)
    state = family.build(config).state_dict()
    tensors = MappedTensors({name: tensor_info(t) for name, t in state.items()}, state.__getitem__)
    return cost_of(description, tensors, whole_last_block=True)


@pytest.mark.parametrize("name", TIMM)
def test_a_published_size_of_timm(name: str) -> None:
    import timm

    with torch.device("meta"):
        model = timm.create_model(name).eval()
        images = torch.empty(1, 3, 224, 224)
    config = {"architecture": name, "num_classes": 1000}
    preprocess = {**timm.data.resolve_data_config(model=model), "input_size": [3, 224, 224]}
    preprocess = {key: list(v) if isinstance(v, tuple) else v for key, v in preprocess.items()}
    heads, parameters = TIMM[name]
    family = get_family("timm")
    assert [site.heads for site in family.sites(config)] == heads
    found = costs(family, config, preprocess)
    assert found["params"] == parameters == sum(p.numel() for p in model.parameters())
    assert found["macs"] == multiply_adds(model, images)


@pytest.mark.parametrize("variant", ["beit", "swin"])
def test_gradients_are_those_of_the_library(variant: str) -> None:
    """Of all weights, the tables and vectors of distances among them."""
    reference = stock(variant)
    source = source_of(reference, variant)
    model = HydraModel(source.description, source.tensors)
    labels = torch.tensor([0, 1, 2])
    F.cross_entropy(logits(reference, inputs(variant)), labels).backward()
    F.cross_entropy(model.member_logits(inputs(variant))[0], labels).backward()
    with torch.no_grad():  # a step of ours is one of the library's
        for parameter in [*reference.parameters(), *model.parameters()]:
            if parameter.grad is not None:
                parameter -= 0.1 * parameter.grad
    expected = reference.state_dict()
    for name, tensor in model.stock_tensors().items():
        assert torch.allclose(tensor, expected[name], rtol=1e-4, atol=1e-5), name


REFUSED = {
    "timm:beit_base_patch16_224?pretrained=0&depth=1&use_shared_rel_pos_bias=true": "share one table",
    "timm:swin_tiny_patch4_window7_224?pretrained=0&depths=[1,1,1,1]&dynamic_img_size=true": "every size of image",
    "timm:swinv2_cr_tiny_224?pretrained=0&depths=[1,1,1,1]": "WindowMultiHeadAttention",
    "timm:swinv2_tiny_window8_256?pretrained=0&depths=[1,1,1,1]": "swin_transformer_v2.WindowAttention",
    "timm:swin_tiny_patch4_window7_224?pretrained=0&depths=[100,200]": "300 blocks",
}


@pytest.mark.parametrize("ref", REFUSED)
def test_what_is_not_supported_is_named(ref: str) -> None:
    with pytest.raises(InputError, match=REFUSED[ref]):
        open_source(ref)
