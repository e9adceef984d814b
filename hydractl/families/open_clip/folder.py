"""open_clip's models by name and by folder: weights as published, or drawn at random."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import open_clip
import torch
from open_clip.constants import HF_CONFIG_NAME as CONFIG
from open_clip.constants import HF_SAFE_WEIGHTS_NAME as WEIGHTS

from hydractl.errors import InputError, UsageError
from hydractl.families.base import LoadedModel
from hydractl.families.open_clip.inputs import image_preprocess
from hydractl.families.open_clip.models import SECTIONS, skeleton
from hydractl.families.reading import download, published_weights, read_config
from hydractl.files.checkpoint import DictTensors

_TOP = ("embed_dim", "quick_gelu", "custom_text", "init_logit_scale", "init_logit_bias", "nonscalar_logit_scale")


def open_folder(folder: Path) -> LoadedModel | None:
    """A folder with ``open_clip_config.json`` and ``open_clip_model.safetensors``; None for another library's.

    Raises:
        InputError: for a model that is not supported, or whose weights are a pickle.
    """
    published = read_config(folder / CONFIG)
    if published is None:
        return None
    config = published.get("model_cfg")
    if not isinstance(config, dict):
        raise InputError(f"{folder / CONFIG} has no model_cfg")
    model = skeleton(config)
    weights = folder / WEIGHTS
    hint = (
        "hydractl never opens pickles; where you trust them: safetensors.torch.save_file("
        f"open_clip.create_model('local-dir:{folder}', require_pretrained=True).state_dict(), '{weights}')"
    )
    return LoadedModel(
        arch=arch_of(config),
        config=config,
        tensors=published_weights(weights, hint),
        preprocess=image_preprocess(model.visual.image_size, published.get("preprocess_cfg") or {}),
        labels=None,
    )


def published_model(name: str) -> LoadedModel:
    """``ARCH/TAG`` as published on the hub: its configuration and its safetensors, nothing else.

    Raises:
        InputError: for names that open_clip does not know, pickles, and models that are not supported.
    """
    arch, _, tag = name.partition("/")
    config = known_config(arch)
    published = _published(arch, tag)
    skeleton(config)  # refuses what cannot be used before anything is fetched
    repo, file = os.path.split(published.get("hf_hub", ""))
    if not repo or file:
        raise InputError(
            f"open_clip:{name} is published as a pickle only, which hydractl never opens",
            hint=f"where you trust it, make a folder of {CONFIG} and, from its state_dict, {WEIGHTS}",
        )
    loaded = open_folder(download(repo, [CONFIG, WEIGHTS]))
    if loaded is None:
        raise InputError(f"{repo} is not a model of open_clip: its {CONFIG} is no object")
    if bool(loaded.config.get("quick_gelu")) != bool(published.get("quick_gelu")):
        # A model with the other activation runs, and is wrong by a few per cent.
        raise InputError(
            f"open_clip and {repo} disagree on the activation of {name} (quick_gelu)",
            hint=f"give a local folder with the {CONFIG} you trust",
        )
    return loaded


def random_model(name: str, options: Mapping[str, Any], seed: int) -> LoadedModel:
    """``ARCH`` or ``ARCH/TAG`` with random weights; a tag says how images are prepared and which activation is used.

    Args:
        name: of an architecture.
        options: settings of the model that are to be others, such as ``embed_dim`` or ``text_cfg.width``.
        seed: draws the weights.

    Raises:
        InputError: for names that open_clip does not know, and models that are not supported.
        UsageError: for options that are no setting of the model.
    """
    arch, _, tag = name.partition("/")
    config = known_config(arch)
    published = _published(arch, tag) if tag else {}
    if published.get("quick_gelu"):
        config["quick_gelu"] = True
    config = _changed(config, options, name)
    model = skeleton(config)
    return LoadedModel(
        arch=arch_of(config),
        config=config,
        tensors=DictTensors(drawn_weights(config, seed)),
        preprocess=image_preprocess(model.visual.image_size, published),
        labels=None,
    )


def drawn_weights(config: Mapping[str, Any], seed: int) -> dict[str, torch.Tensor]:
    """Weights as open_clip draws them for a model that is trained from scratch."""
    settings = {key: value for key, value in config.items() if key != "custom_text"}
    # The caller's own random numbers go on as if nothing had been drawn.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return dict(type(skeleton(config))(**settings).state_dict())


def known_config(arch: str) -> dict[str, Any]:
    """The configuration of one of open_clip's architectures.

    Raises:
        InputError: for an unknown one, with names near to it.
    """
    known = open_clip.list_models()
    if arch not in known:
        folded = {name.lower(): name for name in known}
        near = [folded[name] for name in difflib.get_close_matches(arch.lower(), folded, 5)]
        listing = "list them with: python -c 'import open_clip; print(open_clip.list_models())'"
        raise InputError(
            f"open_clip {open_clip.__version__} has no architecture {arch!r}",
            hint=f"near names: {', '.join(near)}" if near else listing,
        )
    return open_clip.get_model_config(arch)


def _published(arch: str, tag: str) -> Mapping[str, Any]:
    """open_clip's entry for a pretrained tag: the location of the weights and the preprocessing."""
    published = open_clip.get_pretrained_cfg(arch, tag)
    if published:
        return published
    tags = open_clip.list_pretrained_tags_by_model(arch)
    raise InputError(
        f"open_clip:{arch} has no weights {tag!r}" if tag else f"open_clip:{arch} does not say which weights",
        hint=f"open_clip:{arch}/TAG with one of {', '.join(tags)}"
        if tags
        else f"none are published; random weights: 'open_clip:{arch}?pretrained=0'",
    )


def _changed(config: Mapping[str, Any], options: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A configuration with other values."""
    result = {key: dict(value) if isinstance(value, Mapping) else value for key, value in config.items()}
    known = {(section, field.name) for section, cls in SECTIONS.items() for field in dataclasses.fields(cls)}
    known |= {("", key) for key in _TOP}
    unknown = [option for option in options if option.rpartition(".")[::2] not in known]
    if unknown:
        raise UsageError(
            f"open_clip:{name} has no setting {', '.join(sorted(unknown))}",
            hint="write them as open_clip does: embed_dim=128&vision_cfg.layers=6&text_cfg.width=256",
        )
    for option, value in options.items():
        section, _, key = option.rpartition(".")
        (result[section] if section else result)[key] = value
    return result


def arch_of(config: Mapping[str, Any]) -> str:
    """The name that open_clip gives to this architecture, else that of its class."""
    own = _filled(config)
    names = (name for name, known in _known_architectures().items() if known == own)
    return next(names, "CustomTextCLIP" if config.get("custom_text") else "CLIP")


@cache
def _known_architectures() -> dict[str, Any]:
    return {name: _filled(open_clip.get_model_config(name)) for name in open_clip.list_models()}


def _filled(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration in which every setting is there, so that two of the same model are equal."""
    filled = {key: value for key, value in config.items() if value not in (None, False)}
    return filled | {section: dataclasses.asdict(cls(**config[section])) for section, cls in SECTIONS.items()}
