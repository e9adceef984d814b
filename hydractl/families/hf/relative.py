"""transformers' encoders with relative positions: Swin, DeBERTa v2 and v3, MPNet.

Their scores of attention depend on the distance of two tokens. For each kind there is a wrapper of
:class:`hydractl.model.attention.HeadAttention` that can be called like transformers' own attention.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.families.base import Stages, State, normed_input
from hydractl.heads.relative import Relative

_ARGUMENTS = ("attention_mask", "position_bias", "relative_pos", "rel_embeddings")
"""The keys of the context that are also names of arguments of a layer."""


class _Tables(nn.Module):
    """Wraps ``HeadAttention`` for models whose heads add a learned number for each distance (Swin, MPNet).

    Args:
        attention: the :class:`hydractl.model.attention.HeadAttention` to call.
        index: the row of the table for each pair of tokens, ``[T, T]``; None if the layer has no table of its own.
    """

    index: Tensor | None

    def __init__(self, attention: Any, index: Tensor | None) -> None:
        super().__init__()
        self.attention = attention
        attention.keep_apart()
        self.register_buffer("index", index, persistent=False)


class SwinInPlace(_Tables):
    """Replaces Swin's attention."""

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, None]:
        """Compute the attention of ``[M * B * W, T, d_model]``, with masks of the W windows, ``[W, T, T]``."""
        return self.attention(hidden_states, relative=Relative(self.index, attention_mask)), None


class Swinv2InPlace(_Tables):
    """Replaces Swin v2's attention, which computes its table from the coordinates of distances, ``[R, 2]``."""

    coordinates: Tensor

    def __init__(self, attention: Any, library: Any) -> None:
        super().__init__(attention, library.relative_position_index)
        coordinates = library.relative_coords_table.flatten(0, 2)  # [1, h, w, 2] -> [R, 2]
        self.register_buffer("coordinates", coordinates, persistent=False)

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, output_attentions: bool | None = False
    ) -> tuple[Tensor, None]:
        """Compute the attention of ``[M * B * W, T, d_model]``, with masks of the W windows, ``[W, T, T]``."""
        mask = None if attention_mask is None else 2 * attention_mask  # transformers adds the mask twice
        relative = Relative(self.index, mask, coordinates=self.coordinates, scale=1.0)
        return self.attention(hidden_states, relative=relative), None


class MPNetInPlace(_Tables):
    """Replaces MPNet's attention."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_bias: Tensor | None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor]:
        """Compute the attention of ``hidden_states``, ``[M * B, T, d_model]``.

        ``position_bias`` has the numbers that all layers add to their scores, ``[heads, T, T]`` or
        ``[M, heads, T, T]``.
        """
        relative = Relative(None, shared=position_bias)
        return (self.attention(hidden_states, attention_mask, relative=relative),)


class DisentangledInPlace(nn.Module):
    """Replaces DeBERTa's attention, whose scores also compare queries and keys with vectors of distances.

    Args:
        attention: the :class:`hydractl.model.attention.HeadAttention` to call.
        library: transformers' attention module that is replaced.
    """

    def __init__(self, attention: Any, library: Any) -> None:
        super().__init__()
        self.attention = attention
        attention.keep_apart()
        self.pos_dropout = library.pos_dropout
        self.span = library.pos_ebd_size
        self.to_position = "c2p" in library.pos_att_type
        self.to_content = "p2c" in library.pos_att_type
        terms = 1 + self.to_position + self.to_content
        self.scale = (library.attention_head_size * terms) ** -0.5

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor,
        output_attentions: bool = False,
        query_states: None = None,
        relative_pos: Tensor | None = None,
        rel_embeddings: Tensor | None = None,
    ) -> tuple[Tensor, None]:
        """Compute the attention of M ensemble members over B samples.

        Args:
            hidden_states: ``[M * B, T, d_model]``.
            attention_mask: nonzero where a query may attend to a key.
            output_attentions, query_states: ignored.
            relative_pos: the distance from each query to each key, ``[1, T, T]``, negative if the key comes later.
            rel_embeddings: the vectors of the R distances, ``[R, d_model]`` or ``[M, R, d_model]``.
        """
        assert relative_pos is not None and rel_embeddings is not None
        # The row in `rel_embeddings` for each pair. Rows are for distances from -span to span - 1; all smaller
        # distances share the first row, all greater ones the last.
        rows = (relative_pos[0] + self.span).clamp(0, 2 * self.span - 1)  # [T, T]
        relative = Relative(
            rows,
            embeddings=self.pos_dropout(rel_embeddings),
            to_position=self.to_position,
            to_content=self.to_content,
            scale=self.scale,
        )
        return self.attention(hidden_states, attn_mask=attention_mask.bool(), relative=relative), None


def stand_in(attention: nn.Module, layer: Any) -> nn.Module | None:
    """Return the module to put in the place of a layer's attention; None if the layer has no relative positions.

    Args:
        attention: the :class:`hydractl.model.attention.HeadAttention` to use.
        layer: transformers' layer.
    """
    kind = type(layer).__name__
    if kind == "SwinLayer":
        table = layer.attention.relative_position_bias
        tokens = table.window_area
        return SwinInPlace(attention, table.relative_position_index.view(tokens, tokens))
    if kind == "Swinv2Layer":
        return Swinv2InPlace(attention, layer.attention.self)
    if kind == "MPNetLayer":
        return MPNetInPlace(attention, None)
    if kind == "DebertaV2Layer":
        return DisentangledInPlace(attention, layer.attention.self)
    return None


def relative_context(base: Any, hidden: Tensor, mask: Tensor | None) -> Mapping[str, Tensor]:
    """Return the arguments for relative positions that an encoder's layers receive beside the tokens.

    Args:
        base: the encoder.
        hidden: the tokens before the first layer, ``[B, T, d_model]``.
        mask: 1 for tokens that are not padding, ``[B, T]``; None if no token is padding.

    Returns:
        The arguments by transformers' names; empty for encoders without relative positions.
    """
    kind = type(base).__name__
    # MPNet: the biases that all layers share, computed once for texts of this length.
    if kind == "MPNetModel":
        tokens = hidden.new_empty((1, hidden.shape[1], 0))  # only the number of tokens is used
        bias = base.encoder.compute_position_bias(tokens)
        return {"position_bias": bias[0]}  # [1, heads, T, T] -> [heads, T, T]
    # DeBERTa: embeddings of distances, which each layer compares with its queries and keys.
    if kind == "DebertaV2Model":
        rows = torch.arange(base.encoder.rel_embeddings.num_embeddings, device=hidden.device)
        vectors = base.encoder.rel_embeddings(rows)  # a call, not its weight, which may be in 16 bits
        if "layer_norm" in base.encoder.norm_rel_ebd:
            vectors = base.encoder.LayerNorm(vectors)
        if mask is None:
            mask = torch.ones_like(hidden[..., 0])
        distances = base.encoder.get_rel_pos(hidden)
        return {
            "attention_mask": base.encoder.get_attention_mask(mask),
            "relative_pos": distances,
            "rel_embeddings": vectors,
        }
    return {}


def run_relative_layer(layer: Any, state: State) -> State:
    """Return the state after one layer of an encoder.

    Args:
        layer: transformers' layer; its attention may have been replaced.
        state: the state before the layer; its context has the mask and the entries of :func:`relative_context`.
    """
    arguments = {name: value for name, value in state.context.items() if name in _ARGUMENTS}
    output = layer(state.hidden, **arguments)
    # Some layers also return the attention weights.
    return State(output[0] if isinstance(output, tuple) else output, state.context)


def entries_of_weights(base: Any) -> tuple[str, ...]:
    """Return the keys of the context whose tensors depend on weights, for ``Stages.per_member``."""
    kind = type(base).__name__
    if kind == "MPNetModel":
        return ("position_bias",)
    if kind == "DebertaV2Model":
        return ("rel_embeddings",)
    return ()


def problems(base: Any) -> list[str]:
    """List the reasons why an encoder with relative positions is not supported; empty if it is."""
    kind = type(base).__name__
    if kind == "DebertaV2Model":
        messages = []
        if base.encoder.conv is not None:
            messages.append("it has a convolution beside its first layer (conv_kernel_size)")
        terms = {"c2p", "p2c"} & set(base.config.pos_att_type or ())
        if not base.config.relative_attention or not terms:
            messages.append("it has no relative attention (relative_attention with c2p or p2c as pos_att_type)")
        return messages
    if kind in ("SwinModel", "Swinv2Model"):
        return _problems_of_swin(base)
    return []


def _problems_of_swin(base: Any) -> list[str]:
    """List the reasons why the windows of a Swin would not be as its configuration says."""
    messages = []
    sides = base.config.image_size
    if isinstance(sides, int):
        sides = [sides, sides]
    patch_size = base.embeddings.patch_size
    if any(side % patch_size for side in sides):
        messages.append("its images are cut into patches that do not fill them")
    # In transformers' Swin (not in v2) a grid that is smaller than the window makes the window smaller.
    shortest_side = min(min(swin_layer.grid) for swin_layer in swin_layers(base))
    window = base.config.window_size
    if shortest_side < window and type(base).__name__ == "SwinModel":
        messages.append(f"its windows of {window} tokens are larger than its {shortest_side} rows of tokens")
    return messages


# --- Swin -------------------------------------------------------------------------------------------------------------

Grid = tuple[int, int]
"""Number of rows and columns of tokens."""


@dataclass(frozen=True)
class SwinLayer:
    """A layer of a Swin, with the patch merging before it.

    Attributes:
        path: dotted name of the layer in the encoder.
        layer: the module.
        merging: dotted name of the module that merges tokens before the layer; None if there is none.
        grid_before: rows and columns of tokens before merging.
        grid: rows and columns of tokens in the layer.
    """

    path: str
    layer: Any
    merging: str | None
    grid_before: Grid
    grid: Grid


def swin_layers(base: Any) -> list[SwinLayer]:
    """List the layers of a Swin in order, with the rows and columns of their tokens.

    In transformers a stage ends with a module that merges 2 x 2 tokens into one. Here this module is listed with the
    first layer of the next stage. E.g. with 56 x 56 tokens and two layers in each stage, the third layer has
    ``merging="encoder.layers.0.downsample"``, ``grid_before=(56, 56)`` and ``grid=(28, 28)``.
    """
    layers: list[SwinLayer] = []
    grid = tuple(base.embeddings.patch_grid)
    merging: str | None = None  # the module at the end of the previous stage, until a layer is listed with it
    for number, stage in enumerate(base.encoder.layers):
        for index, layer in enumerate(stage.blocks):
            # The first layer of a stage comes after the merging, which halves the grid. Odd sizes are rounded up.
            grid_before = grid
            if merging is not None:
                rows, columns = grid
                grid = ((rows + 1) // 2, (columns + 1) // 2)
            path = f"encoder.layers.{number}.blocks.{index}"
            layers.append(SwinLayer(path, layer, merging, grid_before, grid))
            merging = None  # the other layers of the stage have none

        # Remember the module at the end of this stage for the first layer of the next one. The last stage has none.
        merging = None if stage.downsample is None else f"encoder.layers.{number}.downsample"
    return layers


def with_swin_layers(tower: Stages, base: Any, prefix: str, norm: str) -> Stages:
    """Return the stages of a Swin with layers that also merge tokens.

    Args:
        tower: the stages built as for an encoder without merging.
        base: the encoder.
        prefix: the name of the encoder in the model.
        norm: dotted name of the norm before the attention, relative to a layer; empty if there is none.
    """
    blocks = []  # for each layer, a function from state to state
    attention_inputs = []  # for each layer, a function from the state before it to the inputs of its attention
    spans = []  # for each layer, its share of all tokens and its number of windows
    merging = {}  # the name of the merging module, by the index of the layer after it
    all_tokens = math.prod(base.embeddings.patch_grid)
    for index, swin_layer in enumerate(swin_layers(base)):
        merge = None
        if swin_layer.merging is not None:
            merge = base.get_submodule(swin_layer.merging)
            merging[index] = f"{prefix}.{swin_layer.merging}"
        layer, grid_before, grid = swin_layer.layer, swin_layer.grid_before, swin_layer.grid
        blocks.append(partial(_run_swin, layer, merge, grid_before, grid))
        attention_inputs.append(partial(_swin_input, norm, layer, merge, grid_before))

        # A window is never larger than the grid. Windows at the edges are padded, hence the rounding up.
        window_side = min(base.config.window_size, *grid)
        windows = math.prod(math.ceil(tokens / window_side) for tokens in grid)
        share_of_tokens = math.prod(grid) / all_tokens
        spans.append((share_of_tokens, windows))
    return replace(tower, blocks=blocks, attention_inputs=attention_inputs, merging=merging, spans=spans)


def _merged(merge: Any, grid_before: Grid, state: State) -> Tensor:
    """Return the tokens of a state after merging, ``[B, T, d_model]``; unchanged if ``merge`` is None."""
    # In a stacked ensemble the merging of all members but the first is replaced by an identity, which does not take a
    # grid. Nothing uses its result.
    if merge is None or isinstance(merge, nn.Identity):
        return state.hidden
    return merge(state.hidden, grid_before)


def _run_swin(layer: Any, merge: Any, grid_before: Grid, grid: Grid, state: State) -> State:
    """Merge tokens, run a layer and return the state after it.

    Args:
        layer: transformers' layer.
        merge: the module that merges tokens before the layer, or None.
        grid_before: rows and columns of the tokens in ``state``.
        grid: rows and columns of the tokens after merging.
        state: the state before merging.
    """
    merged = _merged(merge, grid_before, state)
    output = layer(merged, grid)
    return State(output[0], state.context)


def _swin_input(norm: str, layer: Any, merge: Any, grid_before: Grid, state: State) -> Tensor:
    """Return the inputs of a layer's attention, computed from the state before merging; see :func:`_run_swin`.

    ``norm`` is the dotted name of the norm before the attention, relative to the layer; empty if there is none.
    """
    merged = State(_merged(merge, grid_before, state), state.context)
    return normed_input(norm, layer, merged)
