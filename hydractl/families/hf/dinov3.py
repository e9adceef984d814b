"""transformers' DINOv3, which is a body and has no classifier: its stem with rotary positions, and its readout."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hydractl.families.base import Stages, State, first_tokens, for_each, numbered_paths

NAME = "DINOv3ViTModel"


def dinov3_stages(model: Any) -> list[Stages]:
    """Cut the model. Stem: patches, class and register tokens, angles of positions. Readout: the class token."""
    layers = model.model.layer
    return [
        Stages(
            stem=partial(_run_stem, model),
            blocks=for_each(_run_layer, layers),
            block_paths=numbered_paths("model.layer", layers),
            stem_prefixes=("embeddings.",),
            readout=lambda state: model.norm(state.hidden)[:, 0],
            attention_inputs=for_each(_attention_input, layers),
            reads=first_tokens(1),
        )
    ]


def _run_stem(model: Any, inputs: Any) -> State:
    """Return the tokens before the first layer, and cosines and sines ``[1, T, head_dim]`` of all their positions.

    Args:
        model: of the library.
        inputs: pixels ``[B, C, H, W]``, alone or as ``pixel_values``.
    """
    pixels = inputs
    if isinstance(inputs, Mapping):
        pixels = inputs["pixel_values"]
    hidden = model.embeddings(pixels)
    cos, sin = model.rope_embeddings(pixels)  # [patches, head_dim] each
    patches, head_dim = cos.shape
    # The class token and the registers before the patches are not turned: their angle is 0.
    tokens_before = hidden.shape[1] - patches
    prefix_shape = (tokens_before, head_dim)
    cos = torch.cat([cos.new_ones(prefix_shape), cos])
    sin = torch.cat([sin.new_zeros(prefix_shape), sin])
    angles = (cos[None], sin[None])  # [T, head_dim] -> [1, T, head_dim]
    return State(hidden, {"angles": angles})


def _run_layer(layer: Any, state: State) -> State:
    """Return the state behind one layer."""
    context = state.context
    hidden = layer(state.hidden, position_embeddings=context["angles"])
    return State(hidden, context)


def _attention_input(layer: Any, state: State) -> Tensor:
    """Return what the attention of a layer is given of the state before it."""
    return layer.norm1(state.hidden)
