"""Published models at full size, as shapes: sites, parameters and mult-adds are those of the library's own model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from hydractl.families import get_family
from hydractl.families.hf.images import image_preprocess
from hydractl.families.torchvision_operators import declare_operators
from hydractl.heads.mask import HeadMask
from hydractl.model.cost import macs, parameters
from tests.model.test_cost import Skeleton
from tests.pico import HF, HF_CLIP, LABELS, shared_source

declare_operators()

import open_clip  # noqa: E402
import timm  # noqa: E402
import transformers  # noqa: E402

from tests.spread import marked_release  # noqa: E402

_12 = [12] * 12
_SWIN = [3] * 2 + [6] * 2 + [12] * 6 + [24] * 2
# Name -> the pico model of its kind, heads of each site, and the pixels of an image.
NAMED: dict[str, tuple[str, list[int], int]] = {
    "vit_base_patch16_224": ("class-token", _12, 224),
    "deit_base_distilled_patch16_224": ("distilled", _12, 224),
    "eva02_base_patch14_448": ("eva", _12, 448),
    "vit_base_patch16_dinov3": ("dinov3", _12, 256),
    "vit_base_patch14_reg4_dinov2": ("registers", _12, 518),
    "beitv2_base_patch16_224": ("beit", _12, 224),
    "swin_tiny_patch4_window7_224": ("swin", _SWIN, 224),
    "vit_base_patch16_siglip_224": ("map-pooling", _12, 224),
    "ViT-B-32": ("clip", [*_12, *[8] * 12], 224),
}
_DEBERTA = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False}
_DEBERTA |= {"position_buckets": 256, "norm_rel_ebd": "layer_norm", "share_att_key": True, "type_vocab_size": 0}
# What is set of the configuration of a class of transformers. Without it, it is the size that the class is made for.
SETTINGS: dict[str, dict[str, Any]] = {
    "MinistralForSequenceClassification": {"head_dim": 128},
    "DebertaV2ForSequenceClassification": _DEBERTA,
}
CLASSES = {name: variant for variant, (name, _, _) in reversed({**HF, **HF_CLIP}.items())}
CASES = [*NAMED, *CLASSES]
"""Every class of transformers that has a pico model, and a model or two of each kind in the other libraries."""


def built(name: str, variant: str, size: int) -> tuple[dict[str, Any], Any, Callable[[Any, Any], Any]]:
    """Configuration of a model with a name, the library's own model without numbers, and how it is called."""
    if variant == "clip":
        config = open_clip.get_model_config(name)
        return config, open_clip.CLIP(**config), lambda model, given: model.encode_image(given)
    classes = 0 if "dino" in name else 1000
    config = {"architecture": name, "pretrained_cfg": {}, "num_classes": classes, "model_args": {"img_size": size}}
    return config, timm.create_model(name, num_classes=classes, img_size=size), lambda model, given: model(given)


def of_transformers(name: str) -> tuple[dict[str, Any], Any, Callable[[Any, Any], Any]]:
    """The same of a class of transformers."""
    cls = getattr(transformers, name)
    config = cls.config_class(**SETTINGS.get(name, {}))
    attends = "sdpa" if cls._supports_sdpa else "eager"
    stock = cls._from_config(config, attn_implementation=attends, dtype=torch.float32)
    document = {**config.to_dict(), "architectures": [name], "num_labels": 2}
    if CLASSES[name] in HF_CLIP:
        return document, stock, lambda model, given: model.get_image_features(given)
    stock.base_model.warn_if_padding_and_no_attention_mask = lambda *_: None  # it looks at numbers
    return document, stock, lambda model, given: model(given["input_ids"] if isinstance(given, dict) else given)


def towers_of(stock: Any) -> list[Any]:
    """The configurations of the encoders of a model of transformers."""
    towers = [name for name in ("vision", "text") if hasattr(stock, f"{name}_model")]
    return [getattr(stock.config, f"{name}_config") for name in towers] or [stock.config]


def heads_of(config: Any) -> list[int]:
    """Of each site of an encoder of transformers."""
    heads, layers = config.num_attention_heads, config.num_hidden_layers
    if isinstance(heads, int):
        return [heads] * layers
    return [count for count, depth in zip(heads, config.depths, strict=True) for _ in range(depth)]


# Every eighteenth in the long run; all before a release.
OFTEN = list(CASES)[::18]


@pytest.mark.long
@pytest.mark.parametrize("name", [*OFTEN, *marked_release(name for name in CASES if name not in OFTEN)])
def test_a_published_model(name: str, tmp_path: Path) -> None:
    variant = NAMED[name][0] if name in NAMED else CLASSES[name]
    with torch.device("meta"):
        config, stock, call = built(name, variant, NAMED[name][2]) if name in NAMED else of_transformers(name)
    pico = shared_source(variant).description
    family, preprocess = get_family(pico.family), dict(pico.preprocess)
    towers = [] if name in NAMED else towers_of(stock)
    pixels = NAMED[name][2] if name in NAMED else getattr(towers[0], "image_size", 0)
    if towers and pixels:
        transformers.ViTImageProcessor(size={"height": pixels, "width": pixels}).save_pretrained(tmp_path)
        preprocess |= image_preprocess(tmp_path, "ViTImageProcessor", 3, (pixels, pixels))
    for key, size in (("input_size", [3, pixels, pixels]), ("size", [pixels, pixels])):
        if key in preprocess and pixels:
            preprocess[key] = size
    sites = family.sites(config)
    expected = NAMED[name][1] if name in NAMED else [heads for tower in towers for heads in heads_of(tower)]
    assert [site.heads for site in sites] == expected
    shared = getattr(towers[0], "num_key_value_heads", expected[0]) if towers else expected[0]
    assert {site.sharing for site in sites if site.tower != "text"} == {expected[0] // shared}
    description = replace(pico, config=config, masks=[HeadMask.full(sites)], preprocess=preprocess)
    tensors = Skeleton(dict(family.build(config).state_dict()))
    count = sum(p.numel() for p in stock.parameters())
    assert parameters(tensors) == count
    if variant == "hf-siglip-images":
        stock.vision_model.use_head = False  # the library runs it, and does not use it
    given = family.example_inputs(preprocess, 1, 0)
    given = {k: v.to("meta") for k, v in given.items()} if isinstance(given, dict) else given.to("meta")
    torch.backends.mha.set_fastpath_enabled(False)  # one operator, which the counter does not know
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            call(stock.eval().requires_grad_(False), given)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    compared = 0  # the image's features with those of the classes
    if variant in ("clip", *HF_CLIP):
        compared = len(LABELS) * {"hf-siglip": 768}.get(variant, 512)
    last = getattr(stock, "score", None)
    if last is not None:  # the library has logits of every token
        compared -= (given["input_ids"].shape[1] - 1) * last.weight.numel()
    assert macs(description, tensors, whole_last_block=True) == counter.get_total_flops() // 2 + compared
