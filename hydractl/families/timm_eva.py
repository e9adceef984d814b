"""timm's ``Eva`` transformers, part of the family timm: EVA, EVA-02, DINOv3, Perception Encoder, ViTs with RoPE.

They rotate queries and keys by the positions of their tokens. The blocks receive the angles beside the tokens.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.families.base import AttentionLayout, State
from hydractl.families.torchvision_operators import declare_operators
from hydractl.heads.rotary import Rotary

declare_operators()

from timm.layers import AttentionRope as AttentionRope  # noqa: E402
from timm.models.eva import Eva as Eva  # noqa: E402
from timm.models.eva import EvaAttention as EvaAttention  # noqa: E402
from timm.models.eva import EvaBlockPostNorm  # noqa: E402
from timm.models.vision_transformer import ResPostBlock  # noqa: E402

_FUSED = AttentionLayout(("qkv",), "proj", q_norm="q_norm", k_norm="k_norm")
LAYOUTS = {
    "": _FUSED,
    "own biases": replace(_FUSED, biases=("q_bias", "v_bias")),
    "apart": replace(_FUSED, qkv=("q_proj", "k_proj", "v_proj")),
}
"""The names of the tensors of each kind of attention, by :attr:`hydractl.heads.mask.Site.layout`."""


class RotaryStandIn(nn.Module):
    """Wraps ``HeadAttention`` so that it can be called like timm's attention with rotary positions.

    Args:
        attention: the :class:`hydractl.model.attention.HeadAttention` to call.
        library: the timm module that it replaces.
    """

    def __init__(self, attention: Any, library: Any) -> None:
        super().__init__()
        self.attention = attention
        self.prefix = library.num_prefix_tokens
        self.neighbours = not library.rotate_half

    def forward(
        self, x: Tensor, rope: Tensor | None = None, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Return the attention of M ensemble members over B samples, ``[M * B, T, d_model]``.

        Args:
            x: the tokens, ``[M * B, T, d_model]``.
            rope: sines, then cosines of the angles of all tokens but the prefix, ``[T - prefix, 2 * head_dim]``.
            attn_mask: as for timm's attention.
            is_causal: always False.
        """
        rotary = None
        if rope is not None:
            # timm computes angles for patches only. Tokens of the prefix (class token, registers) have no position in
            # the image and are not rotated: their angle is 0, with sine 0 and cosine 1.
            patch_sin, patch_cos = rope.chunk(2, dim=-1)  # [T - prefix, head_dim] each
            prefix_shape = (self.prefix, patch_cos.shape[1])
            sin = torch.cat((patch_sin.new_zeros(prefix_shape), patch_sin))  # [T, head_dim]
            cos = torch.cat((patch_cos.new_ones(prefix_shape), patch_cos))
            rotary = Rotary(cos[None, None], sin[None, None], self.neighbours)
        return self.attention(x, attn_mask=attn_mask, rotary=rotary)


def layout_name(attention: Any) -> str:
    """Return the key of :data:`LAYOUTS` for an attention module of timm."""
    if getattr(attention, "qkv", None) is None:
        return "apart"
    if getattr(attention, "q_bias", None) is not None:
        return "own biases"
    return ""


def eva_stem(model: Any, images: Tensor) -> State:
    """Return the tokens of an Eva before the first block, as timm's ``forward_features`` computes them.

    The angles of their positions are the entry ``rope`` of the context.
    """
    patches = model.patch_embed(images)
    tokens, rope = model._pos_embed(patches)
    hidden = model.norm_pre(tokens)
    return State(hidden, {"rope": rope})


def run_eva_block(block: nn.Module, state: State) -> State:
    """Return the state after one block of an Eva."""
    context = state.context
    hidden = block(state.hidden, rope=context["rope"])
    return State(hidden, context)


def attention_input(block: Any, state: State) -> Tensor:
    """Return the inputs of the attention of a ViT's or an Eva's block, computed from the state before the block."""
    # These blocks have their norms after attention and MLP.
    return state.hidden if isinstance(block, (EvaBlockPostNorm, ResPostBlock)) else block.norm1(state.hidden)
