"""transformers' encoders for classification: BERT and its kin, DistilBERT, ELECTRA, vision transformers, and CLIPs."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
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
from hydractl.families.base import AttentionLayout, ImageFormat, LoadedModel, ModelFamily, Stages, State, first_tokens
from hydractl.families.hf import clip, dinov3, relative
from hydractl.families.hf.architectures import (
    LAYOUTS,
    TWO_TOWERS,
    Layout,
    absent_from,
    class_name,
    implementation,
    is_decoder,
    layers_of,
    layouts_of,
    library_model,
    meta_model,
    quiet,
    readout_of,
    towers_of,
    without_traces,
)
from hydractl.families.hf.decoders import PER_SAMPLE, kinds_of_layers, longest, run, stem, turn_of, with_padding
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


class _InPlace(nn.Module):
    """:class:`hydractl.model.attention.HeadAttention` with the call and the answer of the library's attention."""

    def __init__(self, attention: nn.Module, library: Any) -> None:
        super().__init__()
        self.attention, self.turn = attention, turn_of(library)

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
            # In float32 at least, as the library does: [1, T, head_dim] -> [1, 1, T, head_dim]
            cos, sin = (a.to(torch.promote_types(a.dtype, torch.float32))[:, None] for a in position_embeddings)
            rotary = self.turn(cos, sin)
        return self.attention(hidden_states, attn_mask=attention_mask, rotary=rotary), None


_WEIGHTS = "model.safetensors"
_OTHER_FILES = (
    *("preprocessor_config.json", "processor_config.json", *TOKENIZER_FILES),
    *("model.safetensors.index.json", "model-*-of-*.safetensors"),
)
_NEVER = (
    ("auto_map", "code of its own", "where its class is one of transformers itself, remove auto_map from config.json"),
    ("quantization_config", "quantized weights", "transformers writes plain ones: model.dequantize(), save_pretrained"),
)
_PROCESSORS = {"vit": "ViTImageProcessor", "deit": "DeiTImageProcessor", "dinov2": "BitImageProcessor"}
_PROCESSORS |= {"vit_msn": _PROCESSORS["vit"], "ijepa": _PROCESSORS["vit"], "dinov3_vit": "DINOv3ViTImageProcessor"}
_PROCESSORS |= {"clip": "CLIPImageProcessor", "metaclip_2": "CLIPImageProcessor"}
_PROCESSORS |= {"siglip": "SiglipImageProcessor", "siglip2": "Siglip2ImageProcessor"}
_PROCESSORS |= {"beit": "BeitImageProcessor", "data2vec-vision": "BeitImageProcessor"}
_PROCESSORS |= {"swin": "ViTImageProcessor", "swinv2": "ViTImageProcessor"}
_PROCESSORS["dinov2_with_registers"] = _PROCESSORS["dinov2"]
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
        config = _kept(published, str(folder))
        # The library reads pickles with torch's weights_only, which runs no code, and writes safetensors.
        published_as = published["architectures"][0]
        hint = f"transformers.{published_as}.from_pretrained({str(folder)!r}).save_pretrained(OUT) writes safetensors"
        weights = published_weights(folder / _WEIGHTS, hint)
        if config.get("num_labels") == 0:
            config["absent"] = absent_from(config, weights.names())
        model = meta_model(config)
        tensors: TensorSource = weights
        left: list[str] = []
        if set(weights.names()) != set(model.state_dict()):
            # Older names, a body, or a mistake: the library knows the first two and the answer to it tells the last.
            tensors, left = _converted(weights, folder, model)
        preprocess = _preprocess(folder, model)
        if is_decoder(model):
            config = with_padding(config, padding_of(preprocess), str(folder))
        return LoadedModel(
            arch=class_name(config),
            config=config,
            tensors=tensors,
            preprocess=preprocess,
            labels=None if type(model).__name__ in TWO_TOWERS else _labels(published, model.config.num_labels),
            left=left,
        )

    def load_name(self, name: str, options: Mapping[str, Any], seed: int) -> LoadedModel | Path:
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
        self, folder: Path, config: Mapping[str, Any], preprocess: Mapping[str, Any], labels: Sequence[str] | None
    ) -> str:
        """Write ``config.json`` and the tokenizer or image processor; the weights belong into ``model.safetensors``."""
        document = dict(config)
        if config.get("num_labels") == 0:
            document["architectures"] = [f"{class_name(config).partition('For')[0].removesuffix('Model')}Model"]
            del document["num_labels"]
            document.pop("absent", None)
        if labels is not None:
            document["id2label"] = {str(index): label for index, label in enumerate(labels)}
            document["label2id"] = {label: index for index, label in enumerate(labels)}
        write_config(folder / "config.json", document)
        if not _is_text(preprocess):
            write_processor(folder, preprocess)
        if (texts := preprocess if _is_text(preprocess) else preprocess.get("texts")) is not None:
            write_tokenizer(folder, texts)
        return _WEIGHTS

    # --- structure ----------------------------------------------------------------------------------------------------

    def build(self, config: Mapping[str, Any]) -> nn.Module:
        """Build the library's model with its parameters on the meta device and its buffers real."""
        return copy.deepcopy(meta_model(config))

    def sites(self, config: Mapping[str, Any]) -> list[Site]:
        """``bert.encoder.layer.0.attention`` and so on: the block that holds all four projections."""
        model, sites = meta_model(config), []
        for key, (prefix, base, layout) in zip(layouts_of(model), towers_of(model), strict=True):
            tower = clip.NAMES[prefix] if type(model).__name__ in TWO_TOWERS else "main"
            for path, layer in layers_of(base, layout):
                block, heads = layer.get_submodule(layout.block), base.config.num_attention_heads
                if not isinstance(heads, int):  # more in every stage
                    heads = block.get_submodule(layout.core).num_attention_heads
                sharing = heads // (getattr(base.config, "num_key_value_heads", None) or heads)
                weight = block.get_submodule(layout.heads.out).weight
                d_model, width = reversed(weight.shape) if layout.heads.transposed else weight.shape
                path = ".".join(filter(None, (prefix, path, layout.block)))
                sites.append(Site(path, heads, width // heads, d_model, tower, key, sharing))
        return sites

    def classes(self, config: Mapping[str, Any]) -> int | None:
        """Return the number of classes of the classifier; None for a CLIP or SigLIP."""
        model = meta_model(config)
        return None if type(model).__name__ in TWO_TOWERS else int(model.config.num_labels)

    def prompts(
        self, config: Mapping[str, Any], preprocess: Mapping[str, Any], labels: Sequence[str], templates: Sequence[str]
    ) -> Mapping[str, Tensor]:
        """Tokenize prompts as the checkpoint does: ``{"input_ids": [classes, templates, tokens]}``, perhaps a mask."""
        if self.classes(config) is not None:
            return super().prompts(config, preprocess, labels, templates)
        return clip.prompts(meta_model(config), preprocess, labels, templates)

    def image_shape(self, config: Mapping[str, Any]) -> list[int] | None:
        """Return the image shape of the patch embedding; None for DINOv2, which stretches its positions to any size."""
        model = meta_model(config)
        (prefix, base, _), size = towers_of(model)[0], _image_size(model)
        return None if size is None or prefix.startswith("dinov2") else [int(base.config.num_channels), *size]

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
            return clip.stages(model, encoder_stem)
        if type(model).__name__ == dinov3.NAME:
            return dinov3.stages(model)
        ((prefix, base, layout),), (readout, count) = towers_of(model), readout_of(model)
        layers = [layer for _, layer in layers_of(base, layout)]
        reads = None if count is None else first_tokens(count)
        if hasattr(base, "embeddings"):
            begin, blocks = partial(encoder_stem, base), [partial(run_layer, layer) for layer in layers]
        else:
            kinds = kinds_of_layers(base.config)
            begin = partial(stem, base, is_decoder(model))
            blocks = [partial(run, layer, kind) for layer, kind in zip(layers, kinds, strict=True)]
            reads = (lambda state: state.context["last"]) if is_decoder(model) else reads
        tower = Stages(
            stem=begin,
            blocks=blocks,
            block_paths=[f"{prefix}.{path}" for path, _ in layers_of(base, layout)],
            stem_prefixes=tuple(f"{prefix}.{name}." for name in layout.embeddings),
            readout=lambda state: readout(model, base, state),
            attention_inputs=[partial(_attention_input, layout.norm, layer) for layer in layers],
            reads=reads,
            per_sample=("attention_mask", *PER_SAMPLE),
            per_member=relative.per_member(base),
        )
        return [replace(tower, **relative.swin_parts(base, prefix, layout.norm)) if layout.staged else tower]

    def logits(self, model: Any, outputs: Sequence[Tensor]) -> Tensor:
        """Return ``[B, classes]``; a CLIP or SigLIP computes them from features of images and classes."""
        return scaled_cosines(model, *outputs) if len(outputs) > 1 else outputs[0]

    def sample_features(self, model: Any, inputs: Any) -> Tensor:
        """Compute normalised features by ``get_image_features``."""
        given = inputs if isinstance(inputs, Mapping) else {"pixel_values": inputs}
        return torch.nn.functional.normalize(model.get_image_features(**given).pooler_output, dim=-1)

    # --- data ---------------------------------------------------------------------------------------------------------

    def collate(self, preprocess: Mapping[str, Any]) -> Callable[[list[Any]], Any]:
        """Return the library's tokenizer on texts or pairs of texts, its image processor on PIL images."""
        if "texts" in preprocess:
            text_collate(preprocess["texts"])  # refuses what it does not understand
        return text_collate(preprocess) if _is_text(preprocess) else image_collate(preprocess)

    def example_inputs(self, preprocess: Mapping[str, Any], batch: int, seed: int) -> Any:
        """Draw random tokens without padding, or random pixels."""
        if _is_text(preprocess):
            return random_tokens(preprocess, batch, seed)
        return random_images(preprocess, batch, seed)

    def longest_text(self, preprocess: Mapping[str, Any]) -> int | None:
        """Return the tokenizer's setting; None for images."""
        return int(preprocess["tokenizer"]["model_max_length"]) if _is_text(preprocess) else None

    # --- training -----------------------------------------------------------------------------------------------------

    def image_format(self, preprocess: Mapping[str, Any]) -> ImageFormat:
        """Read the image format off the settings of the library's image processor."""
        return super().image_format(preprocess) if _is_text(preprocess) else image_format(preprocess)

    def drawn(self, config: Mapping[str, Any]) -> nn.Module:
        """Draw weights by transformers' own initialisation."""
        return library_model(config)

    def too_long(
        self, config: Mapping[str, Any], preprocess: Mapping[str, Any], texts: Sequence[str]
    ) -> tuple[int, int]:
        """Count by the tokenizer of the checkpoint, whose marks of start and end count."""
        if self.classes(config) is not None:
            return super().too_long(config, preprocess, texts)
        collate = text_collate(preprocess["texts"])
        return collate.cut(texts), collate.max_length

    def judges_each_pair(self, model: Any) -> bool:
        """Return whether this is a SigLIP."""
        return hasattr(model, "logit_bias")

    def with_classes(self, config: Mapping[str, Any], classes: int) -> dict[str, Any]:
        """Set ``num_labels`` and drop the old names; add a pooler where the body of a classifier has one."""
        if class_name(config) == dinov3.NAME:
            raise UsageError("transformers has no classifier for DINOv3", hint="eval --probe; or its model of timm")
        kept = {key: value for key, value in config.items() if key not in ("id2label", "label2id", "absent")}
        return {**kept, "num_labels": classes}

    def image_classifier(
        self, config: Mapping[str, Any], preprocess: Mapping[str, Any], classes: int
    ) -> tuple[str, dict[str, Any], dict[str, Any]]:
        """Return the library's own classifier, of the mean of all patches."""
        name = class_name(config).replace("Model", "ForImageClassification")
        images = {key: value for key, value in preprocess.items() if key != "texts"}
        return name, {**config, "architectures": [name], "num_labels": classes}, images

    def with_heads(self, config: Mapping[str, Any], heads: int) -> dict[str, Any] | None:
        """Set the number of heads, with ``head_dim``: the library's vision transformers read it.

        None where the heads would get other widths.
        """
        sites = self.sites(config)
        small = {**config, "num_attention_heads": heads, "head_dim": sites[0].head_dim}
        try:
            return small if self.sites(small) == [replace(site, heads=heads) for site in sites] else None
        except InputError:  # the width of the model is no multiple of the number of heads
            return None

    def narrowed(self, config: Mapping[str, Any], share: Fraction) -> dict[str, Any] | None:
        """Scale width, heads (of keys as well) and MLP, by the library's names for them."""
        names = next((names for names in _WIDTHS if set(names) <= set(config)), None)
        if names is None:
            return None
        changed = {name: int(config[name] * share) for name in (*names, "num_key_value_heads") if config.get(name)}
        try:
            self.sites(narrow := {**config, **changed})
        except (InputError, ArithmeticError):  # the width is no multiple of the heads
            return None
        return narrow

    def with_dropout(self, config: Mapping[str, Any], rate: float) -> dict[str, Any]:
        """Set ``hidden_dropout_prob``, which DistilBERT calls ``dropout``; GPT-2 has two of them."""
        if class_name(config).startswith("GPT2"):
            return {**config, "resid_pdrop": rate, "embd_pdrop": rate}
        key = next((name for name in ("hidden_dropout_prob", "dropout") if name in config), None)
        if key is None:
            raise UsageError(f"--dropout: {meta_model(config).config.model_type} has no dropout behind its layers")
        return {**config, key: rate}


def dropouts_of(model: nn.Module, path: str, layout: Layout) -> tuple[float, float]:
    """Return the dropout rates of the attention at ``path``, see :meth:`HFEncoder.dropouts`."""
    core: Any = model.get_submodule(path).get_submodule(layout.core)
    if hasattr(core, "resid_dropout"):
        return float(core.attn_dropout.p), float(core.resid_dropout.p)
    rate = core.attention_dropout if hasattr(core, "attention_dropout") else core.dropout
    rate = getattr(rate, "p", rate)
    behind = getattr(getattr(core, "out_drop", None), "p", getattr(core, "residual_dropout", 0.0))
    return float(rate), float(behind)


def put_in_place(
    model: nn.Module, path: str, layout: Layout, attention: nn.Module, stand_in: nn.Module | None = None
) -> None:
    """Replace the attention at ``path``, see :meth:`HFEncoder.install`.

    Args:
        stand_in: calls ``attention`` where the library calls its own in an unusual way.
    """
    block: Any = model.get_submodule(path)
    inside = stand_in or _InPlace(attention, block.get_submodule(layout.core))
    if not layout.core:
        model.set_submodule(path, inside)
        return
    setattr(block, layout.core, inside)
    if layout.heads.out == "output.dense":
        block.output.dense = nn.Identity()  # HeadAttention has done that projection


def encoder_stem(base: Any, inputs: Any) -> State:
    """Run the part of the library's own forward before its first layer."""
    pixels = inputs.get("pixel_values") if isinstance(inputs, Mapping) else inputs
    shapes = inputs.get("spatial_shapes") if isinstance(inputs, Mapping) else None
    if pixels is None:
        mask = inputs.get("attention_mask")
        given = {k: v for k, v in inputs.items() if k in ("input_ids", "token_type_ids")}
        if type(base).__name__ == "DebertaV2Model":
            given["mask"] = mask  # what pads is zero before the first layer
        hidden = base.embeddings(**given)
        if hasattr(base, "embeddings_project"):
            hidden = base.embeddings_project(hidden)
    elif shapes is not None:
        mask = inputs.get("pixel_attention_mask")
        # Without numbers, which the library looks at, only shapes are asked for: positions change none.
        hidden = base.embeddings.patch_embedding(pixels) if shapes.is_meta else base.embeddings(pixels, shapes)
    else:
        mask = None
        hidden = base.embeddings(pixels)
        hidden = hidden[0] if isinstance(hidden, tuple) else hidden  # Swin: and its rows and columns
        if hasattr(base, "pre_layrnorm"):
            hidden = base.pre_layrnorm(hidden)
    if mask is not None and mask.is_meta:
        mask = None  # the library looks at the numbers of a mask; where there are none, only shapes are asked for
    given = {"config": base.config, "inputs_embeds": hidden, "attention_mask": mask}
    context = {"attention_mask": create_bidirectional_mask(**given), **relative.context(base, hidden, pixels, mask)}
    if shapes is not None:
        context["tokens"] = mask
    if hasattr(base, "rotary_emb"):  # ModernBERT: masks and angles of its two kinds of layers
        positions = torch.arange(hidden.shape[1], device=hidden.device).unsqueeze(0)  # [1, T]
        angles = {kind: base.rotary_emb(hidden, positions, kind) for kind in set(base.config.layer_types)}
        context |= {"sliding_attention": create_bidirectional_sliding_window_mask(**given), "tokens": mask}
        context |= {"angles": angles}
    return State(hidden, context)


def run_layer(layer: Any, state: State) -> State:
    context = state.context
    if "angles" not in context:
        return relative.run(layer, state)
    kind = layer.attention_type
    mask = context["sliding_attention" if kind == "sliding_attention" else "attention_mask"]
    return State(layer(state.hidden, attention_mask=mask, position_embeddings=context["angles"][kind]), context)


def _attention_input(norm: str, layer: Any, state: State) -> Tensor:
    return layer.get_submodule(norm)(state.hidden) if norm else state.hidden


def _is_text(preprocess: Mapping[str, Any]) -> bool:
    kind = preprocess.get("kind")
    if kind not in ("text", "image"):
        raise InputError(f"the preprocessing is neither of text nor of images but of {shown(kind)}")
    return kind == "text"


# --- published folders: strictly read, and shown under the library's present names ------------------------------------


def _kept(published: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """Return the configuration of a folder as a checkpoint keeps it: without labels and traces of who wrote it."""
    for key, what, hint in _NEVER:
        if published.get(key):
            raise InputError(f"{origin} comes with {what} ({key}), which hydractl never uses", hint=hint)
    config = without_traces(published)
    name = class_name(config)
    if name in TWO_TOWERS:
        return config
    if config["architectures"] != [name] or name == dinov3.NAME:  # a body, perhaps with the head of another task
        config |= {"architectures": [name], "num_labels": 0}
    if "num_labels" not in config:
        names = published.get("id2label")
        # The library's own default, where a file says nothing.
        config["num_labels"] = (
            len(names) if isinstance(names, Mapping) else getattr(transformers, name).config_class().num_labels
        )
    return config


def _converted(weights: TensorSource, folder: Path, model: Any) -> tuple[DictTensors, list[str]]:
    """Read weights by the library itself, under its present names, in the dtypes of the file.

    Returns:
        Besides the weights, for a body the names in the file of what belongs to another task.

    Raises:
        InputError: listing every tensor that is missing, unexpected or of another shape.
    """
    infos = {name: weights.info(name) for name in weights.names()}
    stored = {info.dtype for info in infos.values()}
    wide = torch.float64 if "F64" in stored else torch.float32  # holds every number of the file exactly
    config, body = copy.deepcopy(model.config), not model.config.num_labels
    if body:
        config.num_labels = 2
    # The library draws what is missing; the caller's own random numbers go on as if it had not.
    with refused_as(f"transformers cannot read the weights in {folder}"), quiet(), torch.random.fork_rng(devices=[]):
        loaded, report = type(model).from_pretrained(
            str(folder),
            config=config,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            dtype=wide,
            attn_implementation=implementation(type(model)),
            ignore_mismatched_sizes=True,  # so that they are reported, all of them
            output_loading_info=True,
        )
    wanted = set(model.state_dict())
    missing = set(report["missing_keys"]) & wanted if body else report["missing_keys"]
    left = sorted(n for n in report["unexpected_keys"] if body and re.match(_OTHER_TASKS, n))
    problems = [f"missing tensor {shown(name, 200)}" for name in sorted(missing)]
    problems += [f"unexpected tensor {shown(name, 200)}" for name in sorted(report["unexpected_keys"] - set(left))]
    problems += [
        f"tensor {shown(name, 200)} is {list(found)}, expected {list(expected)}"
        for name, found, expected in sorted(report["mismatched_keys"])
    ]
    problems += [shown(message, 200) for message in report.get("error_msgs", ())]
    if problems:
        what = f"{folder} does not hold the weights of {type(model).__name__}"
        raise InputError(what, problems=problems[:40])
    state = {n: t for n, t in loaded.state_dict().items() if n in wanted}
    only = torch_dtype(next(iter(infos.values()))) if len(stored) == 1 else None
    return DictTensors({n: t.to(only or _dtype_in_file(n, t, loaded, infos)) for n, t in state.items()}), left


def _dtype_in_file(name: str, tensor: Tensor, loaded: Any, stored: Mapping[str, TensorInfo]) -> torch.dtype:
    """Return the dtype of one tensor in a file of several; as it was read where the file holds it in another form."""
    published = revert_weight_conversion(loaded, {name: tensor})
    infos = [stored[n] for n in published if n in stored]
    return torch_dtype(infos[0]) if len(infos) == 1 else tensor.dtype


def _preprocess(folder: Path, model: Any) -> dict[str, Any]:
    """Read the tokenizer or the image processor of a folder."""
    (prefix, base, _), config = towers_of(model)[0], model.config
    if config.model_type not in _PROCESSORS:
        # RoBERTa counts positions from behind the padding token's number, MPNet from behind 1.
        counted = prefix in ("roberta", "roberta_prelayernorm", "data2vec_text")
        skipped = (config.pad_token_id or 0) + 1 if counted else 2 if prefix == "mpnet" else 0
        types = ("token_type_ids",) if getattr(config, "type_vocab_size", 1) > 1 else ()
        positions, padding = longest(config) - skipped, (config.pad_token_id, is_decoder(model))
        return text_preprocess(folder, positions, config.vocab_size, ("input_ids", "attention_mask"), types, *padding)
    # DINOv2 stretches its positions to any size.
    size = None if prefix.startswith("dinov2") else _image_size(model)
    patch = base.config.patch_size if config.model_type == "siglip2" else None
    preprocess = image_preprocess(folder, _PROCESSORS[config.model_type], base.config.num_channels, size, patch)
    return {**preprocess, "texts": clip.text_preprocess_of(folder, model)} if len(towers_of(model)) > 1 else preprocess


def _image_size(model: Any) -> tuple[int, int] | None:
    """Return height and width of the patch embedding; None for a model of texts, and of images of any size."""
    if model.config.model_type not in _PROCESSORS or model.config.model_type in ("dinov3_vit", "siglip2"):
        return None
    _, base, _ = towers_of(model)[0]
    patches = getattr(base.embeddings, "patch_embeddings", base.embeddings)
    size = getattr(patches, "image_size", base.config.image_size)
    height, width = (size, size) if isinstance(size, int) else size
    return int(height), int(width)


def _labels(published: Mapping[str, Any], classes: int) -> list[str] | None:
    """Return the names of the classes; the library's own placeholders are no names."""
    names = published.get("id2label")
    if not isinstance(names, Mapping) or sorted(names) != sorted(map(str, range(classes))):
        return None
    labels = [str(names[str(index)]) for index in range(classes)]
    return None if all(re.fullmatch(r"LABEL_\d+", label) for label in labels) else labels


FAMILY = HFEncoder()
