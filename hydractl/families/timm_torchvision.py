"""Weights of torchvision's vision transformers, which open as timm's: the same modules under other names."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from hydractl.files.checkpoint import MappedTensors, TensorSource

ARCHITECTURES = {
    "vit_b_16": "vit_base_patch16_224",
    "vit_b_32": "vit_base_patch32_224",
    "vit_l_16": "vit_large_patch16_224",
    "vit_l_32": "vit_large_patch32_224",
    "vit_h_14": "vit_huge_patch14_224",
}
"""timm's name of each of torchvision's vision transformers."""

_POSITIONS = "encoder.pos_embedding"
_RENAMED = (
    (r"^conv_proj\.", "patch_embed.proj."),
    (r"^class_token$", "cls_token"),
    (rf"^{_POSITIONS}$", "pos_embed"),
    (r"^encoder\.ln\.", "norm."),
    (r"^heads\.head\.", "head."),
    (r"^encoder\.layers\.encoder_layer_", "blocks."),
    (r"\.ln_(\d)\.", r".norm\1."),
    (r"\.self_attention\.in_proj_", ".attn.qkv."),
    (r"\.self_attention\.out_proj\.", ".attn.proj."),
    (r"\.mlp\.(0|linear_1)\.", ".mlp.fc1."),
    (r"\.mlp\.(3|linear_2)\.", ".mlp.fc2."),
)
"""Parts of torchvision's names with timm's for them; its published files have ``linear_1`` and ``linear_2``."""


def is_of_torchvision(tensors: TensorSource) -> bool:
    """Return whether weights have the names of torchvision's vision transformers."""
    return _POSITIONS in tensors.names()


def by_timm_names(tensors: TensorSource) -> MappedTensors:
    """Return weights of torchvision by timm's names; their numbers and shapes are the same."""
    stored_names: dict[str, str] = {}
    for stored_name in tensors.names():
        timm_name = stored_name
        for pattern, replacement in _RENAMED:
            timm_name = re.sub(pattern, replacement, timm_name)
        stored_names[timm_name] = stored_name
    infos = {name: tensors.info(stored_name) for name, stored_name in stored_names.items()}
    return MappedTensors(infos, lambda name: tensors.read(stored_names[name]))


def evaluated(size: Sequence[int], arguments: Mapping[str, object]) -> dict[str, object]:
    """Return timm's settings of crop and interpolation with which it prepares images as torchvision does to evaluate.

    The shorter side of an image is resized, and a square of the model's height is cut out of the middle. The setting
    ``crop_pct`` is the height divided by the resized side.

    Args:
        size: the shape of the images, ``[3, height, width]``.
        arguments: those of torchvision's reference script, by name; empty for other weights: the shorter side is then
            resized to 256 pixels for images of 224.
    """
    height = size[1]
    resized = arguments.get("val_resize_size")
    if type(resized) is not int or resized < height:
        resized = round(height * 256 / 224)
    # timm resizes to the whole part of height / share, so the share is rounded down: 224 / 232 becomes 0.965517, and
    # 224 / 0.965517 has the whole part 232.
    share = math.floor(height / resized * 1e6) / 1e6
    interpolation = arguments.get("interpolation", "bilinear")
    return {"crop_pct": share, "crop_mode": "center", "interpolation": interpolation}
