"""torchvision's vision transformers: ``vit_b_16`` and the other sizes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.errors import InputError, UsageError
from hydractl.families.base import (
    AttentionLayout,
    FirstTokens,
    ImageFormat,
    LoadedModel,
    ModelFamily,
    MultiheadStandIn,
    Stages,
    State,
    for_each,
    normed_input,
)
from hydractl.families.config_json import LibraryConfig, Preprocessing, is_whole_number
from hydractl.families.meta_device import on_meta_device
from hydractl.families.pixels import input_size, stacked
from hydractl.families.reading import cached_by_config, published_weights, read_config, refused_as, write_config
from hydractl.families.torchvision_operators import declare_operators
from hydractl.files.checkpoint import DictTensors
from hydractl.files.header import CONVERT
from hydractl.heads.mask import Site
from hydractl.jsonio import shown

declare_operators()

import torchvision  # noqa: E402
from torchvision.models.vision_transformer import VisionTransformer  # noqa: E402
from torchvision.transforms._presets import ImageClassification, InterpolationMode  # noqa: E402

_NAMES = ("vit_b_16", "vit_b_32", "vit_l_16", "vit_l_32", "vit_h_14")
_MOST_LAYERS = 1000
_CONFIG = "torchvision.json"
_WEIGHTS = "model.safetensors"
_BLOCK = r"encoder\.layers\.encoder_layer_\d+\."


_SIZES = (
    *("image_size", "patch_size", "num_layers", "num_heads", "hidden_dim", "mlp_dim", "num_classes"),
    "representation_size",
)
"""The sizes of a model, by the names that the arguments of torchvision's ``VisionTransformer`` have."""


class TorchvisionViT(ModelFamily):
    """The family of torchvision's ``VisionTransformer`` with a single convolution as patch embedding."""

    name = "torchvision"
    version = torchvision.__version__.partition("+")[0]
    builds_by_name = True
    attention = AttentionLayout(("in_proj_",), "out_proj")
    parts = {  # noqa: RUF012 - as the protocol declares it
        "attention": rf"{_BLOCK}self_attention\.",
        "mlp": rf"{_BLOCK}mlp\.",
        "norm": rf"{_BLOCK}ln_[12]\.|encoder\.ln\.",
        "embed": r"conv_proj\.|class_token$|encoder\.pos_embedding$",
    }
    named_parts = {  # noqa: RUF012 - as the protocol declares it
        "patch": r"conv_proj\.",
        "position": r"encoder\.pos_embedding$",
        "class_token": r"class_token$",
        "head": r"heads\.head\.",
    }

    # --- finding a model ----------------------------------------------------------------------------------------------

    def load_folder(self, folder: Path) -> LoadedModel | None:
        """Load a folder that hydractl wrote; torchvision publishes no folders."""
        config = read_config(folder / _CONFIG)
        if config is None:
            return None
        return LoadedModel(
            arch="VisionTransformer",
            config=config,
            tensors=published_weights(folder / _WEIGHTS, CONVERT),
            preprocess=_usual_preprocess(config),
            labels=None,
        )

    def load_name(self, name: str, options: Mapping[str, object], seed: int) -> LoadedModel:
        """Return the model ``torchvision:NAME?pretrained=0`` with random weights; others are published as pickles only.

        Args:
            name: a vision transformer of torchvision, e.g. ``vit_b_16``.
            options: ``pretrained``, which must be off, and sizes that replace those of the named model.
            seed: the seed of the random weights.

        Raises:
            InputError: if the name is unknown, or ``pretrained`` is on.
            UsageError: if there are other options.
        """
        if name not in _NAMES:
            raise InputError(f"torchvision has no vision transformer {name!r}", hint=f"one of {', '.join(_NAMES)}")

        # Weights can only be drawn.
        sizes = dict(options)
        pretrained = sizes.pop("pretrained", True)
        if pretrained:
            raise InputError(
                f"torchvision publishes {name} as a pickle only, which hydractl never opens",
                hint=f"download it and give the file with --arch torchvision:{name}: its numbers are read as data",
            )

        # All other options are sizes.
        unknown_options = sorted(sizes.keys() - set(_SIZES))
        if unknown_options:
            raise UsageError(f"torchvision:{name} takes no option {', '.join(unknown_options)}")

        # The named model, built without numbers, has the sizes; the options after them replace some.
        with on_meta_device():
            model: Any = torchvision.models.get_model(name)
        config = {
            "image_size": model.image_size,
            "patch_size": model.patch_size,
            "hidden_dim": model.hidden_dim,
            "mlp_dim": model.mlp_dim,
            "num_classes": model.num_classes,
            "representation_size": None,
            "num_layers": len(model.encoder.layers),
            "num_heads": model.encoder.layers[0].num_heads,
            **sizes,
        }
        preprocess = _usual_preprocess(config)
        return LoadedModel(
            arch=name,
            config=config,
            tensors=DictTensors(self.initial(config, seed)),
            preprocess=preprocess,
            labels=None,
        )

    def arch_of_script(self, arguments: Mapping[str, object], shapes: Mapping[str, tuple[int, ...]]) -> str | None:
        """Return ``NAME?num_classes=N`` for a model trained by torchvision's reference script.

        The script has no argument for the number of classes, so it is read from the shape of the classifier. None means
        that ``--model`` is not a vision transformer.
        """
        name = arguments.get("model")
        if name not in _NAMES:
            return None
        classifier = shapes.get("heads.head.weight")
        return name if classifier is None else f"{name}?num_classes={classifier[0]}"

    def preprocess_of_script(
        self, arguments: Mapping[str, object], name: str, preprocess: Preprocessing
    ) -> Preprocessing:
        """Return the preprocessing with ``--val-resize-size`` and ``--interpolation`` of the reference script."""
        evaluated = dict(preprocess)
        resize_size = arguments.get("val_resize_size")
        if type(resize_size) is int:
            evaluated["resize_size"] = resize_size
        interpolation = arguments.get("interpolation")
        if isinstance(interpolation, str):
            evaluated["interpolation"] = interpolation
        return evaluated

    def export_folder(
        self, folder: Path, config: LibraryConfig, preprocess: Preprocessing, labels: Sequence[str] | None
    ) -> str:
        """Write the arguments of the library's class as JSON; the weights go into ``model.safetensors``."""
        write_config(folder / _CONFIG, config)
        return _WEIGHTS

    # --- structure ----------------------------------------------------------------------------------------------------

    def build(self, config: LibraryConfig) -> nn.Module:
        """Build the library's model on the meta device, as a copy that the caller may change."""
        return copy.deepcopy(_meta_model(config))

    def drawn(self, config: LibraryConfig) -> nn.Module:
        """Draw weights by torchvision's own initialisation."""
        return VisionTransformer(**config)

    def sites(self, config: LibraryConfig) -> list[Site]:
        """Return one site for each block: ``encoder.layers.encoder_layer_0.self_attention`` and so on."""
        sites = []
        for index, block in enumerate(_meta_model(config).encoder.layers):
            attention = block.self_attention
            path = f"{_block_path(index)}.self_attention"
            sites.append(Site(path, attention.num_heads, attention.head_dim, attention.embed_dim))
        return sites

    def classes(self, config: LibraryConfig) -> int:
        """Return the number of classes of the classifier."""
        return int(_meta_model(config).num_classes)

    def dropouts(self, model: nn.Module, site: Site) -> tuple[float, float]:
        """Return the dropout rate of the attention weights, and 0: the library's block itself drops the output."""
        attention: Any = model.get_submodule(site.path)
        return float(attention.dropout), 0.0

    def install(self, model: nn.Module, site: Site, attention: nn.Module) -> None:
        """Replace ``nn.MultiheadAttention`` by ``attention``, wrapped so that the block can call it."""
        super().install(model, site, MultiheadStandIn(attention))

    def stages(self, model: Any) -> list[Stages]:
        """Return the stages of the model, which has one tower: stem, blocks and readout.

        The stem makes patches, prepends the class token and adds positions. The readout applies the final norm and
        passes the class token to the classifier.
        """

        def stem(images: Tensor) -> State:
            """Return the tokens before the first block, ``[B, T, d_model]``."""
            patches = model._process_input(images)  # [B, T - 1, d_model]
            class_tokens = model.class_token.expand(patches.shape[0], -1, -1)  # [1, 1, d_model] -> [B, 1, d_model]
            tokens = torch.cat([class_tokens, patches], dim=1)
            tokens_with_positions = tokens + model.encoder.pos_embedding
            hidden = model.encoder.dropout(tokens_with_positions)
            return State(hidden)

        def readout(state: State) -> Tensor:
            """Return the logits ``[B, classes]``."""
            hidden = model.encoder.ln(state.hidden)
            class_token = hidden[:, 0]
            return model.heads(class_token)

        blocks = list(model.encoder.layers)
        tower = Stages(
            stem=stem,
            blocks=for_each(_run_block, blocks),
            block_paths=[_block_path(index) for index in range(len(blocks))],
            stem_prefixes=("conv_proj.", "class_token", "encoder.pos_embedding"),
            readout=readout,
            attention_inputs=for_each(partial(normed_input, "ln_1"), blocks),
            reads=FirstTokens(1),
        )
        return [tower]

    # --- data ---------------------------------------------------------------------------------------------------------

    def collate(self, preprocess: Preprocessing) -> Callable[[list[Any]], Tensor]:
        """Return torchvision's own transform for evaluation, from PIL images to ``[B, 3, H, W]``."""
        size = input_size(preprocess)

        def transform() -> ImageClassification:
            return ImageClassification(
                crop_size=size[1],
                resize_size=preprocess["resize_size"],
                mean=preprocess["mean"],
                std=preprocess["std"],
                interpolation=InterpolationMode(preprocess["interpolation"]),
            )

        return stacked(
            transform, "RGB", size, f"torchvision cannot preprocess images with {shown(dict(preprocess), 200)}"
        )

    def image_format(self, preprocess: Preprocessing) -> ImageFormat:
        """Return the image format that the settings of torchvision's transform describe."""
        image_format = ImageFormat.of_preprocessing(input_size(preprocess), preprocess)
        settings: Any = preprocess
        return image_format.resized("shorter", settings["resize_size"])

    # --- training -----------------------------------------------------------------------------------------------------

    def with_classes(self, config: LibraryConfig, classes: int) -> LibraryConfig:
        """Return the configuration with another ``num_classes``."""
        return {**config, "num_classes": classes}

    def with_dropout(self, config: LibraryConfig, rate: float) -> LibraryConfig:
        """Return the configuration with ``dropout``, which acts after attention, in the MLP and after the positions."""
        return {**config, "dropout": rate}


def _block_path(index: int) -> str:
    """Return the dotted name of a block in the model."""
    return f"encoder.layers.encoder_layer_{index}"


def _run_block(block: nn.Module, state: State) -> State:
    """Return the state after one block."""
    hidden = block(state.hidden)
    return State(hidden, state.context)


@cached_by_config
def _meta_model(config: LibraryConfig) -> Any:
    """Build a model on the meta device from its configuration, which comes from a file and may hold anything.

    The result is cached, so copy it before changing it.
    """
    if not is_whole_number(config.get("num_layers"), 1, _MOST_LAYERS):
        raise InputError(f"torchvision's VisionTransformer cannot have {shown(config.get('num_layers'))} layers")
    with refused_as("torchvision cannot build its VisionTransformer"), on_meta_device():
        return VisionTransformer(**config).eval()


def _usual_preprocess(config: LibraryConfig) -> Preprocessing:
    """Return the preprocessing of torchvision's weights: resize to 256 and cut out 224 pixels, or in proportion."""
    size = _meta_model(config).image_size
    preset = ImageClassification(crop_size=size)
    return {
        "input_size": [3, size, size],
        "resize_size": round(size * 256 / 224),
        "mean": preset.mean,
        "std": preset.std,
        "interpolation": preset.interpolation.value,
    }


FAMILY = TorchvisionViT()
