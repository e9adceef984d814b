"""``prune --max-drop``: decide by the accuracy that is left how many heads are removed.

Budgets are tried in order, beginning with zero. The first budget that loses too much accuracy ends the search, and the
budget before it is taken. So the answer does not depend on the length of the ranking, and a single lucky step after
many bad ones is never taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import torch

from hydractl.data.base import Dataset, orientation_warnings
from hydractl.errors import InputError, NonFiniteError
from hydractl.files.fingerprints import Entry, entry, merged
from hydractl.files.results import Record
from hydractl.heads.mask import HeadMask
from hydractl.jsonio import Document
from hydractl.log import Log
from hydractl.model.loading import build_model
from hydractl.model.matching import known
from hydractl.model.source import Source, pruned
from hydractl.verbs.choosing import Measuring, Selection
from hydractl.verbs.score import model_batches, open_samples


@dataclass(frozen=True)
class HeadChoice:
    """The heads that a model keeps.

    Attributes:
        mask: the kept heads.
        details: what the provenance says about the choice, by key.
        seen: the samples that the model and the choice depend on.
    """

    mask: HeadMask
    details: Mapping[str, object]
    seen: list[Entry]


def steps_within(correct: Iterable[int], samples: int, max_drop: float) -> tuple[int, list[int]]:
    """Return how many steps may be taken before the first that loses too much accuracy, and all counts that were read.

    A step removes heads. E.g. with 100 samples and a drop of 0.02, of the counts 90, 89, 88, 87, 90 the first four are
    read: 90 is the count before the first step, 87 is too low, so 2 steps may be taken.

    Args:
        correct: how many samples are classified correctly, before the first step and after each step. It is read only
            up to the step that loses too much.
        samples: the number of samples.
        max_drop: the accuracy that may be lost, as a share of the samples, e.g. 0.01. It is taken as exactly the
            decimal number that it is printed as, so that rounding decides nothing.

    Returns:
        The number of steps, and the counts, the one of the step that lost too much included.
    """
    most_lost = Fraction(str(max_drop)) * samples
    counts_read: list[int] = []
    for count in correct:
        counts_read.append(count)
        lost = counts_read[0] - count
        if lost > most_lost:
            # Neither the count before the first step nor the step that lost too much is a step to take.
            return len(counts_read) - 2, counts_read
    return len(counts_read) - 1, counts_read


class _Counts(Record):
    """What one step of a search got right."""

    correct: int
    n_id: int


class _CountedCircuit(Record):
    """What of a circuit tells how many samples each of its steps gets right."""

    base: _Counts
    removed: Sequence[_Counts]


def removals_of_circuit(circuit: Document, max_drop: float) -> tuple[int, dict[str, object]]:
    """Return how many removals of a circuit stay within a drop of accuracy, and the entries of the provenance about it.

    A circuit is the order in which a search removed heads. The search has stored how many samples the model gets right
    after each removal, so nothing is measured here.

    Args:
        circuit: the circuit.
        max_drop: the accuracy that may be lost, as a share of the samples.

    Raises:
        InputError: the circuit has no counts, or it ranks heads without removing them one after another.
    """
    if circuit.content.get("algorithm", "greedy") != "greedy":
        raise InputError(f"{circuit} is a circuit of headmap, which ranks no heads", hint="leave --max-drop out")
    message = f"{circuit} does not say how many samples each step gets right"
    counted = _CountedCircuit.checked(circuit.content, message, "give --val, to count them")

    # The counts before the first removal, and after each.
    samples = counted.base.n_id
    correct = [counts.correct for counts in (counted.base, *counted.removed)]
    count, counts_read = steps_within(correct, samples, max_drop)
    return count, _provenance(max_drop, "circuit", samples, counts_read)


def choose_within(
    source: Source, wanted: Selection, budgets: Sequence[int], choose: Callable[[int, Log], HeadChoice], log: Log
) -> HeadChoice:
    """Return the choice of heads at the largest budget (number of heads to remove) within a drop of accuracy.

    All smaller budgets stay within it, too: budgets are tried in ascending order, up to the first that loses too much.

    Args:
        source: the unpruned model.
        wanted: the accuracy that may be lost, the samples that it is measured on, and how the model runs.
        budgets: the budgets to try, in ascending order; the first is zero.
        choose: returns the choice of heads for a budget.
        log: receives what the first two choices log (one without and one with removals), and every accuracy.
    """
    max_drop = wanted.max_drop
    assert max_drop is not None
    # The samples that accuracy is measured on: --val, or else those that choose the heads.
    if wanted.val is None:
        source, dataset = open_samples(source, wanted, Log())  # silent: scoring says what is odd about them
    else:
        source, dataset = open_samples(source, replace(wanted, data=wanted.val, samples=None), log)
    samples = len(dataset)
    choices_tried: list[HeadChoice] = []

    def try_budgets() -> Iterable[int]:
        """Yield how many samples are correct at each budget; also append the choice for it to ``choices_tried``.

        A budget is a number of heads to remove; the choice says which stay. A budget is tried only when its count is
        asked for, so none is tried after the first that loses too much.
        """
        for budget in budgets:
            log_of_choice = log
            if len(choices_tried) >= 2:
                log_of_choice = Log()  # silent: every further choice would repeat what the first two have logged
            choice = choose(budget, log_of_choice)
            choices_tried.append(choice)
            correct = _count_correct(source, choice.mask, dataset, wanted)
            accuracy = correct / samples
            log.info(f"{budget} removed: accuracy {accuracy:.4f} of {samples} samples")
            yield correct

    # This takes counts from try_budgets() until one has lost too much. "steps" is the index of the budget to take.
    steps, counts_read = steps_within(try_budgets(), samples, max_drop)
    log.warn_all(orientation_warnings(dataset))
    choice = choices_tried[steps]

    # Its provenance and its samples, with those that accuracy was measured on.
    measured_on = "val" if wanted.val else "data"
    measured = _provenance(max_drop, measured_on, samples, counts_read)
    measured_samples = entry("prune", "val", dataset)
    return HeadChoice(
        mask=choice.mask,
        details={**choice.details, **measured},
        seen=merged(choice.seen, [measured_samples]),
    )


def _provenance(max_drop: float, measured_on: str, samples: int, correct: Sequence[int]) -> dict[str, object]:
    """Return the entries of the provenance about the accuracy that decided.

    Args:
        max_drop: the accuracy that may be lost.
        measured_on: ``val``, ``data``, or ``circuit`` if the search of a circuit counted.
        samples: the number of samples.
        correct: how many of them are correct, before the first step and after each step.
    """
    measured = {"on": measured_on, "n": samples, "correct": list(correct)}
    return {"max_drop": max_drop, "measured": measured}


def _count_correct(source: Source, mask: HeadMask, dataset: Dataset, on: Measuring) -> int:
    """Return how many of the samples the model classifies correctly when it is pruned by a mask.

    Args:
        source: the model, which has one member.
        mask: the heads that are kept.
        dataset: the samples, with labels.
        on: how the model runs.

    Raises:
        NonFiniteError: a logit is not finite.
    """
    # The pruned model, with removed heads cut out of its weights; it is not written.
    description, tensors = pruned(source, mask, "sliced")
    pruned_source = replace(source, description=description, tensors=tensors)
    model = build_model(pruned_source, on.device, on.dtype)
    correct = 0
    with torch.inference_mode():
        for inputs, batch in model_batches(model, dataset, on.batch_size, on.workers):
            logits = model.member_logits(inputs)[0]  # of its only member, [batch, classes]
            if not bool(logits.isfinite().all()):
                raise NonFiniteError(f"{source.name}: a logit is not finite while it runs without some heads")
            predicted = logits.argmax(dim=-1).cpu()  # [batch]
            is_correct = predicted == known(batch.labels)
            correct += int(is_correct.sum())
    return correct
