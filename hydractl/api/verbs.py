"""The verbs as functions of a Python program, with typed keyword arguments."""

from __future__ import annotations

import inspect
import os
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, Unpack

from torch import nn

from hydractl.api.arguments import (
    BenchArguments,
    CalibrateArguments,
    CircuitArguments,
    EvalArguments,
    ExportArguments,
    FinetuneArguments,
    FuseArguments,
    LaplaceArguments,
    PredictArguments,
    PruneArguments,
    PushArguments,
    ReportArguments,
    ScoreArguments,
    ServeArguments,
    StudyArguments,
)
from hydractl.api.calling import arguments_of, data_in, run
from hydractl.api.models import Calibrated, Folder, Model, ModelLike, open
from hydractl.api.results import (
    Benchmark,
    Circuit,
    Circuits,
    Document,
    Evaluation,
    Exports,
    Predictions,
    Push,
    Scores,
    Study,
)
from hydractl.errors import UsageError
from hydractl.jsonio import HeldDocument
from hydractl.methods import MethodOptions, read_ensemble
from hydractl.model.source import HeldModel, HeldRow, open_source
from hydractl.settings.registry import VERBS, function_of
from hydractl.verbs.outcome import Outcome

Models = ModelLike | Sequence[ModelLike] | Mapping[str, "ModelLike | Sequence[ModelLike]"]
"""One model or several; by the name of its row each, where a list is an ensemble of models run one after another."""

VerbT = TypeVar("VerbT", bound=Callable[..., Any])

ARGUMENTS: dict[str, type] = {
    "score": ScoreArguments,
    "extract-circuit": CircuitArguments,
    "prune": PruneArguments,
    "finetune": FinetuneArguments,
    "laplace": LaplaceArguments,
    "fuse": FuseArguments,
    "export": ExportArguments,
    "eval": EvalArguments,
    "calibrate": CalibrateArguments,
    "predict": PredictArguments,
    "serve": ServeArguments,
    "bench": BenchArguments,
    "report": ReportArguments,
    "study": StudyArguments,
    "push": PushArguments,
}
"""The types of the keyword arguments of each verb."""


def _documented(verb: str) -> Callable[[VerbT], VerbT]:
    """Put the arguments of a verb, with defaults, into the run-time signature and the docstring of its function."""
    types: dict[str, object] = {}
    if verb in ARGUMENTS:
        types = typing.get_type_hints(ARGUMENTS[verb])

    def add(function: VerbT) -> VerbT:
        positional = []
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind is not parameter.VAR_KEYWORD:
                positional.append(parameter)
        keywords, lines = [], []
        for name, option in arguments_of(verb).items():
            annotation = types.get(name, option.type)  # a plug-in may declare options that have no static type
            keyword = inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=annotation
            )
            keywords.append(keyword)
            lines.append(f"    {name}: {option.described()}")
        signature = inspect.signature(function).replace(parameters=positional + keywords)
        function.__signature__ = signature  # type: ignore[attr-defined]
        title = (
            "Keyword arguments (UsageError for a wrong one, InputError for a file, data set or model that is wrong):"
        )
        function.__doc__ = "\n".join([inspect.cleandoc(function.__doc__ or ""), "", title, *lines])
        return function

    return add


# --- running ----------------------------------------------------------------------------------------------------------


def _references(models: Iterable[ModelLike], first: int = 0) -> list[str]:
    """Return models as the options hold them: a text stays one, what was opened is held.

    Args:
        models: each a text or a model.
        first: the number by which messages call the first one that is held.
    """
    refs: list[str] = []
    for model in models:
        if not isinstance(model, Model | nn.Module):
            refs.append(os.fspath(model))
            continue
        opened = open(model)
        for source in opened.sources:
            refs.append(HeldModel(f"memory:{first}", source, keeps=opened.folder))
            first += 1
    return refs


def _files(models: Iterable[ModelLike]) -> list[str]:
    """Return the references of models that other processes have to find.

    Raises:
        UsageError: a model is in memory alone.
    """
    refs: list[str] = []
    for model in models:
        if not isinstance(model, Model | nn.Module):
            refs.append(os.fspath(model))
            continue
        opened = open(model)
        if not opened.refs:
            raise UsageError(f"a file is needed, and {opened.name} is in memory", hint="hydractl.save writes one")
        refs += opened.refs
    return refs


def _listed(models: Any) -> list[Any]:
    if isinstance(models, list | tuple):
        return list(models)
    return [models]


def _named_rows(models: Models) -> list[tuple[str, Any]]:
    """Return the rows with their names; an empty one where a row is named after its model."""
    if isinstance(models, Mapping):
        return list(models.items())
    return [("", model) for model in _listed(models)]


def _answered(verb: str, model: ModelLike, given: Mapping[str, object]) -> Outcome:
    """Run a verb that takes one model and makes none."""
    return _unwritten(verb, _references([model]), given)


def _unwritten(verb: str, models: Sequence[str], given: Mapping[str, object]) -> Outcome:
    """Run a verb whose document is written only where ``output`` says so."""
    if given.get("output") is None:
        given = {**given, "output": "-"}
    return run(verb, models, given)


def _measured(verb: str, models: Models, given: Mapping[str, object]) -> Outcome:
    """Run a verb that gives a row for each model."""
    rows: list[str] = []
    models_held = 0
    for name, members in _named_rows(models):
        if set(name) & set("/:?="):
            raise UsageError(f"{name!r} cannot be the name of a row: it has one of / : ? =")
        refs = _references(_listed(members), models_held)
        models_held += sum(isinstance(ref, HeldModel) for ref in refs)
        rows.append(_row_argument(name, refs))
    return _unwritten(verb, rows, given)


def _row_argument(name: str, refs: list[str]) -> str:
    """Return a row as the options hold it; an empty name for one that is named after its model."""
    text = "+".join(refs)
    if name:
        text = f"{name}={text}"
    if any(isinstance(ref, HeldModel) for ref in refs):
        return HeldRow(text, (name or None, refs))
    return text


def _made(
    verb: str, models: Sequence[ModelLike], default: str, given: Mapping[str, object], *, as_files: bool = False
) -> Model:
    """Return the model of a verb that makes one, in a folder of its own unless ``output`` says where.

    Args:
        verb: its name on the command line.
        models: what it is made of.
        default: the name of its file in that folder.
        given: the keyword arguments.
        as_files: whether the models must be files, as other processes read them.
    """
    folder = None
    if not given.get("output"):
        folder = Folder()
        given = {**given, "output": f"{folder.path}/{default}"}
    refs = _files(models) if as_files else _references(models)
    outcome = run(verb, refs, given)
    weights = outcome.files
    if verb != "finetune":  # the others write more beside it
        weights = weights[:1]
    opened = [open_source(str(file)) for file in weights]
    result = Document(outcome.document, outcome.files)
    return Model(opened, [str(file) for file in weights], result, folder)


# --- the verbs --------------------------------------------------------------------------------------------------------


@_documented("score")
def score(model: ModelLike, **options: Unpack[ScoreArguments]) -> Scores:
    """Give every attention head an importance score.

    Args:
        model: a dense or pruned model.

    Returns:
        The scores, which ``prune(scores=...)`` takes.

    Raises:
        NonFiniteError: a score is not finite.
    """
    outcome = _answered("score", model, options)
    return Scores(outcome.document, outcome.files)


@_documented("extract-circuit")
def extract_circuit(model: ModelLike, **options: Unpack[CircuitArguments]) -> Circuit | Circuits:
    """Rank heads by greedy search on validation data.

    Args:
        model: a dense or pruned model.

    Returns:
        The circuit, which ``prune(circuit=...)`` takes; of several objectives all ``circuits``.
    """
    objectives = ",".join(_listed(options.get("objective") or ""))
    if "," not in objectives:
        outcome = _answered("extract-circuit", model, options)
        return Circuit(outcome.document, outcome.files)
    if options.get("output"):
        outcome = _answered("extract-circuit", model, options)
        return Circuits(outcome.document, outcome.files)
    folder = Folder()  # a verb that is given several objectives always writes files
    given = {**options, "output": f"{folder.path}/circuit.json"}
    return Circuits(_answered("extract-circuit", model, given).document)


@_documented("prune")
def prune(model: ModelLike, **options: Unpack[PruneArguments]) -> Model:
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
def finetune(model: ModelLike | Sequence[ModelLike], **options: Unpack[FinetuneArguments]) -> Model:
    """Fine-tune a dense or pruned model.

    Args:
        model: one, or several that are trained one after another.
        options: ``ensemble`` takes a text, such as ``packed:3,2``, or the options of a method, such as
            ``hydractl.methods.packed.PackedOptions(3, 2)``. Of several models, and of an ensemble by seeds, each is
            trained in a process of its own, which takes files and no data in memory.

    Returns:
        The trained model; of several, and of an ensemble, its ``members`` are the models. ``result`` holds the course.
        Without ``output`` its files are temporary.

    Raises:
        NonFiniteError: the loss or a weight is not finite.
        OutputError: ``output`` exists, and ``force`` is not set.
    """
    models = _listed(model)
    in_processes = len(models) > 1 or _trainings(options.get("ensemble")) > 1
    default = "" if len(models) > 1 else "tuned.st"
    return _made("finetune", models, default, options, as_files=in_processes)


def _trainings(ensemble: str | MethodOptions | None) -> int:
    """Return how many trainings of one model are asked for."""
    if isinstance(ensemble, MethodOptions):
        return ensemble.trainings
    if not isinstance(ensemble, str):
        return 1
    try:
        return read_ensemble(ensemble).trainings
    except ValueError:
        return 1  # the verb says what is wrong with it


@_documented("laplace")
def laplace(model: ModelLike, **options: Unpack[LaplaceArguments]) -> Model:
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
def fuse(models: ModelLike | Sequence[ModelLike], **options: Unpack[FuseArguments]) -> Model:
    """Fuse pruned members into one model that gives their averaged prediction in one pass.

    Args:
        models: the members, or one model that has several ``members``.

    Returns:
        The fused model; ``result`` holds what was averaged, the self-check and the cost. Without ``output`` its file is
        temporary.

    Raises:
        OutputError: ``output`` exists, and ``force`` is not set.
    """
    return _made("fuse", _listed(models), "hydra.st", options)


@_documented("eval")
def evaluate(models: Models = (), **options: Unpack[EvalArguments]) -> Evaluation:
    """Measure accuracy, calibration, OOD detection and diversity.

    Args:
        models: one, several, or a mapping from the names of rows; a list in it is an ensemble of models that are run
            one after another.
        options: ``ood`` and ``ood_val`` take a mapping from names (``NAME``, ``NAME:near`` or ``NAME:far``) to data.

    Returns:
        The rows, one for each model, in its ``models``.

    Raises:
        RequirementError: one of ``require`` does not hold.
    """
    outcome = _measured("eval", models, options)
    return Evaluation(outcome.document, outcome.files)


@_documented("calibrate")
def calibrate(model: ModelLike, **options: Unpack[CalibrateArguments]) -> Calibrated:
    """Choose temperature, threshold and OOD score of a model on validation data.

    Args:
        model: one checkpoint.
        options: ``ood_val`` takes a mapping from names to data, or ``auto``.

    Returns:
        What was chosen; its ``model`` is the calibrated model. Without ``output`` its file is temporary.

    Raises:
        OutputError: ``output`` exists, and ``force`` is not set.
    """
    calibrated = _made("calibrate", [model], "calibrated.st", options)
    assert calibrated.result is not None  # of a model that a verb made
    result = Calibrated(calibrated.result, calibrated.result.files)
    result.model = calibrated
    return result


@_documented("predict")
def predict(model: ModelLike, **options: Unpack[PredictArguments]) -> Predictions:
    """Predict samples without labels, and flag those that the model was not made for.

    A loaded model predicts a batch by its own method ``predict``.

    Args:
        model: one checkpoint, best one of :func:`calibrate`, which holds a threshold.
        options: ``data`` are the samples. With ``devices`` or ``slurm`` each part is predicted in a process of its own,
            which takes files and no data in memory.

    Returns:
        The summary, with a row for each sample; with ``output`` the rows are in that file alone.

    Raises:
        RequirementError: one of ``require`` does not hold.
        OutputError: ``output`` exists, and ``force`` is not set.
    """
    in_processes = bool(options.get("devices") or options.get("slurm"))
    refs = _files([model]) if in_processes else _references([model])
    outcome = run("predict", refs, options)
    rows = list(outcome.lines) if outcome.lines is not None else []
    return Predictions(outcome.document, outcome.files, rows)


@_documented("serve")
def serve(model: ModelLike, **options: Unpack[ServeArguments]) -> Document:
    """Answer over HTTP what :func:`predict` would, until Ctrl-C.

    Args:
        model: one checkpoint, best one of :func:`calibrate`, which holds a threshold.

    Returns:
        How many requests and inputs were answered.

    Raises:
        OutputError: another process uses the port.
    """
    outcome = run("serve", _references([model]), options)
    return Document(outcome.document)


@_documented("bench")
def bench(models: Models = (), **options: Unpack[BenchArguments]) -> Benchmark:
    """Measure latency, memory and mult-adds; ratios are to the first model, in paired rounds.

    Args:
        models: as of :func:`evaluate`.

    Returns:
        The rows, one for each model, batch size and number format, in its ``results``.

    Raises:
        RequirementError: one of ``require`` does not hold.
    """
    outcome = _measured("bench", models, options)
    return Benchmark(outcome.document, outcome.files)


@_documented("report")
def make_report(
    documents: Path | str | Mapping[str, object] | Sequence[Path | str | Mapping[str, object]],
    **options: Unpack[ReportArguments],
) -> Document:
    """Show, draw and check what :func:`evaluate`, :func:`bench` and :func:`study` returned or wrote.

    Args:
        documents: a result, or the file of one; several of :func:`evaluate` with ``over``, or the files that
            :func:`predict` wrote as ``report``, in the order of their inputs.

    Returns:
        The document that was reported on, of several the one of their means; ``files`` has what was written.

    Raises:
        RequirementError: one of ``require`` does not hold.
    """
    names: list[str] = []
    for place, document in enumerate(_listed(documents)):
        if isinstance(document, Mapping):
            names.append(HeldDocument(f"document {place + 1}", dict(document)))
        else:
            names.append(os.fspath(document))
    outcome = run("report", names, options)
    kinds: dict[str, type[Document]] = {
        "models": Evaluation,
        "results": Benchmark,
        "verdict": Study,
        "files": Document,
    }
    kind = next(kinds[key] for key in kinds if key in outcome.document)
    return kind(outcome.document, outcome.files)


@_documented("study")
def study(model: ModelLike, **options: Unpack[StudyArguments]) -> Study:
    """Find out whether any of this helps a model.

    Args:
        model: a file, a folder or a name, or one that was opened as such.
        options: data are SPECs, because the commands of a study are kept.

    Returns:
        The verdict; what was made is in the folder ``output``, or else in one that is named after the model.

    Raises:
        OutputError: the folder is that of another study.
    """
    known = arguments_of("study")
    given = {name: value for name, value in options.items() if name in known}
    for name, value in data_in(known, given).items():
        if not isinstance(value, str | os.PathLike | None):
            raise UsageError(f"the commands of a study take files, and {name} is in memory", hint="write it to a file")
    outcome = run("study", _files([model]), options)
    return Study(outcome.document, outcome.files)


@_documented("export")
def export(model: ModelLike, path: str | os.PathLike[str] | None = None, **options: Unpack[ExportArguments]) -> Exports:
    """Write a model for ONNX Runtime or plain PyTorch, to run without hydractl.

    Args:
        model: any one.
        path: of the ``.onnx``, ``.int8.onnx`` or ``.pt2`` file, whose ending names the format; the same as ``output``.
            Without it the file is named after the model.
        options: ``test`` and ``ood`` measure what the rounding of ``onnx-int8`` does.

    Returns:
        The files with their checks; ``files`` are their paths.

    Raises:
        UsageError, InputError: a model or an ending that cannot be exported.
        OutputError: a file exists, and ``force`` is not set.
    """
    if path is not None:
        options = {**options, "output": path}
    outcome = run("export", _references([model]), options)
    return Exports(outcome.document, outcome.files)


@_documented("push")
def push(model: ModelLike, repo: str, **options: Unpack[PushArguments]) -> Push:
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
    outcome = run("push", [*_files([model]), f"hf:{repo}"], options)
    return Push(outcome.document)


def available(kind: str | None = None, pattern: str = "") -> Document:
    """List what there is to choose from, what other packages add included.

    Args:
        kind: ``scores``, ``metrics``, ``methods``, ``criteria``, ``suites``, ``corruptions``, ``recipes`` or
            ``models``; None for these kinds themselves.
        pattern: a part of the names, or a pattern with ``*`` and ``?``.

    Returns:
        The ``entries``: the name of each, what it is and what it needs.

    Raises:
        UsageError: there is no such kind, or nothing fits.
    """
    words = [word for word in (kind, pattern) if word]
    return Document(run("list", words, {}).document)


def function_of_verb(verb: str) -> Callable[..., Document]:
    """Return the function of a verb that has none above: it takes models and options, and returns the document."""

    @_documented(verb)
    def function(*models: ModelLike, **options: Any) -> Document:
        outcome = run(verb, _references(models), options)
        return Document(outcome.document, outcome.files)

    function.__name__ = function_of(verb)
    function.__doc__ = f"{VERBS[verb].summary}.\n{function.__doc__}"
    return function
