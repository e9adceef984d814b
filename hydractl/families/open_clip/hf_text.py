"""open_clip's text towers of transformers, read as the family of transformers reads them: BERT, RoBERTa, XLM-RoBERTa.

open_clip only names such a tower; what it looks like says the ``config.json`` of transformers, which a folder holds.
"""

from __future__ import annotations

import contextlib
import tempfile
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
from hydractl.families.hf.architectures import check_counts, check_encoder, fill_hf_buffers, without_traces
from hydractl.families.hf.encoders import encoder_stem, run_encoder_layer
from hydractl.families.hf.layouts import LAYOUTS
from hydractl.families.prompts import mean_features
from hydractl.families.reading import read_config, write_config
from hydractl.jsonio import shown

TRANSFORMER = "text.transformer."
"""The start of the names of what such a tower is built of."""
LAYOUT = LAYOUTS["bert"]
_KINDS = ("bert", "roberta", "xlm-roberta")
_POOLERS = {"MeanPooler": None, "ClsPooler": 1, "ClsLastHiddenStatePooler": 1}  # tokens that they look at


def hf_text(model: Any) -> HFTextEncoder | None:
    """Return the text tower of a model, if it is one of transformers."""
    text = getattr(model, "text", None)
    if isinstance(text, HFTextEncoder):
        return text
    return None


def is_of_transformers(name: str) -> bool:
    """Return whether a module or parameter of this name is of transformers' text tower, not of open_clip's own."""
    if not name.startswith(TRANSFORMER):
        return False
    inside = name.removeprefix(TRANSFORMER)
    return not inside.startswith("resblocks.")


def hf_config_in(folder: Path, name: str) -> LibraryConfig:
    """Read the configuration of the text tower that a folder names.

    Raises:
        InputError: where its ``config.json`` is not there.
    """
    config = read_config(folder / "config.json")
    if config is None or "model_type" not in config:
        raise InputError(
            f"the text tower in {folder} is transformers' {shown(name)}, whose config.json is not there",
            hint=f"transformers.AutoConfig.from_pretrained({name!r}).save_pretrained({str(folder)!r}) writes it",
        )
    return without_traces(config)


def problem_of_hf_config(config: object) -> str | None:
    """Return why no text tower is built of a configuration of transformers, or None.

    Args:
        config: from a file, and perhaps none; it is looked at before anything is built.
    """
    kind = None
    if isinstance(config, Mapping):
        kind = config.get("model_type")
    if not isinstance(config, Mapping) or kind not in _KINDS:
        return f"its text tower is {shown(kind)} of transformers, expected {', '.join(_KINDS)}"
    settings = transformers.AutoConfig.for_model(**config)
    check_counts(settings, str(kind))
    has_absolute_positions = getattr(settings, "position_embedding_type", None) in (None, "absolute")
    if settings.is_decoder or not has_absolute_positions:
        return f"its text tower is a {kind} that is a decoder or has no absolute positions"
    return None


@contextlib.contextmanager
def text_cfg_with_folder(
    text_cfg: Mapping[str, object], hf_config: LibraryConfig | None
) -> Iterator[Mapping[str, object]]:
    """Give the ``text_cfg`` of open_clip that names a folder with a configuration, from which the library builds it."""
    if hf_config is None:
        yield dict(text_cfg)
        return
    with tempfile.TemporaryDirectory() as folder:
        write_config(Path(folder) / "config.json", hf_config)
        yield {**text_cfg, "hf_model_name": folder, "hf_model_pretrained": False}


def hf_text_obstacles(text: HFTextEncoder) -> Iterator[str]:
    """Yield the reasons why a built tower cannot be used; its buffers are made real."""
    pooler = type(text.pooler).__name__
    if pooler not in _POOLERS:
        yield f"its text tower ends in a {pooler}, expected {', '.join(_POOLERS)}"
    if not hasattr(text, "proj"):
        yield "its text tower has no projection"
    check_encoder(type(text.transformer).__name__, text.transformer, LAYOUT)
    fill_hf_buffers(text.transformer)


def hf_text_stages(text: HFTextEncoder) -> Stages:
    """Cut a text tower of transformers into stem, blocks and readout: from prompts to normalised ``[classes, D]``.

    They are ``HFTextEncoder.forward``, and ``build_zero_shot_classifier`` over the prompts of a class.
    """
    base: Any = text.transformer
    layers = base.encoder.layer
    first_count = _POOLERS[type(text.pooler).__name__]
    return Stages(
        stem=partial(_run_stem, base),
        blocks=for_each(run_encoder_layer, layers),
        block_paths=numbered_paths(f"{TRANSFORMER}{LAYOUT.layers}", layers),
        stem_prefixes=(f"{TRANSFORMER}embeddings.",),
        readout=partial(_class_features, text),
        attention_inputs=[lambda state: state.hidden] * len(layers),
        reads=None if first_count is None else first_tokens(first_count),
        per_sample=("text", "tokens", "attention_mask"),
        tower="text",
        of_labels=True,
        prefixes=("text.",),
    )


def _run_stem(base: Any, inputs: Mapping[str, Tensor]) -> State:
    """Return the state before the first layer, of all prompts one after another; ``inputs`` has them as ``text``."""
    text = inputs["text"].flatten(0, 1)  # [classes, prompts, T] -> [classes * prompts, T]
    is_token = text != base.config.pad_token_id
    tokens = is_token.long()
    state = encoder_stem(base, {"input_ids": text, "attention_mask": tokens})
    context = dict(state.context)
    context["text"] = inputs["text"]
    context["tokens"] = tokens
    return State(state.hidden, context)


def _class_features(text: Any, state: State) -> Tensor:
    """Compute ``[classes, D]`` from the states of all prompts ``[classes * prompts, T, d_model]``."""
    pooler = text.transformer.pooler
    pooled = None
    if pooler is not None:
        pooled = pooler(state.hidden)
    output = BaseModelOutputWithPooling(state.hidden, pooled)
    read = text.pooler(output, state.context["tokens"])
    features = text.proj(read)
    _, prompts, _ = state.context["text"].shape  # [classes, prompts, T]
    return mean_features(features, prompts)
