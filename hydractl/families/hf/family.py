"""transformers' encoders for classification: BERT and its kin, DistilBERT, ELECTRA, vision transformers, and CLIPs."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.core_model_loading import revert_weight_conversion
from transformers.masking_utils import create_bidirectional_mask, create_bidirectional_sliding_window_mask

from hydractl.errors import InputError, UsageError
from hydractl.families.base import (
    AttentionLayout,
    ImageFormat,
    LoadedModel,
    ModelFamily,
    Stages,
    State,
    first_tokens,
    for_each,
)
from hydractl.families.hf import clip, dinov3, relative
from hydractl.families.hf.architectures import (
    LAYOUTS,
    TWO_TOWERS,
    EncoderLayout,
    EncoderTower,
    absent_from,
    class_name,
    drawn_model,
    implementation,
    is_decoder,
    layers_of,
    meta_model,
    quiet,
    readout_of,
    towers_of,
    without_traces,
)
from hydractl.families.hf.decoders import (
    PER_SAMPLE,
    decoder_stem,
    kinds_of_layers,
    longest_text_of,
    run_decoder_layer,
    turn_of,
    with_padding,
)
from hydractl.families.hf.inputs import (
    TOKENIZER_FILES,
    image_collate,
    image_format,
    image_preprocess,
    padding_of,
    random_images,
    random_tokens,
    text_collate,
    text_preprocess,
    write_processor,
    write_tokenizer,
)
from hydractl.families.library_json import LibraryConfig, Preprocessing, integer_in, object_in
from hydractl.families.prompts import scaled_cosines
from hydractl.families.reading import (
    checkpoint_on_hub,
    from_hub,
    published_weights,
    read_config,
    refuse_options,
    refused_as,
    write_config,
)
from hydractl.files.checkpoint import DictTensors, TensorSource
from hydractl.files.header import TensorInfo, torch_dtype
from hydractl.heads.mask import Site
from hydractl.jsonio import shown


class _StandIn(nn.Module):
    """:class:`hydractl.model.attention.HeadAttention` with the call and the answer of the library's attention."""

    def __init__(self, attention: nn.Module, library: Any) -> None:
        super().__init__()
        self.attention = attention
        self.turn = turn_of(library)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        """Attend ``[M * B, T, d_model]``, with cosines and sines ``[1, T, head_dim]`` where positions are rotary.

        In place of the attention weights, which nothing reads, None is returned.
        """
        rotary = None
        if position_embeddings is not None and self.turn is not None:
            cos, sin = position_embeddings
            rotary = self.turn(_at_least_float32(cos), _at_least_float32(sin))
        return self.attention(hidden_states, attn_mask=attention_mask, rotary=rotary), None


def _at_least_float32(angles: Tensor) -> Tensor:
    """Return cosines or sines as the library uses them, ``[1, T, head_dim]`` as ``[1, 1, T, head_dim]``."""
    return angles.to(torch.promote_types(angles.dtype, torch.float32))[:, None]


_WEIGHTS = "model.safetensors"
_OTHER_FILES = (
    *("preprocessor_config.json", "processor_config.json", *TOKENIZER_FILES),
    *("model.safetensors.index.json", "model-*-of-*.safetensors"),
)
_NEVER = (
    ("auto_map", "code of its own", "where its class is one of transformers itself, remove auto_map from config.json"),
    ("quantization_config", "quantized weights", "transformers writes plain ones: model.dequantize(), save_pretrained"),
)
# The default image processor of each model type that reads images.
_PROCESSORS = {
    "vit": "ViTImageProcessor",
    "vit_msn": "ViTImageProcessor",
    "ijepa": "ViTImageProcessor",
    "swin": "ViTImageProcessor",
    "swinv2": "ViTImageProcessor",
    "deit": "DeiTImageProcessor",
    "dinov2": "BitImageProcessor",
    "dinov2_with_registers": "BitImageProcessor",
    "dinov3_vit": "DINOv3ViTImageProcessor",
    "clip": "CLIPImageProcessor",
    "metaclip_2": "CLIPImageProcessor",
    "siglip": "SiglipImageProcessor",
    "siglip2": "Siglip2ImageProcessor",
    "beit": "BeitImageProcessor",
    "data2vec-vision": "BeitImageProcessor",
}
# How the names of what a body comes with start, its pooler included where a classifier of the library has none.
_OTHER_TASKS = (
    r"(cls|lm_head|(lm|mask)_predictions|vocab_\w+|predictions|discriminator_predictions|generator_\w+|qa_outputs|decoder|classifier|"
    r"(\w+\.)?pooler)\."
)
_LAYER = r"\w+\.(encoder\.layers?|transformer\.layer|layers?|h)\.\d+\.(blocks\.\d+\.)?"
# How configurations name width, heads and MLP.
_WIDTHS = (("hidden_size", "num_attention_heads", "intermediate_size"), ("dim", "n_heads", "hidden_dim"))
_NORM = (
    "((sa_|output_)?layer_?norm(_before|_after|1|2)?|norm1|norm2|attn_norm|mlp_norm|input_layernorm|"
    r"post_attention_layernorm|pre_feedforward_layernorm|post_feedforward_layernorm|ln_1|ln_2|downsample\.norm)"
)


class HFEncoder(ModelFamily):
    """The classifiers of transformers whose heads can be taken apart."""

    name = "hf"
    version = transformers.__version__
    parts = {  # noqa: RUF012 - as the protocol declares it
        "embed": rf"(({'|'.join(LAYOUTS)})\.)?"
        r"((embeddings|embeddings_project|embed_tokens|wte|wpe|shared_position_bias)\.|"
        r"encoder\.(rel_embeddings|relative_attention_bias|relative_position_bias|layers\.\d+\.downsample\.reduction)\.)",
        "norm": rf"{_LAYER}({_NORM}\.|.*\.LayerNorm\.)"
        rf"|(({'|'.join(LAYOUTS)})\.)?"
        r"((pooler\.)?layernorm|LayerNorm|final_norm|pre_layrnorm|post_layernorm|final_layer_norm|norm|ln_f|"
        r"encoder\.LayerNorm)\.",
        "attention": rf"{_LAYER}(attention|attn|self_attn|relative_position_bias)\.",
        "mlp": rf"{_LAYER}(intermediate|output|ffn|mlp)\.",
    }
    named_parts = {  # noqa: RUF012 - as the protocol declares it
        "patch": r"(\w+\.)?embeddings\.patch_embeddings?\.",
        "position": r"\w+\.(embeddings\.position_embeddings?|wpe\.)",
        "class_token": r"(\w+\.)?embeddings\.((cls|distillation|mask)_token|register_tokens|class_embedding)$",
        "words": r"\w+\.(embeddings\.((word|tok)_embeddings|token_embedding)|embed_tokens|wte)\.",
        "layer_scale": r".*\.(layer_scale[12]\.lambda1|lambda_[12])$",
        "scale": r"logit_(scale|bias)$",
        "head": r"((cls_|distillation_)?classifier|score)\.(out_proj\.)?(weight|bias)$",
    }

    # --- finding a model ----------------------------------------------------------------------------------------------

    def load_folder(self, folder: Path) -> LoadedModel | None:
        """Load a folder with transformers' ``config.json`` and ``model.safetensors``."""
        published = read_config(folder / "config.json")
        if published is None or "architectures" not in published or "model_type" not in published:
            return None
        config = _config_of(published, str(folder))
        # The library reads pickles with torch's weights_only, which runs no code, and writes safetensors.
        architectures: Any = published["architectures"]
        published_as = architectures[0]
        hint = f"transformers.{published_as}.from_pretrained({str(folder)!r}).save_pretrained(OUT) writes safetensors"
        weights = published_weights(folder / _WEIGHTS, hint)
        if config.get("num_labels") == 0:
            config["absent"] = absent_from(config, weights.names())
        model = meta_model(config)
        is_zero_shot = type(model).__name__ in TWO_TOWERS
        tensors: TensorSource = weights
        left: list[str] = []
        if set(weights.names()) != set(model.state_dict()):
            # Older names, a body, or a mistake: the library knows the first two and the answer to it tells the last.
            tensors, left = _converted(weights, folder, model)
        preprocess = _preprocess(folder, model)
        if is_decoder(model):
            config = dict(with_padding(config, padding_of(preprocess), str(folder)))
        return LoadedModel(
            arch=class_name(config),
            config=config,
            tensors=tensors,
            preprocess=preprocess,
            labels=None if is_zero_shot else _labels(published, model.config.num_labels),
            left=left,
        )

    def load_name(self, name: str, options: Mapping[str, object], seed: int) -> LoadedModel | Path:
        """Load ``hf:ORG/NAME[@REVISION]``, a published model; or ``[/FILE.st]``, a checkpoint that hydractl wrote.

        Safetensors only, never any code of the repository.
        """
        hint = "weights of your own open as a folder: model.safetensors beside config.json"
        refuse_options(f"hf:{name}", options, hint)
        checkpoint = checkpoint_on_hub(name)
        if checkpoint is not None:
            return checkpoint
        loaded = from_hub(name, self.load_folder, ("config.json", _WEIGHTS), _OTHER_FILES)
        if loaded is None:
            raise InputError(f"{name} is not a model of transformers: its config.json names no architecture")
        return loaded

    def export_folder(
        self, folder: Path, config: LibraryConfig, preprocess: Preprocessing, labels: Sequence[str] | None
    ) -> str:
        """Write ``config.json`` and the tokenizer or image processor; the weights belong into ``model.safetensors``."""
        document = dict(config)
        if config.get("num_labels") == 0:
            encoder_name = class_name(config).partition("For")[0].removesuffix("Model")
            document["architectures"] = [f"{encoder_name}Model"]
            del document["num_labels"]
            document.pop("absent", None)
        if labels is not None:
            document["id2label"] = {str(index): label for index, label in enumerate(labels)}
            document["label2id"] = {label: index for index, label in enumerate(labels)}
        write_config(folder / "config.json", document)
        if _is_text(preprocess):
            write_tokenizer(folder, preprocess)
            return _WEIGHTS
        write_processor(folder, preprocess)
        texts = preprocess.get("texts")
        if texts is not None:
            write_tokenizer(folder, texts)
        return _WEIGHTS

    # --- structure ----------------------------------------------------------------------------------------------------

    def build(self, config: LibraryConfig) -> nn.Module:
        """Build the library's model with its parameters on the meta device and its buffers real."""
        return copy.deepcopy(meta_model(config))

    def sites(self, config: LibraryConfig) -> list[Site]:
        """``bert.encoder.layer.0.attention`` and so on: the block that holds all four projections."""
        model = meta_model(config)
        is_zero_shot = type(model).__name__ in TWO_TOWERS
        sites = []
        for tower in towers_of(model):
            tower_name = clip.NAMES[tower.prefix] if is_zero_shot else "main"
            for layer_path, layer in layers_of(tower.base, tower.layout):
                sites.append(_site(tower, tower_name, layer_path, layer))
        return sites

    def classes(self, config: LibraryConfig) -> int | None:
        """Return the number of classes of the classifier; None for a CLIP or SigLIP."""
        model = meta_model(config)
        return None if type(model).__name__ in TWO_TOWERS else int(model.config.num_labels)

    def prompts(
        self, config: LibraryConfig, preprocess: Preprocessing, labels: Sequence[str], templates: Sequence[str]
    ) -> Mapping[str, Tensor]:
        """Tokenize prompts as the checkpoint does: ``{"input_ids": [classes, templates, tokens]}``, perhaps a mask."""
        if self.classes(config) is not None:
            return super().prompts(config, preprocess, labels, templates)
        return clip.class_prompts(meta_model(config), preprocess, labels, templates)

    def image_shape(self, config: LibraryConfig) -> list[int] | None:
        """Return the image shape of the patch embedding; None for DINOv2, which stretches its positions to any size."""
        model = meta_model(config)
        tower = towers_of(model)[0]
        size = _image_size(model)
        if size is None or tower.prefix.startswith("dinov2"):
            return None
        return [int(tower.base.config.num_channels), *size]

    def layout(self, site: Site) -> AttentionLayout:
        """Return the layout of this kind of encoder."""
        return LAYOUTS[site.layout].heads

    def dropouts(self, model: nn.Module, site: Site) -> tuple[float, float]:
        """Return the rate of the attention weights, and of the output where the attention itself drops of it."""
        return dropouts_of(model, site.path, LAYOUTS[site.layout])

    def install(self, model: nn.Module, site: Site, attention: nn.Module) -> None:
        """Replace what computes attention. Residual, dropout and norm of BERT's ``attention.output`` stay in place."""
        layout = LAYOUTS[site.layout]
        layer = model.get_submodule(site.path.removesuffix(f".{layout.block}"))
        put_in_place(model, site.path, layout, attention, relative.stand_in(attention, layer))

    def stages(self, model: Any) -> list[Stages]:
        """Cut the model. Stem: embeddings and the mask. Readout: final norm or pooler, and the classifier."""
        if type(model).__name__ in TWO_TOWERS:
            return clip.two_tower_stages(model, encoder_stem)
        if type(model).__name__ == dinov3.NAME:
            return dinov3.dinov3_stages(model)
        (tower,) = towers_of(model)
        prefix = tower.prefix
        base = tower.base
        layout = tower.layout
        layers = [layer for _, layer in layers_of(base, layout)]
        readout, first_count = readout_of(model)
        stem: Callable[[Any], State]
        blocks: list[Callable[[State], State]]
        reads = None if first_count is None else first_tokens(first_count)
        if hasattr(base, "embeddings"):
            stem = partial(encoder_stem, base)
            blocks = for_each(run_encoder_layer, layers)
        else:
            stem = partial(decoder_stem, base, is_decoder(model))
            blocks = []
            for layer, kind in zip(layers, kinds_of_layers(base.config), strict=True):
                blocks.append(partial(run_decoder_layer, layer, kind))
        if is_decoder(model):
            reads = _last_of
        stages = Stages(
            stem=stem,
            blocks=blocks,
            block_paths=[f"{prefix}.{path}" for path, _ in layers_of(base, layout)],
            stem_prefixes=tuple(f"{prefix}.{name}." for name in layout.embeddings),
            readout=lambda state: readout(model, base, state),
            attention_inputs=for_each(partial(_attention_input, layout.norm), layers),
            reads=reads,
            per_sample=("attention_mask", *PER_SAMPLE),
            per_member=relative.entries_of_weights(base),
        )
        if layout.staged:
            stages = relative.with_swin_layers(stages, base, prefix, layout.norm)
        return [stages]

    def logits(self, model: Any, outputs: Sequence[Tensor]) -> Tensor:
        """Return ``[B, classes]``; a CLIP or SigLIP computes them from features of images and classes."""
        if len(outputs) == 1:
            return outputs[0]
        images, classes = outputs
        return scaled_cosines(model, images, classes)

    def sample_features(self, model: Any, inputs: Any) -> Tensor:
        """Compute normalised features by ``get_image_features``."""
        arguments = inputs if isinstance(inputs, Mapping) else {"pixel_values": inputs}
        features = model.get_image_features(**arguments).pooler_output
        return torch.nn.functional.normalize(features, dim=-1)

    # --- data ---------------------------------------------------------------------------------------------------------

    def collate(self, preprocess: Preprocessing) -> Callable[[list[Any]], Any]:
        """Return the library's tokenizer on texts or pairs of texts, its image processor on PIL images."""
        if "texts" in preprocess:
            text_collate(preprocess["texts"])  # refuses what it does not understand
        if _is_text(preprocess):
            return text_collate(preprocess)
        return image_collate(preprocess)

    def example_inputs(self, preprocess: Preprocessing, batch: int, seed: int) -> Any:
        """Draw random tokens without padding, or random pixels."""
        if _is_text(preprocess):
            return random_tokens(preprocess, batch, seed)
        return random_images(preprocess, batch, seed)

    def longest_text(self, preprocess: Preprocessing) -> int | None:
        """Return the tokenizer's setting; None for images."""
        if not _is_text(preprocess):
            return None
        tokenizer = object_in(preprocess, "tokenizer", "the preprocessing")
        return integer_in(tokenizer, "model_max_length", "the tokenizer")

    # --- training -----------------------------------------------------------------------------------------------------

    def image_format(self, preprocess: Preprocessing) -> ImageFormat:
        """Read the image format off the settings of the library's image processor."""
        if _is_text(preprocess):
            return super().image_format(preprocess)
        return image_format(preprocess)

    def drawn(self, config: LibraryConfig) -> nn.Module:
        """Draw weights by transformers' own initialisation."""
        return drawn_model(config)

    def too_long(self, config: LibraryConfig, preprocess: Preprocessing, texts: Sequence[str]) -> tuple[int, int]:
        """Count by the tokenizer of the checkpoint, whose marks of start and end count."""
        if self.classes(config) is not None:
            return super().too_long(config, preprocess, texts)
        collate = text_collate(preprocess["texts"])
        return collate.cut(texts), collate.max_length

    def judges_each_pair(self, model: Any) -> bool:
        """Return whether this is a SigLIP."""
        return hasattr(model, "logit_bias")

    def with_classes(self, config: LibraryConfig, classes: int) -> LibraryConfig:
        """Set ``num_labels`` and drop the old names; add a pooler where the body of a classifier has one."""
        if class_name(config) == dinov3.NAME:
            raise UsageError("transformers has no classifier for DINOv3", hint="eval --probe; or its model of timm")
        changed = dict(config)
        for key in ("id2label", "label2id", "absent"):
            changed.pop(key, None)
        changed["num_labels"] = classes
        return changed

    def image_classifier(
        self, config: LibraryConfig, preprocess: Preprocessing, classes: int
    ) -> tuple[str, LibraryConfig, Preprocessing]:
        """Return the library's own classifier, of the mean of all patches."""
        name = class_name(config).replace("Model", "ForImageClassification")
        images = {key: value for key, value in preprocess.items() if key != "texts"}
        return name, {**config, "architectures": [name], "num_labels": classes}, images

    def with_heads(self, config: LibraryConfig, heads: int) -> LibraryConfig | None:
        """Set the number of heads, with ``head_dim``: the library's vision transformers read it.

        None where the heads would get other widths.
        """
        head_dim = self.sites(config)[0].head_dim
        small = {**config, "num_attention_heads": heads, "head_dim": head_dim}
        return self._with_heads_alone(config, small, heads)

    def narrowed(self, config: LibraryConfig, share: Fraction) -> LibraryConfig | None:
        """Scale width, heads (of keys as well) and MLP, by the library's names for them."""
        known = [names for names in _WIDTHS if set(names) <= set(config)]
        if not known:
            return None
        narrow = dict(config)
        for name in (*known[0], "num_key_value_heads"):
            if config.get(name):
                narrow[name] = int(integer_in(config, name, "the configuration of the model") * share)
        try:
            self.sites(narrow)
        except (InputError, ArithmeticError):  # the width is no multiple of the heads
            return None
        return narrow

    def with_dropout(self, config: LibraryConfig, rate: float) -> LibraryConfig:
        """Set ``hidden_dropout_prob``, which DistilBERT calls ``dropout``; GPT-2 has two of them."""
        if class_name(config).startswith("GPT2"):
            return {**config, "resid_pdrop": rate, "embd_pdrop": rate}
        for name in ("hidden_dropout_prob", "dropout"):
            if name in config:
                return {**config, name: rate}
        raise UsageError(f"--dropout: {meta_model(config).config.model_type} has no dropout behind its layers")


def _site(tower: EncoderTower, tower_name: str, layer_path: str, layer: Any) -> Site:
    """Return the site of one layer.

    Args:
        tower: the encoder.
        tower_name: as in :attr:`hydractl.heads.mask.Site.tower`.
        layer_path: within the encoder.
        layer: the library's.
    """
    layout = tower.layout
    config = tower.base.config
    block = layer.get_submodule(layout.block)
    heads = config.num_attention_heads
    if not isinstance(heads, int):  # more in every stage
        heads = block.get_submodule(layout.core).num_attention_heads
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    out_weight = block.get_submodule(layout.heads.out).weight
    if layout.heads.transposed:
        width, d_model = out_weight.shape
    else:
        d_model, width = out_weight.shape
    path = f"{tower.prefix}.{layer_path}"
    if layout.block:
        path += f".{layout.block}"
    return Site(
        path,
        heads=heads,
        head_dim=width // heads,
        d_model=d_model,
        tower=tower_name,
        layout=tower.key,
        sharing=heads // key_heads,
    )


def dropouts_of(model: nn.Module, path: str, layout: EncoderLayout) -> tuple[float, float]:
    """Return the dropout rates of the attention at ``path``, see :meth:`HFEncoder.dropouts`."""
    core: Any = model.get_submodule(path).get_submodule(layout.core)
    if hasattr(core, "resid_dropout"):
        return float(core.attn_dropout.p), float(core.resid_dropout.p)
    # Some classes hold a rate, others a module with one.
    of_weights = core.attention_dropout if hasattr(core, "attention_dropout") else core.dropout
    rate_of_weights = getattr(of_weights, "p", of_weights)
    rate_of_output = getattr(core, "residual_dropout", 0.0)
    if hasattr(core, "out_drop"):
        rate_of_output = getattr(core.out_drop, "p", rate_of_output)
    return float(rate_of_weights), float(rate_of_output)


def put_in_place(
    model: nn.Module, path: str, layout: EncoderLayout, attention: nn.Module, stand_in: nn.Module | None = None
) -> None:
    """Replace the attention at ``path``, see :meth:`HFEncoder.install`.

    Args:
        stand_in: calls ``attention`` where the library calls its own in an unusual way.
    """
    block: Any = model.get_submodule(path)
    if stand_in is None:
        stand_in = _StandIn(attention, block.get_submodule(layout.core))
    if not layout.core:
        model.set_submodule(path, stand_in)
        return
    setattr(block, layout.core, stand_in)
    if layout.heads.out == "output.dense":
        block.output.dense = nn.Identity()  # HeadAttention has done that projection


# --- stages of encoders -----------------------------------------------------------------------------------------------


def encoder_stem(base: Any, inputs: Any) -> State:
    """Run the part of the library's own forward before its first layer."""
    if not isinstance(inputs, Mapping):
        return _stem_of_pixels(base, inputs)
    if "spatial_shapes" in inputs:
        return _stem_of_patches(base, inputs)
    if "pixel_values" in inputs:
        return _stem_of_pixels(base, inputs["pixel_values"])
    return _stem_of_tokens(base, inputs)


def _stem_of_tokens(base: Any, inputs: Mapping[str, Tensor]) -> State:
    mask = inputs.get("attention_mask")
    arguments = {name: inputs[name] for name in ("input_ids", "token_type_ids") if name in inputs}
    if type(base).__name__ == "DebertaV2Model":
        hidden = base.embeddings(**arguments, mask=mask)  # what pads is zero before the first layer
    else:
        hidden = base.embeddings(**arguments)
    if hasattr(base, "embeddings_project"):
        hidden = base.embeddings_project(hidden)
    mask = _readable(mask)
    context = _context(base, hidden, None, mask)
    if hasattr(base, "rotary_emb"):  # ModernBERT: masks and angles of its two kinds of layers
        context["angles"] = _angles_by_kind(base, hidden)
        context["sliding_attention"] = create_bidirectional_sliding_window_mask(
            config=base.config, inputs_embeds=hidden, attention_mask=mask
        )
        context["tokens"] = mask
    return State(hidden, context)


def _angles_by_kind(base: Any, hidden: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the cosines and sines of a ModernBERT for each kind of its layers."""
    positions = torch.arange(hidden.shape[1], device=hidden.device).unsqueeze(0)  # [1, T]
    return {kind: base.rotary_emb(hidden, positions, kind) for kind in set(base.config.layer_types)}


def _stem_of_patches(base: Any, inputs: Mapping[str, Tensor]) -> State:
    """Run the stem of a SigLIP 2, which is given patches, some of them of padding."""
    pixels = inputs["pixel_values"]
    shapes = inputs["spatial_shapes"]
    if shapes.is_meta:
        # Without numbers, which the library looks at, only shapes are asked for: positions change none.
        hidden = base.embeddings.patch_embedding(pixels)
    else:
        hidden = base.embeddings(pixels, shapes)
    mask = _readable(inputs.get("pixel_attention_mask"))
    context = _context(base, hidden, pixels, mask)
    context["tokens"] = mask
    return State(hidden, context)


def _stem_of_pixels(base: Any, pixels: Tensor) -> State:
    hidden = base.embeddings(pixels)
    if isinstance(hidden, tuple):  # Swin: and its rows and columns
        hidden = hidden[0]
    if hasattr(base, "pre_layrnorm"):
        hidden = base.pre_layrnorm(hidden)
    return State(hidden, _context(base, hidden, pixels, None))


def _readable(mask: Tensor | None) -> Tensor | None:
    """Return a mask whose numbers the library can look at; None where there are none: only shapes are asked for."""
    if mask is None or mask.is_meta:
        return None
    return mask


def _context(base: Any, hidden: Tensor, pixels: Tensor | None, mask: Tensor | None) -> dict[str, Any]:
    """Return what the layers of an encoder are given beside the state."""
    attention_mask = create_bidirectional_mask(config=base.config, inputs_embeds=hidden, attention_mask=mask)
    return {"attention_mask": attention_mask, **relative.relative_context(base, hidden, pixels, mask)}


def run_encoder_layer(layer: Any, state: State) -> State:
    """Run one layer of an encoder."""
    context = state.context
    if "angles" not in context:
        return relative.run_relative_layer(layer, state)
    kind = layer.attention_type
    mask = context["sliding_attention" if kind == "sliding_attention" else "attention_mask"]
    hidden = layer(state.hidden, attention_mask=mask, position_embeddings=context["angles"][kind])
    return State(hidden, context)


def _attention_input(norm: str, layer: Any, state: State) -> Tensor:
    if not norm:
        return state.hidden
    return layer.get_submodule(norm)(state.hidden)


def _last_of(state: State) -> Tensor:
    """Return the position of the last token of each sample, ``[B, 1]``."""
    return state.context["last"]


# --- published folders: strictly read, and shown under the library's present names ------------------------------------


def _is_text(preprocess: Preprocessing) -> bool:
    kind = preprocess.get("kind")
    if kind not in ("text", "image"):
        raise InputError(f"the preprocessing is neither of text nor of images but of {shown(kind)}")
    return kind == "text"


def _config_of(published: LibraryConfig, origin: str) -> dict[str, object]:
    """Return the configuration of a folder as a checkpoint keeps it: without labels and traces of who wrote it."""
    for key, description, hint in _NEVER:
        if published.get(key):
            raise InputError(f"{origin} comes with {description} ({key}), which hydractl never uses", hint=hint)
    config = without_traces(published)
    name = class_name(config)
    if name in TWO_TOWERS:
        return config
    if config["architectures"] != [name] or name == dinov3.NAME:  # a body, perhaps with the head of another task
        config["architectures"] = [name]
        config["num_labels"] = 0
    if "num_labels" not in config:
        labels = published.get("id2label")
        if isinstance(labels, Mapping):
            config["num_labels"] = len(labels)
        else:  # the library's own default, where a file says nothing
            config["num_labels"] = getattr(transformers, name).config_class().num_labels
    return config


def _converted(weights: TensorSource, folder: Path, model: Any) -> tuple[DictTensors, list[str]]:
    """Read weights by the library itself, under its present names, in the dtypes of the file.

    Returns:
        Besides the weights, for a body the names in the file of what belongs to another task.

    Raises:
        InputError: listing every tensor that is missing, unexpected or of another shape.
    """
    infos = {name: weights.info(name) for name in weights.names()}
    dtypes_in_file = {info.dtype for info in infos.values()}
    is_body = not model.config.num_labels
    loaded, report = _read_by_library(folder, model, is_body, wide="F64" in dtypes_in_file)
    expected = set(model.state_dict())
    missing = set(report["missing_keys"])
    unexpected = set(report["unexpected_keys"])
    left: list[str] = []
    if is_body:
        missing &= expected
        left = sorted(name for name in unexpected if re.match(_OTHER_TASKS, name))
    problems = _loading_problems(missing, unexpected - set(left), report)
    if problems:
        raise InputError(
            f"{folder} does not hold the weights of {type(model).__name__}",
            problems=problems[:40],
        )
    only_dtype = torch_dtype(next(iter(infos.values()))) if len(dtypes_in_file) == 1 else None
    tensors = {}
    for name, tensor in loaded.state_dict().items():
        if name in expected:
            dtype = only_dtype or _dtype_in_file(name, tensor, loaded, infos)
            tensors[name] = tensor.to(dtype)
    return DictTensors(tensors), left


def _read_by_library(folder: Path, model: Any, is_body: bool, wide: bool) -> tuple[Any, Any]:
    """Return the library's model of the weights in a folder, and its report on the names that it met.

    Args:
        folder: of the weights.
        model: of the same class and configuration.
        is_body: whether it has no classifier, which no class of the library lacks.
        wide: whether float32 does not hold every number of the file exactly.
    """
    config = copy.deepcopy(model.config)
    if is_body:
        config.num_labels = 2
    # The library draws what is missing; the caller's own random numbers go on as if it had not.
    with refused_as(f"transformers cannot read the weights in {folder}"), quiet(), torch.random.fork_rng(devices=[]):
        return type(model).from_pretrained(
            str(folder),
            config=config,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            dtype=torch.float64 if wide else torch.float32,
            attn_implementation=implementation(type(model)),
            ignore_mismatched_sizes=True,  # so that they are reported, all of them
            output_loading_info=True,
        )


def _loading_problems(missing: Iterable[str], unexpected: Iterable[str], report: Any) -> list[str]:
    """List what is wrong with the tensors that the library read, a line each."""
    problems = []
    for name in sorted(missing):
        problems.append(f"missing tensor {shown(name, 200)}")
    for name in sorted(unexpected):
        problems.append(f"unexpected tensor {shown(name, 200)}")
    for name, shape, expected_shape in sorted(report["mismatched_keys"]):
        problems.append(f"tensor {shown(name, 200)} is {list(shape)}, expected {list(expected_shape)}")
    for message in report.get("error_msgs", ()):
        problems.append(shown(message, 200))
    return problems


def _dtype_in_file(name: str, tensor: Tensor, loaded: Any, infos: Mapping[str, TensorInfo]) -> torch.dtype:
    """Return the dtype of one tensor in a file of several; as it was read where the file holds it in another form."""
    published_names = revert_weight_conversion(loaded, {name: tensor})
    stored = [infos[published] for published in published_names if published in infos]
    if len(stored) != 1:
        return tensor.dtype
    return torch_dtype(stored[0])


def _preprocess(folder: Path, model: Any) -> Preprocessing:
    """Read the tokenizer or the image processor of a folder."""
    towers = towers_of(model)
    config = model.config
    if config.model_type not in _PROCESSORS:
        return _preprocess_of_texts(folder, model)
    prefix = towers[0].prefix
    base = towers[0].base
    preprocess = image_preprocess(
        folder,
        default=_PROCESSORS[config.model_type],
        channels=base.config.num_channels,
        # DINOv2 stretches its positions to any size.
        size=None if prefix.startswith("dinov2") else _image_size(model),
        patch=base.config.patch_size if config.model_type == "siglip2" else None,
    )
    if len(towers) > 1:
        preprocess["texts"] = clip.text_preprocess_of(folder, model)
    return preprocess


def _preprocess_of_texts(folder: Path, model: Any) -> Preprocessing:
    """Read the tokenizer of a folder."""
    config = model.config
    prefix = towers_of(model)[0].prefix
    if prefix in ("roberta", "roberta_prelayernorm", "data2vec_text"):
        skipped = (config.pad_token_id or 0) + 1  # positions are counted from behind the padding token's number
    elif prefix == "mpnet":
        skipped = 2  # positions are counted from behind 1
    else:
        skipped = 0
    has_token_types = getattr(config, "type_vocab_size", 1) > 1
    return text_preprocess(
        folder,
        positions=longest_text_of(config) - skipped,
        vocabulary=config.vocab_size,
        always=("input_ids", "attention_mask"),
        if_named=("token_type_ids",) if has_token_types else (),
        padding=config.pad_token_id,
        pads_with_end=is_decoder(model),
    )


def _image_size(model: Any) -> tuple[int, int] | None:
    """Return height and width of the patch embedding; None for a model of texts, and of images of any size."""
    model_type = model.config.model_type
    if model_type not in _PROCESSORS or model_type in ("dinov3_vit", "siglip2"):
        return None
    base = towers_of(model)[0].base
    patches = getattr(base.embeddings, "patch_embeddings", base.embeddings)
    size = getattr(patches, "image_size", base.config.image_size)
    if isinstance(size, int):
        return size, size
    height, width = size
    return int(height), int(width)


def _labels(published: LibraryConfig, classes: int) -> list[str] | None:
    """Return the names of the classes; the library's own placeholders are no names."""
    names = published.get("id2label")
    if not isinstance(names, Mapping) or sorted(names) != sorted(map(str, range(classes))):
        return None
    labels = [str(names[str(index)]) for index in range(classes)]
    if all(re.fullmatch(r"LABEL_\d+", label) for label in labels):
        return None
    return labels


FAMILY = HFEncoder()
