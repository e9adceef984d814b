"""Parts of the forward pass of transformers' encoders: everything before the first layer, and one layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import create_bidirectional_mask, create_bidirectional_sliding_window_mask

from hydractl.families.base import State
from hydractl.families.hf import deberta

_ARGUMENTS = ("attention_mask", "relative_pos", "rel_embeddings")
"""The keys of the context that are also names of arguments of a layer."""


def encoder_stem(base: Any, inputs: Any) -> State:
    """Return the state before the first layer of an encoder, as transformers' forward pass computes it.

    Args:
        base: the encoder.
        inputs: a mapping with transformers' names of inputs (``input_ids``, ``pixel_values`` and so on), or only the
            pixels ``[B, C, H, W]``.

    Returns:
        The tokens before the first layer; the context has the other arguments of the layers (masks, positions).
    """
    if not isinstance(inputs, Mapping):
        return _stem_of_pixels(base, inputs)
    if "pixel_values" in inputs:
        return _stem_of_pixels(base, inputs["pixel_values"])

    # An encoder of texts: embed the tokens.
    mask_of_inputs = inputs.get("attention_mask")
    arguments = {"input_ids": inputs["input_ids"]}
    if "token_type_ids" in inputs:
        arguments["token_type_ids"] = inputs["token_type_ids"]
    if type(base).__name__ == deberta.BODY:
        hidden = base.embeddings(**arguments, mask=mask_of_inputs)  # the mask sets the embeddings of padding to zero
    else:
        hidden = base.embeddings(**arguments)
    # ELECTRA's embeddings are narrower than its layers.
    if hasattr(base, "embeddings_project"):
        hidden = base.embeddings_project(hidden)

    # Of a mask on the meta device transformers would read the numbers.
    mask = None if mask_of_inputs is None or mask_of_inputs.is_meta else mask_of_inputs
    context = _layer_arguments(base, hidden, mask)
    context["tokens"] = mask  # for means over tokens

    # ModernBERT has two kinds of layers, each with its own mask and angles, as decoders have them.
    if hasattr(base, "rotary_emb"):
        positions = torch.arange(hidden.shape[1], device=hidden.device).unsqueeze(0)  # [1, T]
        kinds = set(base.config.layer_types)
        context["angles"] = {kind: base.rotary_emb(hidden, positions, kind) for kind in kinds}
        context["full_attention"] = context.pop("attention_mask")
        context["sliding_attention"] = create_bidirectional_sliding_window_mask(
            config=base.config, inputs_embeds=hidden, attention_mask=mask
        )
    return State(hidden, context)


def _stem_of_pixels(base: Any, pixels: Tensor) -> State:
    """Run the stem of an encoder of images, with pixels ``[B, C, H, W]``."""
    hidden = base.embeddings(pixels)
    if hasattr(base, "pre_layrnorm"):
        hidden = base.pre_layrnorm(hidden)
    return State(hidden, _layer_arguments(base, hidden, None))


def _layer_arguments(base: Any, hidden: Tensor, mask: Tensor | None) -> dict[str, object]:
    """Return the arguments of an encoder's layers other than the tokens, by transformers' names.

    Args:
        base: the encoder.
        hidden: the tokens before the first layer, ``[B, T, d_model]``.
        mask: true for tokens that are not padding, ``[B, T]``; None if no token is padding.
    """
    if type(base).__name__ == deberta.BODY:
        return deberta.layer_arguments(base, hidden, mask)
    attention_mask = create_bidirectional_mask(config=base.config, inputs_embeds=hidden, attention_mask=mask)
    return {"attention_mask": attention_mask}


def run_encoder_layer(layer: Any, state: State) -> State:
    """Return the state after one layer of an encoder; the context, which all layers read, stays the same."""
    arguments = {name: value for name, value in state.context.items() if name in _ARGUMENTS}
    output = layer(state.hidden, **arguments)
    # Some layers also return the attention weights.
    return State(output[0] if isinstance(output, tuple) else output, state.context)
