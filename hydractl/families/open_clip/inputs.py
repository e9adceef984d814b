"""Inputs of open_clip's models: images through the library's own transform, prompts through its own tokenizer."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import open_clip
import torch
from open_clip.tokenizer import get_clean_fn
from open_clip.transform import PreprocessCfg, image_transform_v2, merge_preprocess_dict
from PIL import Image
from torch import Tensor

from hydractl.errors import InputError
from hydractl.families.config_json import (
    LibraryConfig,
    Preprocessing,
    integer_in,
    integers_in,
    is_whole_number,
    object_in,
)
from hydractl.families.hf.texts import TextPreprocessing, prompt_tokens, stored_tokenizer, text_preprocess
from hydractl.families.pixels import is_size, stacked
from hydractl.families.reading import cached_by_config, refused_as
from hydractl.jsonio import canonical_json, shown

_CHOICES = {
    "mode": ("RGB",),
    "interpolation": ("bicubic", "bilinear", "random"),
    "resize_mode": ("shortest", "longest", "squash"),
}
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
    return {key: preprocess[key] for key in _FIELDS}


def size_of_images(preprocess: Preprocessing) -> list[int]:
    """Return the shape of the images that a model takes, ``[3, height, width]``."""
    size = integers_in(preprocess, "size", "the preprocessing")
    return [3, *size]


def open_clip_collate(preprocess: Preprocessing) -> Callable[[list[Any]], Tensor]:
    """Return open_clip's own transform for evaluation, from a list of PIL images to pixels ``[B, 3, H, W]``.

    The transform resizes an image in its own mode and then converts it to RGB.

    Raises:
        InputError: if open_clip cannot use the settings.
    """
    problems = _problems_of_images(preprocess)
    if problems:
        raise InputError(f"open_clip cannot preprocess images so: {problems[0]}", problems=problems)
    # open_clip expects tuples, but the preprocessing comes from JSON, which has only lists.
    fields: dict[str, object] = {}
    for key, value in published_preprocess(preprocess).items():
        fields[key] = tuple(value) if isinstance(value, list) else value
    with refused_as(f"open_clip cannot preprocess images with {shown(fields, 200)}"):
        transform = image_transform_v2(PreprocessCfg(**fields), is_train=False)
        # Transform a blank image, because some settings are checked only then.
        example = transform(Image.new("RGB", (8, 8)))
    shape = list(example.shape)
    expected_shape = size_of_images(preprocess)
    if shape != expected_shape:
        raise InputError(f"open_clip makes images of {shape}, the checkpoint says {expected_shape}")
    return stacked(transform, None)


def _problems_of_images(preprocess: Preprocessing) -> list[str]:
    """List the entries of a preprocessing that open_clip cannot use, as messages.

    Args:
        preprocess: the preprocessing; it comes from a file and may be anything.
    """
    # Without these the checks below make no sense.
    if preprocess.get("kind") != "image":
        return [f"it is not of images but of {shown(preprocess.get('kind'))}"]
    missing_keys = [key for key in _FIELDS if key not in preprocess]
    if missing_keys:
        return [f"it lacks {', '.join(missing_keys)}"]

    problems = []
    for key, choices in _CHOICES.items():
        value = preprocess[key]
        if value not in choices:
            problems.append(f"its {key} is {shown(value)}, not one of {', '.join(choices)}")

    size = preprocess["size"]
    is_height_and_width = isinstance(size, list) and len(size) == 2 and is_size(size)
    if not is_height_and_width:
        problems.append(f"its size is {shown(size)}, not [height, width]")

    mean = preprocess["mean"]
    if not _are_three_numbers(mean):
        problems.append(f"its mean is {shown(mean)}, not three numbers")
    std = preprocess["std"]
    if not _are_three_numbers(std):
        problems.append(f"its std is {shown(std)}, not three numbers")
    elif min(std) <= 0:
        problems.append(f"its std is {shown(std)}, which cannot be divided by")

    fill = preprocess["fill_color"]
    if not is_whole_number(fill, 0, 255):
        problems.append(f"its fill_color is {shown(fill)}, not 0 to 255")
    return problems


def _are_three_numbers(values: object) -> TypeGuard[list[float]]:
    """Return whether a value is a list of three finite numbers, for red, green and blue."""
    if not isinstance(values, list) or len(values) != 3:
        return False
    return all(map(_is_finite_number, values))


def _is_finite_number(value: object) -> bool:
    """Return whether a value from a file is a number (not a bool) and neither infinite nor NaN."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return math.isfinite(value)


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


def text_settings(folder: Path, config: LibraryConfig) -> TextPreprocessing:
    """Read the tokenizer of transformers in a folder, for a model whose texts it tokenizes.

    Args:
        folder: the published folder.
        config: the configuration of the model; it sets the fixed number of tokens in a text.

    Raises:
        InputError: if the folder has no tokenizer, or the tokenizer does not fit the model or has unknown settings.
    """
    text_cfg = text_cfg_of(config)
    _hf_settings(text_cfg)  # only checks the settings; raises an error if they are not supported

    vocabulary = _number_in(text_cfg, "vocab_size", VOCABULARY)
    length = _number_in(text_cfg, "context_length", CONTEXT_LENGTH)
    texts = text_preprocess(folder, positions=length, vocabulary=vocabulary, always=("input_ids",))
    # open_clip ignores the greatest length that the tokenizer states.
    texts["max_length"] = length
    texts["tokenizer"]["model_max_length"] = length
    return texts


def _number_in(text_cfg: LibraryConfig, key: str, default: int) -> int:
    """Return a whole number in the settings of the text tower, or ``default`` if it is missing."""
    if key not in text_cfg:
        return default
    return integer_in(text_cfg, key, "text_cfg")


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


def pooled_at(text: Tensor, pool: str, eos: int | None) -> Tensor:
    """Return the position of the token that is pooled from each text, ``[...]``.

    Args:
        text: token ids, ``[..., L]``.
        pool: ``argmax`` (the token with the highest id, which ends the text) or ``eos`` (the first token with the id
            ``eos``).
        eos: the id of the token for the pooling ``eos``; None is an id that no token has.
    """
    if pool == "argmax":
        return text.argmax(dim=-1)
    end = -1 if eos is None else eos
    is_end = torch.eq(text, end)
    # argmax returns the first position with the greatest value.
    return is_end.int().argmax(dim=-1)
