"""Pico CLIPs: open_clip's own classes with random weights. Every identity of a zero-shot model is tested on them.

What is known of the models here is written from open_clip's definitions and not from hydractl's own code.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from collections.abc import Iterable
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from hydractl.families.torchvision_operators import declare_operators
from hydractl.heads.mask import Head

declare_operators()

import open_clip  # noqa: E402
import timm  # noqa: E402
from open_clip.push_to_hf_hub import save_config_for_hf  # noqa: E402
from open_clip.transform import PreprocessCfg  # noqa: E402

_VISION = {"image_size": 16, "patch_size": 8, "width": 24, "head_width": 8, "layers": 2, "mlp_ratio": 2.0}
_TEXT = {"context_length": 16, "vocab_size": 49408, "width": 24, "heads": 3, "layers": 2, "mlp_ratio": 2.0}

# Name -> what differs from the plain CLIP: (the model, vision_cfg, text_cfg).
CLIP: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "clip": ({}, {}, {}),
    "clip-average": ({}, {"pool_type": "avg", "no_ln_pre": True, "final_ln_after_pool": True}, {}),
    "clip-quick-gelu": (
        {"quick_gelu": True},
        {"image_size": [16, 24]},
        {"tokenizer_kwargs": {"clean": "canonicalize"}},
    ),
    "clip-layer-scale": ({}, {"ls_init_value": 0.3}, {"ls_init_value": 0.3, "norm_kwargs": {"eps": 1e-3}}),
    "clip-unlike": ({"embed_dim": 12}, {"width": 32}, {"width": 20, "heads": 2, "layers": 3, "context_length": 20}),
    "clip-bias": (
        {"init_logit_bias": -2.0, "nonscalar_logit_scale": True},
        {"pos_embed_type": "sin_cos_2d"},
        {"proj_bias": True},
    ),
    "clip-eos": ({}, {}, {"pool_type": "eos", "eos_id": 49407}),
    "clip-last": ({}, {}, {"pool_type": "last", "proj_type": "none", "width": 16, "heads": 2}),
    "clip-both-ways": ({}, {}, {"no_causal_mask": True}),
    "clip-attentional-pool": ({}, {"attentional_pool": True, "attn_pooler_queries": 3, "attn_pooler_heads": 2}, {}),
    "custom-text": ({"custom_text": True}, {}, {}),
    "siglip": (
        {"custom_text": True, "init_logit_bias": -10.0, "embed_dim": 24},
        {"timm_model_name": "vit_pico_map", "timm_pool": "map", "timm_proj": "none"},
        {"no_causal_mask": True, "pool_type": "last", "proj_bias": True},
    ),
    "eva-tower": (
        {"custom_text": True},
        {"timm_model_name": "eva_pico", "timm_pool": "token", "timm_proj": None},
        {},
    ),
    "timm-projected": ({}, {"timm_model_name": "vit_pico_map", "timm_pool": "avg", "timm_proj": "mlp"}, {}),
    "custom-text-first-token": (
        {"custom_text": True, "init_logit_bias": 1.0},
        {},
        {"pool_type": "first", "no_causal_mask": True},
    ),
}


# An image tower of timm is only named, so its sizes have to be those of a model that timm knows.
@timm.models.register_model
def vit_pico_map(pretrained: bool = False, **kwargs: Any) -> Any:
    return _tower(timm.models.VisionTransformer, kwargs, class_token=False)


@timm.models.register_model
def eva_pico(pretrained: bool = False, **kwargs: Any) -> Any:
    return _tower(timm.models.Eva, kwargs, use_rot_pos_emb=True, ref_feat_shape=(2, 2))


def _tower(kind: Any, given: dict[str, Any], **settings: Any) -> Any:
    given = {"global_pool": "map"} | {k: v for k, v in given.items() if k in ("num_classes", "global_pool")}
    model = kind(img_size=16, patch_size=8, embed_dim=24, depth=2, num_heads=3, **settings, **given)
    model.default_cfg = {}  # which the library looks into
    return model


def clip_config(variant: str = "clip", **changes: Any) -> dict[str, Any]:
    """The ``model_cfg`` of a variant; ``vision_cfg`` and ``text_cfg`` among the changes are added to its own."""
    top, vision, text = CLIP[variant]
    vision = {**_VISION, **vision, **changes.pop("vision_cfg", {})}
    text = {**_TEXT, **text, **changes.pop("text_cfg", {})}
    return {"embed_dim": 16, "vision_cfg": vision, "text_cfg": text, **top, **changes}


def pico_clip(variant: str = "clip", seed: int = 0, **changes: Any) -> Any:
    """The library's own model in eval mode, with weights far enough from zero that every head matters."""
    # Most of the time goes into drawing the embeddings of the tokenizer's 49,408 tokens, hence the copies.
    return copy.deepcopy(_drawn(json.dumps(clip_config(variant, **changes)), seed))


@lru_cache(maxsize=64)
def _drawn(settings: str, seed: int) -> Any:
    config = json.loads(settings)
    kind = open_clip.CustomTextCLIP if config.pop("custom_text", False) else open_clip.CLIP
    model = kind(**config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in ("logit_scale", "logit_bias"):
                parameter.add_(0.1 * seed)  # of its own in every member, and still a temperature that one would meet
            else:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model


def publish_clip(model: Any, variant: str, folder: Path, **changes: Any) -> Path:
    """A folder as open_clip itself saves a model."""
    preprocess = dataclasses.asdict(PreprocessCfg(size=model.visual.image_size))
    open_clip.set_model_preprocess_cfg(model, preprocess)
    save_config_for_hf(model, folder / "open_clip_config.json", clip_config(variant, **changes))
    safetensors.torch.save_file(model.state_dict(), folder / "open_clip_model.safetensors", {"format": "pt"})
    return folder


@cache
def clip_tokenizer(variant: str = "clip") -> Any:
    """The tokenizer that open_clip itself gives a folder of this variant."""
    text = clip_config(variant)["text_cfg"]
    return open_clip.SimpleTokenizer(context_length=text["context_length"], **text.get("tokenizer_kwargs", {}))


def class_features(model: Any, variant: str, labels: list[str], templates: list[str]) -> torch.Tensor:
    """The library's own zero-shot classifier, ``[classes, D]``; templates hold ``{}``."""
    # A template of the library may name the place of the label several times only by number.
    numbered = [template.replace("{}", "{0}") for template in templates]
    return open_clip.build_zero_shot_classifier(model, clip_tokenizer(variant), labels, numbered).T


@torch.no_grad()
def zero_shot_logits(
    model: Any, variant: str, images: torch.Tensor, labels: list[str], templates: list[str]
) -> torch.Tensor:
    """Logits ``[B, classes]`` as open_clip's own ``get_logits`` makes them, for features averaged over templates."""
    features = model.encode_image(images, normalize=True)
    logits = model.logit_scale.exp() * features @ class_features(model, variant, labels, templates).T
    return logits if model.logit_bias is None else logits + model.logit_bias


def zero_clip_columns(model: Any, removed: Iterable[Head]) -> Any:
    """A copy of the STOCK model with the output columns of some heads zeroed."""
    model = copy.deepcopy(model)
    for path, head in removed:
        attention = model.get_submodule(path)
        out = attention.proj if hasattr(attention, "proj") else attention.out_proj  # of timm, of open_clip
        width = out.in_features // attention.num_heads
        with torch.no_grad():
            out.weight[:, head * width : (head + 1) * width] = 0
    return model


def clip_images(variant: str = "clip", count: int = 3, seed: int = 1) -> torch.Tensor:
    """Random pixels ``[count, 3, H, W]``."""
    size = clip_config(variant)["vision_cfg"]["image_size"]
    height, width = size if isinstance(size, list) else (size, size)
    return torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(seed))


# Which parameters a merged part averages, by patterns on their names.
_TRUNK = r"|visual\.trunk\."
_PARTS = {
    "mlp": r"(visual\.|text\.)?transformer\.resblocks\.\d+\.mlp\." + _TRUNK + r"blocks\.\d+\.mlp\.",
    "norm": r"(visual\.|text\.)?transformer\.resblocks\.\d+\.ln_(1|2|attn)\."
    r"|visual\.ln_(pre|post)\.|(text\.)?ln_final\." + _TRUNK + r"(blocks\.\d+\.)?(fc_)?norm\d?\.",
    "embed": r"visual\.(conv1\.weight|class_embedding|positional_embedding)$"
    r"|(text\.)?(token_embedding\.weight|positional_embedding)$" + _TRUNK + r"(patch_embed\.|pos_embed|cls_token)",
}


def merged_clip_names(model: Any, merge: Iterable[str]) -> list[str]:
    """The parameters that are averaged when these parts are."""
    return [n for n, _ in model.named_parameters() if any(re.match(_PARTS[part], n) for part in merge)]


def rewrite_clip(folder: Path, **changes: Any) -> Path:
    """Change the ``model_cfg`` (or, with ``preprocess_cfg``, that) of a published folder."""
    path = folder / "open_clip_config.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    if "preprocess_cfg" in changes:
        document["preprocess_cfg"] = document["preprocess_cfg"] | changes.pop("preprocess_cfg")
    for section in ("vision_cfg", "text_cfg"):
        document["model_cfg"][section] |= changes.pop(section, {})
    document["model_cfg"] |= changes
    path.write_text(json.dumps(document), encoding="utf-8")
    return folder
