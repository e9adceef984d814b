"""transformers' DINOv3, an encoder without a classifier: its stem with rotary positions, and its readout."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from hydractl.families.base import Stages, State, first_tokens, for_each, normed_input, numbered_paths

NAME = "DINOv3ViTModel"


def dinov3_stages(model: Any) -> list[Stages]:
    """Cut the model into its only tower: stem, blocks and readout.

    The stem makes patches, class token, registers and the angles of positions. The readout is the class token.
    """
    layers = model.model.layer
    return [
        Stages(
            stem=partial(_run_stem, model),
            blocks=for_each(_run_layer, layers),
            block_paths=numbered_paths("model.layer", layers),
            stem_prefixes=("embeddings.",),
            readout=lambda state: model.norm(state.hidden)[:, 0],
            attention_inputs=for_each(partial(normed_input, "norm1"), layers),
            reads=first_tokens(1),
        )
    ]


def _run_stem(model: Any, inputs: Any) -> State:
    """Return the tokens before the first layer, and in the context the ``angles`` of their positions.

    The angles are a pair of cosines and sines, ``[1, T, head_dim]`` each.

    Args:
        model: transformers' DINOv3ViTModel.
        inputs: pixels ``[B, C, H, W]``, or a mapping with the pixels as ``pixel_values``.
    """
    pixels = inputs["pixel_values"] if isinstance(inputs, Mapping) else inputs
    hidden = model.embeddings(pixels)
    patch_cos, patch_sin = model.rope_embeddings(pixels)  # [patches, head_dim] each
    patches, head_dim = patch_cos.shape
    # The class token and the registers come before the patches and are not rotated: their angle is 0, with cosine 1
    # and sine 0.
    prefix_tokens = hidden.shape[1] - patches
    prefix_shape = (prefix_tokens, head_dim)
    cos = torch.cat([patch_cos.new_ones(prefix_shape), patch_cos])  # [T, head_dim]
    sin = torch.cat([patch_sin.new_zeros(prefix_shape), patch_sin])
    angles = (cos[None], sin[None])  # [1, T, head_dim] each
    return State(hidden, {"angles": angles})


def _run_layer(layer: Any, state: State) -> State:
    """Return the state after one layer."""
    context = state.context
    hidden = layer(state.hidden, position_embeddings=context["angles"])
    return State(hidden, context)
