"""transformers' encoders for classification: BERT and its kin, DistilBERT, ELECTRA, vision transformers, and CLIPs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

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
from hydractl.families.config_json import LibraryConfig, Preprocessing, integer_in, object_in
from hydractl.families.hf import clip, dinov3, relative
from hydractl.families.hf.architectures import (
    TWO_TOWERS,
    EncoderTower,
    absent_from,
    class_name,
    drawn_model,
    is_decoder,
    layers_of,
    meta_model,
    readout_of,
    towers_of,
)
from hydractl.families.hf.decoders import (
    PER_SAMPLE,
    decoder_stem,
    kinds_of_layers,
    run_decoder_layer,
    turn_of,
    with_padding,
)
from hydractl.families.hf.encoders import encoder_stem, run_encoder_layer
from hydractl.families.hf.images import image_collate, image_format, random_images, write_processor
from hydractl.families.hf.layouts import LAYOUTS, EncoderLayout
from hydractl.families.hf.published import (
    class_labels,
    converted_weights,
    kept_config,
    patch_image_size,
    preprocessing_in,
)
from hydractl.families.hf.texts import TOKENIZER_FILES, padding_of, random_tokens, text_collate, write_tokenizer
from hydractl.families.prompts import scaled_cosines
from hydractl.families.reading import (
    checkpoint_on_hub,
    from_hub,
    published_weights,
    read_config,
    refuse_options,
    write_config,
)
from hydractl.files.checkpoint import TensorSource
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
            rotary = self.turn(_of_every_head(cos), _of_every_head(sin))
        attended = self.attention(hidden_states, attn_mask=attention_mask, rotary=rotary)
        return attended, None


def _of_every_head(angles: Tensor) -> Tensor:
    """Return cosines or sines ``[1, T, head_dim]`` as ``[1, 1, T, head_dim]``, in float32 or wider as the library."""
    dtype = torch.promote_types(angles.dtype, torch.float32)
    wide = angles.to(dtype)
    return wide[:, None]


_WEIGHTS = "model.safetensors"
_OTHER_FILES = (
    *("preprocessor_config.json", "processor_config.json", *TOKENIZER_FILES),
    *("model.safetensors.index.json", "model-*-of-*.safetensors"),
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
        """Load a folder with transformers' ``config.json`` and ``model.safetensors``.

        Returns:
            The model; None for a folder whose ``config.json`` is not one of transformers.

        Raises:
            InputError: for a model whose heads cannot be taken apart, or whose weights, tokenizer or image processor do
                not fit it.
        """
        published = read_config(folder / "config.json")
        if published is None or not {"architectures", "model_type"} <= published.keys():
            return None
        config = kept_config(published, str(folder))
        # The library reads pickles with torch's weights_only, which runs no code, and writes safetensors.
        architectures: Any = published["architectures"]
        published_as = architectures[0]
        hint = f"transformers.{published_as}.from_pretrained({str(folder)!r}).save_pretrained(OUT) writes safetensors"
        weights = published_weights(folder / _WEIGHTS, hint)
        is_body = config.get("num_labels") == 0
        if is_body:
            config["absent"] = absent_from(config, weights.names())
        model = meta_model(config)
        is_zero_shot = type(model).__name__ in TWO_TOWERS
        tensors: TensorSource = weights
        left: list[str] = []
        if set(weights.names()) != set(model.state_dict()):
            # The file has older names, is of a body, or does not fit: the library converts the first two, and reports
            # the third.
            tensors, left = converted_weights(weights, folder, model)
        preprocess = preprocessing_in(folder, model)
        if is_decoder(model):
            config = dict(with_padding(config, padding_of(preprocess), str(folder)))
        return LoadedModel(
            arch=class_name(config),
            config=config,
            tensors=tensors,
            preprocess=preprocess,
            labels=None if is_zero_shot else class_labels(published, model.config.num_labels),
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
        """Write ``config.json`` and the tokenizer or image processor; the weights belong into ``model.safetensors``.

        Args:
            folder: is there, and empty.
            config, preprocess: of the model.
            labels: class names, or None.
        """
        document = dict(config)
        is_body = config.get("num_labels") == 0
        if is_body:  # published under the name of the encoder alone
            before_task, _, _ = class_name(config).partition("For")
            encoder_name = before_task.removesuffix("Model")
            document["architectures"] = [f"{encoder_name}Model"]
            del document["num_labels"]
            document.pop("absent", None)
        if labels is not None:
            numbered = dict(enumerate(labels))
            document["id2label"] = {str(index): label for index, label in numbered.items()}
            document["label2id"] = {label: index for index, label in numbered.items()}
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
        model = meta_model(config)
        return copy.deepcopy(model)

    def sites(self, config: LibraryConfig) -> list[Site]:
        """Return the attention blocks (sites), ``bert.encoder.layer.0.attention`` and so on, in model order.

        Each holds the projections to queries, keys and values, and that of the output.
        """
        model = meta_model(config)
        is_zero_shot = type(model).__name__ in TWO_TOWERS
        sites = []
        for tower in towers_of(model):
            tower_name = "main"
            if is_zero_shot:
                tower_name = clip.NAMES[tower.prefix]
            for layer_path, layer in layers_of(tower.base, tower.layout):
                sites.append(_site_of_layer(tower, tower_name, layer_path, layer))
        return sites

    def classes(self, config: LibraryConfig) -> int | None:
        """Return the number of classes of the classifier; None for a CLIP or SigLIP."""
        model = meta_model(config)
        if type(model).__name__ in TWO_TOWERS:
            return None
        return int(model.config.num_labels)

    def prompts(
        self, config: LibraryConfig, preprocess: Preprocessing, labels: Sequence[str], templates: Sequence[str]
    ) -> Mapping[str, Tensor]:
        """Tokenize prompts as the checkpoint does: ``{"input_ids": [classes, templates, tokens]}``, perhaps a mask."""
        if self.classes(config) is not None:
            return super().prompts(config, preprocess, labels, templates)
        model = meta_model(config)
        return clip.class_prompts(model, preprocess, labels, templates)

    def image_shape(self, config: LibraryConfig) -> list[int] | None:
        """Return the image shape of the patch embedding; None for DINOv2, which stretches its positions to any size."""
        model = meta_model(config)
        tower = towers_of(model)[0]
        size = patch_image_size(model)
        if size is None or tower.prefix.startswith("dinov2"):
            return None
        return [int(tower.base.config.num_channels), *size]

    def layout(self, site: Site) -> AttentionLayout:
        """Return the layout of this kind of encoder."""
        return LAYOUTS[site.layout].heads

    def dropouts(self, model: nn.Module, site: Site) -> tuple[float, float]:
        """Return the rate of the attention weights, and of the output where the attention itself drops of it."""
        layout = LAYOUTS[site.layout]
        return dropouts_of(model, site.path, layout)

    def install(self, model: nn.Module, site: Site, attention: nn.Module) -> None:
        """Replace what computes attention. Residual, dropout and norm of BERT's ``attention.output`` stay in place."""
        layout = LAYOUTS[site.layout]
        path_of_layer = site.path.removesuffix(f".{layout.block}")
        layer = model.get_submodule(path_of_layer)
        stand_in = relative.stand_in(attention, layer)
        put_in_place(model, site.path, layout, attention, stand_in)

    def stages(self, model: Any) -> list[Stages]:
        """Cut the model where the residual stream can be looked at: stem, blocks and readout of each tower.

        Stem: embeddings and the mask. Readout: final norm or pooler, and the classifier.
        """
        if type(model).__name__ in TWO_TOWERS:
            return clip.two_tower_stages(model, encoder_stem)
        if type(model).__name__ == dinov3.NAME:
            return dinov3.dinov3_stages(model)
        (tower,) = towers_of(model)
        prefix = tower.prefix
        base = tower.base
        layout = tower.layout
        layers_by_path = layers_of(base, layout)
        layers = [layer for _, layer in layers_by_path]

        # Decoders and their kin have no module of that name, and several kinds of layers.
        stem: Callable[[Any], State]
        blocks: list[Callable[[State], State]]
        if hasattr(base, "embeddings"):
            stem = partial(encoder_stem, base)
            blocks = for_each(run_encoder_layer, layers)
        else:
            stem = partial(decoder_stem, base, is_decoder(model))
            blocks = []
            for layer, kind in zip(layers, kinds_of_layers(base.config), strict=True):
                blocks.append(partial(run_decoder_layer, layer, kind))

        readout, first_count = readout_of(model)
        reads: Callable[[State], Tensor] | None = None
        if is_decoder(model):
            reads = _positions_of_last
        elif first_count is not None:
            reads = first_tokens(first_count)
        stages = Stages(
            stem=stem,
            blocks=blocks,
            block_paths=[f"{prefix}.{path}" for path, _ in layers_by_path],
            stem_prefixes=tuple(f"{prefix}.{name}." for name in layout.embeddings),
            readout=partial(readout, model, base),
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
        arguments = inputs
        if not isinstance(inputs, Mapping):
            arguments = {"pixel_values": inputs}
        output = model.get_image_features(**arguments)
        return torch.nn.functional.normalize(output.pooler_output, dim=-1)

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
        of_classifier = dict(config)
        of_classifier["architectures"] = [name]
        of_classifier["num_labels"] = classes
        images = dict(preprocess)
        images.pop("texts", None)
        return name, of_classifier, images

    def with_heads(self, config: LibraryConfig, heads: int) -> LibraryConfig | None:
        """Set the number of heads, with ``head_dim``: the library's vision transformers read it.

        None where the heads would get other widths.
        """
        first_site = self.sites(config)[0]
        small = dict(config)
        small["num_attention_heads"] = heads
        small["head_dim"] = first_site.head_dim
        return self._with_heads_alone(config, small, heads)

    def narrowed(self, config: LibraryConfig, share: Fraction) -> LibraryConfig | None:
        """Scale width, heads (of keys as well) and MLP, by the library's names for them.

        None where a configuration has none of the names, or the library builds no such model.
        """
        known = [names for names in _WIDTHS if set(names) <= set(config)]
        if not known:
            return None
        narrow = dict(config)
        for name in (*known[0], "num_key_value_heads"):
            if config.get(name):
                size = integer_in(config, name, "the configuration of the model")
                narrow[name] = int(size * share)
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


def _site_of_layer(tower: EncoderTower, tower_name: str, layer_path: str, layer: Any) -> Site:
    """Return the site of one layer: where its attention block is, and how many heads of which width it has.

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
    key_heads = getattr(config, "num_key_value_heads", None)
    if not key_heads:  # every head of queries has its own
        key_heads = heads
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
    """Return the dropout rates of an attention: of its weights, and of its output where it drops of that itself.

    Args:
        model: of the library.
        path: of the attention block.
        layout: of the encoder.
    """
    block = model.get_submodule(path)
    core: Any = block.get_submodule(layout.core)
    if hasattr(core, "resid_dropout"):  # it holds modules for both
        return float(core.attn_dropout.p), float(core.resid_dropout.p)
    if hasattr(core, "attention_dropout"):
        dropout = core.attention_dropout
    else:
        dropout = core.dropout
    rate_of_weights = getattr(dropout, "p", dropout)  # some classes hold a rate, others a module with one
    rate_of_output = getattr(core, "residual_dropout", 0.0)
    if hasattr(core, "out_drop"):
        rate_of_output = getattr(core.out_drop, "p", rate_of_output)
    return float(rate_of_weights), float(rate_of_output)


def put_in_place(
    model: nn.Module, path: str, layout: EncoderLayout, attention: nn.Module, stand_in: nn.Module | None = None
) -> None:
    """Replace the library's attention in place; what a layer does behind it stays.

    Args:
        model: of the library.
        path: of the attention block.
        layout: of the encoder.
        attention: takes its place.
        stand_in: calls ``attention`` where the library calls its own in an unusual way; None: it does not.
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


def _attention_input(norm: str, layer: Any, state: State) -> Tensor:
    """Return what the attention of a layer is given of the state before it, through its norm if it has one there."""
    if not norm:
        return state.hidden
    return layer.get_submodule(norm)(state.hidden)


def _positions_of_last(state: State) -> Tensor:
    """Return the position of the last token of each sample, ``[B, 1]``."""
    return state.context["last"]


def _is_text(preprocess: Preprocessing) -> bool:
    """Return whether a preprocessing is of texts; else it is of images.

    Raises:
        InputError: it is of neither.
    """
    kind = preprocess.get("kind")
    if kind not in ("text", "image"):
        raise InputError(f"the preprocessing is neither of text nor of images but of {shown(kind)}")
    return kind == "text"


FAMILY = HFEncoder()
