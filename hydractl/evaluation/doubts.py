"""What is odd about the data and the results of an evaluation: one sentence each, for its warnings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hydractl.data.overlap import GivenSet, trained_on_doubt
from hydractl.data.plausibility import sample_doubts
from hydractl.data.pseudo_ood import PseudoOod
from hydractl.evaluation.fitting import Fitted, unused_sets
from hydractl.evaluation.models import Model, RunningModel
from hydractl.evaluation.options import EvalOptions
from hydractl.evaluation.sets import CORRUPTION, VAL, VAL_OOD, EvalSet, of_role, option_of
from hydractl.files.training_history import kept_accuracies
from hydractl.metrics.conformal import Conformal
from hydractl.metrics.plausibility import Expected, accuracy_doubt, full_sets_doubt, nll_doubt
from hydractl.metrics.samples import Samples


class Counted(Protocol):
    """The counts of prediction sets (:class:`hydractl.metrics.conformal.SetCounts`)."""

    fitted: Conformal

    @property
    def mean_size(self) -> float | None:
        """Classes in a set; None without samples."""


def data_doubts(models: Sequence[Model], sets: Sequence[EvalSet], options: EvalOptions) -> list[str]:
    """Return what is odd about names of classes and the data sets, before anything runs."""
    running = [model for model in models if isinstance(model, RunningModel)]
    renamed = [source.renamed for model in running for source in model.argument.sources if source.renamed is not None]
    doubts: list[str] = list(dict.fromkeys(renamed))
    for one in sets:
        is_made = one.role == CORRUPTION or isinstance(one.dataset, PseudoOod)  # of samples that are looked at
        if one.dataset is not None and not is_made:
            doubts += sample_doubts(one.dataset)
    idle = [one.name for one in unused_sets(sets, options)]
    chosen_by = [one for role in (VAL, VAL_OOD) for one in of_role(sets, role) if one.name not in idle]
    if options.keep_logits and not (options.fit.needs_val or options.fit.needs_val_ood):
        chosen_by = []  # only kept
    for model in models:
        for one in chosen_by:
            if one.dataset is None:
                continue
            doubt = trained_on_doubt(model.name, model.seen, GivenSet(option_of(one), one.dataset))
            doubts += [] if doubt is None else [doubt]
    return doubts


def row_doubts(
    model: Model, inside: Samples, fitted: Fitted, counts: Counted | None, sets: Sequence[EvalSet]
) -> list[str]:
    """Return what is odd about what was measured of one row.

    Args:
        model: the row.
        inside: its predictions on the ID test data.
        fitted: what was fitted for it, and the predictions on the validation data.
        counts: of its prediction sets, where there are some.
        sets: the data sets, the ID test data first.
    """
    recorded = _recorded(model)
    doubts: list[str | None] = []
    expected = recorded
    if inside.labels is not None:
        doubts.append(_id_doubt(model, inside, option_of(sets[0]), recorded))
        expected = Expected(inside.mean("correct"), len(inside), f"that on {option_of(sets[0])}")
    validation = fitted.validation
    if validation is not None and validation.labels is not None:
        doubt = accuracy_doubt(validation.predicted, validation.labels, model.classes, model.labels, expected)
        doubts.append(None if doubt is None else f"--val: {doubt}")
    if counts is not None:
        doubts.append(full_sets_doubt(counts.fitted, counts.mean_size, model.classes))
    return [f"{model.name}: {doubt}" for doubt in doubts if doubt is not None]


def _id_doubt(model: Model, inside: Samples, option: str, recorded: Expected | None) -> str | None:
    """The accuracy first: where it is odd, so are the probabilities."""
    assert inside.labels is not None and inside.label_log_probs is not None
    doubt = accuracy_doubt(inside.predicted, inside.labels, model.classes, model.labels, recorded)
    if doubt is not None:
        return f"{option}: {doubt}"
    doubt = nll_doubt(inside.label_log_probs, model.classes)
    if doubt is None:
        return None
    return f"{option}: {doubt}: fit a temperature with --temperature fit --val SPEC"


def _recorded(model: Model) -> Expected | None:
    """The lowest accuracy that a training of one of the members recorded; a probe is no classifier that was trained."""
    known = [] if model.probe is not None else kept_accuracies(model.training)
    if not known:
        return None
    accuracy, samples = min(known)
    return Expected(accuracy, samples or None)
