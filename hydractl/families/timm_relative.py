"""timm's transformers whose heads add numbers of their own to the scores, by the distance of tokens: BEiT and Swin."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from hydractl.errors import InputError
from hydractl.families.base import AttentionLayout, first_tokens
from hydractl.families.torchvision_operators import declare_operators
from hydractl.heads.mask import Site
from hydractl.heads.relative import Relative

declare_operators()

from timm.models.beit import Attention as BeitAttention  # noqa: E402
from timm.models.beit import Beit as Beit  # noqa: E402

_TABLE = "relative_position_bias_table"
LAYOUTS = {"relative": AttentionLayout(("qkv",), "proj", table=_TABLE, biases=("q_bias", "v_bias"))}
"""The tensors of timm's kinds of attention, by :attr:`hydractl.heads.mask.Site.layout`."""


class InPlace(nn.Module):
    """:class:`hydractl.model.attention.HeadAttention` with the call of timm's attention with tables of distances.

    Args:
        attention: the one that attends.
        library: the module in whose place it stands.
    """

    index: Tensor | None

    def __init__(self, attention: nn.Module, library: Any) -> None:
        super().__init__()
        self.attention = attention
        self.register_buffer("index", library.relative_position_index, persistent=False)

    def forward(self, x: Tensor, shared_rel_pos_bias: None = None) -> Tensor:
        """Attend ``[M * B, T, d_model]``."""
        return self.attention(x, relative=None if self.index is None else Relative(self.index))


def check(model: Any) -> None:
    """Refuse what cannot be pruned head by head.

    Raises:
        InputError: naming it.
    """
    problem = None
    if any(type(block.attn) is not BeitAttention for block in model.blocks):
        problem = f"its attention is {type(model.blocks[0].attn).__name__}"
    elif model.rel_pos_bias is not None:
        problem = "its blocks share one table of relative positions (use_shared_rel_pos_bias)"
    if problem is not None:
        raise InputError(f"this Beit of timm is not supported: {problem}", hint="supported are beit and beitv2")


def site(path: str, attention: Any) -> Site:
    """The site of one attention of the library."""
    width = attention.proj.in_features // attention.num_heads
    return Site(path, attention.num_heads, width, attention.proj.out_features, layout="relative")


def reads(model: Any) -> Any:
    """The tokens that ``forward_head`` pools: one, or all of them."""
    return first_tokens(1) if model.global_pool == "token" else None
