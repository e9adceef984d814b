"""Cuts open_clip's towers into stem, blocks and readout, which compute the same as the library's own forward."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

from open_clip.timm_model import TimmModel
from torch import Tensor, nn
from torch.nn import functional as F

from hydractl.families import timm
from hydractl.families.base import FirstTokens, Projection, Stages, State, for_each, normed_input, numbered_paths
from hydractl.families.open_clip.models import TRUNK, VISUAL_BLOCKS, text_tower
from hydractl.families.prompts import PromptReadout


class MultiheadStandIn(nn.Module):
    """Wraps :class:`hydractl.model.attention.HeadAttention` so that it can be called like ``nn.MultiheadAttention``."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, need_weights: bool = False, attn_mask: Tensor | None = None
    ) -> tuple[Tensor, None]:
        """Compute self-attention over ``query``, ``[M * B, T, d_model]``.

        The blocks pass the same tensor as ``query``, ``key`` and ``value``; the last two are ignored.
        """
        attended = self.attention(query, attn_mask=attn_mask)
        return attended, None


def _run_block(block: Any, state: State) -> State:
    """Return the state after one block."""
    hidden = block(state.hidden, attn_mask=state.context.get("attn_mask"))
    return State(hidden, state.context)


def visual_stages(model: Any) -> Stages:
    """Return the image tower (encoder) in its stages; its readout gives normalised features ``[B, D]``.

    The stages are the stem (all before the first block), the blocks, and the readout (all after the last block). Stem
    and pooling are open_clip's own methods.
    """
    visual = model.visual
    if isinstance(visual, TimmModel):
        return _trunk_stages(visual)

    def pooled(state: State) -> Tensor:
        """Return the features of images before they are projected, ``[B, d_model]``."""
        return visual._pool(state.hidden)[0]

    def readout(state: State) -> Tensor:
        """Return the normalised features of images, ``[B, D]``."""
        features = pooled(state) @ visual.proj
        return F.normalize(features, dim=-1)

    # The projection expects a dimension of prompts. An image counts as one: [B, d_model] -> [B, 1, d_model].
    projection = Projection(
        inputs=lambda state: pooled(state)[:, None],
        parameters=lambda: (visual.proj.T, None),
    )

    # If the pooled feature is that of the class token, the last block need not compute the other tokens (`reads`).
    blocks = visual.transformer.resblocks
    reads_class_token = visual.attn_pool is None and visual.pool_type == "tok"
    return Stages(
        stem=lambda images: State(visual._embeds(images)),
        blocks=for_each(_run_block, blocks),
        block_paths=numbered_paths(VISUAL_BLOCKS, blocks),
        stem_prefixes=("visual.conv1.", "visual.class_embedding", "visual.positional_embedding", "visual.ln_pre."),
        readout=readout,
        projection=projection,
        attention_input=partial(normed_input, "ln_1", blocks[-1]),
        reads=FirstTokens(1) if reads_class_token else None,
        tower="visual",
        prefixes=("visual.",),
    )


def _trunk_stages(visual: TimmModel) -> Stages:
    """Return the stages of an image tower that is a timm model: those of timm, with open_clip's projection at the end.

    Args:
        visual: the tower; its ``trunk`` is the timm model, its ``head`` the projection.
    """
    (trunk,) = timm.FAMILY.stages(visual.trunk)

    def readout(state: State) -> Tensor:
        """Return the normalised features of images, ``[B, D]``."""
        features = visual.head(trunk.readout(state))
        return F.normalize(features, dim=-1)

    # All names are relative to the timm model, so put the name of the trunk before them.
    return dataclasses.replace(
        trunk,
        block_paths=[f"{TRUNK}{path}" for path in trunk.block_paths],
        merging={index: f"{TRUNK}{path}" for index, path in trunk.merging.items()},
        stem_prefixes=tuple(f"{TRUNK}{prefix}" for prefix in trunk.stem_prefixes),
        readout=readout,
        tower="visual",
        prefixes=("visual.",),
    )


def text_stages(model: Any) -> Stages:
    """Return the text tower (encoder) in its stages; its readout gives normalised features ``[classes, D]``.

    The stages are the stem (all before the first block), the blocks, and the readout (all after the last block).
    Together they do what open_clip's ``encode_text`` does, and ``build_zero_shot_classifier`` with the prompts of each
    class.
    """
    tower = text_tower(model)
    prefix = tower.prefix
    blocks = tower.module.transformer.resblocks
    prompt_readout = PromptReadout(tower.positions_read, tower.module.ln_final, partial(_projected, tower.module))

    # The last linear layer of the readout, if the tower has one.
    projection = None
    if tower.module.text_projection is not None:
        projection = Projection(prompt_readout.inputs, partial(_parameters_of_projection, tower.module))

    # A CustomTextCLIP has the tower as its module `text`. A CLIP has the modules of the tower as its own attributes.
    if prefix:
        prefixes: tuple[str, ...] = (prefix,)
    else:
        prefixes = ("token_embedding.", "positional_embedding", "transformer.", "ln_final.", "text_projection")

    # What the readout uses of each prompt is one token, whose position depends on the prompt (`reads`). Entries of the
    # context with one row for each prompt are `per_sample`.
    return Stages(
        stem=partial(_text_stem, tower.module),
        blocks=for_each(_run_block, blocks),
        block_paths=numbered_paths(f"{prefix}transformer.resblocks", blocks),
        stem_prefixes=(f"{prefix}token_embedding.", f"{prefix}positional_embedding"),
        readout=prompt_readout.features,
        projection=projection,
        attention_input=partial(normed_input, "ln_1", blocks[-1]),
        reads=prompt_readout.reads,
        per_sample=("ids",),
        tower="text",
        of_labels=True,
        prefixes=prefixes,
    )


def _text_stem(holder: Any, inputs: Mapping[str, Tensor]) -> State:
    """Compute the embeddings of all prompts and the attention mask, as open_clip's own stem does.

    open_clip's method cannot be called, because it asks the first block for its dtype, and the block may have been
    replaced.

    Args:
        holder: the module with ``token_embedding`` and so on; see :attr:`TextTower.module`.
        inputs: ``text``, the token ids ``[classes, prompts, T]``.

    Returns:
        The embeddings of N = classes * prompts texts, ``[N, T, d_model]``. The context has ``ids`` (unchanged)
        and ``attn_mask`` (``[T, T]``, added to the scores of every text: -inf for a pair that may not attend; or None).
    """
    text = inputs["text"].flatten(0, 1)  # [classes, prompts, T] -> [N, T]
    tokens = text.shape[1]
    hidden = holder.token_embedding(text) + holder.positional_embedding[:tokens]
    mask = None if holder.attn_mask is None else holder.attn_mask[:tokens, :tokens].to(hidden.dtype)
    return State(hidden, {"ids": inputs["text"], "attn_mask": mask})


def _projected(holder: Any, features: Tensor) -> Tensor:
    """Return features ``[N, d_model]`` after the last layer of the text tower, if it has one: a layer, or a matrix."""
    projection = holder.text_projection
    if projection is None:
        return features
    return projection(features) if isinstance(projection, nn.Linear) else features @ projection


def _parameters_of_projection(holder: Any) -> tuple[Tensor, Tensor | None]:
    """Return the weight ``[D, d_model]`` and the bias, or None, of the last layer of the text tower."""
    projection = holder.text_projection
    if isinstance(projection, nn.Linear):
        return projection.weight, projection.bias
    return projection.T, None  # a matrix [d_model, D]
