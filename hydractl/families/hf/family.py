"""The family of transformers' models: BERT and its relatives, decoders, vision transformers, CLIP and SigLIP."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from hydractl.errors import InputError, UsageError
from hydractl.families.base import (
    AttentionLayout,
    FirstTokens,
    ImageFormat,
    LoadedModel,
    ModelFamily,
    Stages,
    State,
    for_each,
    normed_input,
)
from hydractl.families.config_json import LibraryConfig, Preprocessing
from hydractl.families.hf import clip, deberta
from hydractl.families.hf.architectures import (
    TWO_TOWERS,
    absent_from,
    after_last_norm,
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
    check_padding,
    decoder_stem,
    kinds_of_layers,
    run_layer_of_kind,
)
from hydractl.families.hf.encoders import encoder_stem, run_encoder_layer
from hydractl.families.hf.images import image_collate, image_format, write_processor
from hydractl.families.hf.layouts import LAYOUTS
from hydractl.families.hf.published import (
    class_labels,
    converted_weights,
    kept_config,
    patch_image_size,
    preprocessing_in,
    removed_heads,
)
from hydractl.families.hf.texts import (
    TOKENIZER_FILES,
    capitals_warning,
    ends_in_padding,
    from_first_token,
    padding_of,
    random_tokens,
    text_collate,
    write_tokenizer,
)
from hydractl.families.reading import (
    file_on_hub,
    from_hub,
    parse_hub_name,
    published_weights,
    read_config,
    refuse_options,
    write_config,
)
from hydractl.files.checkpoint import TensorSource
from hydractl.heads.mask import Site
from hydractl.heads.rotary import Rotary
from hydractl.jsonio import shown


class _StandIn(nn.Module):
    """Wraps ``HeadAttention`` so that it can be called like transformers' attention.

    Args:
        attention: the :class:`hydractl.model.attention.HeadAttention` to call.
        library: the transformers module that it replaces; it decides how rotary positions are applied.
    """

    def __init__(self, attention: nn.Module, library: Any) -> None:
        super().__init__()
        self.attention = attention
        self.rotates = getattr(library, "use_rope", True)  # some layers of a SmolLM3 do not

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        """Compute the attention of M ensemble members over B samples.

        Args:
            hidden_states: ``[M * B, T, d_model]``.
            attention_mask: as for transformers' attention.
            position_embeddings: cosines and sines of rotary positions, ``[1, T, head_dim]`` each.
            kwargs: other arguments of transformers' attention, which are ignored.

        Returns:
            The output ``[M * B, T, d_model]``, and None in place of the attention weights, which nothing reads.
        """
        rotary = None
        if position_embeddings is not None and self.rotates:
            cos, sin = position_embeddings
            # Dimension i of a head is rotated with dimension i + width / 2.
            rotary = Rotary(_of_every_head(cos), _of_every_head(sin), neighbours=False)
        attended = self.attention(hidden_states, attn_mask=attention_mask, rotary=rotary)
        return attended, None


def _of_every_head(angles: Tensor) -> Tensor:
    """Add a dimension of heads: ``[1, T, head_dim]`` becomes ``[1, 1, T, head_dim]``, in float32 or wider."""
    dtype = torch.promote_types(angles.dtype, torch.float32)
    return angles.to(dtype)[:, None]


_WEIGHTS = "model.safetensors"
_OTHER_FILES = (
    *("preprocessor_config.json", "processor_config.json", *TOKENIZER_FILES),
    *("model.safetensors.index.json", "model-*-of-*.safetensors"),
)
_LAYER = r"\w+\.(encoder\.layers?|transformer\.layer|layers|h)\.\d+\."
_NORM = (
    "((sa_|output_)?layer_?norm(_before|_after|1|2)?|norm1|norm2|attn_norm|mlp_norm|input_layernorm|"
    r"post_attention_layernorm|pre_feedforward_layernorm|post_feedforward_layernorm|ln_1|ln_2)"
)


class HFEncoder(ModelFamily):
    """The family of transformers' models whose heads can be separated."""

    name = "hf"
    turns_images = True
    version = transformers.__version__
    parts = {  # noqa: RUF012 - as the protocol declares it
        "embed": rf"(({'|'.join(LAYOUTS)})\.)?"
        r"((embeddings|embeddings_project|embed_tokens|wte|wpe)\.|"
        r"encoder\.rel_embeddings\.)",
        "norm": rf"{_LAYER}({_NORM}\.|.*\.LayerNorm\.)"
        rf"|(({'|'.join(LAYOUTS)})\.)?"
        r"(layernorm|final_norm|pre_layrnorm|post_layernorm|final_layer_norm|norm|ln_f|"
        r"encoder\.LayerNorm)\.",
        "attention": rf"{_LAYER}(attention|attn|self_attn)\.",
        "mlp": rf"{_LAYER}(intermediate|output|ffn|mlp)\.",
    }
    named_parts = {  # noqa: RUF012 - as the protocol declares it
        "patch": r"(\w+\.)?embeddings\.patch_embeddings?\.",
        "position": r"\w+\.(embeddings\.position_embeddings?|wpe\.)",
        "class_token": r"(\w+\.)?embeddings\.((cls|distillation|mask)_token|register_tokens|class_embedding)$",
        "words": r"\w+\.(embeddings\.((word|tok)_embeddings|token_embedding)|embed_tokens|wte)\.",
        "layer_scale": r".*\.layer_scale[12]\.lambda1$",
        "scale": r"logit_(scale|bias)$",
        "head": r"((cls_|distillation_)?classifier|score)\.(out_proj\.)?(weight|bias)$",
    }

    # --- finding a model ----------------------------------------------------------------------------------------------

    def load_folder(self, folder: Path) -> LoadedModel | None:
        """Return the model in a folder with transformers' ``config.json`` and ``model.safetensors``.

        Returns:
            The model, or None if ``config.json`` was not written by transformers.

        Raises:
            InputError: if the heads of the model cannot be separated, or if its weights, tokenizer or image processor
                do not fit it.
        """
        published = read_config(folder / "config.json")
        if published is None or not {"architectures", "model_type"} <= published.keys():
            return None
        if not isinstance(published["model_type"], str):
            raise InputError(f"{folder}/config.json: model_type is {shown(published['model_type'])}, no name")
        config = kept_config(published, str(folder))
        removed = removed_heads(published, config, str(folder))

        # The hint is for a folder with pickles. transformers reads them with torch's weights_only, which runs no code.
        architectures: Any = published["architectures"]
        published_class = architectures[0]
        hint = (
            f"transformers.{published_class}.from_pretrained({str(folder)!r}).save_pretrained(OUT) writes safetensors"
        )
        weights = published_weights(folder / _WEIGHTS, hint)

        # A body (an encoder without a classifier) records which modules of its classifier it lacks.
        is_body = config.get("num_labels") == 0
        if is_body:
            config["absent"] = absent_from(config, weights.names())
        model = meta_model(config)
        is_zero_shot = type(model).__name__ in TWO_TOWERS

        tensors: TensorSource = weights
        unused_names: list[str] = []
        if set(weights.names()) != set(model.state_dict()):
            # The file has names of an older version, belongs to a body, or does not fit the model.
            tensors, unused_names = converted_weights(weights, model)

        # The tokenizer or image processor, and the class names.
        preprocess = preprocessing_in(folder, model)
        if is_decoder(model):
            check_padding(config, padding_of(preprocess), str(folder))
        labels, warnings = (None, []) if is_zero_shot else class_labels(published, model.config.num_labels, str(folder))
        return LoadedModel(
            arch=class_name(config),
            config=config,
            tensors=tensors,
            preprocess=preprocess,
            labels=labels,
            left=unused_names,
            removed=removed,
            warnings=[*warnings, *filter(None, [capitals_warning(folder, preprocess)])],
        )

    def load_name(self, name: str, options: Mapping[str, object], seed: int) -> LoadedModel | Path:
        """Load a published model, ``hf:ORG/NAME[@REVISION]``, or find a checkpoint of hydractl, ``.../FILE.st``.

        Only safetensors are read, and never any code of the repository.

        Returns:
            The model, or the local path of the checkpoint.
        """
        hint = "weights of your own open as a folder: model.safetensors beside config.json"
        refuse_options(f"hf:{name}", options, hint)
        hub_name = parse_hub_name(name)
        if hub_name.file is not None:
            return file_on_hub(hub_name, hub_name.file)
        return from_hub(name, self.load_folder, ("config.json", _WEIGHTS), _OTHER_FILES)

    def export_folder(
        self, folder: Path, config: LibraryConfig, preprocess: Preprocessing, labels: Sequence[str] | None
    ) -> str:
        """Write ``config.json`` and the tokenizer or image processor; the weights go into ``model.safetensors``.

        Args:
            folder: an existing, empty folder.
            config, preprocess: the configuration and the preprocessing of the model.
            labels: class names, or None.

        Returns:
            The file name for the weights.
        """
        document = dict(config)
        is_body = config.get("num_labels") == 0
        if is_body:
            # A body is published as the class of the encoder, e.g. BertModel, without hydractl's own entries.
            before_task, _, _ = class_name(config).partition("For")
            encoder_name = before_task.removesuffix("Model")
            document["architectures"] = [f"{encoder_name}Model"]
            del document["num_labels"]
            document.pop("absent", None)
        if labels is not None:
            label_by_index = dict(enumerate(labels))
            document["id2label"] = {str(index): label for index, label in label_by_index.items()}
            document["label2id"] = {label: index for index, label in label_by_index.items()}
        # Without a padding token transformers reads the texts of a decoder one by one. With one it passes over this
        # token at the end of a text, which must not be the tokenizer's own end.
        if _is_text(preprocess):
            model = meta_model(config)
            if is_decoder(model) and model.config.pad_token_id is None and not ends_in_padding(preprocess):
                document["pad_token_id"] = padding_of(preprocess)
        write_config(folder / "config.json", document)

        # Models of texts have a tokenizer, models of images a processor, models of both have both.
        if _is_text(preprocess):
            write_tokenizer(folder, preprocess, padding_side="right")
            return _WEIGHTS
        write_processor(folder, preprocess)
        texts = preprocess.get("texts")
        if texts is not None:
            reads_padding = not clip.is_causal(meta_model(config))
            write_tokenizer(folder, texts, padding_side=None if reads_padding else "right")
        return _WEIGHTS

    # --- structure ----------------------------------------------------------------------------------------------------

    def build(self, config: LibraryConfig) -> nn.Module:
        """Build transformers' model with parameters on the meta device and real buffers, as a copy to change."""
        return copy.deepcopy(meta_model(config))

    def sites(self, config: LibraryConfig) -> list[Site]:
        """Return the sites (attention blocks) in model order: ``bert.encoder.layer.0.attention`` and so on.

        The module of a site holds the projections of queries, keys, values and the output.
        """
        model = meta_model(config)
        is_zero_shot = type(model).__name__ in TWO_TOWERS
        sites = []
        for tower in towers_of(model):
            tower_name = clip.NAMES[tower.prefix] if is_zero_shot else "main"
            for layer_path, layer in layers_of(tower.base, tower.layout):
                layout = tower.layout
                encoder_config = tower.base.config
                block = layer.get_submodule(layout.block)

                # The number of heads, and that of keys and values: without its entry every head has its own.
                heads = encoder_config.num_attention_heads
                key_heads = getattr(encoder_config, "num_key_value_heads", None) or heads

                # The widths, from the output projection: [d_model, width], or transposed in GPT-2.
                out_weight = block.get_submodule(layout.heads.out).weight
                if layout.heads.transposed:
                    width, d_model = out_weight.shape
                else:
                    d_model, width = out_weight.shape
                if width % heads:  # some classes of the library cut such heads off silently
                    raise InputError(f"{type(block).__name__} has {heads} attention heads for a width of {width}")
                sites.append(
                    Site(
                        f"{tower.prefix}.{layer_path}.{layout.block}",
                        heads=heads,
                        head_dim=width // heads,
                        d_model=d_model,
                        tower=tower_name,
                        layout=tower.key,
                        sharing=heads // key_heads,
                    )
                )
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
        """Tokenize the prompts of all classes: ``{"input_ids": [classes, templates, tokens]}`` and perhaps a mask."""
        if self.classes(config) is not None:
            return super().prompts(config, preprocess, labels, templates)
        return clip.class_prompts(meta_model(config), preprocess, labels, templates)

    def image_shape(self, config: LibraryConfig) -> list[int] | None:
        """Return the image shape of the patch embedding; None for texts, and for DINOv2, which takes any size."""
        model = meta_model(config)
        tower = towers_of(model)[0]
        size = patch_image_size(model)
        if size is None or tower.prefix.startswith("dinov2"):
            return None
        return [int(tower.base.config.num_channels), *size]

    def layout(self, site: Site) -> AttentionLayout:
        """Return the names of the attention tensors of this kind of encoder."""
        return LAYOUTS[site.layout].heads

    def dropouts(self, model: nn.Module, site: Site) -> tuple[float, float]:
        """Return the dropout rates of the attention weights and of the attention output.

        The classes of transformers store these rates under different names, as numbers or as dropout modules. The
        second rate is 0 if the attention does not drop its output itself.
        """
        core: Any = model.get_submodule(site.path).get_submodule(LAYOUTS[site.layout].core)
        # GPT-2 has a dropout module for each of the two.
        if hasattr(core, "resid_dropout"):
            return float(core.attn_dropout.p), float(core.resid_dropout.p)

        # The attention weights: the attribute is a rate, or a dropout module with the rate `p`.
        dropout = core.attention_dropout if hasattr(core, "attention_dropout") else core.dropout
        weights_rate = getattr(dropout, "p", dropout)

        # The output: ModernBERT's `out_drop` is a dropout module, or an identity without `p`.
        output_rate = getattr(core, "residual_dropout", 0.0)
        if hasattr(core, "out_drop"):
            output_rate = getattr(core.out_drop, "p", output_rate)
        return float(weights_rate), float(output_rate)

    def install(self, model: nn.Module, site: Site, attention: nn.Module) -> None:
        """Replace the module that computes attention; BERT's residual, dropout and norm after it stay in place."""
        layout = LAYOUTS[site.layout]
        block: Any = model.get_submodule(site.path)
        library = block.get_submodule(layout.core)  # with the path "" the block itself

        # The stand-in takes the arguments of the library's module and calls hydractl's attention.
        is_deberta = site.layout == "deberta"
        stand_in = deberta.DisentangledInPlace(attention, library) if is_deberta else _StandIn(attention, library)
        if not layout.core:  # the block itself is replaced
            model.set_submodule(site.path, stand_in)
            return
        setattr(block, layout.core, stand_in)
        if layout.heads.out == "output.dense":
            block.output.dense = nn.Identity()  # HeadAttention already applies the output projection

    def stages(self, model: Any) -> list[Stages]:
        """Return the stages of each tower (encoder or decoder) of the model: stem, blocks and readout.

        The stem computes the embeddings and the masks. The readout is the final norm or pooler, and the classifier.
        """
        # CLIPs have two towers. All other models have one.
        if type(model).__name__ in TWO_TOWERS:
            return clip.two_tower_stages(model)
        (tower,) = towers_of(model)
        prefix = tower.prefix
        base = tower.base
        layout = tower.layout
        paths_and_layers = layers_of(base, layout)
        layers = [layer for _, layer in paths_and_layers]

        # Encoders have a module `embeddings`, and decoders do not. Layers of decoders and of a ModernBERT, which has
        # rotary positions too, may be of several kinds, e.g. with and without a sliding window.
        is_encoder = hasattr(base, "embeddings")
        stem = partial(encoder_stem if is_encoder else decoder_stem, base)
        blocks = for_each(run_encoder_layer, layers)
        if not is_encoder or hasattr(base, "rotary_emb"):
            kinds = kinds_of_layers(base.config)
            blocks = [partial(run_layer_of_kind, layer, kind) for layer, kind in zip(layers, kinds, strict=True)]

        # Decoders read the last token of each sample, other models the first ones or all of them.
        readout, count_of_first_tokens = readout_of(model)
        reads: Callable[[State], Tensor] | None = None
        if is_decoder(model):
            reads = _positions_of_last
        elif count_of_first_tokens is not None:
            reads = FirstTokens(count_of_first_tokens)

        is_deberta = tower.key == "deberta"
        one_tower = Stages(
            stem=lambda inputs: stem(from_first_token(inputs)),  # of texts whose padding comes first, too
            blocks=blocks,
            block_paths=[f"{prefix}.{path}" for path, _ in paths_and_layers],
            stem_prefixes=tuple(f"{prefix}.{name}." for name in layout.embeddings),
            readout=lambda state: readout(model, base, after_last_norm(base, state)),
            attention_input=partial(normed_input, layout.norm, layers[-1]),
            reads=reads,
            per_sample=("attention_mask", *PER_SAMPLE),
            per_member=deberta.PER_MEMBER if is_deberta else (),
        )
        return [one_tower]

    def sample_features(self, model: Any, inputs: Any) -> Tensor:
        """Compute normalised features ``[B, D]`` of images with transformers' ``get_image_features``."""
        arguments = inputs if isinstance(inputs, Mapping) else {"pixel_values": inputs}
        output = model.get_image_features(**arguments)
        return torch.nn.functional.normalize(output.pooler_output, dim=-1)

    # --- data ---------------------------------------------------------------------------------------------------------

    def collate(self, preprocess: Preprocessing) -> Callable[[list[Any]], Any]:
        """Return the tokenizer for texts or pairs of texts, or the image processor for PIL images."""
        if "texts" in preprocess:
            text_collate(preprocess["texts"])  # only checks the tokenizer of a CLIP; raises an error if it is wrong
        if _is_text(preprocess):
            return text_collate(preprocess)
        return image_collate(preprocess)

    def example_inputs(self, preprocess: Preprocessing, batch: int, seed: int) -> Any:
        """Draw random tokens without padding for a model of texts, or random pixels for a model of images."""
        if _is_text(preprocess):
            return random_tokens(preprocess, batch, seed)
        return super().example_inputs(preprocess, batch, seed)

    def longest_text(self, preprocess: Preprocessing) -> int | None:
        """Return ``model_max_length`` of the tokenizer; None for images."""
        if not _is_text(preprocess):
            return None
        settings: Any = preprocess  # which collate has taken
        return int(settings["tokenizer"]["model_max_length"])

    # --- training -----------------------------------------------------------------------------------------------------

    def image_format(self, preprocess: Preprocessing) -> ImageFormat:
        """Return the image format that the settings of the image processor describe."""
        if _is_text(preprocess):
            return super().image_format(preprocess)
        return image_format(preprocess)

    def drawn(self, config: LibraryConfig) -> nn.Module:
        """Build the model with weights drawn by transformers' own initialisation."""
        return drawn_model(config)

    def too_long(self, config: LibraryConfig, preprocess: Preprocessing, texts: Sequence[str]) -> tuple[int, int]:
        """Return the number of texts that are too long, and the greatest length in tokens, start and end included."""
        is_zero_shot = self.classes(config) is None
        if not is_zero_shot:  # its preprocessing is that of texts, which the base class asks
            return super().too_long(config, preprocess, texts)
        collate = text_collate(preprocess["texts"])
        return sum(collate.cut(texts)), collate.max_length

    def with_classes(self, config: LibraryConfig, classes: int) -> LibraryConfig:
        """Return the configuration with another number of classes and without the names of the old classes.

        Removing ``absent`` gives a body back the modules of its classifier, e.g. the pooler.
        """
        changed = dict(config)
        for key in ("id2label", "label2id", "absent"):
            changed.pop(key, None)
        changed["num_labels"] = classes
        return changed

    def with_dropout(self, config: LibraryConfig, rate: float) -> LibraryConfig:
        """Return the configuration with the dropout rate under the model's own name for it; GPT-2 has two names."""
        if class_name(config).startswith("GPT2"):
            return {**config, "resid_pdrop": rate, "embd_pdrop": rate}
        for name in ("hidden_dropout_prob", "dropout"):
            if name in config:
                return {**config, name: rate}
        raise UsageError(f"--dropout: {meta_model(config).config.model_type} has no dropout behind its layers")


def _positions_of_last(state: State) -> Tensor:
    """Return the position of the last token of each sample, ``[B, 1]``."""
    return state.context["last"]


def _is_text(preprocess: Preprocessing) -> bool:
    """Return whether a preprocessing is for texts; otherwise it is for images.

    Raises:
        InputError: if it is for neither.
    """
    kind = preprocess.get("kind")
    if kind not in ("text", "image"):
        raise InputError(f"the preprocessing is neither of text nor of images but of {shown(kind)}")
    return kind == "text"


FAMILY = HFEncoder()
