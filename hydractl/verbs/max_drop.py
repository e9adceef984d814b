"""``prune --max-drop``: how many heads go, decided by the accuracy that is left.

Budgets are tried from zero on, and the first one that loses too much accuracy ends the trial: the budget is the one
before it. So the answer does not depend on the length of the ranking, and no budget is taken because of one lucky step
behind many bad ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch

from hydractl.data import open_data
from hydractl.data.base import Dataset, report_classes
from hydractl.errors import InputError
from hydractl.files.fingerprints import Entry, entry, merged
from hydractl.heads.mask import HeadMask
from hydractl.log import Log
from hydractl.model.loading import build_model
from hydractl.model.matching import check_labels_are_classes, named_by_data
from hydractl.model.source import Source, pruned
from hydractl.settings.pruning import PruneSettings
from hydractl.verbs.score import drawn_samples, model_batches


@dataclass(frozen=True)
class HeadChoice:
    """The heads that a model keeps.

    Attributes:
        mask: which they are.
        details: what the provenance says of the choice, by key.
        seen: the samples that model and choice depend on.
    """

    mask: HeadMask
    details: Mapping[str, object]
    seen: list[Entry]


def steps_within(correct: Iterable[int], samples: int, max_drop: float) -> tuple[int, list[int]]:
    """Count the steps before the first one that loses too much accuracy.

    Args:
        correct: how many samples are classified right before the first step and after each step; it is read only up to
            the step that loses too much.
        samples: how many samples there are.
        max_drop: the accuracy that may be lost, as a share of the samples; taken as the decimal number that it prints
            as, so that rounding decides nothing.

    Returns:
        The number of steps, and the counts that were read: before the first step, after each step, and after the one
        that lost too much.
    """
    most_lost = Fraction(str(max_drop)) * samples
    counts_read: list[int] = []
    for count in correct:
        counts_read.append(count)
        lost = counts_read[0] - count
        if lost > most_lost:
            return len(counts_read) - 2, counts_read
    return len(counts_read) - 1, counts_read


def removals_of_circuit(document: Mapping[str, Any], path: str, max_drop: float) -> tuple[int, dict[str, Any]]:
    """Count the removals of a circuit that stay within the drop, by what its own search counted.

    Args:
        document: the circuit: its ``base`` and each entry of ``removed`` say how many of ``n_id`` samples are
            ``correct`` there.
        path: of its file, for errors.
        max_drop: the accuracy that may be lost, as a share of the samples.

    Returns:
        The number of removals, and what the provenance says of it.

    Raises:
        InputError: for a circuit without counts, or one whose steps are no sequence.
    """
    if document.get("algorithm", "greedy") != "greedy":
        raise InputError(f"{path} is a circuit of headmap, which ranks no heads", hint="leave --max-drop out")
    base = document.get("base")
    samples = None
    if isinstance(base, Mapping):
        samples = base.get("n_id")
    steps = [base, *document["removed"]]
    correct = _correct_after_steps(steps, samples)
    if correct is None or type(samples) is not int:
        raise InputError(f"{path} does not say how many samples each step gets right", hint="give --val, to count them")
    count, counts_read = steps_within(correct, samples, max_drop)
    return count, _provenance(max_drop, "circuit", samples, counts_read)


def _correct_after_steps(steps: Sequence[Any], samples: Any) -> list[int] | None:
    """Return how many samples the model gets right after each step of a circuit.

    Args:
        steps: as in the file, which may be broken.
        samples: the number of samples, which has to be the same for all steps.

    Returns:
        None where a step does not say, or says it of another number of samples.
    """
    correct = []
    for step in steps:
        if not isinstance(step, Mapping):
            return None
        if type(step.get("correct")) is not int:
            return None
        if step.get("n_id") != samples:
            return None
        correct.append(step["correct"])
    return correct


def choose_within(
    source: Source, settings: PruneSettings, budgets: Sequence[int], choose: Callable[[int, Log], HeadChoice], log: Log
) -> HeadChoice:
    """Return the choice of the largest budget up to which every one stays within ``--max-drop``.

    Accuracy is measured on ``--val`` or on the calibration samples.

    Args:
        source: the whole model.
        settings: of ``prune``.
        budgets: in order, the first of which removes nothing.
        choose: returns the choice for a budget.
        log: hears of the first two choices, one without and one with removals, and of every accuracy.
    """
    dataset, indices = _samples_to_measure_on(source, settings, log)
    samples = len(indices)
    source = named_by_data(source, settings.val or settings.data or "", settings.limit)
    choices_tried: list[HeadChoice] = []

    def try_budgets() -> Iterable[int]:
        """Yield how many samples are right at each budget, and add the choice for it to ``choices_tried``.

        Budgets are tried while they are asked for, so that none is measured after the first that loses too much.
        """
        for budget in budgets:
            log_of_choice = log
            if len(choices_tried) >= 2:
                log_of_choice = Log()  # says nothing: the first two choices have said it all
            choice = choose(budget, log_of_choice)
            choices_tried.append(choice)
            correct = _count_correct(source, choice.mask, dataset, indices, settings)
            accuracy = correct / samples
            log.info(f"{budget} removed: accuracy {accuracy:.4f} of {samples} samples")
            yield correct

    assert settings.max_drop is not None
    steps, counts_read = steps_within(try_budgets(), samples, settings.max_drop)
    choice = choices_tried[steps]
    measured_on = "data"
    if settings.val:
        measured_on = "val"
    measured = _provenance(settings.max_drop, measured_on, samples, counts_read)
    measured_samples = entry("prune", "val", dataset, indices)
    return HeadChoice(
        mask=choice.mask,
        details={**choice.details, **measured},
        seen=merged(choice.seen, [measured_samples]),
    )


def _provenance(max_drop: float, measured_on: str, samples: int, correct: Sequence[int]) -> dict[str, object]:
    """Return what the provenance says of the accuracy that decided.

    Args:
        max_drop: the accuracy that might be lost.
        measured_on: ``val``, ``data``, or ``circuit`` where the search of a circuit counted.
        samples: how many there are.
        correct: how many of them are right before the first step and after each.
    """
    measured = {"on": measured_on, "n": samples, "correct": list(correct)}
    return {"max_drop": max_drop, "measured": measured}


def _samples_to_measure_on(source: Source, settings: PruneSettings, log: Log) -> tuple[Dataset, list[int]]:
    """Open the labelled set that accuracy is measured on; return it, and the indices of the samples that are used."""
    spec = settings.val or settings.data
    assert spec is not None  # the settings need one of them
    source = named_by_data(source, spec, settings.limit)
    dataset = open_data(
        spec,
        option="--val" if settings.val else "--data",
        limit=settings.limit,
        seed=settings.seed,
        labels=source.description.labels or [],
        need_labels=True,
        reads={source.name: source.description.reads},
    )
    check_labels_are_classes(dataset, source)
    if settings.val:
        report_classes(dataset, log)
        return dataset, list(range(len(dataset)))
    return dataset, drawn_samples(dataset, settings)


def _count_correct(
    source: Source, mask: HeadMask, dataset: Dataset, indices: Sequence[int], settings: PruneSettings
) -> int:
    """Return how many samples, of those at ``indices``, the model pruned by a mask classifies right."""
    description, tensors = pruned(source, mask, "sliced")
    pruned_source = replace(source, description=description, tensors=tensors)
    model = build_model(pruned_source, settings.device, settings.dtype)
    correct = 0
    with torch.inference_mode():
        for inputs, batch in model_batches(model, dataset, indices, settings):
            logits = model.member_logits(inputs)[0]  # [batch, classes]
            predicted = logits.argmax(dim=-1).cpu()  # [batch]
            assert batch.labels is not None
            is_correct = predicted == batch.labels
            correct += int(is_correct.sum())
    return correct
