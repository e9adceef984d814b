"""open_clip's text towers that are models of transformers: BERT, RoBERTa, XLM-RoBERTa.

A configuration of open_clip only names such a tower. Its architecture is in transformers' ``config.json`` in the same
folder.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import transformers
from open_clip.hf_model import HFTextEncoder
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutputWithPooling

from hydractl.errors import InputError
from hydractl.families.base import Stages, State, first_tokens, for_each, numbered_paths
from hydractl.families.config_json import LibraryConfig
from hydractl.families.hf.architectures import (
    check_counts,
    check_encoder,
    fill_hf_buffers,
    for_transformers,
    without_traces,
)
from hydractl.families.hf.encoders import encoder_stem, run_encoder_layer
from hydractl.families.hf.layouts import LAYOUTS
from hydractl.families.prompts import mean_features
from hydractl.families.reading import folder_for_library, read_config
from hydractl.jsonio import shown

TRANSFORMER = "text.transformer."
"""The beginning of the names of all parameters of such a tower."""
LAYOUT = LAYOUTS["bert"]
_KINDS = ("bert", "roberta", "xlm-roberta")
# The supported poolers, each with the number of first tokens that it uses; None means all tokens.
_POOLERS = {"MeanPooler": None, "ClsPooler": 1, "ClsLastHiddenStatePooler": 1}


def hf_text(model: Any) -> HFTextEncoder | None:
    """Return the text tower of a model if it is a model of transformers, else None."""
    text = getattr(model, "text", None)
    return text if isinstance(text, HFTextEncoder) else None


def is_of_transformers(name: str) -> bool:
    """Return whether a module or parameter with this name belongs to a text tower of transformers."""
    if not name.startswith(TRANSFORMER):
        return False
    # open_clip's own text tower may also be called text.transformer; its blocks are in the list `resblocks`.
    name_in_tower = name.removeprefix(TRANSFORMER)
    return not name_in_tower.startswith("resblocks.")


def hf_config_in(folder: Path, name: str) -> LibraryConfig:
    """Read transformers' configuration of the text tower in a folder.

    Args:
        folder: the published folder of the whole model.
        name: transformers' name of the text tower, for the message.

    Raises:
        InputError: if the folder has no ``config.json`` of transformers.
    """
    config = read_config(folder / "config.json")
    if config is None or "model_type" not in config:
        raise InputError(
            f"the text tower in {folder} is transformers' {shown(name)}, whose config.json is not there",
            hint=f"transformers.AutoConfig.from_pretrained({name!r}).save_pretrained({str(folder)!r}) writes it",
        )
    return without_traces(config)


def problem_of_hf_config(config: object) -> str | None:
    """Return why a text tower of transformers with this configuration is not supported; None if it is.

    Args:
        config: the configuration; it comes from a file and may be anything. It is checked before anything is built.

    Raises:
        InputError: if the configuration has impossible numbers, e.g. of layers.
    """
    model_type = config.get("model_type") if isinstance(config, Mapping) else None
    if not isinstance(config, Mapping) or model_type not in _KINDS:
        return f"its text tower is {shown(model_type)} of transformers, expected {', '.join(_KINDS)}"
    settings = transformers.AutoConfig.for_model(**for_transformers(config))
    check_counts(settings, str(model_type))
    has_absolute_positions = getattr(settings, "position_embedding_type", None) in (None, "absolute")
    if settings.is_decoder or not has_absolute_positions:
        return f"its text tower is a {model_type} that is a decoder or has no absolute positions"
    return None


@contextlib.contextmanager
def text_cfg_with_folder(
    text_cfg: Mapping[str, object], hf_config: LibraryConfig | None
) -> Iterator[Mapping[str, object]]:
    """Yield a ``text_cfg`` from which open_clip can build the text tower without asking the hub.

    open_clip reads transformers' configuration of a tower only from a folder or the hub. The folder exists inside the
    block.

    Args:
        text_cfg: open_clip's settings of the text tower.
        hf_config: transformers' configuration; None for open_clip's own tower, whose settings are yielded unchanged.
    """
    if hf_config is None:
        yield dict(text_cfg)
        return
    with folder_for_library([], {"config.json": for_transformers(hf_config)}) as folder:
        yield {**text_cfg, "hf_model_name": str(folder), "hf_model_pretrained": False}


def hf_text_obstacles(text: HFTextEncoder) -> Iterator[str]:
    """Yield the reasons why a text tower of transformers is not supported; at the end, fill its buffers in place.

    Raises:
        InputError: if the heads of the tower cannot be separated.
    """
    pooler = type(text.pooler).__name__
    if pooler not in _POOLERS:
        yield f"its text tower ends in a {pooler}, expected {', '.join(_POOLERS)}"
    if not hasattr(text, "proj"):
        yield "its text tower has no projection"
    check_encoder(type(text.transformer).__name__, text.transformer, LAYOUT)
    fill_hf_buffers(text.transformer)


def hf_text_stages(text: HFTextEncoder) -> Stages:
    """Cut a text tower of transformers into stem, blocks and readout; the readout gives features ``[classes, D]``.

    Together they do what open_clip's ``HFTextEncoder.forward`` does, and ``build_zero_shot_classifier`` with the
    prompts of each class.
    """
    base: Any = text.transformer
    layers = base.encoder.layer
    count_of_first_tokens = _POOLERS[type(text.pooler).__name__]
    return Stages(
        stem=partial(_run_stem, base),
        blocks=for_each(run_encoder_layer, layers),
        block_paths=numbered_paths(f"{TRANSFORMER}{LAYOUT.layers}", layers),
        stem_prefixes=(f"{TRANSFORMER}embeddings.",),
        readout=partial(_class_features, text),
        attention_inputs=[lambda state: state.hidden] * len(layers),  # layers of a BERT have their norms at the end
        reads=None if count_of_first_tokens is None else first_tokens(count_of_first_tokens),
        per_sample=("text", "tokens", "attention_mask"),
        tower="text",
        of_labels=True,
        prefixes=("text.",),
    )


def _run_stem(base: Any, inputs: Mapping[str, Tensor]) -> State:
    """Run the tower before its first layer, on all prompts of all classes as one batch.

    Args:
        base: transformers' encoder.
        inputs: ``text``, the token ids ``[classes, prompts, T]``.

    Returns:
        The tokens ``[classes * prompts, T, d_model]``. The context also has ``text`` (the ids unchanged) and
        ``tokens``, which is 0 for padding.
    """
    text = inputs["text"].flatten(0, 1)  # [classes, prompts, T] -> [classes * prompts, T]
    padding_mask = (text != base.config.pad_token_id).long()
    state = encoder_stem(base, {"input_ids": text, "attention_mask": padding_mask})
    return State(state.hidden, {**state.context, "text": inputs["text"], "tokens": padding_mask})


def _class_features(text: Any, state: State) -> Tensor:
    """Compute the features of all classes, ``[classes, D]``, from the state of their prompts after the last layer."""
    # open_clip's pooler takes the output object of transformers, whose own pooler may be missing.
    transformers_pooler = text.transformer.pooler
    transformers_pooled = None if transformers_pooler is None else transformers_pooler(state.hidden)
    output = BaseModelOutputWithPooling(state.hidden, transformers_pooled)
    pooled = text.pooler(output, state.context["tokens"])  # [classes * prompts, d_model]
    features = text.proj(pooled)  # [classes * prompts, D]
    _, prompts, _ = state.context["text"].shape  # [classes, prompts, T]
    return mean_features(features, prompts)
