"""The family of open_clip's CLIP models: an image tower and a text tower; users name the classes."""

from __future__ import annotations

import copy
import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import open_clip
import torch
from open_clip.constants import HF_CONFIG_NAME as CONFIG
from open_clip.constants import HF_SAFE_WEIGHTS_NAME as WEIGHTS
from torch import Tensor, nn

from hydractl.errors import InputError, UsageError, did_you_mean
from hydractl.families import timm
from hydractl.families.base import AttentionLayout, ImageFormat, LoadedModel, ModelFamily, Stages
from hydractl.families.config_json import LibraryConfig, Preprocessing, object_in, object_or_empty
from hydractl.families.hf.texts import TOKENIZER_FILES, text_collate, write_tokenizer
from hydractl.families.open_clip.inputs import (
    cleaned,
    open_clip_collate,
    open_clip_preprocess,
    own_tokenizer,
    published_preprocess,
    simple_tokenizer,
    size_of_images,
    text_cfg_of,
    text_settings,
    tokens_of,
)
from hydractl.families.open_clip.models import (
    SECTIONS,
    TRUNK,
    blocks_of,
    drawn_clip,
    skeleton,
    text_tower,
)
from hydractl.families.open_clip.stages import MultiheadStandIn, text_stages, visual_stages
from hydractl.families.pixels import random_pixels
from hydractl.families.prompts import filled_templates
from hydractl.families.reading import from_hub, published_weights, read_config, refuse_options, write_config
from hydractl.files.checkpoint import DictTensors
from hydractl.heads.mask import Site

_TOP = ("embed_dim", "quick_gelu", "custom_text", "init_logit_scale", "init_logit_bias", "nonscalar_logit_scale")
_BLOCK = r"(visual\.|text\.)?transformer\.resblocks\.\d+\."


class OpenClip(ModelFamily):
    """The family of open_clip's ``CLIP`` and ``CustomTextCLIP``, with its own towers, or one of timm for images."""

    name = "open_clip"
    scaled = timm.FAMILY.scaled
    version = open_clip.__version__
    priority = 1  # its folders often also have the config.json of another library
    builds_by_name = True
    attention = AttentionLayout(("in_proj_",), "out_proj")
    parts = {  # noqa: RUF012 - as the protocol declares it
        "attention": rf"{_BLOCK}attn\.",
        "mlp": rf"{_BLOCK}mlp\.",
        "norm": rf"{_BLOCK}ln_[12]\.|visual\.ln_(pre|post)\.|(text\.)?ln_final\.",
        "embed": r"visual\.(conv1\.|class_embedding$)|((visual|text)\.)?positional_embedding$"
        r"|(text\.)?token_embedding\.",
    }
    named_parts = {  # noqa: RUF012 - as the protocol declares it
        "patch": r"visual\.(conv1|trunk\.patch_embed)\.",
        "position": r"((visual|text)\.)?positional_embedding$|visual\.trunk\.pos_embed$",
        "class_token": r"visual\.(class_embedding|trunk\.(cls|reg)_token)$",
        "words": r"(text\.)?token_embedding\.",
        "layer_scale": r".*\.(ls_?[12]\.gamma|gamma_[12])$",
        "scale": r"logit_(scale|bias)$",
    }

    # --- finding a model ----------------------------------------------------------------------------------------------

    def load_folder(self, folder: Path) -> LoadedModel | None:
        """Return the model in a folder with ``open_clip_config.json`` and ``open_clip_model.safetensors``.

        Returns:
            The model, whose weights are read later; None if the folder has no ``open_clip_config.json``, or no weights
            of open_clip but those of another library.

        Raises:
            InputError: if the model is not supported, or its weights are pickled.
        """
        published = read_config(folder / CONFIG)
        if published is None:
            return None
        if _holds_weights_of_another_library(folder):
            return None
        config = published.get("model_cfg")
        if not isinstance(config, dict):
            raise InputError(f"{folder / CONFIG} has no model_cfg")
        model = skeleton(config)

        # Its weights, and how images are prepared; texts need settings unless the tokenizer is open_clip's own.
        weights = folder / WEIGHTS
        hint = (
            "hydractl never opens pickles; where you trust them: safetensors.torch.save_file("
            f"open_clip.create_model('local-dir:{folder}', require_pretrained=True).state_dict(), '{weights}')"
        )
        tensors = published_weights(weights, hint)
        preprocess = open_clip_preprocess(model.visual.image_size, published.get("preprocess_cfg") or {})
        if not own_tokenizer(config):
            preprocess["texts"] = text_settings(folder, config)
        return LoadedModel(
            arch=_arch_of(config),
            config=config,
            tensors=tensors,
            preprocess=preprocess,
            labels=None,
        )

    def load_name(self, name: str, options: Mapping[str, object], seed: int) -> LoadedModel:
        """Return the model ``open_clip:ARCH/TAG``, downloaded from the hub, or with random weights if ``pretrained=0``.

        Args:
            name: ``ARCH/TAG``, e.g. ``ViT-B-32/laion2b_s34b_b79k``. With random weights the tag is optional, and only
                decides the preprocessing of images and the activation.
            options: ``pretrained`` (on by default) and settings of the model. Only random weights allow settings.
            seed: the seed of random weights.

        Raises:
            InputError: if the name is unknown, the weights are published as a pickle only, or open_clip and the folder
                disagree about the activation.
            UsageError: if the model has no such options, or there are settings with pretrained weights.
        """
        options = dict(options)
        if not options.pop("pretrained", True):
            return self._with_random_weights(name, options, seed)
        hint = "add pretrained=0 to start from random weights"
        refuse_options(f"open_clip:{name} with pretrained weights", options, hint)

        arch, _, tag = name.partition("/")
        config = _known_config(arch)
        published = _published_entry(arch, tag)
        skeleton(config)  # checks the model before anything is downloaded

        # "ORG/NAME/" is a repository with safetensors; "ORG/NAME/FILE" is a pickle.
        repo, file = os.path.split(str(published.get("hf_hub", "")))
        if not repo or file:
            raise InputError(
                f"open_clip:{name} is published as a pickle only, which hydractl never opens",
                hint=f"where you trust it, make a folder of {CONFIG} and, from its state_dict, {WEIGHTS}",
            )
        optional = () if own_tokenizer(config) else (*TOKENIZER_FILES, "config.json")
        loaded = from_hub(repo, self.load_folder, [CONFIG, WEIGHTS], optional)

        # With the wrong activation a model would run, but its accuracy would be wrong by a few per cent.
        quick_in_folder = bool(loaded.config.get("quick_gelu"))
        quick_in_library = bool(published.get("quick_gelu"))
        if quick_in_folder != quick_in_library:
            raise InputError(
                f"open_clip and {repo} disagree on the activation of {name} (quick_gelu)",
                hint=f"give a local folder with the {CONFIG} you trust",
            )
        return loaded

    def _with_random_weights(self, name: str, options: Mapping[str, object], seed: int) -> LoadedModel:
        """Return a model with random weights.

        Args:
            name: ``ARCH`` or ``ARCH/TAG``.
            options: settings that replace those of the architecture, e.g. ``{"vision_cfg.layers": 6}``.
            seed: the seed of the weights.

        Raises:
            InputError: if the name is unknown, or the model needs a tokenizer that only a published folder has.
            UsageError: if the model has no such setting.
        """
        # The configuration: that of the architecture, with the activation of the tag and with the settings asked for.
        arch, _, tag = name.partition("/")
        config_of_arch = _known_config(arch)
        published: Mapping[str, object] = _published_entry(arch, tag) if tag else {}
        if published.get("quick_gelu"):  # the weights of this tag were trained with this activation
            config_of_arch["quick_gelu"] = True

        # Settings are named ``KEY``, or ``SECTION.KEY`` of a tower, e.g. ``vision_cfg.layers``.
        known_options = set(_TOP)
        for section, section_class in SECTIONS.items():
            for field in dataclasses.fields(section_class):
                known_options.add(f"{section}.{field.name}")
        unknown_options = [option for option in options if option not in known_options]
        if unknown_options:
            raise UsageError(
                f"open_clip:{name} has no setting {', '.join(sorted(unknown_options))}",
                hint="write them as open_clip does: embed_dim=128&vision_cfg.layers=6&text_cfg.width=256",
            )
        config = dict(config_of_arch)
        for option, value in options.items():
            section, _, key = option.rpartition(".")
            if section:
                config[section] = {**object_or_empty(config, section), key: value}
            else:
                config[key] = value

        # Texts need a tokenizer, and only open_clip's own comes with the library.
        if not own_tokenizer(config):
            raise InputError(
                f"open_clip:{name} reads texts by a tokenizer of transformers, which random weights do not come with: "
                f"{text_cfg_of(config)['hf_tokenizer_name']}",
                hint="open a folder of model and tokenizer",
            )
        model = skeleton(config)
        preprocess = open_clip_preprocess(model.visual.image_size, published)
        is_named_alone = not tag and not options
        return LoadedModel(
            arch=_arch_of(config),
            config=config,
            tensors=DictTensors(self.initial(config, seed)),
            preprocess=preprocess,
            labels=None,
            warnings=_other_uses(arch, config, preprocess) if is_named_alone else (),
        )

    def export_folder(
        self, folder: Path, config: LibraryConfig, preprocess: Preprocessing, labels: Sequence[str] | None
    ) -> str:
        """Write ``open_clip_config.json``; the weights go into ``open_clip_model.safetensors``.

        If the tokenizer is from transformers, its files are written too. open_clip's own tokenizer needs no file.
        Folders of open_clip have no place for class names, so ``labels`` is ignored.
        """
        document = {"model_cfg": dict(config), "preprocess_cfg": published_preprocess(preprocess)}
        write_config(folder / CONFIG, document)
        if "texts" in preprocess:
            write_tokenizer(folder, preprocess["texts"])
        return WEIGHTS

    # --- structure ----------------------------------------------------------------------------------------------------

    def build(self, config: LibraryConfig) -> nn.Module:
        """Build open_clip's model with parameters on the meta device and real buffers, as a copy to change."""
        return copy.deepcopy(skeleton(config))

    def sites(self, config: LibraryConfig) -> list[Site]:
        """Return the sites (attention blocks): first those of the image tower, then those of the text tower.

        Examples of paths are ``visual.transformer.resblocks.0.attn`` (open_clip's own image tower),
        ``visual.trunk.blocks.0.attn`` (timm's) and ``transformer.resblocks.0.attn`` (the text tower).
        """
        model = skeleton(config)
        sites = []
        # An image tower that is a timm model.
        trunk = getattr(model.visual, "trunk", None)
        if trunk is not None:
            for site in timm.timm_sites(trunk):
                path = f"{TRUNK}{site.path}"
                sites.append(dataclasses.replace(site, path=path, tower="visual"))
        # All other towers.
        for path, block in blocks_of(model):
            width = block.attn.out_proj.in_features
            heads = block.attn.num_heads
            sites.append(
                Site(
                    f"{path}.attn",
                    heads=heads,
                    head_dim=width // heads,
                    d_model=width,
                    tower="visual" if path.startswith("visual.") else "text",
                )
            )
        return sites

    def classes(self, config: LibraryConfig) -> None:
        """Return None: users name the classes."""
        return None

    def prompts(
        self, config: LibraryConfig, preprocess: Preprocessing, labels: Sequence[str], templates: Sequence[str]
    ) -> Mapping[str, Tensor]:
        """Return the token ids of the prompts of all classes: ``{"text": [classes, templates, tokens]}``.

        If tokens after the end of a text cannot change its features (the tower is causal and pools at the end), all
        texts are cut to the length of the longest. The features stay the same and take much less work.
        """
        texts = filled_templates(labels, templates)
        tokens = tokens_of(config, preprocess, texts)  # [classes * templates, tokens]
        if own_tokenizer(config):
            tower = text_tower(skeleton(config))
            if tower.ends_early:  # tokens after the end do not matter
                longest = int(tower.positions_read(tokens).max()) + 1
                tokens = tokens[:, :longest]
        by_class = tokens.reshape(len(labels), len(templates), -1)  # prompts of a class follow each other
        return {"text": by_class}

    def layout(self, site: Site) -> AttentionLayout:
        """Return the names of the tensors of a site; the family of timm knows those of its towers."""
        if site.path.startswith(TRUNK):
            return timm.FAMILY.layout(site)
        return self.attention

    def part(self, name: str) -> str:
        """Return the part of a tensor; for a tower of timm, the family of that library decides."""
        if name.startswith(TRUNK):
            name_in_tower = name.removeprefix(TRUNK)
            return timm.FAMILY.part(name_in_tower)
        return super().part(name)

    def dropouts(self, model: nn.Module, site: Site) -> tuple[float, float]:
        """Return the dropout rates of the attention weights and of the output; they are 0 in open_clip's own models."""
        if site.path.startswith(TRUNK):
            return timm.FAMILY.dropouts(model, site)
        attention: Any = model.get_submodule(site.path)
        return attention.dropout, 0.0

    def install(self, model: nn.Module, site: Site, attention: nn.Module) -> None:
        """Replace the attention module of a site; in a tower of timm, that library's family does it."""
        # An image tower that is a timm model. The family timm expects paths relative to it.
        if site.path.startswith(TRUNK):
            site_in_trunk = dataclasses.replace(site, path=site.path.removeprefix(TRUNK))
            timm.FAMILY.install(model.visual.trunk, site_in_trunk, attention)  # type: ignore[union-attr,arg-type]
            return
        # One of open_clip's own towers.
        super().install(model, site, MultiheadStandIn(attention))

    def stages(self, model: Any) -> list[Stages]:
        """Cut the image tower and the text tower into stem, blocks and readout."""
        return [visual_stages(model), text_stages(model)]

    def sample_features(self, model: Any, inputs: Tensor) -> Tensor:
        """Compute normalised features ``[B, D]`` of images with open_clip's ``encode_image``."""
        return model.encode_image(inputs, normalize=True)

    # --- data ---------------------------------------------------------------------------------------------------------

    def collate(self, preprocess: Preprocessing) -> Callable[[list[Any]], Tensor]:
        """Return open_clip's own transform for evaluation, from PIL images to ``[B, 3, H, W]``."""
        if "texts" in preprocess:
            text_collate(preprocess["texts"])  # only checks the tokenizer; raises an error if it is wrong
        return open_clip_collate(preprocess)

    def example_inputs(self, preprocess: Preprocessing, batch: int, seed: int) -> Tensor:
        """Draw standard normal pixels ``[B, 3, H, W]``."""
        return random_pixels(size_of_images(preprocess), batch, seed)

    # --- training -----------------------------------------------------------------------------------------------------

    def image_format(self, preprocess: Preprocessing) -> ImageFormat:
        """Return the image format that open_clip's ``PreprocessCfg`` describes."""
        image_format = ImageFormat.of_preprocessing(size_of_images(preprocess), preprocess)
        _, height, width = image_format.size
        mode = preprocess.get("resize_mode", "shortest")
        if mode == "squash":
            return image_format.resized("squash")
        if mode == "shortest" and height == width:
            return image_format.resized("shorter", height)
        return image_format

    def drawn(self, config: LibraryConfig) -> nn.Module:
        """Build the model with weights drawn by open_clip's own initialisation."""
        skeleton(config)  # only checks the model; raises an error if it is not supported
        return drawn_clip(config)

    def too_long(self, config: LibraryConfig, preprocess: Preprocessing, texts: Sequence[str]) -> tuple[int, int]:
        """Return the number of texts that are too long, and the greatest length in tokens, start and end included."""
        if not own_tokenizer(config):
            collate = text_collate(preprocess["texts"])  # a tokenizer of transformers, which says what it cuts
            return sum(collate.cut(cleaned(config, texts))), collate.max_length
        tokenizer = simple_tokenizer(config)
        most_tokens = tokenizer.context_length
        count = 0
        for text in texts:
            tokens = len(tokenizer.encode(text)) + 2  # with the tokens for start and end
            if tokens > most_tokens:
                count += 1
        return count, most_tokens

    def bound_scale(self, model: Any) -> None:
        """Clamp the scale to 1 ... 100, in place, as ``open_clip_train`` does after each step; it is a logarithm."""
        if model.logit_scale.requires_grad:
            with torch.no_grad():
                model.logit_scale.clamp_(0, math.log(100))


def _holds_weights_of_another_library(folder: Path) -> bool:
    """Return whether a folder has weights, but none by a name of open_clip."""
    of_open_clip = [path for path in folder.glob("open_clip_*") if path.name != CONFIG]
    if of_open_clip:
        return False
    others = [*folder.glob("model*.safetensors"), *folder.glob("model.safetensors.index.json")]
    return bool(others)


# --- architectures by name --------------------------------------------------------------------------------------------


def _known_config(arch: str) -> dict[str, object]:
    """Return the configuration of one of open_clip's architectures.

    Raises:
        InputError: if the name is unknown.
    """
    # Names are compared in lower case: "vit-b-32" is near "ViT-B-32".
    name_by_lower = {name.lower(): name for name in open_clip.list_models()}
    if arch not in name_by_lower.values():
        near = did_you_mean(arch.lower(), name_by_lower, written=name_by_lower.__getitem__)
        raise InputError(
            f"open_clip {open_clip.__version__} has no architecture {arch!r}{near}",
            hint="list them with: python -c 'import open_clip; print(open_clip.list_models())'",
        )
    return open_clip.get_model_config(arch)


def _published_entry(arch: str, tag: str) -> Mapping[str, object]:
    """Return open_clip's entry for published weights: their location and preprocessing.

    Args:
        arch: the architecture, e.g. ``ViT-B-32``.
        tag: the name of the weights, e.g. ``openai``; may be empty.

    Raises:
        InputError: if there is no such entry, or the tag is empty.
    """
    published = open_clip.get_pretrained_cfg(arch, tag)
    if published:
        return published
    tags = open_clip.list_pretrained_tags_by_model(arch)
    if tags:
        hint = f"open_clip:{arch}/TAG with one of {', '.join(tags)}"
    else:
        hint = f"none are published; random weights: 'open_clip:{arch}?pretrained=0'"
    problem = f"has no weights {tag!r}" if tag else "does not say which weights"
    raise InputError(f"open_clip:{arch} {problem}", hint=hint)


def _other_uses(arch: str, config: LibraryConfig, preprocess: Preprocessing) -> list[str]:
    """Return a list with one warning if weights of an architecture may need another activation or other images.

    The list is empty if all published weights of the architecture use the same. The numbers of weights do not tell for
    which activation they were trained; with the wrong one they lose a few per cent of accuracy, or nearly all.

    Args:
        arch: the name of the architecture.
        config, preprocess: as that name alone has them.
    """
    for tag in open_clip.list_pretrained_tags_by_model(arch):
        published = open_clip.get_pretrained_cfg(arch, tag)
        has_other_activation = bool(published.get("quick_gelu")) != bool(config.get("quick_gelu"))
        prepares_otherwise = open_clip_preprocess(preprocess["size"], published) != preprocess
        if has_other_activation or prepares_otherwise:
            return [
                f"open_clip:{arch} does not say which published weights these are or began as, and the activation or "
                f"the normalisation of {tag} is another: --arch open_clip:{arch}/TAG says it"
            ]
    return []


def _arch_of(config: LibraryConfig) -> str:
    """Return open_clip's name of the architecture with this configuration; if it has none, the name of the class."""
    complete = _with_defaults(config)
    for name, known_config in _known_architectures().items():
        if known_config == complete:
            return name
    return "CustomTextCLIP" if config.get("custom_text") else "CLIP"


@cache
def _known_architectures() -> dict[str, LibraryConfig]:
    """Return the configurations of open_clip's architectures by name, each completed by :func:`_with_defaults`."""
    return {name: _with_defaults(_known_config(name)) for name in open_clip.list_models()}


def _with_defaults(config: LibraryConfig) -> LibraryConfig:
    """Return a configuration in a form that is equal for equal models.

    The sections of the towers get all their default values. At the top level, entries that are None or False are left
    out, because they mean the same as missing ones.
    """
    complete = {}
    for key, value in config.items():
        if value not in (None, False):
            complete[key] = value
    for section, section_class in SECTIONS.items():
        settings = section_class(**object_in(config, section, "the configuration of the model"))
        complete[section] = dataclasses.asdict(settings)
    return complete


FAMILY = OpenClip()
