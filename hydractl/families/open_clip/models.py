"""open_clip's configurations: from one to a model without weights, and what cannot be taken apart head by head."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import open_clip
import torch
from open_clip.transformer import (
    Attention,
    CustomResidualAttentionBlock,
    ResidualAttentionBlock,
    TextTransformer,
    VisionTransformer,
    text_global_pool,
)
from torch import Tensor, nn
from torch.nn import functional as F

from hydractl.errors import InputError
from hydractl.families.base import Stages, State, first_tokens
from hydractl.families.open_clip.inputs import tokenizer_of
from hydractl.families.prompts import mean_features
from hydractl.families.reading import kept, refused_as
from hydractl.jsonio import shown

SECTIONS = {"vision_cfg": open_clip.CLIPVisionCfg, "text_cfg": open_clip.CLIPTextCfg}
_MOST_LAYERS, _MOST_TOKENS = 1000, 1 << 12  # the causal mask holds the square of the latter
_SUPPORTED = "supported are CLIP and CustomTextCLIP with open_clip's own two transformers, such as ViT-B-32 or ViT-L-14"
# Settings that make open_clip build something else than its own transformers, and what that is.
_FOREIGN = (
    ("vision_cfg", "timm_model_name", "its visual tower is a TimmModel"),
    ("text_cfg", "hf_model_name", "its text tower is an HFTextEncoder"),
    ("text_cfg", "hf_tokenizer_name", "its texts are read by an HFTokenizer"),
    ("text_cfg", "embed_cls", "its TextTransformer pools at a class token of its own (embed_cls), as CoCa does"),
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
        return self.module.attn_mask is not None and self.pool in ("argmax", "eos")


def text_tower(model: Any) -> TextTower:
    """The text tower of a model."""
    if isinstance(model, open_clip.CLIP):
        return TextTower(model, "", model.text_pool_type, getattr(model, "text_eos_id", None))
    return TextTower(model.text, "text.", model.text.pool_type, getattr(model.text, "eos_id", None))


@kept
def skeleton(config: dict[str, Any]) -> Any:
    """The model of a configuration, its parameters on the meta device.

    Raises:
        InputError: for a configuration that open_clip cannot build, or that holds attention of another kind.
    """
    _check_config(config)
    custom = config.pop("custom_text", False)
    with refused_as(f"open_clip {open_clip.__version__} cannot build this model"), torch.device("meta"):
        model: Any = (open_clip.CustomTextCLIP if custom else open_clip.CLIP)(**config, cast_dtype=None)
    for reason in _obstacles(model):
        raise _refusal(type(model).__name__, reason)
    holder = text_tower(model).module
    if holder.attn_mask is not None:
        # The one buffer. CLIP throws away the TextTransformer that knows how to make it.
        tokens = SimpleNamespace(num_pos=holder.positional_embedding.shape[0])
        holder.attn_mask = TextTransformer.build_causal_mask(tokens)
    return model.eval()


def _check_config(config: Mapping[str, Any]) -> None:
    """Refuse before anything is built: some of these would ask a hub, or take the machine's memory."""
    for section in SECTIONS:
        if not isinstance(config.get(section), Mapping):
            raise InputError(f"the configuration of the model has no {section}")
    vision, text = config["vision_cfg"], config["text_cfg"]
    if "multimodal_cfg" in config:
        raise _refusal("CoCa", "its MultimodalTransformer attends across towers")
    name = "CustomTextCLIP" if config.get("custom_text") or text.get("hf_model_name") else "CLIP"
    if isinstance(vision.get("layers"), list):
        raise _refusal(name, "its visual tower is a ModifiedResNet")
    for section, key, reason in _FOREIGN:
        if config[section].get(key):
            raise _refusal(name, reason)
    problems = [
        f"{section} has {shown(layers)} layers"
        for section in SECTIONS
        if type(layers := config[section].get("layers", 12)) is not int or not 0 < layers <= _MOST_LAYERS
    ]
    length = text.get("context_length", 77)
    if type(length) is not int or not 2 <= length <= _MOST_TOKENS:
        problems.append(f"text_cfg has a context of {shown(length)} tokens")
    if problems:
        raise InputError(f"open_clip cannot build this model: {problems[0]}", problems=problems)
    vocabulary, known = text.get("vocab_size", 49408), tokenizer_of(config).vocab_size
    if type(vocabulary) is not int or vocabulary < known:
        raise _refusal(name, f"it knows {shown(vocabulary)} tokens, open_clip's SimpleTokenizer has {known}")


def _obstacles(model: Any) -> Iterator[str]:
    """Reasons why the heads of a built model cannot be separated, or its features not be compared."""
    visual, text = model.visual, text_tower(model)
    if type(visual) is not VisionTransformer:
        yield f"its visual tower is a {type(visual).__name__}"
        return
    if text.prefix and type(text.module) is not TextTransformer:
        yield f"its text tower is a {type(text.module).__name__}"
        return
    if visual.pool_type == "none":
        what = "an AttentionalPooler for tokens" if visual.attn_pool is not None else "no pooling"
        yield f"its VisionTransformer has {what}, so there is no one feature of an image"
    if text.pool == "none":
        yield "its TextTransformer does not pool, so there is no one feature of a text"
    eos = tokenizer_of({"text_cfg": {}}).eot_token_id
    if text.pool == "eos" and text.eos != eos:
        yield f"its TextTransformer pools at token {text.eos}, open_clip's SimpleTokenizer ends a text with {eos}"
    if text.module.text_projection is None and text.module.ln_final.weight.shape[0] != visual.proj.shape[1]:
        yield "its TextTransformer has no projection, and another width than the features of images"
    for path, block in blocks_of(model):
        yield from _block_obstacles(path, block)


def _block_obstacles(path: str, block: Any) -> Iterator[str]:
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
    """Module path and block, visual tower first."""
    text = text_tower(model)
    return [
        (f"{prefix}transformer.resblocks.{index}", block)
        for prefix, tower in (("visual.", model.visual), (text.prefix, text.module))
        for index, block in enumerate(tower.transformer.resblocks)
    ]


def _refusal(name: str, reason: str) -> InputError:
    return InputError(f"open_clip's {name} is not supported: {reason}", hint=_SUPPORTED)


# --- towers in stages ------------------------------------------------------------------------------------------------


def _run(block: nn.Module, state: State) -> State:
    return State(block(state.hidden, attn_mask=state.context.get("attn_mask")), state.context)


def _attention_input(block: Any, state: State) -> Tensor:
    return block.ln_1(state.hidden)


def visual_stages(model: Any) -> Stages:
    """Stem and pooling are the library's own."""
    visual = model.visual

    def readout(state: State) -> Tensor:
        pooled, _ = visual._pool(state.hidden)
        return F.normalize(pooled @ visual.proj, dim=-1)

    blocks = visual.transformer.resblocks
    return Stages(
        stem=lambda images: State(visual._embeds(images)),
        blocks=[partial(_run, block) for block in blocks],
        block_paths=[f"visual.transformer.resblocks.{index}" for index in range(len(blocks))],
        stem_prefixes=("visual.conv1.", "visual.class_embedding", "visual.positional_embedding", "visual.ln_pre."),
        readout=readout,
        attention_inputs=[partial(_attention_input, block) for block in blocks],
        reads=first_tokens(1) if visual.attn_pool is None and visual.pool_type == "tok" else None,
        tower="visual",
        prefixes=("visual.",),
    )


def text_stages(model: Any) -> Stages:
    """As ``encode_text`` of the library, and its ``build_zero_shot_classifier`` over the prompts of a class."""
    tower = text_tower(model)
    holder, prefix = tower.module, tower.prefix

    def stem(inputs: Mapping[str, Tensor]) -> State:
        text = inputs["text"]
        tokens = text.shape[-1]
        # Written out, because the library's own stem asks the first block for its dtype, which may be another's.
        hidden = holder.token_embedding(text.flatten(0, 1)) + holder.positional_embedding[:tokens]
        mask = holder.attn_mask
        mask = None if mask is None else mask[:tokens, :tokens].to(hidden.dtype)
        return State(hidden, {"text": text, "attn_mask": mask})

    blocks = holder.transformer.resblocks
    return Stages(
        stem=stem,
        blocks=[partial(_run, block) for block in blocks],
        block_paths=[f"{prefix}transformer.resblocks.{index}" for index in range(len(blocks))],
        stem_prefixes=(f"{prefix}token_embedding.", f"{prefix}positional_embedding"),
        readout=lambda state: _class_features(tower, state),
        attention_inputs=[partial(_attention_input, block) for block in blocks],
        reads=lambda state: _pooled_tokens(tower, state),
        per_sample=("text",),
        tower="text",
        of_labels=True,
        prefixes=(
            ("text.",)
            if prefix
            else ("token_embedding.", "positional_embedding", "transformer.", "ln_final.", "text_projection")
        ),
    )


def _class_features(tower: TextTower, state: State) -> Tensor:
    """``[classes, D]`` from the states of all prompts ``[classes * prompts, T, d_model]``."""
    text, holder = state.context["text"], tower.module
    if "read" in state.context:
        features = holder.ln_final(state.hidden[:, 0])
    else:
        hidden = holder.ln_final(state.hidden)
        features = text_global_pool(hidden, text.flatten(0, 1), tower.pool, eos_token_id=tower.eos)
    projection = holder.text_projection
    if isinstance(projection, nn.Linear):
        features = projection(features)
    elif projection is not None:
        features = features @ projection
    return mean_features(features, text.shape[1])


def _pooled_tokens(tower: TextTower, state: State) -> Tensor:
    """The position ``[classes * prompts, 1]`` of the token that the library's own pooling takes."""
    text = state.context["text"].flatten(0, 1)
    positions = torch.arange(text.shape[1], device=text.device).expand(len(text), -1)
    return text_global_pool(positions[:, :, None], text, tower.pool, eos_token_id=tower.eos)
