"""transformers' decoders with a classifier at the last token (Llama and its kin, GPT-2), and encoders built like them.

A token sees those before it, perhaps within a window. Heads of queries may share keys and values.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hydractl.errors import InputError
from hydractl.families.base import State
from hydractl.families.config_json import LibraryConfig
from hydractl.heads.rotary import Rotary
from hydractl.jsonio import shown

_ORIGINAL = "original_max_position_embeddings"
_FULL = "full_attention"
_SLIDING = "sliding_attention"
PER_SAMPLE = (_FULL, _SLIDING, "tokens", "last")
"""The entries of :attr:`hydractl.families.base.Stages.per_sample`."""


def unsupported_setting(config: Any) -> str | None:
    """Return what a configuration has that is not followed here, or None.

    Args:
        config: the library's object for one encoder or decoder; what a class does not have is not looked at.
    """
    heads = config.num_attention_heads
    key_heads = getattr(config, "num_key_value_heads", None)
    if key_heads is not None:
        can_share = _is_positive(key_heads) and heads % key_heads == 0
        if not can_share:
            return f"{heads} heads cannot share {shown(key_heads)} heads of keys and values"
    cap = getattr(config, "attn_logit_softcapping", None)
    if cap is not None:
        return f"it caps the scores of its attention (attn_logit_softcapping {shown(cap)})"
    if getattr(config, "use_bidirectional_attention", False):
        return "its tokens see those behind them too (use_bidirectional_attention)"
    layer_types = getattr(config, "layer_types", None) or ()
    foreign_types = set(layer_types) - {_FULL, _SLIDING}
    if foreign_types:
        names = sorted(map(shown, foreign_types))
        return f"its layers are {', '.join(names)}"
    window = getattr(config, "sliding_window", None)
    if window is not None and not _is_positive(window):
        return f"its tokens see {shown(window)} tokens"
    if getattr(config, "qk_layernorm", False):
        return "it has a norm of queries and keys for each head (qk_layernorm)"
    return _problem_of_rotations(config)


def _is_positive(number: Any) -> bool:
    """Return whether a value of a file is a whole number above 0."""
    return type(number) is int and number >= 1


def _problem_of_rotations(config: Any) -> str | None:
    """Return why the rotary positions of a configuration cannot be followed, or None."""
    for rotation in _rotations(config):
        if "dynamic" in str(rotation.get("rope_type")):
            return "its rotary positions depend on the length of a text (rope_type dynamic)"
    for length in _short_lengths(config):
        if not _is_positive(length):
            return f"its rotary positions change behind {shown(length)} tokens (original_max_position_embeddings)"
    return None


def _rotations(config: Any) -> list[Mapping[str, object]]:
    """Return the parameters of rotary positions, of each kind of layer or of all."""
    parameters = getattr(config, "rope_parameters", None) or {}
    candidates = [parameters, *parameters.values()]
    return [candidate for candidate in candidates if isinstance(candidate, Mapping)]


def _short_lengths(config: Any) -> list[Any]:
    """Return up to how many tokens a text is short, where longer ones have other angles (LongRoPE)."""
    lengths = []
    for rotation in _rotations(config):
        if rotation.get("rope_type") == "longrope":
            lengths.append(rotation.get(_ORIGINAL))
    return lengths


def longest_text_of(config: Any) -> int:
    """Return the largest number of tokens of a text: all texts have the angles of short ones."""
    lengths = [config.max_position_embeddings]
    lengths += _short_lengths(config)
    return min(lengths)


def kinds_of_layers(config: Any) -> Sequence[str]:
    """Return for each layer whether its tokens see all before them or those in a window."""
    if hasattr(type(config), "layer_types"):
        return list(config.layer_types)
    kind = _FULL
    if getattr(config, "sliding_window", None) is not None:
        kind = _SLIDING
    return [kind] * config.num_hidden_layers


def decoder_stem(base: Any, causal: bool, inputs: Mapping[str, Tensor]) -> State:
    """Compute the embeddings, the masks and angles of each kind of layer, and where each sample ends.

    Args:
        base: the library's decoder.
        causal: whether a token sees only those before it.
        inputs: of the library's model: ``input_ids [B, T]``, perhaps ``attention_mask``.

    Returns:
        The tokens before the first layer. Their context has the mask of each kind of layer under its name, ``angles``
        by kind where positions are rotary, ``tokens``: the mask as it was given, and ``last``: see
        :func:`_last_positions`, or None where a token sees all.
    """
    ids = inputs["input_ids"]
    tokens = inputs.get("attention_mask")
    config = base.config
    positions = torch.arange(ids.shape[1], device=ids.device)[None]  # [1, T]: padding has positions too
    if hasattr(base, "wpe"):
        embedded = base.wte(ids) + base.wpe(positions)
        hidden = base.drop(embedded)
    else:
        hidden = base.embed_tokens(ids)
    kinds = list(dict.fromkeys(kinds_of_layers(config)))  # each once
    context: dict[str, object] = {}
    for kind in kinds:
        window = None
        if kind == _SLIDING:
            window = config.sliding_window
        context[kind] = _visible_tokens(ids, tokens, causal, window)
    if hasattr(base, "rotary_emb"):
        context["angles"] = _angles_by_kind(base.rotary_emb, hidden, positions, kinds)
    context["tokens"] = tokens
    context["last"] = None
    if causal:
        context["last"] = _last_positions(config, ids)
    return State(hidden, context)


def _angles_by_kind(
    rotary_emb: Any, hidden: Tensor, positions: Tensor, kinds: Sequence[str]
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the library's cosines and sines for each kind of layer."""
    forward = inspect.unwrap(type(rotary_emb).forward)  # without a look at how long the texts are
    has_angles_by_kind = isinstance(getattr(rotary_emb, "rope_type", None), dict)
    angles = {}
    for kind in kinds:
        if has_angles_by_kind:
            angles[kind] = forward(rotary_emb, hidden, positions, kind)
        else:
            angles[kind] = forward(rotary_emb, hidden, positions)
    return angles


def _visible_tokens(ids: Tensor, tokens: Tensor | None, causal: bool, window: int | None) -> Tensor | None:
    """Return which tokens each token sees, bool ``[B, 1, T, T]``; None: all.

    Args:
        ids: ``[B, T]``.
        tokens: which of them are no padding, ``[B, T]``; None: all.
        causal: whether a token sees only those before it.
        window: how many tokens it sees at most, itself included; None: all.
    """
    samples, length = ids.shape
    unpadded = None
    if tokens is not None:
        keys = tokens.bool()[:, None, None, :]  # [B, 1, 1, T]
        unpadded = keys.expand(-1, -1, length, -1)  # the same for every query
    if not causal:
        return unpadded

    positions = torch.arange(length, device=ids.device)
    distance = positions[:, None] - positions[None]  # [T, T]: how far a key stands before a query
    visible = distance >= 0
    if window is not None:
        visible = visible & (distance < window)
    visible = visible.expand(samples, 1, -1, -1)
    if unpadded is None:
        return visible
    visible = visible & unpadded

    # Padding before a text would see nothing, which not every kernel can do: it sees itself. Nothing is read from it.
    sees_nothing = ~visible.any(dim=-1, keepdim=True)  # [B, 1, T, 1]
    itself = distance == 0
    return visible | (itself & sees_nothing)


def _last_positions(config: Any, ids: Tensor) -> Tensor:
    """Return the last token of each sample that is not padding, ``[B, 1]``, as the library finds it."""
    positions = torch.arange(ids.shape[1], device=ids.device)
    if config.pad_token_id is None:
        if ids.shape[0] > 1:
            raise InputError(
                "texts of unequal length cannot be read together without a padding token",
                hint="set pad_token_id in config.json",
            )
        return positions[None, -1:]
    unpadded = ids != config.pad_token_id
    return (positions * unpadded).argmax(-1, keepdim=True)


def turn_of(attention: Any) -> Callable[[Tensor, Tensor], Rotary] | None:
    """Return how an attention turns by the library's cosines and sines ``[1, 1, T, width]``; None: not at all."""
    kind = type(attention).__name__
    if kind in ("GlmAttention", "HeliumAttention"):  # neighbouring dimensions, with the angles of halves
        return lambda cos, sin: Rotary(_interleaved(cos), _interleaved(sin), neighbours=True)
    if not getattr(attention, "use_rope", True):
        return None
    if kind == "Exaone4Attention" and attention.sliding_window is not None and not attention.is_sliding:
        return None  # beside layers with a window, those without one have no positions
    return partial(Rotary, neighbours=False)


def _interleaved(angles: Tensor) -> Tensor:
    """Return the angles of halves of the dimensions as those of neighbours."""
    half = angles.shape[-1] // 2
    first_half = angles[..., :half]
    return first_half.repeat_interleave(2, dim=-1)


def run_decoder_layer(layer: Any, kind: str, state: State) -> State:
    """Run one layer of the library, of the kind that its mask and angles are of."""
    context = state.context
    arguments = {"attention_mask": context[kind]}
    if "angles" in context:
        arguments["position_embeddings"] = context["angles"][kind]
    hidden = layer(state.hidden, **arguments)
    return State(hidden, context)


def last_norm(base: Any, state: State) -> Tensor:
    """Return the state after the last norm."""
    if hasattr(base, "ln_f"):
        return base.ln_f(state.hidden)
    return base.norm(state.hidden)


def at_last_token(state: State, values: Tensor) -> Tensor:
    """Return the values of the last token of each sample: ``[B, n]`` of ``[B, T, n]``."""
    if "read" in state.context:
        return values[:, 0]
    last = state.context["last"]  # [B, 1]
    width = values.shape[2]
    positions = last[:, :, None].expand(-1, -1, width)
    read = values.gather(1, positions)  # [B, 1, n]
    return read[:, 0]


def mean_of_tokens(hidden: Tensor, tokens: Tensor | None) -> Tensor:
    """Return the mean ``[B, d_model]`` of ``hidden [B, T, d_model]`` over what ``tokens [B, T]`` marks; None: all."""
    if tokens is None:
        tokens = torch.ones_like(hidden[..., 0])
    weights = tokens.unsqueeze(-1)  # [B, T, 1]
    weighted = hidden * weights
    return weighted.sum(dim=1) / weights.sum(dim=1)


def last_token_logits(model: Any, base: Any, state: State) -> Tensor:
    """Compute logits as the library's ``GenericForSequenceClassification``."""
    hidden = last_norm(base, state)
    last = at_last_token(state, hidden)
    return model.score(last)


def pooled_logits(model: Any, base: Any, state: State) -> Tensor:
    """Compute logits ``[B, classes]`` as the library's ``EuroBertForSequenceClassification``.

    Its ``classifier_pooling`` says what is classified: the first token (``bos``), the mean of tokens (``mean``), or the
    mean of what a layer makes of each of them (``late``).
    """
    hidden = last_norm(base, state)
    tokens = state.context["tokens"]
    pools_late = model.classifier_pooling == "late"
    if pools_late:  # the library takes the mean of logits, which are linear in these features
        hidden = model.activation(model.dense(hidden))
    if model.classifier_pooling == "bos":
        features = hidden[:, 0]
    else:
        features = mean_of_tokens(hidden, tokens)
    if not pools_late:
        features = model.activation(model.dense(features))
    return model.classifier(features)


def with_padding(config: LibraryConfig, padding: int, origin: str) -> LibraryConfig:
    """Return a configuration that knows by which token texts are padded; the library looks for the last other one.

    Args:
        config: of the model.
        padding: the number of the tokenizer's padding token.
        origin: for messages.

    Raises:
        InputError: the configuration names another.
    """
    known = config.get("pad_token_id")
    if known not in (None, padding):
        raise InputError(
            f"{origin}: the tokenizer pads with token {padding}, config.json has pad_token_id {shown(known)}",
            hint=f"set pad_token_id to {padding} in config.json if the model was trained so",
        )
    return {**config, "pad_token_id": padding}
