"""transformers' decoders that classify their last token: Llama and relatives, GPT-2.

In a decoder a token attends only to itself and the tokens before it, perhaps within a window. Several heads of queries
may share keys and values.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hydractl.errors import InputError
from hydractl.families.base import State
from hydractl.families.config_json import LibraryConfig
from hydractl.jsonio import shown

_FULL = "full_attention"
_SLIDING = "sliding_attention"
PER_SAMPLE = (_FULL, _SLIDING, "tokens", "last")
"""The keys of the context whose tensors have the samples in dimension 0."""


def unsupported_setting(config: Any) -> str | None:
    """Return the first setting of a configuration that hydractl does not support, as a message; None if there is none.

    Args:
        config: transformers' configuration object of one encoder or decoder. Settings that its class does not have are
            skipped.
    """
    # Grouped-query attention.
    heads = config.num_attention_heads
    key_heads = getattr(config, "num_key_value_heads", None)
    if key_heads is not None:
        can_share = _is_positive(key_heads) and heads % key_heads == 0
        if not can_share:
            return f"{heads} heads cannot share {shown(key_heads)} heads of keys and values"
    # Attention that is not a plain softmax over the tokens before.
    cap = getattr(config, "attn_logit_softcapping", None)
    if cap is not None:
        return f"it caps the scores of its attention (attn_logit_softcapping {shown(cap)})"
    if getattr(config, "use_bidirectional_attention", False):
        return "its tokens see those behind them too (use_bidirectional_attention)"
    # Other kinds of layers may have no attention at all.
    layer_types = getattr(config, "layer_types", None) or ()
    unknown_types = set(layer_types) - {_FULL, _SLIDING}
    if unknown_types:
        names = sorted(map(shown, unknown_types))
        return f"its layers are {', '.join(names)}"
    # A window of impossible size; norms of single heads; rotations of an unknown kind.
    window = getattr(config, "sliding_window", None)
    if window is not None and not _is_positive(window):
        return f"its tokens see {shown(window)} tokens"
    if getattr(config, "qk_layernorm", False):
        return "it has a norm of queries and keys for each head (qk_layernorm)"
    # The parameters of rotary positions are one mapping for all layers, or hold one for each kind of layer.
    parameters = getattr(config, "rope_parameters", None) or {}
    for rotation in (parameters, *parameters.values()):
        rope_type = str(rotation.get("rope_type")) if isinstance(rotation, Mapping) else ""
        if "dynamic" in rope_type or rope_type == "longrope":
            return f"its rotary positions depend on the length of a text (rope_type {rope_type})"
    return None


def _is_positive(number: Any) -> bool:
    """Return whether a value from a file is a whole number above 0."""
    return type(number) is int and number >= 1


def kinds_of_layers(config: Any) -> Sequence[str]:
    """Return the kind of each layer: ``full_attention``, or ``sliding_attention`` if its tokens see only a window."""
    if hasattr(type(config), "layer_types"):
        return list(config.layer_types)
    kind = _FULL if getattr(config, "sliding_window", None) is None else _SLIDING
    return [kind] * config.num_hidden_layers


def decoder_stem(base: Any, inputs: Mapping[str, Tensor]) -> State:
    """Return the state before the first layer: the embeddings, and the masks and angles of each kind of layer.

    Args:
        base: transformers' decoder, e.g. a LlamaModel.
        inputs: ``input_ids [B, T]`` and perhaps ``attention_mask [B, T]``.

    Returns:
        The embeddings ``[B, T, d_model]``, with this context:

        * ``full_attention``, ``sliding_attention``: the mask of each kind of layer that the model has;
        * ``angles``: cosines and sines by kind of layer, if positions are rotary;
        * ``tokens``: the attention mask of ``inputs``, or None;
        * ``last``: the position of the last token of each sample.
    """
    ids = inputs["input_ids"]
    padding_mask = inputs.get("attention_mask")
    config = base.config
    positions = torch.arange(ids.shape[1], device=ids.device)[None]  # [1, T]; padding is counted too

    # GPT-2 adds learned positions to the embeddings. All others have rotary positions.
    if hasattr(base, "wpe"):
        embedded = base.wte(ids) + base.wpe(positions)
        hidden = base.drop(embedded)
    else:
        hidden = base.embed_tokens(ids)

    # A kind of layer (full or sliding attention) has its own mask, and perhaps its own angles.
    kinds = list(dict.fromkeys(kinds_of_layers(config)))  # distinct kinds, in order
    context: dict[str, object] = {}
    for kind in kinds:
        window = config.sliding_window if kind == _SLIDING else None
        context[kind] = _visible_tokens(ids, padding_mask, window)
    if hasattr(base, "rotary_emb"):
        # The decorators of `forward` are for angles that depend on the length of a text, and turn gradients off.
        rotary_emb = base.rotary_emb
        forward = inspect.unwrap(type(rotary_emb).forward)
        has_angles_by_kind = isinstance(getattr(rotary_emb, "rope_type", None), dict)
        angles = {}  # the cosines and sines of each kind of layer
        for kind in kinds:
            own_argument = [kind] if has_angles_by_kind else []
            angles[kind] = forward(rotary_emb, hidden, positions, *own_argument)
        context["angles"] = angles
    context["tokens"] = padding_mask

    # The last token that transformers reads of each text alone, [B, 1]: its number is the greatest of those read.
    # E.g. of 4 tokens, the last of them padding, the products are 0, 1, 2, 0, whose greatest is at position 2.
    is_read = torch.ones_like(ids, dtype=torch.bool) if padding_mask is None else padding_mask.bool()
    if config.pad_token_id is not None:
        is_read = is_read & (ids != config.pad_token_id)
    numbers = torch.arange(ids.shape[1], device=ids.device)
    context["last"] = (numbers * is_read).argmax(-1, keepdim=True)
    return State(hidden, context)


def _visible_tokens(ids: Tensor, tokens: Tensor | None, window: int | None) -> Tensor:
    """Return the attention mask: which keys each query may attend to, of itself and those before it.

    Args:
        ids: token ids, ``[B, T]``; only the shape and the device are used.
        tokens: true for tokens that are not padding, ``[B, T]``; None if no token is padding.
        window: the greatest number of keys that a query attends to, itself included; None means no limit.

    Returns:
        A bool mask ``[B, 1, queries, keys]``, where queries = keys = T and the 1 stands for the heads.
    """
    samples, length = ids.shape

    # The causal mask, perhaps with a window. It is the same for every sample.
    positions = torch.arange(length, device=ids.device)
    distance = positions[:, None] - positions[None]  # [T, T]: position of the query - position of the key
    in_reach = distance >= 0
    if window is not None:
        in_reach = in_reach & (distance < window)
    in_reach_of_samples = in_reach.expand(samples, 1, -1, -1)  # [B, 1, T, T]
    if tokens is None:
        return in_reach_of_samples
    keys_not_padding = tokens.bool()[:, None, None, :]  # [B, 1, 1, T]: the same keys for every query
    visible = in_reach_of_samples & keys_not_padding

    # Padding that is further from its text than the window has only padding in reach. A query that attends to nothing
    # gives NaN in some kernels, so such a query attends to itself. No other token attends to padding, so no result
    # changes.
    sees_nothing = ~visible.any(dim=-1, keepdim=True)  # [B, 1, T, 1]
    is_itself = distance == 0  # [T, T]
    return visible | (is_itself & sees_nothing)


def run_layer_of_kind(layer: Any, kind: str, state: State) -> State:
    """Return the state after one layer of a decoder, or of a ModernBERT.

    Args:
        layer: transformers' layer.
        kind: ``full_attention`` or ``sliding_attention``: which mask and angles of the context the layer receives.
        state: the state before the layer, with the context of :func:`decoder_stem`.
    """
    context = state.context
    arguments = {"attention_mask": context[kind]}
    if "angles" in context:
        arguments["position_embeddings"] = context["angles"][kind]
    hidden = layer(state.hidden, **arguments)
    return State(hidden, context)


def last_token(model: Any, base: Any, state: State) -> Tensor:
    """Return the last token of each sample, ``[B, d_model]``.

    Args:
        model, base: the decoder, which is not used.
        state: the state after the last norm. Its context has the positions of the last tokens as ``last``. If it has
            the entry ``read``, the last token is the only one left.
    """
    if "read" in state.context:
        return state.hidden[:, 0]
    last = state.context["last"]  # [B, 1]
    return state.hidden.take_along_dim(last[..., None], dim=1)[:, 0]


def last_token_logits(model: Any, base: Any, state: State) -> Tensor:
    """Compute logits ``[B, classes]`` of the last token, like transformers' ``GenericForSequenceClassification``."""
    return model.score(last_token(model, base, state))


def check_padding(config: LibraryConfig, padding: int, origin: str) -> None:
    """Raise an error if the configuration of a decoder names another padding token than its tokenizer.

    Args:
        config: the configuration of the model.
        padding: the id of the tokenizer's padding token.
        origin: the folder, for messages.

    Raises:
        InputError: if it does.
    """
    configured_padding = config.get("pad_token_id")
    if configured_padding not in (None, padding):
        raise InputError(
            f"{origin}: the tokenizer pads with token {padding}, config.json has pad_token_id "
            f"{shown(configured_padding)}",
            hint=f"set pad_token_id to {padding} in config.json if the model was trained so",
        )
