"""Finds implausible data and results of an evaluation; each doubt is a sentence for its warnings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hydractl.data.overlap import GivenSet, trained_on_warning
from hydractl.data.plausibility import sample_warnings
from hydractl.data.pseudo_ood import PseudoOod
from hydractl.evaluation.fitting import RowFit, unused_sets
from hydractl.evaluation.options import EvalOptions
from hydractl.evaluation.providers.interface import LogitsProvider
from hydractl.evaluation.providers.running import RunningModel
from hydractl.evaluation.sets import CORRUPTION, OOD_VAL, VAL, EvalSet, of_role, option_of
from hydractl.files.training_history import kept_accuracies
from hydractl.metrics.conformal import Conformal
from hydractl.metrics.ood_scores import OF_UNSIGNED
from hydractl.metrics.plausibility import (
    ExpectedAccuracy,
    accuracy_doubt,
    full_sets_doubt,
    nll_doubt,
)
from hydractl.metrics.samples import Samples


class Counted(Protocol):
    """The counts of prediction sets, see :class:`hydractl.metrics.conformal.SetCounts`."""

    fitted: Conformal

    @property
    def mean_size(self) -> float | None:
        """The mean number of classes in a set; None if there are no samples."""


def eval_data_doubts(models: Sequence[LogitsProvider], sets: Sequence[EvalSet], options: EvalOptions) -> list[str]:
    """Return the doubts about class names and data sets that can be found before anything runs.

    Args:
        models: the models of all rows.
        sets: all data sets of the command.
        options: the options of the command.
    """
    doubts = _doubts_of_opening(models)

    # Implausible samples. Sets made from the samples of another set are skipped, because that set is checked.
    for dataset in sets:
        is_made_of_others = dataset.role == CORRUPTION or isinstance(dataset.dataset, PseudoOod)
        if dataset.dataset is not None and not is_made_of_others:
            doubts += sample_warnings(dataset.dataset)

    # Validation data on which a model was trained.
    chosen_on = _sets_chosen_on(sets, options)
    for model in models:
        for dataset in chosen_on:
            if dataset.dataset is None:
                continue
            validation = GivenSet(option_of(dataset), dataset.dataset)
            doubt = trained_on_warning(model.name, model.seen, validation)
            if doubt is not None:
                doubts.append(doubt)
    return doubts


def _doubts_of_opening(models: Sequence[LogitsProvider]) -> list[str]:
    """Return the sentences about what is odd about models as they were opened, without repetitions."""
    sentences: list[str] = []
    for model in models:
        if not isinstance(model, RunningModel):
            continue
        for source in model.argument.sources:
            for sentence in (source.renamed, source.outdated):
                if sentence is not None and sentence not in sentences:
                    sentences.append(sentence)
    return sentences


def _sets_chosen_on(sets: Sequence[EvalSet], options: EvalOptions) -> list[EvalSet]:
    """Return the validation sets on which something is chosen."""
    fits_on_validation = options.fit.needs_val or options.fit.needs_ood_val
    if options.keep_logits and not fits_on_validation:  # validation sets only go into the predictions file
        return []
    unused_names = [dataset.name for dataset in unused_sets(sets, options)]
    validation_sets = of_role(sets, VAL) + of_role(sets, OOD_VAL)
    return [dataset for dataset in validation_sets if dataset.name not in unused_names]


def row_doubts(
    model: LogitsProvider,
    inside: Samples,
    fitted: RowFit,
    counts: Counted | None,
    sets: Sequence[EvalSet],
    *,
    advises_temperature: bool,
) -> list[str]:
    """Return the doubts about the results of one row.

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
    doubts: list[str | None] = []  # None for a check that found nothing

    # The accuracy on the ID test data should be close to the one that the training recorded.
    training_accuracy = _recorded_accuracy(model)
    expected_on_val = training_accuracy
    if inside.labels is not None:
        doubts.append(_id_doubt(model, inside, id_option, training_accuracy, advises_temperature))
        test_accuracy = inside.mean("correct")
        expected_on_val = ExpectedAccuracy(test_accuracy, samples=len(inside), where=f"that on {id_option}")

    # The accuracy on the validation data should be close to that on the test data, or without labels of the test data
    # to the one that the training recorded.
    doubts += _fit_doubts(model, fitted, expected_on_val)

    # Prediction sets with nearly all classes say nothing.
    if counts is not None:
        doubts.append(full_sets_doubt(counts.fitted, counts.mean_size, model.classes))
    return [f"{model.name}: {doubt}" for doubt in doubts if doubt is not None]


def calibration_doubts(model: LogitsProvider, fitted: RowFit) -> list[str]:
    """Return the doubts about what was fitted for a model that is not measured.

    Args:
        model: the model.
        fitted: everything that was fitted for it, with its predictions on the validation data.
    """
    recorded = _recorded_accuracy(model)
    return [f"{model.name}: {doubt}" for doubt in _fit_doubts(model, fitted, recorded)]


def _fit_doubts(model: LogitsProvider, fitted: RowFit, expected: ExpectedAccuracy | None) -> list[str]:
    """Return the doubts about the accuracy on the validation data, and about what was fitted to them.

    Args:
        model: the model.
        fitted: everything that was fitted for it, with its predictions on the validation data.
        expected: an accuracy of the model that is known from elsewhere, or None.
    """
    doubts = []
    validation = fitted.validation
    if validation is not None and validation.labels is not None:
        doubt = accuracy_doubt(validation.predicted, validation.labels, model.classes, model.labels, expected)
        if doubt is not None:
            doubts.append(f"--val: {doubt}")
    return [*doubts, *fitted.doubts]


def signed_features(name: str, scores: Sequence[str]) -> str:
    """Return the warning about OOD scores that expect non-negative features, although some features are negative.

    Args:
        name: the name of the row.
        scores: the names of the scores.
    """
    listed = " and ".join(scores)
    verb = "was" if len(scores) == 1 else "were"
    effects = ", ".join(f"{score} {OF_UNSIGNED[score]}" for score in scores)
    made_for = f"{listed} {verb} made for features that are not negative, as after a ReLU"
    return f"{name}: {made_for}, and some here are: {effects}"


def _id_doubt(
    model: LogitsProvider,
    inside: Samples,
    option: str,
    recorded: ExpectedAccuracy | None,
    advises_temperature: bool,
) -> str | None:
    """Return the doubt about the accuracy or the NLL on the ID test data; None if both are plausible.

    If both are implausible, only the accuracy is reported, because a wrong accuracy implies wrong probabilities.

    Args:
        model: the model of the row.
        inside: its predictions on the ID test data, with labels.
        option: the option that named the data, and the data, for the sentence.
        recorded: the accuracy that the training recorded, or None.
        advises_temperature: whether to advise a temperature where the NLL is implausible.
    """
    assert inside.labels is not None and inside.label_log_probs is not None
    doubt = accuracy_doubt(inside.predicted, inside.labels, model.classes, model.labels, recorded)
    if doubt is not None:
        return f"{option}: {doubt}"
    doubt = nll_doubt(inside.label_log_probs, model.classes)
    if doubt is None:
        return None
    if not advises_temperature:
        return f"{option}: {doubt}"
    return f"{option}: {doubt}: fit a temperature with --temperature fit --val SPEC"


def _recorded_accuracy(model: LogitsProvider) -> ExpectedAccuracy | None:
    """Return the lowest accuracy that the trainings of the members recorded; None if none recorded one."""
    accuracies_and_samples = kept_accuracies(model.training)
    if not accuracies_and_samples:
        return None
    accuracy, samples = min(accuracies_and_samples)
    return ExpectedAccuracy(accuracy, samples or None)
