"""timm's vision transformers: ViT, DeiT and all others with ``timm.layers.Attention`` in their blocks."""

from __future__ import annotations

import copy
import json
import math
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.errors import InputError, UsageError, did_you_mean
from hydractl.families import timm_eva, timm_relative, timm_torchvision
from hydractl.families.base import (
    AttentionLayout,
    FirstTokens,
    ImageFormat,
    LoadedModel,
    ModelFamily,
    Stages,
    State,
    for_each,
    numbered_paths,
    seeded,
)
from hydractl.families.config_json import LibraryConfig, Preprocessing, are_whole_numbers, object_or_empty
from hydractl.families.meta_device import check_tables, on_meta_device
from hydractl.families.pixels import input_size, mode_of, stacked
from hydractl.families.reading import (
    cached_by_config,
    folder_for_library,
    from_hub,
    names_only,
    published_weights,
    quiet_logger,
    read_config,
    refuse_options,
    refused_as,
    write_config,
)
from hydractl.families.torchvision_operators import declare_operators
from hydractl.files.checkpoint import DictTensors, TensorSource
from hydractl.files.header import CONVERT
from hydractl.files.state_dict import StateDict
from hydractl.heads.mask import Site
from hydractl.jsonio import shown

declare_operators()

import timm  # noqa: E402
import timm.data  # noqa: E402
from timm.layers import Attention  # noqa: E402
from timm.models import VisionTransformer  # noqa: E402
from timm.models._hub import save_config_for_hf  # noqa: E402
from timm.models._manipulate import reinit_non_persistent_buffers  # noqa: E402
from timm.models.deit import VisionTransformerDistilled  # noqa: E402

_EMBED = ("patch_embed.", "pos_embed", "cls_token", "reg_token", "dist_token")
_PREPROCESS = ("input_size", "interpolation", "mean", "std", "crop_pct", "crop_mode")
_CROP_MODES = ("center", "squash", "border")
_WEIGHTS = "model.safetensors"
_MOST_BLOCKS = 200
_MOST_TOKENS = 1 << 18  # positions of so many tokens take half a gigabyte while they are computed
_LARGEST_PIXEL = 1e6  # bound for the means and standard deviations of pixels
_RELATIVE = (timm_relative.Beit, timm_relative.SwinTransformer)
_ATTENTIONS: dict[type[nn.Module], tuple[type[nn.Module], ...]] = {
    VisionTransformer: (Attention,),
    timm_eva.Eva: (timm_eva.EvaAttention, timm_eva.AttentionRope),
    timm_relative.Beit: tuple(timm_relative.KINDS),
    timm_relative.SwinTransformer: tuple(timm_relative.KINDS),
}
"""The attention whose heads can be separated, by the class of the model."""
_SUPPORTED = "supported are VisionTransformer with timm.layers.Attention (vit_*), Eva, Beit and Swin"
_LAYOUTS = {**timm_eva.LAYOUTS, **timm_relative.LAYOUTS}
_CLASSIFIERS = ("head.weight", "head.fc.weight", "heads.head.weight")
"""The names that the weight of a classifier may have: in ViTs, in Swins, and in torchvision's models."""
# Arguments of timm's factory that are not arguments of a model; the first one would unpickle a file.
_NOT_THE_MODEL = {
    *("checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay", "pretrained_model_args", "pretrained_strict"),
    *("cache_dir", "scriptable", "exportable", "no_jit", "features_only", "device", "dtype"),
}


# Entries that say where weights are published. A model is built from its configuration alone.
_SOURCES = ("url", "file", "state_dict", "hf_hub_id", "hf_hub_filename", "source", "custom_load")


class TimmViT(ModelFamily):
    """The family of timm's ``VisionTransformer`` and its subclasses, ``Eva``, ``Beit`` and Swin."""

    name = "timm"
    version = timm.__version__
    builds_by_name = True
    parts = {  # noqa: RUF012 - as the protocol declares it
        "attention": r"(layers\.\d+\.)?blocks\.\d+\.attn\.",
        "mlp": r"(layers\.\d+\.)?blocks\.\d+\.mlp\.",
        "norm": r"(layers\.\d+\.)?(blocks\.\d+\.norm[12]|downsample\.norm)\.|(norm|norm_pre|fc_norm)\.",
        "embed": "|".join(map(re.escape, _EMBED)) + r"|layers\.\d+\.downsample\.reduction\.",
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
        """Return the model in a folder with timm's ``config.json`` and ``model.safetensors``, or None."""
        config = read_config(folder / "config.json")
        if config is None or "architecture" not in config:
            return None
        weights = published_weights(folder / _WEIGHTS, CONVERT)
        model = _meta_model(config)
        return LoadedModel(
            arch=str(config["architecture"]),
            config=config,
            tensors=weights,
            preprocess=_preprocess_of(model, str(folder), crop=None),
            labels=_class_names(model, config),
        )

    def load_name(self, name: str, options: Mapping[str, object], seed: int) -> LoadedModel:
        """Return the model ``timm:NAME``, downloaded from the hub, or with random weights if ``pretrained=0``.

        Args:
            name: timm's name of the model, with or without a tag, e.g. ``vit_tiny_patch16_224.augreg_in21k``.
            options: ``crop_pct`` and ``crop_mode`` instead of the published ones, ``pretrained`` (on by default) and
                arguments of the model. Only random weights allow arguments.
            seed: the seed of random weights.

        Raises:
            InputError: if timm does not have the model, cannot build it, or does not publish it as safetensors.
            UsageError: if the model has no such options, or there are arguments with pretrained weights.
        """
        arguments = dict(options)
        # Take the settings of the crop out of the options. timm would not refuse them: it takes a mode that it does
        # not know for ``center``, and pads where more than the image is to be cut out.
        crop: dict[str, object] = {}
        for key in ("crop_pct", "crop_mode"):
            if key in arguments:
                crop[key] = arguments.pop(key)
        share = crop.get("crop_pct", 1)
        is_share = isinstance(share, int | float) and 0 < share <= 1
        if not is_share:
            raise UsageError(f"timm:{name}: crop_pct {share} is no share of an image", hint="as in ?crop_pct=0.9")
        if crop.get("crop_mode", _CROP_MODES[0]) not in _CROP_MODES:
            raise UsageError(
                f"timm:{name}: unknown crop_mode {crop['crop_mode']}", hint=f"one of {', '.join(_CROP_MODES)}"
            )
        loaded = self._named(name, arguments, seed)
        return replace(loaded, preprocess={**loaded.preprocess, **crop})

    def _named(self, name: str, arguments: dict[str, object], seed: int) -> LoadedModel:
        """Return a model downloaded from the hub, or with random weights.

        Arguments and errors are those of :meth:`load_name`, without those of a crop. ``pretrained`` is taken out of
        ``arguments``; what is left are arguments of the model.
        """
        pretrained = arguments.pop("pretrained", True)
        if not _is_known(name):
            near = did_you_mean(name.split(".")[0], timm.list_models(["vit_*", "deit*"]), cutoff=0.4)
            raise InputError(
                f"timm {timm.__version__} has no model {name!r}{near}",
                hint="list them with: python -c 'import timm; print(timm.list_models())'",
            )
        if not pretrained:
            return _draw_weights(name, arguments, seed)

        # Pretrained weights allow no arguments: timm would silently change weights that do not fit.
        hint = "timm would resize or redraw weights without saying so; add pretrained=0 to start from random"
        refuse_options(f"timm:{name} with pretrained weights", arguments, hint)

        # The repository that timm publishes for the name, which is e.g. ARCHITECTURE.TAG.
        architecture, _, _ = name.partition(".")
        tags = timm.list_pretrained(f"{architecture}.*")
        first_tags = ", ".join(tags[:5])
        with refused_as(f"timm {timm.__version__}", hint=f"published: {first_tags}"):
            published = timm.get_pretrained_cfg(name)
        if published is None or not published.hf_hub_id:
            raise InputError(
                f"timm:{name} has no published weights on the hub",
                hint=f"random weights: 'timm:{name}?pretrained=0'",
            )
        repo = published.hf_hub_id
        if repo.endswith("/"):  # timm writes "timm/" if the repository has the name of the model
            repo += f"{published.architecture}.{published.tag}"
        return from_hub(repo, self.load_folder, ["config.json", _WEIGHTS])

    def arch_of_script(self, arguments: Mapping[str, object], shapes: Mapping[str, tuple[int, ...]]) -> str | None:
        """Return ``NAME?num_classes=N`` for a model that was trained by timm's script or torchvision's.

        N is read from the shape of the classifier, and left out if there is none. None means that ``--model`` is not a
        model of timm.
        """
        name = arguments.get("model")
        if isinstance(name, str):
            name = timm_torchvision.ARCHITECTURES.get(name, name)
        if not is_plain_name(name):
            return None
        for classifier in _CLASSIFIERS:  # the names that its weight may have
            shape = shapes.get(classifier)
            if shape:  # [N, D]
                return f"{name}?num_classes={shape[0]}"
        return f"{name}"

    def with_weights(self, loaded: LoadedModel, name: str, tensors: TensorSource) -> LoadedModel:
        """Return a model with weights of timm or torchvision, and images prepared as in their evaluation there."""
        arguments = tensors.arguments if isinstance(tensors, StateDict) else {}  # those of the training script
        published = loaded.preprocess

        # Weights of torchvision.
        if timm_torchvision.is_of_torchvision(tensors):
            by_timm_names = timm_torchvision.by_timm_names(tensors)
            sizes = timm_torchvision.evaluated(input_size(published), arguments)
            pixels = {"mean": list(timm.data.IMAGENET_DEFAULT_MEAN), "std": list(timm.data.IMAGENET_DEFAULT_STD)}
            return replace(loaded, tensors=by_timm_names, preprocess={**published, **sizes, **pixels})

        # Weights of timm, with or without the arguments of its training script.
        is_of_script = isinstance(tensors, StateDict) and tensors.script == self.name
        preprocess = self._preprocess_of_script(arguments, name, published) if is_of_script else published
        return replace(loaded, tensors=tensors, preprocess=preprocess)

    def _preprocess_of_script(
        self, arguments: Mapping[str, object], name: str, preprocess: Preprocessing
    ) -> Preprocessing:
        """Return the preprocessing that timm's ``train.py`` used for evaluation, by timm's own rule.

        The script's arguments come first, then the published configuration of the model. The input size always stays
        that of ``preprocess``.
        """
        published = timm.get_pretrained_cfg(name)
        defaults = {} if published is None else published.to_dict()
        with refused_as(f"timm cannot tell how {name} was evaluated in its training"):
            resolved = timm.data.resolve_data_config(dict(arguments), pretrained_cfg=defaults)

        # Mean and deviation may be those of RGB, while the model takes another number of channels.
        channels, _, _ = input_size(preprocess)
        return {
            **preprocess,
            "interpolation": resolved["interpolation"],
            "crop_pct": resolved["crop_pct"],
            "crop_mode": resolved["crop_mode"],
            "mean": _spread_over_channels(resolved["mean"], channels, "mean", name),
            "std": _spread_over_channels(resolved["std"], channels, "std", name),
        }

    def export_folder(
        self, folder: Path, config: LibraryConfig, preprocess: Preprocessing, labels: Sequence[str] | None
    ) -> str:
        """Write ``config.json``; the weights go into ``model.safetensors``."""
        document = dict(config)
        if labels is not None:
            document["label_names"] = list(labels)
        # timm reads its transform from this section.
        document["pretrained_cfg"] = {**object_or_empty(config, "pretrained_cfg"), **preprocess}
        write_config(folder / "config.json", document)
        return _WEIGHTS

    # --- structure ----------------------------------------------------------------------------------------------------

    def build(self, config: LibraryConfig) -> nn.Module:
        """Build timm's model on the meta device, as a copy that the caller may change."""
        return copy.deepcopy(_meta_model(config))

    def sites(self, config: LibraryConfig) -> list[Site]:
        """Return one site for each block: ``blocks.0.attn`` and so on."""
        return timm_sites(_meta_model(config))

    def layout(self, site: Site) -> AttentionLayout:
        """Return the names of the tensors of this kind of attention."""
        return _LAYOUTS[site.layout]

    def install(self, model: nn.Module, site: Site, attention: nn.Module) -> None:
        """Replace timm's attention; wrap the new one if timm's takes rotary positions or tables of distances."""
        library = model.get_submodule(site.path)
        if isinstance(model, timm_eva.Eva):
            attention = timm_eva.RotaryStandIn(attention, library)
        elif isinstance(model, _RELATIVE):
            attention = timm_relative.DistanceStandIn(attention, library)
        super().install(model, site, attention)

    def classes(self, config: LibraryConfig) -> int:
        """Return the number of classes of the classifier."""
        return int(_meta_model(config).num_classes)

    def image_shape(self, config: LibraryConfig) -> list[int] | None:
        """Return the image shape of the patch embedding; None if the model takes images of any size."""
        model = _meta_model(config)
        size = model.patch_embed.img_size
        if size is None or getattr(model, "dynamic_img_size", False):
            return None
        height, width = size
        return [int(model.in_chans), int(height), int(width)]

    def dropouts(self, model: nn.Module, site: Site) -> tuple[float, float]:
        """Return the rates of ``attn_drop`` and ``proj_drop``."""
        attention = model.get_submodule(site.path)
        return attention.attn_drop.p, attention.proj_drop.p  # type: ignore[union-attr,return-value]

    def stages(self, model: Any) -> list[Stages]:
        """Return the stages of the model, which has one tower: stem, blocks and readout.

        The stem is everything before the blocks. The readout is the final norm, pooling and the classifier.
        """
        if isinstance(model, timm_relative.SwinTransformer):
            return timm_relative.swin_stages(model, _EMBED)
        if isinstance(model, timm_eva.Eva):
            stem = partial(timm_eva.eva_stem, model)
            run_block = timm_eva.run_eva_block
        else:
            # Variants of the ViT differ in what they do before the blocks. The stem runs timm's own forward_features on
            # a shallow copy without blocks and final norm, which works for all of them and shares the parameters.
            stem_model = copy.copy(model)
            stem_model._modules = dict(model._modules)
            stem_model.blocks = nn.Sequential()
            stem_model.norm = nn.Identity()
            stem = partial(_stem, stem_model)
            run_block = _run_block

        def readout(state: State) -> Tensor:
            """Return the logits ``[B, classes]``."""
            hidden = model.norm(state.hidden)
            return model.forward_head(hidden)

        tower = Stages(
            stem=stem,
            blocks=for_each(run_block, model.blocks),
            block_paths=numbered_paths("blocks", model.blocks),
            stem_prefixes=(*_EMBED, "norm_pre."),
            readout=readout,
            attention_input=partial(timm_eva.attention_input, model.blocks[-1]),
            reads=_tokens_to_read(model),
        )
        return [tower]

    # --- data ---------------------------------------------------------------------------------------------------------

    def collate(self, preprocess: Preprocessing) -> Callable[[list[Any]], Tensor]:
        """Return timm's own transform for evaluation, from PIL images to ``[B, C, H, W]``."""
        size = input_size(preprocess)
        # timm expects tuples, but the preprocessing comes from JSON, which has only lists.
        settings = {}
        for key, value in preprocess.items():
            settings[key] = tuple(value) if isinstance(value, list) else value
        problem = f"timm cannot preprocess images with {shown(settings, 200)}"
        unknown = sorted(settings.keys() - set(_PREPROCESS))
        if unknown:
            raise InputError(f"{problem}: unknown are {', '.join(map(shown, unknown))}")
        transform = partial(timm.data.create_transform, **settings, is_training=False)
        return stacked(transform, mode_of(size[0]), size, problem)

    # --- training -----------------------------------------------------------------------------------------------------

    def image_format(self, preprocess: Preprocessing) -> ImageFormat:
        """Return the image format (size, normalisation, way of resizing) that timm's data configuration describes.

        timm first resizes an image, and then cuts out the size of the model, which is the share ``crop_pct`` of the
        resized image. If the settings fit neither ``squash`` nor ``shorter``, ``resize`` stays ``other``.
        """
        image_format = ImageFormat.of_preprocessing(input_size(preprocess), preprocess)
        _, height, width = image_format.size
        share = preprocess.get("crop_pct")
        if not isinstance(share, int | float) or share <= 0:
            return image_format
        crop_mode = preprocess.get("crop_mode")
        # Both sides are resized to the size, and nothing is cut off.
        if crop_mode == "squash" and share == 1:
            return image_format.resized("squash")
        # The shorter side is resized, and a square is cut out of the middle: 224 of 248 pixels for the share 0.9.
        if crop_mode == "center" and height == width:
            shorter_side = math.floor(height / share)
            return image_format.resized("shorter", shorter_side)
        return image_format

    def drawn(self, config: LibraryConfig) -> nn.Module:
        """Build the model with weights drawn by timm's own initialisation."""
        return _create_model(config)

    def with_classes(self, config: LibraryConfig, classes: int) -> LibraryConfig:
        """Return the configuration with another number of classes and without the names of the old classes.

        timm reads ``num_classes`` from the top level, from the section ``model_args`` and from ``pretrained_cfg``.
        """
        changed = dict(config)
        changed.pop("label_names", None)
        changed.pop("label_descriptions", None)
        changed["num_classes"] = classes
        arguments = config.get("model_args")
        if isinstance(arguments, Mapping) and "num_classes" in arguments:
            changed["model_args"] = _with_classes_unnamed(arguments, classes)
        pretrained = config.get("pretrained_cfg")
        if isinstance(pretrained, Mapping):
            changed["pretrained_cfg"] = _with_classes_unnamed(pretrained, classes)
        return changed

    def narrowed(self, config: LibraryConfig, share: Fraction) -> LibraryConfig | None:
        """Return the configuration of a plain ViT with ``embed_dim`` and ``num_heads`` multiplied by ``share``.

        None means that the model is not a plain ViT, or that the new width is not a multiple of the new heads.
        """
        model = _meta_model(config)
        if not isinstance(model, VisionTransformer):
            return None
        width = int(model.embed_dim * share)
        heads = int(model.blocks[0].attn.num_heads * share)
        heads_fill_width = heads > 0 and width % heads == 0
        if not heads_fill_width:
            return None
        # E.g. width 384 with 6 heads and a share of 1/2 give width 192 with 3 heads.
        narrow = _with_arguments(config, {"embed_dim": width, "num_heads": heads})
        if "num_features" in config:
            narrow["num_features"] = width
        return narrow

    def with_dropout(self, config: LibraryConfig, rate: float) -> LibraryConfig:
        """Return the configuration with dropout after the positions and every dense layer but queries, keys, values.

        This follows the paper of ViT, appendix B.1. A Swin adds no positions.
        """
        rates = {"proj_drop_rate": rate}
        if not isinstance(_meta_model(config), timm_relative.SwinTransformer):
            rates["pos_drop_rate"] = rate
        return _with_arguments(config, rates)


def _draw_weights(name: str, arguments: Mapping[str, object], seed: int) -> LoadedModel:
    """Return a model of timm with random weights.

    Args:
        name: a name that timm knows.
        arguments: arguments of the model, for timm's factory.
        seed: the seed of the weights.

    Raises:
        InputError: if timm cannot build the model, or its heads cannot be pruned one by one.
        UsageError: if an argument belongs to timm's factory and not to the model, e.g. ``checkpoint_path``, or a ViT
            of another width would get a number of heads that nobody named.
    """
    # For safety, before timm sees them: some arguments of its factory read files, and too many blocks fill the memory.
    factory_arguments = sorted(_NOT_THE_MODEL & set(arguments))
    if factory_arguments:
        raise UsageError(f"timm:{name} takes no option {', '.join(factory_arguments)}: only those of the model itself")
    _check_depth(name, arguments)
    # Build it. A ViT of another width would keep the number of heads of the name, whether it fits or not.
    with refused_as(f"timm cannot build {name} with {arguments}"):
        with seeded(seed):
            model = timm.create_model(name, pretrained=False, **arguments).eval()
        check_timm_model(model)
        config = _published_config(model, arguments)
    if "embed_dim" in arguments and "num_heads" not in arguments and not isinstance(model, _RELATIVE):
        raise UsageError(f"timm:{name} with embed_dim needs num_heads, which no weights show", hint="&num_heads=N")
    # The share of each image that is cut out. None means the published share, which was chosen for the published size
    # of images; with another size nothing is cut off.
    crop = 1.0 if "img_size" in arguments else None
    return LoadedModel(
        arch=str(config["architecture"]),
        config=config,
        tensors=DictTensors(model.state_dict()),
        preprocess=_preprocess_of(model, name, crop),
        labels=None,
    )


def _is_known(name: str) -> bool:
    """Return whether timm has a model with this name; a tag after a dot is ignored."""
    architecture = name.split(".")[0]
    return timm.is_model(architecture)


def is_plain_name(name: object) -> bool:
    """Return whether a value from a file is the name of a model that timm has, perhaps with a tag.

    timm would take other names for a repository on the hub (``hf-hub:``) or a folder (``local-dir:``).
    """
    return isinstance(name, str) and re.fullmatch(r"\w+(\.\w+)?", name) is not None and _is_known(name)


def _with_arguments(config: LibraryConfig, arguments: Mapping[str, object]) -> dict[str, object]:
    """Return a configuration with these arguments added to, or replaced in, its section ``model_args``."""
    before = object_or_empty(config, "model_args")
    return {**config, "model_args": {**before, **arguments}}


def _with_classes_unnamed(section: Mapping[str, object], classes: int) -> dict[str, object]:
    """Return a section of a configuration with another number of classes and without names of classes."""
    changed = {key: value for key, value in section.items() if not key.startswith("label_")}
    changed["num_classes"] = classes
    return changed


def timm_sites(model: Any) -> list[Site]:
    """Return the sites (attention blocks) in model order, for a model that :func:`check_timm_model` accepts."""
    sites = []
    for path, block in timm_relative.blocks_of(model).items():
        attention = block.attn
        # The name of the layout says how the module names its weights.
        layout = timm_relative.KINDS.get(type(attention)) or timm_eva.layout_name(attention)
        site = Site(
            f"{path}.attn",
            heads=attention.num_heads,
            head_dim=attention.proj.in_features // attention.num_heads,
            d_model=attention.proj.out_features,
            layout=layout,
            sharing=getattr(attention, "num_kv_groups", 1),  # how many heads share one head of keys and values
        )
        sites.append(site)
    return sites


def _stem(model: Any, images: Tensor) -> State:
    """Return the tokens of a model without blocks."""
    return State(model.forward_features(images))


def _run_block(block: nn.Module, state: State) -> State:
    """Return the state after one block of a ViT or a BEiT."""
    return State(block(state.hidden), state.context)


def _tokens_to_read(model: Any) -> Callable[[State], Tensor] | None:
    """Return a function for :attr:`Stages.reads`; None if ``forward_head`` uses all tokens.

    Otherwise it uses the class token, which comes first, or with distillation the first two tokens.
    """
    if isinstance(model, VisionTransformerDistilled):
        return FirstTokens(2)
    has_attention_pool = getattr(model, "attn_pool", None) is not None
    if model.global_pool == "token" and not has_attention_pool:
        return FirstTokens(1)
    return None


@cached_by_config
def _meta_model(config: LibraryConfig) -> Any:
    """Build a model on the meta device from its configuration, check it and fill its buffers.

    The result is cached, so copy it before changing it.
    """
    with on_meta_device():
        model = _create_model(config)
    check_timm_model(model)
    fill_timm_buffers(model)
    return model.eval()


def fill_timm_buffers(model: nn.Module) -> None:
    """Fill the buffers of a model on the meta device, which checkpoints do not store, with timm's numbers, in place.

    Raises:
        InputError: the buffers are larger than those of any model.
    """
    check_tables(model)
    for module in model.modules():
        # Allocate memory for each buffer; the numbers are written below.
        buffers = dict(module.named_buffers(recurse=False))
        for name, buffer in buffers.items():
            module._buffers[name] = torch.empty_like(buffer, device="cpu")
    if isinstance(model, timm_relative.SwinTransformer):
        timm_relative.fill_swin_buffers(model)
    else:
        reinit_non_persistent_buffers(model)


def _create_model(config: LibraryConfig) -> Any:
    """Return a model with random weights, built by timm from its configuration, on the default device.

    Raises:
        InputError: if timm cannot build the model, or it has too many blocks.
    """
    # For safety, before timm sees the configuration, which comes from a file: too many blocks would fill the memory, a
    # name may stand for a folder or a repository, and some arguments of timm's factory read files.
    architecture = config.get("architecture")
    arguments = config.get("model_args")
    _check_depth(architecture, arguments)
    problem = f"timm {timm.__version__} cannot build {shown(architecture)}"
    if not is_plain_name(architecture):
        raise InputError(f"{problem}: Unknown model")
    foreign = _NOT_THE_MODEL & set(arguments) if isinstance(arguments, Mapping) else set()
    if foreign:
        raise InputError(f"{problem}: {', '.join(sorted(foreign))} are no arguments of a model")

    # timm's public way to build a model from a published configuration is a folder with only config.json.
    with folder_for_library([], {"config.json": names_only(config, _SOURCES)}) as folder, refused_as(problem):
        return timm.create_model(f"local-dir:{folder}", pretrained=False)


def _check_depth(name: object, arguments: object) -> None:
    """Raise an error if the arguments ask for more blocks than any model has.

    Without this check, a broken file could make timm build blocks until the memory is full, before anything is compared
    with the weights.

    Args:
        name: the name of the model, for the message.
        arguments: the arguments of timm's model. They come from a file and may be anything. ``depth`` is the number of
            blocks, ``depths`` is the list of the numbers of blocks of all stages.

    Raises:
        InputError: if there are more than 200 blocks, or the number of blocks is not a whole number.
    """
    if not isinstance(arguments, Mapping):
        return
    # The numbers of blocks of all stages, as in a Swin, or the only number.
    of_stages: Any = arguments["depths"] if "depths" in arguments else [arguments.get("depth", 1)]
    blocks = of_stages
    if isinstance(of_stages, list) and are_whole_numbers(of_stages, 0):
        blocks = sum(of_stages)
    # What is no list of whole numbers was not added up, and is refused, too.
    if type(blocks) is not int or blocks > _MOST_BLOCKS:
        raise InputError(f"{shown(name)} has {shown(blocks)} blocks, expected at most {_MOST_BLOCKS}")


def check_timm_model(model: Any) -> None:
    """Raise an error if the heads of a timm model cannot be pruned one by one.

    Raises:
        InputError: with the reason, e.g. the class of its attention.
    """
    kind = type(model).__name__
    known = [attentions for library_class, attentions in _ATTENTIONS.items() if isinstance(model, library_class)]
    if not known:
        raise InputError(f"timm's {kind} is not supported: {_attention_of(model)}", hint=_SUPPORTED)

    # Positions are computed for every token, before the weights say how many there are.
    tokens = model.patch_embed.num_patches
    if tokens > _MOST_TOKENS:
        raise InputError(f"{kind} cuts images into {tokens} tokens, expected at most {_MOST_TOKENS}")

    # Every block must have an attention whose heads can be separated.
    blocks = timm_relative.blocks_of(model)
    if not blocks:
        raise InputError(f"{kind} has no blocks, so it has no attention heads")
    for path, block in blocks.items():
        attention = getattr(block, "attn", None)
        attention_class = "nothing" if attention is None else type(attention).__name__
        if type(attention) not in known[0]:
            expected = " or ".join(attention.__name__ for attention in known[0])
            raise InputError(
                f"{path} of {kind} is a {type(block).__name__} with {attention_class} as its attn, expected {expected}"
            )
        # A norm over the outputs of all heads changes if one of them is removed.
        if not isinstance(getattr(attention, "norm", nn.Identity()), nn.Identity):
            raise InputError(
                f"{path}.attn of {kind} is an {attention_class} that normalises across heads, "
                "so its heads cannot be separated"
            )
    problem = _unsupported_setting(model)
    if problem is not None:
        raise InputError(f"this {kind} of timm is not supported: {problem}", hint=_SUPPORTED)

    # Logits of an image need pooled tokens.
    if not model.global_pool:
        raise InputError(f"{kind} pools no tokens (global_pool is empty), so it has no logits of an image")


def _unsupported_setting(model: Any) -> str | None:
    """Return the first setting of a model that is not supported, as a message; None if there is none."""
    if isinstance(model, timm_eva.Eva):
        if model.rope_mixed:
            return "each of its heads has angles of its own (rope_mixed)"
        # Dropped patches would need the angles of the remaining ones, for each sample.
        if model.patch_drop is not None:
            return "it drops patches in training (patch_drop_rate)"
    if isinstance(model, _RELATIVE):
        if getattr(model, "rel_pos_bias", None) is not None:
            return "all its blocks share one table of distances (use_shared_rel_pos_bias)"
        if getattr(model, "dynamic_img_size", False):
            return "it makes its windows anew for every size of image (dynamic_img_size)"
    # Such as the statistics of the norms of a convolutional patch embedding: training would change them.
    buffers = dict(model.named_buffers())
    if isinstance(model, VisionTransformer) and buffers:
        return f"it keeps numbers beside its weights ({next(iter(buffers))})"
    return None


def _attention_of(model: nn.Module) -> str:
    """Return a phrase for error messages that names the class of the first attention module in a model."""
    for module in model.modules():
        kind = type(module)
        if re.search("Attn|Attention", kind.__name__):
            return f"its attention is {kind.__module__}.{kind.__name__}"
    return "it has no attention"


def _published_config(model: nn.Module, options: Mapping[str, object]) -> LibraryConfig:
    """Return the configuration that timm would publish for a model, with the options it was built with.

    timm before 1.0.31 does not remember the options itself. Dropout rates are left out, as timm does.

    Args:
        model: timm's model.
        options: the arguments of the factory that built it.
    """
    arguments = {name: value for name, value in options.items() if not name.endswith("drop_rate")}
    with tempfile.TemporaryDirectory() as folder, quiet_logger("timm"):
        path = Path(folder) / "config.json"
        save_config_for_hf(model, path, model_args=arguments)
        return json.loads(path.read_text(encoding="utf-8"))


def _preprocess_of(model: Any, name: str, crop: float | None) -> Preprocessing:
    """Return how images are prepared: timm's data configuration, with the model's own input size and channels.

    Args:
        model: timm's model.
        name: the name of the model, for messages.
        crop: the share of an image to cut out; None means the share in timm's configuration.
    """
    with quiet_logger("timm"):  # timm warns that one mean is used for all channels, which is done below
        data_config = timm.data.resolve_model_data_config(model)

    # The patch embedding knows the size for which the model was built.
    size = model.patch_embed.img_size
    if size is None:  # the model takes images of any size
        size = data_config["input_size"][1:]
    height, width = size
    channels = int(model.in_chans)

    settings = {key: data_config[key] for key in _PREPROCESS}
    settings["input_size"] = [channels, int(height), int(width)]
    for key in ("mean", "std"):
        settings[key] = _spread_over_channels(settings[key], channels, key, name)
    if crop is not None:
        settings["crop_pct"] = crop
    return settings


def _spread_over_channels(values: Any, channels: int, key: str, name: str) -> list[float]:
    """Return the mean, or the standard deviation, of pixels for each channel of a model.

    E.g. 0.4, 0.5, 0.6 of RGB become 0.5 for a model of one channel.

    Args:
        values: the values in the configuration, e.g. three for RGB.
        channels: the number of channels that the model takes. If there are more or fewer values, every channel gets
            their mean.
        key: ``mean`` or ``std``, for messages.
        name: the name of the model, for messages.

    Raises:
        InputError: if ``values`` is not a list of numbers, or is empty.
    """
    is_sequence = isinstance(values, (list, tuple)) and len(values) > 0
    if not is_sequence or not all(map(_is_pixel_value, values)):
        raise InputError(f"the configuration of {name} has the {key} {shown(values)}, no list of numbers")
    if len(values) == channels:
        return list(values)
    mean = sum(values) / len(values)
    return [round(mean, 6)] * channels


def _is_pixel_value(value: Any) -> bool:
    """Return whether a value from a file is a number that can be the mean or standard deviation of pixels."""
    if type(value) not in (int, float):
        return False
    return bool(abs(value) < _LARGEST_PIXEL)


def _class_names(model: Any, config: LibraryConfig) -> list[str] | None:
    """Return the class names in the published configuration, otherwise those of the part of ImageNet that timm infers.

    ==============================================  ==================================
    the published names                             what is returned
    ==============================================  ==================================
    a list of as many names as classes              the names
    a list of another length                        None
    an object with one name for each class          the names, in the order of numbers
    anything else, or none                          what timm infers; None if nothing
    ==============================================  ==================================
    """
    pretrained = object_or_empty(config, "pretrained_cfg")
    published = config.get("label_names") or pretrained.get("label_names")

    # Names are a list, or a mapping from the number of the class, which must name each class once.
    names = published
    if isinstance(published, Mapping):
        by_number = [published.get(str(index)) for index in range(model.num_classes)]
        is_complete = None not in by_number and len(published) == model.num_classes
        names = by_number if is_complete else None
    if isinstance(names, list):
        if len(names) != model.num_classes:
            return None
        return [str(name) for name in names]

    # Nothing is published: timm recognises, e.g., ImageNet-1k by the number of classes.
    subset = timm.data.infer_imagenet_subset(model)
    if not subset:
        return None
    info = timm.data.ImageNetInfo(subset)
    return list(info.label_names())


FAMILY = TimmViT()
