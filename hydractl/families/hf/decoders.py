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
from hydractl.heads.rotary import Rotary
from hydractl.jsonio import shown

_ORIGINAL = "original_max_position_embeddings"
_FULL, _SLIDING = "full_attention", "sliding_attention"
PER_SAMPLE = (_FULL, _SLIDING, "tokens", "last")
"""The entries of :attr:`hydractl.families.base.Stages.per_sample`."""


def problem_of(config: Any) -> str | None:
    """Return why a configuration cannot be opened, or None."""
    heads, keys = config.num_attention_heads, getattr(config, "num_key_value_heads", None)
    kinds = {*(getattr(config, "layer_types", None) or ())} - {_FULL, _SLIDING}
    window = getattr(config, "sliding_window", None)
    if keys is not None and (type(keys) is not int or keys < 1 or heads % keys):
        return f"{heads} heads cannot share {shown(keys)} heads of keys and values"
    if (cap := getattr(config, "attn_logit_softcapping", None)) is not None:
        return f"it caps the scores of its attention (attn_logit_softcapping {shown(cap)})"
    if getattr(config, "use_bidirectional_attention", False):
        return "its tokens see those behind them too (use_bidirectional_attention)"
    if kinds:
        return f"its layers are {', '.join(sorted(map(shown, kinds)))}"
    if window is not None and (type(window) is not int or window < 1):
        return f"its tokens see {shown(window)} tokens"
    if getattr(config, "qk_layernorm", False):
        return "it has a norm of queries and keys for each head (qk_layernorm)"
    if any("dynamic" in str(one.get("rope_type")) for one in _rotations(config)):
        return "its rotary positions depend on the length of a text (rope_type dynamic)"
    if wrong := [most for most in _short(config) if type(most) is not int or most < 1]:
        return f"its rotary positions change behind {shown(wrong[0])} tokens (original_max_position_embeddings)"
    return None


def _rotations(config: Any) -> list[Mapping[str, Any]]:
    """Return the parameters of rotary positions, of each kind of layer or of all."""
    parameters = getattr(config, "rope_parameters", None) or {}
    return [one for one in (parameters, *parameters.values()) if isinstance(one, Mapping)]


def _short(config: Any) -> list[Any]:
    """Return up to how many tokens a text is short, where longer ones have other angles (LongRoPE)."""
    return [one.get(_ORIGINAL) for one in _rotations(config) if one.get("rope_type") == "longrope"]


def longest(config: Any) -> int:
    """Return the largest number of tokens of a text: all texts have the angles of short ones."""
    return min([config.max_position_embeddings, *_short(config)])


def kinds_of_layers(config: Any) -> Sequence[str]:
    """Return for each layer whether its tokens see all before them or those in a window."""
    if hasattr(type(config), "layer_types"):
        return list(config.layer_types)
    kind = _FULL if getattr(config, "sliding_window", None) is None else _SLIDING
    return [kind] * config.num_hidden_layers


def stem(base: Any, causal: bool, inputs: Mapping[str, Tensor]) -> State:
    """Compute the embeddings, the masks and angles of each kind of layer, and where each sample ends."""
    ids, tokens, config = inputs["input_ids"], inputs.get("attention_mask"), base.config
    positions = torch.arange(ids.shape[1], device=ids.device)[None]  # [1, T]: padding has positions too
    hidden = base.drop(base.wte(ids) + base.wpe(positions)) if hasattr(base, "wpe") else base.embed_tokens(ids)
    kinds = dict.fromkeys(kinds_of_layers(config))
    windows = {kind: config.sliding_window if kind == _SLIDING else None for kind in kinds}
    context: dict[str, Any] = {kind: _mask(ids, tokens, causal, window) for kind, window in windows.items()}
    if hasattr(base, "rotary_emb"):
        own = isinstance(getattr(base.rotary_emb, "rope_type", None), dict)  # each kind of layer its own angles
        turn = inspect.unwrap(type(base.rotary_emb).forward)  # without a look at how long the texts are
        given = (base.rotary_emb, hidden, positions)
        context["angles"] = {kind: turn(*given, *([kind] if own else [])) for kind in kinds}
    return State(hidden, {**context, "tokens": tokens, "last": _last(config, ids) if causal else None})


def _mask(ids: Tensor, tokens: Tensor | None, causal: bool, window: int | None) -> Tensor | None:
    """Return which tokens each token sees, bool ``[B, 1, T, T]``; None: all."""
    samples, length = ids.shape
    seen = None if tokens is None else tokens[:, None, None, :].bool().expand(-1, -1, length, -1)
    if not causal:
        return seen
    back = torch.arange(length, device=ids.device)
    back = back[:, None] - back[None]  # [T, T]: how far a key is behind a query
    visible = (back >= 0) if window is None else (back >= 0) & (back < window)
    visible = visible.expand(samples, 1, -1, -1)
    if seen is None:
        return visible
    visible = visible & seen
    # Padding before a text would see nothing, which not every kernel can do. Nothing is read from it.
    return visible | ((back == 0) & ~visible.any(dim=-1, keepdim=True))


def _last(config: Any, ids: Tensor) -> Tensor:
    """Return the last token of each sample that is not padding, ``[B, 1]``, as the library finds it."""
    length = torch.arange(ids.shape[1], device=ids.device)
    if config.pad_token_id is None:
        if ids.shape[0] > 1:
            raise InputError(
                "texts of unequal length cannot be read together without a padding token",
                hint="set pad_token_id in config.json",
            )
        return length[None, -1:]
    return (length * (ids != config.pad_token_id)).argmax(-1, keepdim=True)


def turn_of(attention: Any) -> Callable[[Tensor, Tensor], Rotary] | None:
    """Return how an attention turns by the library's cosines and sines ``[1, 1, T, width]``; None: not at all."""
    kind = type(attention).__name__
    if kind in ("GlmAttention", "HeliumAttention"):  # neighbouring dimensions, with the angles of halves
        return lambda cos, sin: Rotary(_interleaved(cos), _interleaved(sin), neighbours=True)
    everywhere = kind == "Exaone4Attention" and attention.sliding_window is not None and not attention.is_sliding
    return None if everywhere or not getattr(attention, "use_rope", True) else partial(Rotary, neighbours=False)


def _interleaved(angles: Tensor) -> Tensor:
    return angles[..., : angles.shape[-1] // 2].repeat_interleave(2, dim=-1)


def run(layer: Any, kind: str, state: State) -> State:
    """Run one layer of the library."""
    given = {"attention_mask": state.context[kind]}
    if "angles" in state.context:
        given["position_embeddings"] = state.context["angles"][kind]
    return State(layer(state.hidden, **given), state.context)


def normed(base: Any, state: State) -> Tensor:
    """Return the state after the last norm."""
    return (base.ln_f if hasattr(base, "ln_f") else base.norm)(state.hidden)


def at_last(state: State, values: Tensor) -> Tensor:
    """Return the values of the last token of each sample: ``[B, n]`` of ``[B, T, n]``."""
    if "read" in state.context:
        return values[:, 0]
    return values.gather(1, state.context["last"][:, :, None].expand(-1, -1, values.shape[2]))[:, 0]


def last_token(model: Any, base: Any, state: State) -> Tensor:
    """Compute logits as the library's ``GenericForSequenceClassification``."""
    return model.score(at_last(state, normed(base, state)))


def pooled(model: Any, base: Any, state: State) -> Tensor:
    """Compute logits as the library's ``EuroBertForSequenceClassification``."""
    hidden, tokens = normed(base, state), state.context["tokens"]
    late = model.classifier_pooling == "late"
    if late:  # the library takes the mean of logits, which are linear in these features
        hidden = model.activation(model.dense(hidden))
    if model.classifier_pooling == "bos":
        features = hidden[:, 0]
    else:
        weights = torch.ones_like(hidden[..., :1]) if tokens is None else tokens.unsqueeze(-1)  # [B, T, 1]
        features = (hidden * weights).sum(dim=1) / weights.sum(dim=1)
    return model.classifier(features if late else model.activation(model.dense(features)))


def with_padding(config: Mapping[str, Any], padding: int, origin: str) -> dict[str, Any]:
    """Return a configuration that knows by which token texts are padded; the library looks for the last other one.

    Raises:
        InputError: it names another.
    """
    known = config.get("pad_token_id")
    if known not in (None, padding):
        raise InputError(
            f"{origin}: the tokenizer pads with token {padding}, config.json has pad_token_id {shown(known)}",
            hint=f"set pad_token_id to {padding} in config.json if the model was trained so",
        )
    return {**config, "pad_token_id": padding}
