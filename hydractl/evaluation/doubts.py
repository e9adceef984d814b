"""What is odd about the data and the results of an evaluation: one sentence each, for its warnings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hydractl.data.overlap import GivenSet, trained_on_doubt
from hydractl.data.plausibility import sample_doubts
from hydractl.data.pseudo_ood import PseudoOod
from hydractl.evaluation.fitting import RowFit, unused_sets
from hydractl.evaluation.options import EvalOptions
from hydractl.evaluation.providers.interface import LogitsProvider
from hydractl.evaluation.providers.running import RunningModel
from hydractl.evaluation.sets import CORRUPTION, OOD_VAL, VAL, EvalSet, of_role, option_of
from hydractl.files.training_history import kept_accuracies
from hydractl.metrics.conformal import Conformal
from hydractl.metrics.plausibility import ExpectedAccuracy, accuracy_doubt, full_sets_doubt, nll_doubt
from hydractl.metrics.samples import Samples


class Counted(Protocol):
    """The counts of prediction sets (:class:`hydractl.metrics.conformal.SetCounts`)."""

    fitted: Conformal

    @property
    def mean_size(self) -> float | None:
        """Classes in a set; None without samples."""


def eval_data_doubts(models: Sequence[LogitsProvider], sets: Sequence[EvalSet], options: EvalOptions) -> list[str]:
    """Return a sentence on all that is odd about names of classes and the data sets, before anything runs."""
    doubts = _renamed_classes(models)

    # The samples of each set; those that are made of another set's samples are looked at there.
    for dataset in sets:
        is_made_of_others = dataset.role == CORRUPTION or isinstance(dataset.dataset, PseudoOod)
        if dataset.dataset is not None and not is_made_of_others:
            doubts += sample_doubts(dataset.dataset)

    # Validation data that a model was trained on.
    chosen_on = _sets_chosen_on(sets, options)
    for model in models:
        for dataset in chosen_on:
            if dataset.dataset is None:
                continue
            validation = GivenSet(option_of(dataset), dataset.dataset)
            doubt = trained_on_doubt(model.name, model.seen, validation)
            if doubt is not None:
                doubts.append(doubt)
    return doubts


def _renamed_classes(models: Sequence[LogitsProvider]) -> list[str]:
    """Return the sentences on names of classes that were changed when the models were opened, each once."""
    sentences: list[str] = []
    for model in models:
        if not isinstance(model, RunningModel):
            continue
        for source in model.argument.sources:
            if source.renamed is not None and source.renamed not in sentences:
                sentences.append(source.renamed)
    return sentences


def _sets_chosen_on(sets: Sequence[EvalSet], options: EvalOptions) -> list[EvalSet]:
    """Return the validation sets that something is chosen on."""
    fits_on_validation = options.fit.needs_val or options.fit.needs_ood_val
    if options.keep_logits and not fits_on_validation:  # they are only kept in the predictions file
        return []
    unused = [dataset.name for dataset in unused_sets(sets, options)]
    validation_sets = of_role(sets, VAL) + of_role(sets, OOD_VAL)
    return [dataset for dataset in validation_sets if dataset.name not in unused]


def row_doubts(
    model: LogitsProvider, inside: Samples, fitted: RowFit, counts: Counted | None, sets: Sequence[EvalSet]
) -> list[str]:
    """Return a sentence on all that is odd about what was measured of one row.

    Args:
        model: the row.
        inside: its predictions on the ID test data.
        fitted: what was fitted for it, and the predictions on the validation data.
        counts: the counts of its prediction sets; None if there are none.
        sets: the data sets, the ID test data first.
    """
    id_option = option_of(sets[0])
    doubts: list[str | None] = []  # None for what was looked at and is not odd

    # The accuracy on test data is expected to be that of the training, and the accuracy on validation data that on
    # test data, or that of the training where the test data have no labels.
    of_training = _recorded_accuracy(model)
    expected_on_val = of_training
    if inside.labels is not None:
        doubts.append(_id_doubt(model, inside, id_option, of_training))
        accuracy = inside.mean("correct")
        expected_on_val = ExpectedAccuracy(accuracy, samples=len(inside), where=f"that on {id_option}")
    validation = fitted.validation
    if validation is not None and validation.labels is not None:
        doubt = accuracy_doubt(validation.predicted, validation.labels, model.classes, model.labels, expected_on_val)
        if doubt is not None:
            doubts.append(f"--val: {doubt}")

    if counts is not None:
        doubts.append(full_sets_doubt(counts.fitted, counts.mean_size, model.classes))
    return [f"{model.name}: {doubt}" for doubt in doubts if doubt is not None]


def signed_features(name: str, scores: Sequence[str]) -> str:
    """Return the warning that scores made for features that are not negative were taken of others.

    Args:
        name: of the row.
        scores: their names.
    """
    listed = " and ".join(scores)
    verb = "was" if len(scores) == 1 else "were"
    return (
        f"{name}: {listed} {verb} made for features that are not negative, as after a ReLU, and some here are: what is "
        "clipped, left out or scaled is not what was meant"
    )


def _id_doubt(model: LogitsProvider, inside: Samples, option: str, recorded: ExpectedAccuracy | None) -> str | None:
    """Return a sentence on what is odd about the ID test data, or None.

    Only the accuracy is told where both are odd: where it is wrong, so are the probabilities.
    """
    assert inside.labels is not None and inside.label_log_probs is not None
    doubt = accuracy_doubt(inside.predicted, inside.labels, model.classes, model.labels, recorded)
    if doubt is not None:
        return f"{option}: {doubt}"
    doubt = nll_doubt(inside.label_log_probs, model.classes)
    if doubt is None:
        return None
    return f"{option}: {doubt}: fit a temperature with --temperature fit --val SPEC"


def _recorded_accuracy(model: LogitsProvider) -> ExpectedAccuracy | None:
    """Return the lowest accuracy that a training of one of the members recorded; None where none did."""
    if model.probe is not None:  # the classifier that was trained is not the one that is measured
        return None
    accuracies_and_samples = kept_accuracies(model.training)
    if not accuracies_and_samples:
        return None
    accuracy, samples = min(accuracies_and_samples)
    return ExpectedAccuracy(accuracy, samples or None)
