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
    if not _is_device_there(device):
        raise UsageError(f"device {name!r} is not available on this machine", hint="use --device auto or --device cpu")
    return device


def _is_device_there(device: torch.device) -> bool:
    """Return whether this machine has a device."""
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
    """Return the dtype of ``float32`` | ``bfloat16`` | ``float16`` | ``float64``."""
    known = ("float32", "bfloat16", "float16", "float64")
    if name not in known:
        choices = ", ".join(known)
        raise UsageError(f"unknown dtype {name!r}, not one of {choices}")
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def build_model(
    source: Source, device: str = "cpu", dtype: str = "float32", *, whole_last_block: bool = False
) -> HydraModel:
    """Read the weights of a source and build the model that runs.

    Args:
        source: a model that was found and checked.
        device, dtype: by name, as on the command line.
        whole_last_block: whether the last block runs for all tokens, also for those that nothing is read from.

    Raises:
        NonFiniteError: a weight is NaN or infinite.
        UsageError: the machine has no such device, or there is no such dtype.
    """
    description = source.description
    tensors = source.tensors
    check_finite_weights(source.name, tensors)
    model = HydraModel(description, tensors, resolve_device(device), resolve_dtype(dtype))
    model.whole_last_block = whole_last_block
    score = stored_score(description.extra)
    if score in ON_FEATURES and isinstance(tensors, FileTensors):
        document = description.extra.get("ood_score")
        model.detector = stored_detector(score, document, tensors, model.members)
    return model


@functools.cache
def _slow_format(dtype: torch.dtype, device: str) -> str | None:
    """Return what :func:`hydractl.model.machine.slow_format` measures, once in a process."""
    device_here = torch.device(device)
    return slow_format(dtype, device_here)


def load_source(
    source: Source,
    device: str = "auto",
    dtype: str = "float32",
    *,
    compile: bool = False,
    whole_last_block: bool = False,
) -> HydraModel:
    """Build the model of a source for a Python program, and warn where a slow format or a cascade is in the way.

    Args:
        source: a model that was found and checked.
        device: by name; ``auto`` takes a GPU where there is one.
        dtype: by name.
        compile: whether to compile the model; then all members run for all samples, as a graph has no cascade.
        whole_last_block: whether the last block runs for all tokens, also for those that nothing is read from.

    Returns:
        The model, with the digests of the checkpoints that it goes back to in ``lineage``.
    """
    device_type = resolve_device(device).type
    slow = _slow_format(resolve_dtype(dtype), device_type)
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
        numbered = []
        for index, model in enumerate(models):
            numbered.append((f"model {index}", model.description))
        check_agreement(numbered)
        self.models = nn.ModuleList(models)
        self.labels: list[str] | None = None
        for model in models:
            if self.labels is None:
                self.labels = model.labels
        self.eval()

    @property
    def _models(self) -> list[HydraModel]:
        """The models, for the type checker."""
        return list(self.models)  # type: ignore[arg-type]

    @property
    def _first_model(self) -> HydraModel:
        """The first model, which speaks for all where they agree."""
        return self._models[0]

    @property
    def preprocess(self) -> Callable[[list[Any]], Any]:
        """A function from a list of raw samples to inputs."""
        return self._first_model.preprocess

    @property
    def members(self) -> int:
        """Number of members of all models together."""
        members_of_models = [model.members for model in self._models]
        return sum(members_of_models)

    @property
    def classes(self) -> int | None:
        """Number of classes; None for zero-shot models whose classes have not been named."""
        return self._first_model.classes

    def zero_shot(self, labels: str | Sequence[str], prompt: str | Sequence[str] | None = None) -> SequentialEnsemble:
        """Return a classifier into classes given by name, of models that compare samples with texts.

        Args:
            labels: class names; a text is what ``--labels`` takes, such as ``imagenet``.
            prompt: templates with ``{label}`` in place of the name; None: those of each model.
        """
        models = [model.zero_shot(labels, prompt) for model in self._models]
        return SequentialEnsemble(models)

    def with_classes(self) -> SequentialEnsemble:
        """Return this ensemble, or where it has no classes yet one with stand-ins: for measuring and checking it."""
        if self.classes is not None:
            return self
        models = [model.with_classes() for model in self._models]
        return SequentialEnsemble(models)

    def read_prompts(self, log: Log, name: str) -> None:
        """Compute the features of the classes of every zero-shot model now, with progress."""
        for model in self._models:
            model.read_prompts(log, name)

    @property
    def whole_last_block(self) -> bool:
        """Whether the last block runs for all tokens, in the first model; setting it sets that of all models."""
        return self._first_model.whole_last_block

    @whole_last_block.setter
    def whole_last_block(self, whole: bool) -> None:
        for model in self._models:
            model.whole_last_block = whole

    @property
    def side_by_side(self) -> bool | None:
        """Whether members run in the same operations, in the first model; setting it sets that of all models."""
        return self._first_model.side_by_side

    @side_by_side.setter
    def side_by_side(self, together: bool | None) -> None:
        for model in self._models:
            model.side_by_side = together

    def member_logits(self, inputs: Any) -> Tensor:
        """Return the logits of every member, ``[M, B, classes]``, M counted over all models."""
        logits_of_models = [model.member_logits(inputs) for model in self._models]
        return torch.cat(logits_of_models)

    def forward(self, inputs: Any) -> Tensor:
        """Return log p ``[B, classes]``: softmax per member, then the mean over members, as a logarithm."""
        logits = self.member_logits(inputs)
        return log_mean_softmax(logits)

    def example_inputs(self, batch: int, seed: int = 0) -> Any:
        """Draw random inputs of the right shape on the models' device and dtype."""
        return self._first_model.example_inputs(batch, seed)


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
        digests = [source.sha256 for source in self.sources]
        if len(digests) == 1:
            return digests[0]
        return digests


def find_models(texts: Sequence[str], options: ModelOptions | None = None) -> list[ModelArgument]:
    """Find every MODEL and check all that headers can tell.

    Args:
        texts: ``[NAME=]REF[+REF...]`` each.
        options: what is said about all of them.

    Raises:
        UsageError: for a text that cannot be read, two models of one name, and an option that a model does not take.
        InputError: listing what is wrong with every reference, and members that cannot be averaged.
    """
    # Open each reference once, in the order of their first use.
    split_texts = [split_model(text) for text in texts]
    all_refs: list[str] = []
    for _, refs in split_texts:
        for ref in refs:
            if ref not in all_refs:
                all_refs.append(ref)
    opened = open_sources(all_refs, options or ModelOptions())
    source_of_ref = dict(zip(all_refs, opened, strict=True))

    # Members of an ensemble must agree, and have the same class names.
    arguments = []
    for name, refs in split_texts:
        sources = [source_of_ref[ref] for ref in refs]
        is_ensemble = len(sources) > 1
        if is_ensemble:
            members = [(source.name, source.description) for source in sources]
            check_agreement(members)
            sources = _with_class_names_of_first(sources, known=sources)
        names_of_members = [source.name for source in sources]
        joined_name = "+".join(names_of_members)
        arguments.append(ModelArgument(name or joined_name, sources))
    _check_names_differ([argument.name for argument in arguments])
    return arguments


def _check_names_differ(names: Sequence[str]) -> None:
    """Raise UsageError where two models have one name."""
    used_twice = set()
    for name in names:
        if names.count(name) > 1:
            used_twice.add(name)
    if used_twice:
        listed = ", ".join(sorted(used_twice))
        raise UsageError(f"MODEL names used twice: {listed}", hint="name them apart: NAME=MODEL")


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
        sources = _with_class_names_of_first(argument.sources, all_sources)
        sources = [named_by_data(source, data, limit, option) for source in sources]
        named_arguments.append(replace(argument, sources=sources))
    return named_arguments


def _with_class_names_of_first(sources: Sequence[Source], known: Sequence[Source]) -> list[Source]:
    """Name the classes of zero-shot models that have none after those of the first known model that names its own.

    They take its prompts too, unless they have their own.

    Args:
        sources: the models; those with classes stay as they are.
        known: the models that names are taken from.

    Returns:
        The models, in their order; all as they are where no known model names its classes.
    """
    descriptions = [source.description for source in known]
    with_names = [description for description in descriptions if description.labels is not None]
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
