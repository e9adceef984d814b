"""Opens the rows and the data sets of an evaluation, and checks that they fit together and to the options."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from hydractl.data import open_data
from hydractl.data.base import Dataset
from hydractl.data.corrupted import CorruptedImages
from hydractl.data.overlap import left_out_words, without_training_data
from hydractl.data.pseudo_ood import PseudoOod
from hydractl.errors import InputError, UsageError
from hydractl.evaluation.calibrated import is_calibrated_by, kept_conformal
from hydractl.evaluation.options import EvalOptions, FitOptions
from hydractl.evaluation.predictions.reading import Predictions, holds_predictions, read_predictions
from hydractl.evaluation.providers.interface import LogitsProvider as Model
from hydractl.evaluation.providers.running import RunningModel
from hydractl.evaluation.sets import CORRUPTION, ID, OOD, OOD_VAL, TRAIN, VAL, EvalSet, only, option_of
from hydractl.expressions.data_sets import AUTO
from hydractl.expressions.models import ModelRef
from hydractl.files.calibrate_answer import CalibrateAnswer
from hydractl.files.fingerprints import checked, merged
from hydractl.jsonio import Document
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
from hydractl.model.loading import (
    ModelArgument,
    check_names_differ,
    find_models,
    resolve_device,
    with_class_names,
)
from hydractl.model.matching import check_labels_are_classes, label_differences
from hydractl.model.prediction import Chosen
from hydractl.model.source import ModelOptions


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
            # A model that runs computes the score; stored predictions must hold it.
            if not isinstance(model, Predictions):
                _check_computed_score(score, model, training_data, options)
                continue
            if score not in model.on_features:
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
    if model.record.mc_dropout is not None:
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

    # Missing labels. ON_FEATURES says what each score needs. The hint names scores that need no labels.
    needs_labels = ON_FEATURES[score] == "labels"
    if needs_labels and training_data.labels is None:
        others = [name for name, needs in ON_FEATURES.items() if needs != "labels" and name not in OF_ZERO_SHOT]
        raise InputError(
            f"--train {training_data.spec} has no labels, which {score} needs",
            hint=f"--ood-score {', '.join(others)}",
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
    asked_for = list(dict.fromkeys(options.scores))  # each name once; with `all` these are all names
    if not asked_for:
        return [model.stored.score]
    if not options.all_scores:
        return asked_for

    # All scores. Those on features need training data and a model that runs and computes features, or else the model's
    # file must store them (`model.on_features`).
    if not isinstance(model, RunningModel) or model.record.mc_dropout is not None or options.train is None:
        impossible_scores = [score for score in ON_FEATURES if score not in model.on_features]
    else:
        unsuited = [HEDGE]  # a sum of the others, fitted only if it is asked for by name
        if layers_may_not_fit(model.argument.sources):
            unsuited += OF_LAYERS
        unsuited += [score for score in ON_FEATURES if _lacks_words(score, options)]
        impossible_scores = [score for score in unsuited if score not in model.on_features]
        if not model.zero_shot:
            impossible_scores += OF_ZERO_SHOT
    possible = [name for name in asked_for if name not in impossible_scores]
    return [name for name in possible if not says_nothing(name, model.members)]


# --- the rows of eval -------------------------------------------------------------------------------------------------


def open_rows_and_sets(
    models: Sequence[ModelRef], opening: ModelOptions, options: EvalOptions, log: Log
) -> tuple[list[Model], list[EvalSet]]:
    """Return the rows and the data sets of a command, after every check that can be made before any work.

    There is one row for each MODEL argument, in their order. Only headers of files are read.

    Args:
        models: the MODEL arguments.
        opening: the options for opening models.
        options: the options of the command.
        log: receives messages.

    Raises:
        UsageError: two rows have the same name, there are no test data, or a model does not allow an option.
        InputError: a file is missing or wrong, or rows and data sets do not fit together.
    """
    resolve_device(options.device)
    rows = _open_rows(models, opening, options, log)
    check_names_differ([row.name for row in rows])
    for path in options.calibration:
        _take_calibration(path, rows)
    sets = _open_sets(options, rows, log)
    check_scores(rows, sets, options)
    for row in rows:
        row.check_sets(sets)
    return rows, sets


def _take_calibration(path: str, rows: Sequence[Model]) -> None:
    """Replace, in the rows of one model, what the model's file holds by what ``calibrate`` chose; the rows change.

    A row is a model with its options; several rows may be of the same model. If some of these have the name that is in
    the answer of ``calibrate``, only they change.

    Args:
        path: the answer of ``calibrate``.
        rows: all rows.

    Raises:
        InputError: the file is wrong, or of a model that no row has.
    """
    answer = CalibrateAnswer.read(path)
    of_the_model = [row for row in rows if is_calibrated_by(row, answer)]
    if not of_the_model:
        hint = "give the files, class names and prompts that it was chosen for, or leave it out"
        raise InputError(f"--calibration {path} is of another model, {answer.model.name}", hint=hint)
    of_that_name = [row for row in of_the_model if row.name == answer.model.name]
    changed_rows = of_that_name or of_the_model
    chosen = Chosen.of(answer.to_dict(), path)
    for row in changed_rows:
        row.stored = replace(chosen, conformal=kept_conformal(row, chosen))
        # The validation data count as seen by the model.
        row.seen = merged(row.seen, checked(answer.seen, path))


def _open_rows(models: Sequence[ModelRef], opening: ModelOptions, options: EvalOptions, log: Log) -> list[Model]:
    """Return one row for each MODEL argument; the arguments are those of :func:`open_rows_and_sets`."""
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
            if options.dropout is not None or len(argument.sources) > 1:
                _warn_of_left_out(argument, options, log)
    return [rows[place] for place in range(len(models))]


def _warn_of_left_out(model: ModelArgument, options: EvalOptions, log: Log) -> None:
    """Warn if files hold a calibration, threshold or OOD score, which is of one model alone and without dropout.

    There is no warning of an entry that an option replaces anyway: ``--temperature`` replaces the calibration and the
    threshold, ``--threshold`` the threshold, ``--ood-score`` the score.
    """
    # The option that replaces each entry; None or empty if it is not given.
    replaced_by = {
        "calibration": options.temperature,
        "threshold": options.threshold or options.temperature,
        "ood_score": options.scores,
    }
    stored = {key for source in model.sources for key in source.description.extra}
    unused = [key for key, option in replaced_by.items() if key in stored and not option]
    if unused:
        keys = " and ".join(unused)
        log.warn(f"{model.name}: the stored {keys} is left out: it was chosen for one model alone, without dropout")


# --- the data sets of eval --------------------------------------------------------------------------------------------


def _eval_set(name: str, role: str, dataset: Dataset, group: str | None = None) -> EvalSet:
    """Return an opened data set with a name and a role; OOD data get no labels, because their classes are others."""
    return EvalSet(
        name=name,
        role=role,
        group=group,
        ids=dataset.ids,
        labels=None if role in (OOD, OOD_VAL) else dataset.labels,
        spec=dataset.spec,
        dataset=dataset,
    )


def _open_sets(options: EvalOptions, models: Sequence[Model], log: Log) -> list[EvalSet]:
    """Return all data sets of a command, opened: ID test set, OOD test sets, corrupted sets, validation, training data.

    Without ``--test`` all models are predictions files, and the test sets are those in the first file. Validation sets
    that nothing is chosen on are left out, unless predictions are stored. Whether sets share samples is checked later,
    by :mod:`hydractl.evaluation.leaks`.

    Args:
        options: the data options of the command.
        models: the models.
        log: is told of validation samples and sets that are left out.

    Raises:
        UsageError, InputError: if a set cannot be opened or does not fit the models, or most validation samples are
            training data.
    """
    # Two functions that open a SPEC, the description of a data set on the command line: one for data with the models'
    # classes, one for OOD data, whose labels are ignored.
    labels = _class_names(models) or []
    label_map = _label_map(options.label_map)
    reads = {model.name: model.reads for model in models if model.reads is not None}
    open_any = partial(open_data, limit=options.limit, seed=options.seed, reads=reads, on_bad=options.on_bad)
    open_labelled = partial(open_any, labels=labels, label_map=label_map)
    open_outside = partial(open_any, ignore_labels=True)

    # The test sets, and corrupted copies of the ID set.
    sets: list[EvalSet] = []
    if options.test is not None:
        id_data = open_labelled(options.test)
        sets.append(_eval_set("id", ID, id_data))
        for ood_set in options.ood:
            sets.append(_eval_set(ood_set.name, OOD, open_outside(ood_set.spec), ood_set.group))
        for corruption, severity in itertools.product(options.corruptions, options.severities):
            corrupted_data = CorruptedImages(id_data, corruption, severity)
            sets.append(_eval_set(f"{corruption}/{severity}", CORRUPTION, corrupted_data))
    elif options.tests:
        sets += models[0].stored_sets()

    # The validation set is used without samples that are also training data: a score by nearest neighbours would find
    # such a sample itself, at distance 0.
    training = None if options.train is None else open_labelled(options.train)
    validation: Dataset | None = None
    if options.val is not None:
        validation = open_labelled(options.val, need_labels=options.needs_val_labels)
        left_out = 0
        if training is not None:
            validation, left_out = without_training_data(validation, training)
            if left_out:
                log.info(left_out_words(validation, left_out))
        sets.append(replace(_eval_set("val", VAL, validation), left_out=left_out))

    # OOD validation sets; `auto` makes one of the validation samples. Then the training data.
    for ood_set in options.ood_val:
        spec = ood_set.spec
        if spec.text == AUTO and validation is not None:
            outside: Dataset = PseudoOod(validation, AUTO, options.seed, spec.option)
        else:
            outside = open_outside(spec)
        sets.append(_eval_set(ood_set.name, OOD_VAL, outside))
    if training is not None:
        sets.append(_eval_set("train", TRAIN, training))

    is_run = {VAL: options.runs_val, OOD_VAL: options.runs_ood_val}
    sets_to_run = []
    for dataset in sets:
        check_labels_are_classes(dataset, models[0])
        if is_run.get(dataset.role, True):
            sets_to_run.append(dataset)
        else:
            log.info(f"{option_of(dataset)} is not run: nothing is chosen on it")
    return sets_to_run


def _label_map(document: Document | None) -> Mapping[str, str]:
    """Read the map from class names in the data to class names of the models; empty if there is no file.

    Raises:
        InputError: if the file is not a JSON object from text to text.
    """
    if document is None:
        return {}
    names = document.content
    is_map = isinstance(names, dict) and all(isinstance(value, str) for value in names.values())
    if not is_map:
        raise InputError(f"{document} is not a JSON object from name to name")
    return names


def _class_names(models: Sequence[Model]) -> Sequence[str] | None:
    """Return the class names of the first model that has names; None if no model has.

    All models are measured on the same labels, so they must have the same classes.

    Raises:
        InputError: if the models have different names or numbers of classes; all differences are listed.
    """
    named_models = [model for model in models if model.labels is not None]
    class_names = named_models[0].labels if named_models else None

    # Every model must have the number of classes of the first model, and these names or no names.
    classes = models[0].classes
    problems = []
    for model in models:
        if model.classes != classes:
            problems.append(f"{model.name}: {model.classes} classes, not {classes}")
            continue
        for difference in label_differences(class_names, model.labels):
            problems.append(f"{model.name}: {difference}")
    if problems:
        raise InputError("these models do not have the same classes", problems=problems)
    return class_names
