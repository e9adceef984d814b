"""transformers' encoders in stages: the part of their forward before the first layer, and one layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import create_bidirectional_mask, create_bidirectional_sliding_window_mask

from hydractl.families.base import State
from hydractl.families.hf import relative


def encoder_stem(base: Any, inputs: Any) -> State:
    """Run the part of the library's own forward before its first layer.

    Args:
        base: the encoder.
        inputs: tokens, patches or pixels, by the library's names; pixels ``[B, C, H, W]`` may come alone.

    Returns:
        The tokens before the first layer, and what its layers are given beside them (masks, positions).
    """
    if not isinstance(inputs, Mapping):
        return _stem_of_pixels(base, inputs)
    if "spatial_shapes" in inputs:
        return _stem_of_patches(base, inputs)
    if "pixel_values" in inputs:
        return _stem_of_pixels(base, inputs["pixel_values"])
    return _stem_of_tokens(base, inputs)


def _stem_of_tokens(base: Any, inputs: Mapping[str, Tensor]) -> State:
    """Run the stem of a model of texts: ``input_ids [B, T]``, perhaps ``attention_mask`` and ``token_type_ids``."""
    mask = inputs.get("attention_mask")
    arguments = {"input_ids": inputs["input_ids"]}
    if "token_type_ids" in inputs:
        arguments["token_type_ids"] = inputs["token_type_ids"]
    if type(base).__name__ == "DebertaV2Model":
        hidden = base.embeddings(**arguments, mask=mask)  # what pads is zero before the first layer
    else:
        hidden = base.embeddings(**arguments)
    if hasattr(base, "embeddings_project"):  # ELECTRA
        hidden = base.embeddings_project(hidden)
    mask = _none_on_meta(mask)
    context = _layer_arguments(base, hidden, None, mask)
    if hasattr(base, "rotary_emb"):  # ModernBERT: masks and angles of its two kinds of layers
        context["angles"] = _angles_by_kind(base, hidden)
        context["sliding_attention"] = create_bidirectional_sliding_window_mask(
            config=base.config, inputs_embeds=hidden, attention_mask=mask
        )
        context["tokens"] = mask
    return State(hidden, context)


def _angles_by_kind(base: Any, hidden: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the cosines and sines of a ModernBERT for each kind of its layers."""
    tokens = hidden.shape[1]
    positions = torch.arange(tokens, device=hidden.device).unsqueeze(0)  # [1, T]
    angles = {}
    for kind in set(base.config.layer_types):
        angles[kind] = base.rotary_emb(hidden, positions, kind)
    return angles


def _stem_of_patches(base: Any, inputs: Mapping[str, Tensor]) -> State:
    """Run the stem of a SigLIP 2, which is given patches, some of them of padding."""
    pixels = inputs["pixel_values"]
    shapes = inputs["spatial_shapes"]
    if shapes.is_meta:
        # Without numbers, which the library looks at, only shapes are asked for: positions change none.
        hidden = base.embeddings.patch_embedding(pixels)
    else:
        hidden = base.embeddings(pixels, shapes)
    mask = _none_on_meta(inputs.get("pixel_attention_mask"))
    context = _layer_arguments(base, hidden, pixels, mask)
    context["tokens"] = mask
    return State(hidden, context)


def _stem_of_pixels(base: Any, pixels: Tensor) -> State:
    """Run the stem of a model of images, ``[B, C, H, W]``."""
    hidden = base.embeddings(pixels)
    if isinstance(hidden, tuple):  # Swin: and its rows and columns
        hidden = hidden[0]
    if hasattr(base, "pre_layrnorm"):
        hidden = base.pre_layrnorm(hidden)
    context = _layer_arguments(base, hidden, pixels, None)
    return State(hidden, context)


def _none_on_meta(mask: Tensor | None) -> Tensor | None:
    """Return a mask whose numbers the library can look at; None where there are none: only shapes are asked for."""
    if mask is None or mask.is_meta:
        return None
    return mask


def _layer_arguments(base: Any, hidden: Tensor, pixels: Tensor | None, mask: Tensor | None) -> dict[str, object]:
    """Return what the layers of an encoder are given beside the tokens, by the library's names.

    Args:
        base: the encoder.
        hidden: the tokens before the first layer, ``[B, T, d_model]``.
        pixels: of a model of images, what it is given.
        mask: which tokens are no padding, ``[B, T]``; None: all.
    """
    attention_mask = create_bidirectional_mask(config=base.config, inputs_embeds=hidden, attention_mask=mask)
    context: dict[str, object] = {"attention_mask": attention_mask}
    context.update(relative.relative_context(base, hidden, pixels, mask))
    return context


def run_encoder_layer(layer: Any, state: State) -> State:
    """Run one layer of an encoder."""
    context = state.context
    if "angles" not in context:
        return relative.run_relative_layer(layer, state)
    kind = layer.attention_type
    if kind == "sliding_attention":
        mask = context["sliding_attention"]
    else:
        mask = context["attention_mask"]
    hidden = layer(state.hidden, attention_mask=mask, position_embeddings=context["angles"][kind])
    return State(hidden, context)
