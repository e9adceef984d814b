"""The classes of transformers whose heads can be separated: how each is built, and how it computes its logits.

A body is an encoder without a classifier. hydractl builds it as a classifier whose last modules are taken out.
"""

from __future__ import annotations

import contextlib
import math
import re
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
from hydractl.families.config_json import LibraryConfig, is_whole_number
from hydractl.families.hf import deberta
from hydractl.families.hf.decoders import (
    last_token,
    last_token_logits,
    unsupported_setting,
)
from hydractl.families.hf.layouts import LAYOUTS, EncoderLayout
from hydractl.families.meta_device import check_tables, on_meta_device
from hydractl.families.reading import cached_by_config, names_only, refused_as
from hydractl.jsonio import shown

# Entries that are not part of an architecture: they say how or by whom a file was written, or name the labels, which a
# checkpoint stores separately.
_NOT_THE_MODEL = ("transformers_version", "dtype", "torch_dtype", "attn_implementation", "id2label", "label2id")
# Entries whose plain names transformers looks for elsewhere: code, kernels of the hub, files. It gets none of them.
_ELSEWHERE = (
    *("auto_map", "quantization_config", "transformers_weights", "gguf_file", "backbone", "backbone_config"),
    *("attn_implementation", "_attn_implementation", "_attn_implementation_internal", "_attn_implementation_autoset"),
    *("experts_implementation", "_experts_implementation", "_experts_implementation_internal", "use_kernels"),
    *("id2label", "label2id"),
)
_MOST_LAYERS = 1000
_MOST_POSITIONS = 1 << 20
_MOST_LABELS = 1 << 20


# --- readouts: what the forward of a class does after the last layer --------------------------------------------------
# Each takes the classifier, its encoder and the state after the last norm, and returns logits [B, classes].

_LAST_NORMS = ("layernorm", "final_norm", "norm", "ln_f")
"""The names that the norm after the last layer may have in an encoder or decoder."""


def after_last_norm(base: Any, state: State) -> State:
    """Return the state after the last norm of an encoder or decoder; unchanged if it has none."""
    for name in _LAST_NORMS:
        if hasattr(base, name):
            return State(getattr(base, name)(state.hidden), state.context)
    return state


def _pooler(model: Any, base: Any, state: State) -> Tensor:
    """Classify the output of the encoder's pooler, with dropout."""
    pooled = base.pooler(state.hidden)
    dropped = model.dropout(pooled)
    return model.classifier(dropped)


def _head(model: Any, base: Any, state: State) -> Tensor:
    """Classify with a head that receives all tokens and pools them itself."""
    return model.classifier(state.hidden)


def _pre_classifier(model: Any, base: Any, state: State) -> Tensor:
    """Classify the first token after one more linear layer with ReLU and dropout."""
    class_token = state.hidden[:, 0]
    hidden_features = model.pre_classifier(class_token)
    dropped = model.dropout(torch.relu(hidden_features))
    return model.classifier(dropped)


def _outer_pooler(model: Any, base: Any, state: State) -> Tensor:
    """Classify the output of the classifier's own pooler, with dropout."""
    pooled = model.pooler(state.hidden)
    dropped = model.dropout(pooled)
    return model.classifier(dropped)


def _class_token(model: Any, base: Any, state: State) -> Tensor:
    """Classify the class token."""
    return model.classifier(state.hidden[:, 0])


def _two_tokens(model: Any, base: Any, state: State) -> Tensor:
    """Return the mean of the logits of two classifiers: one of the class token, one of the distillation token."""
    class_logits = model.cls_classifier(state.hidden[:, 0])
    distillation_logits = model.distillation_classifier(state.hidden[:, 1])
    return (class_logits + distillation_logits) / 2


def _token_and_mean(model: Any, base: Any, state: State) -> Tensor:
    """Return the logits ``[B, classes]`` from the class token and the mean of the patches, concatenated."""
    registers = getattr(model.config, "num_register_tokens", 0)
    class_token = state.hidden[:, 0]
    patches = state.hidden[:, 1 + registers :]  # tokens are the class token, registers, patches
    features = torch.cat([class_token, patches.mean(dim=1)], dim=1)  # [B, 2 * d_model]
    return model.classifier(features)


def _modern(model: Any, base: Any, state: State) -> Tensor:
    """Return the logits ``[B, classes]`` of a ModernBERT: it classifies the first token, or the mean of all tokens.

    The setting ``classifier_pooling`` says which; padding does not count in the mean.
    """
    hidden = state.hidden
    if model.config.classifier_pooling == "cls":
        features = hidden[:, 0]
    else:
        tokens = state.context["tokens"]  # [B, T]: 1 for tokens and 0 for padding; None without padding
        if tokens is None:
            tokens = torch.ones_like(hidden[..., 0])
        weights = tokens.unsqueeze(-1)  # [B, T, 1]
        weighted = hidden * weights
        features = weighted.sum(dim=1) / weights.sum(dim=1)
    dropped = model.drop(model.head(features))
    return model.classifier(dropped)


def _patches(model: Any, base: Any, state: State) -> Tensor:
    """Classify the mean of the patches in the image tower of a CLIP or SigLIP."""
    if hasattr(base, "pre_layrnorm"):  # a CLIP: leave out the class token, which comes first
        hidden = state.hidden[:, 1:]
    else:
        hidden = base.post_layernorm(state.hidden)
    return model.classifier(hidden.mean(dim=1))


Readout = Callable[[Any, Any, State], Tensor]
"""A function from a classifier, its encoder and the state after the last layer and its norm to the logits."""

_LLAMA_KIN = (
    *("Llama", "Mistral", "Qwen2", "Qwen3", "Gemma", "Gemma2", "Gemma3Text", "SmolLM3"),
    *("Arcee", "Ministral", "SeedOss", "StableLm", "Starcoder2"),
)


class Architecture(NamedTuple):
    """How hydractl handles a classifier of transformers.

    Attributes:
        layout: the key of its module names in :data:`LAYOUTS`.
        readout: the part of its forward pass after the last layer.
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
    "DistilBertForSequenceClassification": Architecture("distilbert", _pre_classifier),
    "ViTForImageClassification": Architecture("vit", _class_token),
    "ViTMSNForImageClassification": Architecture("vit", _class_token),
    "DeiTForImageClassification": Architecture("deit", _class_token),
    "DeiTForImageClassificationWithTeacher": Architecture("deit", _two_tokens),
    "Dinov2ForImageClassification": Architecture("dinov2", _token_and_mean),
    "Dinov2WithRegistersForImageClassification": Architecture("dinov2_with_registers", _token_and_mean),
    "ModernBertForSequenceClassification": Architecture("model", _modern),
    "DebertaV2ForSequenceClassification": Architecture("deberta", _outer_pooler),
    **dict.fromkeys([f"{name}ForSequenceClassification" for name in _LLAMA_KIN], _LLAMA),
    "Phi3ForSequenceClassification": Architecture("model.qkv_proj", last_token_logits),
    "GPT2ForSequenceClassification": Architecture("transformer", last_token_logits),
    "CLIPForImageClassification": Architecture("vision_model", _patches),
    "MetaClip2ForImageClassification": Architecture("vision_model", _patches),
    "SiglipForImageClassification": Architecture("vision_model", _patches),
}
"""The supported classifiers by class name. If an encoder has several classifiers, its body is opened as the first."""
TWO_TOWERS = ("CLIPModel", "SiglipModel", "MetaClip2Model")
"""Classes of transformers that compare images with texts."""
BODIES = {name.partition("For")[0]: name for name in reversed(ARCHITECTURES)}
"""The first classifier of each encoder, by the part of its name before ``For``, e.g. ``Bert``."""

OTHER_BODIES = {"Gemma3ForCausalLM": "Gemma3Text", "GPT2LMHeadModel": "GPT2"}
"""The key in :data:`BODIES` of classes whose names do not contain it."""


def is_decoder(model: Any) -> bool:
    """Return whether the model is a decoder: a token attends only to itself and the tokens before it."""
    architecture = ARCHITECTURES.get(type(model).__name__)
    if architecture is None:
        return False
    return architecture.readout is last_token_logits


def _first_token(model: Any, base: Any, state: State) -> Tensor:
    """Return the first token of a body, ``[B, d_model]``."""
    return state.hidden[:, 0]


def readout_of(model: Any) -> tuple[Readout, int | None]:
    """Return the readout of a model, and how many of the first tokens it uses; None if it uses all tokens.

    A body reads its first token. A decoder reads its last token, which counts as 1.
    """
    readout = ARCHITECTURES[type(model).__name__].readout
    is_body = not model.config.num_labels  # an encoder or decoder without a classifier
    if is_body:
        readout_of_body = last_token if readout is last_token_logits else _first_token
        return readout_of_body, 1
    if _reads_all_tokens(model, readout):
        return readout, None
    if readout is _two_tokens:
        return readout, 2
    return readout, 1


def _reads_all_tokens(model: Any, readout: Readout) -> bool:
    """Return whether the readout of a classifier uses all tokens, not only the first ones."""
    if readout in (_token_and_mean, _patches):
        return True
    return readout is _modern and model.config.classifier_pooling != "cls"


# --- building a model -------------------------------------------------------------------------------------------------


def without_traces(config: LibraryConfig) -> dict[str, object]:
    """Return the configuration with only the entries that are part of the architecture."""
    architecture = {}
    for key, value in config.items():
        if key not in _NOT_THE_MODEL and not key.startswith("_"):
            architecture[key] = value
    return architecture


@cached_by_config
def meta_model(config: LibraryConfig) -> Any:
    """Build transformers' model from its configuration, in eval mode, with parameters on the meta device, real buffers.

    The result is cached, so copy it before changing it.

    Raises:
        InputError: if the heads of the model cannot be separated, or transformers cannot build it.
    """
    with on_meta_device():
        model = drawn_model(config)
    fill_hf_buffers(model)
    name = type(model).__name__
    for tower in towers_of(model):
        check_encoder(name, tower.base, tower.layout)
    return model.eval()


def drawn_model(config: LibraryConfig) -> Any:
    """Return transformers' model of a configuration, with random weights, on the default device.

    If ``num_labels`` is 0, the model is a body (an encoder without a classifier). It is built as a classifier, and
    the modules in the list ``absent`` of its configuration are replaced by identities.

    Raises:
        InputError: if transformers cannot build the model.
    """
    # The settings come from a file: texts that could lead the library to other files or to code are left out.
    name = class_name(config)
    settings: dict[str, Any] = names_only(without_traces(config), _ELSEWHERE)

    labels: Any
    if name in TWO_TOWERS:
        labels = 2  # the model has no labels, but every configuration of transformers must have some
    else:
        labels = settings.get("num_labels")
    # transformers makes up a name for each label, so a huge number would fill the memory.
    if type(labels) is not int or labels > _MOST_LABELS:
        raise InputError(f"{name} has {shown(labels)} labels")
    is_body = labels == 0
    settings["num_labels"] = 2 if is_body else labels

    # Build the model. For a body, the parts of the classifier that it lacks become identities.
    model_class = getattr(transformers, name)
    with refused_as(f"transformers {transformers.__version__} cannot build {name}"), quiet():
        # The class decides. The type that a file names may be another, which would choose how inputs are prepared.
        settings["model_type"] = model_class.config_class.model_type
        library_config = model_class.config_class.from_dict(settings)
        _check_config(library_config, name)
        attends_by = "sdpa" if model_class._supports_sdpa else "eager"
        model = model_class._from_config(library_config, attn_implementation=attends_by, dtype=torch.float32)
        model.base_model.warn_if_padding_and_no_attention_mask = _no_warning
        if is_body:
            for path in settings.get("absent", ()):
                model.set_submodule(path, nn.Identity())
            model.config.num_labels = 0
    return model


def _no_warning(*_: Any) -> None:
    """Do nothing. This replaces a warning of GPT-2 that reads the values of inputs, which meta tensors do not have."""


def absent_from(config: LibraryConfig, names: Sequence[str]) -> list[str]:
    """Return the dotted names of the classifier's modules that a body (an encoder without a classifier) lacks.

    A body lacks the last layer, because a stored one is for other classes. It also lacks every module with parameters
    outside the encoder, and the encoder's pooler, if no stored tensor belongs to it.

    Args:
        config: the configuration of the body, with the class of the classifier as ``architectures``.
        names: the names of the stored tensors.
    """
    # The classifier of this encoder, without numbers; any number of classes will do to see its modules.
    model = meta_model({**config, "num_labels": 2})
    (tower,) = towers_of(model)
    absent = []

    # Modules beside the encoder.
    for module_name, module in model.named_children():
        has_parameters = len(list(module.parameters())) > 0
        if module is tower.base or not has_parameters:
            continue
        is_last_layer = module_name.endswith(("classifier", "score"))
        is_stored = any(name.startswith(f"{module_name}.") for name in names)
        if is_last_layer or not is_stored:
            absent.append(module_name)

    # The pooler inside the encoder. In the file its name may start with that of the encoder, or not.
    has_pooler = getattr(tower.base, "pooler", None) is not None
    stores_pooler = any(re.match(r"(\w+\.)?pooler\.", name) for name in names)
    if has_pooler and not stores_pooler:
        absent.append(f"{tower.prefix}.pooler")
    return absent


def fill_hf_buffers(model: Any) -> None:
    """Fill the buffers of a model on the meta device with transformers' own numbers, in place.

    Raises:
        InputError: the buffers are larger than those of any model.
    """
    check_tables(model)
    for module in model.modules():
        has_new_buffers = False
        for name, buffer in list(module.named_buffers(recurse=False)):
            if buffer.is_meta:
                module._buffers[name] = torch.zeros_like(buffer, device="cpu")
                has_new_buffers = True
        if has_new_buffers:
            # transformers computes the numbers here. Parameters are on the meta device, so drawing them does nothing.
            model._init_weights(module)


def _check_config(config: Any, name: str) -> None:
    """Raise an error if a model does not choose one of several classes, or attends in a way that is not supported.

    Args:
        config: transformers' configuration object, of a classifier or of a model with two towers.
        name: the name of the model's class, for messages.

    Raises:
        InputError: with all problems, or if :func:`check_counts` raises one.
    """
    # A model with two towers has one section for each encoder; any other is the configuration of its only encoder.
    encoders = [getattr(config, key) for key in ("vision_config", "text_config") if hasattr(config, key)]
    if not encoders:
        encoders = [config]
    for encoder in encoders:
        check_counts(encoder, name)

    problems = []
    # The task. These values of `problem_type` mean regression, or several classes for one sample.
    is_other_task = config.problem_type in ("regression", "multi_label_classification")
    if config.num_labels < 2 or is_other_task:
        problems.append(f"it has {config.num_labels} labels and the problem type {shown(config.problem_type)}")
    # Settings that turn an encoder such as BERT into a decoder.
    if getattr(config, "is_decoder", False) or getattr(config, "add_cross_attention", False):
        problems.append("it is a decoder")
    # Relative positions of older BERTs change the scores of attention.
    if getattr(config, "position_embedding_type", None) not in (None, "absolute"):
        problems.append(f"its positions are {shown(config.position_embedding_type)}, not absolute")
    if problems:
        raise InputError(f"this {name} is not supported: it must choose one of several classes", problems=problems)


def check_counts(config: Any, name: str) -> None:
    """Raise an error if a model has impossible numbers of layers, heads or tokens, or a setting that is not supported.

    Without this check, a broken file could make transformers build a model that fills the memory.

    Args:
        config: transformers' configuration object of one encoder; its values come from a file and may be anything.
        name: the name of the model, for messages.

    Raises:
        InputError: with the first problem.
    """
    layers = config.num_hidden_layers
    if not is_whole_number(layers, 1, _MOST_LAYERS):
        raise InputError(f"{name} has {shown(layers)} layers, so no attention heads that can be counted")

    heads = getattr(config, "num_attention_heads", 1)
    if not is_whole_number(heads, 1):
        raise InputError(f"{name} has {shown(heads)} attention heads")

    # Models of images have one position for each patch, models of texts state the number.
    image_size = getattr(config, "image_size", None)
    patch_size = getattr(config, "patch_size", None)
    if type(image_size) is int and is_whole_number(patch_size, 1):
        patches_per_side = image_size // patch_size
        positions = patches_per_side**2
    else:
        positions = getattr(config, "max_position_embeddings", 1)
    if not is_whole_number(positions, 1, _MOST_POSITIONS):
        raise InputError(f"{name} takes {shown(positions)} tokens")

    problem = unsupported_setting(config)
    if problem is not None:
        raise InputError(f"this {name} is not supported: {problem}")


def check_encoder(name: str, base: Any, layout: EncoderLayout) -> None:
    """Raise an error if an encoder is not built as its layout says, e.g. in another version of transformers.

    Args:
        name: the name of the model's class, such as ``BertForSequenceClassification``.
        base: the encoder.
        layout: the expected names of its modules, and the expected class of its attention.

    Raises:
        InputError: with the difference, or if the heads cannot be separated.
    """
    # An attention class that several models share may have no model in its name.
    before_task, _, _ = name.partition("For")
    kind = before_task.removesuffix("Model")
    starts = (kind.removesuffix("Text"), kind, "")
    expected_classes = [start + layout.core_class for start in starts]
    linear_class = Conv1D if layout.heads.transposed else nn.Linear
    try:
        for _, layer in layers_of(base, layout):
            # The classes of the attention and of its projections (queries, keys, values, output).
            block = layer.get_submodule(layout.block)
            core: Any = block.get_submodule(layout.core)  # the module that computes attention
            projections = [block.get_submodule(projection) for projection in (*layout.heads.qkv, layout.heads.out)]
            are_linear = all(type(projection) is linear_class for projection in projections)
            core_class = type(core).__name__
            if core_class not in expected_classes or not are_linear:
                raise InputError(f"the attention of this {name} is {core_class}, expected {expected_classes[0]}")

            # HeadAttention scales scores by 1 / sqrt(head_dim). Classes that do not state their scale do the same.
            head_dim = getattr(core, "head_dim", 0)
            scale = getattr(core, "scaling", 0)
            if head_dim and scale and not math.isclose(scale, head_dim**-0.5):
                problem = f"its attention scales scores by {scale:.4g}, not by 1 / sqrt({head_dim})"
                raise InputError(f"this {name} is not supported: {problem}")
    except AttributeError as error:
        raise InputError(
            f"{name} of transformers {transformers.__version__} is built otherwise than this version of hydractl knows",
            hint="pip install -U transformers",
        ) from error
    problems = deberta.problems(base) if type(base).__name__ == deberta.BODY else []
    if problems:
        raise InputError(f"this {name} is not supported", problems=problems)


# --- the towers of a model --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EncoderTower:
    """One encoder of a model.

    Attributes:
        prefix: the name of the encoder in the model, e.g. ``bert``.
        base: the encoder's module.
        key: the key of its layout in :data:`LAYOUTS`.
    """

    prefix: str
    base: Any
    key: str

    @property
    def layout(self) -> EncoderLayout:
        """The names of the encoder's modules."""
        return LAYOUTS[self.key]


def layers_of(base: Any, layout: EncoderLayout) -> list[tuple[str, Any]]:
    """Return the layers of an encoder in order, each with its dotted name in the encoder."""
    layers = base.get_submodule(layout.layers)
    paths = numbered_paths(layout.layers, layers)
    return list(zip(paths, layers, strict=True))


def towers_of(model: Any) -> list[EncoderTower]:
    """Return the encoder of a classifier alone, or the image and then the text encoder (tower) of a CLIP or SigLIP."""
    name = type(model).__name__
    if name in TWO_TOWERS:
        keys = ["vision_model", "text_model"]
    else:
        keys = [ARCHITECTURES[name].layout]
    towers = []
    for key in keys:
        prefix = key.partition(".")[0]  # the attribute of the model that holds the encoder
        towers.append(EncoderTower(prefix, getattr(model, prefix), key))
    return towers


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' warnings inside the block; hydractl checks their causes itself."""
    level = hf_logging.get_verbosity()
    hf_logging.set_verbosity_error()
    try:
        yield
    finally:
        hf_logging.set_verbosity(level)


# --- names of classes -------------------------------------------------------------------------------------------------


def class_name(config: LibraryConfig) -> str:
    """Return the name of the class of transformers with which hydractl opens a configuration.

    This is the class in the list ``architectures`` if it is a supported classifier or model with two towers. For an
    encoder alone, or with a head for another task (``BertModel``, ``BertForMaskedLM``), it is the classifier with the
    same encoder.

    Raises:
        InputError: if the class is not supported.
    """
    names = config.get("architectures")
    if isinstance(names, list) and len(names) == 1:
        (name,) = names
    else:
        name = None
    if not isinstance(name, str):  # there is not exactly one name: show the value in the message
        name_or_value = shown(names) if name is None else name
        raise _unsupported(name_or_value)
    if name in ARCHITECTURES or name in TWO_TOWERS:
        return name
    # The class may be an encoder alone, or with a head for another task.
    classifier = _classifier_of_body(name)
    if classifier is None:
        raise _unsupported(name, _why_refused(name))
    return classifier


def _classifier_of_body(name: str) -> str | None:
    """Return the supported classifier with the same encoder as a class of transformers; None if there is none.

    Args:
        name: a class such as ``BertModel`` or ``BertForMaskedLM``.
    """
    match = re.fullmatch(r"(\w+?)(Model|For\w+)", name)
    if match is None:
        return None
    encoder = OTHER_BODIES.get(name, match[1])
    if encoder in BODIES and hasattr(transformers, name):
        return BODIES[encoder]
    return None


def _unsupported(name: object, why: str = "") -> InputError:
    """Return the error for a class that is not supported, with ``why`` at the end of its message."""
    two_towers = ", ".join(TWO_TOWERS)
    bodies = ", ".join(reversed(BODIES))
    hint = f"supported are {two_towers}, and classifiers and bodies of {bodies}"
    return InputError(f"transformers' {name} is not supported{why}", hint=hint)


def _why_refused(name: str) -> str:
    """Return why a class is not supported, as the end of a sentence; empty if it is just another architecture."""
    tower = re.match(r"(CLIP|MetaClip2|Siglip)(Vision|Text)Model", name)
    return "" if tower is None else f": it is one tower of a {tower[1]}Model"
