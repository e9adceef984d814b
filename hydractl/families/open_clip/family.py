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
from hydractl.families.base import AttentionLayout, ImageFormat, LoadedModel, ModelFamily, Stages
from hydractl.families.hf import family as hf
from hydractl.families.hf.inputs import TOKENIZER_FILES, text_collate, write_tokenizer
from hydractl.families.open_clip.hf_text import LAYOUT, TRANSFORMER, hf_text, is_of_transformers
from hydractl.families.open_clip.hf_text import config_in as hf_text_config
from hydractl.families.open_clip.inputs import (
    cleaned,
    image_collate,
    image_preprocess,
    own_tokenizer,
    pooled_at,
    published_preprocess,
    text_settings,
    tokenizer_of,
    tokens_of,
)
from hydractl.families.open_clip.models import (
    DECODER,
    SECTIONS,
    TRUNK,
    blocks_of,
    library_model,
    skeleton,
    text_stages,
    text_tower,
    towers_of_coca,
    visual_stages,
)
from hydractl.families.pixels import random_pixels
from hydractl.families.prompts import filled_templates, scaled_cosines
from hydractl.families.reading import from_hub, published_weights, read_config, refuse_options, write_config
from hydractl.files.checkpoint import DictTensors, MappedTensors, TensorSource
from hydractl.heads.mask import Site

_TOP = ("embed_dim", "quick_gelu", "custom_text", "init_logit_scale", "init_logit_bias", "nonscalar_logit_scale")
_BLOCK = r"(visual\.|text\.)?transformer\.resblocks\.\d+\."


class _InPlace(nn.Module):
    """:class:`hydractl.model.attention.HeadAttention` with the call and the answer of ``nn.MultiheadAttention``."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, need_weights: bool = False, attn_mask: Tensor | None = None
    ) -> tuple[Tensor, None]:
        """Attend from ``query`` ``[M * B, T, d_model]`` to itself: the blocks give it as key and value too."""
        return self.attention(query, attn_mask=attn_mask), None


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
        """Load a folder with ``open_clip_config.json`` and ``open_clip_model.safetensors``."""
        published = read_config(folder / CONFIG)
        if published is None:
            return None
        config = published.get("model_cfg")
        if not isinstance(config, dict):
            raise InputError(f"{folder / CONFIG} has no model_cfg")
        coca, config = "multimodal_cfg" in config, towers_of_coca(config)
        if (name := (config.get("text_cfg") or {}).get("hf_model_name")) is not None:
            config["hf_config"] = hf_text_config(folder, name)
        model = skeleton(config)
        weights = folder / WEIGHTS
        hint = (
            "hydractl never opens pickles; where you trust them: safetensors.torch.save_file("
            f"open_clip.create_model('local-dir:{folder}', require_pretrained=True).state_dict(), '{weights}')"
        )
        tensors: TensorSource = published_weights(weights, hint)
        if coca:
            names = [name for name in tensors.names() if not name.startswith(DECODER)]
            tensors = MappedTensors({name: tensors.info(name) for name in names}, tensors.read)
        return LoadedModel(
            arch=_arch_of(config),
            config=config,
            tensors=tensors,
            preprocess={
                **image_preprocess(model.visual.image_size, published.get("preprocess_cfg") or {}),
                **({} if own_tokenizer(config) else {"texts": text_settings(folder, config)}),
            },
            labels=None,
            left=[f"{DECODER}*"] if coca else (),
        )

    def load_name(self, name: str, options: Mapping[str, Any], seed: int) -> LoadedModel:
        """Load ``open_clip:ARCH/TAG`` from the hub, or random weights with ``pretrained=0`` and any model setting.

        Random weights take a tag too, which then only says how images are prepared and which activation is used.
        """
        options = dict(options)
        if not options.pop("pretrained", True):
            return self._random(name, options, seed)
        hint = "add pretrained=0 to start from random weights"
        refuse_options(f"open_clip:{name} with pretrained weights", options, hint)
        arch, _, tag = name.partition("/")
        config = _known_config(arch)
        published = _published(arch, tag)
        if not config["text_cfg"].get("hf_model_name"):
            skeleton(config)  # refuses what cannot be used before anything is fetched
        repo, file = os.path.split(published.get("hf_hub", ""))
        if not repo or file:
            raise InputError(
                f"open_clip:{name} is published as a pickle only, which hydractl never opens",
                hint=f"where you trust it, make a folder of {CONFIG} and, from its state_dict, {WEIGHTS}",
            )
        others = () if own_tokenizer(config) else (*TOKENIZER_FILES, "config.json")
        loaded = from_hub(repo, self.load_folder, [CONFIG, WEIGHTS], others)
        if loaded is None:
            raise InputError(f"{repo} is not a model of open_clip: its {CONFIG} is no object")
        if bool(loaded.config.get("quick_gelu")) != bool(published.get("quick_gelu")):
            # A model with the other activation runs, and is wrong by a few per cent.
            raise InputError(
                f"open_clip and {repo} disagree on the activation of {name} (quick_gelu)",
                hint=f"give a local folder with the {CONFIG} you trust",
            )
        return loaded

    def _random(self, name: str, options: Mapping[str, Any], seed: int) -> LoadedModel:
        arch, _, tag = name.partition("/")
        config = _known_config(arch)
        published = _published(arch, tag) if tag else {}
        if published.get("quick_gelu"):
            config["quick_gelu"] = True
        config = _changed(config, options, name)
        if not own_tokenizer(config):
            raise InputError(
                f"open_clip:{name} reads texts by a tokenizer of transformers, which random weights do not come with: "
                f"{config['text_cfg']['hf_tokenizer_name']}",
                hint="open a folder of model and tokenizer",
            )
        model = skeleton(config)
        return LoadedModel(
            arch=_arch_of(config),
            config=config,
            tensors=DictTensors(self.initial(config, seed)),
            preprocess=image_preprocess(model.visual.image_size, published),
            labels=None,
        )

    def export_folder(
        self, folder: Path, config: Mapping[str, Any], preprocess: Mapping[str, Any], labels: Sequence[str] | None
    ) -> str:
        """Write ``open_clip_config.json``; the weights belong into ``open_clip_model.safetensors``.

        For towers and tokenizers of transformers, what transformers reads of them is written beside it. open_clip's own
        tokenizer comes with the library, and its folders know no class names.
        """
        published = {key: value for key, value in config.items() if key != "hf_config"}
        document = {"model_cfg": published, "preprocess_cfg": published_preprocess(preprocess)}
        write_config(folder / CONFIG, document)
        if "hf_config" in config:
            write_config(folder / "config.json", config["hf_config"])
        if "texts" in preprocess:
            write_tokenizer(folder, preprocess["texts"])
        return WEIGHTS

    # --- structure ----------------------------------------------------------------------------------------------------

    def build(self, config: Mapping[str, Any]) -> nn.Module:
        """Build the library's model with its parameters on the meta device and its causal mask real."""
        return copy.deepcopy(skeleton(config))

    def sites(self, config: Mapping[str, Any]) -> list[Site]:
        """``visual.transformer.resblocks.0.attn`` and so on, then ``transformer.resblocks.0.attn`` and so on."""
        model = skeleton(config)
        trunk = getattr(model.visual, "trunk", None)
        sites = [
            dataclasses.replace(site, path=TRUNK + site.path, tower="visual")
            for site in (() if trunk is None else timm.sites_of(trunk))
        ]
        for path, block in blocks_of(model):
            if is_of_transformers(path):
                attention, width = block.attention.self, block.attention.output.dense.out_features
                sizes = attention.num_attention_heads, attention.attention_head_size, width
                sites.append(Site(f"{path}.{LAYOUT.block}", *sizes, "text"))
                continue
            width, heads = block.attn.out_proj.in_features, block.attn.num_heads
            tower = "visual" if path.startswith("visual.") else "text"
            sites.append(Site(f"{path}.attn", heads, width // heads, width, tower))
        return sites

    def classes(self, config: Mapping[str, Any]) -> None:
        """Return None: the classes are given by name."""
        return None

    def prompts(
        self, config: Mapping[str, Any], preprocess: Mapping[str, Any], labels: Sequence[str], templates: Sequence[str]
    ) -> Mapping[str, Tensor]:
        """Return ``{"text": [classes, templates, tokens]}``, by open_clip's own tokenizer.

        Where no token behind the end of a text counts (a causal tower that pools there), what lies behind the longest
        of these texts is left out: the features are the same, for a small part of the work.
        """
        text, model = tokens_of(config, preprocess, filled_templates(labels, templates)), skeleton(config)
        if own_tokenizer(config) and not hf_text(model) and (tower := text_tower(model)).ends_early:
            text = text[:, : int(pooled_at(text, tower.pool, tower.eos).max()) + 1]
        return {"text": text.reshape(len(labels), len(templates), -1)}

    def layout(self, site: Site) -> AttentionLayout:
        """Return the layout; for a tower of another library, that of the family of that library."""
        if is_of_transformers(site.path):
            return LAYOUT.heads
        return timm.FAMILY.layout(site) if site.path.startswith(TRUNK) else self.attention

    def part(self, name: str, sites: Sequence[Site]) -> str:
        """Return the part; for a tower of another library, that of the family of that library."""
        if is_of_transformers(name):
            return hf.FAMILY.part(f"bert.{name.removeprefix(TRANSFORMER)}", sites)
        if name.startswith(TRUNK):
            return timm.FAMILY.part(name.removeprefix(TRUNK), sites)
        return super().part(name, sites)

    def dropouts(self, model: nn.Module, site: Site) -> tuple[float, float]:
        """Return the rates of the attention weights and of the output; no configuration of open_clip sets them."""
        if site.path.startswith(TRUNK):
            return timm.FAMILY.dropouts(model, site)
        if is_of_transformers(site.path):
            return hf.dropouts_of(model, site.path, LAYOUT)
        attention: Any = model.get_submodule(site.path)
        if isinstance(attention, nn.MultiheadAttention):
            return attention.dropout, 0.0
        return attention.attn_drop.p, attention.out_drop.p

    def install(self, model: nn.Module, site: Site, attention: nn.Module) -> None:
        """Replace ``resblocks.N.attn``, or ``blocks.N.attn`` of timm."""
        if site.path.startswith(TRUNK):
            inner = dataclasses.replace(site, path=site.path.removeprefix(TRUNK))
            timm.FAMILY.install(model.visual.trunk, inner, attention)  # type: ignore[union-attr,arg-type]
            return
        if is_of_transformers(site.path):
            hf.put_in_place(model, site.path, LAYOUT, attention)
            return
        block: Any = model.get_submodule(site.path.removesuffix(".attn"))
        super().install(model, site, _InPlace(attention) if isinstance(block, ResidualAttentionBlock) else attention)

    def stages(self, model: Any) -> list[Stages]:
        """The visual tower reads images, the text tower the prompts of the classes."""
        return [visual_stages(model), text_stages(model)]

    def logits(self, model: Any, outputs: Sequence[Tensor]) -> Tensor:
        """Return ``[B, classes]``: scaled (and shifted) cosines of images ``[B, D]`` and classes ``[classes, D]``."""
        return scaled_cosines(model, *outputs)

    def sample_features(self, model: Any, inputs: Tensor) -> Tensor:
        """Compute normalised features by ``encode_image``."""
        return model.encode_image(inputs, normalize=True)

    # --- data ---------------------------------------------------------------------------------------------------------

    def collate(self, preprocess: Mapping[str, Any]) -> Callable[[list[Any]], Tensor]:
        """Return open_clip's own evaluation transform on PIL images, which gives ``[B, 3, H, W]``."""
        if "texts" in preprocess:
            text_collate(preprocess["texts"])  # refuses what it does not understand
        return image_collate(preprocess)

    def example_inputs(self, preprocess: Mapping[str, Any], batch: int, seed: int) -> Tensor:
        """Draw standard normal pixels ``[B, 3, H, W]``."""
        return random_pixels((3, *preprocess["size"]), batch, seed)

    # --- training -----------------------------------------------------------------------------------------------------

    def image_format(self, preprocess: Mapping[str, Any]) -> ImageFormat:
        """Read the image format off open_clip's ``PreprocessCfg``."""
        return ImageFormat.of((3, *preprocess["size"]), preprocess)

    def drawn(self, config: Mapping[str, Any]) -> nn.Module:
        """Draw weights by open_clip's own initialisation."""
        skeleton(config)  # refuses what cannot be built
        return library_model(config)

    def too_long(
        self, config: Mapping[str, Any], preprocess: Mapping[str, Any], texts: Sequence[str]
    ) -> tuple[int, int]:
        """Count by open_clip's own tokenizer or that of the checkpoint, whose marks of start and end count."""
        if not own_tokenizer(config):
            collate = text_collate(preprocess["texts"])
            return collate.cut(cleaned(config, texts)), collate.max_length
        tokenizer = tokenizer_of(config)
        most = tokenizer.context_length
        return sum(len(tokenizer.encode(text)) + 2 > most for text in texts), most

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
        for block in map(model.get_submodule, tower.block_paths):
            for name in ("drop_path1", "drop_path2") if TRUNK in tower.stem_prefixes[0] else ("ls_1", "ls_2"):
                setattr(block, name, nn.Sequential(getattr(block, name), nn.Dropout(rate).eval()))


# --- architectures by name --------------------------------------------------------------------------------------------


def _known_config(arch: str) -> dict[str, Any]:
    """Return the configuration of one of open_clip's architectures.

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
    return towers_of_coca(open_clip.get_model_config(arch))


def _published(arch: str, tag: str) -> Mapping[str, Any]:
    """Return open_clip's entry for a pretrained tag: the location of the weights and the preprocessing."""
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
    """Return a configuration with other values."""
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


def _arch_of(config: Mapping[str, Any]) -> str:
    """Return the name that open_clip gives to this architecture, else that of its class."""
    own = _filled(config)
    names = (name for name, known in _known_architectures().items() if known == own)
    return next(names, "CustomTextCLIP" if config.get("custom_text") else "CLIP")


@cache
def _known_architectures() -> dict[str, Any]:
    return {name: _filled(_known_config(name)) for name in open_clip.list_models()}


def _filled(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration in which every setting is there, so that two of the same model are equal."""
    filled = {key: value for key, value in config.items() if value not in (None, False) and key != "hf_config"}
    return filled | {section: dataclasses.asdict(cls(**config[section])) for section, cls in SECTIONS.items()}


FAMILY = OpenClip()
