"""Models in a Python program: opened, passed from function to function, loaded and saved."""

from __future__ import annotations

import contextlib
import functools
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, Union

from torch import nn

from hydractl.api.modules import open_module
from hydractl.api.results import Result
from hydractl.api.values import Data, Texts
from hydractl.data import open_data
from hydractl.data.held import held_set
from hydractl.data.names import read_labels, read_prompts
from hydractl.errors import HydraError, UsageError
from hydractl.expressions.data_sets import DataSpec
from hydractl.expressions.models import ModelRef
from hydractl.files.atomic import Output, file_path, write_json
from hydractl.files.checkpoint import DictTensors, beside, with_tensors, write_checkpoint
from hydractl.files.description import CHOSEN_BY_CALIBRATE, Description, provenance
from hydractl.files.fingerprints import entry, merged
from hydractl.files.header import CHECKPOINT_SCHEMA
from hydractl.files.temporary import Folder
from hydractl.model.laplace import KEY
from hydractl.model.loading import load_source
from hydractl.model.runtime import HydraModel
from hydractl.model.source import ModelOptions, Source, digest_of, open_source, with_labels, with_max_length
from hydractl.model.stored import check_finite_weights
from hydractl.options.call import name_for_weights
from hydractl.options.wording import in_python
from hydractl.verbs.info import described, model_facts
from hydractl.verbs.outcome import Outcome


@dataclass(repr=False)
class Model:
    """A model that was found and checked by its header, without reading its weights; or several that one call made.

    It is none where ``calibrate`` wrote what it chose as JSON.

    Attributes:
        models: each model: its source, its file or name if that alone defines it, and the temporary folder of its file
            if that was given no name.
        result: the :class:`Result` of the function that made the model; None if the model was opened.
    """

    models: Sequence[ModelRef]
    result: Any = None

    def __repr__(self) -> str:
        return f"Model(refs={self.refs})"

    @property
    def refs(self) -> list[str]:
        """The files or names of the models, if these alone define them; else empty."""
        return [model.text for model in self.models if model.text]

    @property
    def name(self) -> str:
        """The name that results show; the names of several models are joined by ``+``."""
        return "+".join(model.held.name for model in self.models)

    @property
    def source(self) -> Source:
        """The one model.

        Raises:
            UsageError: there are several models, or none.
        """
        if not self.models:
            raise UsageError("no checkpoint was written", hint="evaluate(..., calibration=FILE) takes what was chosen")
        if len(self.models) > 1:
            raise UsageError(f"{self.name} is {len(self.models)} models", hint="take one of its members")
        return self.models[0].held

    @property
    def outcome(self) -> Outcome:
        """What the command line prints of it; it is that of a verb which made the model."""
        assert self.result is not None
        return self.result.outcome

    @property
    def members(self) -> list[Model]:
        """Each of several models as a model of its own."""
        return [Model([model], self.result) for model in self.models]

    @property
    def description(self) -> Description:
        """The description in the model's header, of several models that of the first: kind, architecture, kept heads,
        labels, how it was made.
        """
        return self.models[0].held.description

    def load(self, device: str = "auto", dtype: str = "float32", **options: Any) -> HydraModel:
        """Read the weights and return an ``nn.Module`` in eval mode; the arguments are those of :func:`load`."""
        return load_source(self.source, device, dtype, **options)

    def _repr_html_(self) -> str:
        """Show the table of the function that made the model, or the facts in its header."""
        if self.result is not None:
            return self.result._repr_html_()
        return described(self.name, CHECKPOINT_SCHEMA, model_facts(self.description))._repr_html_()


ModelLike: TypeAlias = Union[Model, HydraModel, nn.Module, str, "os.PathLike[str]"]
"""A model: one that was opened or made, a module of hydractl or of a library, or what a command takes as MODEL."""


def open(
    model: ModelLike,
    *,
    name: str | None = None,
    arch: str | None = None,
    seed: int = 0,
    max_length: int | None = None,
    labels: Texts | None = None,
    prompt: Texts = (),
    processor: Any = None,
) -> Model:
    """Find a model and check everything that its header tells; no weights are read.

    Args:
        model: a ``.st`` file, a published folder, or a name such as ``timm:NAME``; or a module that :func:`load`
            returned, or one of timm, transformers, torchvision or open_clip, with the weights it has now; or an opened
            model, to give it another name, length, labels or prompt.
        name: what results call it; None: after the file.
        arch: the architecture of a bare safetensors file, or of a module that does not tell it:
            ``open_clip:ViT-B-32``, ``timm:NAME?img_size=32``.
        seed: draws the weights of a model that has none (``pretrained=0``).
        max_length: the largest number of tokens of a text; None: what the checkpoint says.
        labels: class names, or what ``--labels`` takes.
        prompt: one template or several for the classes of a zero-shot model, or what ``--prompt`` takes.
        processor: the tokenizer or image processor of a module of transformers.

    Returns:
        The model; an opened one itself, if nothing of it is to change.

    Raises:
        InputError: this is not a model of a supported family.
        UsageError: the model does not take one of the options.
    """
    # An open model has its weights already.
    is_open = isinstance(model, Model | HydraModel)
    if is_open and (arch is not None or seed):
        raise UsageError("arch and seed are for a file or a name, and this model is open")
    if isinstance(model, Model) and not (name or max_length or labels or prompt):
        return model

    # Find the model. A HydraModel is also an nn.Module, so it is asked for first. ``ref`` is the file or name that
    # opens the model again, and ``folder`` a temporary folder that must live as long as the model.
    ref = ""
    folder: object = None
    if isinstance(model, Model):
        source = model.source
        folder = model.models[0].keeps
    elif isinstance(model, HydraModel):
        source = _source_of_weights_now(model)
    elif isinstance(model, nn.Module):
        folder = Folder()
        source = open_module(model, arch, processor, folder.path)
    else:
        ref = os.fspath(model)
        with _hints_in_python():
            source = open_source(ref, ModelOptions(arch, seed))

    # Apply the arguments to a copy of the description; the source stays as it is.
    changed = source
    if name is not None:
        changed = replace(source, name=name)
    changed = with_max_length(changed, max_length)
    if labels is not None or prompt:
        class_names = labels
        if isinstance(labels, str):
            class_names = read_labels(labels, "labels")
        templates = prompt
        if isinstance(prompt, str):
            templates = [prompt]
        changed = with_labels(changed, class_names, read_prompts(templates, "prompt"))

    # Keep the file or name only if it opens this same model again.
    file_says_it_all = changed is source and arch is None and not seed
    return Model([ModelRef(ref if file_says_it_all else "", changed, folder)])


def load(
    model: ModelLike,
    device: str = "auto",
    dtype: str = "float32",
    arch: str | None = None,
    *,
    compile: bool = False,
    whole_last_block: bool = False,
) -> HydraModel:
    """Read the weights of a model and return it as an ``nn.Module`` in eval mode.

    Args:
        model: what :func:`open` takes, or a model that :func:`open` or another function returned.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps``.
        dtype: the dtype to compute in.
        arch: the architecture of a bare safetensors file.
        compile: compile the whole network with torch.compile at its first call. A loaded model takes a mode:
            ``model.compile(mode="reduce-overhead")`` runs it as CUDA graphs.
        whole_last_block: run the last block for all tokens, as the library does, instead of those that are read.

    Returns:
        A model whose call returns log p ``[batch, classes]`` of the averaged prediction.

    Raises:
        InputError: this is not a model of a supported family, or its weights are broken.
        UsageError: the device is not there, or the model is several.

    Warns:
        UserWarning: a CPU computes in ``dtype`` slower than in float32; it says how many times slower (measured).
    """
    opened = open(model, arch=arch)
    return opened.load(device, dtype, compile=compile, whole_last_block=whole_last_block)


def save(
    what: ModelLike | Result | Mapping[str, object],
    path: str | os.PathLike[str],
    *,
    trained_on: Data | None = None,
    force: bool = False,
) -> Path:
    """Write a model as a checkpoint, a module with the weights it has now, or a document as JSON.

    Args:
        what: a model; a module of one member, perhaps trained since it was loaded; or a document.
        path: the file: ``.st`` for a model or a module, ``.json`` for a document.
        trained_on: data whose samples the weights have seen, which :func:`evaluate` then refuses as test data: a SPEC,
            samples, or ``(samples, labels)``.
        force: replace a file that exists.

    Returns:
        The path.

    Raises:
        InputError: this is a module of several members; train members before they are fused.
        NonFiniteError: there are NaN or infinity in the weights.
        OutputError, StorageError: the file cannot be written.
        UsageError: the path has the ending of another kind of file.
    """
    # A document.
    if isinstance(what, Result):
        what = what.to_dict()
    if isinstance(what, Mapping):
        with _hints_in_python(), Output(file_path(os.fspath(path)), force=force) as output:
            return write_json(output, what)

    # A model. A name such as a.onnx would say that the file is of another kind.
    hint_at_name = name_for_weights(os.fspath(path))
    if hint_at_name is not None:
        raise UsageError(f"save writes safetensors, not {path}", hint=hint_at_name)
    source = open(what).source
    with _hints_in_python(), Output(file_path(os.fspath(path)), force=force) as output:
        check_finite_weights(source.name, source.tensors)
        description = _description_to_save(source, trained_on)
        # Tensors that a file stores beside the weights, such as statistics, are saved as well.
        tensors = with_tensors(source.tensors, beside(source.tensors))
        write_checkpoint(output, tensors, description.to_json())
    return output.path


@contextlib.contextmanager
def _hints_in_python() -> Iterator[None]:
    """Put the hints of errors in terms of Python, and into their tracebacks."""
    try:
        yield
    except HydraError as error:
        if error.hint is not None:
            error.hint = in_python(error.hint)
            error.add_note(f"hint: {error.hint}")
        raise


def held_spec(option: str, value: Any, name: str) -> str | DataSpec:
    """Return a SPEC as its text; samples in memory as a data set that holds them, named ``memory:NAME``.

    Raises:
        InputError: the value is neither.
    """
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    return DataSpec.of_option(option, f"memory:{name}", held_set(value, name))


def _description_to_save(source: Source, trained_on: Data | None) -> Description:
    """Return the description that the header of a checkpoint holds: architecture, origin, samples seen in training.

    Origin: the commands that made the model (``save``, if nothing else is known). Samples seen: those that the model's
    description lists already, and those of ``trained_on``; they are kept as hashes.
    """
    made_by = source.description.provenance
    if not made_by:
        made_by = provenance("save", 0, [source.sha256], {}, source.bases)
    seen = source.description.seen
    if trained_on is not None:
        dataset = open_data(held_spec("--data", trained_on, "trained_on"), ignore_labels=True)
        samples = entry("save", "train", dataset)
        seen = merged(seen, [samples])
    # "sliced": the tensors of pruned heads are cut out, not zeroed.
    return replace(source.description, layout="sliced", provenance=made_by, seen=tuple(seen))


def _source_of_weights_now(model: HydraModel) -> Source:
    """Return a loaded module as a source, which is what a file of it would be when opened.

    It has the weights, classes and prompt that the module has now, perhaps after a training. What was fitted to the
    weights of its checkpoint, such as a temperature or a threshold, is left out, because it may fit no longer.

    Warns:
        UserWarning: once for each result that is left out.
    """
    # The description is that of the checkpoint; it is replaced below by one of the weights of now.
    description = model.description
    for fitted in (*CHOSEN_BY_CALIBRATE, KEY):
        if fitted in description.extra:
            warnings.warn(f"the {fitted} is left out: it was fitted for the weights of the checkpoint", stacklevel=4)

    # Zero-shot models have prompts, the templates that their class names are put into.
    prompt = description.prompt
    if model.prompted:
        prompt = model.prompted.templates

    # The provenance says that ``save`` made it, and of what.
    parent = dict(description.provenance) or None
    description = replace(
        description,
        labels=model.labels,
        prompt=prompt,
        layout="sliced",
        extra={},
        provenance=provenance("save", 0, model.lineage[:1], {"parent": parent}, model.lineage),
    )
    tensors = DictTensors(model.stock_tensors())

    # Hashing takes time, so it is done when the digest is asked for, and once.
    @functools.cache
    def digest() -> str:
        """Return the digest of the file that :func:`save` would write."""
        return digest_of(description, tensors)

    return Source("model", digest, description, tensors)
