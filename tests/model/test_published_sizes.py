"""Published models at full size, as shapes: sites, parameters and mult-adds are those of the library's own model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from hydractl.families import get_family
from hydractl.families.torchvision_operators import declare_operators
from hydractl.heads.mask import HeadMask
from hydractl.model.cost import macs, parameters
from tests.model.test_cost import Skeleton
from tests.pico import LABELS, shared_stock, source_of

declare_operators()

import open_clip  # noqa: E402
import timm  # noqa: E402
import torchvision  # noqa: E402
import transformers  # noqa: E402

_ROBERTA = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1, "pad_token_id": 1}
_BASE = {"embedding_size": 768, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
_LLAMA = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32}
_LLAMA |= {"num_key_value_heads": 8, "vocab_size": 128256}
_QWEN = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16}
_QWEN |= {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936}
# Name -> the pico model of its kind, heads of each site, parameters as published, and what is set of the configuration.
SIZES: dict[str, tuple[str, int, int, Any]] = {
    "vit_base_patch16_224": ("class-token", 12, 86_567_656, 224),
    "deit_base_distilled_patch16_224": ("distilled", 12, 87_338_192, 224),
    "eva02_base_patch14_448": ("eva", 12, 87_117_544, 448),
    "vit_base_patch16_dinov3": ("dinov3", 12, 85_641_216, 256),
    "vit_base_patch14_reg4_dinov2": ("registers", 12, 86_582_016, 518),
    "vit_b_16": ("torchvision", 12, 86_567_656, 224),
    "BertForSequenceClassification": ("bert", 12, 109_483_778, {}),
    "RobertaForSequenceClassification": ("roberta", 12, 124_647_170, _ROBERTA),
    "DistilBertForSequenceClassification": ("distilbert", 12, 66_955_010, {}),
    "ElectraForSequenceClassification": ("electra", 12, 109_483_778, _BASE),
    "ModernBertForSequenceClassification": ("modernbert", 12, 149_606_402, {}),
    "LlamaForSequenceClassification": ("llama", 32, 1_235_814_400 + 2 * 2048, _LLAMA),
    "Qwen3ForSequenceClassification": ("qwen3", 16, 596_049_920 + 2 * 1024, _QWEN),
    "GPT2ForSequenceClassification": ("gpt2", 12, 124_439_808 + 2 * 768, {}),
    "ViT-B-32": ("clip", 12, 151_277_313, 224),
}


def built(name: str, variant: str, settings: Any) -> tuple[dict[str, Any], Any, Callable[[Any, Any], Any]]:
    """Configuration of a published model, the library's own model without numbers, and how it is called."""
    stock: Any
    if isinstance(settings, dict):
        cls = getattr(transformers, name)
        config = cls.config_class(**settings)
        document = {**config.to_dict(), "architectures": [name], "num_labels": 2}
        return (
            document,
            cls._from_config(config, attn_implementation="sdpa"),
            lambda model, given: model(given["input_ids"]),
        )
    if variant == "torchvision":
        stock = torchvision.models.get_model(name)
        names = ("image_size", "patch_size", "hidden_dim", "mlp_dim", "num_classes")
        return (
            {**{key: getattr(stock, key) for key in names}, "num_layers": 12, "num_heads": 12},
            stock,
            lambda model, given: model(given),
        )
    if variant == "clip":
        config = open_clip.get_model_config(name)
        return config, open_clip.CLIP(**config), lambda model, given: model.encode_image(given)
    classes = 0 if "dino" in name else 1000
    config = {"architecture": name, "pretrained_cfg": {}, "num_classes": classes, "model_args": {"img_size": settings}}
    return config, timm.create_model(name, num_classes=classes, img_size=settings), lambda model, given: model(given)


LONG = ("deit_base_distilled_patch16_224", "vit_base_patch14_reg4_dinov2", "RobertaForSequenceClassification")
LONG += ("DistilBertForSequenceClassification", "ElectraForSequenceClassification", "Qwen3ForSequenceClassification")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.long] * (n in LONG)) for n in SIZES])
def test_a_published_model(name: str) -> None:
    variant, heads, params, settings = SIZES[name]
    with torch.device("meta"):
        config, stock, call = built(name, variant, settings)
    pico = source_of(shared_stock(variant), variant).description
    family, preprocess = get_family(pico.family), dict(pico.preprocess)
    for key, size in (("input_size", [3, settings, settings]), ("size", [settings, settings])):
        if key in preprocess and type(settings) is int:
            preprocess[key] = size
    sites = family.sites(config)
    description = replace(pico, config=config, masks=[HeadMask.full(sites)], preprocess=preprocess)
    tensors = Skeleton(dict(family.build(config).state_dict()))
    assert parameters(tensors) == sum(p.numel() for p in stock.parameters()) == params
    width = 128 if variant == "qwen3" else 64
    assert {(site.heads, site.head_dim) for site in sites if site.tower != "text"} == {(heads, width)}
    assert len(sites) == {"distilbert": 6, "modernbert": 22, "clip": 24, "llama": 16, "qwen3": 28}.get(variant, 12)
    assert {site.sharing for site in sites} == {{"llama": 4, "qwen3": 2}.get(variant, 1)}
    given = family.example_inputs(preprocess, 1, 0)
    given = {k: v.to("meta") for k, v in given.items()} if isinstance(given, dict) else given.to("meta")
    torch.backends.mha.set_fastpath_enabled(False)  # one operator, which the counter does not know
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            call(stock.eval(), given)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    compared = len(LABELS) * 512 if variant == "clip" else 0  # the image's features with those of the classes
    if variant in ("llama", "qwen3", "gpt2"):  # the library has logits of every token
        compared -= (given["input_ids"].shape[1] - 1) * stock.score.weight.numel()
    assert macs(description, tensors, whole_last_block=True) == counter.get_total_flops() // 2 + compared
