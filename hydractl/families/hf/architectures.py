"""The classifiers of transformers whose heads can be separated, and their bodies: how each is built and read out."""

from __future__ import annotations

import contextlib
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging as hf_logging

from hydractl.errors import InputError
from hydractl.families.base import State, numbered_paths
from hydractl.families.config_json import LibraryConfig, are_whole_numbers, is_whole_number
from hydractl.families.hf import dinov3, relative
from hydractl.families.hf.decoders import (
    at_last_token,
    last_norm,
    last_token_logits,
    mean_of_tokens,
    pooled_logits,
    unsupported_setting,
)
from hydractl.families.hf.layouts import LAYOUTS, EncoderLayout
from hydractl.families.meta_device import on_meta_device
from hydractl.families.reading import cached_by_config, refused_as
from hydractl.jsonio import shown

# Says how or by whom a file was written, or where the labels are kept by themselves; no part of an architecture.
_NOT_THE_MODEL = ("transformers_version", "dtype", "torch_dtype", "attn_implementation", "id2label", "label2id")
_MOST_LAYERS = 1000
_MOST_POSITIONS = 1 << 20
_MOST_LABELS = 1 << 20


# --- readouts: what the forward of a class does after the last layer --------------------------------------------------


def _pooler(model: Any, base: Any, state: State) -> Tensor:
    """Classify by the encoder's pooler, with dropout."""
    pooled = base.pooler(state.hidden)
    dropped = model.dropout(pooled)
    return model.classifier(dropped)


def _head(model: Any, base: Any, state: State) -> Tensor:
    """Classify by a head that pools all tokens by itself."""
    return model.classifier(state.hidden)


def _pre_classifier(model: Any, base: Any, state: State) -> Tensor:
    """Classify by the first token, through one more layer."""
    class_token = state.hidden[:, 0]
    first = model.pre_classifier(class_token)
    dropped = model.dropout(torch.relu(first))
    return model.classifier(dropped)


def _outer_pooler(model: Any, base: Any, state: State) -> Tensor:
    """Classify by the classifier's own pooler, with dropout."""
    pooled = model.pooler(state.hidden)
    dropped = model.dropout(pooled)
    return model.classifier(dropped)


def _beit(model: Any, base: Any, state: State) -> Tensor:
    """Classify by the encoder's pooler behind its last norm: the class token, or the mean of patches."""
    hidden = base.layernorm(state.hidden)
    pooled = base.pooler(hidden)
    return model.classifier(pooled)


def _swin(model: Any, base: Any, state: State) -> Tensor:
    """Classify by the mean of all tokens."""
    pooled = _swin_mean(model, base, state)
    return model.classifier(pooled)


def _swin_mean(model: Any, base: Any, state: State) -> Tensor:
    """Return the mean of all tokens behind the last norm, ``[B, d_model]``."""
    hidden = base.layernorm(state.hidden)
    pooled = base.pooler(hidden.transpose(1, 2))
    return torch.flatten(pooled, 1)


def _class_token(model: Any, base: Any, state: State) -> Tensor:
    """Classify by the class token."""
    hidden = base.layernorm(state.hidden)
    class_token = hidden[:, 0, :]
    return model.classifier(class_token)


def _normed_head(model: Any, base: Any, state: State) -> Tensor:
    """Classify by a head that pools all tokens by itself, behind the last norm."""
    hidden = base.LayerNorm(state.hidden)
    return model.classifier(hidden)


def _mean(model: Any, base: Any, state: State) -> Tensor:
    """Classify by the mean of all tokens."""
    hidden = base.layernorm(state.hidden)
    mean = hidden.mean(dim=1)
    return model.classifier(mean)


def _two_tokens(model: Any, base: Any, state: State) -> Tensor:
    """Classify by the mean of two classifiers: of the class token, and of the distillation token."""
    hidden = base.layernorm(state.hidden)
    class_token = hidden[:, 0, :]
    distillation_token = hidden[:, 1, :]
    of_class = model.cls_classifier(class_token)
    of_distillation = model.distillation_classifier(distillation_token)
    return (of_class + of_distillation) / 2


def _token_and_mean(model: Any, base: Any, state: State) -> Tensor:
    """Classify by the class token and the mean of patches side by side."""
    hidden = base.layernorm(state.hidden)
    registers = getattr(model.config, "num_register_tokens", 0)
    class_token = hidden[:, 0]
    patches = hidden[:, 1 + registers :]
    features = torch.cat([class_token, patches.mean(dim=1)], dim=1)
    return model.classifier(features)


def _modern(model: Any, base: Any, state: State) -> Tensor:
    """Classify by the first token, or the mean of those that are no padding, as the configuration says."""
    hidden = base.final_norm(state.hidden)
    if model.config.classifier_pooling == "cls":
        features = hidden[:, 0]
    else:
        features = mean_of_tokens(hidden, state.context["tokens"])
    dropped = model.drop(model.head(features))
    return model.classifier(dropped)


def _patches(model: Any, base: Any, state: State) -> Tensor:
    """Classify by the mean of patches of the image tower of a CLIP or SigLIP."""
    if hasattr(base, "pre_layrnorm"):  # a CLIP: the mean is over patches, without the class token before them
        hidden = state.hidden[:, 1:]
    else:
        hidden = base.post_layernorm(state.hidden)
    patches = state.context.get("tokens")  # which are none of padding, [B, T]
    if patches is None:
        return model.classifier(hidden.mean(dim=1))
    return model.classifier(mean_of_tokens(hidden, patches))


Readout = Callable[[Any, Any, State], Tensor]
"""From a classifier, its encoder and the state after the last layer to the logits."""

_LLAMA_KIN = (
    *("Llama", "Mistral", "Qwen2", "Qwen3", "Gemma", "Gemma2", "Gemma3Text", "Arcee", "Glm", "Helium"),
    *("Ministral", "SeedOss", "SmolLM3", "StableLm", "Starcoder2"),
)


class Architecture(NamedTuple):
    """What is known of a classifier of the library.

    Attributes:
        layout: its key in :data:`LAYOUTS`.
        readout: what its forward does after the last layer.
    """

    layout: str
    readout: Readout


_LLAMA = Architecture("model.self_attn", last_token_logits)
ARCHITECTURES: dict[str, Architecture] = {
    "BertForSequenceClassification": Architecture("bert", _pooler),
    "RobertaForSequenceClassification": Architecture("roberta", _head),
    "XLMRobertaForSequenceClassification": Architecture("roberta", _head),
    "CamembertForSequenceClassification": Architecture("roberta", _head),
    "ElectraForSequenceClassification": Architecture("electra", _head),
    "ErnieForSequenceClassification": Architecture("ernie", _pooler),
    "Data2VecTextForSequenceClassification": Architecture("data2vec_text", _head),
    "RobertaPreLayerNormForSequenceClassification": Architecture("roberta_prelayernorm", _normed_head),
    "DistilBertForSequenceClassification": Architecture("distilbert", _pre_classifier),
    "ViTForImageClassification": Architecture("vit", _class_token),
    "ViTMSNForImageClassification": Architecture("vit", _class_token),
    "IJepaForImageClassification": Architecture("ijepa", _mean),
    "DeiTForImageClassification": Architecture("deit", _class_token),
    "DeiTForImageClassificationWithTeacher": Architecture("deit", _two_tokens),
    "Dinov2ForImageClassification": Architecture("dinov2", _token_and_mean),
    "Dinov2WithRegistersForImageClassification": Architecture("dinov2_with_registers", _token_and_mean),
    "ModernBertForSequenceClassification": Architecture("model", _modern),
    "DebertaV2ForSequenceClassification": Architecture("deberta", _outer_pooler),
    "MPNetForSequenceClassification": Architecture("mpnet", _head),
    "BeitForImageClassification": Architecture("beit", _beit),
    "Data2VecVisionForImageClassification": Architecture("data2vec_vision", _beit),
    "SwinForImageClassification": Architecture("swin", _swin),
    "Swinv2ForImageClassification": Architecture("swinv2", _swin),
    **dict.fromkeys([f"{name}ForSequenceClassification" for name in _LLAMA_KIN], _LLAMA),
    "Phi3ForSequenceClassification": Architecture("model.qkv_proj", last_token_logits),
    "Exaone4ForSequenceClassification": Architecture("model.post_norm", last_token_logits),
    "GPT2ForSequenceClassification": Architecture("transformer", last_token_logits),
    "EuroBertForSequenceClassification": Architecture("model.self_attn", pooled_logits),
    "CLIPForImageClassification": Architecture("vision_model", _patches),
    "MetaClip2ForImageClassification": Architecture("vision_model", _patches),
    "SiglipForImageClassification": Architecture("vision_model", _patches),
    "Siglip2ForImageClassification": Architecture("vision_model", _patches),
    dinov3.NAME: Architecture("model.attention", _class_token),
}
"""The classifiers by the names of their classes; of several of one encoder the first is that of its body."""
TWO_TOWERS = ("CLIPModel", "SiglipModel", "Siglip2Model", "MetaClip2Model")
"""Classes of the library that compare images with texts."""
BODIES = {name.partition("For")[0]: name for name in reversed(ARCHITECTURES)}
"""How the names of the classes of one encoder start -> its first classifier."""

OTHER_BODIES = {"Gemma3ForCausalLM": "Gemma3Text", "GPT2LMHeadModel": "GPT2"}
"""Bodies that are not named like their classifier -> how its name starts."""


def is_decoder(model: Any) -> bool:
    """Return whether a token sees only those before it."""
    architecture = ARCHITECTURES.get(type(model).__name__)
    if architecture is None:
        return False
    return architecture.readout is last_token_logits


def _first_token(model: Any, base: Any, state: State) -> Tensor:
    """Read the first token of a body, behind its last norm where it has one."""
    for name in ("layernorm", "final_norm", "norm", "LayerNorm"):
        if hasattr(base, name):
            norm = getattr(base, name)
            return norm(state.hidden)[:, 0]
    return state.hidden[:, 0]


def _last_token(model: Any, base: Any, state: State) -> Tensor:
    """Read the last token of a body of a decoder."""
    hidden = last_norm(base, state)
    return at_last_token(state, hidden)


def readout_of(model: Any) -> tuple[Readout, int | None]:
    """Return what the library does after the last layer, and the number of first tokens it uses (None: all).

    A body reads its first token, or the mean where it has none for that; a decoder always its last token.
    """
    readout = ARCHITECTURES[type(model).__name__].readout
    if not model.config.num_labels and readout is not _mean:
        return _readout_of_body(readout)
    if _reads_all_tokens(model, readout):
        return readout, None
    if readout is _two_tokens:
        return readout, 2
    return readout, 1


def _readout_of_body(readout: Readout) -> tuple[Readout, int | None]:
    """Return what is read out of a body, and the number of first tokens, given the readout of its classifier."""
    if readout is _swin:
        return _swin_mean, None
    if readout is last_token_logits:
        return _last_token, 1
    return _first_token, 1


def _reads_all_tokens(model: Any, readout: Readout) -> bool:
    """Return whether a classifier looks at all tokens, not at the first ones only."""
    if readout in (_mean, _token_and_mean, _patches, _swin):
        return True
    if readout is _beit:
        return bool(model.config.use_mean_pooling)
    if readout is _modern:
        return model.config.classifier_pooling != "cls"
    if readout is pooled_logits:
        return model.classifier_pooling != "bos"
    return False


# --- building a model -------------------------------------------------------------------------------------------------


def without_traces(config: LibraryConfig) -> dict[str, object]:
    """Return a configuration without what says how it was written, how it is to be computed, or what the labels are."""
    architecture = {}
    for key, value in config.items():
        if key not in _NOT_THE_MODEL and not key.startswith("_"):
            architecture[key] = value
    return architecture


@cached_by_config
def meta_model(config: LibraryConfig) -> Any:
    """Build the library's model of a configuration, in eval mode: parameters on the meta device, buffers real.

    Raises:
        InputError: for a model whose heads cannot be taken apart, and for what the library cannot build.
    """
    with on_meta_device():
        model = drawn_model(config)
    fill_hf_buffers(model)
    _check_layers(model)
    return model.eval()


def drawn_model(config: LibraryConfig) -> Any:
    """Build the library's model of a configuration with weights of its own initialisation, on the default device.

    With no labels it is a body (an encoder without a classifier): the library's classifier without the modules that its
    configuration calls ``absent``.

    Raises:
        InputError: for what the library cannot build.
    """
    name = class_name(config)
    settings: dict[str, Any] = without_traces(config)
    labels: Any
    if name in TWO_TOWERS:
        labels = 2  # it has none, while every configuration of the library has some
    else:
        labels = settings.get("num_labels")
    # The library would make up a name for each of them.
    if type(labels) is not int or labels > _MOST_LABELS:
        raise InputError(f"{name} has {shown(labels)} labels")
    is_body = labels == 0
    settings["num_labels"] = 2 if is_body else labels  # a classifier is built first, and taken out of a body below
    model_class = getattr(transformers, name)
    with refused_as(f"transformers {transformers.__version__} cannot build {name}"), quiet():
        library_config = model_class.config_class.from_dict(settings)
        _check_config(library_config, name)
        attends_by = implementation(model_class)
        model = model_class._from_config(library_config, attn_implementation=attends_by, dtype=torch.float32)
        model.base_model.warn_if_padding_and_no_attention_mask = _no_warning
        if is_body:
            for path in settings.get("absent", ()):
                model.set_submodule(path, nn.Identity())
            model.config.num_labels = 0
    return model


def _no_warning(*_: Any) -> None:
    """Do nothing, in place of a GPT-2 warning that reads the values of inputs, which may be on the meta device."""


def implementation(model_class: Any) -> str:
    """Return how a class of the library attends where it is not replaced."""
    return "sdpa" if model_class._supports_sdpa else "eager"


def absent_from(config: LibraryConfig, names: Sequence[str]) -> list[str]:
    """Return the paths of the modules of a classifier that a body does not have.

    These are the last layer, which is always one of other classes, and what no stored tensor belongs to.

    Args:
        config: of the body, whose class is that of the classifier.
        names: of its stored tensors.
    """
    model = meta_model({**config, "num_labels": 2})
    (tower,) = towers_of(model)
    absent = []
    for module_name, module in model.named_children():
        has_parameters = len(list(module.parameters())) > 0
        if module is tower.base or not has_parameters:
            continue
        is_last_layer = module_name.endswith(("classifier", "score"))
        is_stored = any(name.startswith(f"{module_name}.") for name in names)
        if is_last_layer or not is_stored:
            absent.append(module_name)
    has_pooler = getattr(tower.base, "pooler", None) is not None
    stores_pooler = any(re.match(r"(\w+\.)?pooler\.", name) for name in names)
    if has_pooler and not stores_pooler:
        absent.append(f"{tower.prefix}.pooler")
    return absent


def fill_hf_buffers(model: Any) -> None:
    """Make the buffers real, with the numbers that the library itself gives them."""
    for module in model.modules():
        has_filled = False
        for name, buffer in list(module.named_buffers(recurse=False)):
            if buffer.is_meta:
                module._buffers[name] = torch.zeros_like(buffer, device="cpu")
                has_filled = True
        if has_filled:
            model._init_weights(module)  # the parameters beside them are on the meta device and stay as they are


def _check_config(config: Any, name: str) -> None:
    """Refuse the configuration of a model that does not choose one of several classes, or attends otherwise.

    Args:
        config: the library's own object, of a classifier or of two towers.
        name: of the model's class, for messages.

    Raises:
        InputError: listing what stands in the way.
    """
    encoders = [getattr(config, key) for key in ("vision_config", "text_config") if hasattr(config, key)]
    if not encoders:
        encoders = [config]
    for encoder in encoders:
        check_counts(encoder, name)
    problems = []
    is_other_task = config.problem_type in ("regression", "multi_label_classification")
    if config.num_labels < 2 or is_other_task:
        problems.append(f"it has {config.num_labels} labels and the problem type {shown(config.problem_type)}")
    if getattr(config, "is_decoder", False) or getattr(config, "add_cross_attention", False):
        problems.append("it is a decoder")
    if getattr(config, "position_embedding_type", None) not in (None, "absolute"):
        problems.append(f"its positions are {shown(config.position_embedding_type)}, not absolute")
    if problems:
        raise InputError(f"this {name} is not supported: it must choose one of several classes", problems=problems)


def check_counts(config: Any, name: str) -> None:
    """Refuse numbers of layers, heads and tokens that no model has, before anything is built of them.

    Args:
        config: the library's object for one encoder; its values come from a file and may be anything.
        name: of the model, for messages.

    Raises:
        InputError: naming the first of them.
    """
    layers = config.num_hidden_layers
    if not is_whole_number(layers, 1, _MOST_LAYERS):
        raise InputError(f"{name} has {shown(layers)} layers, so no attention heads that can be counted")

    heads = getattr(config, "num_attention_heads", 1)
    heads_by_stage = list(heads) if isinstance(heads, (list, tuple)) else [heads]
    if not are_whole_numbers(heads_by_stage, 1):
        raise InputError(f"{name} has {shown(heads)} attention heads")

    image = getattr(config, "image_size", None)
    patch = getattr(config, "patch_size", None)
    if type(image) is int and is_whole_number(patch, 1):
        patches_of_side = image // patch
        positions = patches_of_side**2
    else:
        positions = getattr(config, "max_position_embeddings", 1)
    if not is_whole_number(positions, 1, _MOST_POSITIONS):
        raise InputError(f"{name} takes {shown(positions)} tokens")

    problem = unsupported_setting(config)
    if problem is not None:
        raise InputError(f"this {name} is not supported: {problem}")


def _check_layers(model: Any) -> None:
    """Refuse attention that is not what the layout says, as in another version of the library."""
    name = type(model).__name__
    for tower in towers_of(model):
        check_encoder(name, tower.base, tower.layout)


def check_encoder(name: str, base: Any, layout: EncoderLayout) -> None:
    """Refuse an encoder that is not what is known of its class, as in another version of the library.

    Args:
        name: of the model's class, such as ``BertForSequenceClassification``.
        base: the encoder.
        layout: what is known: where its layers and heads are, and the class of its attention.

    Raises:
        InputError: naming what is otherwise.
    """
    try:
        blocks = [layer.get_submodule(layout.block) for _, layer in layers_of(base, layout)]
        for block in blocks:
            _check_attention(name, block, layout)
    except AttributeError as error:
        raise InputError(
            f"{name} of transformers {transformers.__version__} is built otherwise than this version of hydractl knows",
            hint="pip install -U transformers",
        ) from error
    problems = relative.problems(base)
    if problems:
        raise InputError(f"this {name} is not supported", problems=problems)


def _check_attention(name: str, block: Any, layout: EncoderLayout) -> None:
    """Refuse attention of another class or with other projections than the layout says, or that scales otherwise.

    Args:
        name: of the model's class, such as ``BertForSequenceClassification``.
        block: the attention block of a layer.
        layout: what is known of this kind of encoder.

    Raises:
        InputError: naming what is otherwise.
        AttributeError: a module is not where the layout says.
    """
    core = block.get_submodule(layout.core)  # what computes attention
    paths_of_projections = (*layout.heads.qkv, layout.heads.out)
    projections = [block.get_submodule(path) for path in paths_of_projections]
    linear_class = Conv1D if layout.heads.transposed else nn.Linear
    are_linear = all(type(projection) is linear_class for projection in projections)
    expected = _possible_names(name, layout.core_class)
    core_class = type(core).__name__
    if core_class not in expected or not are_linear:
        raise InputError(f"the attention of this {name} is {core_class}, expected {expected[0]}")

    # Where a class says how wide its heads are and how it scales, that is to be the usual way.
    head_dim = getattr(core, "head_dim", 0)
    scale = getattr(core, "scaling", 0)
    if head_dim and scale and not math.isclose(scale, head_dim**-0.5):
        problem = f"its attention scales scores by {scale:.4g}, not by 1 / sqrt({head_dim})"
        raise InputError(f"this {name} is not supported: {problem}")


def _possible_names(model_name: str, ending: str) -> list[str]:
    """Return how the attention class of a model may be called, the usual name first.

    Args:
        model_name: of the model's class: ``BertForSequenceClassification``, ``Gemma3TextModel``.
        ending: of the attention's: ``SelfAttention``.
    """
    before_task, _, _ = model_name.partition("For")
    kind = before_task.removesuffix("Model")
    # Attention that several classes have is named after none of them.
    starts = (kind.removesuffix("Text"), kind, "")
    return [start + ending for start in starts]


# --- the towers of a model --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EncoderTower:
    """One encoder of a model.

    Attributes:
        prefix: its name within the model.
        base: the encoder itself.
        key: of its layout in :data:`LAYOUTS`.
    """

    prefix: str
    base: Any
    key: str

    @property
    def layout(self) -> EncoderLayout:
        """The names of its modules."""
        return LAYOUTS[self.key]


def layers_of(base: Any, layout: EncoderLayout) -> list[tuple[str, Any]]:
    """Return the layers of an encoder, which may be in stages, with their paths within it."""
    if layout.staged:
        layers_of_stages = relative.swin_layers(base)
        return [(swin_layer.path, swin_layer.layer) for swin_layer in layers_of_stages]
    layers = base.get_submodule(layout.layers)
    paths = numbered_paths(layout.layers, layers)
    return list(zip(paths, layers, strict=True))


def towers_of(model: Any) -> list[EncoderTower]:
    """Return the towers: of a classifier the one, else that of images, then that of texts."""
    name = type(model).__name__
    if name in TWO_TOWERS:
        keys = ["vision_model", "text_model"]
    else:
        keys = [ARCHITECTURES[name].layout]
    towers = []
    for key in keys:
        prefix = key.partition(".")[0]
        towers.append(EncoderTower(prefix, getattr(model, prefix), key))
    return towers


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Run the library without progress bars and without warnings of what is checked here."""
    level = hf_logging.get_verbosity()
    shows_bars = hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        hf_logging.set_verbosity(level)
        if shows_bars:
            hf_logging.enable_progress_bar()


# --- names of classes -------------------------------------------------------------------------------------------------


def class_name(config: LibraryConfig) -> str:
    """Return the name of the library's class that a configuration is opened as.

    That is the class that its ``architectures`` names, if it is a classifier or a model of two towers that is known
    here; and for an encoder alone, or one with the head of another task (``BertModel``, ``BertForMaskedLM``), the
    classifier of the same encoder.

    Raises:
        InputError: for a class whose heads cannot be taken apart, naming its attention.
    """
    names = config.get("architectures")
    if isinstance(names, list) and len(names) == 1:
        (name,) = names
    else:
        name = None
    if not isinstance(name, str):  # no one name: say what stands there
        name_or_value = shown(names) if name is None else name
        raise _unsupported(name_or_value)
    if name in ARCHITECTURES or name in TWO_TOWERS:
        return name
    classifier = _classifier_of_body(name)
    if classifier is None:
        raise _unsupported(name, _why_refused(name))
    return classifier


def _classifier_of_body(name: str) -> str | None:
    """Return the classifier that has the encoder of another class of the library; None where none is known."""
    match = re.fullmatch(r"(\w+?)(Model|For\w+)", name)
    if match is None:
        return None
    encoder = OTHER_BODIES.get(name, match[1])
    if encoder in BODIES and hasattr(transformers, name):
        return BODIES[encoder]
    return None


def _unsupported(name: object, why: str = "") -> InputError:
    """Return the error of a class of the library that is not opened; ``why`` stands at its end."""
    two_towers = ", ".join(TWO_TOWERS)
    bodies = ", ".join(reversed(BODIES))
    hint = f"supported are {two_towers}, and classifiers and bodies of {bodies}"
    return InputError(f"transformers' {name} is not supported{why}", hint=hint)


def _why_refused(name: str) -> str:
    """Say why a class is refused, as the end of a sentence behind its name; empty where nothing is known."""
    tower = re.match(r"(CLIP|MetaClip2|Siglip2?)(Vision|Text)Model", name)
    if tower is not None:
        return f": it is one tower of a {tower[1]}Model"
    attention = _attention_class_of(name)
    if attention is None:
        return ""
    return f": its attention is {attention}"


def _attention_class_of(name: str) -> str | None:
    """Find the attention class in the file of some model of the library, or None where there is none.

    The model itself is not built: its configuration may name another one that the library would ask the hub for.
    """
    try:
        module = sys.modules[getattr(transformers, name).__module__]
    except Exception:  # no model of this version, or one that needs another library
        return None
    kinds = []
    for member in vars(module).values():
        is_module = isinstance(member, type) and issubclass(member, nn.Module)
        if is_module and member.__name__.endswith("Attention"):
            kinds.append(member.__name__)
    return min(kinds, key=len, default=None)  # the others are parts or variants of it
