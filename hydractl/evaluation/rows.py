"""Finds the rows of an evaluation from the MODEL arguments, and checks that they can do what the options ask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydractl.errors import InputError, UsageError
from hydractl.evaluation.calibrated import chosen_by, is_calibrated_by
from hydractl.evaluation.options import EvalOptions, FitOptions
from hydractl.evaluation.predictions.reading import Predictions, holds_predictions, read_predictions
from hydractl.evaluation.providers.interface import LogitsProvider as Model
from hydractl.evaluation.providers.running import RunningModel
from hydractl.evaluation.sets import TRAIN, EvalSet, only, open_sets
from hydractl.expressions.models import ModelRef
from hydractl.files.calibrate_answer import CalibrateAnswer
from hydractl.files.fingerprints import checked, merged
from hydractl.log import Log
from hydractl.metrics.ood_scores import (
    HEDGE,
    OF_LAYERS,
    OF_ZERO_SHOT,
    ON_FEATURES,
    needs_training_data,
    on_features,
    says_nothing,
)
from hydractl.model.layers import layers_may_not_fit
from hydractl.model.loading import check_names_differ, find_models, resolve_device, with_class_names
from hydractl.model.source import ModelOptions


def check_writable(models: Sequence[Model]) -> None:
    """Raise an error if a row is a predictions file, whose logits need not be written again.

    Raises:
        UsageError: for the first such row.
    """
    for model in models:
        if isinstance(model, Predictions):
            raise UsageError(f"{model.name} is a predictions file already", hint="leave --predictions out")


def check_scores(models: Sequence[Model], sets: Sequence[EvalSet], options: EvalOptions) -> None:
    """Raise an error if a row cannot have the OOD scores on features that the options ask for.

    Args:
        models: the rows.
        sets: all data sets of the command.
        options: the options of the command.

    Raises:
        UsageError: if a score does not suit a model, or training data or words are missing.
        InputError: if a predictions file does not have a score, or the training data have no labels.
    """
    training_data = only(sets, TRAIN)
    for model in models:
        for score in on_features(row_scores(model, options)):
            if not isinstance(model, Predictions):
                _check_computed_score(score, model, training_data, options)
            elif score not in model.on_features:
                hint = f"write it again: eval --ood-score {score} --train SPEC --predictions F.st"
                raise InputError(f"the predictions of {model.name} hold no scores by {score}", hint=hint)


def _check_computed_score(score: str, model: Model, training_data: EvalSet | None, fit: FitOptions) -> None:
    """Raise an error if an OOD score on features cannot be computed for a model that runs.

    Args:
        score: the name of the score.
        model: the row of the model.
        training_data: the data of ``--train``; None if the option is not given.
        fit: the options of fitting, of which the words that name no class matter.

    Raises:
        UsageError: if the score does not suit the model, or training data or words are missing.
        InputError: if the score needs labels, and the training data have none.
    """
    # Scores that do not suit the model. Passes of MC dropout return only logits.
    if model.mc_dropout is not None:
        raise UsageError(f"--ood-score {score} is not for --mc-dropout", hint="use a score on logits: mi, msp, ...")
    if score in OF_ZERO_SHOT and not model.zero_shot:
        hint = "for a classifier use vim, mahalanobis, ..."
        raise UsageError(f"--ood-score {score} is of class texts, and {model.name} is not zero-shot", hint=hint)

    # Missing words or training data. A score that the checkpoint stores needs neither.
    is_stored = score in model.on_features
    if _lacks_words(score, fit) and not is_stored:
        hint = "a text file of words that name no class, one a line: the nouns of a dictionary, for instance"
        raise UsageError(f"--ood-score {score} needs --negative-words FILE", hint=hint)
    if training_data is None:
        if needs_training_data(score) and not is_stored:
            raise UsageError(f"--ood-score {score} needs --train SPEC, training data of {model.name}")
        return

    # Missing labels. The hint names scores that need none.
    if training_data.labels is None and ON_FEATURES[score] == "labels":
        scores_for_any_model = [name for name in ON_FEATURES if name not in OF_ZERO_SHOT]
        scores_without_labels = [name for name in scores_for_any_model if ON_FEATURES[name] != "labels"]
        raise InputError(
            f"--train {training_data.spec} has no labels, which {score} needs",
            hint=f"--ood-score {', '.join(scores_without_labels)}",
        )


def _lacks_words(score: str, fit: FitOptions) -> bool:
    """Return whether a score needs words that name no class, and the options give none."""
    return ON_FEATURES[score] == "words" and fit.negative_words is None


def row_scores(model: Model, options: EvalOptions) -> list[str]:
    """Return the names of a model's OOD scores; the first is that of the main OOD metrics and of the threshold.

    * no ``--ood-score``: the score that the model's file holds, else the default;
    * scores by name: these, even if one is constant for the model;
    * ``all``: all scores but those that are constant for the model or that it cannot have.

    Args:
        model: the model of the row.
        options: the options of the command.
    """
    asked_for = list(dict.fromkeys(options.scores))
    if not asked_for:
        return [model.stored.score]
    if not options.all_scores:
        return asked_for

    # Scores on features are possible only if the model's file stores them ...
    impossible_scores = [score for score in ON_FEATURES if score not in model.on_features]
    # ... or if the model runs, without MC dropout, and there are training data: then all that suit it.
    if isinstance(model, RunningModel) and model.mc_dropout is None and options.train is not None:
        unsuited = [HEDGE]
        if layers_may_not_fit(model.argument.sources):
            unsuited += OF_LAYERS
        unsuited += [score for score in ON_FEATURES if _lacks_words(score, options)]
        impossible_scores = [score for score in unsuited if score not in model.on_features]
        if not model.zero_shot:
            impossible_scores += OF_ZERO_SHOT
    return [name for name in asked_for if name not in impossible_scores and not says_nothing(name, model.members)]


# --- the rows of eval -------------------------------------------------------------------------------------------------


def open_rows_and_sets(
    models: Sequence[ModelRef], opening: ModelOptions, options: EvalOptions, log: Log
) -> tuple[list[Model], list[EvalSet]]:
    """Return the rows and the data sets of a command, after every check that can be made before any work.

    The arguments, and the errors, are those of :func:`find_rows` and :func:`open_sets`.
    """
    resolve_device(options.device)
    rows = find_rows(models, opening, options, log)
    sets = open_sets(options, rows, log)
    check_scores(rows, sets, options)
    for row in rows:
        row.check_sets(sets)
    return rows, sets


def find_rows(models: Sequence[ModelRef], opening: ModelOptions, options: EvalOptions, log: Log) -> list[Model]:
    """Return one row for each MODEL argument, in their order; only headers of files are read.

    Args:
        models: the MODEL arguments.
        opening: the options for opening models.
        options: the options of the command.
        log: receives messages.

    Raises:
        UsageError: if two rows have the same name, there are no test data, or a model does not allow an option.
        InputError: if a file is missing or wrong.
    """
    rows = _open_rows(models, opening, options, log)
    check_names_differ([row.name for row in rows])

    # What `calibrate` chose for a model takes the place of what the model's file holds. It is for the rows of the same
    # model; if some of them also have the name in the answer, for these only.
    for path in options.calibration:
        answer = CalibrateAnswer.read(path)
        of_the_model = [row for row in rows if is_calibrated_by(row, answer)]
        if not of_the_model:
            hint = "give the files, class names and prompts that it was chosen for, or leave it out"
            raise InputError(f"--calibration {path} is of another model, {answer.model.name}", hint=hint)
        of_that_name = [row for row in of_the_model if row.name == answer.model.name]
        for row in of_that_name or of_the_model:
            chosen = chosen_by(answer, path)
            if chosen.conformal is None and chosen.calibration == row.stored.calibration:
                # Prediction sets depend on the probabilities alone, which stay the same.
                chosen = replace(chosen, conformal=row.stored.conformal)
            row.stored = chosen
            row.seen = merged(row.seen, checked(answer.seen, path))
    return rows


def _open_rows(models: Sequence[ModelRef], opening: ModelOptions, options: EvalOptions, log: Log) -> list[Model]:
    """Return one row for each MODEL argument, in their order; the arguments are those of :func:`find_rows`."""
    # Open the arguments that are predictions files, and collect the others, which are models that run.
    rows: dict[int, Model] = {}  # by the place of the argument
    models_that_run: dict[int, ModelRef] = {}
    for place, model in enumerate(models):
        name, members = model.split()
        path = next((member.text for member in members if holds_predictions(member.text)), None)
        if path is None:
            models_that_run[place] = model
            continue
        if len(members) > 1:
            hint = "give the models of all members; --predictions F.st keeps what the ensemble predicts"
            raise UsageError(f"{model.text}: {path} is a predictions file, and no member of an ensemble", hint=hint)
        if options.dropout is not None:
            raise UsageError(
                f"--mc-dropout runs a model, and {path} is a predictions file",
                hint="give the model; or leave --mc-dropout out, where the file was made with it",
            )
        rows[place] = read_predictions(path)
        rows[place].name = name or Path(path).stem

    # Open the models that run, all at once, and put each at the place of its argument.
    if models_that_run:
        if options.tests and options.test is None:
            raise UsageError("eval needs --test", hint="hydractl eval --help")
        arguments = find_models(list(models_that_run.values()), opening)
        # A zero-shot model without class names takes those of the data.
        data = options.test or options.val or options.train
        if data is not None:
            arguments = with_class_names(arguments, data, options.limit)
        for place, argument in zip(models_that_run, arguments, strict=True):
            rows[place] = RunningModel(argument, options, log)
            extras = [source.description.extra for source in argument.sources]
            if options.dropout is not None:
                _warn_of_left_out(argument.name, extras, options, log, "without dropout")
            elif len(extras) > 1:
                _warn_of_left_out(argument.name, extras, options, log, "of one model alone")
    return [rows[place] for place in range(len(models))]


def _warn_of_left_out(
    name: str, documents: Sequence[Mapping[str, Any]], fit: FitOptions, log: Log, chosen_for: str
) -> None:
    """Warn if a model's files hold a calibration, threshold or OOD score that this command does not use.

    There is no warning of an entry that an option replaces anyway: ``--temperature`` replaces the calibration and the
    threshold, ``--threshold`` the threshold, ``--ood-score`` the score.

    Args:
        name: the name of the row.
        documents: the descriptions of all its files.
        fit: the options of the command.
        log: receives the warning.
        chosen_for: the predictions for which the entries were chosen, as words that follow "the predictions", e.g.
            ``without dropout``.
    """
    # By entry, whether no option of the command replaces it.
    is_expected = {
        "calibration": fit.temperature is None,
        "threshold": not fit.threshold and fit.temperature is None,
        "ood_score": not fit.scores,
    }
    unused_keys = []
    for key, user_expects_it in is_expected.items():
        is_stored = any(document.get(key) for document in documents)
        if user_expects_it and is_stored:
            unused_keys.append(key)
    if unused_keys:
        keys = " and ".join(unused_keys)
        log.warn(f"{name}: the stored {keys} is left out: it was chosen for the predictions {chosen_for}")
