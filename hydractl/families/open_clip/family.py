"""open_clip's CLIP: two towers, of images and of texts; classes are given by name."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import open_clip
import torch
from open_clip.transformer import ResidualAttentionBlock
from torch import Tensor, nn

from hydractl.families.base import AttentionLayout, ImageFormat, LoadedModel, ModelFamily, Stages
from hydractl.families.open_clip.folder import (
    CONFIG,
    WEIGHTS,
    drawn_weights,
    open_folder,
    published_model,
    random_model,
)
from hydractl.families.open_clip.inputs import (
    filled_templates,
    image_collate,
    pooled_at,
    published_preprocess,
    tokenizer_of,
)
from hydractl.families.open_clip.models import blocks_of, skeleton, text_stages, text_tower, visual_stages
from hydractl.families.pixels import random_pixels
from hydractl.families.reading import refuse_options, write_config
from hydractl.heads.mask import Site

_BLOCK = r"(visual\.|text\.)?transformer\.resblocks\.\d+\."


class _InPlace(nn.Module):
    """:class:`hydractl.model.attention.HeadAttention` with the call and the answer of ``nn.MultiheadAttention``."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, need_weights: bool = False, attn_mask: Tensor | None = None
    ) -> tuple[Tensor, None]:
        """Self-attention of ``query`` ``[M * B, T, d_model]``: the blocks give it as key and value too."""
        return self.attention(query, attn_mask=attn_mask), None


class OpenClip(ModelFamily):
    """open_clip's ``CLIP`` and ``CustomTextCLIP`` with the library's own transformers in both towers."""

    name = "open_clip"
    version = open_clip.__version__
    priority = 1  # its folders often hold the config.json of another library as well
    builds_by_name = True
    attention = AttentionLayout(("in_proj_",), "out_proj", q_norm="ln_q", k_norm="ln_k")
    parts = {  # noqa: RUF012 - as the protocol declares it
        "attention": rf"{_BLOCK}attn\.",
        "mlp": rf"{_BLOCK}mlp\.",
        "norm": rf"{_BLOCK}ln_(1|2|attn)\.|visual\.ln_(pre|post)\.|(text\.)?ln_final\.",
        "embed": r"visual\.(conv1\.|class_embedding$)|((visual|text)\.)?positional_embedding$"
        r"|(text\.)?token_embedding\.",
    }
    named_parts = {  # noqa: RUF012 - as the protocol declares it
        "patch": r"visual\.conv1\.",
        "position": r"((visual|text)\.)?positional_embedding$",
        "class_token": r"visual\.class_embedding$",
        "words": r"(text\.)?token_embedding\.",
        "scale": r"logit_(scale|bias)$",
    }

    # --- finding a model ----------------------------------------------------------------------------------------------

    def load_folder(self, folder: Path) -> LoadedModel | None:
        """A folder with ``open_clip_config.json`` and ``open_clip_model.safetensors``."""
        return open_folder(folder)

    def load_name(self, name: str, options: Mapping[str, Any], seed: int) -> LoadedModel:
        """``open_clip:ARCH/TAG`` from the hub, or random weights with ``pretrained=0`` and any setting of the model.

        Random weights take a tag too, which then only says how images are prepared and which activation is used.
        """
        options = dict(options)
        if not options.pop("pretrained", True):
            return random_model(name, options, seed)
        hint = "add pretrained=0 to start from random weights"
        refuse_options(f"open_clip:{name} with pretrained weights", options, hint)
        return published_model(name)

    def export_folder(
        self,
        folder: Path,
        config: Mapping[str, Any],
        preprocess: Mapping[str, Any],
        labels: Sequence[str] | None,
    ) -> str:
        """Write ``open_clip_config.json``; the weights belong into ``open_clip_model.safetensors``.

        open_clip's tokenizer comes with the library, and its folders know no class names.
        """
        document = {"model_cfg": dict(config), "preprocess_cfg": published_preprocess(preprocess)}
        write_config(folder / CONFIG, document)
        return WEIGHTS

    # --- structure ----------------------------------------------------------------------------------------------------

    def build(self, config: Mapping[str, Any]) -> nn.Module:
        """The library's model with its parameters on the meta device and its causal mask real."""
        return copy.deepcopy(skeleton(config))

    def sites(self, config: Mapping[str, Any]) -> list[Site]:
        """``visual.transformer.resblocks.0.attn`` and so on, then ``transformer.resblocks.0.attn`` and so on."""
        sites = []
        for path, block in blocks_of(skeleton(config)):
            width, heads = block.attn.out_proj.in_features, block.attn.num_heads
            tower = "visual" if path.startswith("visual.") else "text"
            sites.append(Site(f"{path}.attn", heads, width // heads, width, tower))
        return sites

    def classes(self, config: Mapping[str, Any]) -> None:
        """None: the classes are given by name."""
        return None

    def prompts(
        self, config: Mapping[str, Any], labels: Sequence[str], templates: Sequence[str]
    ) -> Mapping[str, Tensor]:
        """``{"text": [classes, templates, tokens]}``, by open_clip's own tokenizer.

        Where no token behind the end of a text counts (a causal tower that pools there), what lies behind the longest
        of these texts is left out: the features are the same, for a small part of the work.
        """
        texts = filled_templates(labels, templates)
        text = tokenizer_of(config)(texts)
        tower = text_tower(skeleton(config))
        if tower.ends_early:
            text = text[:, : int(pooled_at(text, tower.pool, tower.eos).max()) + 1]
        return {"text": text.reshape(len(labels), len(templates), -1)}

    def dropouts(self, model: nn.Module, site: Site) -> tuple[float, float]:
        """Rates of the attention weights and of the output; no configuration of open_clip sets them."""
        attention: Any = model.get_submodule(site.path)
        if isinstance(attention, nn.MultiheadAttention):
            return attention.dropout, 0.0
        return attention.attn_drop.p, attention.out_drop.p

    def install(self, model: nn.Module, site: Site, attention: nn.Module) -> None:
        """Replace ``resblocks.N.attn``."""
        block: Any = model.get_submodule(site.path.removesuffix(".attn"))
        super().install(model, site, _InPlace(attention) if isinstance(block, ResidualAttentionBlock) else attention)

    def stages(self, model: Any) -> list[Stages]:
        """The visual tower reads images, the text tower the prompts of the classes."""
        return [visual_stages(model), text_stages(model)]

    def logits(self, model: Any, outputs: Sequence[Tensor]) -> Tensor:
        """``[B, classes]``: scaled (and shifted) cosines of images ``[B, D]`` and classes ``[classes, D]``."""
        images, classes = outputs
        logits = model.logit_scale.exp() * images @ classes.T
        return logits if model.logit_bias is None else logits + model.logit_bias

    # --- data ---------------------------------------------------------------------------------------------------------

    def collate(self, preprocess: Mapping[str, Any]) -> Callable[[list[Any]], Tensor]:
        """open_clip's own evaluation transform on PIL images; returns ``[B, 3, H, W]``."""
        return image_collate(preprocess)

    def example_inputs(self, preprocess: Mapping[str, Any], batch: int, seed: int) -> Tensor:
        """Standard normal pixels ``[B, 3, H, W]``."""
        return random_pixels((3, *preprocess["size"]), batch, seed)

    # --- training -----------------------------------------------------------------------------------------------------

    def image_format(self, preprocess: Mapping[str, Any]) -> ImageFormat:
        """From open_clip's ``PreprocessCfg``; its ``random`` interpolation is bilinear here."""
        interpolation, (height, width) = preprocess["interpolation"], preprocess["size"]
        return ImageFormat(
            (3, height, width),
            tuple(preprocess["mean"]),
            tuple(preprocess["std"]),
            "bilinear" if interpolation == "random" else interpolation,
        )

    def initial(self, config: Mapping[str, Any], seed: int) -> dict[str, Tensor]:
        """By open_clip's own initialisation."""
        return drawn_weights(config, seed)

    def too_long(self, config: Mapping[str, Any], texts: Sequence[str]) -> tuple[int, int]:
        """By open_clip's own tokenizer, whose marks of start and end count."""
        tokenizer = tokenizer_of(config)
        most = tokenizer.context_length
        return sum(len(tokenizer.encode(text)) + 2 > most for text in texts), most

    def judges_each_pair(self, model: Any) -> bool:
        """A model with a bias of its logits is one of SigLIP's."""
        return model.logit_bias is not None

    def bound_scale(self, model: Any) -> None:
        """Between 1 and 100, as ``open_clip_train`` does after each step."""
        if model.logit_scale.requires_grad:
            with torch.no_grad():
                model.logit_scale.clamp_(0, math.log(100))

    # --- MC dropout ---------------------------------------------------------------------------------------------------

    adds_dropout = True

    def add_dropout(self, model: Any, rate: float) -> None:
        """Behind ``ls_1`` and ``ls_2`` of the visual blocks: what these give is added to the residual stream."""
        for block in model.visual.transformer.resblocks:
            for name in ("ls_1", "ls_2"):
                setattr(block, name, nn.Sequential(getattr(block, name), nn.Dropout(rate).eval()))


FAMILY = OpenClip()
