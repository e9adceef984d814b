"""Relative terms: training, and what is refused. The rest is in the tests of every family."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from hydractl.errors import InputError
from hydractl.families import get_family
from hydractl.families.meta_device import check_tables, on_meta_device
from hydractl.families.timm import check_timm_model, timm
from hydractl.model.source import open_source
from tests.pico import RELATIVE, inputs, logits, model_of, shared_source, source_of, stock
from tests.running import refused
from tests.spread import marked_long


@pytest.mark.parametrize("variant", [*RELATIVE, *marked_long(["deberta-v2"])])
def test_gradients_are_those_of_the_library(variant: str) -> None:
    """Of all weights, the tables and vectors of distances among them."""
    reference = stock(variant)
    source = source_of(reference, variant)
    model = model_of(source)
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
    "timm:swin_tiny_patch4_window7_224?pretrained=0&depths=[1,1,1,1]&dynamic_img_size=true": "every size of image",
    "timm:swinv2_tiny_window8_256?pretrained=0&depths=[1,1,1,1]": "SwinTransformerV2 is not supported",
    "timm:swinv2_cr_tiny_224?pretrained=0&depths=[1,1,1,1]": "WindowMultiHeadAttention",
    "timm:swin_tiny_patch4_window7_224?pretrained=0&depths=[100,200]": "300 blocks",
    "timm:beit_base_patch16_224?pretrained=0&depth=1&use_shared_rel_pos_bias=true": "share one table",
    "timm:vit_small_patch16_rope_mixed_224?pretrained=0&depth=1": "angles of its own",
    "timm:vit_base_mci_224?pretrained=0&depth=1": "keeps numbers beside its weights",
}


@pytest.mark.parametrize("ref", REFUSED)
def test_what_is_not_supported_is_named(ref: str) -> None:
    with pytest.raises(InputError, match=REFUSED[ref]):
        open_source(ref)


UNSUPPORTED = {
    "a convolution beside its first layer": {"conv_kernel_size": 3},
    "no relative attention": {"relative_attention": False},
}


@pytest.mark.parametrize("what", UNSUPPORTED)
def test_what_transformers_has_and_is_not_supported_is_named(what: str) -> None:
    config = {**shared_source("deberta-v3").description.config, **UNSUPPORTED[what]}
    caught = refused(InputError, get_family("hf").build, config)
    assert any(what in problem for problem in caught.problems)


@pytest.mark.fault(93)
@pytest.mark.parametrize(
    "name", ["beit_large_patch16_512", "swin_large_patch4_window12_384", "eva02_large_patch14_448"]
)
def test_tables_of_real_models_are_small_enough(name: str) -> None:
    with on_meta_device():
        model = timm.create_model(name)
    check_timm_model(model)
    check_tables(model)
