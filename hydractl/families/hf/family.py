"""transformers' encoders for classification: BERT and its kin, DistilBERT, ELECTRA, and vision transformers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.masking_utils import create_bidirectional_mask

from hydractl.errors import InputError, UsageError
from hydractl.families.base import AttentionLayout, ImageFormat, LoadedModel, ModelFamily, Stages, State, first_tokens
from hydractl.families.hf.architectures import (
    ARCHITECTURES,
    LAYOUTS,
    READS,
    base_of,
    core_of,
    layout_of,
    meta_model,
    random_model,
)
from hydractl.families.hf.folder import OTHER_FILES, WEIGHTS, open_folder
from hydractl.families.hf.inputs import (
    image_collate,
    image_format,
    random_tokens,
    text_collate,
    write_processor,
    write_tokenizer,
)
from hydractl.families.pixels import random_pixels
from hydractl.families.reading import download, refuse_options, write_config
from hydractl.heads.mask import Site
from hydractl.jsonio import shown


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


_LAYER = r"\w+\.(encoder\.layer|transformer\.layer|layers)\.\d+\."
_NORM = "(sa_layer_norm|output_layer_norm|layernorm_before|layernorm_after|norm1|norm2)"


class HFEncoder(ModelFamily):
    """The classifiers of transformers whose heads can be taken apart."""

    name = "hf"
    version = transformers.__version__
    parts = {  # noqa: RUF012 - as the protocol declares it
        "embed": rf"({'|'.join(LAYOUTS)})\.(embeddings|embeddings_project)\.",
        "norm": rf"{_LAYER}({_NORM}\.|.*\.LayerNorm\.)|({'|'.join(LAYOUTS)})\.layernorm\.",
        "attention": rf"{_LAYER}attention\.",
        "mlp": rf"{_LAYER}(intermediate|output|ffn|mlp)\.",
    }
    named_parts = {  # noqa: RUF012 - as the protocol declares it
        "patch": r"\w+\.embeddings\.patch_embeddings\.",
        "position": r"\w+\.embeddings\.position_embeddings",
        "class_token": r"\w+\.embeddings\.(cls|distillation|mask)_token$",
        "words": r"\w+\.embeddings\.word_embeddings\.",
        "head": r"(cls_|distillation_)?classifier\.(out_proj\.)?(weight|bias)$",
    }

    # --- finding a model ----------------------------------------------------------------------------------------------

    def load_folder(self, folder: Path) -> LoadedModel | None:
        """A folder with transformers' ``config.json`` and ``model.safetensors``."""
        return open_folder(folder)

    def load_name(self, name: str, options: Mapping[str, Any], seed: int) -> LoadedModel:
        """``hf:ORG/NAME`` from the hub; safetensors only, never any code of the repository."""
        hint = "weights of your own open as a folder: model.safetensors beside config.json"
        refuse_options(f"hf:{name}", options, hint)
        loaded = open_folder(download(name, ("config.json", WEIGHTS), OTHER_FILES))
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
        write_config(folder / "config.json", document)
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
            out = layer.attention.get_submodule(layout.heads.out)
            path = f"{prefix}.{layout.layers}.{index}.attention"
            sites.append(Site(path, heads, out.in_features // heads, out.out_features))
        return sites

    def classes(self, config: Mapping[str, Any]) -> int:
        """Number of classes of the classifier."""
        return int(meta_model(config).config.num_labels)

    def layout(self, site: Site) -> AttentionLayout:
        """By the kind of encoder, which every path starts with."""
        return layout_of(site.path).heads

    def dropouts(self, model: nn.Module, site: Site) -> tuple[float, float]:
        """The rate of the attention weights; the dropout of the output stays the library's own."""
        core: Any = core_of(model.get_submodule(site.path), layout_of(site.path))
        rate = core.attention_dropout if hasattr(core, "attention_dropout") else core.dropout.p
        return float(rate), 0.0

    def install(self, model: nn.Module, site: Site, attention: nn.Module) -> None:
        """Replace what computes attention. Residual, dropout and norm of BERT's ``attention.output`` stay in place."""
        layout = layout_of(site.path)
        if not layout.core:
            super().install(model, site, _InPlace(attention))
            return
        block: Any = model.get_submodule(site.path)
        setattr(block, layout.core, _InPlace(attention))
        block.output.dense = nn.Identity()  # HeadAttention has done that projection

    def stages(self, model: Any) -> list[Stages]:
        """Stem: embeddings and the mask. Readout: final norm or pooler, and the classifier."""
        base, layout = base_of(model)
        prefix, readout = ARCHITECTURES[type(model).__name__]
        layers = base.get_submodule(layout.layers)

        count = READS.get(readout, 1)
        tower = Stages(
            stem=partial(_stem, base),
            blocks=[partial(_run, layer) for layer in layers],
            block_paths=[f"{prefix}.{layout.layers}.{index}" for index in range(len(layers))],
            stem_prefixes=(f"{prefix}.embeddings.", f"{prefix}.embeddings_project."),
            readout=lambda state: readout(model, base, state.hidden),
            attention_inputs=[partial(_attention_input, layout.norm, layer) for layer in layers],
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


def _run(layer: nn.Module, state: State) -> State:
    return State(layer(state.hidden, attention_mask=state.context["attention_mask"]), state.context)


def _attention_input(norm: str, layer: Any, state: State) -> Tensor:
    return getattr(layer, norm)(state.hidden) if norm else state.hidden


def _is_text(preprocess: Mapping[str, Any]) -> bool:
    kind = preprocess.get("kind")
    if kind not in ("text", "image"):
        raise InputError(f"the preprocessing is neither of text nor of images but of {shown(kind)}")
    return kind == "text"


FAMILY = HFEncoder()
