"""open_clip's CLIP: two towers, of images and of texts; classes are given by name."""

from __future__ import annotations

import copy
import dataclasses
import difflib
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
from open_clip.transformer import ResidualAttentionBlock
from torch import Tensor, nn

from hydractl.errors import InputError, UsageError
from hydractl.families import timm
from hydractl.families.base import AttentionLayout, ImageFormat, LoadedModel, ModelFamily, MultiheadStandIn, Stages
from hydractl.families.config_json import LibraryConfig, Preprocessing, object_in, object_or_empty
from hydractl.families.hf import family as hf
from hydractl.families.hf.texts import TOKENIZER_FILES, text_collate, write_tokenizer
from hydractl.families.open_clip.hf_text import LAYOUT, TRANSFORMER, hf_config_in, hf_text, is_of_transformers
from hydractl.families.open_clip.inputs import (
    cleaned,
    open_clip_collate,
    open_clip_preprocess,
    own_tokenizer,
    pooled_at,
    published_preprocess,
    simple_tokenizer,
    size_of_images,
    text_cfg_of,
    text_settings,
    tokens_of,
)
from hydractl.families.open_clip.models import (
    DECODER,
    SECTIONS,
    TRUNK,
    blocks_of,
    drawn_clip,
    skeleton,
    text_tower,
    towers_of_coca,
)
from hydractl.families.open_clip.stages import text_stages, visual_stages
from hydractl.families.pixels import random_pixels
from hydractl.families.prompts import filled_templates, scaled_cosines
from hydractl.families.reading import from_hub, published_weights, read_config, refuse_options, write_config
from hydractl.files.checkpoint import DictTensors, MappedTensors, TensorSource
from hydractl.heads.mask import Site

_TOP = ("embed_dim", "quick_gelu", "custom_text", "init_logit_scale", "init_logit_bias", "nonscalar_logit_scale")
_BLOCK = r"(visual\.|text\.)?transformer\.resblocks\.\d+\."


class OpenClip(ModelFamily):
    """open_clip's ``CLIP`` and ``CustomTextCLIP`` with the library's own transformers in both towers."""

    name = "open_clip"
    scaled = timm.FAMILY.scaled
    version = open_clip.__version__
    priority = 1  # its folders often hold the config.json of another library as well
    builds_by_name = True
    attention = AttentionLayout(("in_proj_",), "out_proj", q_norm="ln_q", k_norm="ln_k")
    parts = {  # noqa: RUF012 - as the protocol declares it
        "attention": rf"{_BLOCK}attn\.",
        "mlp": rf"{_BLOCK}mlp\.",
        "norm": rf"{_BLOCK}ln_(1|2|attn)\.|visual\.ln_(pre|post)\.|(text\.)?ln_final\.",
        "embed": r"visual\.(conv1\.|class_embedding$)|((visual|text)\.)?positional_embedding$"
        r"|(text\.)?token_embedding\.|text\.cls_emb$",
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
        """Load a folder with ``open_clip_config.json`` and ``open_clip_model.safetensors``; None for any other.

        Of a CoCa the two towers are taken, and the decoder that writes captions is left out.

        Raises:
            InputError: for a model that cannot be taken apart, or pickled weights.
        """
        published = read_config(folder / CONFIG)
        if published is None:
            return None
        published_config = published.get("model_cfg")
        if not isinstance(published_config, dict):
            raise InputError(f"{folder / CONFIG} has no model_cfg")
        is_coca = "multimodal_cfg" in published_config
        config = towers_of_coca(published_config)
        hf_name = object_or_empty(config, "text_cfg").get("hf_model_name")
        if isinstance(hf_name, str):
            config["hf_config"] = hf_config_in(folder, hf_name)
        model = skeleton(config)
        weights = folder / WEIGHTS
        hint = (
            "hydractl never opens pickles; where you trust them: safetensors.torch.save_file("
            f"open_clip.create_model('local-dir:{folder}', require_pretrained=True).state_dict(), '{weights}')"
        )
        tensors: TensorSource = published_weights(weights, hint)
        if is_coca:
            names = [name for name in tensors.names() if not name.startswith(DECODER)]
            infos = {name: tensors.info(name) for name in names}
            tensors = MappedTensors(infos, tensors.read)
        preprocess = open_clip_preprocess(model.visual.image_size, published.get("preprocess_cfg") or {})
        if not own_tokenizer(config):
            preprocess["texts"] = text_settings(folder, config)
        return LoadedModel(
            arch=_arch_of(config),
            config=config,
            tensors=tensors,
            preprocess=preprocess,
            labels=None,
            left=[f"{DECODER}*"] if is_coca else (),
        )

    def known_names(self) -> Sequence[str]:
        """Return the architectures of open_clip."""
        return tuple(open_clip.list_models())

    def load_name(self, name: str, options: Mapping[str, object], seed: int) -> LoadedModel:
        """Load ``open_clip:ARCH/TAG`` from the hub, or random weights with ``pretrained=0`` and any model setting.

        Random weights take a tag too, which then only says how images are prepared and which activation is used.

        Args:
            name: ``ARCH/TAG``.
            options: ``pretrained``, and settings of the model, which only random weights take.
            seed: of random weights.

        Raises:
            InputError: for an unknown name, weights that are published as a pickle only, or an activation that is in
                doubt.
            UsageError: for options that are none of the model's.
        """
        options = dict(options)
        if not options.pop("pretrained", True):
            return self._with_random_weights(name, options, seed)
        hint = "add pretrained=0 to start from random weights"
        refuse_options(f"open_clip:{name} with pretrained weights", options, hint)
        arch, _, tag = name.partition("/")
        config = _known_config(arch)
        published = _published_entry(arch, tag)
        if not text_cfg_of(config).get("hf_model_name"):
            skeleton(config)  # refuses what cannot be used before anything is fetched
        repo, file = os.path.split(str(published.get("hf_hub", "")))
        if not repo or file:
            raise InputError(
                f"open_clip:{name} is published as a pickle only, which hydractl never opens",
                hint=f"where you trust it, make a folder of {CONFIG} and, from its state_dict, {WEIGHTS}",
            )
        optional: tuple[str, ...] = ()
        if not own_tokenizer(config):
            optional = (*TOKENIZER_FILES, "config.json")
        loaded = from_hub(repo, self.load_folder, [CONFIG, WEIGHTS], optional)
        if loaded is None:
            raise InputError(f"{repo} is not a model of open_clip: its {CONFIG} is no object")
        # A model with the other activation runs, and is wrong by a few per cent.
        quick_in_folder = bool(loaded.config.get("quick_gelu"))
        quick_in_library = bool(published.get("quick_gelu"))
        if quick_in_folder != quick_in_library:
            raise InputError(
                f"open_clip and {repo} disagree on the activation of {name} (quick_gelu)",
                hint=f"give a local folder with the {CONFIG} you trust",
            )
        return loaded

    def _with_random_weights(self, name: str, options: Mapping[str, object], seed: int) -> LoadedModel:
        """Return a model with random weights, drawn by ``seed``, and settings that differ from those of its name.

        Raises:
            InputError: for a model with a tokenizer that only a published folder brings along.
            UsageError: for a setting that it does not have.
        """
        arch, _, tag = name.partition("/")
        config = _known_config(arch)
        published: Mapping[str, object] = {}
        if tag:
            published = _published_entry(arch, tag)
        if published.get("quick_gelu"):
            config["quick_gelu"] = True
        config = _with_settings(config, options, name)
        if not own_tokenizer(config):
            raise InputError(
                f"open_clip:{name} reads texts by a tokenizer of transformers, which random weights do not come with: "
                f"{text_cfg_of(config)['hf_tokenizer_name']}",
                hint="open a folder of model and tokenizer",
            )
        model = skeleton(config)
        return LoadedModel(
            arch=_arch_of(config),
            config=config,
            tensors=DictTensors(self.initial(config, seed)),
            preprocess=open_clip_preprocess(model.visual.image_size, published),
            labels=None,
        )

    def export_folder(
        self, folder: Path, config: LibraryConfig, preprocess: Preprocessing, labels: Sequence[str] | None
    ) -> str:
        """Write ``open_clip_config.json``; the weights belong into ``open_clip_model.safetensors``.

        For towers and tokenizers of transformers, what transformers reads of them is written beside it. open_clip's own
        tokenizer comes with the library, and its folders know no class names.
        """
        published = dict(config)
        published.pop("hf_config", None)
        document = {"model_cfg": published, "preprocess_cfg": published_preprocess(preprocess)}
        write_config(folder / CONFIG, document)
        if "hf_config" in config:
            hf_config = object_in(config, "hf_config", "the configuration of the model")
            write_config(folder / "config.json", hf_config)
        if "texts" in preprocess:
            write_tokenizer(folder, preprocess["texts"])
        return WEIGHTS

    # --- structure ----------------------------------------------------------------------------------------------------

    def build(self, config: LibraryConfig) -> nn.Module:
        """Build the library's model with its parameters on the meta device and its causal mask real."""
        model = skeleton(config)
        return copy.deepcopy(model)

    def sites(self, config: LibraryConfig) -> list[Site]:
        """Return the attention blocks (sites) in model order: those of the image tower, then those of the text tower.

        Their paths are ``visual.transformer.resblocks.0.attn`` or ``visual.trunk.blocks.0.attn`` and so on, then
        ``transformer.resblocks.0.attn`` or those of a text tower of transformers.
        """
        model = skeleton(config)
        sites = []
        trunk = getattr(model.visual, "trunk", None)  # an image tower of timm
        if trunk is not None:
            for site in timm.timm_sites(trunk):
                path = f"{TRUNK}{site.path}"
                sites.append(dataclasses.replace(site, path=path, tower="visual"))
        for path, block in blocks_of(model):
            if is_of_transformers(path):
                site = _site_of_transformers(path, block)
            else:
                site = _site_of_block(path, block)
            sites.append(site)
        return sites

    def classes(self, config: LibraryConfig) -> None:
        """Return None: the classes are given by name."""
        return None

    def prompts(
        self, config: LibraryConfig, preprocess: Preprocessing, labels: Sequence[str], templates: Sequence[str]
    ) -> Mapping[str, Tensor]:
        """Return ``{"text": [classes, templates, tokens]}``, by open_clip's own tokenizer.

        Where no token behind the end of a text counts (a causal tower that pools there), what lies behind the longest
        of these texts is left out: the features are the same, for a small part of the work.
        """
        texts = filled_templates(labels, templates)
        tokens = tokens_of(config, preprocess, texts)  # [classes * templates, tokens]
        model = skeleton(config)
        is_of_open_clip = own_tokenizer(config) and hf_text(model) is None
        if is_of_open_clip:
            tower = text_tower(model)
            if tower.ends_early:
                ends = pooled_at(tokens, tower.pool, tower.eos)
                longest = int(ends.max()) + 1
                tokens = tokens[:, :longest]
        by_class = tokens.reshape(len(labels), len(templates), -1)
        return {"text": by_class}

    def layout(self, site: Site) -> AttentionLayout:
        """Return the layout; for a tower of another library, that of the family of that library."""
        if is_of_transformers(site.path):
            return LAYOUT.heads
        if site.path.startswith(TRUNK):
            return timm.FAMILY.layout(site)
        return self.attention

    def part(self, name: str, sites: Sequence[Site]) -> str:
        """Return the part; for a tower of another library, that of the family of that library."""
        if is_of_transformers(name):
            inside = name.removeprefix(TRANSFORMER)
            return hf.FAMILY.part(f"bert.{inside}", sites)
        if name.startswith(TRUNK):
            inside = name.removeprefix(TRUNK)
            return timm.FAMILY.part(inside, sites)
        return super().part(name, sites)

    def dropouts(self, model: nn.Module, site: Site) -> tuple[float, float]:
        """Return the dropout rates of the attention weights and of the output; open_clip's configurations set none."""
        if site.path.startswith(TRUNK):
            return timm.FAMILY.dropouts(model, site)
        if is_of_transformers(site.path):
            return hf.dropouts_of(model, site.path, LAYOUT)
        attention: Any = model.get_submodule(site.path)
        if isinstance(attention, nn.MultiheadAttention):
            return attention.dropout, 0.0
        return attention.attn_drop.p, attention.out_drop.p

    def install(self, model: nn.Module, site: Site, attention: nn.Module) -> None:
        """Replace the library's attention module at a site; in a tower of another library, as its family does."""
        if site.path.startswith(TRUNK):
            site_in_trunk = dataclasses.replace(site, path=site.path.removeprefix(TRUNK))
            timm.FAMILY.install(model.visual.trunk, site_in_trunk, attention)  # type: ignore[union-attr,arg-type]
            return
        if is_of_transformers(site.path):
            hf.put_in_place(model, site.path, LAYOUT, attention)
            return
        block = model.get_submodule(site.path.removesuffix(".attn"))
        if isinstance(block, ResidualAttentionBlock):  # which calls nn.MultiheadAttention
            attention = MultiheadStandIn(attention)
        super().install(model, site, attention)

    def stages(self, model: Any) -> list[Stages]:
        """Cut the model into the visual tower, which reads images, and the text tower, which reads prompts."""
        images = visual_stages(model)
        texts = text_stages(model)
        return [images, texts]

    def logits(self, model: Any, outputs: Sequence[Tensor]) -> Tensor:
        """Return ``[B, classes]``: scaled (and shifted) cosines of images ``[B, D]`` and classes ``[classes, D]``."""
        images, classes = outputs
        return scaled_cosines(model, images, classes)

    def sample_features(self, model: Any, inputs: Tensor) -> Tensor:
        """Compute normalised features by ``encode_image``."""
        return model.encode_image(inputs, normalize=True)

    # --- data ---------------------------------------------------------------------------------------------------------

    def collate(self, preprocess: Preprocessing) -> Callable[[list[Any]], Tensor]:
        """Return open_clip's own evaluation transform on PIL images, which gives ``[B, 3, H, W]``."""
        if "texts" in preprocess:
            text_collate(preprocess["texts"])  # refuses what it does not understand
        return open_clip_collate(preprocess)

    def example_inputs(self, preprocess: Preprocessing, batch: int, seed: int) -> Tensor:
        """Draw standard normal pixels ``[B, 3, H, W]``."""
        size = size_of_images(preprocess)
        return random_pixels(size, batch, seed)

    # --- training -----------------------------------------------------------------------------------------------------

    def image_format(self, preprocess: Preprocessing) -> ImageFormat:
        """Read the image format off open_clip's ``PreprocessCfg``."""
        image_format = ImageFormat.of_preprocessing(size_of_images(preprocess), preprocess)
        _, height, width = image_format.size
        mode = preprocess.get("resize_mode", "shortest")
        if mode == "squash":
            return image_format.resized("squash")
        if mode == "shortest" and height == width:
            return image_format.resized("shorter", height)
        return image_format

    def drawn(self, config: LibraryConfig) -> nn.Module:
        """Draw weights by open_clip's own initialisation."""
        skeleton(config)  # refuses what cannot be built
        return drawn_clip(config)

    def too_long(self, config: LibraryConfig, preprocess: Preprocessing, texts: Sequence[str]) -> tuple[int, int]:
        """Count by open_clip's own tokenizer or that of the checkpoint, whose marks of start and end count."""
        if not own_tokenizer(config):
            collate = text_collate(preprocess["texts"])
            return collate.cut(cleaned(config, texts)), collate.max_length
        tokenizer = simple_tokenizer(config)
        most_tokens = tokenizer.context_length
        count = 0
        for text in texts:
            tokens = len(tokenizer.encode(text)) + 2  # and the marks of its start and end
            if tokens > most_tokens:
                count += 1
        return count, most_tokens

    def judges_each_pair(self, model: Any) -> bool:
        """Return whether the logits have a bias: such a model is one of SigLIP's."""
        return model.logit_bias is not None

    def bound_scale(self, model: Any) -> None:
        """Keep the scale between 1 and 100, as ``open_clip_train`` does after each step."""
        if model.logit_scale.requires_grad:
            with torch.no_grad():
                model.logit_scale.clamp_(0, math.log(100))

    # --- MC dropout ---------------------------------------------------------------------------------------------------

    adds_dropout = True

    def add_dropout(self, model: Any, rate: float) -> None:
        """Put dropout behind ``ls_1`` and ``ls_2`` of the visual blocks (``drop_path1`` and ``drop_path2`` of timm's).

        The outputs of these are added to the residual stream.
        """
        tower = visual_stages(model)
        is_of_timm = tower.stem_prefixes[0].startswith(TRUNK)
        names = ("ls_1", "ls_2")
        if is_of_timm:
            names = ("drop_path1", "drop_path2")
        for path in tower.block_paths:
            block = model.get_submodule(path)
            for name in names:
                module = getattr(block, name)
                dropout = nn.Dropout(rate).eval()
                setattr(block, name, nn.Sequential(module, dropout))


# --- sites ------------------------------------------------------------------------------------------------------------


def _site_of_block(path: str, block: Any) -> Site:
    """Return the site of one of open_clip's own blocks."""
    width = block.attn.out_proj.in_features
    heads = block.attn.num_heads
    return Site(
        f"{path}.attn",
        heads=heads,
        head_dim=width // heads,
        d_model=width,
        tower="visual" if path.startswith("visual.") else "text",
    )


def _site_of_transformers(path: str, block: Any) -> Site:
    """Return the site of one layer of a text tower of transformers."""
    attention = block.attention.self
    return Site(
        f"{path}.{LAYOUT.block}",
        heads=attention.num_attention_heads,
        head_dim=attention.attention_head_size,
        d_model=block.attention.output.dense.out_features,
        tower="text",
    )


# --- architectures by name --------------------------------------------------------------------------------------------


def _known_config(arch: str) -> dict[str, object]:
    """Return the configuration of one of open_clip's architectures.

    Raises:
        InputError: for an unknown one, with names near to it.
    """
    known = open_clip.list_models()
    if arch not in known:
        name_by_lower = {name.lower(): name for name in known}
        matches = difflib.get_close_matches(arch.lower(), name_by_lower, 5)
        near = [name_by_lower[match] for match in matches]
        hint = "list them with: python -c 'import open_clip; print(open_clip.list_models())'"
        if near:
            hint = f"near names: {', '.join(near)}"
        raise InputError(f"open_clip {open_clip.__version__} has no architecture {arch!r}", hint=hint)
    config = open_clip.get_model_config(arch)
    return towers_of_coca(config)


def _published_entry(arch: str, tag: str) -> Mapping[str, object]:
    """Return open_clip's entry for a pretrained tag: the location of the weights and the preprocessing.

    Raises:
        InputError: there is none, or no tag was given.
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


def _with_settings(config: LibraryConfig, options: Mapping[str, object], name: str) -> dict[str, object]:
    """Return a configuration with other values of some settings.

    Args:
        config: of the model.
        options: by ``KEY``, or ``SECTION.KEY`` for those of a tower (``vision_cfg.layers``).
        name: of the model, for messages.

    Raises:
        UsageError: for settings that open_clip does not have.
    """
    known = set(_TOP)
    for section, section_class in SECTIONS.items():
        for field in dataclasses.fields(section_class):
            known.add(f"{section}.{field.name}")
    unknown = [option for option in options if option not in known]
    if unknown:
        raise UsageError(
            f"open_clip:{name} has no setting {', '.join(sorted(unknown))}",
            hint="write them as open_clip does: embed_dim=128&vision_cfg.layers=6&text_cfg.width=256",
        )
    changed = dict(config)
    for option, value in options.items():
        section, _, key = option.rpartition(".")
        if section:
            changed[section] = {**object_or_empty(changed, section), key: value}
        else:
            changed[key] = value
    return changed


def _arch_of(config: LibraryConfig) -> str:
    """Return the name that open_clip gives to this architecture, else that of its class."""
    complete = _with_defaults(config)
    for name, known in _known_architectures().items():
        if known == complete:
            return name
    return "CustomTextCLIP" if config.get("custom_text") else "CLIP"


@cache
def _known_architectures() -> dict[str, LibraryConfig]:
    """Return the configurations of open_clip's architectures by name, as :func:`_with_defaults` has them."""
    configs = {}
    for name in open_clip.list_models():
        config = _known_config(name)
        configs[name] = _with_defaults(config)
    return configs


def _with_defaults(config: LibraryConfig) -> LibraryConfig:
    """Return a configuration in which every setting is there, so that two of the same model are equal."""
    complete = {}
    for key, value in config.items():
        is_set = value not in (None, False)
        if is_set and key != "hf_config":
            complete[key] = value
    for section, section_class in SECTIONS.items():
        settings = section_class(**object_in(config, section, "the configuration of the model"))
        complete[section] = dataclasses.asdict(settings)
    return complete


FAMILY = OpenClip()
