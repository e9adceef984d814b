"""transformers' CLIP and SigLIP: the features of an image tower and a text tower are compared."""

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
from hydractl.families.base import FirstTokens, Projection, Stages, State, for_each, normed_input, numbered_paths
from hydractl.families.config_json import Preprocessing
from hydractl.families.hf.architectures import EncoderTower, towers_of
from hydractl.families.hf.encoders import encoder_stem, run_encoder_layer
from hydractl.families.hf.texts import prompt_tokens, text_preprocess
from hydractl.families.prompts import PromptReadout, filled_templates

NAMES = {"vision_model": "visual", "text_model": "text"}
"""transformers' names of the towers with their values of :attr:`hydractl.heads.mask.Site.tower`."""


def two_tower_stages(model: Any) -> list[Stages]:
    """Return the stages of the image tower, then those of the text tower."""
    images, texts = towers_of(model)
    return [_image_stages(model, images), _text_stages(model, texts)]


def _image_stages(model: Any, tower: EncoderTower) -> Stages:
    """Return the image tower (encoder) in its stages; its readout gives normalised features ``[B, D]``.

    The stages are the stem (all before the first block), the blocks, and the readout (all after the last block).

    Args:
        model: transformers' CLIP or SigLIP.
        tower: its image tower.
    """
    stages_of_encoder = _encoder_stages(
        tower,
        stem=partial(encoder_stem, tower.base),
        readout=lambda state: F.normalize(_image_features(model, state), dim=-1),
    )
    stages = replace(
        stages_of_encoder,
        prefixes=(f"{tower.prefix}.", "visual_projection."),
    )
    # The readout of a SigLIP attends to all tokens and is not linear.
    if not is_causal(model):
        return stages

    # A CLIP projects its class token. Projections have a dimension of prompts; an image counts as one prompt.
    layer = model.visual_projection
    projection = Projection(lambda state: _pooled_image(model, state)[:, None], lambda: (layer.weight, layer.bias))
    return replace(stages, reads=FirstTokens(1), projection=projection)


def _text_stages(model: Any, tower: EncoderTower) -> Stages:
    """Return the text tower (encoder) in its stages; its readout gives normalised features ``[classes, D]``.

    The stages are the stem (all before the first block), the blocks, and the readout (all after the last block).

    Args:
        model: transformers' CLIP or SigLIP.
        tower: its text tower.
    """
    causal = is_causal(model)  # a CLIP and not a SigLIP
    layer = model.text_projection if causal else tower.base.head
    prompt_readout = PromptReadout(partial(_positions_read, model), tower.base.final_layer_norm, layer)
    stages = _encoder_stages(tower, stem=partial(_text_stem, tower.base, causal), readout=prompt_readout.features)
    # Entries of the context with one row for each prompt are `per_sample`. A causal mask is the same for all prompts.
    return replace(
        stages,
        reads=prompt_readout.reads,
        per_sample=("ids",) if causal else ("ids", "attention_mask"),
        of_labels=True,
        prefixes=(f"{tower.prefix}.", "text_projection."),
        projection=Projection(prompt_readout.inputs, lambda: (layer.weight, layer.bias)),
    )


def _encoder_stages(tower: EncoderTower, stem: Callable[[Any], State], readout: Callable[[State], Tensor]) -> Stages:
    """Return the stages of a tower with only the fields that both towers set in the same way."""
    layers = tower.base.encoder.layers
    return Stages(
        stem=stem,
        blocks=for_each(run_encoder_layer, layers),
        block_paths=numbered_paths(f"{tower.prefix}.{tower.layout.layers}", layers),
        stem_prefixes=(f"{tower.prefix}.embeddings.", f"{tower.prefix}.pre_layrnorm."),
        readout=readout,
        attention_input=partial(normed_input, "layer_norm1", layers[-1]),
        tower=NAMES[tower.prefix],
    )


def is_causal(model: Any) -> bool:
    """Return whether the model is a CLIP, whose text tower is causal; a SigLIP attends to all tokens and padding."""
    return model.config.model_type in ("clip", "metaclip_2")


def _image_features(model: Any, state: State) -> Tensor:
    """Return the features of images before they are normalised, ``[B, D]``, from the state after the last layer."""
    base = model.vision_model
    if is_causal(model):
        return model.visual_projection(_pooled_image(model, state))
    return base.head(base.post_layernorm(state.hidden))


def _pooled_image(model: Any, state: State) -> Tensor:
    """Return the inputs of a CLIP's visual projection, ``[B, d_model]``: the class token after the last norm."""
    class_token = state.hidden[:, 0]
    return model.vision_model.post_layernorm(class_token)


def _text_stem(base: Any, causal: bool, inputs: Mapping[str, Tensor]) -> State:
    """Run the text tower before its first layer, on all prompts of all classes as one batch.

    Args:
        base: the encoder.
        causal: whether a token sees only itself and the tokens before it.
        inputs: outputs of the tokenizer, e.g. ``input_ids``, each ``[classes, prompts, T]``.

    Returns:
        The tokens ``[classes * prompts, T, d_model]``; the context also has ``ids``, the ``input_ids`` unchanged.
    """
    # All prompts as one batch: [classes, prompts, T] -> [classes * prompts, T]. The unchanged ids tell the readout how
    # many prompts a class has.
    texts = {name: tensor.flatten(0, 1) for name, tensor in inputs.items()}
    state = encoder_stem(base, texts)
    ids = inputs["input_ids"]
    context = {**state.context, "ids": ids}
    if causal:
        # The stem made a mask for an encoder that attends to all tokens. Replace it by the causal one.
        tokens = ids.shape[-1]
        every_pair = torch.ones((tokens, tokens), dtype=torch.bool, device=ids.device)
        context["attention_mask"] = every_pair.tril()  # [queries, keys]
    return State(state.hidden, context)


def _positions_read(model: Any, ids: Tensor) -> Tensor:
    """Return the position of the token from which the features of each text are computed, int64 ``[N, 1]``.

    A SigLIP uses the last token, a CLIP the first token that marks the end of the text.

    Args:
        model: transformers' CLIP or SigLIP.
        ids: token ids of the texts, ``[N, T]``.
    """
    if not is_causal(model):  # a SigLIP: the same position for every text
        last = ids.shape[1] - 1
        return torch.full_like(ids[:, :1], last)
    end = model.text_model.eos_token_id
    if end == 2 and model.config.model_type == "clip":
        # Older files of CLIP have 2 as the end token by mistake. Like transformers, take the token with the highest id,
        # which is the true end token.
        return ids.int().argmax(dim=-1, keepdim=True)
    is_end = torch.eq(ids, end)  # [N, T]
    # argmax returns the first position with the greatest value, so the first end token.
    return is_end.int().argmax(dim=-1, keepdim=True)


def text_preprocess_of(folder: Path, model: Any) -> Preprocessing:
    """Return the tokenizer of a published folder, as stored settings, for the text encoder of a CLIP or SigLIP.

    Raises:
        InputError: if a CLIP does not find the end of a padded text at the place where it would be without padding.
    """
    # A SigLIP attends to padding too, and its tokenizer may give a mask of it. A CLIP is causal: its tokens never
    # attend to the padding, which comes after them.
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

    # A CLIP reads its features from the end token, which it finds by its id. Some tokenizers pad with a token that it
    # would take for the end. Check this with a short text: beside a longer one it is padded, and its end must be where
    # it is without padding, at the last token.
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
    """Tokenize every template for every class, and return the inputs of the text tower.

    For a CLIP, T is the length of the longest text, because tokens after the end of a text change nothing. A SigLIP
    always gets the full length with which it was trained.

    Args:
        model: transformers' CLIP or SigLIP.
        preprocess: the preprocessing of the model.
        labels: class names.
        templates: prompts with a place for the class name.

    Returns:
        Outputs of the tokenizer by name, each ``[classes, templates, T]``.
    """
    texts = filled_templates(labels, templates)
    full_length = not is_causal(model)
    tokens = prompt_tokens(preprocess.get("texts"), texts, full_length=full_length)
    # [classes * templates, T] -> [classes, templates, T]
    return {name: tensor.unflatten(0, (len(labels), -1)) for name, tensor in tokens.items()}
