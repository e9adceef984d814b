"""Inputs of open_clip's models: images by the library's own transform, prompts by its own tokenizer."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import open_clip
import torch
from open_clip.tokenizer import get_clean_fn
from open_clip.transform import PreprocessCfg, image_transform_v2, merge_preprocess_dict
from PIL import Image
from torch import Tensor

from hydractl.errors import InputError
from hydractl.families.hf.inputs import prompt_tokens, text_preprocess
from hydractl.families.hf.inputs import tokenizer_of as hf_tokenizer
from hydractl.families.pixels import images_of, in_mode, is_size
from hydractl.families.reading import kept, refused_as
from hydractl.jsonio import canonical_json, shown

_CHOICES = {
    "mode": ("RGB",),
    "interpolation": ("bicubic", "bilinear", "random"),
    "resize_mode": ("shortest", "longest", "squash"),
}
_FIELDS = tuple(field.name for field in dataclasses.fields(PreprocessCfg))
_CLEANED = ("canonicalize", "lower", "whitespace")
_HF_TOKENIZER = ("clean", "strip_sep_token")
# The other settings of the tokenizer name a file of this machine, or drop words by chance.
_PLAIN_TOKENIZER = ("clean", "additional_special_tokens")


# --- images -----------------------------------------------------------------------------------------------------------


def image_preprocess(size: Any, published: Any) -> dict[str, Any]:
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
        if isinstance(settings[key], (int, float)):  # one number for all channels
            settings[key] = [settings[key]] * 3
    return {"kind": "image", **json.loads(json.dumps(settings))}


def published_preprocess(preprocess: Mapping[str, Any]) -> dict[str, Any]:
    """The part of :func:`image_preprocess` that is open_clip's own."""
    return {key: preprocess[key] for key in _FIELDS}


def image_collate(preprocess: Mapping[str, Any]) -> Callable[[list[Any]], Tensor]:
    """Return open_clip's own evaluation transform, from a list of PIL images to pixels ``[B, 3, H, W]``.

    As there, an image is resized in its own mode before it becomes RGB. Only 16-bit images are made 8-bit first,
    because Pillow would clip them.

    Raises:
        InputError: for settings that the library does not take.
    """
    problems = _problems(preprocess)
    if problems:
        raise InputError(f"open_clip cannot preprocess images so: {problems[0]}", problems=problems)
    size = preprocess["size"]
    fields = {key: tuple(v) if isinstance(v, list) else v for key, v in published_preprocess(preprocess).items()}
    with refused_as(f"open_clip cannot preprocess images with {shown(fields, 200)}"):
        transform = image_transform_v2(PreprocessCfg(**fields), is_train=False)
        shape = list(transform(Image.new("RGB", (8, 8))).shape)  # what it checks only when it meets an image
    if shape != [3, *size]:
        raise InputError(f"open_clip makes images of {shape}, the checkpoint says {[3, *size]}")

    def eight_bit(image: Image.Image) -> Image.Image:
        return in_mode(image, "RGB") if image.mode.startswith("I;16") else image

    return lambda samples: torch.stack([transform(eight_bit(image)) for image in images_of(samples)])


def _problems(preprocess: Mapping[str, Any]) -> list[str]:
    """List the problems of the preprocessing that a file describes."""
    if preprocess.get("kind") != "image":
        return [f"it is not of images but of {shown(preprocess.get('kind'))}"]
    missing = [key for key in _FIELDS if key not in preprocess]
    if missing:
        return [f"it lacks {', '.join(missing)}"]
    problems = [
        f"its {key} is {shown(preprocess[key])}, not one of {', '.join(choices)}"
        for key, choices in _CHOICES.items()
        if preprocess[key] not in choices
    ]
    size = preprocess["size"]
    if not isinstance(size, list) or len(size) != 2 or not is_size(size):
        problems.append(f"its size is {shown(size)}, not [height, width]")
    for key in ("mean", "std"):
        values = preprocess[key]
        if not isinstance(values, list) or len(values) != 3 or not all(_is_number(v) for v in values):
            problems.append(f"its {key} is {shown(values)}, not three numbers")
        elif key == "std" and not all(v > 0 for v in values):
            problems.append(f"its std is {shown(values)}, which cannot be divided by")
    fill = preprocess["fill_color"]
    if type(fill) is not int or not 0 <= fill <= 255:
        problems.append(f"its fill_color is {shown(fill)}, not 0 to 255")
    return problems


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


# --- prompts ----------------------------------------------------------------------------------------------------------


def own_tokenizer(config: Mapping[str, Any]) -> bool:
    """Return whether texts are read by open_clip's own SimpleTokenizer, not by one of transformers."""
    return not config["text_cfg"].get("hf_tokenizer_name")


def text_settings(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Read the tokenizer of transformers in a folder, as of :func:`hydractl.families.hf.inputs.text_preprocess`.

    Raises:
        InputError: for a folder without one, and for one of another model.
    """
    text = config["text_cfg"]
    _hf_settings(text)
    length = text.get("context_length", 77)
    vocabulary = config["hf_config"]["vocab_size"] if text.get("hf_model_name") else text.get("vocab_size", 49408)
    texts = text_preprocess(folder, length, vocabulary, ("input_ids",))
    texts["max_length"] = texts["tokenizer"]["model_max_length"] = length  # the library asks no tokenizer
    return texts


def _hf_settings(text: Mapping[str, Any]) -> Mapping[str, Any]:
    settings = text.get("tokenizer_kwargs") or {}
    plain = isinstance(settings, Mapping) and set(settings) <= set(_HF_TOKENIZER)
    if not plain or settings.get("clean", "whitespace") not in _CLEANED:
        hint = f"supported: {', '.join(_HF_TOKENIZER)}, to clean by {', '.join(_CLEANED)}"
        raise InputError(f"the settings of its HFTokenizer are not supported: {shown(settings)}", hint=hint)
    return settings


def cleaned(config: Mapping[str, Any], texts: Sequence[str]) -> list[str]:
    """Return texts as open_clip gives them to a tokenizer of transformers."""
    clean = get_clean_fn(_hf_settings(config["text_cfg"]).get("clean", "whitespace"))
    return [clean(text) for text in texts]


def tokens_of(config: Mapping[str, Any], preprocess: Mapping[str, Any], texts: Sequence[str]) -> Tensor:
    """Return tokens int64 ``[len(texts), context_length]``, by open_clip's own tokenizer or as its ``HFTokenizer``."""
    if own_tokenizer(config):
        return tokenizer_of(config)(list(texts))
    ids = prompt_tokens(preprocess.get("texts"), cleaned(config, texts), whole=True)["input_ids"]
    if config["text_cfg"].get("tokenizer_kwargs", {}).get("strip_sep_token"):
        ids = torch.where(ids == hf_tokenizer(preprocess["texts"]).sep_token_id, 0, ids)
    return ids


def tokenizer_of(config: Mapping[str, Any]) -> Any:
    """Build open_clip's own tokenizer with the settings of a model.

    Raises:
        InputError: for settings that are not plain.
    """
    text = config["text_cfg"]
    settings = text.get("tokenizer_kwargs") or {}
    foreign = sorted(set(settings) - set(_PLAIN_TOKENIZER)) if isinstance(settings, Mapping) else [shown(settings)]
    if foreign:
        raise InputError(
            f"the settings of its SimpleTokenizer are not supported: {', '.join(map(str, foreign))}",
            hint=f"supported: {', '.join(_PLAIN_TOKENIZER)}",
        )
    return _tokenizer({**settings, "context_length": text.get("context_length", 77)})


@kept
def _tokenizer(settings: Mapping[str, Any]) -> Any:
    try:
        return open_clip.SimpleTokenizer(**settings)
    except Exception as error:
        text = shown(canonical_json(settings), 200)
        raise InputError(f"open_clip cannot make a SimpleTokenizer of {text}") from error


def pooled_at(text: Tensor, pool: str, eos: int | None) -> Tensor:
    """Return the token positions of ``argmax`` and ``eos`` pooling, for tokens ``[..., L]``."""
    return (text if pool == "argmax" else torch.eq(text, -1 if eos is None else eos).int()).argmax(dim=-1)
