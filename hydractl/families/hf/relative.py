"""transformers' encoders with relative terms: BEiT, data2vec and Swin, DeBERTa of later generations, MPNet.

Each has a module of :mod:`hydractl.model.attention` with the call and the answer of the library's own attention.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.families.base import Stages, State
from hydractl.heads.relative import Relative

_BEITS = ("BeitModel", "Data2VecVisionModel")
"""Encoders whose layers may share a table of distances."""
_ARGUMENTS = ("attention_mask", "resolution", "position_bias", "relative_pos", "rel_embeddings")
"""The entries of the context that a layer is given under the same names."""
_Entry = Tensor | tuple[int, ...]
"""An entry of the context."""


class _Tables(nn.Module):
    """Attention whose heads have a number for each distance, as in BEiT, Swin and MPNet."""

    index: Tensor | None

    def __init__(self, attention: Any, index: Tensor | None) -> None:
        super().__init__()
        self.attention = attention
        attention.keep_apart()
        self.register_buffer("index", index, persistent=False)


class BeitInPlace(_Tables):
    """BEiT's attention; what all layers share comes as the mask, ``[heads, T, T]`` or ``[M, heads, T, T]``."""

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, None]:
        """Attend ``[M * B, T, d_model]``."""
        relative = None
        if self.index is not None or attention_mask is not None:
            relative = Relative(self.index, shared=attention_mask)
        attended = self.attention(hidden_states, relative=relative)
        return attended, None


class Data2VecInPlace(BeitInPlace):
    """The same as :class:`BeitInPlace`, given what all layers share under another name."""

    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        output_attentions: bool = False,
        relative_position_bias: Tensor | None = None,
        interpolate_pos_encoding: bool = False,
        resolution: tuple[int, int] | None = None,
    ) -> tuple[Tensor, None]:
        """Attend ``[M * B, T, d_model]``."""
        return super().forward(hidden_states, relative_position_bias)


class SwinInPlace(_Tables):
    """Swin's attention, with the masks of windows, ``[W, T, T]``."""

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, None]:
        """Attend ``[M * B * W, T, d_model]``."""
        relative = Relative(self.index, attention_mask)
        attended = self.attention(hidden_states, relative=relative)
        return attended, None


class Swinv2InPlace(_Tables):
    """Swin v2's attention, with the masks of windows, ``[W, T, T]``, and the coordinates of distances, ``[R, 2]``."""

    coordinates: Tensor

    def __init__(self, attention: Any, library: Any) -> None:
        super().__init__(attention, library.relative_position_index)
        coordinates = library.relative_coords_table.flatten(0, 2)
        self.register_buffer("coordinates", coordinates, persistent=False)

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, output_attentions: bool | None = False
    ) -> tuple[Tensor, None]:
        """Attend ``[M * B * W, T, d_model]``."""
        mask = None
        if attention_mask is not None:
            mask = 2 * attention_mask  # which the library adds twice
        relative = Relative(self.index, mask, coordinates=self.coordinates, scale=1.0)
        attended = self.attention(hidden_states, relative=relative)
        return attended, None


class MPNetInPlace(_Tables):
    """MPNet's attention, with what all layers share, ``[heads, T, T]`` or ``[M, heads, T, T]``."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_bias: Tensor | None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor]:
        """Attend ``[M * B, T, d_model]``."""
        relative = Relative(None, shared=position_bias)
        attended = self.attention(hidden_states, attention_mask, relative=relative)
        return (attended,)


class DisentangledInPlace(nn.Module):
    """DeBERTa's attention, with distances and their vectors, ``[R, d_model]`` or ``[M, R, d_model]``."""

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
        """Attend ``[M * B, T, d_model]``; ``relative_pos [1, T, T]`` counts from the query to the key."""
        assert relative_pos is not None and rel_embeddings is not None
        rows = (relative_pos[0] + self.span).clamp(0, 2 * self.span - 1)  # [T, T], of the vectors of distances
        relative = Relative(
            rows,
            embeddings=self.pos_dropout(rel_embeddings),
            to_position=self.to_position,
            to_content=self.to_content,
            scale=self.scale,
        )
        return self.attention(hidden_states, attn_mask=attention_mask.bool(), relative=relative), None


def stand_in(attention: nn.Module, layer: Any) -> nn.Module | None:
    """Return the module that takes the place of the attention of a layer; None for one without relative terms.

    A table that the library keeps beside its attention is taken out of the layer.
    """
    kind = type(layer).__name__
    if kind == "BeitLayer":
        return BeitInPlace(attention, _take_index(layer))
    if kind == "Data2VecVisionLayer":
        return Data2VecInPlace(attention, _take_index(layer.attention.attention))
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


def _take_index(holder: Any) -> Tensor | None:
    """Take the table of distances out of its module; return its index ``[T, T]``, or None where there is no table."""
    table = getattr(holder, "relative_position_bias", None)
    holder.relative_position_bias = None
    if table is None:
        return None
    return table.generate_relative_position_index(table.window_size)


def relative_context(base: Any, hidden: Tensor, pixels: Any, mask: Tensor | None) -> Mapping[str, _Entry]:
    """Return what the layers of an encoder with relative terms are given beside the state, by the library's names.

    Args:
        base: the encoder.
        hidden: before the first layer, ``[B, T, d_model]``.
        pixels: of a model of images, what it is given.
        mask: of the tokens, ``[B, T]``.
    """
    kind = type(base).__name__
    if kind in _BEITS:
        height_and_width = tuple(pixels.shape[2:])
        context: dict[str, _Entry] = {"resolution": height_and_width}
        table = _shared_table(base)
        if table is not None:
            context["shared_position_bias"] = table(table.window_size)[0]
        return context
    if kind == "MPNetModel":
        tokens = hidden.new_empty((1, hidden.shape[1], 0))  # of which only the number counts
        bias = base.encoder.compute_position_bias(tokens)
        return {"position_bias": bias[0]}
    if kind == "DebertaV2Model":
        return _disentangled_context(base.encoder, hidden, mask)
    return {}


def _disentangled_context(encoder: Any, hidden: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
    """Return what the layers of a DeBERTa are given: the mask, distances and the vectors of the distances."""
    rows = torch.arange(encoder.rel_embeddings.num_embeddings, device=hidden.device)
    vectors = encoder.rel_embeddings(rows)  # by a call of the module: its weights may be kept in 16 bits
    if "layer_norm" in encoder.norm_rel_ebd:
        vectors = encoder.LayerNorm(vectors)
    if mask is None:
        mask = torch.ones_like(hidden[..., 0])
    distances = encoder.get_rel_pos(hidden)
    return {
        "attention_mask": encoder.get_attention_mask(mask),
        "relative_pos": distances,
        "rel_embeddings": vectors,
    }


def run_relative_layer(layer: Any, state: State) -> State:
    """Run one layer of an encoder on the tokens of a state, with what the context has for it.

    Args:
        layer: of the library; its attention may have been replaced.
        state: before the layer; its context is that of :func:`relative_context`, and the mask.
    """
    shared = state.context.get("shared_position_bias")
    is_data2vec = type(layer).__name__ == "Data2VecVisionLayer"

    # Where the attention of a BEiT or data2vec was replaced, the layer is written out.
    if is_data2vec and isinstance(layer.attention.attention, BeitInPlace):
        hidden = _run_data2vec(layer, state.hidden, shared)
        return State(hidden, state.context)
    if isinstance(getattr(layer, "attention", None), BeitInPlace):
        hidden = _run_beit(layer, state.hidden, shared)
        return State(hidden, state.context)

    # Else the library's own is called, by its names of the arguments.
    arguments = {name: value for name, value in state.context.items() if name in _ARGUMENTS}
    name_of_shared = "attention_mask"
    if is_data2vec:
        del arguments["attention_mask"]  # which it does not know
        name_of_shared = "relative_position_bias"
    if shared is not None:
        arguments[name_of_shared] = shared[None]
    hidden = layer(state.hidden, **arguments)
    if isinstance(hidden, tuple):
        hidden = hidden[0]
    return State(hidden, state.context)


# As the layers themselves. They multiply by vectors, and torch.compile traces no module in the place of one.


def _run_beit(layer: Any, hidden: Tensor, shared: Tensor | None) -> Tensor:
    """Return the tokens ``[B, T, d_model]`` behind a BEiT's layer: attention, then MLP, each scaled and added.

    Args:
        layer: of the library, with its attention replaced.
        hidden: the tokens before it.
        shared: what all layers add to the scores of attention, ``[heads, T, T]``; None: nothing.
    """
    normed = layer.layernorm_before(hidden)
    attended, _ = layer.attention(normed, shared)
    attended = layer.dropout(attended)
    attended = _scaled(layer.lambda_1, attended)
    hidden = layer.drop_path(attended) + hidden
    normed = layer.layernorm_after(hidden)
    expanded = layer.mlp(normed)
    expanded = layer.dropout(expanded)
    expanded = _scaled(layer.lambda_2, expanded)
    return layer.drop_path(expanded) + hidden


def _run_data2vec(layer: Any, hidden: Tensor, shared: Tensor | None) -> Tensor:
    """Return the tokens behind a data2vec's layer: as :func:`_run_beit`, with the MLP in two modules."""
    normed = layer.layernorm_before(hidden)
    output = layer.attention(normed, relative_position_bias=shared)
    attended = output[0]
    attended = _scaled(layer.lambda_1, attended)
    hidden = layer.drop_path(attended) + hidden
    normed = layer.layernorm_after(hidden)
    widened = layer.intermediate(normed)
    expanded = layer.output(widened)
    expanded = _scaled(layer.lambda_2, expanded)
    return layer.drop_path(expanded) + hidden


def _scaled(factor: Any, x: Tensor) -> Tensor:
    """Multiply by a vector, which may stand in a module of its own; by None: not at all."""
    if factor is None:
        return x
    if isinstance(factor, nn.Module):
        return factor(x)
    return factor * x


def _shared_table(base: Any) -> Any:
    """Return the module that makes the numbers that all layers of a BEiT share, or None."""
    if type(base).__name__ == "BeitModel":
        return base.shared_position_bias
    return getattr(base.encoder, "relative_position_bias", None)


def entries_of_weights(base: Any) -> tuple[str, ...]:
    """Return the entries of the context that come of weights, see :attr:`hydractl.families.base.Stages.per_member`."""
    kind = type(base).__name__
    if kind in _BEITS and _shared_table(base) is not None:
        return ("shared_position_bias",)
    if kind == "MPNetModel":
        return ("position_bias",)
    if kind == "DebertaV2Model":
        return ("rel_embeddings",)
    return ()


def problems(base: Any) -> list[str]:
    """List why the heads of an encoder with relative terms cannot be taken apart, or are not what they say."""
    kind = type(base).__name__
    if kind == "DebertaV2Model":
        return _problems_of_deberta(base)
    if kind in _BEITS and len(set(base.embeddings.patch_embeddings.image_size)) > 1:
        return ["its images are not square, for which the library turns its tables of distances round"]
    if kind in ("SwinModel", "Swinv2Model"):
        return _problems_of_swin(base)
    return []


def _problems_of_deberta(base: Any) -> list[str]:
    """List what a DeBERTa has that is not followed here, or lacks of what makes it one."""
    messages = []
    if base.encoder.conv is not None:
        messages.append("it has a convolution beside its first layer (conv_kernel_size)")
    terms = {"c2p", "p2c"} & set(base.config.pos_att_type or ())
    has_terms = len(terms) > 0
    if not base.config.relative_attention or not has_terms:
        messages.append("it has no relative attention (relative_attention with c2p or p2c as pos_att_type)")
    return messages


def _problems_of_swin(base: Any) -> list[str]:
    """List why the windows of a Swin are not those that its configuration says."""
    messages = []
    sides = base.config.image_size
    if isinstance(sides, int):
        sides = [sides, sides]
    patch_size = base.embeddings.patch_size
    if any(side % patch_size for side in sides):
        messages.append("its images are cut into patches that do not fill them")
    sides_of_grids = [min(swin_layer.grid) for swin_layer in swin_layers(base)]
    smallest = min(sides_of_grids)
    window = base.config.window_size
    if smallest < window and type(base).__name__ == "SwinModel":
        messages.append(f"its windows of {window} tokens are larger than its {smallest} rows of tokens")
    return messages


# --- Swin -------------------------------------------------------------------------------------------------------------

Grid = tuple[int, int]
"""Rows and columns of tokens."""


@dataclass(frozen=True)
class SwinLayer:
    """A layer of a Swin, with what makes fewer tokens before it.

    Attributes:
        path: of the layer, within the encoder.
        layer: the module.
        merging: the path of the module that makes fewer tokens before the layer; None: there is none.
        grid_before: the tokens before the merging.
        grid: those of the layer.
    """

    path: str
    layer: Any
    merging: str | None
    grid_before: Grid
    grid: Grid


def swin_layers(base: Any) -> list[SwinLayer]:
    """List the layers of a Swin in order, with the rows and columns of their tokens.

    A stage ends with a module that merges two by two tokens into one; here it belongs to the first layer of the next.
    """
    layers: list[SwinLayer] = []
    grid = tuple(base.embeddings.patch_grid)
    merging: str | None = None  # before the next layer
    for number, stage in enumerate(base.encoder.layers):
        for index, layer in enumerate(stage.blocks):
            grid_before = grid
            if merging is not None:
                rows, columns = grid
                grid = ((rows + 1) // 2, (columns + 1) // 2)
            path = f"encoder.layers.{number}.blocks.{index}"
            layers.append(SwinLayer(path, layer, merging, grid_before, grid))
            merging = None
        merging = None
        if stage.downsample is not None:
            merging = f"encoder.layers.{number}.downsample"
    return layers


def with_swin_layers(tower: Stages, base: Any, prefix: str, norm: str) -> Stages:
    """Return the stages of a Swin with its layers, whose tokens get fewer.

    Args:
        tower: the stages as of an encoder whose tokens do not.
        base: the encoder.
        prefix: its name within the model.
        norm: of a layer, the norm that its attention reads through; empty: none.
    """
    blocks = []
    attention_inputs = []
    merging = {}
    spans = []
    all_tokens = math.prod(base.embeddings.patch_grid)
    for index, swin_layer in enumerate(swin_layers(base)):
        merge = None
        if swin_layer.merging is not None:
            merge = base.get_submodule(swin_layer.merging)
            merging[index] = f"{prefix}.{swin_layer.merging}"
        layer = swin_layer.layer
        grid_before = swin_layer.grid_before
        grid = swin_layer.grid
        run = partial(_run_swin, layer, merge, grid_before, grid)
        attention_input = partial(_swin_input, norm, layer, merge, grid_before)
        blocks.append(run)
        attention_inputs.append(attention_input)
        window_side = min(base.config.window_size, *grid)
        windows = math.prod(math.ceil(tokens / window_side) for tokens in grid)
        share_of_tokens = math.prod(grid) / all_tokens
        spans.append((share_of_tokens, windows))
    return replace(tower, blocks=blocks, attention_inputs=attention_inputs, merging=merging, spans=spans)


def _merged(merge: Any, grid_before: Grid, state: State) -> Tensor:
    """Return the tokens behind the merging before a layer, ``[B, T, d_model]``."""
    # Of the members behind the first nothing is left of it, and nobody asks.
    if merge is None or isinstance(merge, nn.Identity):
        return state.hidden
    return merge(state.hidden, grid_before)


def _run_swin(layer: Any, merge: Any, grid_before: Grid, grid: Grid, state: State) -> State:
    """Return the state behind a layer and the merging before it, which takes tokens from one grid to the other."""
    merged = _merged(merge, grid_before, state)
    output = layer(merged, grid)
    return State(output[0], state.context)


def _swin_input(norm: str, layer: Any, merge: Any, grid_before: Grid, state: State) -> Tensor:
    """Return what the attention of a layer is given of the state before it and its merging."""
    hidden = _merged(merge, grid_before, state)
    if not norm:
        return hidden
    return layer.get_submodule(norm)(hidden)
