"""Inputs of open_clip's models: images through the library's own transform, prompts through its own tokenizer."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import open_clip
import torch
from open_clip.tokenizer import get_clean_fn
from open_clip.transform import PreprocessCfg, image_transform_v2, merge_preprocess_dict
from torch import Tensor

from hydractl.errors import InputError
from hydractl.families.config_json import LibraryConfig, Preprocessing, object_in
from hydractl.families.hf.texts import prompt_tokens, stored_tokenizer, text_preprocess
from hydractl.families.pixels import stacked
from hydractl.families.reading import cached_by_config
from hydractl.files.preprocessing import ClipImages
from hydractl.jsonio import canonical_json, shown

_FIELDS = tuple(field.name for field in dataclasses.fields(PreprocessCfg))
CONTEXT_LENGTH = 77
"""The default number of tokens in a text."""
VOCABULARY = 49408
"""The default number of tokens that a model knows."""
_CLEANED = ("canonicalize", "lower", "whitespace")
_HF_TOKENIZER = ("clean", "strip_sep_token")
# The supported settings of SimpleTokenizer. Others name a local file, or drop words at random.
_PLAIN_TOKENIZER = ("clean", "additional_special_tokens")


# --- images -----------------------------------------------------------------------------------------------------------


def open_clip_preprocess(size: Any, published: object) -> dict[str, object]:
    """Return how images are prepared: all entries of open_clip's ``PreprocessCfg`` as plain JSON, and ``kind``.

    Args:
        size: the size of the images that the model takes: a number, or height and width.
        published: the entries in a folder or of a tag; entries that are missing get open_clip's defaults.

    Raises:
        InputError: if ``published`` is not a mapping.
    """
    if not isinstance(published, Mapping):
        raise InputError(f"the preprocess_cfg is no object but {shown(published)}")
    settings = merge_preprocess_dict(PreprocessCfg(), published)
    settings["size"] = [size, size] if isinstance(size, int) else size
    for key in ("mean", "std"):
        value = settings[key]
        if isinstance(value, (int, float)):  # one number for all channels
            settings[key] = [value] * 3
    json_settings = json.loads(json.dumps(settings))  # tuples become lists
    return {"kind": "image", **json_settings}


def published_preprocess(preprocess: Preprocessing) -> Preprocessing:
    """Return only the entries of open_clip's ``PreprocessCfg`` from a preprocessing."""
    return {key: preprocess[key] for key in _FIELDS if key in preprocess}


def size_of_images(preprocess: Preprocessing) -> list[int]:
    """Return the shape of the images that a model takes, ``[3, height, width]``."""
    height_and_width: Any = preprocess["size"]
    return [3, *height_and_width]


def open_clip_collate(preprocess: Preprocessing) -> Callable[[list[Any]], Tensor]:
    """Return open_clip's own transform for evaluation, from a list of PIL images to pixels ``[B, 3, H, W]``.

    The transform resizes an image in its own mode and then converts it to RGB.

    Raises:
        InputError: if open_clip cannot use the settings.
    """
    problem = "open_clip cannot preprocess images so"
    ClipImages.checked(preprocess, problem)
    # open_clip expects tuples, but the preprocessing comes from JSON, which has only lists.
    fields: dict[str, object] = {}
    for key, value in published_preprocess(preprocess).items():
        fields[key] = tuple(value) if isinstance(value, list) else value
    return stacked(
        lambda: image_transform_v2(PreprocessCfg(**fields), is_train=False),
        None,
        size_of_images(preprocess),
        problem,
    )


# --- prompts ----------------------------------------------------------------------------------------------------------


def text_cfg_of(config: LibraryConfig) -> LibraryConfig:
    """Return the section ``text_cfg``, the settings of the text tower; open_clip itself checks their values.

    Raises:
        InputError: if the configuration has no such section.
    """
    return object_in(config, "text_cfg", "the configuration of the model")


def own_tokenizer(config: LibraryConfig) -> bool:
    """Return whether the model uses open_clip's own SimpleTokenizer, not a tokenizer of transformers."""
    return not text_cfg_of(config).get("hf_tokenizer_name")


def text_settings(folder: Path, config: LibraryConfig) -> dict[str, Any]:
    """Read the tokenizer of transformers in a folder, for a model whose texts it tokenizes.

    Args:
        folder: the published folder.
        config: the configuration of the model; it sets the fixed number of tokens in a text.

    Raises:
        InputError: if the folder has no tokenizer, or the tokenizer does not fit the model or has unknown settings.
    """
    text_cfg = text_cfg_of(config)
    _hf_settings(text_cfg)  # only checks the settings; raises an error if they are not supported

    # The sizes with which the model was built.
    sizes: Any = text_cfg
    vocabulary = sizes.get("vocab_size", VOCABULARY)
    length = sizes.get("context_length", CONTEXT_LENGTH)
    texts = text_preprocess(folder, positions=length, vocabulary=vocabulary, always=("input_ids",))
    # open_clip ignores the greatest length that the tokenizer states.
    texts["max_length"] = length
    texts["tokenizer"]["model_max_length"] = length
    return texts


def _hf_settings(text_cfg: LibraryConfig) -> LibraryConfig:
    """Return the settings of open_clip's ``HFTokenizer``, its wrapper of tokenizers of transformers.

    Raises:
        InputError: if a setting is not supported.
    """
    settings = text_cfg.get("tokenizer_kwargs") or {}
    if isinstance(settings, Mapping) and _are_followed(settings):
        return settings
    names = ", ".join(_HF_TOKENIZER)
    ways = ", ".join(_CLEANED)
    hint = f"supported: {names}, to clean by {ways}"
    raise InputError(f"the settings of its HFTokenizer are not supported: {shown(settings)}", hint=hint)


def _are_followed(settings: LibraryConfig) -> bool:
    """Return whether hydractl supports these settings of an ``HFTokenizer``."""
    if not set(settings) <= set(_HF_TOKENIZER):
        return False
    return settings.get("clean", "whitespace") in _CLEANED


def cleaned(config: LibraryConfig, texts: Sequence[str]) -> list[str]:
    """Clean texts as open_clip does before a tokenizer of transformers, e.g. remove double spaces."""
    settings = _hf_settings(text_cfg_of(config))
    clean = get_clean_fn(settings.get("clean", "whitespace"))
    return [clean(text) for text in texts]


def tokens_of(config: LibraryConfig, preprocess: Preprocessing, texts: Sequence[str]) -> Tensor:
    """Return the token ids of texts by the model's tokenizer, int64 ``[len(texts), context_length]``.

    Args:
        config: the configuration of the model, which decides between open_clip's own tokenizer and one of transformers.
        preprocess: the preprocessing of the model; its entry ``texts`` describes a tokenizer of transformers.
        texts: the texts, not yet cleaned.
    """
    # open_clip's own tokenizer.
    if own_tokenizer(config):
        tokenize = simple_tokenizer(config)
        return tokenize(list(texts))

    # A tokenizer of transformers.
    tokenizer_settings = preprocess.get("texts")
    tokens = prompt_tokens(tokenizer_settings, cleaned(config, texts), full_length=True)
    ids = tokens["input_ids"]
    settings = _hf_settings(text_cfg_of(config))
    # Some models were trained with zeros in the place of separators.
    if settings.get("strip_sep_token"):
        separator = stored_tokenizer(tokenizer_settings).sep_token_id
        ids = torch.where(ids == separator, 0, ids)
    return ids


def simple_tokenizer(config: LibraryConfig) -> Any:
    """Return open_clip's own tokenizer with the settings of a model, which come from a file.

    Raises:
        InputError: if a setting is not supported.
    """
    text_cfg = text_cfg_of(config)
    settings = text_cfg.get("tokenizer_kwargs") or {}
    if not isinstance(settings, Mapping):
        raise _foreign_settings([shown(settings)])
    unknown_settings = set(settings) - set(_PLAIN_TOKENIZER)
    if unknown_settings:
        raise _foreign_settings(sorted(unknown_settings))
    length = text_cfg.get("context_length", CONTEXT_LENGTH)
    return _build_simple_tokenizer({**settings, "context_length": length})


def _foreign_settings(foreign: Sequence[str]) -> InputError:
    """Return the error for settings of a SimpleTokenizer that are not supported."""
    listed = ", ".join(map(str, foreign))
    supported = ", ".join(_PLAIN_TOKENIZER)
    return InputError(
        f"the settings of its SimpleTokenizer are not supported: {listed}", hint=f"supported: {supported}"
    )


@cached_by_config
def _build_simple_tokenizer(settings: LibraryConfig) -> Any:
    """Build open_clip's own tokenizer from its settings; results are cached.

    Raises:
        InputError: if open_clip rejects the settings.
    """
    try:
        return open_clip.SimpleTokenizer(**settings)
    except Exception as error:
        text = shown(canonical_json(settings), 200)
        raise InputError(f"open_clip cannot make a SimpleTokenizer of {text}") from error
