"""open_clip's configurations: from one to a model without weights, and what cannot be taken apart head by head."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import open_clip
from open_clip.timm_model import TimmModel
from open_clip.transformer import (
    Attention,
    CustomResidualAttentionBlock,
    ResidualAttentionBlock,
    TextTransformer,
    VisionTransformer,
)
from torch import nn

from hydractl.errors import InputError
from hydractl.families import timm
from hydractl.families.base import numbered_paths
from hydractl.families.config_json import LibraryConfig, is_whole_number, object_in
from hydractl.families.meta_device import on_meta_device
from hydractl.families.open_clip.hf_text import (
    LAYOUT,
    TRANSFORMER,
    hf_text,
    hf_text_obstacles,
    is_of_transformers,
    problem_of_hf_config,
    text_cfg_with_folder,
)
from hydractl.families.open_clip.inputs import CONTEXT_LENGTH, VOCABULARY, own_tokenizer, simple_tokenizer, text_cfg_of
from hydractl.families.reading import cached_by_config, refused_as
from hydractl.jsonio import shown

SECTIONS = {"vision_cfg": open_clip.CLIPVisionCfg, "text_cfg": open_clip.CLIPTextCfg}
_MOST_LAYERS = 1000
_MOST_TOKENS = 1 << 12  # the causal mask holds the square of it
_ORIGIN = "the configuration of the model"
_SUPPORTED = (
    "supported are CLIP and CustomTextCLIP of open_clip's own transformers, or with a ViT or Eva of timm for images: "
    "ViT-B-32, PE-Core-B-16, ViT-B-16-SigLIP"
)
VISUAL_BLOCKS = "visual.transformer.resblocks"
"""The path of the blocks of open_clip's own image tower."""
TRUNK = "visual.trunk."
"""The start of the names of what an image tower of timm is built of."""
DECODER = "text_decoder."
"""The start of the names of what a CoCa has beside its two towers."""
# Settings that make open_clip build something else than its own transformers, and what that is.
_FOREIGN = (
    ("text_cfg", "tokenizer_mode", "its HFTokenizer has a mode of its own (tokenizer_mode)"),
    ("vision_cfg", "output_tokens", "its VisionTransformer gives tokens beside features (output_tokens)"),
    ("text_cfg", "output_tokens", "its TextTransformer gives tokens beside features (output_tokens)"),
)


@dataclasses.dataclass(frozen=True)
class TextTower:
    """Location of the parts of a text tower, which :class:`open_clip.CLIP` holds itself.

    Attributes:
        module: what holds ``token_embedding``, ``transformer``, ``ln_final`` and so on.
        prefix: how the names of its parts start: nothing, or ``text.``.
        pool: ``first``, ``last``, ``argmax`` (at the highest token, the end of the text) or ``eos``.
        eos: the token that ``eos`` pools at.
    """

    module: Any
    prefix: str
    pool: str
    eos: int | None

    @property
    def ends_early(self) -> bool:
        """Whether no token behind the one that is pooled can change what is read out."""
        is_causal = self.module.attn_mask is not None
        return is_causal and self.pool in ("argmax", "eos")


def text_tower(model: Any) -> TextTower:
    """Return the text tower of a model."""
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
        pool=model.text.pool_type if model.text.cls_emb is None else "last",
        eos=getattr(model.text, "eos_id", None),
    )


@cached_by_config
def skeleton(config: LibraryConfig) -> Any:
    """Build the model of a configuration, its parameters on the meta device.

    Raises:
        InputError: for a configuration that open_clip cannot build, or that holds attention of another kind.
    """
    _check_config(config)
    with refused_as(f"open_clip {open_clip.__version__} cannot build this model"), on_meta_device():
        model = drawn_clip(config)
    for reason in _obstacles(model, config):
        raise _refusal(type(model).__name__, reason)
    if isinstance(model.visual, TimmModel):
        timm.fill_timm_buffers(model.visual.trunk)
    if hf_text(model) is None:
        _fill_causal_mask(text_tower(model).module)
    return model.eval()


def _fill_causal_mask(holder: Any) -> None:
    """Make the one buffer of a text tower real. CLIP throws away the TextTransformer that knows how to make it."""
    if holder.attn_mask is None:
        return
    positions, _ = holder.positional_embedding.shape
    with_positions = SimpleNamespace(num_pos=positions)
    holder.attn_mask = TextTransformer.build_causal_mask(with_positions)


def drawn_clip(config: LibraryConfig) -> Any:
    """Build the library's model of a configuration, on the default device, with weights of its own initialisation.

    Its entries are the arguments of the library's class, but for two: ``custom_text``, which chooses the class, and
    ``hf_config``, the configuration of a text tower of transformers.
    """
    model_class = open_clip.CustomTextCLIP if _is_custom(config) else open_clip.CLIP
    arguments = {name: value for name, value in config.items() if name not in ("custom_text", "hf_config")}
    vision_cfg = object_in(config, "vision_cfg", _ORIGIN)
    if "timm_model_name" in vision_cfg:  # the library would ask the hub for weights
        arguments["vision_cfg"] = {**vision_cfg, "timm_model_pretrained": False}

    hf_config = None
    if "hf_config" in config:
        hf_config = object_in(config, "hf_config", _ORIGIN)
    # The library reads `hf_config` from a folder only, which is there until the model is built.
    with text_cfg_with_folder(text_cfg_of(config), hf_config) as text_cfg:
        arguments["text_cfg"] = text_cfg
        return model_class(**arguments, cast_dtype=None)


def _is_custom(config: LibraryConfig) -> bool:
    """Return whether a configuration is of a CustomTextCLIP."""
    if config.get("custom_text"):
        return True
    text_cfg = text_cfg_of(config)
    return bool(text_cfg.get("hf_model_name"))


def towers_of_coca(config: LibraryConfig) -> dict[str, object]:
    """Return the configuration of the two towers of a CoCa, which are those of a CustomTextCLIP; any other's own.

    Left out is the decoder that writes captions: it attends across the towers, and no classifier by names needs it.
    """
    towers = dict(config)
    if "multimodal_cfg" not in config:
        return towers
    towers.pop("multimodal_cfg")
    towers.pop("pad_id", None)
    for section in SECTIONS:
        if section in config:
            towers[section] = {**object_in(config, section, _ORIGIN), "output_tokens": False}
    towers["custom_text"] = True
    return towers


def _check_config(config: LibraryConfig) -> None:
    """Refuse a configuration before anything is built: some would ask a hub, or take the machine's memory.

    Raises:
        InputError: naming what is not supported, or what no model has.
    """
    for section in SECTIONS:
        if not isinstance(config.get(section), Mapping):
            raise InputError(f"{_ORIGIN} has no {section}")
    text_cfg = text_cfg_of(config)
    vision_cfg = object_in(config, "vision_cfg", _ORIGIN)
    name = "CustomTextCLIP" if _is_custom(config) else "CLIP"
    if isinstance(vision_cfg.get("layers"), list):
        raise _refusal(name, "its visual tower is a ModifiedResNet")
    if text_cfg.get("embed_cls") and name == "CLIP":
        raise _refusal(name, "its TextTransformer has a class token (embed_cls), which CLIP leaves out")
    for section, key, reason in _FOREIGN:
        if object_in(config, section, _ORIGIN).get(key):
            raise _refusal(name, reason)
    problems = _problems_of_sizes(config)
    if problems:
        raise InputError(f"open_clip cannot build this model: {problems[0]}", problems=problems)

    # The tower of texts, and whether it knows every token that its tokenizer gives.
    if text_cfg.get("hf_model_name"):
        problem = problem_of_hf_config(config.get("hf_config"))
        if problem is not None:
            raise _refusal(name, problem)
    if own_tokenizer(config):
        vocabulary = text_cfg.get("vocab_size", VOCABULARY)
        known = simple_tokenizer(config).vocab_size
        if not is_whole_number(vocabulary, known):
            raise _refusal(name, f"it knows {shown(vocabulary)} tokens, open_clip's SimpleTokenizer has {known}")


def _problems_of_sizes(config: LibraryConfig) -> list[str]:
    """List numbers of layers and tokens that no model has."""
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
    """Yield the reasons why a model cannot be used: why its heads cannot be separated, or its features be compared.

    Args:
        model: of the library, on the meta device; each of its two towers, for images and for texts, is open_clip's
            own or one of another library: timm's for images, transformers' for texts.
        config: the configuration that it was built of.
    """
    visual = model.visual
    is_of_timm = isinstance(visual, TimmModel)
    is_of_open_clip = type(visual) is VisionTransformer
    if not is_of_timm and not is_of_open_clip:
        yield f"its visual tower is a {type(visual).__name__}"
        return  # nothing is known of what it is made of, and its blocks cannot be listed below

    # Images.
    if is_of_timm:
        yield from _trunk_obstacles(visual, config["embed_dim"])
    else:
        yield from _pooling_obstacles(visual)

    # Texts.
    encoder = hf_text(model)
    if encoder is not None:
        yield from hf_text_obstacles(encoder)
    else:
        yield from _text_obstacles(text_tower(model), config)

    # The blocks of open_clip's own towers: those of the other libraries have been checked with their towers.
    for path, block in blocks_of(model):
        if not is_of_transformers(path):
            yield from _block_obstacles(path, block)


def _pooling_obstacles(visual: VisionTransformer) -> Iterator[str]:
    """Yield the reason, if there is one, why an image tower of open_clip's own does not give one feature an image."""
    if visual.pool_type != "none":
        return
    pooling = "no pooling" if visual.attn_pool is None else "an AttentionalPooler for tokens"
    yield f"its VisionTransformer has {pooling}, so there is no one feature of an image"


def _text_obstacles(text: TextTower, config: LibraryConfig) -> Iterator[str]:
    """Yield the reasons why a text tower of open_clip's own gives no features that can be compared with images."""
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
    """Yield the reasons why an image tower of timm cannot be used as the family of timm reads it.

    Args:
        width: of the features.
    """
    trunk = visual.trunk
    try:
        timm.check_timm_model(trunk)
    except InputError as error:
        yield f"its visual tower is a TimmModel: {error.message}"
        return
    size = trunk.patch_embed.img_size
    if size is not None and tuple(size) != tuple(visual.image_size):
        yield f"its image_size is {shown(list(visual.image_size))}, its timm tower takes {list(size)}"
    has_projection = len(visual.head) > 0 or trunk.num_classes > 0
    if not has_projection and trunk.num_features != width:
        yield f"its timm tower has features of {trunk.num_features} numbers and no projection to {width}"


def _block_obstacles(path: str, block: Any) -> Iterator[str]:
    """Yield the reason, if there is one, why the heads of a block cannot be separated.

    Args:
        path: of the block, for messages.
        block: of open_clip: a block with torch's attention, or one with open_clip's own.
    """
    attention: Any = getattr(block, "attn", None)
    block_met = f"{path} is a {type(block).__name__} with {type(attention).__name__}"
    if type(block) is ResidualAttentionBlock:
        if type(attention) is not nn.MultiheadAttention:
            yield f"{block_met}, expected nn.MultiheadAttention"
        elif hasattr(block, "ln_1_kv"):
            yield f"{block_met} that attends across towers"
    elif type(block) is not CustomResidualAttentionBlock or type(attention) is not Attention:
        yield f"{block_met}, expected open_clip's own"
    elif attention.logit_scale is not None:
        yield f"{block_met} of scaled cosines"
    elif attention.head_scale is not None:
        yield f"{block_met} that scales its heads"
    elif not isinstance(attention.ln_inner, nn.Identity):
        yield f"{block_met} that normalises across heads"


def blocks_of(model: Any) -> list[tuple[str, Any]]:
    """List open_clip's own transformer blocks and those of a text tower of transformers, visual first, by path."""
    blocks: list[tuple[str, Any]] = []
    if not isinstance(model.visual, TimmModel):
        blocks += _with_paths(VISUAL_BLOCKS, model.visual.transformer.resblocks)
    encoder: Any = hf_text(model)
    if encoder is not None:
        path = f"{TRANSFORMER}{LAYOUT.layers}"
        layers = encoder.transformer.encoder.layer
    else:
        tower = text_tower(model)
        path = f"{tower.prefix}transformer.resblocks"
        layers = tower.module.transformer.resblocks
    return blocks + _with_paths(path, layers)


def _with_paths(path: str, blocks: nn.ModuleList) -> list[tuple[str, Any]]:
    """Return the modules of a list at a path, each with its own path."""
    paths = numbered_paths(path, blocks)
    return list(zip(paths, blocks, strict=True))


def _refusal(name: str, reason: str) -> InputError:
    """Return the error of a model that is not opened, with what is."""
    message = f"open_clip's {name} is not supported: {reason}"
    return InputError(message, hint=_SUPPORTED)
