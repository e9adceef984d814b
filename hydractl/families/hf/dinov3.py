"""transformers' DINOv3, which is a body and has no classifier: its stem with rotary positions, and its readout."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hydractl.families.base import Stages, State, first_tokens

NAME = "DINOv3ViTModel"


def stages(model: Any) -> list[Stages]:
    """Stem: patches, class and register tokens, and the angles of their positions. Readout: the class token."""
    layers = model.model.layer
    return [
        Stages(
            stem=partial(_stem, model),
            blocks=[partial(_run, layer) for layer in layers],
            block_paths=[f"model.layer.{index}" for index in range(len(layers))],
            stem_prefixes=("embeddings.",),
            readout=lambda state: model.norm(state.hidden)[:, 0],
            attention_inputs=[partial(_attention_input, layer) for layer in layers],
            reads=first_tokens(1),
        )
    ]


def _stem(model: Any, inputs: Any) -> State:
    pixels = inputs["pixel_values"] if isinstance(inputs, Mapping) else inputs
    hidden = model.embeddings(pixels)
    cos, sin = model.rope_embeddings(pixels)  # [patches, head_dim]; the tokens before the patches are not turned
    before = (hidden.shape[1] - len(cos), cos.shape[1])
    cos, sin = torch.cat([cos.new_ones(before), cos]), torch.cat([sin.new_zeros(before), sin])
    return State(hidden, {"angles": (cos[None], sin[None])})  # [T, head_dim] -> [1, T, head_dim]


def _run(layer: Any, state: State) -> State:
    return State(layer(state.hidden, position_embeddings=state.context["angles"]), state.context)


def _attention_input(layer: Any, state: State) -> Tensor:
    return layer.norm1(state.hidden)
