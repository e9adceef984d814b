"""torchvision's vision transformers, ``vit_b_16`` and its kin."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.errors import InputError, UsageError
from hydractl.families.base import AttentionLayout, ImageFormat, LoadedModel, ModelFamily, Stages, State, first_tokens
from hydractl.families.pixels import images_of, in_mode, random_pixels
from hydractl.families.reading import kept, published_weights, read_config, refused_as, write_config
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
_SIZES = ("image_size", "patch_size", "num_layers", "num_heads", "hidden_dim", "mlp_dim", "num_classes")
_MOST = 1 << 20
_CONFIG, _WEIGHTS = "torchvision.json", "model.safetensors"
_BLOCK = r"encoder\.layers\.encoder_layer_\d+\."


class _InPlace(nn.Module):
    """:class:`hydractl.model.attention.HeadAttention` with the call and the answer of ``nn.MultiheadAttention``."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, query: Tensor, key: Tensor, value: Tensor, need_weights: bool = False) -> tuple[Tensor, None]:
        """Attend from ``query`` ``[M * B, T, d_model]`` to itself: the blocks give it as key and value too."""
        return self.attention(query), None


class TorchvisionViT(ModelFamily):
    """torchvision's ``VisionTransformer`` without a stem of convolutions."""

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
        """Load a folder that hydractl wrote: torchvision itself publishes none."""
        config = read_config(folder / _CONFIG)
        if config is None:
            return None
        _model(config)
        return LoadedModel(
            "VisionTransformer", config, published_weights(folder / _WEIGHTS, CONVERT), _preprocess(config), None
        )

    def load_name(self, name: str, options: Mapping[str, Any], seed: int) -> LoadedModel:
        """Draw random weights with ``pretrained=0`` and any size of the model: torchvision publishes only pickles."""
        options = dict(options)
        if name not in _NAMES:
            raise InputError(f"torchvision has no vision transformer {name!r}", hint=f"one of {', '.join(_NAMES)}")
        if options.pop("pretrained", True):
            raise InputError(
                f"torchvision publishes {name} as a pickle only, which hydractl never opens",
                hint=f"download it and give the file with --arch torchvision:{name}: its numbers are read as data",
            )
        foreign = sorted(options.keys() - {*_SIZES, "representation_size"})
        if foreign:
            raise UsageError(f"torchvision:{name} takes no option {', '.join(foreign)}")
        with torch.device("meta"):
            made = torchvision.models.get_model(name)
        config = {key: getattr(made, key) for key in _SIZES if hasattr(made, key)} | {"representation_size": None}
        config |= {"num_layers": len(made.encoder.layers), "num_heads": made.encoder.layers[0].num_heads, **options}
        _model(config)
        return LoadedModel(name, config, DictTensors(self.initial(config, seed)), _preprocess(config), None)

    def arch_of_script(self, arguments: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> str | None:
        """Return the model that the reference script has made of ``--model``; the data gave it its classes."""
        name = arguments.get("model")
        if name not in _NAMES:
            return None
        classifier = shapes.get("heads.head.weight")
        return name if classifier is None else f"{name}?num_classes={classifier[0]}"

    def preprocess_of_script(
        self, arguments: Mapping[str, Any], name: str, preprocess: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return what the reference script has evaluated with: ``--val-resize-size`` and ``--interpolation``."""
        evaluated = dict(preprocess)
        resize_size = arguments.get("val_resize_size")
        if type(resize_size) is int:
            evaluated["resize_size"] = resize_size
        interpolation = arguments.get("interpolation")
        if isinstance(interpolation, str):
            evaluated["interpolation"] = interpolation
        return evaluated

    def export_folder(
        self, folder: Path, config: Mapping[str, Any], preprocess: Mapping[str, Any], labels: Sequence[str] | None
    ) -> str:
        """Write the arguments of the library's class; the weights belong into ``model.safetensors``."""
        write_config(folder / _CONFIG, config)
        return _WEIGHTS

    # --- structure ----------------------------------------------------------------------------------------------------

    def build(self, config: Mapping[str, Any]) -> nn.Module:
        """Build the library's model with its parameters on the meta device."""
        return copy.deepcopy(_model(config))

    def drawn(self, config: Mapping[str, Any]) -> nn.Module:
        """Draw weights by torchvision's own initialisation."""
        return VisionTransformer(**config)

    def sites(self, config: Mapping[str, Any]) -> list[Site]:
        """``encoder.layers.encoder_layer_0.self_attention`` and so on."""
        heads, width = config["num_heads"], config["hidden_dim"]
        paths = [f"{_block(i)}.self_attention" for i in range(config["num_layers"])]
        return [Site(path, heads, width // heads, width) for path in paths]

    def classes(self, config: Mapping[str, Any]) -> int:
        """Return the number of classes of the classifier."""
        return int(config["num_classes"])

    def dropouts(self, model: nn.Module, site: Site) -> tuple[float, float]:
        """Return the rate of the attention weights; the dropout behind stays the library's own."""
        attention: Any = model.get_submodule(site.path)
        return float(attention.dropout), 0.0

    def install(self, model: nn.Module, site: Site, attention: nn.Module) -> None:
        """Replace ``nn.MultiheadAttention``."""
        super().install(model, site, _InPlace(attention))

    def stages(self, model: Any) -> list[Stages]:
        """Cut the model. Stem: patches, class token, positions. Readout: final norm, class token, classifier."""

        def stem(images: Tensor) -> State:
            patches = model._process_input(images)
            tokens = torch.cat([model.class_token.expand(patches.shape[0], -1, -1), patches], dim=1)
            return State(model.encoder.dropout(tokens + model.encoder.pos_embedding))

        blocks = list(model.encoder.layers)
        tower = Stages(
            stem=stem,
            blocks=[partial(_run, block) for block in blocks],
            block_paths=[_block(i) for i in range(len(blocks))],
            stem_prefixes=("conv_proj.", "class_token", "encoder.pos_embedding"),
            readout=lambda state: model.heads(model.encoder.ln(state.hidden)[:, 0]),
            attention_inputs=[partial(_attention_input, block) for block in blocks],
            reads=first_tokens(1),
        )
        return [tower]

    # --- data ---------------------------------------------------------------------------------------------------------

    def collate(self, preprocess: Mapping[str, Any]) -> Callable[[list[Any]], Tensor]:
        """Return torchvision's own evaluation transform on PIL images, which gives ``[B, 3, H, W]``."""
        with refused_as(f"torchvision cannot preprocess images with {shown(dict(preprocess), 200)}"):
            mode = InterpolationMode(preprocess["interpolation"])
            settings = {key: preprocess[key] for key in ("resize_size", "mean", "std")}
            transform = ImageClassification(crop_size=preprocess["input_size"][1], interpolation=mode, **settings)
        return lambda samples: torch.stack([transform(in_mode(image, "RGB")) for image in images_of(samples)])

    def example_inputs(self, preprocess: Mapping[str, Any], batch: int, seed: int) -> Tensor:
        """Draw standard normal pixels ``[B, 3, H, W]``."""
        return random_pixels(preprocess["input_size"], batch, seed)

    def image_format(self, preprocess: Mapping[str, Any]) -> ImageFormat:
        """Read the image format off the settings of the transform."""
        return ImageFormat.of(preprocess["input_size"], preprocess)

    # --- training -----------------------------------------------------------------------------------------------------

    def with_classes(self, config: Mapping[str, Any], classes: int) -> dict[str, Any]:
        """Set ``num_classes``."""
        return {**config, "num_classes": classes}

    def with_dropout(self, config: Mapping[str, Any], rate: float) -> dict[str, Any]:
        """Set ``dropout``: behind attention, in the MLP and behind the positions."""
        return {**config, "dropout": rate}


def _block(index: int) -> str:
    return f"encoder.layers.encoder_layer_{index}"


def _run(block: nn.Module, state: State) -> State:
    return State(block(state.hidden), state.context)


def _attention_input(block: Any, state: State) -> Tensor:
    return block.ln_1(state.hidden)


@kept
def _model(config: Mapping[str, Any]) -> Any:
    """Build the model of a configuration, which comes from a file, on the meta device."""
    wrong = [key for key in _SIZES if type(config.get(key)) is not int or not 0 < config[key] <= _MOST]
    if wrong or config["hidden_dim"] % config["num_heads"] or config["num_layers"] > 1000:
        raise InputError("this is no configuration of torchvision's VisionTransformer", problems=wrong)
    with refused_as("torchvision cannot build its VisionTransformer"), torch.device("meta"):
        return VisionTransformer(**config).eval()


def _preprocess(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the preprocessing of torchvision's weights: 224 of 256 pixels, or the same share of another size."""
    size = config["image_size"]
    preset = ImageClassification(crop_size=size)
    return {
        "input_size": [3, size, size],
        "resize_size": round(size * 256 / 224),
        "mean": preset.mean,
        "std": preset.std,
        "interpolation": preset.interpolation.value,
    }


FAMILY = TorchvisionViT()
