"""timm's vision transformers: ViT, DeiT and all others with ``timm.layers.Attention`` in their blocks."""

from __future__ import annotations

import contextlib
import copy
import difflib
import json
import logging
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import BatchNorm2d

from hydractl.errors import InputError, UsageError
from hydractl.families import timm_eva, timm_relative
from hydractl.families.base import AttentionLayout, ImageFormat, LoadedModel, ModelFamily, Stages, State, first_tokens
from hydractl.families.pixels import images_of, in_mode, input_size, mode_of, random_pixels
from hydractl.families.reading import (
    from_hub,
    kept,
    published_weights,
    read_config,
    refuse_options,
    refused_as,
    write_config,
)
from hydractl.families.torchvision_operators import declare_operators
from hydractl.files.checkpoint import DictTensors
from hydractl.files.header import CONVERT
from hydractl.heads.mask import Site
from hydractl.jsonio import canonical_json, shown

declare_operators()

import timm  # noqa: E402
import timm.data  # noqa: E402
from timm.layers import Attention, BatchNormAct2d  # noqa: E402
from timm.models import VisionTransformer  # noqa: E402
from timm.models._hub import save_config_for_hf  # noqa: E402
from timm.models._manipulate import reinit_non_persistent_buffers  # noqa: E402
from timm.models.deit import VisionTransformerDistilled  # noqa: E402
from timm.models.vision_transformer import ResPostBlock  # noqa: E402

_STATISTICS = r"patch_embed\..*\.(running_mean|running_var|num_batches_tracked)$"
_EMBED = ("patch_embed.", "pos_embed", "cls_token", "reg_token", "dist_token", "rel_pos_bias.", "rope.")
_PREPROCESS = ("input_size", "interpolation", "mean", "std", "crop_pct", "crop_mode")
_WEIGHTS = "model.safetensors"
_MOST_BLOCKS = 200
_RELATIVE = (timm_relative.Beit, *timm_relative.Swin)
_PLAIN_OPTION = re.compile(r"\w{1,40}=[\w.+-]{1,40}", re.ASCII)
"""An option of a model that can be written behind its name."""
# Arguments of timm's factory, not of a model; the first one would unpickle a file.
_NOT_THE_MODEL = {
    *("checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay", "pretrained_model_args", "pretrained_strict"),
    *("cache_dir", "scriptable", "exportable", "no_jit", "features_only", "device", "dtype"),
}


class TimmViT(ModelFamily):
    """timm ``VisionTransformer`` and its subclasses."""

    name = "timm"
    version = timm.__version__
    builds_by_name = True
    parts = {  # noqa: RUF012 - as the protocol declares it
        "attention": r"(layers\.\d+\.)?blocks\.\d+\.attn\.",
        "mlp": r"(layers\.\d+\.)?blocks\.\d+\.mlp\.",
        "norm": r"(layers\.\d+\.)?(blocks\.\d+\.norm[12]|downsample\.norm)\.|(norm|norm_pre|fc_norm)\.",
        "embed": rf"(?!{_STATISTICS})" + "|".join([*map(re.escape, _EMBED), r"layers\.\d+\.downsample\.reduction\."]),
    }
    scaled = {"gamma_1": "drop_path1", "gamma_2": "drop_path2"}  # noqa: RUF012 - as the protocol declares it
    named_parts = {  # noqa: RUF012 - as the protocol declares it
        "patch": r"patch_embed\.",
        "position": r"pos_embed$",
        "class_token": r"(cls|reg|dist)_token$",
        "layer_scale": r"(layers\.\d+\.)?blocks\.\d+\.(ls[12]\.gamma|gamma_[12])$",
        "head": r"head(_dist)?\.",
    }

    # --- finding a model ----------------------------------------------------------------------------------------------

    def load_folder(self, folder: Path) -> LoadedModel | None:
        """Load a folder with timm's ``config.json`` and ``model.safetensors``."""
        config = read_config(folder / "config.json")
        if config is None or "architecture" not in config:
            return None
        weights = published_weights(folder / _WEIGHTS, CONVERT)
        model = _build(config)
        return LoadedModel(
            arch=str(config["architecture"]),
            config=config,
            tensors=weights,
            preprocess=_preprocess(model, str(folder), crop=None),
            labels=_labels(model, config),
        )

    def load_name(self, name: str, options: Mapping[str, Any], seed: int) -> LoadedModel:
        """Load ``timm:NAME`` from the hub, or random weights with ``pretrained=0`` and any argument of the model."""
        options = dict(options)
        pretrained = options.pop("pretrained", True)
        if not timm.is_model(name.split(".")[0]):
            raise InputError(f"timm {timm.__version__} has no model {name!r}", hint=_near(name))
        if pretrained:
            hint = "timm would resize or redraw weights without saying so; add pretrained=0 to start from random"
            refuse_options(f"timm:{name} with pretrained weights", options, hint)
            return self._download(name)
        foreign = sorted(_NOT_THE_MODEL & set(options))
        if foreign:
            raise UsageError(f"timm:{name} takes no option {', '.join(foreign)}: only those of the model itself")
        _check_depth(name, options)
        with refused_as(f"timm cannot build {name} with {options}"):
            # The caller's own random numbers go on as if nothing had been drawn.
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                model = timm.create_model(name, pretrained=False, **options).eval()
            check_model(model)
            config = _published_config(model, options)
        return LoadedModel(
            arch=str(config["architecture"]),
            config=config,
            tensors=DictTensors(model.state_dict()),
            preprocess=_preprocess(model, name, crop=1.0 if "img_size" in options else None),
            labels=None,
        )

    def _download(self, name: str) -> LoadedModel:
        """Load the published folder of a pretrained model; safetensors only."""
        with refused_as(f"timm {timm.__version__}", hint=_tags(name)):
            cfg = timm.get_pretrained_cfg(name)
        if cfg is None or not cfg.hf_hub_id:
            raise InputError(
                f"timm:{name} has no published weights on the hub",
                hint=f"random weights: 'timm:{name}?pretrained=0'",
            )
        # timm writes "timm/" for "the repository named like this model".
        repo = cfg.hf_hub_id
        repo = f"{repo}{cfg.architecture}.{cfg.tag}" if repo.endswith("/") else repo
        loaded = from_hub(repo, self.load_folder, ["config.json", _WEIGHTS])
        if loaded is None:
            raise InputError(f"{repo} is not a timm model: its config.json names no architecture")
        return loaded

    def arch_of_script(self, arguments: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> str | None:
        """Return what ``train.py`` has made of ``--model``, ``--num-classes``, ``--model-kwargs`` and so on."""
        name = arguments.get("model")
        if not isinstance(name, str) or not timm.is_model(name.split(".")[0]):
            return None
        options = {
            "num_classes": arguments.get("num_classes"),
            "in_chans": arguments.get("in_chans"),
            "global_pool": arguments.get("gp"),
        }
        model_arguments = arguments.get("model_kwargs")
        if isinstance(model_arguments, dict):
            options |= model_arguments
        written = []
        for key, value in options.items():
            if type(value) in (int, float, bool, str) and _PLAIN_OPTION.fullmatch(f"{key}={value}"):
                written.append(f"{key}={value}")
        return f"{name}?{'&'.join(written)}" if written else name

    def preprocess_of_script(
        self, arguments: Mapping[str, Any], name: str, preprocess: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return what ``train.py`` has evaluated with, by timm's own rule; the input size is that of the model."""
        published = timm.get_pretrained_cfg(name)
        with refused_as(f"timm cannot tell how {name} was evaluated in its training"):
            resolved = timm.data.resolve_data_config(
                dict(arguments), pretrained_cfg={} if published is None else published.to_dict()
            )
        channels = preprocess["input_size"][0]
        return {
            **preprocess,
            "interpolation": resolved["interpolation"],
            "crop_pct": resolved["crop_pct"],
            "crop_mode": resolved["crop_mode"],
            "mean": _of_channels(resolved["mean"], channels, "mean", name),
            "std": _of_channels(resolved["std"], channels, "std", name),
        }

    def export_folder(
        self, folder: Path, config: Mapping[str, Any], preprocess: Mapping[str, Any], labels: Sequence[str] | None
    ) -> str:
        """Write ``config.json``; the weights belong into ``model.safetensors``."""
        config = dict(config)
        if labels is not None:
            config["label_names"] = list(labels)
        # What timm makes a transform of.
        config["pretrained_cfg"] = {**(config.get("pretrained_cfg") or {}), **preprocess}
        write_config(folder / "config.json", config)
        return _WEIGHTS

    # --- structure ----------------------------------------------------------------------------------------------------

    def build(self, config: Mapping[str, Any]) -> nn.Module:
        """Build the timm model with its parameters on the meta device."""
        return copy.deepcopy(_build(config))

    def sites(self, config: Mapping[str, Any]) -> list[Site]:
        """``blocks.0.attn`` and so on."""
        return sites_of(_build(config))

    def layout(self, site: Site) -> AttentionLayout:
        """Return the layout of this kind of attention, which is how it holds queries, keys and values."""
        return (timm_eva.LAYOUTS | timm_relative.LAYOUTS)[site.layout]

    def install(self, model: nn.Module, site: Site, attention: nn.Module) -> None:
        """Replace the attention; where it has rotary positions or tables of distances by one that hands them on."""
        if isinstance(model, timm_eva.Eva):
            attention = timm_eva.InPlace(attention, model.get_submodule(site.path), model.rope_mixed)
        elif isinstance(model, _RELATIVE):
            attention = timm_relative.InPlace(attention, model.get_submodule(site.path))
        super().install(model, site, attention)

    def classes(self, config: Mapping[str, Any]) -> int:
        """Return the number of classes of the classifier."""
        return int(_build(config).num_classes)

    def image_shape(self, config: Mapping[str, Any]) -> list[int] | None:
        """Return the image shape of the patch embedding; None where positions are stretched to any size."""
        model = _build(config)
        size = None if getattr(model, "dynamic_img_size", False) else model.patch_embed.img_size
        return None if size is None else [int(model.in_chans), *map(int, size)]

    def dropouts(self, model: nn.Module, site: Site) -> tuple[float, float]:
        """Return the rates of ``attn_drop`` and ``proj_drop``."""
        attention = model.get_submodule(site.path)
        return attention.attn_drop.p, attention.proj_drop.p  # type: ignore[union-attr,return-value]

    def stages(self, model: Any) -> list[Stages]:
        """Cut the model. Stem: everything before the blocks. Readout: final norm, pooling, classifier."""
        if isinstance(model, timm_eva.Eva):
            return timm_eva.stages(model, (*_EMBED, "norm_pre."))
        if isinstance(model, timm_relative.Swin):
            return timm_relative.stages(model, _EMBED)
        # timm's own forward_features on a copy without blocks and final norm is the stem, whatever the variant.
        stem_model = copy.copy(model)
        stem_model._modules = dict(model._modules)
        stem_model.blocks = nn.Sequential()
        stem_model.norm = nn.Identity()

        tower = Stages(
            stem=lambda images: State(stem_model.forward_features(images), timm_relative.context(model)),
            blocks=[partial(_run, block) for block in model.blocks],
            block_paths=[f"blocks.{i}" for i in range(len(model.blocks))],
            stem_prefixes=(*_EMBED, "norm_pre."),
            readout=lambda state: model.forward_head(model.norm(state.hidden)),
            attention_inputs=[partial(_attention_input, block) for block in model.blocks],
            reads=_reads(model),
            per_member=("shared_rel_pos_bias",) if getattr(model, "rel_pos_bias", None) is not None else (),
        )
        return [tower]

    # --- data ---------------------------------------------------------------------------------------------------------

    def collate(self, preprocess: Mapping[str, Any]) -> Callable[[list[Any]], Tensor]:
        """Return timm's own evaluation transform on PIL images, which gives ``[B, C, H, W]``."""
        settings: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in preprocess.items()}
        channels, height, width = input_size(preprocess)
        mode = mode_of(channels)
        with refused_as(f"timm cannot preprocess images with {shown(settings, 200)}"):
            transform = timm.data.create_transform(**settings, is_training=False)
            transform(Image.new(mode, (width, height)))  # what timm checks only when it meets an image
        return lambda samples: torch.stack([transform(in_mode(image, mode)) for image in images_of(samples)])

    def example_inputs(self, preprocess: Mapping[str, Any], batch: int, seed: int) -> Tensor:
        """Draw standard normal pixels ``[B, C, H, W]``."""
        return random_pixels(preprocess["input_size"], batch, seed)

    # --- training -----------------------------------------------------------------------------------------------------

    def image_format(self, preprocess: Mapping[str, Any]) -> ImageFormat:
        """Read the image format off timm's data configuration."""
        return ImageFormat.of(preprocess["input_size"], preprocess)

    def drawn(self, config: Mapping[str, Any]) -> nn.Module:
        """Draw weights by timm's own initialisation."""
        return _create(config)

    def with_classes(self, config: Mapping[str, Any], classes: int) -> dict[str, Any]:
        """Set ``num_classes`` wherever timm looks for it, and drop the names of the old ones."""
        changed = {key: value for key, value in config.items() if key not in ("label_names", "label_descriptions")}
        changed["num_classes"] = classes
        for part in ("model_args", "pretrained_cfg"):
            if isinstance(config.get(part), Mapping) and (part != "model_args" or "num_classes" in config[part]):
                changed[part] = {k: v for k, v in config[part].items() if not k.startswith("label_")}
                changed[part]["num_classes"] = classes
        return changed

    def with_heads(self, config: Mapping[str, Any], heads: int) -> dict[str, Any] | None:
        """Set the number of heads, with ``head_dim``, in each stage of a Swin; None for timm's other models."""
        sites = self.sites(config)
        widths = {site.path.split(".")[1]: site.head_dim for site in sites}
        stages = {"num_heads": [heads] * len(widths), "head_dim": list(widths.values())}
        small = {**config, "model_args": {**(config.get("model_args") or {}), **stages}}
        try:
            return small if self.sites(small) == [replace(site, heads=heads) for site in sites] else None
        except InputError:  # the model takes no such argument
            return None

    def narrowed(self, config: Mapping[str, Any], share: Fraction) -> dict[str, Any] | None:
        """Scale ``embed_dim`` and ``num_heads`` of a plain ViT."""
        model = _build(config)
        if not isinstance(model, VisionTransformer):
            return None
        width, heads = int(model.embed_dim * share), int(model.blocks[0].attn.num_heads * share)
        if not heads or width % heads:
            return None
        arguments = {**(config.get("model_args") or {}), "embed_dim": width, "num_heads": heads}
        return {**config, "model_args": arguments, **({"num_features": width} if "num_features" in config else {})}

    def with_dropout(self, config: Mapping[str, Any], rate: float) -> dict[str, Any]:
        """Put dropout behind every dense layer of a block but queries, keys and values, and behind positions.

        See ViT, appendix B.1.
        """
        behind = (
            ("proj_drop_rate",)
            if isinstance(_build(config), timm_relative.Swin)
            else ("proj_drop_rate", "pos_drop_rate")
        )
        arguments = {**(config.get("model_args") or {}), **dict.fromkeys(behind, rate)}
        return {**config, "model_args": arguments}


def sites_of(model: Any) -> list[Site]:
    """List the sites of a model that :func:`check_model` lets pass."""
    if isinstance(model, _RELATIVE):
        return [timm_relative.site(f"{p}.attn", block.attn) for p, block in timm_relative.blocks(model).items()]
    return [timm_eva.site(f"blocks.{i}.attn", block.attn) for i, block in enumerate(model.blocks)]


def _run(block: nn.Module, state: State) -> State:
    shared = {name: value for name, value in state.context.items() if name == "shared_rel_pos_bias"}
    return State(block(state.hidden, **shared), state.context)


def _attention_input(block: Any, state: State) -> Tensor:
    # A block with its norms behind attention and MLP gives attention the stream as it is.
    return state.hidden if isinstance(block, ResPostBlock) else block.norm1(state.hidden)


def _reads(model: Any) -> Callable[[State], Tensor] | None:
    """Return the tokens that ``forward_head`` pools: one, two with a distillation token, or all of them."""
    if isinstance(model, VisionTransformerDistilled):
        return first_tokens(2)
    return first_tokens(1) if getattr(model, "attn_pool", None) is None and model.global_pool == "token" else None


@kept
def _build(config: Mapping[str, Any]) -> Any:
    """Build the model of a configuration on the meta device."""
    with torch.device("meta"):
        model = _create(config)
    check_model(model)
    fill_buffers(model)
    return model.eval()


class _Frozen(nn.Module):
    """A norm that keeps the statistics of its checkpoint in training too."""

    def train(self, mode: bool = True) -> _Frozen:
        return super().train(False)


class _FrozenNorm(_Frozen, BatchNorm2d):
    pass


class _FrozenNormAct(_Frozen, BatchNormAct2d):
    pass


def fill_buffers(model: nn.Module) -> None:
    """Make the buffers of a model on the meta device real, by the library: they are no part of a checkpoint."""
    for module in model.modules():
        module._buffers |= {n: torch.empty_like(b, device="cpu") for n, b in module.named_buffers(recurse=False)}
        if isinstance(module, BatchNorm2d):
            module.reset_running_stats()
            module.__class__ = _FrozenNormAct if isinstance(module, BatchNormAct2d) else _FrozenNorm
    rope: Any = getattr(model, "rope", None)
    frequencies = getattr(rope, "freqs", None)
    if frequencies is not None:  # the library makes a grid where these are
        rope.freqs = nn.Parameter(torch.empty(0))
    if not timm_relative.fill_buffers(model):
        reinit_non_persistent_buffers(model)
    if frequencies is not None:
        rope.freqs = frequencies


def _create(config: Mapping[str, Any]) -> Any:
    """Build the model of a configuration, on the default device."""
    _check_depth(config.get("architecture"), config.get("model_args"))
    # A folder with only config.json is timm's public way to rebuild a model from its published configuration.
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(canonical_json(config), encoding="utf-8")
        with refused_as(f"timm {timm.__version__} cannot build {shown(config.get('architecture'))}"):
            return timm.create_model(f"local-dir:{folder}", pretrained=False)


def _check_depth(name: Any, arguments: Any) -> None:
    """Refuse blocks without end: each would be built before any is compared with the weights."""
    given = arguments if isinstance(arguments, Mapping) else {}
    depths = given.get("depths", [given.get("depth", 1)])
    depth = sum(depths) if isinstance(depths, list) and all(type(n) is int and n >= 0 for n in depths) else depths
    if type(depth) is not int or depth > _MOST_BLOCKS:
        raise InputError(f"{shown(name)} has {shown(depth)} blocks, expected at most {_MOST_BLOCKS}")


def check_model(model: Any) -> None:
    """Refuse what cannot be pruned head by head."""
    kind = type(model).__name__
    if not isinstance(model, (VisionTransformer, timm_eva.Eva, *_RELATIVE)):
        met = next((type(m) for m in model.modules() if re.search("Attn|Attention", type(m).__name__)), None)
        attention_met = f"its attention is {met.__module__}.{met.__name__}" if met else "it has no attention"
        raise InputError(
            f"timm's {kind} is not supported: {attention_met}",
            hint="supported are VisionTransformer with timm.layers.Attention (vit_*), Eva, Beit, Swin v1 and v2",
        )
    if not (timm_relative.blocks(model) if isinstance(model, _RELATIVE) else len(model.blocks)):
        raise InputError(f"{kind} has no blocks, so it has no attention heads")
    if isinstance(model, timm_eva.Eva):
        timm_eva.check(model)
    elif isinstance(model, _RELATIVE):
        timm_relative.check(model)
    else:
        _check_vit(model, kind)
    if not model.global_pool:
        raise InputError(f"{kind} pools no tokens (global_pool is empty), so it has no logits of an image")


def _check_vit(model: Any, kind: str) -> None:
    for index, block in enumerate(model.blocks):
        attention = getattr(block, "attn", None)
        if attention is None or type(attention) is not Attention:
            kind_met = "nothing" if attention is None else type(attention).__name__
            raise InputError(
                f"blocks.{index} of {kind} is a {type(block).__name__} with {kind_met} as its attn, "
                "expected timm.layers.Attention"
            )
        if not isinstance(attention.norm, nn.Identity):
            raise InputError(
                f"blocks.{index}.attn of {kind} is an Attention that normalises across heads, "
                "so its heads cannot be separated"
            )
    stem = {name for name, m in model.named_modules() if isinstance(m, BatchNorm2d) and name.startswith("patch_embed.")}
    if any(name.rpartition(".")[0] not in stem for name, _ in model.named_buffers()):
        raise InputError(f"{kind} keeps buffers outside of the norms of its patch embedding")


def _published_config(model: nn.Module, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return timm's published configuration of a model made with options, which timm before 1.0.31 does not keep.

    Rates of dropout are no part of it, as timm has it.
    """
    made = {name: value for name, value in options.items() if not name.endswith("drop_rate")}
    with tempfile.TemporaryDirectory() as folder, _quiet():
        path = Path(folder) / "config.json"
        save_config_for_hf(model, path, model_args=made)
        return json.loads(path.read_text(encoding="utf-8"))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence timm's warnings for calls whose warnings say what is handled here."""
    logger = logging.getLogger("timm")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _preprocess(model: Any, name: str, crop: float | None) -> dict[str, Any]:
    """Return timm's data configuration of a model, with the true input size and as many means as channels."""
    with _quiet():  # it warns of what is done below: one mean for all channels
        data_config = timm.data.resolve_model_data_config(model)
    size = model.patch_embed.img_size or data_config["input_size"][1:]
    channels = int(model.in_chans)
    settings = {key: data_config[key] for key in _PREPROCESS}
    settings["input_size"] = [channels, int(size[0]), int(size[1])]
    for key in ("mean", "std"):
        settings[key] = _of_channels(settings[key], channels, key, name)
    if crop is not None:
        settings["crop_pct"] = crop
    return settings


def _of_channels(values: Any, channels: int, key: str, name: str) -> list[float]:
    """Return a mean or deviation for every channel; their mean for all where there are as many as of another image."""
    if not isinstance(values, (list, tuple)) or not values or not all(map(_is_number, values)):
        raise InputError(f"the configuration of {name} has the {key} {shown(values)}, no list of numbers")
    if len(values) == channels:
        return list(values)
    mean_of_channels = round(sum(values) / len(values), 6)
    return [mean_of_channels] * channels


_LARGEST_PIXEL = 1e6  # of means and deviations, which are those of pixels


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < _LARGEST_PIXEL


def _labels(model: Any, config: Mapping[str, Any]) -> list[str] | None:
    """Return the label names of the published configuration, else of the ImageNet subset that timm infers."""
    published = config.get("pretrained_cfg")
    names = config.get("label_names") or (published.get("label_names") if isinstance(published, Mapping) else None)
    if isinstance(names, Mapping):
        numbered = [names.get(str(i)) for i in range(model.num_classes)]
        names = None if None in numbered or len(names) != len(numbered) else numbered
    if isinstance(names, list):
        return [str(name) for name in names] if len(names) == model.num_classes else None
    subset = timm.data.infer_imagenet_subset(model)
    return list(timm.data.ImageNetInfo(subset).label_names()) if subset else None


def _tags(name: str) -> str:
    base = name.split(".")[0]
    return f"published: {', '.join(timm.list_pretrained(f'{base}.*')[:5])}"


def _near(name: str) -> str:
    base = name.split(".")[0]
    known = timm.list_models(["vit_*", "deit*"])
    near = [n for n in known if n.startswith(base)][:3] or difflib.get_close_matches(base, known)
    if near:
        return f"near names: {', '.join(near)}"
    return "list them with: python -c 'import timm; print(timm.list_models())'"


FAMILY = TimmViT()
