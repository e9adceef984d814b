"""timm's transformers whose heads add numbers of their own to the scores, by the distance of tokens: BEiT and Swin."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.errors import InputError
from hydractl.families.base import AttentionLayout, Stages, State
from hydractl.families.torchvision_operators import declare_operators
from hydractl.heads.mask import Site
from hydractl.heads.relative import Relative

declare_operators()

from timm.models.beit import Attention as BeitAttention  # noqa: E402
from timm.models.beit import Beit as Beit  # noqa: E402
from timm.models.swin_transformer import SwinTransformer, WindowAttention  # noqa: E402
from timm.models.swin_transformer_v2 import SwinTransformerV2, SwinTransformerV2Block  # noqa: E402
from timm.models.swin_transformer_v2 import WindowAttention as CosineAttention  # noqa: E402

Swin = (SwinTransformer, SwinTransformerV2)

_TABLE = "relative_position_bias_table"
_KINDS = {BeitAttention: "relative", WindowAttention: "windows", CosineAttention: "cosines"}
LAYOUTS = {
    "relative": AttentionLayout(("qkv",), "proj", table=_TABLE, biases=("q_bias", "v_bias")),
    "windows": AttentionLayout(("qkv",), "proj", table=_TABLE),
    "cosines": AttentionLayout(
        *(("qkv",), "proj"),
        table="cpb_mlp.2.weight",
        features="cpb_mlp.0",
        scale="logit_scale",
        biases=("q_bias", "v_bias"),
    ),
}
"""The tensors of timm's kinds of attention, by :attr:`hydractl.heads.mask.Site.layout`."""


class InPlace(nn.Module):
    """:class:`hydractl.model.attention.HeadAttention` with the call of timm's attention with tables of distances.

    Args:
        attention: the one that attends.
        library: the module in whose place it stands.
    """

    index: Tensor | None
    coordinates: Tensor | None

    def __init__(self, attention: Any, library: Any) -> None:
        super().__init__()
        self.attention = attention
        attention.keep_apart()
        self.register_buffer("index", library.relative_position_index, persistent=False)
        self.scale, coordinates = None, None
        if isinstance(library, CosineAttention):
            self.scale, coordinates = 1.0, library.relative_coords_table.flatten(0, 2)  # [1, h, w, 2] -> [R, 2]
        self.register_buffer("coordinates", coordinates, persistent=False)

    def forward(self, x: Tensor, mask: Tensor | None = None, shared_rel_pos_bias: Tensor | None = None) -> Tensor:
        """Attend ``[M * B * W, T, d_model]``.

        Args:
            x: the tokens.
            mask: ``[W, T, T]``, added to the scores of the windows of a sample.
            shared_rel_pos_bias: ``[heads, T, T]`` or ``[M, heads, T, T]``, what all blocks share.
        """
        if self.index is None and shared_rel_pos_bias is None:
            return self.attention(x)
        relative = Relative(self.index, mask, shared_rel_pos_bias, coordinates=self.coordinates, scale=self.scale)
        return self.attention(x, relative=relative)


def check(model: Any) -> None:
    """Refuse what cannot be pruned head by head.

    Raises:
        InputError: naming it.
    """
    problem, attention = None, [block.attn for block in blocks(model).values()]
    if any(type(one) not in _KINDS for one in attention):
        problem = f"its attention is {', '.join(sorted({type(one).__name__ for one in attention}))}"
    elif getattr(model, "dynamic_img_size", False):
        problem = "it makes its windows anew for every size of image (dynamic_img_size)"
    if problem is not None:
        hint = "supported are beit, beitv2, swin and swinv2, for images of one size"
        raise InputError(f"this {type(model).__name__} of timm is not supported: {problem}", hint=hint)


def blocks(model: Any) -> dict[str, Any]:
    """Return the blocks by their paths, in order."""
    if isinstance(model, Beit):
        return {f"blocks.{i}": block for i, block in enumerate(model.blocks)}
    return {f"layers.{s}.blocks.{i}": b for s, stage in enumerate(model.layers) for i, b in enumerate(stage.blocks)}


def site(path: str, attention: Any) -> Site:
    """Return the site of one attention of the library."""
    width = attention.proj.in_features // attention.num_heads
    return Site(path, attention.num_heads, width, attention.proj.out_features, layout=_KINDS[type(attention)])


def context(model: Any) -> dict[str, Any]:
    """Return what the blocks of a BEiT are given beside the state, by the library's names: a table that they share."""
    table = getattr(model, "rel_pos_bias", None)
    return {} if table is None else {"shared_rel_pos_bias": table()}


def fill_buffers(model: Any) -> bool:
    """Make the buffers of a Swin real, which the library makes where its parameters are; return whether it is one."""
    for block in blocks(model).values() if isinstance(model, Swin) else ():
        attention, cpu = block.attn, torch.device("cpu")
        if isinstance(attention, CosineAttention):
            made = attention._make_pair_wise_relative_positions(cpu, torch.float32)
            attention.relative_coords_table, attention.relative_position_index = made
            attention.k_bias = None if attention.k_bias is None else torch.zeros_like(attention.k_bias, device=cpu)
        else:
            attention.init_non_persistent_buffers()
        block.attn_mask = block.get_attn_mask(device=cpu, dtype=torch.float32)
    return isinstance(model, Swin)


def stages(model: Any, prefixes: tuple[str, ...]) -> list[Stages]:
    """Cut a Swin as the family does: between blocks tokens are a row, and merging belongs to the block behind it."""
    run: list[Callable[[State], State]] = []
    attends: list[Callable[[State], Tensor]] = []
    merging, spans = {}, []
    grid = tuple(model.patch_embed.grid_size)
    for number, stage in enumerate(model.layers):
        if number:
            merging[len(run)] = f"layers.{number}.downsample"
        for index, block in enumerate(stage.blocks):
            given = (block, nn.Identity() if index else stage.downsample, grid)
            run.append(partial(_run, *given))
            attends.append(partial(_attention_input, *given))
            grid = tuple(stage.output_resolution)
            # Of the members behind the first no blocks are left, and nobody asks.
            windows = [
                -(-side // window) for side, window in zip(grid, getattr(block, "window_size", grid), strict=True)
            ]
            spans.append((math.prod(grid) / model.patch_embed.num_patches, math.prod(windows)))
    tower = Stages(
        stem=lambda images: State(model.patch_embed(images).flatten(1, 2)),  # [B, H, W, d] -> [B, T, d]
        blocks=run,
        block_paths=list(blocks(model)),
        stem_prefixes=prefixes,
        readout=lambda state: model.forward_head(model.norm(state.hidden.unflatten(1, grid))),
        attention_inputs=attends,
        merging=merging,
        spans=spans,
    )
    return [tower]


def _run(block: nn.Module, merge: nn.Module, grid: tuple[int, int], state: State) -> State:
    hidden = merge(state.hidden.unflatten(1, grid))  # [B, T, d] -> [B, H, W, d]
    return State(block(hidden).flatten(1, 2), state.context)


def _attention_input(block: Any, merge: nn.Module, grid: tuple[int, int], state: State) -> Tensor:
    merged = merge(state.hidden.unflatten(1, grid))  # [B, T, d] -> [B, H, W, d]
    return (merged if isinstance(block, SwinTransformerV2Block) else block.norm1(merged)).flatten(1, 2)
