"""From sources to models that run: devices, number formats, one model or several."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.errors import UsageError
from hydractl.files.checkpoint import FileTensors
from hydractl.log import Log
from hydractl.metrics.ood_scores import ON_FEATURES
from hydractl.metrics.threshold import stored_score
from hydractl.model.detection import stored_detector
from hydractl.model.machine import slow_format
from hydractl.model.matching import check_agreement, named_by_data
from hydractl.model.runtime import HydraModel, log_mean_softmax
from hydractl.model.source import ModelOptions, Source, open_sources, split_model, with_labels
from hydractl.model.stored import check_finite_weights


def resolve_device(name: str) -> torch.device:
    """Return ``auto`` | ``cpu`` | ``cuda[:i]`` | ``mps`` as a device that is really there.

    Raises:
        UsageError: for a device this machine does not have.
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
    if not _is_there(device):
        raise UsageError(f"device {name!r} is not available on this machine", hint="use --device auto or --device cpu")
    return device


def _is_there(device: torch.device) -> bool:
    """Return whether this machine has a device."""
    if device.type == "cpu":
        return True
    if device.type == "cuda":
        index = device.index or 0
        return torch.cuda.is_available() and index < max(torch.cuda.device_count(), 1)
    return device.type == "mps" and torch.backends.mps.is_available()


def resolve_dtype(name: str) -> torch.dtype:
    """Return the dtype of ``float32`` | ``bfloat16`` | ``float16`` | ``float64``."""
    known = ("float32", "bfloat16", "float16", "float64")
    if name not in known:
        raise UsageError(f"unknown dtype {name!r}, not one of {', '.join(known)}")
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def build_model(
    source: Source, device: str = "cpu", dtype: str = "float32", *, whole_last_block: bool = False
) -> HydraModel:
    """Read the weights of a source and build the model that runs."""
    check_finite_weights(source.name, source.tensors)
    model = HydraModel(source.description, source.tensors, resolve_device(device), resolve_dtype(dtype))
    model.whole_last_block = whole_last_block
    extra = source.description.extra
    score = stored_score(extra)
    if score in ON_FEATURES and isinstance(source.tensors, FileTensors):
        model.detector = stored_detector(score, extra.get("ood_score"), source.tensors, model.members)
    return model


@functools.cache
def _slow_format(dtype: torch.dtype, device: str) -> str | None:
    """Call :func:`hydractl.model.machine.slow_format` once in a process."""
    return slow_format(dtype, torch.device(device))


def load_source(
    source: Source,
    device: str = "auto",
    dtype: str = "float32",
    *,
    compile: bool = False,
    whole_last_block: bool = False,
) -> HydraModel:
    """Build the module of a source that knows its lineage, for Python: see :func:`hydractl.api.models.load`."""
    slow = _slow_format(resolve_dtype(dtype), resolve_device(device).type)
    if slow is not None:
        warnings.warn(slow, stacklevel=4)
    model = build_model(source, device, dtype, whole_last_block=whole_last_block)
    model.lineage = source.bases
    if compile:
        if model.cascade is not None:
            warnings.warn("compiled, all members run for all samples: a graph has no cascade", stacklevel=4)
        model.compile()
    return model


# --- several MODEL arguments, each of one model or of an ensemble -----------------------------------------------------


class SequentialEnsemble(nn.Module):
    """Several models on the same inputs; called like a :class:`HydraModel`.

    Every member weighs the same in the averaged prediction, also those inside a fused model.

    Attributes:
        models: the models, in the order they run; they share nothing.
        labels: class names, or None where no model knows them.

    Raises:
        InputError: listing everything in which the models differ and must not.
    """

    def __init__(self, models: Sequence[HydraModel]) -> None:
        super().__init__()
        check_agreement([(f"model {index}", model.description) for index, model in enumerate(models)])
        self.models = nn.ModuleList(models)
        known_labels = [model.labels for model in models if model.labels is not None]
        self.labels = known_labels[0] if known_labels else None
        self.eval()

    @property
    def _each(self) -> list[HydraModel]:
        return list(self.models)  # type: ignore[arg-type]

    @property
    def preprocess(self) -> Callable[[list[Any]], Any]:
        """A function from a list of raw samples to inputs."""
        return self._each[0].preprocess

    @property
    def members(self) -> int:
        """Number of members of all models together."""
        return sum(model.members for model in self._each)

    @property
    def classes(self) -> int | None:
        """Number of classes; None for zero-shot models whose classes have not been named."""
        return self._each[0].classes

    def zero_shot(self, labels: str | Sequence[str], prompt: str | Sequence[str] | None = None) -> SequentialEnsemble:
        """Return a classifier into classes given by name, as :meth:`HydraModel.zero_shot`."""
        return SequentialEnsemble([model.zero_shot(labels, prompt) for model in self._each])

    def with_classes(self) -> SequentialEnsemble:
        """Return the ensemble with classes named, as :meth:`HydraModel.with_classes`."""
        if self.classes is not None:
            return self
        return SequentialEnsemble([model.with_classes() for model in self._each])

    def read_prompts(self, log: Log, name: str) -> None:
        """Read the prompts of every model, see :class:`HydraModel`."""
        for model in self._each:
            model.read_prompts(log, name)

    @property
    def whole_last_block(self) -> bool:
        """The setting of the first model, see :class:`HydraModel`."""
        return self._each[0].whole_last_block

    @whole_last_block.setter
    def whole_last_block(self, whole: bool) -> None:
        for model in self._each:
            model.whole_last_block = whole

    @property
    def side_by_side(self) -> bool | None:
        """The setting of the first model, see :class:`HydraModel`."""
        return self._each[0].side_by_side

    @side_by_side.setter
    def side_by_side(self, together: bool | None) -> None:
        for model in self._each:
            model.side_by_side = together

    def member_logits(self, inputs: Any) -> Tensor:
        """Return the logits of every member, ``[M, B, classes]``, M counted over all models."""
        return torch.cat([model.member_logits(inputs) for model in self._each])

    def forward(self, inputs: Any) -> Tensor:
        """Return log p ``[B, classes]``: softmax per member, then the mean over members, as a logarithm."""
        return log_mean_softmax(self.member_logits(inputs))

    def example_inputs(self, batch: int, seed: int = 0) -> Any:
        """Draw random inputs of the right shape on the models' device and dtype."""
        return self._each[0].example_inputs(batch, seed)


Runnable = HydraModel | SequentialEnsemble
"""The module that a MODEL argument becomes: both are called alike."""


@dataclass(frozen=True)
class ModelArgument:
    """One MODEL argument, found and checked, its weights not yet read.

    Attributes:
        name: the name given, else that of the file, else those of the members joined by ``+``.
        sources: one model, or the members of an ensemble that run one after another.
    """

    name: str
    sources: Sequence[Source]

    def build(self, device: str = "cpu", dtype: str = "float32", *, whole_last_block: bool = False) -> Runnable:
        """Read the weights and build the module that runs."""
        models = []
        for source in self.sources:
            models.append(build_model(source, device, dtype, whole_last_block=whole_last_block))
        if len(models) == 1:
            return models[0]
        for model in models:
            model.cascade = None  # it was fitted to the answers of this model alone
        return SequentialEnsemble(models)

    @property
    def file_bytes(self) -> int | None:
        """Bytes of all checkpoint files together; None where a model is no file."""
        total = 0
        for source in self.sources:
            if source.file_bytes is None:
                return None
            total += source.file_bytes
        return total

    @property
    def sha256(self) -> str | list[str]:
        """SHA-256 of the model, or one for each member of an ensemble."""
        if len(self.sources) == 1:
            return self.sources[0].sha256
        return [source.sha256 for source in self.sources]


def find_models(texts: Sequence[str], options: ModelOptions | None = None) -> list[ModelArgument]:
    """Find every MODEL and check all that headers can tell.

    Args:
        texts: ``[NAME=]REF[+REF...]`` each.
        options: what is said about all of them.

    Raises:
        UsageError: for a text that cannot be read, two models of one name, and an option that a model does not take.
        InputError: listing what is wrong with every reference, and members that cannot be averaged.
    """
    split_texts = [split_model(text) for text in texts]
    all_refs: list[str] = []  # each once, in the order of their first use
    for _, refs in split_texts:
        for ref in refs:
            if ref not in all_refs:
                all_refs.append(ref)
    opened = open_sources(all_refs, options or ModelOptions())
    source_of_ref = dict(zip(all_refs, opened, strict=True))
    arguments = []
    for name, refs in split_texts:
        sources = [source_of_ref[ref] for ref in refs]
        if len(sources) > 1:
            check_agreement([(source.name, source.description) for source in sources])
            sources = _named_alike(sources, sources)
        joined_name = "+".join(source.name for source in sources)
        arguments.append(ModelArgument(name or joined_name, sources))
    names = [model.name for model in arguments]
    used_twice = sorted({name for name in names if names.count(name) > 1})
    if used_twice:
        raise UsageError(f"MODEL names used twice: {', '.join(used_twice)}", hint="name them apart: NAME=MODEL")
    return arguments


def with_class_names(
    arguments: Sequence[ModelArgument], data: str, limit: int | None, option: str = "--data"
) -> list[ModelArgument]:
    """Name all classes in the arguments: rows that are measured on the same labels have the same classes.

    A zero-shot model whose classes have not been named takes those of the first model that knows its own, a member of
    the same ensemble before that of another row; where none does, those of the data.

    Raises:
        InputError: where the data have no class names either.
    """
    all_sources: list[Source] = []
    for argument in arguments:
        all_sources += argument.sources
    named_arguments = []
    for argument in arguments:
        sources = _named_alike(argument.sources, all_sources)
        sources = [named_by_data(source, data, limit, option) for source in sources]
        named_arguments.append(replace(argument, sources=sources))
    return named_arguments


def _named_alike(sources: Sequence[Source], known: Sequence[Source]) -> list[Source]:
    """Name the classes in sources without names, after the first known model with names.

    They take its prompts too, unless they have their own.
    """
    with_names = [source.description for source in known if source.description.labels is not None]
    if not with_names:
        return list(sources)
    first = with_names[0]
    named_sources = []
    for source in sources:
        if source.classes is None:
            prompt = source.description.prompt or first.prompt or ()
            source = with_labels(source, first.labels, prompt)
        named_sources.append(source)
    return named_sources
