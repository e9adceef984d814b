"""Builds open_clip's models from configurations, without weights, and rejects those whose heads cannot be separated."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import open_clip
import torch
from open_clip.timm_model import TimmModel
from open_clip.transformer import (
    ResidualAttentionBlock,
    TextTransformer,
    VisionTransformer,
    text_global_pool,
)
from torch import Tensor, nn

from hydractl.errors import InputError
from hydractl.families import timm
from hydractl.families.base import numbered_paths
from hydractl.families.config_json import LibraryConfig, is_whole_number, object_in
from hydractl.families.meta_device import on_meta_device
from hydractl.families.open_clip.inputs import CONTEXT_LENGTH, VOCABULARY, own_tokenizer, simple_tokenizer, text_cfg_of
from hydractl.families.reading import cached_by_config, refused_as
from hydractl.jsonio import shown

SECTIONS = {"vision_cfg": open_clip.CLIPVisionCfg, "text_cfg": open_clip.CLIPTextCfg}
_MOST_LAYERS = 1000
_MOST_TOKENS = 1 << 12  # the causal mask has the square of this many numbers
_ORIGIN = "the configuration of the model"
_SUPPORTED = (
    "supported are CLIP and CustomTextCLIP of open_clip's own transformers, or with a ViT or Eva of timm for images: "
    "ViT-B-32, PE-Core-B-16, ViT-B-16-SigLIP"
)
VISUAL_BLOCKS = "visual.transformer.resblocks"
"""The dotted name of the list of blocks in open_clip's own image tower."""
TRUNK = "visual.trunk."
"""The beginning of the names of all parameters in an image tower that is a timm model."""
# Settings that are not supported (section, key), with the reason.
_FOREIGN = (
    ("text_cfg", "hf_model_name", "its text tower is a model of transformers"),
    ("text_cfg", "embed_cls", "its TextTransformer has a class token (embed_cls)"),
    ("text_cfg", "tokenizer_mode", "its HFTokenizer has a mode of its own (tokenizer_mode)"),
    ("vision_cfg", "output_tokens", "its VisionTransformer gives tokens beside features (output_tokens)"),
    ("text_cfg", "output_tokens", "its TextTransformer gives tokens beside features (output_tokens)"),
)


@dataclasses.dataclass(frozen=True)
class TextTower:
    """Where the modules of open_clip's own text tower are, and how it pools tokens.

    Attributes:
        module: the module with the attributes ``token_embedding``, ``transformer``, ``ln_final`` and so on. A CLIP has
            them itself, a CustomTextCLIP has them in its module ``text``.
        prefix: the beginning of the names of these attributes in the model: empty, or ``text.``.
        pool: which token is used: ``first``, ``last``, ``argmax`` (the one with the highest id, which ends the text) or
            ``eos`` (the first one with the id ``eos``).
        eos: the id of the token for the pooling ``eos``.
    """

    module: Any
    prefix: str
    pool: str
    eos: int | None

    @property
    def ends_early(self) -> bool:
        """Whether the tokens after the one that is pooled cannot change the features."""
        is_causal = self.module.attn_mask is not None
        return is_causal and self.pool in ("argmax", "eos")

    def positions_read(self, ids: Tensor) -> Tensor:
        """Return the position of the token that is pooled from each text, ``[N, 1]``, from token ids ``[N, T]``.

        open_clip's pooling selects one feature vector for each text. Here it gets the positions as features.
        """
        positions = torch.arange(ids.shape[1], device=ids.device).expand(len(ids), -1)  # [N, T]
        return text_global_pool(positions[:, :, None], ids, self.pool, eos_token_id=self.eos)


def text_tower(model: Any) -> TextTower:
    """Return where the modules of a model's own text tower are."""
    if isinstance(model, open_clip.CLIP):
        return TextTower(
            module=model,
            prefix="",
            pool=model.text_pool_type,
            eos=getattr(model, "text_eos_id", None),
        )
    return TextTower(
        module=model.text,
        prefix="text.",
        pool=model.text.pool_type,
        eos=getattr(model.text, "eos_id", None),
    )


@cached_by_config
def skeleton(config: LibraryConfig) -> Any:
    """Return a model of this configuration whose parameters have shapes but no numbers; its buffers have both.

    The result is cached, so copy it before changing it.

    Raises:
        InputError: if open_clip cannot build the model, or it is not supported.
    """
    _check_config(config)
    with refused_as(f"open_clip {open_clip.__version__} cannot build this model"), on_meta_device():
        model = drawn_clip(config)
    for reason in _obstacles(model, config):  # only the first reason is reported
        raise _refusal(type(model).__name__, reason)

    # Fill the buffers.
    if isinstance(model.visual, TimmModel):
        timm.fill_timm_buffers(model.visual.trunk)
    _fill_causal_mask(text_tower(model).module)
    return model.eval()


def _fill_causal_mask(holder: Any) -> None:
    """Fill the causal mask, the only buffer of open_clip's own text tower, in place.

    open_clip's function for it is a method of TextTransformer that only reads ``num_pos``. A CLIP has no
    TextTransformer, so the method gets a stand-in with this attribute.
    """
    if holder.attn_mask is None:
        return
    positions, _ = holder.positional_embedding.shape
    with_positions = SimpleNamespace(num_pos=positions)
    holder.attn_mask = TextTransformer.build_causal_mask(with_positions)


def drawn_clip(config: LibraryConfig) -> Any:
    """Return open_clip's model of this configuration, with random weights, on the default device.

    The entries of the configuration are the arguments of the model's class, except ``custom_text``, which chooses the
    class (CustomTextCLIP or CLIP).
    """
    model_class = open_clip.CustomTextCLIP if config.get("custom_text") else open_clip.CLIP
    arguments = {name: value for name, value in config.items() if name != "custom_text"}

    # An image tower that is a timm model: keep open_clip from downloading weights for it.
    vision_cfg = object_in(config, "vision_cfg", _ORIGIN)
    if "timm_model_name" in vision_cfg:
        arguments["vision_cfg"] = {**vision_cfg, "timm_model_pretrained": False}
    return model_class(**arguments, cast_dtype=None)


def _check_config(config: LibraryConfig) -> None:
    """Raise an error if a model is not supported, judging by its configuration alone.

    The check comes before anything is built, because building could ask the hub or fill the memory: the configuration
    comes from a file and may hold anything.

    Raises:
        InputError: with the first setting that is not supported, or all impossible numbers.
    """
    for section in SECTIONS:
        if not isinstance(config.get(section), Mapping):
            raise InputError(f"{_ORIGIN} has no {section}")
    text_cfg = text_cfg_of(config)
    vision_cfg = object_in(config, "vision_cfg", _ORIGIN)

    # The class of open_clip, for messages.
    name = "CustomTextCLIP" if config.get("custom_text") else "CLIP"

    # Settings that are not supported. A list of layers stands for the stages of a ResNet.
    if "multimodal_cfg" in config:
        raise _refusal("CoCa", "its decoder of captions attends across the towers")
    if isinstance(vision_cfg.get("layers"), list):
        raise _refusal(name, "its visual tower is a ModifiedResNet")
    for section, key, reason in _FOREIGN:
        if object_in(config, section, _ORIGIN).get(key):
            raise _refusal(name, reason)

    # timm takes other names for repositories on the hub or folders.
    trunk = vision_cfg.get("timm_model_name")
    if trunk and not timm.is_plain_name(trunk):
        raise _refusal(name, f"its visual tower is {shown(trunk)}, which is no name of a model of timm")

    # Impossible numbers of layers or tokens.
    problems = _problems_of_sizes(config)
    if problems:
        raise InputError(f"open_clip cannot build this model: {problems[0]}", problems=problems)

    # Whether the text tower knows every token of its tokenizer.
    if own_tokenizer(config):
        vocabulary = text_cfg.get("vocab_size", VOCABULARY)
        tokenizer_size = simple_tokenizer(config).vocab_size
        if not is_whole_number(vocabulary, tokenizer_size):
            raise _refusal(
                name, f"it knows {shown(vocabulary)} tokens, open_clip's SimpleTokenizer has {tokenizer_size}"
            )


def _problems_of_sizes(config: LibraryConfig) -> list[str]:
    """Return one message for each impossible number of layers or tokens in a configuration; empty if all can be."""
    problems = []
    for section in SECTIONS:
        layers = object_in(config, section, _ORIGIN).get("layers", 12)
        if not is_whole_number(layers, 1, _MOST_LAYERS):
            problems.append(f"{section} has {shown(layers)} layers")
    length = text_cfg_of(config).get("context_length", CONTEXT_LENGTH)
    if not is_whole_number(length, 2, _MOST_TOKENS):
        problems.append(f"text_cfg has a context of {shown(length)} tokens")
    return problems


def _obstacles(model: Any, config: LibraryConfig) -> Iterator[str]:
    """Yield the reasons why a model is not supported; nothing if it is.

    Its heads cannot be separated from each other, or its features of images and texts cannot be compared.

    Args:
        model: open_clip's model, on the meta device. Its image tower is open_clip's own or a timm model, its text tower
            is open_clip's own.
        config: the configuration from which it was built.
    """
    visual = model.visual
    is_timm_model = isinstance(visual, TimmModel)
    is_open_clip_tower = type(visual) is VisionTransformer
    if not is_timm_model and not is_open_clip_tower:
        yield f"its visual tower is a {type(visual).__name__}"
        return  # the blocks of an unknown tower cannot be checked below

    # The image tower.
    if is_timm_model:
        yield from _trunk_obstacles(visual, config["embed_dim"])
    else:
        if visual.pool_type == "none":
            pooling = "no pooling" if visual.attn_pool is None else "an AttentionalPooler for tokens"
            yield f"its VisionTransformer has {pooling}, so there is no one feature of an image"

    # The text tower, and the blocks of open_clip's own towers. A tower of timm was checked completely above.
    yield from _text_obstacles(text_tower(model), config)
    for path, block in blocks_of(model):
        kinds = (type(block), type(block.attn))
        if kinds != (ResidualAttentionBlock, nn.MultiheadAttention):
            names = [kind.__name__ for kind in kinds]
            yield f"{path} is a {' with '.join(names)}, expected ResidualAttentionBlock with MultiheadAttention"


def _text_obstacles(text: TextTower, config: LibraryConfig) -> Iterator[str]:
    """Yield the reasons why the features of open_clip's own text tower cannot be compared with those of images."""
    # There must be one feature of a text, from a token that is found in texts of the model's own tokenizer, and of the
    # width of the features of images.
    if text.pool == "none":
        yield "its TextTransformer does not pool, so there is no one feature of a text"
    if text.pool == "eos" and own_tokenizer(config):
        eos = simple_tokenizer({"text_cfg": {}}).eot_token_id
        if text.eos != eos:
            yield f"its TextTransformer pools at token {text.eos}, open_clip's SimpleTokenizer ends a text with {eos}"
    width = text.module.ln_final.weight.shape[0]
    if text.module.text_projection is None and width != config["embed_dim"]:
        yield "its TextTransformer has no projection, and another width than the features of images"


def _trunk_obstacles(visual: TimmModel, width: object) -> Iterator[str]:
    """Yield the reasons why an image tower that is a timm model is not supported.

    Args:
        visual: the tower; its ``trunk`` is the timm model, its ``head`` the projection.
        width: the width of the model's features, ``embed_dim``.
    """
    trunk = visual.trunk
    # The heads must be separable, as for a timm model alone.
    try:
        timm.check_timm_model(trunk)
    except InputError as error:
        yield f"its visual tower is a TimmModel: {error.message}"
        return
    # open_clip and timm must agree on the size of images.
    size = trunk.patch_embed.img_size
    if size is not None and tuple(size) != tuple(visual.image_size):
        yield f"its image_size is {shown(list(visual.image_size))}, its timm tower takes {list(size)}"
    # Features must have the width of the text features.
    has_projection = len(visual.head) > 0 or trunk.num_classes > 0
    if not has_projection and trunk.num_features != width:
        yield f"its timm tower has features of {trunk.num_features} numbers and no projection to {width}"


def blocks_of(model: Any) -> list[tuple[str, Any]]:
    """List the blocks of a model with their dotted names: first those of the image tower, then those of the text tower.

    The blocks of an image tower that is a timm model are left out.
    """
    visual_blocks: list[tuple[str, Any]] = []
    if not isinstance(model.visual, TimmModel):
        visual_blocks += _with_paths(VISUAL_BLOCKS, model.visual.transformer.resblocks)
    tower = text_tower(model)
    return visual_blocks + _with_paths(f"{tower.prefix}transformer.resblocks", tower.module.transformer.resblocks)


def _with_paths(path: str, blocks: nn.ModuleList) -> list[tuple[str, Any]]:
    """Return the modules of a list, each with its dotted name: ``path.0``, ``path.1`` and so on."""
    return list(zip(numbered_paths(path, blocks), blocks, strict=True))


def _refusal(name: str, reason: str) -> InputError:
    """Return the error for a model that is not supported; its hint names the supported ones."""
    return InputError(f"open_clip's {name} is not supported: {reason}", hint=_SUPPORTED)
