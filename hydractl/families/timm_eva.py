"""timm's ``Eva`` transformers, of the family of timm: EVA, EVA-02, DINOv3, Perception Encoder, ViTs with RoPE.

They turn queries and keys by the positions of their tokens, which the blocks are given beside the state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.errors import InputError
from hydractl.families.base import AttentionLayout, Stages, State, first_tokens, for_each, numbered_paths
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


class RotaryStandIn(nn.Module):
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
        self.prefix = library.num_prefix_tokens
        self.neighbours = not library.rotate_half

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
            rotary = self._with_prefix(rope)
        return self.attention(x, attn_mask=attn_mask, is_causal=is_causal, rotary=rotary)

    def _with_prefix(self, rope: Tensor) -> Rotary:
        """Return the angles of all tokens, given those of the patches.

        Args:
            rope: sines and cosines side by side, ``[..., T - prefix, 2 * head_dim]``, see :meth:`forward`.
        """
        sin, cos = rope.chunk(2, dim=-1)  # [..., T - prefix, head_dim] each
        # The tokens of the prefix (class, registers) are not turned: their angle is 0.
        *leading, _, width = cos.shape
        prefix_shape = (*leading, self.prefix, width)
        prefix_sin = sin.new_zeros(prefix_shape)
        prefix_cos = cos.new_ones(prefix_shape)
        sin = torch.cat((prefix_sin, sin), dim=-2)
        cos = torch.cat((prefix_cos, cos), dim=-2)
        # One dimension more for the samples, and for the heads where all have the same angles.
        if rope.dim() == 2:  # [T, head_dim] -> [1, 1, T, head_dim]
            sin = sin[None, None]
            cos = cos[None, None]
        else:  # [(M,) heads, T, head_dim] -> [(M,) 1, heads, T, head_dim]
            sin = sin.unsqueeze(-4)
            cos = cos.unsqueeze(-4)
        return Rotary(cos, sin, self.neighbours, of_heads=rope.dim() > 2)


def layout_name(attention: Any) -> str:
    """Return which of :data:`LAYOUTS` an attention of the library has."""
    if getattr(attention, "qkv", None) is None:
        return "apart"
    if getattr(attention, "q_bias", None) is not None:
        return "own biases"
    return ""


def check_eva(model: Any) -> None:
    """Refuse an Eva that cannot be pruned head by head.

    Raises:
        InputError: naming what stands in the way.
    """
    problem = _why_unsupported(model)
    if problem is not None:
        raise InputError(f"this Eva of timm is not supported: {problem}", hint="supported are eva, eva02, dinov3, PE")


def _why_unsupported(model: Any) -> str | None:
    """Return why the heads of a model cannot be separated, or None."""
    attentions = [block.attn for block in model.blocks]
    kinds = {type(attention) for attention in attentions}
    if not kinds <= {EvaAttention, AttentionRope}:
        names = sorted(kind.__name__ for kind in kinds)
        return f"its attention is {', '.join(names)}"
    normalises_across_heads = any(not isinstance(attention.norm, nn.Identity) for attention in attentions)
    if normalises_across_heads:
        name = type(attentions[0]).__name__
        return f"its {name} normalises across heads, so its heads cannot be separated"
    if model.patch_drop is not None:
        return "it drops patches in training (patch_drop_rate)"
    return None


def eva_stages(model: Any, prefixes: tuple[str, ...]) -> list[Stages]:
    """Cut an Eva into stem, blocks and readout, its only tower.

    The stem is the library's own ``forward_features`` up to the blocks, which are given the angles of positions beside
    the tokens.

    Args:
        model: of the library.
        prefixes: how the names of the parameters of its stem start.
    """

    def stem(images: Tensor) -> State:
        """Return the tokens before the first block, and the angles of their positions."""
        patches = model.patch_embed(images)
        tokens, rope = model._pos_embed(patches)
        hidden = model.norm_pre(tokens)
        return State(hidden, {"rope": rope})

    def readout(state: State) -> Tensor:
        """Return the logits ``[B, classes]``."""
        hidden = model.norm(state.hidden)
        return model.forward_head(hidden)

    blocks: list[Callable[[State], State]] = []
    for index, block in enumerate(model.blocks):
        if model.rope_mixed:  # every block has angles of its own
            blocks.append(partial(_run_block_by_index, index, block))
        else:
            blocks.append(partial(_run_block, block))
    tower = Stages(
        stem=stem,
        blocks=blocks,
        block_paths=numbered_paths("blocks", model.blocks),
        stem_prefixes=prefixes,
        readout=readout,
        attention_inputs=for_each(_attention_input, model.blocks),
        reads=first_tokens(1) if model.global_pool == "token" else None,
        per_member=("rope",) if model.rope_mixed else (),
    )
    return [tower]


def _run_block(block: nn.Module, state: State) -> State:
    """Return the state behind one block; all blocks are given the same angles."""
    context = state.context
    hidden = block(state.hidden, rope=context["rope"])
    return State(hidden, context)


def _run_block_by_index(index: int, block: nn.Module, state: State) -> State:
    """Run a block; of angles ``[(M,) blocks, heads, T, 2 * head_dim]`` it is given those at its index."""
    context = state.context
    rope = context["rope"].select(-4, index)
    hidden = block(state.hidden, rope=rope)
    return State(hidden, context)


def _attention_input(block: Any, state: State) -> Tensor:
    """Return what the attention of a block is given of the state before it."""
    if isinstance(block, EvaBlockPostNorm):  # whose norms are behind attention and MLP
        return state.hidden
    return block.norm1(state.hidden)


def rotary_site(path: str, attention: Any) -> Site:
    """Return the site of one attention of the library."""
    return Site(
        path,
        heads=attention.num_heads,
        head_dim=attention.head_dim,
        d_model=attention.proj.out_features,
        layout=layout_name(attention),
        sharing=getattr(attention, "num_kv_groups", 1),
    )
