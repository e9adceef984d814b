"""From the MODEL arguments of a command to the rows of its answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hydractl.errors import InputError, UsageError
from hydractl.evaluate.models import Model, PredictedModel, RunningModel, warn_of_left_out
from hydractl.evaluate.options import EvalOptions, FitOptions
from hydractl.evaluate.predictions.concatenated import Concatenated
from hydractl.evaluate.predictions.reading import is_predictions, read_predictions
from hydractl.files.header import read_header
from hydractl.log import Log
from hydractl.model.loading import ModelArgument, find_models, with_classes
from hydractl.model.source import ModelOptions, split_model


def check_writable(models: Sequence[Model], keep_logits: bool, calibrated: bool) -> None:
    """Refuse files that no row, or none of this kind, can be written to.

    Raises:
        UsageError: the logits of predictions are to be written again, or ``--calibrated`` has no checkpoint to write.
    """
    if keep_logits:
        for one in models:
            if isinstance(one, PredictedModel):
                raise UsageError(f"{one.name} is a predictions file already", hint="leave --predictions out")
    if calibrated:
        only = models[0]
        if not isinstance(only, RunningModel) or len(only.argument.sources) > 1:
            hint = "fuse the members first, or leave --calibrated out" if isinstance(only, RunningModel) else None
            raise UsageError(f"--calibrated writes a checkpoint, and {only.name} is none", hint=hint)


def find_rows(texts: Sequence[str], opening: ModelOptions, options: EvalOptions, log: Log) -> list[Model]:
    """The rows of the answer, found and checked by their headers.

    Args:
        texts: the MODEL arguments.
        opening: what the command says about them.
        options: of the evaluation.
        log: hears of what they read when they run.

    Raises:
        UsageError: two rows of one name, or options that a model does not take.
        InputError: what is wrong with the files.
    """
    predicted: dict[int, Model] = {}
    others: list[str] = []
    for place, text in enumerate(texts):
        name, refs = split_model(text)
        if _are_predictions(text, refs):
            if options.run.passes is not None:
                raise UsageError(
                    f"--mc-dropout runs a model, and {refs[0]} is a predictions file",
                    hint="give the model; or leave --mc-dropout out, where the file was made with it",
                )
            predicted[place] = _predicted(name, refs, options.fit, log)
        else:
            others.append(text)
    data = options.data.data
    if others and data is None:
        for ref in (ref for text in others for ref in split_model(text)[1]):
            if ref.endswith((".st", ".safetensors")) and Path(ref).is_file():
                _check_file(ref)  # predictions that are damaged say so
        raise UsageError("eval needs --data", hint="hydractl eval --help")
    arguments: list[ModelArgument] = []
    if others and data is not None:
        arguments = with_classes(find_models(others, opening), data, options.data.limit)
    running = (RunningModel(argument, options.run, options.fit, log) for argument in arguments)
    rows = [predicted[place] if place in predicted else next(running) for place in range(len(texts))]
    names = [one.name for one in rows]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"MODEL names used twice: {', '.join(twice)}", hint="name them apart: NAME=MODEL")
    return rows


def _are_predictions(text: str, refs: Sequence[str]) -> bool:
    """Whether a MODEL is read from predictions.

    Raises:
        UsageError: some of its members are, and others run.
    """
    predictions = [ref for ref in refs if is_predictions(ref)]
    others = [ref for ref in refs if ref not in predictions]
    if not predictions or not others:
        return not others
    for ref in others:
        if ref.endswith((".st", ".safetensors")):
            _check_file(ref)
    raise UsageError(
        f"{text}: {predictions[0]} is a predictions file and {others[0]} is a model",
        hint="give the models of all members, or predictions of all of them (eval --predictions F.st)",
    )


def _check_file(ref: str) -> None:
    """Say what is wrong with a file that is damaged or not there, instead of calling it a model."""
    if not Path(ref).exists():
        raise InputError(f"no such file: {ref}")
    if Path(ref).is_file():
        read_header(ref)


def _predicted(name: str | None, refs: Sequence[str], fit: FitOptions, log: Log) -> PredictedModel:
    """The row of one predictions file, or of several as one ensemble."""
    parts = [read_predictions(ref) for ref in refs]
    name = name or "+".join(Path(ref).stem for ref in refs)
    if len(parts) == 1:
        return PredictedModel(name, parts[0])
    row = PredictedModel(name, Concatenated(parts))
    warn_of_left_out(name, [part.model for part in parts], fit, log, "of one model alone")
    return row
