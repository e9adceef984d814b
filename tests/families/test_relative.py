"""Relative terms: published sizes, training, and what is refused. The rest is in the tests of every family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from hydractl.criteria import Calibration, get_criterion
from hydractl.errors import InputError
from hydractl.families import get_family
from hydractl.families.hf.inputs import image_preprocess, text_preprocess
from hydractl.files.checkpoint import MappedTensors
from hydractl.files.description import Description
from hydractl.files.header import tensor_info
from hydractl.heads.mask import HeadMask
from hydractl.log import Log
from hydractl.model.cost import cost_of
from hydractl.model.runtime import HydraModel
from hydractl.model.source import open_source
from tests.pico import RELATIVE, head_columns, inputs, logits, shared_stock, source_of, stock, write_tokenizer
from tests.spread import marked_long

# Name -> heads of each site, as published, and parameters.
TIMM = {
    "beitv2_base_patch16_224": ([12] * 12, 86_530_984),
    "swinv2_tiny_window16_256": ([3] * 2 + [6] * 2 + [12] * 6 + [24] * 2, 28_347_154),
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
        side = model.patch_embed.img_size[0]
        images = torch.empty(1, 3, side, side)
    config = {"architecture": name, "num_classes": 1000, "model_args": {"img_size": side}, "pretrained_cfg": {}}
    preprocess = {**timm.data.resolve_data_config(model=model), "input_size": [3, side, side]}
    preprocess = {key: list(v) if isinstance(v, tuple) else v for key, v in preprocess.items()}
    heads, parameters = TIMM[name]
    family = get_family("timm")
    assert [site.heads for site in family.sites(config)] == heads
    found = costs(family, config, preprocess)
    assert found["params"] == parameters == sum(p.numel() for p in model.parameters())
    assert found["macs"] == multiply_adds(model, images)


_DEBERTA_V3_BASE = {
    "vocab_size": 128100,
    "relative_attention": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "type_vocab_size": 0,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
}
HF = {
    "deberta-v3-base": ("DebertaV2ForSequenceClassification", _DEBERTA_V3_BASE, [12] * 12),
    "mpnet-base": ("MPNetForSequenceClassification", {}, [12] * 12),
    "beit-base": ("BeitForImageClassification", {"use_relative_position_bias": True}, [12] * 12),
    "swinv2-tiny": (
        "Swinv2ForImageClassification",
        {"image_size": 256, "window_size": 16},
        [3] * 2 + [6] * 2 + [12] * 6 + [24] * 2,
    ),
    "swin-tiny": ("SwinForImageClassification", {}, [3] * 2 + [6] * 2 + [12] * 6 + [24] * 2),
}


@pytest.mark.parametrize("name", HF)
def test_a_published_size_of_transformers(name: str, tmp_path: Path) -> None:
    cls, settings, heads = HF[name]
    library = getattr(transformers, cls)
    config = library.config_class(**settings, num_labels=2)
    with torch.device("meta"):
        attends = "sdpa" if library._supports_sdpa else "eager"
        model = library._from_config(config, attn_implementation=attends, dtype=torch.float32).eval()
    family, images = get_family("hf"), library.main_input_name == "pixel_values"
    if images:
        preprocess = image_preprocess(tmp_path, "ViTImageProcessor", 3, (config.image_size,) * 2)
    else:
        write_tokenizer(tmp_path, pair_types=False, roberta=name == "mpnet-base")
        preprocess = text_preprocess(tmp_path, 16, config.vocab_size, ("input_ids", "attention_mask"))
    batch = family.example_inputs(preprocess, 1, 0)
    batch = {"pixel_values": batch} if images else batch
    if name == "mpnet-base":
        del batch["attention_mask"]  # at whose numbers the library looks
    written = {**config.to_dict(), "architectures": [cls], "num_labels": 2}
    assert [site.heads for site in family.sites(written)] == heads
    found = costs(family, written, preprocess)
    assert found["params"] == sum(p.numel() for p in model.parameters())
    assert found["macs"] == multiply_adds(model, {key: value.to("meta") for key, value in batch.items()})


@pytest.mark.parametrize("variant", [*RELATIVE, *marked_long(["deberta-v2"])])
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


@pytest.mark.parametrize("variant", ["mpnet", "deberta-v3"])
def test_criteria_are_those_of_the_library(variant: str) -> None:
    """Taylor by autograd, of projections that vectors of distances go through too; gates by finite differences."""
    reference, batch, labels = stock(variant).double(), inputs(variant), torch.tensor([0, 1, 2])
    source = source_of(reference, variant)
    model, sites = HydraModel(source.description, source.tensors, dtype=torch.float64), source.sites
    calibration = Calibration(lambda: iter([(batch, labels)]), 3, 0, Log())
    taylor, gate = (get_criterion(name).score(model, calibration, range(3)) for name in ("taylor", "gate"))
    F.cross_entropy(logits(reference, batch), labels).backward()
    for index, site in enumerate(sites):
        attention = reference.get_submodule(site.path).get_submodule("self" if variant == "deberta-v3" else "attn")
        products = [p.weight * p.weight.grad for name, p in attention.named_children() if name[0] in "qkv"]
        for head in range(3):
            rows = slice(8 * head, 8 * head + 8)
            assert taylor[index][head] == pytest.approx(float(sum(p[rows].abs().mean() for p in products)) / 3)
    step = 1e-5
    for index, site in enumerate(sites):
        changes = []
        for head in range(3):
            losses = []
            for factor in (1 + step, 1 - step):
                (columns,) = head_columns(reference, [(site.path, head)])
                before = columns.clone()
                columns.mul_(factor)
                losses.append(F.cross_entropy(logits(reference, batch), labels, reduction="none").detach())
                columns.copy_(before)
            changes.append(float(((losses[0] - losses[1]) / (2 * step)).abs().mean()))
        norm = sum(change**2 for change in changes) ** 0.5
        assert gate[index] == pytest.approx([change / norm for change in changes], rel=1e-4)


REFUSED = {
    "timm:swin_tiny_patch4_window7_224?pretrained=0&depths=[1,1,1,1]&dynamic_img_size=true": "every size of image",
    "timm:swinv2_cr_tiny_224?pretrained=0&depths=[1,1,1,1]": "WindowMultiHeadAttention",
    "timm:swin_tiny_patch4_window7_224?pretrained=0&depths=[100,200]": "300 blocks",
}


@pytest.mark.parametrize("ref", REFUSED)
def test_what_is_not_supported_is_named(ref: str) -> None:
    with pytest.raises(InputError, match=REFUSED[ref]):
        open_source(ref)


UNSUPPORTED = {
    "a convolution beside its first layer": ("deberta-v3", {"conv_kernel_size": 3}),
    "no relative attention": ("deberta-v3", {"relative_attention": False}),
    "are not square": ("hf-beit", {"image_size": [16, 32]}),
    "windows of 4 tokens are larger than its 2 rows": ("hf-swin", {"depths": [2, 1, 1], "num_heads": [3, 3, 3]}),
    "do not fill them": ("hf-swin", {"image_size": 17}),
}


@pytest.mark.parametrize("what", UNSUPPORTED)
def test_what_transformers_has_and_is_not_supported_is_named(what: str) -> None:
    variant, changed = UNSUPPORTED[what]
    config = {**source_of(shared_stock(variant), variant).description.config, **changed}
    with pytest.raises(InputError) as caught:
        get_family("hf").build(config)
    assert any(what in problem for problem in caught.value.problems)
