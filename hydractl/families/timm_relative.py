"""timm's transformers whose heads add learned biases to the scores by the distance of tokens: BEiT and Swin."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.families.base import AttentionLayout, Stages, State
from hydractl.families.torchvision_operators import declare_operators
from hydractl.heads.relative import Relative

declare_operators()

from timm.models.beit import Attention as BeitAttention  # noqa: E402
from timm.models.beit import Beit as Beit  # noqa: E402
from timm.models.swin_transformer import SwinTransformer as SwinTransformer  # noqa: E402
from timm.models.swin_transformer import WindowAttention  # noqa: E402

_Grid = tuple[int, int]
"""Number of rows and columns of tokens."""

_TABLE = "relative_position_bias_table"
KINDS: dict[type[nn.Module], str] = {BeitAttention: "relative", WindowAttention: "windows"}
"""The key of :data:`LAYOUTS` for each class of attention."""
LAYOUTS = {
    "relative": AttentionLayout(("qkv",), "proj", table=_TABLE, biases=("q_bias", "v_bias")),
    "windows": AttentionLayout(("qkv",), "proj", table=_TABLE),
}
"""The names of the tensors of each kind of attention, by :attr:`hydractl.heads.mask.Site.layout`."""


class DistanceStandIn(nn.Module):
    """Wraps ``HeadAttention`` so that it can be called like timm's attention with tables of relative positions.

    Args:
        attention: the :class:`hydractl.model.attention.HeadAttention` to call.
        library: the timm module that it replaces; its indices of distances are kept as a buffer.
    """

    index: Tensor | None

    def __init__(self, attention: Any, library: Any) -> None:
        super().__init__()
        self.attention = attention
        attention.keep_apart()
        self.register_buffer("index", library.relative_position_index, persistent=False)

    def forward(self, x: Tensor, mask: Tensor | None = None, shared_rel_pos_bias: None = None) -> Tensor:
        """Compute the attention of M ensemble members over B samples with W windows each.

        Args:
            x: the tokens, ``[M * B * W, T, d_model]``.
            mask: added to the scores of the windows of a sample, ``[W, T, T]``.
            shared_rel_pos_bias: what blocks of a BEiT may share; none of these is supported.
        """
        # A BEiT without any table attends like a plain ViT.
        if self.index is None:
            return self.attention(x)
        return self.attention(x, relative=Relative(self.index, mask))


def blocks_of(model: Any) -> dict[str, Any]:
    """Return the blocks of a model of timm by their dotted names, in model order; a Swin has them in stages."""
    if not isinstance(model, SwinTransformer):
        return {f"blocks.{index}": block for index, block in enumerate(model.blocks)}
    blocks = {}
    for number, stage in enumerate(model.layers):
        for index, block in enumerate(stage.blocks):
            blocks[f"layers.{number}.blocks.{index}"] = block
    return blocks


def fill_swin_buffers(model: Any) -> None:
    """Fill the buffers of a Swin on the meta device with real numbers, in place.

    The buffers are the indices of distances and the masks of windows. timm creates them on the device of the
    parameters, so on the meta device they have no numbers.
    """
    for block in blocks_of(model).values():
        block.attn.init_non_persistent_buffers()
        block.attn_mask = block.get_attn_mask(device=torch.device("cpu"), dtype=torch.float32)


def swin_stages(model: Any, prefixes: tuple[str, ...]) -> list[Stages]:
    """Cut a Swin into its only tower: stem, blocks and readout.

    Between blocks the tokens of an image are in one row, ``[B, T, d]``; inside a block they are on a grid,
    ``[B, H, W, d]``. Before each stage but the first, patch merging turns four tokens into one. It runs as part of the
    first block of that stage.

    Args:
        model: timm's SwinTransformer.
        prefixes: the beginnings of the names of the stem's parameters.
    """

    def stem(images: Tensor) -> State:
        """Return the tokens before the first block, ``[B, T, d]``."""
        on_grid = model.patch_embed(images)  # [B, H, W, d]
        return State(on_grid.flatten(1, 2))  # [B, H * W, d]

    # For each block: how it runs, and its span (its share of the first block's tokens, and the number of windows).
    # `merging` names the merging module by the index of the block that it belongs to.
    blocks: list[Callable[[State], State]] = []
    merging = {}
    spans = []
    grid = tuple(model.patch_embed.grid_size)  # rows and columns of tokens before the current block
    for number, stage in enumerate(model.layers):
        for index, block in enumerate(stage.blocks):
            merge = nn.Identity()
            if index == 0:
                merge = stage.downsample  # an identity in the first stage
                if number > 0:
                    merging[len(blocks)] = f"layers.{number}.downsample"
            blocks.append(partial(_run_block, block, merge, grid))

            # The block attends, and returns its tokens, on the grid after merging.
            grid = tuple(stage.output_resolution)
            share_of_tokens = math.prod(grid) / model.patch_embed.num_patches
            spans.append((share_of_tokens, _count_windows(block, grid)))

    last_grid = grid

    def readout(state: State) -> Tensor:
        """Return the logits ``[B, classes]``."""
        on_grid = state.hidden.unflatten(1, last_grid)  # [B, T, d] -> [B, H, W, d]
        hidden = model.norm(on_grid)
        return model.forward_head(hidden)

    tower = Stages(
        stem=stem,
        blocks=blocks,
        block_paths=list(blocks_of(model)),
        stem_prefixes=prefixes,
        readout=readout,
        merging=merging,
        spans=spans,
    )
    return [tower]


def _count_windows(block: Any, grid: _Grid) -> int:
    """Return the number of windows in which the tokens of a block attend, padded windows at the edges included."""
    # In a stacked ensemble the blocks of all members but the first are replaced by empty modules without a window
    # size. Nothing uses their number of windows.
    sides = getattr(block, "window_size", grid)
    windows = 1
    for tokens, side in zip(grid, sides, strict=True):
        windows *= math.ceil(tokens / side)
    return windows


def _run_block(block: nn.Module, merge: nn.Module, grid: _Grid, state: State) -> State:
    """Merge tokens, run a block and return the state after it.

    Args:
        block: the block.
        merge: the patch merging before it, or an identity.
        grid: rows and columns of the tokens in ``state``, before merging.
        state: the state before merging.
    """
    on_grid = state.hidden.unflatten(1, grid)  # [B, T, d] -> [B, H, W, d]
    merged = merge(on_grid)
    hidden = block(merged).flatten(1, 2)  # [B, H', W', d'] -> [B, T', d']
    return State(hidden, state.context)
