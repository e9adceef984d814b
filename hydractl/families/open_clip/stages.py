"""open_clip's towers in stages: stems, blocks and readouts as the library's own forward has them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from open_clip.timm_model import TimmModel
from open_clip.transformer import Attention, text_global_pool
from torch import Tensor, nn
from torch.nn import functional as F

from hydractl.families import timm
from hydractl.families.base import Projection, Stages, State, first_tokens, for_each, numbered_paths
from hydractl.families.open_clip.hf_text import hf_text, hf_text_stages
from hydractl.families.open_clip.models import TRUNK, VISUAL_BLOCKS, TextTower, text_tower
from hydractl.families.prompts import mean_features


def _run_block(block: Any, state: State) -> State:
    """Return the state behind one block."""
    mask = state.context.get("attn_mask")
    if mask is not None and mask.dim() == 4:
        mask = _mask_for(block.attn, mask)
    hidden = block(state.hidden, attn_mask=mask)
    return State(hidden, state.context)


def _mask_for(attention: Any, mask: Tensor) -> Tensor:
    """Return a mask ``[B, 1, T, T]`` as an attention takes it: the library's own ``[B * heads, T, T]``."""
    if not isinstance(attention, nn.MultiheadAttention | Attention):
        return mask
    for_each_head = mask.expand(-1, attention.num_heads, -1, -1)
    return for_each_head.flatten(0, 1)


def _attention_input(block: Any, state: State) -> Tensor:
    """Return what the attention of a block is given of the state before it."""
    return block.ln_1(state.hidden)


def visual_stages(model: Any) -> Stages:
    """Cut the image tower into stem, blocks and readout; its stem and pooling are the library's own.

    The readout is the normalised features ``[B, D]`` of the images.
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

    # An image is one prompt: [B, d_model] -> [B, 1, d_model].
    projection = Projection(
        inputs=lambda state: pooled(state)[:, None],
        parameters=lambda: (visual.proj.T, None),
    )
    blocks = visual.transformer.resblocks
    reads_class_token = visual.attn_pool is None and visual.pool_type == "tok"
    return Stages(
        stem=lambda images: State(visual._embeds(images)),
        blocks=for_each(_run_block, blocks),
        block_paths=numbered_paths(VISUAL_BLOCKS, blocks),
        stem_prefixes=("visual.conv1.", "visual.class_embedding", "visual.positional_embedding", "visual.ln_pre."),
        readout=readout,
        projection=projection,
        attention_inputs=for_each(_attention_input, blocks),
        reads=first_tokens(1) if reads_class_token else None,
        tower="visual",
        prefixes=("visual.",),
    )


def _trunk_stages(visual: TimmModel) -> Stages:
    """Cut an image tower of timm: the stages of the family of timm, and the projection behind them."""
    (trunk,) = timm.FAMILY.stages(visual.trunk)

    def readout(state: State) -> Tensor:
        """Return the normalised features of images, ``[B, D]``."""
        features = visual.head(trunk.readout(state))
        return F.normalize(features, dim=-1)

    # All paths lie within the tower.
    return dataclasses.replace(
        trunk,
        block_paths=[f"{TRUNK}{path}" for path in trunk.block_paths],
        merging={place: f"{TRUNK}{path}" for place, path in trunk.merging.items()},
        stem_prefixes=tuple(f"{TRUNK}{prefix}" for prefix in trunk.stem_prefixes),
        readout=readout,
        tower="visual",
        prefixes=("visual.",),
    )


def text_stages(model: Any) -> Stages:
    """Cut the text tower into stem, blocks and readout: from prompts to normalised features ``[classes, D]``.

    They are the library's ``encode_text``, and ``build_zero_shot_classifier`` over the prompts of a class.
    """
    encoder = hf_text(model)
    if encoder is not None:
        return hf_text_stages(encoder)
    tower = text_tower(model)
    prefix = tower.prefix
    blocks = tower.module.transformer.resblocks
    has_class_token = getattr(tower.module, "cls_emb", None) is not None
    if prefix:
        prefixes: tuple[str, ...] = (prefix,)
    else:  # a CLIP holds the parts of the tower itself, beside those of the other tower
        prefixes = ("token_embedding.", "positional_embedding", "transformer.", "ln_final.", "text_projection")
    return Stages(
        stem=partial(_text_stem, tower.module),
        blocks=for_each(_run_block, blocks),
        block_paths=numbered_paths(f"{prefix}transformer.resblocks", blocks),
        stem_prefixes=(f"{prefix}token_embedding.", f"{prefix}positional_embedding", f"{prefix}cls_emb"),
        readout=lambda state: _class_features(tower, state),
        projection=_text_projection(tower),
        attention_inputs=for_each(_attention_input, blocks),
        reads=lambda state: _positions_read(tower, state),
        per_sample=("text", "attn_mask") if has_class_token else ("text",),
        tower="text",
        of_labels=True,
        prefixes=prefixes,
    )


def _text_stem(holder: Any, inputs: Mapping[str, Tensor]) -> State:
    """Run the library's own stem: embeddings of tokens and positions, and the mask of attention.

    It is written out, because that asks the first block for its dtype, which may be another's.

    Args:
        holder: of ``token_embedding`` and so on, see :class:`TextTower`.
        inputs: ``text`` ``[classes, prompts, T]``.

    Returns:
        The tokens of all prompts one after another, ``[classes * prompts, T, d_model]``; with a class token behind them
        where the tower has one.
    """
    text = inputs["text"].flatten(0, 1)  # [classes, prompts, T] -> [classes * prompts, T]
    hidden = holder.token_embedding(text)
    class_token = getattr(holder, "cls_emb", None)
    if class_token is not None:
        class_tokens = class_token.expand(len(text), 1, -1)
        hidden = torch.cat([hidden, class_tokens], dim=1)
    tokens = hidden.shape[1]
    hidden = hidden + holder.positional_embedding[:tokens]
    mask = None
    if holder.attn_mask is not None:
        mask = holder.attn_mask[:tokens, :tokens].to(hidden.dtype)
    if class_token is not None:
        # No token sees padding. The library's mask has it for every head, and all heads alike.
        for_each_head = holder._build_additive_mask(text, tokens, hidden.dtype)  # [N * heads, T, T]
        by_text = for_each_head.unflatten(0, (len(text), -1))
        padding = by_text[:, :1]  # [N, 1, T, T]
        mask = padding if mask is None else mask + padding
    return State(hidden, {"text": inputs["text"], "attn_mask": mask})


def _class_features(tower: TextTower, state: State) -> Tensor:
    """Compute ``[classes, D]`` from the states of all prompts ``[classes * prompts, T, d_model]``."""
    features = _pooled_texts(tower, state)
    projection = tower.module.text_projection
    if isinstance(projection, nn.Linear):
        features = projection(features)
    elif projection is not None:
        features = features @ projection
    _, prompts, _ = state.context["text"].shape  # [classes, prompts, T]
    return mean_features(features, prompts)


def _pooled_texts(tower: TextTower, state: State) -> Tensor:
    """Compute ``[classes * prompts, d_model]``, the pooled features of the prompts."""
    norm = tower.module.ln_final
    if "read" in state.context:
        read = state.hidden[:, 0]
        return norm(read)
    text = state.context["text"].flatten(0, 1)
    normed = norm(state.hidden)
    return text_global_pool(normed, text, tower.pool, eos_token_id=tower.eos)


def _text_projection(tower: TextTower) -> Projection | None:
    """Return the linear layer that ends the text tower, what enters it, and its weight; None where there is none."""
    layer = tower.module.text_projection
    if layer is None:
        return None

    def inputs(state: State) -> Tensor:
        """Return what enters the layer, ``[classes, prompts, d_model]``."""
        _, prompts, _ = state.context["text"].shape  # [classes, prompts, T]
        features = _pooled_texts(tower, state)
        return features.unflatten(0, (-1, prompts))

    def parameters() -> tuple[Tensor, Tensor | None]:
        """Return its weight ``[D, d_model]``, and its bias or None."""
        if isinstance(layer, nn.Linear):
            return layer.weight, layer.bias
        return layer.T, None

    return Projection(inputs, parameters)


def _positions_read(tower: TextTower, state: State) -> Tensor:
    """Return the position ``[classes * prompts, 1]`` of the token that the library's own pooling takes.

    The pooling is given the positions in the place of features: what it takes of them is the answer.
    """
    text = state.context["text"].flatten(0, 1)
    tokens = state.hidden.shape[1]
    positions = torch.arange(tokens, device=text.device)
    for_each_text = positions.expand(len(text), -1)  # [N, T]
    features = for_each_text[:, :, None]
    return text_global_pool(features, text, tower.pool, eos_token_id=tower.eos)
