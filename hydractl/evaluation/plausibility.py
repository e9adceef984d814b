"""What is odd about the data and the results of an evaluation: functions that find it, for ``Log.warn_all``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hydractl.data.base import Dataset, one_class_warning, orientation_warnings, report_skipped
from hydractl.data.overlap import GivenSet, trained_on_warning
from hydractl.data.plausibility import repetition_warnings, sample_warnings
from hydractl.data.pseudo_ood import PseudoOod
from hydractl.data.text import cut_warning
from hydractl.evaluation.fitting import Fit
from hydractl.evaluation.leaks import check_apart, warnings_of_seen
from hydractl.evaluation.options import EvalOptions
from hydractl.evaluation.providers.interface import LogitsProvider
from hydractl.evaluation.providers.running import RunningModel
from hydractl.evaluation.sets import CORRUPTION, ID, OOD_VAL, TRAIN, VAL, EvalSet, option_of
from hydractl.files.eval_answer import ConformalSets
from hydractl.files.training_history import kept_accuracies
from hydractl.log import Log
from hydractl.metrics.plausibility import (
    ExpectedAccuracy,
    accuracy_warning,
    full_sets_warning,
    nll_warning,
)
from hydractl.metrics.samples import Samples
from hydractl.model.loading import resolve_device, resolve_dtype
from hydractl.model.machine import slow_format
from hydractl.model.source import warnings_of_opening


def findings_before(
    models: Sequence[LogitsProvider], sets: Sequence[EvalSet], options: EvalOptions
) -> Iterator[str | None]:
    """Yield the results of several checks of models and data before anything runs: a warning, or None if all is well.

    They are of what opening the models showed, samples, number formats, texts that are cut, and labels.

    Args:
        models: the models of all rows.
        sets: all data sets of the command.
        options: the options of the command.
    """
    running = [model for model in models if isinstance(model, RunningModel)]
    yield from warnings_of_opening([source for model in running for source in model.argument.sources])
    for dataset in _read_as_they_are(sets):
        yield from sample_warnings(dataset, in_passing=True)
    if running:
        yield slow_format(resolve_dtype(options.dtype), resolve_device(options.device))

    # How many texts of each set are cut, once for all models that cut texts in the same way.
    checked_preprocesses: list[object] = []  # the settings by which texts are prepared
    for model in running:
        source = model.argument.sources[0]
        preprocess = source.description.preprocess
        if model.reads != "text" or preprocess in checked_preprocesses:
            continue
        checked_preprocesses.append(preprocess)
        for eval_set in sets:
            assert eval_set.dataset is not None  # a model that runs needs data
            yield cut_warning(eval_set.dataset, source.family.collate(preprocess))

    # Labels: all are of one class, or the ID test data have none. That is expected where predictions are written
    # (--predictions), as they may be of data without labels.
    for eval_set in sets:
        if eval_set.role in (ID, VAL, TRAIN) and eval_set.dataset is not None:
            yield one_class_warning(eval_set.dataset)
        lacks_labels = eval_set.role == ID and eval_set.labels is None
        if lacks_labels and options.predictions is None:
            warning = f"{eval_set.option_and_spec()} has no labels: accuracy and calibration are not measured"
            hint = getattr(eval_set.dataset, "label_hint", None)
            yield f"{warning} ({hint})" if hint else warning


def _read_as_they_are(sets: Sequence[EvalSet]) -> list[Dataset]:
    """Return the samples of all sets that are not made of the samples of another set."""
    datasets = []
    for eval_set in sets:
        is_made_of_others = eval_set.role == CORRUPTION or isinstance(eval_set.dataset, PseudoOod)
        if eval_set.dataset is not None and not is_made_of_others:
            datasets.append(eval_set.dataset)
    return datasets


def findings_of_samples(models: Sequence[LogitsProvider], sets: Sequence[EvalSet]) -> Iterator[str | None]:
    """Yield the results of several checks of samples: a warning, or None if all is well.

    The checks look for samples that two data sets share, that a model was trained on, that occur again and again, or
    whose images are turned. Samples that were not read yet are read for it, so it is best done when the models have
    run on them.

    Args:
        models: the models of all rows.
        sets: all data sets of the command.

    Raises:
        InputError: two sets have the same samples, or share most of them.
    """
    yield from check_apart(sets)
    yield from warnings_of_seen(models, sets)
    for dataset in _read_as_they_are(sets):
        yield from repetition_warnings(dataset)
        yield from orientation_warnings(dataset)

    # Validation data on which a model was trained.
    for model in models:
        for eval_set in sets:
            if eval_set.role in (VAL, OOD_VAL) and eval_set.dataset is not None:
                validation = GivenSet(option_of(eval_set), eval_set.dataset)
                yield trained_on_warning(model.name, model.seen, validation)


def report_skipped_samples(sets: Sequence[EvalSet], log: Log) -> None:
    """Log which samples could not be read; corrupted sets have the samples of ``--test``, which are among them."""
    for eval_set in sets:
        if eval_set.role != CORRUPTION and eval_set.dataset is not None:
            report_skipped(eval_set.dataset, log)


def warnings_of_row(
    model: LogitsProvider,
    inside: Samples,
    fitted: Fit,
    conformal: ConformalSets | None,
    sets: Sequence[EvalSet],
    *,
    advises_temperature: bool,
) -> Iterator[str]:
    """Yield the warnings about the results of one row, and about what was fitted for it.

    Args:
        model: the model of the row.
        inside: its predictions on the ID test data.
        fitted: everything that was fitted for it, with its predictions on the validation data.
        conformal: the measurements of its prediction sets; None if there are none.
        sets: the test sets, the ID set first.
        advises_temperature: whether to advise a temperature where the NLL is implausible.
    """
    # Messages name option and data, e.g. "--test cifar10/test", as --test of a step of a study has validation data.
    id_option = sets[0].option_and_spec()

    # The accuracy on the ID test data should be close to the one that the training recorded. If it is not, the NLL is
    # not looked at: wrong answers imply wrong probabilities.
    accuracy_on_test = None
    if inside.labels is not None:
        assert inside.label_log_probs is not None
        warning = _accuracy_warning(model, inside, _recorded_accuracy(model))
        if warning is None:
            warning = nll_warning(inside.label_log_probs, model.classes)
            if warning is not None and advises_temperature:
                warning += ": fit a temperature with --temperature fit --val SPEC"
        if warning is not None:
            yield f"{model.name}: {id_option}: {warning}"
        correct = inside.mean("correct")
        accuracy_on_test = ExpectedAccuracy(correct, samples=len(inside), where=f"that on {id_option}")

    # The accuracy on the validation data should be close to that on the test data.
    yield from warnings_of_fit(model, fitted, accuracy_on_test)

    # Prediction sets that all hold every class say nothing.
    if conformal is not None and fitted.conformal is not None:
        warning_of_sets = full_sets_warning(fitted.conformal, conformal.mean_size, model.classes)
        if warning_of_sets is not None:
            yield f"{model.name}: {warning_of_sets}"


def warnings_of_fit(model: LogitsProvider, fitted: Fit, expected: ExpectedAccuracy | None = None) -> Iterator[str]:
    """Yield the warnings about the accuracy on the validation data, and about what was fitted to them.

    Args:
        model: the model.
        fitted: everything that was fitted for it, with its predictions on the validation data.
        expected: the accuracy on test data, which it should be close to; None for the one that the training recorded.
    """
    validation = fitted.validation
    if validation is not None and validation.labels is not None:
        warning = _accuracy_warning(model, validation, expected or _recorded_accuracy(model))
        if warning is not None:
            yield f"{model.name}: --val: {warning}"
    for warning in fitted.warnings:
        yield f"{model.name}: {warning}"


def _accuracy_warning(model: LogitsProvider, samples: Samples, expected: ExpectedAccuracy | None) -> str | None:
    """Return the warning about the accuracy on samples with labels, or about the labels; None if there is none."""
    assert samples.labels is not None
    return accuracy_warning(
        samples.predicted, samples.labels, model.classes, model.labels, expected, samples.confidence
    )


def _recorded_accuracy(model: LogitsProvider) -> ExpectedAccuracy | None:
    """Return the lowest accuracy that the trainings of the members recorded; None if none recorded one."""
    accuracies_and_samples = kept_accuracies(model.record.training)
    if not accuracies_and_samples:
        return None
    accuracy, samples = min(accuracies_and_samples)
    return ExpectedAccuracy(accuracy, samples or None)
