"""The verbs as functions: the options of the command line are keyword arguments, checked by the same declarations."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hydractl.api.documents import Document
from hydractl.api.models import Folder, Model, ModelLike, open
from hydractl.api.running import OF_A_TERMINAL, run
from hydractl.api.values import data_in
from hydractl.errors import UsageError
from hydractl.exports.formats import kind_of
from hydractl.model.runtime import HydraModel
from hydractl.model.source import HELD, Source, open_source
from hydractl.settings.option import options_of
from hydractl.settings.verbs import SETTINGS

Models = ModelLike | Sequence[ModelLike] | Mapping[str, "ModelLike | Sequence[ModelLike]"]
"""One model or several; by the name of its row each, where a list is an ensemble of models run one after another."""

VerbT = TypeVar("VerbT", bound=Callable[..., Any])


def _documented(verb: str) -> Callable[[VerbT], VerbT]:
    """Put the options of a verb into the signature and the docstring of its function."""

    def add(function: VerbT) -> VerbT:
        options = [one for one in options_of(SETTINGS[verb]) if one.name not in OF_A_TERMINAL]
        signature = inspect.signature(function)
        positional = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        keywords = [inspect.Parameter(o.name, inspect.Parameter.KEYWORD_ONLY, default=o.default) for o in options]
        function.__signature__ = signature.replace(parameters=[*positional, *keywords])  # type: ignore[attr-defined]
        lines = [f"    {one.name}: {one.described()}" for one in options]
        title = f"Options, as of ``hydractl {verb}``; wrong ones and wrong inputs raise UsageError and InputError:"
        function.__doc__ = "\n".join([inspect.cleandoc(function.__doc__ or ""), "", title, *lines])
        return function

    return add


# --- running ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _held(models: Iterable[ModelLike], *, as_files: bool = False) -> Iterator[list[str]]:
    """The reference of each model: a text stays one, what was opened is found in memory."""
    held: dict[str, Source] = dict(HELD.get({}))  # of the models before, where each is held by itself
    refs = []
    for model in models:
        if not isinstance(model, Model | HydraModel):
            refs.append(os.fspath(model))
        elif as_files:
            opened = open(model)
            if not opened.refs:
                raise UsageError(f"a file is needed, and {opened.name} is in memory", hint="hydractl.save writes one")
            refs += opened.refs
        else:
            for source in open(model).sources:
                refs.append(f"memory:{len(held)}")
                held[str(len(held))] = source
    before = HELD.set(held)
    try:
        yield refs
    finally:
        HELD.reset(before)


def _listed(models: Any) -> list[Any]:
    return list(models) if isinstance(models, list | tuple) else [models]


def _answer(verb: str, model: ModelLike, options: Mapping[str, Any]) -> Document:
    """The document of a verb that takes one model and makes none."""
    with _held([model]) as refs:
        return _unwritten(verb, refs, options)


def _unwritten(verb: str, models: Sequence[str], options: Mapping[str, Any]) -> Document:
    """The document of a verb; it is written only where ``output`` says so."""
    unnamed = options.get("output") is None and options.get("from_file") is None
    outcome = run(verb, models, {**options, "output": "-"} if unnamed else options)
    return Document(outcome.document, outcome.files)


def _measured(verb: str, models: Models, options: Mapping[str, Any]) -> Document:
    """The document of a verb with a row for each model."""
    rows = models.items() if isinstance(models, Mapping) else [("", one) for one in _listed(models)]
    texts = []
    with contextlib.ExitStack() as stack:
        for name, members in rows:
            if set(name) & set("/:?="):
                raise UsageError(f"{name!r} cannot be the name of a row: it has one of / : ? =")
            refs = "+".join(stack.enter_context(_held(_listed(members))))
            texts.append(f"{name}={refs}" if name else refs)
        return _unwritten(verb, texts, options)


def _made(verb: str, models: Sequence[ModelLike], default: str, options: Mapping[str, Any], **how: bool) -> Model:
    """The model of a verb that makes one, in a folder of its own unless ``output`` says where."""
    folder = None if options.get("output") else Folder()
    if folder is not None:
        options = {**options, "output": f"{folder.path}/{default}"}
    with _held(models, **how) as refs:
        outcome = run(verb, refs, options)
    weights = outcome.files if verb == "finetune" else outcome.files[:1]  # the others write more beside it
    opened = [open_source(str(file)) for file in weights]
    return Model(opened, list(map(str, weights)), Document(outcome.document, outcome.files), folder)


# --- the verbs --------------------------------------------------------------------------------------------------------


@_documented("score")
def score(model: ModelLike, **options: Any) -> Document:
    """Give every attention head an importance score.

    Args:
        model: a dense or pruned model.

    Returns:
        The scores, which ``prune(scores=...)`` takes.

    Raises:
        NonFiniteError: a score is not finite.
    """
    return _answer("score", model, options)


@_documented("extract-circuit")
def extract_circuit(model: ModelLike, **options: Any) -> Document:
    """Rank heads by greedy search on validation data.

    Args:
        model: a dense or pruned model.

    Returns:
        The circuit, which ``prune(circuit=...)`` takes; of several objectives a document whose ``circuits`` are a list
        of them.
    """
    if options.get("output") or "," not in ",".join(_listed(options.get("objective") or "")):
        return _answer("extract-circuit", model, options)
    folder = Folder()  # several do not fit standard output
    return Document(_answer("extract-circuit", model, {**options, "output": f"{folder.path}/circuit.json"}))


@_documented("prune")
def prune(model: ModelLike, **options: Any) -> Model:
    """Cut heads out of a model.

    Args:
        model: a dense or pruned model.
        options: ``scores``, ``circuit``, ``mask`` and ``with_mask`` take a file or a document.

    Returns:
        The pruned model; ``result`` holds its mask and cost. Without ``output`` its file is temporary.

    Raises:
        NonFiniteError: a weight or a score is not finite.
        OutputError: ``output`` exists, and ``force`` is not set.
    """
    return _made("prune", [model], "pruned.st", options)


@_documented("finetune")
def finetune(model: ModelLike | Sequence[ModelLike], **options: Any) -> Model:
    """Fine-tune a dense or pruned model.

    Args:
        model: one, or several that are trained one after another.
        options: of several models, and with ``members``, each is trained in a process of its own, which takes files
            and no data in memory.

    Returns:
        The trained model; of several, with ``members`` and with ``snapshots`` its ``members`` are the models.
        ``result`` holds the course. Without ``output`` its files are temporary.

    Raises:
        NonFiniteError: the loss or a weight is not finite.
        OutputError: ``output`` exists, and ``force`` is not set.
    """
    models = _listed(model)
    several = len(models) > 1 or str(options.get("members") or 1) != "1"
    return _made("finetune", models, "" if len(models) > 1 else "tuned.st", options, as_files=several)


@_documented("laplace")
def laplace(model: ModelLike, **options: Any) -> Model:
    """Give a model a Laplace approximation over its last layer, or over the projections of a CLIP (BayesVLM).

    Args:
        model: any one, also a fused one: each member has its own posterior.

    Returns:
        The model with it; ``result`` holds the priors. Without ``output`` its file is temporary.

    Raises:
        UsageError: the model does not end in one linear layer.
        OutputError: ``output`` exists, and ``force`` is not set.
    """
    return _made("laplace", [model], "laplace.st", options)


@_documented("fuse")
def fuse(models: ModelLike | Sequence[ModelLike], **options: Any) -> Model:
    """Fuse pruned members into one model that gives their averaged prediction in one pass.

    Args:
        models: the members, or one model that has several ``members``.

    Returns:
        The fused model; ``result`` holds what was averaged, the self-check and the cost. Without ``output`` its file is
        temporary.

    Raises:
        OutputError: ``output`` exists, and ``force`` is not set.
    """
    if "export" in options:
        raise UsageError("fuse gives a model and exports none", hint="hydractl.export(model, 'hydra.onnx')")
    return _made("fuse", _listed(models), "hydra.st", options)


@_documented("eval")
def evaluate(models: Models = (), **options: Any) -> Document:
    """Measure accuracy, calibration, OOD detection and diversity.

    Args:
        models: one, several, or a mapping from the names of rows; a list in it is an ensemble of models that are run
            one after another. None with ``from_file``, a list of answers.
        options: ``ood`` and ``val_ood`` take a mapping from names (``NAME``, ``NAME:near`` or ``NAME:far``) to data.

    Returns:
        The document of ``eval``; its ``models`` are a list of rows with a ``name`` each.

    Raises:
        RequirementError: one of ``require`` does not hold.
    """
    return _measured("eval", models, options)


@_documented("bench")
def bench(models: Models = (), **options: Any) -> Document:
    """Measure latency, memory and mult-adds; ratios are to the first model, in paired rounds.

    Args:
        models: as of :func:`evaluate`.

    Returns:
        The document of ``bench``; its ``results`` are a list of rows with a ``model`` each.

    Raises:
        RequirementError: one of ``require`` does not hold.
    """
    return _measured("bench", models, options)


@_documented("study")
def study(model: ModelLike, **options: Any) -> Document:
    """Find out whether any of this helps a model.

    Args:
        model: a file, a folder or a name, or one that was opened as such.
        options: data are SPECs, because the commands of a study are kept.

    Returns:
        The verdict; what was made is in the folder ``output``, or else in one that is named after the model.

    Raises:
        OutputError: the folder is that of another study.
    """
    options_here = {one.name: one for one in options_of(SETTINGS["study"]) if one.name in options}
    for name, value in data_in(options_here, options).items():
        if not isinstance(value, str | os.PathLike | None):
            raise UsageError(f"the commands of a study take files, and {name} is in memory", hint="write it to a file")
    with _held([model], as_files=True) as refs:
        outcome = run("study", refs, options)
    return Document(outcome.document, outcome.files)


def export(model: ModelLike, path: str | os.PathLike[str], **options: Any) -> list[Path]:
    """Write a model for ONNX Runtime or plain PyTorch, to run without hydractl.

    Args:
        model: any one.
        path: of the ``.onnx``, ``.int8.onnx`` or ``.pt2`` file.
        options: as those of ``hydractl fuse MODEL --export``, by name: ``force``; of int8 ``data`` and ``ood``.

    Returns:
        The files written.

    Raises:
        UsageError, InputError: a model or an ending that cannot be exported.
        OutputError: a file exists, and ``force`` is not set.
    """
    with _held([model]) as refs:
        options = {**options, "export": kind_of(path) or Path(path).suffix or "none", "output": os.fspath(path)}
        return run("fuse", refs, options).files


@_documented("push")
def push(model: ModelLike, repo: str, **options: Any) -> Document:
    """Upload a model and its card to the Hugging Face Hub, from where :func:`hydractl.load` takes it: ``hf:ORG/NAME``.

    Args:
        model: a checkpoint or a published folder, or one that was opened or made.
        repo: ``ORG/NAME[@BRANCH]``; it is made where there is none.

    Returns:
        The files with their SHA-256, which of them were uploaded, the commit, and a reference that pins it.

    Raises:
        UsageError, InputError: wrong options or inputs, or what the Hub answered.
        OutputError: other files of these names are there, and ``force`` is not set.
    """
    with _held([model], as_files=True) as refs:
        outcome = run("push", [*refs, f"hf:{repo}"], options)
    return Document(outcome.document)
