"""Build models that run from sources: devices, number formats, one model or several."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.errors import UsageError
from hydractl.expressions.data_sets import DataSpec
from hydractl.expressions.models import ModelRef
from hydractl.files.checkpoint import FileTensors
from hydractl.log import Log
from hydractl.metrics.ood_scores import ON_FEATURES
from hydractl.metrics.threshold import stored_score
from hydractl.model.detection import stored_detector
from hydractl.model.machine import slow_format
from hydractl.model.matching import check_agreement, named_by_data
from hydractl.model.runtime import HydraModel, log_mean_softmax
from hydractl.model.source import ModelOptions, Source, open_sources, with_labels
from hydractl.model.stored import check_finite_weights


def resolve_device(name: str) -> torch.device:
    """Return the device with one of the names ``auto`` | ``cpu`` | ``cuda[:i]`` | ``mps``, if this machine has it.

    Raises:
        UsageError: if this machine does not have it, or the name is unknown.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        if torch.backends.mps.is_available():
            return torch.device("mps")
        return torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"unknown device {name!r}", hint="one of auto, cpu, cuda, cuda:0, mps") from None
    if not _is_device_there(device):
        raise UsageError(f"device {name!r} is not available on this machine", hint="use --device auto or --device cpu")
    return device


def _is_device_there(device: torch.device) -> bool:
    """Return whether this machine has a device; e.g. with one GPU ``cuda`` and ``cuda:0``, but not ``cuda:1``."""
    if device.type == "cpu":
        return True
    if device.type == "cuda":
        index = device.index or 0
        count = max(torch.cuda.device_count(), 1)
        return torch.cuda.is_available() and index < count
    if device.type == "mps":
        return torch.backends.mps.is_available()
    return False


def resolve_dtype(name: str) -> torch.dtype:
    """Return the dtype with one of the names ``float32`` | ``bfloat16`` | ``float16`` | ``float64``."""
    known = ("float32", "bfloat16", "float16", "float64")
    if name not in known:
        choices = ", ".join(known)
        raise UsageError(f"unknown dtype {name!r}, not one of {choices}")
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def build_model(
    source: Source, device: str = "cpu", dtype: str = "float32", *, whole_last_block: bool = False
) -> HydraModel:
    """Return the model that runs, with the weights of a source (a file or folder whose header was read and checked).

    Args:
        source: a model that was found and checked.
        device, dtype: the names of device and dtype, as on the command line.
        whole_last_block: whether the last block runs for all tokens, even those from which nothing is read.

    Raises:
        NonFiniteError: if a weight is NaN or infinite.
        UsageError: if the machine does not have the device, or the dtype is unknown.
    """
    description = source.description
    tensors = source.tensors
    check_finite_weights(source.name, tensors)
    model = HydraModel(description, tensors, resolve_device(device), resolve_dtype(dtype))
    model.whole_last_block = whole_last_block

    # An OOD score on features needs the statistics that are stored with the weights.
    score = stored_score(description.extra)
    if score in ON_FEATURES and isinstance(tensors, FileTensors):
        document = description.extra.get("ood_score")
        model.detector = stored_detector(score, document, tensors, model.members)
    return model


def load_source(
    source: Source,
    device: str = "auto",
    dtype: str = "float32",
    *,
    compile: bool = False,
    whole_last_block: bool = False,
) -> HydraModel:
    """Build the model of a source for a Python program. Warn if the dtype is slow here.

    Args:
        source: a model that was found and checked.
        device: the name of the device; ``auto`` means a GPU if there is one.
        dtype: the name of the dtype.
        compile: whether to compile the model.
        whole_last_block: whether the last block runs for all tokens, even those from which nothing is read.

    Returns:
        The model; its ``lineage`` is set to the digests of the checkpoints from which it was made.
    """
    slow = slow_format(resolve_dtype(dtype), resolve_device(device))
    if slow is not None:
        warnings.warn(slow, stacklevel=4)
    for warning in source.warnings:
        warnings.warn(warning, stacklevel=4)
    model = build_model(source, device, dtype, whole_last_block=whole_last_block)
    model.lineage = source.bases
    if compile:
        model.compile()
    return model


# --- several MODEL arguments, each a model or an ensemble -------------------------------------------------------------


class SequentialEnsemble(nn.Module):
    """Several models on the same inputs, which run one after another; called like a :class:`HydraModel`.

    Every member has the same weight in the averaged prediction, also the members inside a fused model.

    Attributes:
        models: the models, in the order in which they run; they share nothing, and :func:`find_models` has checked that
            they can be averaged.
    """

    def __init__(self, models: Sequence[HydraModel]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)
        self.eval()

    @property
    def _models(self) -> list[HydraModel]:
        """The models, typed for the type checker."""
        return list(self.models)  # type: ignore[arg-type]

    @property
    def preprocess(self) -> Callable[[list[Any]], Any]:
        """A function from a list of raw samples to inputs."""
        return self._models[0].preprocess

    def with_classes(self) -> SequentialEnsemble:
        """Return this ensemble; if it has no classes yet, one with stand-in classes for tests and timing."""
        return SequentialEnsemble([model.with_classes() for model in self._models])

    def read_prompts(self, log: Log, name: str) -> None:
        """Compute the features of the classes of every zero-shot model now, with progress."""
        for model in self._models:
            model.read_prompts(log, name)

    def member_logits(self, inputs: Any) -> Tensor:
        """Return the logits of every member, ``[M, B, classes]``, for the members of all models."""
        return torch.cat([model.member_logits(inputs) for model in self._models])

    def forward(self, inputs: Any) -> Tensor:
        """Return log p ``[B, classes]``: the log of the mean over members of their softmax."""
        return log_mean_softmax(self.member_logits(inputs))

    def example_inputs(self, batch: int, seed: int = 0) -> Any:
        """Draw random inputs of the right shape, on the device and in the dtype of the models."""
        return self._models[0].example_inputs(batch, seed)


Runnable = HydraModel | SequentialEnsemble
"""What a MODEL argument becomes. Both modules are called in the same way."""


@dataclass(frozen=True)
class ModelArgument:
    """One MODEL argument that was found and checked, but whose weights are not read yet.

    Attributes:
        name: the name that the user gave, else that of the file, else those of the members joined by ``+``.
        sources: one model, or the members of an ensemble, which run one after another.
    """

    name: str
    sources: Sequence[Source]

    def build(self, device: str = "cpu", dtype: str = "float32", *, whole_last_block: bool = False) -> Runnable:
        """Read the weights and build the module that runs."""
        models = [build_model(source, device, dtype, whole_last_block=whole_last_block) for source in self.sources]
        return models[0] if len(models) == 1 else SequentialEnsemble(models)

    @property
    def file_bytes(self) -> int | None:
        """The size of all checkpoint files together, in bytes; None if a model is no file."""
        total = 0
        for source in self.sources:
            if source.file_bytes is None:
                return None
            total += source.file_bytes
        return total

    @property
    def sha256(self) -> str | list[str]:
        """The SHA-256 of the model, or a list with one for each member of an ensemble."""
        digests = [source.sha256 for source in self.sources]
        return digests[0] if len(digests) == 1 else digests


def find_models(models: Sequence[ModelRef], options: ModelOptions | None = None) -> list[ModelArgument]:
    """Return all MODEL arguments, each with a name and its models, after checking all that their headers can tell.

    Args:
        models: the arguments.
        options: options that hold for all models.

    Raises:
        UsageError: if a text cannot be parsed, two models have the same name, or a model does not take an option.
        InputError: listing the problems of all references, and of members that cannot be averaged.
    """
    # Open each reference once, in the order of their first use. E.g. "both=a.st+b.st" is the name "both" with the
    # references "a.st" and "b.st".
    names_and_refs = [model.split() for model in models]
    all_refs: list[ModelRef] = []
    for _, refs in names_and_refs:
        for ref in refs:
            if ref not in all_refs:
                all_refs.append(ref)
    opened = open_sources(all_refs, options or ModelOptions())
    source_of_ref = dict(zip(all_refs, opened, strict=True))

    # The members of an ensemble must agree. Zero-shot members without class names get those of the other members.
    arguments = []
    for name, refs in names_and_refs:
        sources = [source_of_ref[ref] for ref in refs]
        if len(sources) > 1:
            check_agreement([(source.name, source.description) for source in sources])
            sources = _with_class_names_of_first(sources, known=sources)
        joined_name = "+".join(source.name for source in sources)
        arguments.append(ModelArgument(name or joined_name, sources))
    check_names_differ([argument.name for argument in arguments])
    return arguments


def check_names_differ(names: Sequence[str]) -> None:
    """Check that no two MODEL arguments have the same name.

    Raises:
        UsageError: if two have.
    """
    used_twice = {name for name in names if names.count(name) > 1}
    if used_twice:
        listed = ", ".join(sorted(used_twice))
        raise UsageError(f"MODEL names used twice: {listed}", hint="name them apart: NAME=MODEL")


def with_class_names(arguments: Sequence[ModelArgument], data: DataSpec, limit: int | None) -> list[ModelArgument]:
    """Return the MODEL arguments, in which all zero-shot models without class names have got some.

    Arguments that are measured on the same labels must have the same classes. So such a model takes the names of the
    first model that has names, or else those of the data. (An ensemble has already taken those of its own members.)

    Args:
        arguments: the MODEL arguments.
        data: the data.
        limit: read only this many samples of the data; None means all.

    Raises:
        InputError: if the data are needed and have no class names either.
    """
    all_sources: list[Source] = []
    for argument in arguments:
        all_sources += argument.sources
    named_arguments = []
    for argument in arguments:
        named_by_models = _with_class_names_of_first(argument.sources, all_sources)
        named = [named_by_data(source, data, limit) for source in named_by_models]
        named_arguments.append(replace(argument, sources=named))
    return named_arguments


def _with_class_names_of_first(sources: Sequence[Source], known: Sequence[Source]) -> list[Source]:
    """Return the models, of which zero-shot models without class names get those of the first known model with names.

    They also get that model's prompts, unless they have their own.

    Args:
        sources: the models; those with classes are not changed.
        known: the models from which names are taken.

    Returns:
        The models, in their order; unchanged if no known model has names.
    """
    # The first model that knows its classes.
    descriptions = [source.description for source in known]
    with_names = [description for description in descriptions if description.labels is not None]
    if not with_names:
        return list(sources)

    first = with_names[0]
    named_sources = []
    for source in sources:
        if source.classes is not None:
            named_sources.append(source)
            continue
        prompt = source.description.prompt or first.prompt or ()
        named_sources.append(with_labels(source, first.labels, prompt))
    return named_sources
