"""transformers' encoders for classification: BERT and its kin, DistilBERT, ELECTRA, and vision transformers."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.errors import InputError, UsageError
from hydractl.families.base import ImageFormat, LoadedModel, ModelFamily, Stages, State, first_tokens
from hydractl.families.hf.architectures import (
    ARCHITECTURES,
    LAYOUTS,
    NORMS,
    READS,
    base_of,
    core_of,
    layout_of,
    meta_model,
    random_model,
)
from hydractl.families.hf.folder import WEIGHTS, download, open_folder
from hydractl.families.hf.images import image_collate, image_format, write_processor
from hydractl.families.hf.tokenizer import random_tokens, text_collate, write_tokenizer
from hydractl.families.pixels import random_pixels
from hydractl.families.torchvision_operators import declare_operators
from hydractl.heads.mask import Site
from hydractl.heads.weights import HeadWeights
from hydractl.jsonio import shown

declare_operators()

import transformers  # noqa: E402
from transformers.masking_utils import create_bidirectional_mask  # noqa: E402


class _InPlace(nn.Module):
    """:class:`hydractl.model.attention.HeadAttention` with the call and the answer of the library's attention."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> tuple[Tensor, None]:
        """Attend ``[M * B, T, d_model]``; the weights that the library's own would return are never looked at."""
        return self.attention(hidden_states, attn_mask=attention_mask), None


class HFEncoder(ModelFamily):
    """The classifiers of transformers whose heads can be taken apart."""

    name = "hf"
    named_parts = {  # noqa: RUF012 - as the protocol declares it
        "patch": r"\w+\.embeddings\.patch_embeddings\.",
        "position": r"\w+\.embeddings\.position_embeddings",
        "class_token": r"\w+\.embeddings\.(cls|distillation|mask)_token$",
        "words": r"\w+\.embeddings\.word_embeddings\.",
        "head": r"(cls_|distillation_)?classifier\.(out_proj\.)?(weight|bias)$",
    }

    @property
    def version(self) -> str:
        """The version of transformers."""
        return transformers.__version__

    # --- finding a model ----------------------------------------------------------------------------------------------

    def load_folder(self, folder: Path) -> LoadedModel | None:
        """A folder with transformers' ``config.json`` and ``model.safetensors``."""
        return open_folder(folder)

    def load_name(self, name: str, options: Mapping[str, Any], seed: int) -> LoadedModel:
        """``hf:ORG/NAME`` from the hub; safetensors only, never any code of the repository."""
        if options:
            raise UsageError(
                f"hf:{name} takes no options ({', '.join(sorted(options))})",
                hint="weights of your own open as a folder: model.safetensors beside config.json",
            )
        loaded = open_folder(download(name))
        if loaded is None:
            raise InputError(f"{name} is not a model of transformers: its config.json names no architecture")
        return loaded

    def export_folder(
        self,
        folder: Path,
        config: Mapping[str, Any],
        preprocess: Mapping[str, Any],
        labels: Sequence[str] | None,
    ) -> str:
        """Write ``config.json`` and the tokenizer or image processor; the weights belong into ``model.safetensors``."""
        document = dict(config)
        if labels is not None:
            document["id2label"] = {str(index): label for index, label in enumerate(labels)}
            document["label2id"] = {label: index for index, label in enumerate(labels)}
        text = json.dumps(document, indent=2, sort_keys=True) + "\n"
        (folder / "config.json").write_text(text, encoding="utf-8")
        (write_tokenizer if _is_text(preprocess) else write_processor)(folder, preprocess)
        return WEIGHTS

    # --- structure ----------------------------------------------------------------------------------------------------

    def build(self, config: Mapping[str, Any]) -> nn.Module:
        """The library's model with its parameters on the meta device and its buffers real."""
        return copy.deepcopy(meta_model(config))

    def sites(self, config: Mapping[str, Any]) -> list[Site]:
        """``bert.encoder.layer.0.attention`` and so on: the block that holds all four projections."""
        model = meta_model(config)
        base, layout = base_of(model)
        prefix, _ = ARCHITECTURES[type(model).__name__]
        heads = model.config.num_attention_heads
        sites = []
        for index, layer in enumerate(base.get_submodule(layout.layers)):
            out = layer.attention.get_submodule(layout.o)
            path = f"{prefix}.{layout.layers}.{index}.attention"
            sites.append(Site(path, heads, out.in_features // heads, out.out_features))
        return sites

    def classes(self, config: Mapping[str, Any]) -> int:
        """Number of classes of the classifier."""
        return int(meta_model(config).config.num_labels)

    def read(self, tensors: Mapping[str, Tensor], site: Site) -> HeadWeights:
        """Queries, keys, values are ``[heads * head_dim, d_model]``, the output ``[d_model, heads * head_dim]``."""
        dk, layout = site.head_dim, layout_of(site.path)
        weights: dict[str, Tensor | None] = {}
        for side in ("q", "k", "v"):
            name = f"{site.path}.{getattr(layout, side)}"
            weight, bias = tensors[f"{name}.weight"], tensors.get(f"{name}.bias")
            heads = weight.shape[0] // dk
            weights[side] = weight.reshape(heads, dk, weight.shape[1])
            weights[f"{side}_bias"] = None if bias is None else bias.reshape(heads, dk)
        out = tensors[f"{site.path}.{layout.o}.weight"]  # [d, h dk]
        return HeadWeights(
            o=out.reshape(out.shape[0], out.shape[1] // dk, dk).permute(1, 0, 2),
            o_bias=tensors.get(f"{site.path}.{layout.o}.bias"),
            **weights,  # type: ignore[arg-type]
        )

    def write(self, tensors: MutableMapping[str, Tensor], site: Site, weights: HeadWeights) -> None:
        """The inverse of :meth:`read`."""
        layout = layout_of(site.path)
        put: dict[str, Tensor | None] = {
            f"{layout.o}.weight": weights.o.permute(1, 0, 2).flatten(1),
            f"{layout.o}.bias": weights.o_bias,
        }
        for side in ("q", "k", "v"):
            bias = getattr(weights, f"{side}_bias")
            put[f"{getattr(layout, side)}.weight"] = getattr(weights, side).flatten(0, 1)
            put[f"{getattr(layout, side)}.bias"] = None if bias is None else bias.flatten()
        for name, tensor in put.items():
            if tensor is not None:
                tensors[f"{site.path}.{name}"] = tensor

    def part(self, name: str, sites: Sequence[Site]) -> str:
        """By the library's names; what belongs to no base model is the classifier."""
        base, _, rest = name.partition(".")
        layout = LAYOUTS.get(base)
        if layout is None:
            return "own"
        if rest.startswith(("embeddings.", "embeddings_project.")):
            return "embed"
        if not rest.startswith(f"{layout.layers}."):
            return "norm" if rest.startswith("layernorm.") else "own"
        module, *inside = rest.removeprefix(f"{layout.layers}.").split(".")[1:]
        if module in NORMS or "LayerNorm" in inside:
            return "norm"
        if module == "attention":
            return "attention"
        return "mlp" if module in ("intermediate", "output", "ffn", "mlp") else "own"

    def dropouts(self, model: nn.Module, site: Site) -> tuple[float, float]:
        """The rate of the attention weights; the dropout of the output stays the library's own."""
        core: Any = core_of(model.get_submodule(site.path), layout_of(site.path))
        rate = core.attention_dropout if hasattr(core, "attention_dropout") else core.dropout.p
        return float(rate), 0.0

    def install(self, model: nn.Module, site: Site, attention: nn.Module) -> None:
        """Replace what computes attention. Residual, dropout and norm of BERT's ``attention.output`` stay in place."""
        layout = layout_of(site.path)
        if not layout.core:
            parent, _, leaf = site.path.rpartition(".")
            setattr(model.get_submodule(parent), leaf, _InPlace(attention))
            return
        block: Any = model.get_submodule(site.path)
        setattr(block, layout.core, _InPlace(attention))
        block.output.dense = nn.Identity()  # HeadAttention has done that projection

    def stages(self, model: Any) -> list[Stages]:
        """Stem: embeddings and the mask. Readout: final norm or pooler, and the classifier."""
        base, layout = base_of(model)
        prefix, readout = ARCHITECTURES[type(model).__name__]
        layers = base.get_submodule(layout.layers)

        def stem(inputs: Any) -> State:
            return _stem(base, inputs)

        def block(layer: nn.Module) -> Callable[[State], State]:
            return lambda state: State(
                layer(state.hidden, attention_mask=state.context["attention_mask"]), state.context
            )

        def attention_input(layer: Any) -> Callable[[State], Tensor]:
            return lambda state: getattr(layer, layout.norm)(state.hidden) if layout.norm else state.hidden

        count = READS.get(readout, 1)
        tower = Stages(
            stem=stem,
            blocks=[block(layer) for layer in layers],
            block_paths=[f"{prefix}.{layout.layers}.{index}" for index in range(len(layers))],
            stem_prefixes=(f"{prefix}.embeddings.", f"{prefix}.embeddings_project."),
            readout=lambda state: readout(model, base, state.hidden),
            attention_inputs=[attention_input(layer) for layer in layers],
            reads=None if count is None else first_tokens(count),
            per_sample=("attention_mask",),
        )
        return [tower]

    # --- data ---------------------------------------------------------------------------------------------------------

    def collate(self, preprocess: Mapping[str, Any]) -> Callable[[list[Any]], Any]:
        """The library's tokenizer on texts or pairs of texts, its image processor on PIL images."""
        return text_collate(preprocess) if _is_text(preprocess) else image_collate(preprocess)

    def example_inputs(self, preprocess: Mapping[str, Any], batch: int, seed: int) -> Any:
        """Random tokens without padding, or random pixels."""
        if _is_text(preprocess):
            return random_tokens(preprocess, batch, seed)
        return random_pixels(preprocess["input_size"], batch, seed)

    def longest_text(self, preprocess: Mapping[str, Any]) -> int | None:
        """From the settings of the tokenizer."""
        return int(preprocess["tokenizer"]["model_max_length"]) if _is_text(preprocess) else None

    # --- training -----------------------------------------------------------------------------------------------------

    def image_format(self, preprocess: Mapping[str, Any]) -> ImageFormat:
        """From the settings of the library's image processor."""
        return super().image_format(preprocess) if _is_text(preprocess) else image_format(preprocess)

    def initial(self, config: Mapping[str, Any], seed: int) -> dict[str, Tensor]:
        """By transformers' own initialisation."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return dict(random_model(config).state_dict())

    def with_classes(self, config: Mapping[str, Any], classes: int) -> dict[str, Any]:
        """``num_labels``, and no more names of the old ones."""
        kept = {key: value for key, value in config.items() if key not in ("id2label", "label2id")}
        return {**kept, "num_labels": classes}

    def with_dropout(self, config: Mapping[str, Any], rate: float) -> dict[str, Any]:
        """``hidden_dropout_prob``, which DistilBERT calls ``dropout``."""
        key = next((name for name in ("hidden_dropout_prob", "dropout") if name in config), None)
        if key is None:
            raise UsageError(f"--dropout: {meta_model(config).config.model_type} has no dropout behind its layers")
        return {**config, key: rate}


def _stem(base: Any, inputs: Any) -> State:
    """The part of the library's own forward before its first layer."""
    if isinstance(inputs, Mapping) and "input_ids" in inputs:
        mask = inputs.get("attention_mask")
        hidden = base.embeddings(**{k: v for k, v in inputs.items() if k in ("input_ids", "token_type_ids")})
        if hasattr(base, "embeddings_project"):
            hidden = base.embeddings_project(hidden)
    else:
        mask = None
        hidden = base.embeddings(inputs["pixel_values"] if isinstance(inputs, Mapping) else inputs)
    if mask is not None and mask.is_meta:
        mask = None  # the library looks at the numbers of a mask; where there are none, only shapes are asked for
    mask = create_bidirectional_mask(config=base.config, inputs_embeds=hidden, attention_mask=mask)
    return State(hidden, {"attention_mask": mask})


def _is_text(preprocess: Mapping[str, Any]) -> bool:
    kind = preprocess.get("kind")
    if kind not in ("text", "image"):
        raise InputError(f"the preprocessing is neither of text nor of images but of {shown(kind)}")
    return kind == "text"


FAMILY = HFEncoder()
