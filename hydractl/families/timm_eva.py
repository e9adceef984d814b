"""timm's ``Eva`` transformers, of the family of timm: EVA, EVA-02, DINOv3, Perception Encoder, ViTs with RoPE.

They turn queries and keys by the positions of their tokens, which the blocks are given beside the state.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.errors import InputError
from hydractl.families.base import AttentionLayout, Stages, State, first_tokens
from hydractl.families.torchvision_operators import declare_operators
from hydractl.heads.mask import Site
from hydractl.heads.rotary import Rotary

declare_operators()

from timm.layers import AttentionRope  # noqa: E402
from timm.models.eva import Eva as Eva  # noqa: E402
from timm.models.eva import EvaAttention, EvaBlockPostNorm  # noqa: E402

_FUSED = AttentionLayout(("qkv",), "proj", gate="gate", q_norm="q_norm", k_norm="k_norm")
LAYOUTS = {
    "": _FUSED,
    "own biases": replace(_FUSED, biases=("q_bias", "v_bias")),
    "apart": replace(_FUSED, qkv=("q_proj", "k_proj", "v_proj")),
}
"""The tensors of timm's kinds of attention, by :attr:`hydractl.heads.mask.Site.layout`."""


class InPlace(nn.Module):
    """:class:`hydractl.model.attention.HeadAttention` with the call of the library's attention with rotary positions.

    Args:
        attention: the one that attends.
        library: the module in whose place it stands.
        mixed: whether each head has rotary frequencies of its own.
    """

    def __init__(self, attention: Any, library: Any, mixed: bool) -> None:
        super().__init__()
        self.attention = attention
        if mixed:
            attention.keep_apart()
        self.prefix, self.neighbours = library.num_prefix_tokens, not library.rotate_half

    def forward(
        self, x: Tensor, rope: Tensor | None = None, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Attend ``[M * B, T, d_model]``.

        Args:
            x: the tokens.
            rope: ``[T - prefix, 2 * head_dim]``, sines first, is of no prefix token; ``[heads, T - prefix, ...]`` where
                each head has its own, or ``[M, heads, T - prefix, ...]``.
            attn_mask, is_causal: as of the library.
        """
        rotary = None
        if rope is not None:
            sin, cos = rope.chunk(2, dim=-1)
            still = (*cos.shape[:-2], self.prefix, cos.shape[-1])
            sin, cos = (torch.cat(p, dim=-2) for p in ((sin.new_zeros(still), sin), (cos.new_ones(still), cos)))
            # [T, head_dim] -> [1, 1, T, head_dim]; [(M,) H, T, head_dim] -> [(M,) 1, H, T, head_dim]
            sin, cos = (t[None, None] if t.dim() == 2 else t.unsqueeze(-4) for t in (sin, cos))
            rotary = Rotary(cos, sin, self.neighbours, of_heads=rope.dim() > 2)
        return self.attention(x, attn_mask=attn_mask, is_causal=is_causal, rotary=rotary)


def layout_name(attention: Any) -> str:
    """Return which of :data:`LAYOUTS` an attention of the library has."""
    if getattr(attention, "qkv", None) is None:
        return "apart"
    return "own biases" if getattr(attention, "q_bias", None) is not None else ""


def check(model: Any) -> None:
    """Refuse what cannot be pruned head by head.

    Raises:
        InputError: naming the attention.
    """
    problem = None
    attention = [block.attn for block in model.blocks]
    if not all(type(one) in (EvaAttention, AttentionRope) for one in attention):
        problem = f"its attention is {', '.join(sorted({type(one).__name__ for one in attention}))}"
    elif any(not isinstance(one.norm, nn.Identity) for one in attention):
        problem = f"its {type(attention[0]).__name__} normalises across heads, so its heads cannot be separated"
    elif model.patch_drop is not None:
        problem = "it drops patches in training (patch_drop_rate)"
    if problem is not None:
        raise InputError(f"this Eva of timm is not supported: {problem}", hint="supported are eva, eva02, dinov3, PE")


def stages(model: Any, prefixes: tuple[str, ...]) -> list[Stages]:
    """Cut the model as the family does; the stem is the library's own ``forward_features`` up to the blocks."""

    def stem(images: Tensor) -> State:
        hidden, rope = model._pos_embed(model.patch_embed(images))
        return State(model.norm_pre(hidden), {"rope": rope})

    tower = Stages(
        stem=stem,
        blocks=[partial(_run, block, place if model.rope_mixed else None) for place, block in enumerate(model.blocks)],
        block_paths=[f"blocks.{i}" for i in range(len(model.blocks))],
        stem_prefixes=prefixes,
        readout=lambda state: model.forward_head(model.norm(state.hidden)),
        attention_inputs=[partial(_attention_input, block) for block in model.blocks],
        reads=first_tokens(1) if model.global_pool == "token" else None,
        per_member=("rope",) if model.rope_mixed else (),
    )
    return [tower]


def _run(block: nn.Module, place: int | None, state: State) -> State:
    """Run a block; of angles ``[(M,) blocks, heads, T, 2 * head_dim]`` it is given those at its place."""
    rope = state.context["rope"]
    return State(block(state.hidden, rope=rope if place is None else rope.select(-4, place)), state.context)


def _attention_input(block: Any, state: State) -> Tensor:
    return state.hidden if isinstance(block, EvaBlockPostNorm) else block.norm1(state.hidden)


def site(path: str, attention: Any) -> Site:
    """Return the site of one attention of the library."""
    layout, sharing = layout_name(attention), getattr(attention, "num_kv_groups", 1)
    return Site(
        path, attention.num_heads, attention.head_dim, attention.proj.out_features, layout=layout, sharing=sharing
    )
