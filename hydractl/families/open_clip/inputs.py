"""Inputs of open_clip's models: images by the library's own transform, prompts by its own tokenizer."""

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
from hydractl.families.pixels import in_mode, is_size, stacked
from hydractl.families.reading import cached_by_config, refused_as
from hydractl.jsonio import canonical_json, shown

_CHOICES = {
    "mode": ("RGB",),
    "interpolation": ("bicubic", "bilinear", "random"),
    "resize_mode": ("shortest", "longest", "squash"),
}
_FIELDS = tuple(field.name for field in dataclasses.fields(PreprocessCfg))
CONTEXT_LENGTH = 77
"""Tokens of a text where a configuration does not say how many."""
VOCABULARY = 49408
"""Tokens that a model knows where its configuration does not say how many."""
_CLEANED = ("canonicalize", "lower", "whitespace")
_HF_TOKENIZER = ("clean", "strip_sep_token")
# The other settings of the tokenizer name a file of this machine, or drop words by chance.
_PLAIN_TOKENIZER = ("clean", "additional_special_tokens")


# --- images -----------------------------------------------------------------------------------------------------------


def open_clip_preprocess(size: Any, published: object) -> dict[str, object]:
    """Return open_clip's whole ``PreprocessCfg`` as plain JSON.

    Args:
        size: of the images that the model takes, a number or height and width.
        published: what a folder or a tag says of it, a mapping; what it leaves out is the library's default.
    """
    if not isinstance(published, Mapping):
        raise InputError(f"the preprocess_cfg is no object but {shown(published)}")
    settings = merge_preprocess_dict(PreprocessCfg(), published)
    settings["size"] = [size, size] if isinstance(size, int) else size
    for key in ("mean", "std"):
        value = settings[key]
        if isinstance(value, (int, float)):  # one number for all channels
            settings[key] = [value] * 3
    plain = json.loads(json.dumps(settings))  # tuples become lists
    return {"kind": "image", **plain}


def published_preprocess(preprocess: Preprocessing) -> Preprocessing:
    """Return the part of :func:`open_clip_preprocess` that is open_clip's own."""
    published = {}
    for key in _FIELDS:
        published[key] = preprocess[key]
    return published


def size_of_images(preprocess: Preprocessing) -> list[int]:
    """Return the size ``[3, height, width]`` of the images that a model is given."""
    size = integers_in(preprocess, "size", "the preprocessing")
    return [3, *size]


def open_clip_collate(preprocess: Preprocessing) -> Callable[[list[Any]], Tensor]:
    """Return open_clip's own evaluation transform, from a list of PIL images to pixels ``[B, 3, H, W]``.

    As there, an image is resized in its own mode before it becomes RGB. Only 16-bit images are made 8-bit first,
    because Pillow would clip them.

    Raises:
        InputError: for settings that the library does not take.
    """
    problems = _problems_of_images(preprocess)
    if problems:
        raise InputError(f"open_clip cannot preprocess images so: {problems[0]}", problems=problems)
    # JSON has no tuples, which open_clip wants.
    fields: dict[str, object] = {}
    for key, value in published_preprocess(preprocess).items():
        fields[key] = tuple(value) if isinstance(value, list) else value
    with refused_as(f"open_clip cannot preprocess images with {shown(fields, 200)}"):
        transform = image_transform_v2(PreprocessCfg(**fields), is_train=False)
        example = transform(Image.new("RGB", (8, 8)))  # what it checks only when it meets an image
    shape = list(example.shape)
    expected = size_of_images(preprocess)
    if shape != expected:
        raise InputError(f"open_clip makes images of {shape}, the checkpoint says {expected}")
    return stacked(transform, _in_eight_bits)


def _in_eight_bits(image: Image.Image) -> Image.Image:
    """Return a 16-bit image as RGB, any other as it is."""
    if image.mode.startswith("I;16"):
        return in_mode(image, "RGB")
    return image


def _problems_of_images(preprocess: Preprocessing) -> list[str]:
    """List what open_clip does not take of a preprocessing of images, which comes from a file and may hold anything."""
    if preprocess.get("kind") != "image":
        return [f"it is not of images but of {shown(preprocess.get('kind'))}"]
    missing = [key for key in _FIELDS if key not in preprocess]
    if missing:
        return [f"it lacks {', '.join(missing)}"]
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
    """Return whether these are a finite number for each of red, green and blue."""
    if not isinstance(values, list) or len(values) != 3:
        return False
    return all(map(_is_finite_number, values))


def _is_finite_number(value: object) -> bool:
    """Return whether a value of a file is a number, and neither infinite nor NaN."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return math.isfinite(value)


# --- prompts ----------------------------------------------------------------------------------------------------------


def text_cfg_of(config: LibraryConfig) -> LibraryConfig:
    """Return the settings of the tower of texts, whose values open_clip itself checks.

    Raises:
        InputError: for a configuration without them.
    """
    return object_in(config, "text_cfg", "the configuration of the model")


def own_tokenizer(config: LibraryConfig) -> bool:
    """Return whether texts are read by open_clip's own SimpleTokenizer, not by one of transformers."""
    text_cfg = text_cfg_of(config)
    return not text_cfg.get("hf_tokenizer_name")


def text_settings(folder: Path, config: LibraryConfig) -> TextPreprocessing:
    """Read the tokenizer of transformers in a folder, for a text tower that is given its tokens.

    Args:
        folder: of the published model.
        config: of the model, whose texts have a fixed number of tokens.

    Raises:
        InputError: for a folder without one, and for one of another model.
    """
    text_cfg = text_cfg_of(config)
    _hf_settings(text_cfg)
    if text_cfg.get("hf_model_name"):
        hf_config: Any = config["hf_config"]
        vocabulary = hf_config["vocab_size"]
    else:
        vocabulary = _number_in(text_cfg, "vocab_size", VOCABULARY)
    length = _number_in(text_cfg, "context_length", CONTEXT_LENGTH)
    texts = text_preprocess(folder, positions=length, vocabulary=vocabulary, always=("input_ids",))
    # The library asks no tokenizer how long a text may be.
    texts["max_length"] = length
    texts["tokenizer"]["model_max_length"] = length
    return texts


def _number_in(text_cfg: LibraryConfig, key: str, default: int) -> int:
    """Return a whole number of the tower of texts, or the library's default."""
    if key not in text_cfg:
        return default
    return integer_in(text_cfg, key, "text_cfg")


def _hf_settings(text_cfg: LibraryConfig) -> LibraryConfig:
    """Return the settings of open_clip's ``HFTokenizer``.

    Raises:
        InputError: for settings that are not followed here.
    """
    settings = text_cfg.get("tokenizer_kwargs") or {}
    if isinstance(settings, Mapping) and _are_followed(settings):
        return settings
    names = ", ".join(_HF_TOKENIZER)
    ways = ", ".join(_CLEANED)
    hint = f"supported: {names}, to clean by {ways}"
    raise InputError(f"the settings of its HFTokenizer are not supported: {shown(settings)}", hint=hint)


def _are_followed(settings: LibraryConfig) -> bool:
    """Return whether these settings of an ``HFTokenizer`` are followed here."""
    has_others = not set(settings) <= set(_HF_TOKENIZER)
    if has_others:
        return False
    return settings.get("clean", "whitespace") in _CLEANED


def cleaned(config: LibraryConfig, texts: Sequence[str]) -> list[str]:
    """Return texts as open_clip gives them to a tokenizer of transformers."""
    settings = _hf_settings(text_cfg_of(config))
    way = settings.get("clean", "whitespace")
    clean = get_clean_fn(way)
    return [clean(text) for text in texts]


def tokens_of(config: LibraryConfig, preprocess: Preprocessing, texts: Sequence[str]) -> Tensor:
    """Return tokens int64 ``[len(texts), context_length]``, by open_clip's own tokenizer or as its ``HFTokenizer``.

    Args:
        config: of the model, which says by which.
        preprocess: of the model, whose ``texts`` describe a tokenizer of transformers.
        texts: as they are.
    """
    if own_tokenizer(config):
        tokenize = simple_tokenizer(config)
        return tokenize(list(texts))
    stored = preprocess.get("texts")
    tokens = prompt_tokens(stored, cleaned(config, texts), full_length=True)
    ids = tokens["input_ids"]
    settings = _hf_settings(text_cfg_of(config))
    if settings.get("strip_sep_token"):
        separator = stored_tokenizer(stored).sep_token_id
        ids = torch.where(ids == separator, 0, ids)
    return ids


def simple_tokenizer(config: LibraryConfig) -> Any:
    """Build open_clip's own tokenizer with the settings of a model.

    Raises:
        InputError: for settings that are not plain.
    """
    text_cfg = text_cfg_of(config)
    settings = text_cfg.get("tokenizer_kwargs") or {}
    if not isinstance(settings, Mapping):
        raise _foreign_settings([shown(settings)])
    foreign = set(settings) - set(_PLAIN_TOKENIZER)
    if foreign:
        raise _foreign_settings(sorted(foreign))
    length = text_cfg.get("context_length", CONTEXT_LENGTH)
    return _build_simple_tokenizer({**settings, "context_length": length})


def _foreign_settings(foreign: Sequence[str]) -> InputError:
    """Return the refusal of settings of a SimpleTokenizer that are not plain."""
    listed = ", ".join(map(str, foreign))
    supported = ", ".join(_PLAIN_TOKENIZER)
    return InputError(
        f"the settings of its SimpleTokenizer are not supported: {listed}", hint=f"supported: {supported}"
    )


@cached_by_config
def _build_simple_tokenizer(settings: LibraryConfig) -> Any:
    """Build open_clip's own tokenizer, once for each settings.

    Raises:
        InputError: for settings that open_clip does not take.
    """
    try:
        return open_clip.SimpleTokenizer(**settings)
    except Exception as error:
        text = shown(canonical_json(settings), 200)
        raise InputError(f"open_clip cannot make a SimpleTokenizer of {text}") from error


def pooled_at(text: Tensor, pool: str, eos: int | None) -> Tensor:
    """Return the positions of the tokens that are pooled, ``[...]`` for tokens ``[..., L]``.

    Args:
        text: the tokens.
        pool: ``argmax`` (the highest token, the end of a text) or ``eos``.
        eos: the token that ``eos`` pools at, the first one of it.
    """
    if pool == "argmax":
        return text.argmax(dim=-1)
    end = -1
    if eos is not None:
        end = eos
    is_end = torch.eq(text, end)
    return is_end.int().argmax(dim=-1)
