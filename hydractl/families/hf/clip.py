"""transformers' CLIP and SigLIP: a tower of images and a tower of texts, whose features are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hydractl.errors import InputError
from hydractl.families.base import Projection, Stages, State, first_tokens
from hydractl.families.hf.architectures import towers_of
from hydractl.families.hf.inputs import prompt_tokens, text_preprocess
from hydractl.families.prompts import filled_templates, mean_features

NAMES = {"vision_model": "visual", "text_model": "text"}
"""The towers, as :attr:`hydractl.heads.mask.Site.tower` names them."""


def stages(model: Any, stem: Callable[[Any, Any], State]) -> list[Stages]:
    """Return the tower of images, then that of texts.

    Args:
        model: the library's.
        stem: from one of its encoders and inputs to the state before the first layer.
    """
    return [_stages(model, *tower, stem) for tower in towers_of(model)]


def _stages(model: Any, prefix: str, base: Any, layout: Any, stem: Callable[[Any, Any], State]) -> Stages:
    layers, causal = base.encoder.layers, is_causal(model)
    common: dict[str, Any] = {
        "blocks": [partial(_run, layer) for layer in layers],
        "block_paths": [f"{prefix}.{layout.layers}.{index}" for index in range(len(layers))],
        "stem_prefixes": (f"{prefix}.embeddings.", f"{prefix}.pre_layrnorm."),
        "attention_inputs": [partial(_attention_input, layer) for layer in layers],
        "tower": NAMES[prefix],
    }
    if prefix == "vision_model":
        return Stages(
            stem=partial(stem, base),
            readout=lambda state: F.normalize(_image_features(model, state), dim=-1),
            reads=first_tokens(1) if causal else None,
            per_sample=("attention_mask", "tokens"),
            prefixes=(f"{prefix}.", "visual_projection."),
            projection=_projection(model.visual_projection, partial(_pooled_image, model)) if causal else None,
            **common,
        )
    return Stages(
        stem=partial(_text_stem, base, stem, causal),
        readout=partial(_class_features, model),
        reads=lambda state: _pooled_tokens(model, state.context["ids"].flatten(0, 1)),
        per_sample=("ids",) if causal else ("ids", "attention_mask"),
        of_labels=True,
        prefixes=(f"{prefix}.", "text_projection."),
        projection=_projection(model.text_projection if causal else base.head, partial(_pooled_texts, model)),
        **common,
    )


def _projection(layer: Any, pooled: Callable[[State], Tensor]) -> Projection:
    def inputs(state: State) -> Tensor:
        ids = state.context.get("ids")
        return pooled(state).unflatten(0, (-1, 1 if ids is None else ids.shape[1]))  # -> [classes, prompts, d]

    return Projection(inputs, lambda: (layer.weight, layer.bias))


def is_causal(model: Any) -> bool:
    """Return whether this is a CLIP, which reads texts up to their end; a SigLIP reads them whole, padding included."""
    return model.config.model_type in ("clip", "metaclip_2")


def _run(layer: Any, state: State) -> State:
    return State(layer(state.hidden, attention_mask=state.context["attention_mask"]), state.context)


def _attention_input(layer: Any, state: State) -> Tensor:
    return layer.layer_norm1(state.hidden)


def _image_features(model: Any, state: State) -> Tensor:
    base = model.vision_model
    if is_causal(model):
        return model.visual_projection(_pooled_image(model, state))
    patches = state.context.get("tokens")
    return base.head(base.post_layernorm(state.hidden), *([] if patches is None else [patches]))


def _pooled_image(model: Any, state: State) -> Tensor:
    return model.vision_model.post_layernorm(state.hidden[:, 0])


def _text_stem(base: Any, stem: Callable[[Any, Any], State], causal: bool, inputs: Mapping[str, Tensor]) -> State:
    # [classes, prompts, T] -> [classes * prompts, T]
    state = stem(base, {name: tensor.flatten(0, 1) for name, tensor in inputs.items()})
    ids = inputs["input_ids"]
    context = {**state.context, "ids": ids}
    if causal:
        context["attention_mask"] = torch.ones(ids.shape[-1:] * 2, dtype=torch.bool, device=ids.device).tril()  # [T, T]
    return State(state.hidden, context)


def _pooled_tokens(model: Any, ids: Tensor) -> Tensor:
    """Return the position ``[N, 1]`` of the token that the library reads of texts ``[N, T]``."""
    if not is_causal(model):
        return torch.full_like(ids[:, :1], ids.shape[1] - 1)
    end = model.text_model.eos_token_id
    # As the library: with this number, which older files of CLIP hold by mistake, the end is the highest token.
    return (ids.int() if end == 2 and model.config.model_type == "clip" else torch.eq(ids, end).int()).argmax(
        dim=-1, keepdim=True
    )


def _class_features(model: Any, state: State) -> Tensor:
    """Compute ``[classes, D]`` from the states of all prompts ``[classes * prompts, T, d_model]``."""
    layer = model.text_projection if is_causal(model) else model.text_model.head
    return mean_features(layer(_pooled_texts(model, state)), state.context["ids"].shape[1])


def _pooled_texts(model: Any, state: State) -> Tensor:
    """Compute ``[classes * prompts, d_model]``, the features that the library reads of each text."""
    hidden, ids = state.hidden, state.context["ids"]
    if "read" not in state.context:
        hidden = hidden.take_along_dim(_pooled_tokens(model, ids.flatten(0, 1))[..., None], dim=1)
    return model.text_model.final_layer_norm(hidden[:, 0])


def text_preprocess_of(folder: Path, model: Any) -> dict[str, Any]:
    """Read the tokenizer of a published folder, with the settings by which the model takes its tokens.

    Raises:
        InputError: for one whose texts end where a CLIP does not look.
    """
    config, named = model.text_model.config, () if is_causal(model) else ("attention_mask",)
    preprocess = text_preprocess(folder, config.max_position_embeddings, config.vocab_size, ("input_ids",), named)
    if is_causal(model):
        ids = prompt_tokens(preprocess, ["a", "a photo of a"], whole=False)["input_ids"]
        end = prompt_tokens(preprocess, ["a"], whole=False)["input_ids"].shape[1] - 1
        if int(_pooled_tokens(model, ids)[0]) != end:
            raise InputError(f"the tokenizer in {folder} pads its texts where {type(model).__name__} reads their end")
    return preprocess


def prompts(
    model: Any, preprocess: Mapping[str, Any], labels: Sequence[str], templates: Sequence[str]
) -> Mapping[str, Tensor]:
    """Tokenize every template of every class, ``[classes, templates, T]`` each.

    A CLIP is given no more tokens than its longest text has, because what lies behind the end of a text changes
    nothing; a SigLIP always as many as it was trained with.
    """
    texts = filled_templates(labels, templates)
    tokens = prompt_tokens(preprocess.get("texts"), texts, whole=not is_causal(model))
    return {name: tensor.unflatten(0, (len(labels), -1)) for name, tensor in tokens.items()}
