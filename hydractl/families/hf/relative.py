"""transformers' encoders with relative terms: BEiT, data2vec and Swin, DeBERTa of later generations, MPNet.

Each has a module of :mod:`hydractl.model.attention` with the call and the answer of the library's own attention.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.families.base import State
from hydractl.heads.relative import Relative


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
        if self.index is None and attention_mask is None:
            return self.attention(hidden_states), None
        return self.attention(hidden_states, relative=Relative(self.index, shared=attention_mask)), None


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
        return self.attention(hidden_states, relative=Relative(self.index, attention_mask)), None


class Swinv2InPlace(_Tables):
    """Swin v2's attention, with the masks of windows, ``[W, T, T]``, and the coordinates of distances, ``[R, 2]``."""

    coordinates: Tensor

    def __init__(self, attention: Any, library: Any) -> None:
        super().__init__(attention, library.relative_position_index)
        self.register_buffer("coordinates", library.relative_coords_table.flatten(0, 2), persistent=False)

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, output_attentions: bool | None = False
    ) -> tuple[Tensor, None]:
        """Attend ``[M * B * W, T, d_model]``."""
        mask = None if attention_mask is None else 2 * attention_mask  # which the library adds twice
        relative = Relative(self.index, mask, coordinates=self.coordinates, scale=1.0)
        return self.attention(hidden_states, relative=relative), None


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
        return (self.attention(hidden_states, attention_mask, relative=Relative(None, shared=position_bias)),)


class DisentangledInPlace(nn.Module):
    """DeBERTa's attention, with distances and their vectors, ``[R, d_model]`` or ``[M, R, d_model]``."""

    def __init__(self, attention: Any, library: Any) -> None:
        super().__init__()
        self.attention = attention
        attention.keep_apart()
        self.pos_dropout = library.pos_dropout
        self.span = library.pos_ebd_size
        self.to_position, self.to_content = ("c2p" in library.pos_att_type, "p2c" in library.pos_att_type)
        self.scale = (library.attention_head_size * (1 + self.to_position + self.to_content)) ** -0.5

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
        relative = Relative(
            (relative_pos[0] + self.span).clamp(0, 2 * self.span - 1),
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
    if kind in ("BeitLayer", "Data2VecVisionLayer"):
        beit, library = kind == "BeitLayer", layer if kind == "BeitLayer" else layer.attention.attention
        table = getattr(library, "relative_position_bias", None)
        library.relative_position_bias = None
        index = None if table is None else table.generate_relative_position_index(table.window_size)
        return (BeitInPlace if beit else Data2VecInPlace)(attention, index)
    if kind == "SwinLayer":
        table = layer.attention.relative_position_bias
        return SwinInPlace(attention, table.relative_position_index.view(table.window_area, table.window_area))
    if kind == "Swinv2Layer":
        return Swinv2InPlace(attention, layer.attention.self)
    if kind == "MPNetLayer":
        return MPNetInPlace(attention, None)
    if kind == "DebertaV2Layer":
        return DisentangledInPlace(attention, layer.attention.self)
    return None


def context(base: Any, hidden: Tensor, pixels: Any, mask: Tensor | None) -> dict[str, Any]:
    """Return what the layers of an encoder with relative terms are given beside the state, by the library's names.

    Args:
        base: the encoder.
        hidden: before the first layer, ``[B, T, d_model]``.
        pixels: of a model of images, what it is given.
        mask: of the tokens, ``[B, T]``.
    """
    kind = type(base).__name__
    if kind in ("BeitModel", "Data2VecVisionModel"):
        table = _shared_table(base)
        shared = {} if table is None else {"shared_position_bias": table(table.window_size)[0]}
        return {"resolution": tuple(pixels.shape[2:]), **shared}
    if kind == "MPNetModel":
        return {"position_bias": base.encoder.compute_position_bias(hidden.new_empty((1, hidden.shape[1], 0)))[0]}
    if kind == "DebertaV2Model":
        encoder = base.encoder
        # As a module that is called: its weights may be kept in 16 bits.
        vectors = encoder.rel_embeddings(torch.arange(encoder.rel_embeddings.num_embeddings, device=hidden.device))
        vectors = encoder.LayerNorm(vectors) if "layer_norm" in encoder.norm_rel_ebd else vectors
        mask = torch.ones_like(hidden[..., 0]) if mask is None else mask
        distances = encoder.get_rel_pos(hidden)
        mask = encoder.get_attention_mask(mask)
        return {"attention_mask": mask, "relative_pos": distances, "rel_embeddings": vectors}
    return {}


_ARGUMENTS = ("attention_mask", "resolution", "position_bias", "relative_pos", "rel_embeddings")
PER_MEMBER = ("shared_position_bias", "position_bias", "rel_embeddings")
"""The entries of the context that come of weights."""


def run(layer: Any, state: State) -> State:
    """Run one layer of an encoder."""
    shared = state.context.get("shared_position_bias")
    beit = type(layer).__name__ != "Data2VecVisionLayer"
    attention = getattr(layer, "attention", None)
    if isinstance(attention if beit else layer.attention.attention, BeitInPlace):
        return State((_run_beit if beit else _run_data2vec)(layer, state.hidden, shared), state.context)
    given = {name: value for name, value in state.context.items() if name in _ARGUMENTS}
    if not beit:  # which knows no mask
        del given["attention_mask"]
    if shared is not None:
        given["attention_mask" if beit else "relative_position_bias"] = shared[None]
    found = layer(state.hidden, **given)
    return State(found[0] if isinstance(found, tuple) else found, state.context)


# As the layers themselves. They multiply by vectors, and torch.compile traces no module in the place of one.


def _run_beit(layer: Any, hidden: Tensor, shared: Tensor | None) -> Tensor:
    attended = layer.dropout(layer.attention(layer.layernorm_before(hidden), shared)[0])
    hidden = layer.drop_path(_scaled(layer.lambda_1, attended)) + hidden
    return layer.drop_path(_scaled(layer.lambda_2, layer.dropout(layer.mlp(layer.layernorm_after(hidden))))) + hidden


def _run_data2vec(layer: Any, hidden: Tensor, shared: Tensor | None) -> Tensor:
    attended = layer.attention(layer.layernorm_before(hidden), relative_position_bias=shared)[0]
    hidden = layer.drop_path(_scaled(layer.lambda_1, attended)) + hidden
    expanded = layer.output(layer.intermediate(layer.layernorm_after(hidden)))
    return layer.drop_path(_scaled(layer.lambda_2, expanded)) + hidden


def _scaled(factor: Any, x: Tensor) -> Tensor:
    return factor(x) if isinstance(factor, nn.Module) else x if factor is None else factor * x


def _shared_table(base: Any) -> Any:
    """Return the module that makes the numbers that all layers of a BEiT share, or None."""
    if type(base).__name__ == "BeitModel":
        return base.shared_position_bias
    return getattr(base.encoder, "relative_position_bias", None)


def per_member(base: Any) -> tuple[str, ...]:
    """Return those of :data:`PER_MEMBER` that the layers of an encoder are given."""
    kind = type(base).__name__
    if kind in ("BeitModel", "Data2VecVisionModel"):
        return PER_MEMBER[:1] if _shared_table(base) is not None else ()
    return {"MPNetModel": PER_MEMBER[1:2], "DebertaV2Model": PER_MEMBER[2:]}.get(kind, ())


def problems(base: Any) -> list[str]:
    """List why the heads of an encoder with relative terms cannot be taken apart, or are not what they say."""
    kind, config, found = type(base).__name__, base.config, []
    if kind == "DebertaV2Model":
        if base.encoder.conv is not None:
            found.append("it has a convolution beside its first layer (conv_kernel_size)")
        if not (config.relative_attention and {"c2p", "p2c"} & set(config.pos_att_type or ())):
            found.append("it has no relative attention (relative_attention with c2p or p2c as pos_att_type)")
    if kind in ("BeitModel", "Data2VecVisionModel") and len(set(base.embeddings.patch_embeddings.image_size)) > 1:
        found.append("its images are not square, for which the library turns its tables of distances round")
    if kind in ("SwinModel", "Swinv2Model"):
        if any(side % base.embeddings.patch_size for side in _sides(config.image_size)):
            found.append("its images are cut into patches that do not fill them")
        smallest = min(side for *_, grid in swin_layers(base) for side in grid)
        if smallest < config.window_size and kind == "SwinModel":
            found.append(f"its windows of {config.window_size} tokens are larger than its {smallest} rows of tokens")
    return found


def _sides(size: Any) -> list[int]:
    return [size, size] if isinstance(size, int) else list(size)


# --- Swin -------------------------------------------------------------------------------------------------------------

Grid = tuple[int, int]


def swin_layers(base: Any) -> list[tuple[str, Any, str | None, Grid, Grid]]:
    """List the layers of a Swin: path, module, path of the merging before it, and the tokens before and behind that."""
    found: list[tuple[str, Any, str | None, Grid, Grid]] = []
    grid, merging = tuple(base.embeddings.patch_grid), None
    for number, stage in enumerate(base.encoder.layers):
        for index, layer in enumerate(stage.blocks):
            before = grid
            if merging is not None:
                grid = tuple((side + 1) // 2 for side in grid)
            found.append((f"encoder.layers.{number}.blocks.{index}", layer, merging, before, grid))
            merging = None
        merging = None if stage.downsample is None else f"encoder.layers.{number}.downsample"
    return found


def swin_parts(base: Any, prefix: str, norm: str) -> dict[str, Any]:
    """Return the fields of :class:`hydractl.families.base.Stages` for the layers of a Swin, whose tokens get fewer."""
    layers, window = swin_layers(base), base.config.window_size
    given = [
        (layer, None if merging is None else base.get_submodule(merging), before, grid)
        for _, layer, merging, before, grid in layers
    ]
    tokens = math.prod(base.embeddings.patch_grid)
    return {
        "blocks": [partial(_run_swin, *one) for one in given],
        "attention_inputs": [partial(_swin_input, norm, *one) for one in given],
        "merging": {i: f"{prefix}.{merging}" for i, (_, _, merging, _, _) in enumerate(layers) if merging},
        "spans": [
            (math.prod(grid) / tokens, math.prod(-(-side // min(window, *grid)) for side in grid))
            for *_, grid in layers
        ],
    }


def _merged(merge: Any, before: Grid, state: State) -> Tensor:
    # Of the members behind the first nothing is left, and nobody asks.
    return state.hidden if merge is None or isinstance(merge, nn.Identity) else merge(state.hidden, before)


def _run_swin(layer: Any, merge: Any, before: Grid, grid: Grid, state: State) -> State:
    return State(layer(_merged(merge, before, state), grid)[0], state.context)


def _swin_input(norm: str, layer: Any, merge: Any, before: Grid, grid: Grid, state: State) -> Tensor:
    merged = _merged(merge, before, state)
    return layer.get_submodule(norm)(merged) if norm else merged
