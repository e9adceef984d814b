"""The rows of an evaluation, found from the MODEL arguments, and what can be asked of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

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
    training_data = next(iter(of_role(sets, TRAIN)), None)
    for model in models:
        for score in row_scores(model, options).on_features:
            if isinstance(model, PredictedModel):
                _check_stored_score(score, model)
            else:
                _check_computed_score(score, model, training_data, options.fit)


def _check_stored_score(score: str, model: PredictedModel) -> None:
    """Refuse an OOD score on features that a predictions file does not hold.

    Raises:
        InputError: naming the score and the row.
    """
    if score not in model.on_features:
        hint = f"write it again: eval --ood-score {score} --train SPEC --predictions F.st"
        raise InputError(f"the predictions of {model.name} hold no scores by {score}", hint=hint)


def _check_computed_score(score: str, model: Model, training_data: EvalSet | None, fit: FitOptions) -> None:
    """Refuse an OOD score on features that cannot be computed for a model that runs.

    Args:
        score: the name of the score.
        model: the row of the model.
        training_data: the set of ``--train``; None without it.
        fit: the options of what is fitted: the probe, and the words that name no class.

    Raises:
        UsageError: the score does not suit the model, or there are no training data or no words.
        InputError: the training data have no labels, which the score needs.
    """
    if model.mc_dropout is not None:  # its passes give logits alone
        raise UsageError(f"--ood-score {score} is not for --mc-dropout", hint="use a score on logits: mi, msp, ...")
    if model.cascade is not None:  # where a sample stops at the first member, the others compute no features
        hint = "use a score on logits, or run all members: F.st?cascade=0"
        raise UsageError(f"--ood-score {score} is of all members, and {model.name} is a cascade", hint=hint)
    if fit.probe == "knn" and score in OF_CLASSIFIER:
        raise UsageError(f"--ood-score {score} is of a linear classifier", hint="--probe linear")
    if score in OF_ZERO_SHOT and not model.zero_shot:
        hint = "for a classifier use vim, mahalanobis, ..."
        raise UsageError(f"--ood-score {score} is of class texts, and {model.name} is not zero-shot", hint=hint)

    is_stored = score in model.on_features
    if _lacks_words(score, fit) and not is_stored:
        hint = "a text file of words that name no class, one a line: the nouns of a dictionary, for instance"
        raise UsageError(f"--ood-score {score} needs --negative-words FILE", hint=hint)
    if training_data is None:
        if needs_training_data(score) and not is_stored:
            raise UsageError(f"--ood-score {score} needs --train SPEC, training data of {model.name}")
        return
    if training_data.labels is None and ON_FEATURES[score] == "labels":
        of_any_model = [name for name in ON_FEATURES if name not in OF_ZERO_SHOT]
        others = [name for name in of_any_model if ON_FEATURES[name] != "labels"]
        raise InputError(
            f"--train {training_data.spec} has no labels, which {score} needs",
            hint=f"--ood-score {', '.join(others)}",
        )


def _lacks_words(score: str, fit: FitOptions) -> bool:
    """Return whether a score is one of words, and the options name none."""
    return ON_FEATURES[score] == "words" and fit.negative_words is None


def row_scores(model: Model, options: EvalOptions) -> RowScores:
    """Return the OOD scores of a row: those that the options ask for, as far as its model can have them."""
    on_features: Sequence[str] = model.on_features
    has_features = isinstance(model, RunningModel) and model.mc_dropout is None
    if has_features and options.data.train is not None:  # then scores on features can be fitted
        barred: list[str] = []
        if options.fit.probe == "knn":
            barred += OF_CLASSIFIER
        if not model.zero_shot:
            barred += OF_ZERO_SHOT
        barred += [score for score in ON_FEATURES if _lacks_words(score, options.fit) and score not in on_features]
        on_features = [score for score in ON_FEATURES if score not in barred]
    return options.fit.scores.scores_of_row(model.name, model.members, model.stored.score, on_features)


# --- the rows of eval -------------------------------------------------------------------------------------------------


def find_rows(texts: Sequence[str], opening: ModelOptions, options: EvalOptions, log: Log) -> list[Model]:
    """Return the rows of the answer in the order of the MODEL arguments, checked by the headers of their files.

    Args:
        texts: the MODEL arguments, ``[NAME=]REF[+REF...]`` each.
        opening: how models are opened.
        options: the options of the command.
        log: receives messages.

    Raises:
        UsageError: two rows of one name, or options that a model does not take.
        InputError: what is wrong with the files.
    """
    # Predictions are read; all others are models that run.
    predicted: dict[int, PredictedModel] = {}  # by the position of the argument
    texts_of_models: list[str] = []
    for position, text in enumerate(texts):
        name, refs = split_model(text)
        if not _are_predictions(text, refs):
            texts_of_models.append(text)
            continue
        if options.run.dropout is not None:
            raise UsageError(
                f"--mc-dropout runs a model, and {refs[0]} is a predictions file",
                hint="give the model; or leave --mc-dropout out, where the file was made with it",
            )
        predicted[position] = _row_of_predictions(name, refs, options.fit, log)
    running = _running_models(texts_of_models, opening, options, log)

    # Both in the order of the arguments.
    models_in_order = iter(running)
    rows: list[Model] = []
    for position in range(len(texts)):
        if position in predicted:
            rows.append(predicted[position])
        else:
            rows.append(next(models_in_order))

    names = [row.name for row in rows]
    repeated_names = sorted({name for name in names if names.count(name) > 1})
    if repeated_names:
        raise UsageError(f"MODEL names used twice: {', '.join(repeated_names)}", hint="name them apart: NAME=MODEL")
    for path in options.reuse:
        _reuse_predictions(PredictedModel(path, read_predictions(path)), rows)
    return rows


def _running_models(texts: Sequence[str], opening: ModelOptions, options: EvalOptions, log: Log) -> list[RunningModel]:
    """Return the rows of MODEL arguments that run, in their order.

    Raises:
        UsageError: there are no test data, or options that a model does not take.
        InputError: what is wrong with the files.
    """
    if not texts:
        return []
    if options.data.test is None:
        _check_headers(texts)  # only predictions need no test data: a damaged file of them says what is wrong
        raise UsageError("eval needs --test", hint="hydractl eval --help")

    probed = None
    if options.fit.probe is not None:
        # A probe needs no classifier of the model, and its classes are those of the training data.
        arguments = find_models(texts, replace(opening, labels=None, bodies=True))
        probed = _classes_of_training_data(arguments[0], options.data, opening.labels)
    else:
        opened = find_models(texts, opening)
        arguments = with_class_names(opened, options.data.test, options.data.limit, "--test")
    return [RunningModel(argument, options.run, options.fit, log, probed) for argument in arguments]


def _check_headers(texts: Sequence[str]) -> None:
    """Refuse MODEL arguments of which a safetensors file is damaged.

    Raises:
        InputError: what is wrong with its header.
    """
    for text in texts:
        _, refs = split_model(text)
        for ref in refs:
            if _is_safetensors(ref) and Path(ref).is_file():
                _check_file(ref)


def find_row_to_calibrate(text: str, opening: ModelOptions, options: EvalOptions, log: Log) -> RunningModel:
    """Return the row of the one checkpoint that is to be calibrated.

    Raises:
        UsageError: it is no single checkpoint.
        InputError: what is wrong with the file.
    """
    # Only a checkpoint can be written with what is fitted for it.
    _, refs = split_model(text)
    if len(refs) > 1:
        raise UsageError(f"calibrate writes a checkpoint, and {text} is none", hint="fuse the members first")
    if is_predictions(refs[0]):
        raise UsageError(f"calibrate writes a checkpoint, and {text} is a predictions file", hint="give the model")
    (argument,) = find_models([text], opening)
    if not argument.sources:
        raise UsageError(f"calibrate writes a checkpoint, and {text} is an exported file", hint="give the model")

    # A zero-shot model without names takes those of the data that it is calibrated on.
    if options.data.val is not None:
        (argument,) = with_class_names([argument], options.data.val, options.data.limit, "--val")
    elif options.data.train is not None:
        (argument,) = with_class_names([argument], options.data.train, options.data.limit, "--train")
    row = RunningModel(argument, options.run, options.fit, log, None)
    for path in options.reuse:
        _reuse_predictions(PredictedModel(path, read_predictions(path)), [row])
    return row


def _reuse_predictions(file: PredictedModel, rows: Sequence[Model]) -> None:
    """Give predictions to the rows of the model that they are of.

    Raises:
        InputError: no row is of that model.
    """
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
    """Return the names, if any, and the number of the classes of a probe.

    They are those of ``--labels``, else those of the training data.

    Args:
        model: the first model, which tells whether images or texts are read.
        options: the data sets of the command.
        labels: the names of ``--labels``; None without.

    Raises:
        InputError: the training data cannot be opened, or have one class only.
    """
    assert options.train is not None  # the settings require --train with a probe
    reads = {model.name: model.sources[0].description.reads}
    data = open_data(
        options.train,
        labels=labels,
        need_labels=True,
        option="--train",
        limit=options.limit,
        seed=options.seed,
        reads=reads,
    )
    assert data.labels is not None  # opened with need_labels
    names = data.label_names
    if names is not None:
        count = len(names)
    else:
        count = int(data.labels.max()) + 1
    if count < 2:
        raise InputError(f"{data.where} has one class", hint="a probe tells classes apart: give more of them")
    return names, count


def _are_predictions(text: str, refs: Sequence[str]) -> bool:
    """Return whether all members of a MODEL are predictions files; False where none is.

    Raises:
        InputError: some are predictions, and another member is a damaged file.
        UsageError: some are predictions, and others are models.
    """
    predictions = [ref for ref in refs if is_predictions(ref)]
    others = [ref for ref in refs if ref not in predictions]
    if not others:
        return True
    if not predictions:
        return False
    for ref in others:
        if _is_safetensors(ref):
            _check_file(ref)
    raise UsageError(
        f"{text}: {predictions[0]} is a predictions file and {others[0]} is a model",
        hint="give the models of all members, or predictions of all of them (eval --predictions F.st)",
    )


def _is_safetensors(ref: str) -> bool:
    """Return whether a reference has the name of a file in safetensors format."""
    return ref.endswith((".st", ".safetensors"))


def _check_file(ref: str) -> None:
    """Check that a file is there and has a sound header, so that a damaged one is not called a model.

    Raises:
        InputError: it is damaged, or not there.
    """
    if not Path(ref).exists():
        raise InputError(f"no such file: {ref}")
    if Path(ref).is_file():
        read_header(ref)


def _row_of_predictions(name: str | None, refs: Sequence[str], fit: FitOptions, log: Log) -> PredictedModel:
    """Return the row of one predictions file, or of several as one ensemble; without a name it has those of its files.

    Of an ensemble, what each file stores of a calibration is left out, with a warning.
    """
    parts = [read_predictions(ref) for ref in refs]
    stems = [Path(ref).stem for ref in refs]
    row_name = name or "+".join(stems)
    if len(parts) == 1:
        return PredictedModel(row_name, parts[0])

    row = PredictedModel(row_name, Concatenated(parts))
    models = [part.model.to_json() for part in parts]
    warn_of_left_out(row_name, models, fit, log, "of one model alone")
    return row
