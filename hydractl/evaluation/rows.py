"""The rows of an evaluation, found from the MODEL arguments, and what can be asked of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydractl.data import open_data
from hydractl.errors import InputError, UsageError
from hydractl.evaluation.options import DataOptions, EvalOptions, FitOptions, RowScores
from hydractl.evaluation.predictions.concatenated import Concatenated
from hydractl.evaluation.predictions.reading import is_predictions, read_predictions
from hydractl.evaluation.providers.interface import LogitsProvider as Model
from hydractl.evaluation.providers.predicted import PredictedModel
from hydractl.evaluation.providers.running import RunningModel
from hydractl.evaluation.providers.stored_fit import warn_of_left_out
from hydractl.evaluation.sets import TRAIN, EvalSet, of_role
from hydractl.files.header import read_header
from hydractl.log import Log
from hydractl.metrics.ood_scores import OF_CLASSIFIER, OF_ZERO_SHOT, ON_FEATURES, needs_training_data
from hydractl.model.loading import ModelArgument, find_models, with_class_names
from hydractl.model.source import ModelOptions, split_model


def check_writable(models: Sequence[Model]) -> None:
    """Refuse rows whose logits cannot be written, as they are those of a predictions file.

    Raises:
        UsageError: the logits of predictions are to be written again.
    """
    for model in models:
        if isinstance(model, PredictedModel):
            raise UsageError(f"{model.name} is a predictions file already", hint="leave --predictions out")


def check_scores(models: Sequence[Model], sets: Sequence[EvalSet], options: EvalOptions) -> None:
    """Refuse OOD scores on features that a row cannot have.

    Raises:
        UsageError: there are no training data, or the row is one of MC dropout.
        InputError: its predictions file does not hold them, or the training data have no labels.
    """
    data = next(iter(of_role(sets, TRAIN)), None)
    for model in models:
        for name in row_scores(model, options).on_features:
            if isinstance(model, PredictedModel):
                if name not in model.on_features:
                    hint = f"write it again: eval --ood-score {name} --train SPEC --predictions F.st"
                    raise InputError(f"the predictions of {model.name} hold no scores by {name}", hint=hint)
            elif model.mc_dropout is not None:
                raise UsageError(
                    f"--ood-score {name} is not for --mc-dropout", hint="use a score on logits: mi, msp, ..."
                )
            elif model.cascade is not None:
                hint = "use a score on logits, or run all members: F.st?cascade=0"
                raise UsageError(f"--ood-score {name} is of all members, and {model.name} is a cascade", hint=hint)
            elif options.fit.probe == "knn" and name in OF_CLASSIFIER:
                raise UsageError(f"--ood-score {name} is of a linear classifier", hint="--probe linear")
            elif name in OF_ZERO_SHOT and not model.zero_shot:
                hint = "for a classifier use vim, mahalanobis, ..."
                raise UsageError(f"--ood-score {name} is of class texts, and {model.name} is not zero-shot", hint=hint)
            elif _lacks_words(name, options) and name not in model.on_features:
                hint = "a text file of words that name no class, one a line: the nouns of a dictionary, for instance"
                raise UsageError(f"--ood-score {name} needs --negative-words FILE", hint=hint)
            elif data is None and needs_training_data(name) and name not in model.on_features:
                raise UsageError(f"--ood-score {name} needs --train SPEC, training data of {model.name}")
            elif data is not None and data.labels is None and ON_FEATURES[name] == "labels":
                of_any = [score for score in ON_FEATURES if score not in OF_ZERO_SHOT]
                free = ", ".join(score for score in of_any if ON_FEATURES[score] != "labels")
                raise InputError(f"--train {data.spec} has no labels, which {name} needs", hint=f"--ood-score {free}")


def _lacks_words(name: str, options: EvalOptions) -> bool:
    """Whether a score is one of words that are not given."""
    return ON_FEATURES[name] == "words" and options.fit.negative_words is None


def row_scores(model: Model, options: EvalOptions) -> RowScores:
    """The OOD scores of a row."""
    known: Sequence[str] = model.on_features
    runs = isinstance(model, RunningModel) and model.mc_dropout is None
    if runs and options.data.train is not None:  # then scores on features can be fitted
        barred: list[str] = []
        if options.fit.probe == "knn":
            barred += OF_CLASSIFIER
        if not model.zero_shot:
            barred += OF_ZERO_SHOT
        barred += [name for name in ON_FEATURES if _lacks_words(name, options) and name not in known]
        known = [name for name in ON_FEATURES if name not in barred]
    return options.fit.scores.of(model.name, model.members, model.stored.score, known)


def find_rows(texts: Sequence[str], opening: ModelOptions, options: EvalOptions, log: Log) -> list[Model]:
    """The rows of the answer, found and checked by their headers.

    Raises:
        UsageError: two rows of one name, or options that a model does not take.
        InputError: what is wrong with the files.
    """
    predicted: dict[int, Model] = {}
    others: list[str] = []
    for place, text in enumerate(texts):
        name, refs = split_model(text)
        if _are_predictions(text, refs):
            if options.run.dropout is not None:
                raise UsageError(
                    f"--mc-dropout runs a model, and {refs[0]} is a predictions file",
                    hint="give the model; or leave --mc-dropout out, where the file was made with it",
                )
            predicted[place] = _predicted(name, refs, options.fit, log)
        else:
            others.append(text)
    data = options.data.test
    if others and data is None:
        for text in others:
            _, refs = split_model(text)
            for ref in refs:
                if ref.endswith((".st", ".safetensors")) and Path(ref).is_file():
                    _check_file(ref)  # predictions that are damaged say so
        raise UsageError("eval needs --test", hint="hydractl eval --help")
    arguments: list[ModelArgument] = []
    probed = None
    if others and options.fit.probe is not None:
        arguments = find_models(others, replace(opening, labels=None, bodies=True))
        probed = _classes_of_training_data(arguments[0], options.data, opening.labels)
    elif others and data is not None:
        arguments = with_class_names(find_models(others, opening), data, options.data.limit, "--test")
    running = (RunningModel(argument, options.run, options.fit, log, probed) for argument in arguments)
    rows: list[Model] = []
    for place in range(len(texts)):
        if place in predicted:
            rows.append(predicted[place])
        else:
            rows.append(next(running))
    names = [row.name for row in rows]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"MODEL names used twice: {', '.join(twice)}", hint="name them apart: NAME=MODEL")
    for path in options.reuse:
        _reuse(PredictedModel(path, read_predictions(path)), rows)
    return rows


def find_row_to_calibrate(text: str, opening: ModelOptions, options: EvalOptions, log: Log) -> RunningModel:
    """Return the row of the one checkpoint that is to be calibrated.

    Raises:
        UsageError: it is no single checkpoint.
        InputError: what is wrong with the file.
    """
    _, refs = split_model(text)
    if len(refs) > 1:
        raise UsageError(f"calibrate writes a checkpoint, and {text} is none", hint="fuse the members first")
    if is_predictions(refs[0]):
        raise UsageError(f"calibrate writes a checkpoint, and {text} is a predictions file", hint="give the model")
    (argument,) = find_models([text], opening)
    if not argument.sources:
        raise UsageError(f"calibrate writes a checkpoint, and {text} is an exported file", hint="give the model")
    if options.data.val is not None:
        (argument,) = with_class_names([argument], options.data.val, options.data.limit, "--val")
    elif options.data.train is not None:
        (argument,) = with_class_names([argument], options.data.train, options.data.limit, "--train")
    row = RunningModel(argument, options.run, options.fit, log, None)
    for path in options.reuse:
        _reuse(PredictedModel(path, read_predictions(path)), [row])
    return row


def _reuse(file: PredictedModel, rows: Sequence[Model]) -> None:
    """Give predictions to the rows that they are of."""
    same_model: list[RunningModel] = []
    for row in rows:
        if not isinstance(row, RunningModel):
            continue
        if row.sha256 == file.sha256 and row.cascade == file.cascade:
            same_model.append(row)
    if not same_model:
        raise InputError(f"--reuse {file.name} has predictions of another model", hint="leave it out")
    for row in same_model:
        row.reused.append(file)


def _classes_of_training_data(
    model: ModelArgument, options: DataOptions, labels: Sequence[str] | None
) -> tuple[list[str] | None, int]:
    """Names, if any, and number of the classes of a probe: those of ``--labels``, else of the training data."""
    assert options.train is not None  # the settings hold it
    reads = {model.name: model.sources[0].description.reads}
    how: dict[str, Any] = {"option": "--train", "limit": options.limit, "seed": options.seed, "reads": reads}
    data = open_data(options.train, labels=labels, need_labels=True, **how)
    assert data.labels is not None
    names = data.label_names
    if names is not None:
        count = len(names)
    else:
        count = int(data.labels.max()) + 1
    if count < 2:
        raise InputError(f"{data.where} has one class", hint="a probe tells classes apart: give more of them")
    return names, count


def _are_predictions(text: str, refs: Sequence[str]) -> bool:
    """Whether a MODEL is read from predictions, which is refused where only some of its members are."""
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
    warn_of_left_out(name, [part.model.to_json() for part in parts], fit, log, "of one model alone")
    return row
