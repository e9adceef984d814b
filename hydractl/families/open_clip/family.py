"""open_clip's CLIP: two towers, of images and of texts; classes are given by name."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.errors import UsageError
from hydractl.families.base import ImageFormat, LoadedModel, ModelFamily, Stages, read_packed, write_packed
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
from hydractl.families.torchvision_operators import declare_operators
from hydractl.heads.mask import Site
from hydractl.heads.weights import HeadWeights

declare_operators()

import open_clip  # noqa: E402
from open_clip.transformer import ResidualAttentionBlock  # noqa: E402

_BLOCK = r"(visual\.|text\.)?transformer\.resblocks\.\d+\."
_PARTS = (
    ("attention", rf"{_BLOCK}attn\."),
    ("mlp", rf"{_BLOCK}mlp\."),
    ("norm", rf"{_BLOCK}ln_(1|2|attn)\.|visual\.ln_(pre|post)\.|(text\.)?ln_final\."),
    ("embed", r"visual\.(conv1\.|class_embedding$)|((visual|text)\.)?positional_embedding$|(text\.)?token_embedding\."),
)
# A query or key norm of a head: open_clip's name of it, and what the rest of hydractl calls it.
_HEAD_NORMS = {"ln_q": "q_norm", "ln_k": "k_norm"}


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
    priority = 1  # its folders often hold the config.json of another library as well
    builds_by_name = True
    named_parts = {  # noqa: RUF012 - as the protocol declares it
        "patch": r"visual\.conv1\.",
        "position": r"((visual|text)\.)?positional_embedding$",
        "class_token": r"visual\.class_embedding$",
        "words": r"(text\.)?token_embedding\.",
        "scale": r"logit_(scale|bias)$",
    }

    @property
    def version(self) -> str:
        """The version of open_clip."""
        return open_clip.__version__

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
        if options:
            raise UsageError(
                f"open_clip:{name} with pretrained weights takes no options ({', '.join(sorted(options))})",
                hint="add pretrained=0 to start from random weights",
            )
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
        text = json.dumps(document, indent=2, sort_keys=True) + "\n"
        (folder / CONFIG).write_text(text, encoding="utf-8")
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

    def read(self, tensors: Mapping[str, Tensor], site: Site) -> HeadWeights:
        """``in_proj_weight`` is ``[3 * heads * head_dim, d]``, ``out_proj.weight`` ``[d, heads * head_dim]``."""

        def get(name: str) -> Tensor | None:
            return tensors.get(f"{site.path}.{name}")

        packed, out = tensors[f"{site.path}.in_proj_weight"], tensors[f"{site.path}.out_proj.weight"]
        norms = [(f"{a}.{leaf}", f"{b}.{leaf}") for a, b in _HEAD_NORMS.items() for leaf in ("weight", "bias")]
        return replace(
            read_packed(packed, get("in_proj_bias"), out, site.head_dim),
            o_bias=get("out_proj.bias"),
            extra={ours: tensor for theirs, ours in norms if (tensor := get(theirs)) is not None},
        )

    def write(self, tensors: MutableMapping[str, Tensor], site: Site, weights: HeadWeights) -> None:
        """The inverse of :meth:`read`."""
        packed, bias, out = write_packed(weights)
        put: dict[str, Tensor | None] = {
            "in_proj_weight": packed,
            "in_proj_bias": bias,
            "out_proj.weight": out,
            "out_proj.bias": weights.o_bias,
        }
        for theirs, ours in _HEAD_NORMS.items():
            put |= {f"{theirs}.{leaf}": weights.extra.get(f"{ours}.{leaf}") for leaf in ("weight", "bias")}
        for name, tensor in put.items():
            if tensor is not None:
                tensors[f"{site.path}.{name}"] = tensor

    def part(self, name: str, sites: Sequence[Site]) -> str:
        """By open_clip's names; projections, scales, LayerScale and attention pooling are a model's own."""
        return next((part for part, pattern in _PARTS if re.match(pattern, name)), "own")

    def norms(self, model: nn.Module, site: Site) -> tuple[nn.Module, nn.Module]:
        """``ln_q`` and ``ln_k`` of open_clip's own attention, which act on one head at a time; else none."""
        attention = model.get_submodule(site.path)
        return getattr(attention, "ln_q", nn.Identity()), getattr(attention, "ln_k", nn.Identity())

    def dropouts(self, model: nn.Module, site: Site) -> tuple[float, float]:
        """Rates of the attention weights and of the output; no configuration of open_clip sets them."""
        attention: Any = model.get_submodule(site.path)
        if isinstance(attention, nn.MultiheadAttention):
            return attention.dropout, 0.0
        return attention.attn_drop.p, attention.out_drop.p

    def install(self, model: nn.Module, site: Site, attention: nn.Module) -> None:
        """Replace ``resblocks.N.attn``."""
        block: Any = model.get_submodule(site.path.removesuffix(".attn"))
        block.attn = _InPlace(attention) if isinstance(block, ResidualAttentionBlock) else attention

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
