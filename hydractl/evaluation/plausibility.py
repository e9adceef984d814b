"""Implausible data and results of an evaluation: each function returns warnings, which its caller gives to the log."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hydractl.data.base import Dataset, orientation_warnings
from hydractl.data.overlap import GivenSet, trained_on_warning
from hydractl.data.plausibility import repetition_warnings, sample_warnings
from hydractl.data.pseudo_ood import PseudoOod
from hydractl.data.text import report_cut
from hydractl.evaluation.fitted import Fit
from hydractl.evaluation.fitting import unused_sets
from hydractl.evaluation.options import EvalOptions
from hydractl.evaluation.providers.interface import LogitsProvider
from hydractl.evaluation.providers.running import RunningModel
from hydractl.evaluation.sets import (
    CORRUPTION,
    OOD_VAL,
    VAL,
    EvalSet,
    check_apart,
    of_role,
    option_of,
    warnings_of_seen,
)
from hydractl.files.training_history import kept_accuracies
from hydractl.log import Log
from hydractl.metrics.conformal import SetCounts
from hydractl.metrics.ood_scores import OF_UNSIGNED
from hydractl.metrics.plausibility import (
    ExpectedAccuracy,
    accuracy_warning,
    full_sets_warning,
    nll_warning,
)
from hydractl.metrics.samples import Samples
from hydractl.model.source import Source, warnings_of_opening


def warnings_before(models: Sequence[LogitsProvider], sets: Sequence[EvalSet]) -> list[str]:
    """Return the warnings about class names and data sets that can be found before anything runs.

    Args:
        models: the models of all rows.
        sets: all data sets of the command.
    """
    sources: list[Source] = []
    for model in models:
        if isinstance(model, RunningModel):
            sources += model.argument.sources
    warnings = warnings_of_opening(sources)

    for dataset in _read_as_they_are(sets):
        warnings += sample_warnings(dataset, in_passing=True)
    return warnings


def _read_as_they_are(sets: Sequence[EvalSet]) -> list[Dataset]:
    """Return the samples of all sets that are not made of the samples of another set."""
    datasets = []
    for eval_set in sets:
        is_made_of_others = eval_set.role == CORRUPTION or isinstance(eval_set.dataset, PseudoOod)
        if eval_set.dataset is not None and not is_made_of_others:
            datasets.append(eval_set.dataset)
    return datasets


def warnings_of_samples(models: Sequence[LogitsProvider], sets: Sequence[EvalSet], options: EvalOptions) -> list[str]:
    """Return the warnings about samples that occur again and again, or that a model may know.

    Samples that were not read yet are read for it, so it is best done when the models have run on them.

    Args:
        models: the models of all rows.
        sets: all data sets of the command.
        options: the options of the command.

    Raises:
        InputError: two sets have the same samples, or share most of them.
    """
    warnings = check_apart(sets, options.data.allow_seen)
    warnings += warnings_of_seen(models, sets)
    for dataset in _read_as_they_are(sets):
        warnings += repetition_warnings(dataset)
        warnings += orientation_warnings(dataset)

    # Validation data on which a model was trained.
    chosen_on = _sets_chosen_on(sets, options)
    for model in models:
        for eval_set in chosen_on:
            if eval_set.dataset is None:
                continue
            validation = GivenSet(option_of(eval_set), eval_set.dataset)
            warning = trained_on_warning(model.name, model.seen, validation)
            if warning is not None:
                warnings.append(warning)
    return warnings


def report_cut_texts(models: Sequence[LogitsProvider], sets: Sequence[EvalSet], log: Log) -> None:
    """Log how many texts of each set are cut, once for all models that cut texts in the same way."""
    ways_reported: list[object] = []  # the ways of preparing texts that were reported
    for model in models:
        if not isinstance(model, RunningModel) or model.reads != "text":
            continue
        source = model.argument.sources[0]
        preprocess = source.description.preprocess
        if preprocess in ways_reported:
            continue
        ways_reported.append(preprocess)
        for eval_set in sets:
            assert eval_set.dataset is not None  # a model that runs needs --test
            report_cut(eval_set.dataset, source.family.collate(preprocess), log)


def _sets_chosen_on(sets: Sequence[EvalSet], options: EvalOptions) -> list[EvalSet]:
    """Return the validation sets on which something is chosen."""
    fits_on_validation = options.fit.needs_val or options.fit.needs_ood_val
    if options.keep_logits and not fits_on_validation:  # validation sets only go into the predictions file
        return []
    unused_names = [dataset.name for dataset in unused_sets(sets, options)]
    validation_sets = of_role(sets, VAL) + of_role(sets, OOD_VAL)
    return [dataset for dataset in validation_sets if dataset.name not in unused_names]


def warnings_of_row(
    model: LogitsProvider,
    inside: Samples,
    fitted: Fit,
    counts: SetCounts | None,
    sets: Sequence[EvalSet],
    *,
    advises_temperature: bool,
) -> list[str]:
    """Return the warnings about the results of one row.

    Args:
        model: the model of the row.
        inside: its predictions on the ID test data.
        fitted: everything that was fitted for it, with its predictions on the validation data.
        counts: the counts of its prediction sets; None if there are none.
        sets: the test sets, the ID set first.
        advises_temperature: whether to advise a temperature where the NLL is implausible.
    """
    # The name of the data says which is meant where the command is a step of a study, and --test its validation data.
    id_set = sets[0]
    id_option = id_set.option_and_spec()
    warnings: list[str | None] = []  # None for a check that found nothing

    # The accuracy on the ID test data should be close to the one that the training recorded.
    training_accuracy = _recorded_accuracy(model)
    expected_on_val = training_accuracy
    if inside.labels is not None:
        warnings.append(_id_warning(model, inside, id_option, training_accuracy, advises_temperature))
        test_accuracy = inside.mean("correct")
        expected_on_val = ExpectedAccuracy(test_accuracy, samples=len(inside), where=f"that on {id_option}")

    # The accuracy on the validation data should be close to that on the test data, or without labels of the test data
    # to the one that the training recorded.
    warnings += _warnings_of_validation(model, fitted, expected_on_val)

    # Prediction sets with nearly all classes say nothing.
    if counts is not None:
        warnings.append(full_sets_warning(counts.fitted, counts.mean_size, model.classes))
    return [f"{model.name}: {warning}" for warning in warnings if warning is not None]


def warnings_of_fit(model: LogitsProvider, fitted: Fit) -> list[str]:
    """Return the warnings about what was fitted for a model that is not measured.

    Args:
        model: the model.
        fitted: everything that was fitted for it, with its predictions on the validation data.
    """
    recorded = _recorded_accuracy(model)
    return [f"{model.name}: {warning}" for warning in _warnings_of_validation(model, fitted, recorded)]


def _warnings_of_validation(model: LogitsProvider, fitted: Fit, expected: ExpectedAccuracy | None) -> list[str]:
    """Return the warnings about the accuracy on the validation data, and about what was fitted to them.

    Args:
        model: the model.
        fitted: everything that was fitted for it, with its predictions on the validation data.
        expected: an accuracy of the model that is known from elsewhere, or None.
    """
    warnings = []
    validation = fitted.validation
    if validation is not None and validation.labels is not None:
        warning = _accuracy_warning(model, validation, expected)
        if warning is not None:
            warnings.append(f"--val: {warning}")
    return [*warnings, *fitted.warnings]


def warning_of_unsuited(model: LogitsProvider, scores: Collection[str], warned_of: set[str]) -> str | None:
    """Return the warning about scores that expect features that are not negative, although some here are.

    Args:
        model: the model of the row, which has run.
        scores: the names of its scores.
        warned_of: the names of scores in earlier warnings, about which there is no other; those of this one are added.
    """
    if model.detector is None:
        return None
    unsuited = [name for name in model.detector.doubtful if name in scores and name not in warned_of]
    if not unsuited:
        return None
    warned_of.update(unsuited)
    listed = " and ".join(unsuited)
    verb = "was" if len(unsuited) == 1 else "were"
    effects = ", ".join(f"{score} {OF_UNSIGNED[score]}" for score in unsuited)
    made_for = f"{listed} {verb} made for features that are not negative, as after a ReLU"
    return f"{model.name}: {made_for}, and some here are: {effects}"


def _id_warning(
    model: LogitsProvider,
    inside: Samples,
    option: str,
    recorded: ExpectedAccuracy | None,
    advises_temperature: bool,
) -> str | None:
    """Return the warning about the accuracy or the NLL on the ID test data; None if both are plausible.

    If both are implausible, only the accuracy is reported, because a wrong accuracy implies wrong probabilities.

    Args:
        model: the model of the row.
        inside: its predictions on the ID test data, with labels.
        option: the option that named the data, and the data, for the sentence.
        recorded: the accuracy that the training recorded, or None.
        advises_temperature: whether to advise a temperature where the NLL is implausible.
    """
    assert inside.labels is not None and inside.label_log_probs is not None
    warning = _accuracy_warning(model, inside, recorded)
    if warning is not None:
        return f"{option}: {warning}"
    warning = nll_warning(inside.label_log_probs, model.classes)
    if warning is None:
        return None
    if not advises_temperature:
        return f"{option}: {warning}"
    return f"{option}: {warning}: fit a temperature with --temperature fit --val SPEC"


def _accuracy_warning(model: LogitsProvider, samples: Samples, expected: ExpectedAccuracy | None) -> str | None:
    """Return the warning about the accuracy on samples with labels, or about the labels; None if there is none."""
    assert samples.labels is not None
    return accuracy_warning(
        samples.predicted, samples.labels, model.classes, model.labels, expected, samples.confidence
    )


def _recorded_accuracy(model: LogitsProvider) -> ExpectedAccuracy | None:
    """Return the lowest accuracy that the trainings of the members recorded; None if none recorded one."""
    accuracies_and_samples = kept_accuracies(model.training)
    if not accuracies_and_samples:
        return None
    accuracy, samples = min(accuracies_and_samples)
    return ExpectedAccuracy(accuracy, samples or None)
