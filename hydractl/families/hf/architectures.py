"""The classifiers of transformers whose heads can be separated, and their bodies: where the heads are, and readouts."""

from __future__ import annotations

import contextlib
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging as hf_logging

from hydractl.errors import InputError
from hydractl.families.base import AttentionLayout, State
from hydractl.families.hf import dinov3, relative
from hydractl.families.hf.decoders import at_last, last_token, normed, pooled, problem_of
from hydractl.families.reading import kept, refused_as
from hydractl.jsonio import shown

# Says how or by whom a file was written, or where the labels are kept by themselves; no part of an architecture.
_NOT_THE_MODEL = ("transformers_version", "dtype", "torch_dtype", "attn_implementation", "id2label", "label2id")
_MOST_LAYERS, _MOST_POSITIONS, _MOST_LABELS = 1000, 1 << 20, 1 << 20


@dataclass(frozen=True)
class Layout:
    """Module names of one kind of encoder, relative to the base model, the layer or the attention."""

    layers: str
    heads: AttentionLayout
    # The module that computes attention, within the attention block (none: the block itself), and the end of its class.
    core: str
    core_class: str
    # The norm of a layer that its attention reads through; none where the norm comes after.
    norm: str = ""
    # The attention block within a layer; none: the layer itself.
    block: str = "attention"
    # The modules before the first layer.
    embeddings: tuple[str, ...] = ("embeddings", "embeddings_project", "pre_layrnorm")
    # Whether the layers are in stages, between which tokens get fewer.
    staged: bool = False


_PROJECTIONS = AttentionLayout(("q_proj", "k_proj", "v_proj"), "o_proj")
_BERT = Layout(
    "encoder.layer", AttentionLayout(("self.query", "self.key", "self.value"), "output.dense"), "self", "SelfAttention"
)
_DISTILBERT = Layout("transformer.layer", AttentionLayout(("q_lin", "k_lin", "v_lin"), "out_lin"), "", "SelfAttention")
_VIT = Layout("layers", _PROJECTIONS, "", "Attention", "layernorm_before")
_DINOV2 = Layout("encoder.layer", _PROJECTIONS, "", "Attention", "norm1")
_CLIP = Layout(
    "encoder.layers", AttentionLayout(_PROJECTIONS.qkv, "out_proj"), "", "Attention", "layer_norm1", "self_attn"
)
_MODERN = Layout("layers", AttentionLayout(("Wqkv",), "Wo"), "", "Attention", "attn_norm", "attn")
_BEIT = Layout(
    "layers",
    AttentionLayout(
        ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
        "attention.o_proj",
        table="relative_position_bias.relative_position_bias_table",
    ),
    "attention",
    "Attention",
    "layernorm_before",
    "",
    ("embeddings", "shared_position_bias"),
)
_DATA2VEC = replace(
    _BEIT,
    layers="encoder.layer",
    heads=replace(
        _BERT.heads, qkv=("attention.query", "attention.key", "attention.value"), table=f"attention.{_BEIT.heads.table}"
    ),
    core_class="SdpaSelfAttention",
    block="attention",
    embeddings=("embeddings", "encoder.relative_position_bias"),
)
_SWIN = replace(_VIT, layers="encoder.layers", heads=replace(_PROJECTIONS, table=_BEIT.heads.table), staged=True)
_SWINV2 = replace(
    _BERT,
    layers="encoder.layers",
    heads=replace(
        _BERT.heads,
        table="self.continuous_position_bias_mlp.2.weight",
        features="self.continuous_position_bias_mlp.0",
        scale="self.logit_scale",
    ),
    staged=True,
)
_DEBERTA = Layout(
    "encoder.layer",
    AttentionLayout(
        ("self.query_proj", "self.key_proj", "self.value_proj"),
        "output.dense",
        positions=("self.pos_query_proj", "self.pos_key_proj"),
    ),
    "self",
    "DisentangledSelfAttention",
    embeddings=("embeddings", "encoder.rel_embeddings", "encoder.LayerNorm"),
)
_MPNET = Layout(
    *("encoder.layer", AttentionLayout(("attn.q", "attn.k", "attn.v"), "attn.o"), "attn", "SelfAttention"),
    embeddings=("embeddings", "encoder.relative_attention_bias"),
)
_LLAMA = Layout(
    "layers",
    AttentionLayout(("q_proj", "k_proj", "v_proj"), "o_proj", q_norm="q_norm", k_norm="k_norm"),
    *("", "Attention", "input_layernorm", "self_attn", ("embed_tokens",)),
)
_PHI3 = replace(_LLAMA, heads=AttentionLayout(("qkv_proj",), "o_proj"))
_GPT2 = Layout(
    *("h", AttentionLayout(("c_attn",), "c_proj", transposed=True), "", "Attention", "ln_1", "attn", ("wte", "wpe"))
)

# Name of the base model within the classifier, which every site's path starts with -> its layout. Where several layouts
# have one name, what tells them apart stands behind a dot.
LAYOUTS = {
    "bert": _BERT,
    "roberta": _BERT,
    "electra": _BERT,
    "ernie": _BERT,
    "data2vec_text": _BERT,
    "roberta_prelayernorm": replace(_BERT, norm="attention.LayerNorm"),
    "distilbert": _DISTILBERT,
    "vit": _VIT,
    "deit": _VIT,
    "ijepa": _VIT,
    "dinov2": _DINOV2,
    "dinov2_with_registers": _DINOV2,
    "model": _MODERN,
    "beit": _BEIT,
    "data2vec_vision": _DATA2VEC,
    "swin": _SWIN,
    "swinv2": _SWINV2,
    "deberta": _DEBERTA,
    "mpnet": _MPNET,
    "model.self_attn": _LLAMA,
    "model.qkv_proj": _PHI3,
    "model.post_norm": replace(_LLAMA, norm=""),
    "model.attention": replace(_DINOV2, layers="layer"),
    "transformer": _GPT2,
    "vision_model": _CLIP,
    "text_model": _CLIP,
}


def _pooler(model: Any, base: Any, state: State) -> Tensor:
    return model.classifier(model.dropout(base.pooler(state.hidden)))


def _head(model: Any, base: Any, state: State) -> Tensor:
    return model.classifier(state.hidden)


def _pre_classifier(model: Any, base: Any, state: State) -> Tensor:
    return model.classifier(model.dropout(torch.relu(model.pre_classifier(state.hidden[:, 0]))))


def _outer_pooler(model: Any, base: Any, state: State) -> Tensor:
    return model.classifier(model.dropout(model.pooler(state.hidden)))


def _beit(model: Any, base: Any, state: State) -> Tensor:
    return model.classifier(base.pooler(base.layernorm(state.hidden)))


def _swin(model: Any, base: Any, state: State) -> Tensor:
    return model.classifier(_swin_mean(model, base, state))


def _swin_mean(model: Any, base: Any, state: State) -> Tensor:
    return torch.flatten(base.pooler(base.layernorm(state.hidden).transpose(1, 2)), 1)


def _class_token(model: Any, base: Any, state: State) -> Tensor:
    return model.classifier(base.layernorm(state.hidden)[:, 0, :])


def _normed_head(model: Any, base: Any, state: State) -> Tensor:
    return model.classifier(base.LayerNorm(state.hidden))


def _mean(model: Any, base: Any, state: State) -> Tensor:
    return model.classifier(base.layernorm(state.hidden).mean(dim=1))


def _two_tokens(model: Any, base: Any, state: State) -> Tensor:
    hidden = base.layernorm(state.hidden)
    return (model.cls_classifier(hidden[:, 0, :]) + model.distillation_classifier(hidden[:, 1, :])) / 2


def _token_and_mean(model: Any, base: Any, state: State) -> Tensor:
    hidden, registers = base.layernorm(state.hidden), getattr(model.config, "num_register_tokens", 0)
    return model.classifier(torch.cat([hidden[:, 0], hidden[:, 1 + registers :].mean(dim=1)], dim=1))


def _modern(model: Any, base: Any, state: State) -> Tensor:
    hidden, tokens = base.final_norm(state.hidden), state.context["tokens"]
    if model.config.classifier_pooling == "cls":
        pooled = hidden[:, 0]
    else:
        tokens = (torch.ones_like(hidden[..., 0]) if tokens is None else tokens).unsqueeze(-1)  # [B, T, 1]
        pooled = (hidden * tokens).sum(dim=1) / tokens.sum(dim=1)
    return model.classifier(model.drop(model.head(pooled)))


def _patches(model: Any, base: Any, state: State) -> Tensor:
    hidden = state.hidden[:, 1:] if hasattr(base, "pre_layrnorm") else base.post_layernorm(state.hidden)
    patches = state.context.get("tokens")  # which are none of padding, [B, T]
    if patches is None:
        return model.classifier(hidden.mean(dim=1))
    return model.classifier((hidden * patches[..., None]).sum(dim=1) / patches[..., None].sum(dim=1))


Readout = Callable[[Any, Any, State], Tensor]
# Class of the library -> its key in LAYOUTS, and what its forward does after the last layer.
ARCHITECTURES: dict[str, tuple[str, Readout]] = {
    "BertForSequenceClassification": ("bert", _pooler),
    "RobertaForSequenceClassification": ("roberta", _head),
    "XLMRobertaForSequenceClassification": ("roberta", _head),
    "CamembertForSequenceClassification": ("roberta", _head),
    "ElectraForSequenceClassification": ("electra", _head),
    "ErnieForSequenceClassification": ("ernie", _pooler),
    "Data2VecTextForSequenceClassification": ("data2vec_text", _head),
    "RobertaPreLayerNormForSequenceClassification": ("roberta_prelayernorm", _normed_head),
    "DistilBertForSequenceClassification": ("distilbert", _pre_classifier),
    "ViTForImageClassification": ("vit", _class_token),
    "ViTMSNForImageClassification": ("vit", _class_token),
    "IJepaForImageClassification": ("ijepa", _mean),
    "DeiTForImageClassification": ("deit", _class_token),
    "DeiTForImageClassificationWithTeacher": ("deit", _two_tokens),
    "Dinov2ForImageClassification": ("dinov2", _token_and_mean),
    "Dinov2WithRegistersForImageClassification": ("dinov2_with_registers", _token_and_mean),
    "ModernBertForSequenceClassification": ("model", _modern),
    "DebertaV2ForSequenceClassification": ("deberta", _outer_pooler),
    "MPNetForSequenceClassification": ("mpnet", _head),
    "BeitForImageClassification": ("beit", _beit),
    "Data2VecVisionForImageClassification": ("data2vec_vision", _beit),
    "SwinForImageClassification": ("swin", _swin),
    "Swinv2ForImageClassification": ("swinv2", _swin),
    **{
        f"{name}ForSequenceClassification": ("model.self_attn", last_token)
        for name in (
            *("Llama", "Mistral", "Qwen2", "Qwen3", "Gemma", "Gemma2", "Gemma3Text", "Arcee", "Glm", "Helium"),
            *("Ministral", "SeedOss", "SmolLM3", "StableLm", "Starcoder2"),
        )
    },
    "Phi3ForSequenceClassification": ("model.qkv_proj", last_token),
    "Exaone4ForSequenceClassification": ("model.post_norm", last_token),
    "GPT2ForSequenceClassification": ("transformer", last_token),
    "EuroBertForSequenceClassification": ("model.self_attn", pooled),
    "CLIPForImageClassification": ("vision_model", _patches),
    "MetaClip2ForImageClassification": ("vision_model", _patches),
    "SiglipForImageClassification": ("vision_model", _patches),
    "Siglip2ForImageClassification": ("vision_model", _patches),
    dinov3.NAME: ("model.attention", _class_token),
}
TWO_TOWERS = ("CLIPModel", "SiglipModel", "Siglip2Model", "MetaClip2Model")
"""Classes of the library that compare images with texts."""
BODIES = {name.partition("For")[0]: name for name in reversed(ARCHITECTURES)}
"""How the names of the classes of one encoder start -> its first classifier."""

OTHER_BODIES = {"Gemma3ForCausalLM": "Gemma3Text", "GPT2LMHeadModel": "GPT2"}
"""Bodies that are not named like their classifier -> how its name starts."""


def is_decoder(model: Any) -> bool:
    """Return whether a token sees only those before it."""
    name = type(model).__name__
    return name in ARCHITECTURES and ARCHITECTURES[name][1] is last_token


def _first_token(model: Any, base: Any, state: State) -> Tensor:
    norms = [getattr(base, name) for name in ("layernorm", "final_norm", "norm", "LayerNorm") if hasattr(base, name)]
    return (norms[0] if norms else nn.Identity())(state.hidden)[:, 0]


def _last_token(model: Any, base: Any, state: State) -> Tensor:
    return at_last(state, normed(base, state))


def readout_of(model: Any) -> tuple[Readout, int | None]:
    """Return what the library does after the last layer, and the number of first tokens it uses (None: all).

    A body reads its first token, or the mean where it has none for that; a decoder always its last token.
    """
    readout = ARCHITECTURES[type(model).__name__][1]
    if readout is _mean:
        return readout, None
    if not model.config.num_labels:
        if readout is _swin:
            return _swin_mean, None
        return (_last_token if readout is last_token else _first_token), 1
    if readout is pooled:
        return readout, 1 if model.classifier_pooling == "bos" else None
    if readout in (_token_and_mean, _patches, _swin) or (readout is _beit and model.config.use_mean_pooling):
        return readout, None
    if readout is _modern and model.config.classifier_pooling != "cls":
        return readout, None
    return readout, 2 if readout is _two_tokens else 1


def without_traces(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration without what says how it was written, how it is to be computed, or what the labels are."""
    return {k: v for k, v in config.items() if k not in _NOT_THE_MODEL and not k.startswith("_")}


@kept
def meta_model(config: Mapping[str, Any]) -> Any:
    """Build the library's model of a configuration, in eval mode: parameters on the meta device, buffers real.

    Raises:
        InputError: for a model whose heads cannot be taken apart, and for what the library cannot build.
    """
    with torch.device("meta"):
        model = library_model(config)
    fill_buffers(model)
    _check_layers(model)
    return model.eval()


def library_model(config: Mapping[str, Any]) -> Any:
    """Build the library's model of a configuration with weights of its own initialisation, on the default device.

    With no labels it is a body: the library's classifier without the modules that its configuration calls ``absent``.

    Raises:
        InputError: for what the library cannot build.
    """
    name = class_name(config)
    settings = without_traces(config)
    labels = 2 if name in TWO_TOWERS else settings.get("num_labels")
    if type(labels) is not int or labels > _MOST_LABELS:  # the library would make up a name for each of them
        raise InputError(f"{name} has {shown(labels)} labels")
    cls = getattr(transformers, name)
    with refused_as(f"transformers {transformers.__version__} cannot build {name}"), quiet():
        library_config = cls.config_class.from_dict({**settings, "num_labels": labels or 2})
        _check_config(library_config, name)
        model = cls._from_config(library_config, attn_implementation=implementation(cls), dtype=torch.float32)
        model.base_model.warn_if_padding_and_no_attention_mask = _no_warning
        if not labels:
            for path in settings.get("absent", ()):
                model.set_submodule(path, nn.Identity())
            model.config.num_labels = 0
    return model


def _no_warning(*_: Any) -> None:
    """Do nothing, in place of a GPT-2 warning that reads the values of inputs, which may be on the meta device."""


def implementation(cls: Any) -> str:
    """Return how a class of the library attends where it is not replaced."""
    return "sdpa" if cls._supports_sdpa else "eager"


def absent_from(config: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Return the modules of a classifier that a body does not have, given the names of its stored tensors.

    These are the last layer, which is always one of other classes, and what no tensor belongs to.
    """
    model = meta_model({**config, "num_labels": 2})
    ((prefix, base, _),) = towers_of(model)
    others = [name for name, child in model.named_children() if child is not base and list(child.parameters())]
    last = ("classifier", "score")
    absent = [one for one in others if one.endswith(last) or not any(n.startswith(f"{one}.") for n in names)]
    if getattr(base, "pooler", None) is not None and not any(re.match(r"(\w+\.)?pooler\.", name) for name in names):
        absent.append(f"{prefix}.pooler")
    return absent


def fill_buffers(model: Any) -> None:
    """Make the buffers real, with the numbers that the library itself gives them."""
    for module in model.modules():
        empty = [name for name, buffer in module.named_buffers(recurse=False) if buffer.is_meta]
        for name in empty:
            module._buffers[name] = torch.zeros_like(module._buffers[name], device="cpu")
        if empty:
            model._init_weights(module)  # the parameters beside them are on the meta device and stay as they are


def _check_config(config: Any, name: str) -> None:
    """Refuse what is not a classifier by softmax over separate heads."""
    for part in [getattr(config, key) for key in ("vision_config", "text_config") if hasattr(config, key)] or [config]:
        check_counts(part, name)
    problems = []
    if config.num_labels < 2 or config.problem_type in ("regression", "multi_label_classification"):
        problems.append(f"it has {config.num_labels} labels and the problem type {shown(config.problem_type)}")
    if getattr(config, "is_decoder", False) or getattr(config, "add_cross_attention", False):
        problems.append("it is a decoder")
    if getattr(config, "position_embedding_type", None) not in (None, "absolute"):
        problems.append(f"its positions are {shown(config.position_embedding_type)}, not absolute")
    if problems:
        raise InputError(f"this {name} is not supported: it must choose one of several classes", problems=problems)


def check_counts(config: Any, name: str) -> None:
    """Refuse numbers of layers, heads and tokens that no model has, before anything is built of them."""
    layers, positions = config.num_hidden_layers, getattr(config, "max_position_embeddings", 1)
    image, patch = (getattr(config, key, None) for key in ("image_size", "patch_size"))
    if type(image) is int and type(patch) is int and patch > 0:
        positions = (image // patch) ** 2
    if type(layers) is not int or not 0 < layers <= _MOST_LAYERS:
        raise InputError(f"{name} has {shown(layers)} layers, so no attention heads that can be counted")
    heads = getattr(config, "num_attention_heads", 1)
    if not all(type(n) is int and n > 0 for n in (heads if isinstance(heads, (list, tuple)) else [heads])):
        raise InputError(f"{name} has {shown(heads)} attention heads")
    if type(positions) is not int or not 0 < positions <= _MOST_POSITIONS:
        raise InputError(f"{name} takes {shown(positions)} tokens")
    if (problem := problem_of(config)) is not None:
        raise InputError(f"this {name} is not supported: {problem}")


def _check_layers(model: Any) -> None:
    """Refuse attention that is not what the layout says, as in another version of the library."""
    for tower in towers_of(model):
        check_tower(type(model).__name__, *tower[1:])


def check_tower(name: str, base: Any, layout: Layout) -> None:
    """Refuse an encoder, of the class that ``name`` starts with, that is not what the layout says."""
    try:
        blocks = [layer.get_submodule(layout.block) for _, layer in layers_of(base, layout)]
        cores = [block.get_submodule(layout.core) for block in blocks]
        projections = [
            [block.get_submodule(leaf) for leaf in (*layout.heads.qkv, layout.heads.out)] for block in blocks
        ]
    except AttributeError as error:
        raise InputError(
            f"{name} of transformers {transformers.__version__} is built otherwise than this version of hydractl knows",
            hint="pip install -U transformers",
        ) from error
    kind = name.partition("For")[0].removesuffix("Model")
    # Attention that several classes have is named after none of them.
    expected = [f"{one}{layout.core_class}" for one in (kind.removesuffix("Text"), kind, "")]
    linear = Conv1D if layout.heads.transposed else nn.Linear
    for core, maps in zip(cores, projections, strict=True):
        if type(core).__name__ not in expected or any(type(one) is not linear for one in maps):
            raise InputError(f"the attention of this {name} is {type(core).__name__}, expected {expected[0]}")
        width, scale = getattr(core, "head_dim", 0), getattr(core, "scaling", 0)
        if width and scale and not math.isclose(scale, width**-0.5):
            what = f"its attention scales scores by {scale:.4g}, not by 1 / sqrt({width})"
            raise InputError(f"this {name} is not supported: {what}")
    if problems := relative.problems(base):
        raise InputError(f"this {name} is not supported", problems=problems)


def layers_of(base: Any, layout: Layout) -> list[tuple[str, Any]]:
    """Return the layers of an encoder, which may be in stages, by their paths within it."""
    if layout.staged:
        return [(path, layer) for path, layer, *_ in relative.swin_layers(base)]
    return [(f"{layout.layers}.{i}", layer) for i, layer in enumerate(base.get_submodule(layout.layers))]


def towers_of(model: Any) -> list[tuple[str, Any, Layout]]:
    """Name, encoder and layout of each tower: of a classifier the one, else that of images, then that of texts."""
    prefixes = [key.partition(".")[0] for key in layouts_of(model)]
    each = zip(prefixes, layouts_of(model), strict=True)
    return [(prefix, getattr(model, prefix), LAYOUTS[key]) for prefix, key in each]


def layouts_of(model: Any) -> Sequence[str]:
    """Return the key of each tower in :data:`LAYOUTS`."""
    name = type(model).__name__
    return ("vision_model", "text_model") if name in TWO_TOWERS else ARCHITECTURES[name][:1]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Run the library without progress bars and without warnings of what is checked here."""
    level, bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        hf_logging.set_verbosity(level)
        if bars:
            hf_logging.enable_progress_bar()


def class_name(config: Mapping[str, Any]) -> str:
    """Return the classifier of the library that a configuration names, or that it names the body of.

    Raises:
        InputError: for one whose heads cannot be taken apart, naming its attention.
    """
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and len(names) == 1 else None
    if isinstance(name, str) and (name in ARCHITECTURES or name in TWO_TOWERS):
        return name
    body = re.fullmatch(r"(\w+?)(Model|For\w+)", name) if isinstance(name, str) else None
    encoder = None if body is None else OTHER_BODIES.get(body[0], body[1])
    if body and encoder in BODIES and hasattr(transformers, body[0]):
        return BODIES[encoder]
    raise InputError(
        f"transformers' {shown(names) if name is None else name} is not supported"
        + (_reason(name) if isinstance(name, str) else ""),
        hint=f"supported are {', '.join(TWO_TOWERS)}, and classifiers and bodies of {', '.join(reversed(BODIES))}",
    )


def _reason(name: str) -> str:
    """Say why a class is refused, behind its name."""
    tower = re.match(r"(CLIP|MetaClip2|Siglip2?)(Vision|Text)Model", name)
    met = f"it is one tower of a {tower[1]}Model" if tower else _attention_of(name)
    return "" if met is None else f": {met}" if tower else f": its attention is {met}"


def _attention_of(name: str) -> str | None:
    """Find the attention class in the file of some model of the library, or None where there is none.

    The model itself is not built: its configuration may name another one that the library would ask the hub for.
    """
    try:
        module = sys.modules[getattr(transformers, name).__module__]
    except Exception:  # no model of this version, or one that needs another library
        return None
    classes = [cls for cls in vars(module).values() if isinstance(cls, type) and issubclass(cls, nn.Module)]
    kinds = [cls.__name__ for cls in classes if cls.__name__.endswith("Attention")]
    return min(kinds, key=len, default=None)  # the others are parts or variants of it
