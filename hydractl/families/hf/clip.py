"""transformers' CLIP and SigLIP: a tower of images and a tower of texts, whose features are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hydractl.errors import InputError
from hydractl.families.base import Projection, Stages, State, first_tokens, for_each, numbered_paths
from hydractl.families.config_json import Preprocessing
from hydractl.families.hf.architectures import EncoderTower, towers_of
from hydractl.families.hf.texts import prompt_tokens, text_preprocess
from hydractl.families.prompts import filled_templates, mean_features

NAMES = {"vision_model": "visual", "text_model": "text"}
"""The towers, as :attr:`hydractl.heads.mask.Site.tower` names them."""


Stem = Callable[[Any, Any], State]
"""From an encoder of the library and its inputs to the state before the first layer."""


def two_tower_stages(model: Any, stem: Stem) -> list[Stages]:
    """Return the tower of images, then that of texts."""
    images, texts = towers_of(model)
    stages_of_images = _image_stages(model, images, stem)
    stages_of_texts = _text_stages(model, texts, stem)
    return [stages_of_images, stages_of_texts]


def _image_stages(model: Any, tower: EncoderTower, stem: Stem) -> Stages:
    """Cut the tower of images into stem, blocks and readout: from images to normalised features ``[B, D]``."""
    stages = _encoder_stages(
        tower,
        stem=partial(stem, tower.base),
        readout=lambda state: F.normalize(_image_features(model, state), dim=-1),
    )
    stages = replace(
        stages,
        per_sample=("attention_mask", "tokens"),
        prefixes=(f"{tower.prefix}.", "visual_projection."),
    )
    if not is_causal(model):  # the head of a SigLIP attends to all tokens
        return stages
    projection = _projection(model.visual_projection, partial(_pooled_image, model))
    return replace(stages, reads=first_tokens(1), projection=projection)


def _text_stages(model: Any, tower: EncoderTower, stem: Stem) -> Stages:
    """Cut the tower of texts into stem, blocks and readout: from prompts to normalised features ``[classes, D]``."""
    causal = is_causal(model)
    stages = _encoder_stages(
        tower,
        stem=partial(_text_stem, tower.base, stem, causal),
        readout=partial(_class_features, model),
    )
    projection_layer = model.text_projection if causal else tower.base.head

    def reads(state: State) -> Tensor:
        """Return the position of the token that is read of each prompt, ``[classes * prompts, 1]``."""
        ids = state.context["ids"].flatten(0, 1)
        return _positions_read(model, ids)

    return replace(
        stages,
        reads=reads,
        per_sample=("ids",) if causal else ("ids", "attention_mask"),
        of_labels=True,
        prefixes=(f"{tower.prefix}.", "text_projection."),
        projection=_projection(projection_layer, partial(_pooled_texts, model)),
    )


def _encoder_stages(tower: EncoderTower, stem: Callable[[Any], State], readout: Callable[[State], Tensor]) -> Stages:
    """Return what the stages of both towers have in common."""
    layers = tower.base.encoder.layers
    return Stages(
        stem=stem,
        blocks=for_each(_run_layer, layers),
        block_paths=numbered_paths(f"{tower.prefix}.{tower.layout.layers}", layers),
        stem_prefixes=(f"{tower.prefix}.embeddings.", f"{tower.prefix}.pre_layrnorm."),
        readout=readout,
        attention_inputs=for_each(_attention_input, layers),
        tower=NAMES[tower.prefix],
    )


def _projection(layer: Any, pooled: Callable[[State], Tensor]) -> Projection:
    """Return the projection by a layer of what is pooled of a state, ``[classes * prompts, d]``."""

    def inputs(state: State) -> Tensor:
        ids = state.context.get("ids")
        prompts = 1
        if ids is not None:
            prompts = ids.shape[1]
        features = pooled(state)  # [classes * prompts, d]
        return features.unflatten(0, (-1, prompts))

    return Projection(inputs, lambda: (layer.weight, layer.bias))


def is_causal(model: Any) -> bool:
    """Return whether this is a CLIP, which reads texts up to their end; a SigLIP reads them whole, padding included."""
    return model.config.model_type in ("clip", "metaclip_2")


def _run_layer(layer: Any, state: State) -> State:
    """Return the state behind one layer."""
    context = state.context
    hidden = layer(state.hidden, attention_mask=context["attention_mask"])
    return State(hidden, context)


def _attention_input(layer: Any, state: State) -> Tensor:
    """Return what the attention of a layer is given of the state before it."""
    return layer.layer_norm1(state.hidden)


def _image_features(model: Any, state: State) -> Tensor:
    """Return the features ``[B, D]`` of images, before they are normalised, from the state after the last layer."""
    base = model.vision_model
    if is_causal(model):
        return model.visual_projection(_pooled_image(model, state))
    hidden = base.post_layernorm(state.hidden)
    patches = state.context.get("tokens")
    if patches is None:
        return base.head(hidden)
    return base.head(hidden, patches)


def _pooled_image(model: Any, state: State) -> Tensor:
    """Return what a CLIP projects of an image, ``[B, d_model]``: its class token behind the last norm."""
    class_token = state.hidden[:, 0]
    return model.vision_model.post_layernorm(class_token)


def _text_stem(base: Any, stem: Stem, causal: bool, inputs: Mapping[str, Tensor]) -> State:
    """Return the state before the first layer, of all prompts one after another.

    Args:
        base: the encoder.
        stem: of an encoder of the library.
        causal: whether a token sees only those before it.
        inputs: of the library's tokenizer, ``[classes, prompts, T]`` each.
    """
    texts = {}
    for name, tensor in inputs.items():
        texts[name] = tensor.flatten(0, 1)  # [classes, prompts, T] -> [classes * prompts, T]
    state = stem(base, texts)
    ids = inputs["input_ids"]
    context = {**state.context, "ids": ids}
    if causal:
        tokens = ids.shape[-1]
        every_pair = torch.ones((tokens, tokens), dtype=torch.bool, device=ids.device)
        context["attention_mask"] = every_pair.tril()
    return State(state.hidden, context)


def _positions_read(model: Any, ids: Tensor) -> Tensor:
    """Return the position of the token that the library reads of each text, int64 ``[N, 1]``.

    That is the last one for a SigLIP, and the first one that ends the text for a CLIP.

    Args:
        model: of the library.
        ids: tokens of the texts, ``[N, T]``.
    """
    if not is_causal(model):
        last = ids.shape[1] - 1
        return torch.full_like(ids[:, :1], last)
    end = model.text_model.eos_token_id
    if end == 2 and model.config.model_type == "clip":
        # As the library: with this number, which older files of CLIP hold by mistake, the end is the highest token.
        return ids.int().argmax(dim=-1, keepdim=True)
    is_end = torch.eq(ids, end)
    return is_end.int().argmax(dim=-1, keepdim=True)


def _class_features(model: Any, state: State) -> Tensor:
    """Compute ``[classes, D]`` from the states of all prompts ``[classes * prompts, T, d_model]``."""
    if is_causal(model):
        layer = model.text_projection
    else:
        layer = model.text_model.head
    pooled = _pooled_texts(model, state)
    features = layer(pooled)
    _, prompts, _ = state.context["ids"].shape  # [classes, prompts, T]
    return mean_features(features, prompts)


def _pooled_texts(model: Any, state: State) -> Tensor:
    """Compute ``[classes * prompts, d_model]``, the features that the library reads of each text."""
    hidden = state.hidden
    if "read" not in state.context:
        ids = state.context["ids"].flatten(0, 1)
        positions = _positions_read(model, ids)
        hidden = hidden.take_along_dim(positions[..., None], dim=1)
    pooled = hidden[:, 0]
    return model.text_model.final_layer_norm(pooled)


def text_preprocess_of(folder: Path, model: Any) -> Preprocessing:
    """Read the tokenizer of a published folder, with the settings by which the model takes its tokens.

    Raises:
        InputError: for one whose texts end where a CLIP does not look.
    """
    config = model.text_model.config
    reads_padding = not is_causal(model)
    preprocess = text_preprocess(
        folder,
        positions=config.max_position_embeddings,
        vocabulary=config.vocab_size,
        always=("input_ids",),
        if_named=("attention_mask",) if reads_padding else (),
    )
    if reads_padding:
        return preprocess
    # Beside a longer text, a short one is padded: a CLIP has to find its end where it was without padding.
    padded = prompt_tokens(preprocess, ["a", "a photo of a"], full_length=False)["input_ids"]
    unpadded = prompt_tokens(preprocess, ["a"], full_length=False)["input_ids"]
    end = unpadded.shape[1] - 1
    position_read = int(_positions_read(model, padded)[0])
    if position_read != end:
        raise InputError(f"the tokenizer in {folder} pads its texts where {type(model).__name__} reads their end")
    return preprocess


def class_prompts(
    model: Any, preprocess: Preprocessing, labels: Sequence[str], templates: Sequence[str]
) -> Mapping[str, Tensor]:
    """Tokenize every template of every class: the inputs of the tower of texts, ``[classes, templates, T]`` each.

    A CLIP is given no more tokens than its longest text has, because what lies behind the end of a text changes
    nothing; a SigLIP always as many as it was trained with.
    """
    texts = filled_templates(labels, templates)
    full_length = not is_causal(model)
    tokens = prompt_tokens(preprocess.get("texts"), texts, full_length=full_length)
    classes = len(labels)
    by_class = {}
    for name, tensor in tokens.items():
        by_class[name] = tensor.unflatten(0, (classes, -1))  # [classes * templates, T] -> [classes, templates, T]
    return by_class
