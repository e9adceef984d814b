"""``prune --max-drop``: how many heads go, decided by the accuracy that is left.

The budget is the largest one up to which no budget takes accuracy too far: budgets are gone through from none on, and
the first that takes it too far ends that. So the answer is the same however long the ranking is, and no budget is taken
because of one lucky step behind many bad ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import torch

from hydractl.data import batches, open_data
from hydractl.data.base import Dataset, report_classes
from hydractl.errors import InputError
from hydractl.files.fingerprints import Entry, entry, merged
from hydractl.heads.mask import HeadMask
from hydractl.log import Log
from hydractl.model.loading import build_model
from hydractl.model.matching import check_labels_are_classes, named_by_data
from hydractl.model.runtime import move
from hydractl.model.source import Source, pruned
from hydractl.settings.pruning import PruneSettings
from hydractl.verbs.score import drawn_samples

Choice = tuple[HeadMask, dict[str, Any], list[Entry]]
"""A mask, what decided it, and the samples that it hangs on."""


def steps_within(correct: Iterable[int], samples: int, max_drop: float) -> tuple[int, list[int]]:
    """Count the steps in a row that stay within a drop of accuracy.

    Args:
        correct: samples right before the first step and after each; what comes after the end is not asked for.
        samples: of how many.
        max_drop: as a share of the samples; taken as the decimal number that it prints as.

    Returns:
        Their number, and what was right before them, after each, and after the step that ended them.
    """
    seen: list[int] = []
    for count in correct:
        seen.append(count)
        if seen[0] - count > Fraction(str(max_drop)) * samples:
            return len(seen) - 2, seen
    return len(seen) - 1, seen


def from_circuit(document: Mapping[str, Any], path: str, max_drop: float) -> tuple[int, dict[str, Any]]:
    """Count the removals of a circuit that stay within the drop, by the counts of its own search.

    Returns:
        Their number, and what the provenance says of it.

    Raises:
        InputError: for a circuit without counts, or one whose steps are no sequence.
    """
    if document.get("algorithm", "greedy") != "greedy":
        raise InputError(f"{path} is a circuit of headmap, which ranks no heads", hint="leave --max-drop out")
    base = document.get("base")
    samples = base.get("n_id") if isinstance(base, Mapping) else None
    correct = []
    for row in (base, *document["removed"]):
        if not isinstance(row, Mapping) or type(row.get("correct")) is not int or row.get("n_id") != samples:
            samples = None
            break
        correct.append(row["correct"])
    if type(samples) is not int:
        raise InputError(f"{path} does not say how many samples each step gets right", hint="give --val, to count them")
    count, seen = steps_within(correct, samples, max_drop)
    return count, _provenance(max_drop, "circuit", samples, seen)


def choose_within(
    source: Source, settings: PruneSettings, budgets: Sequence[int], choose: Callable[[int, Log], Choice], log: Log
) -> Choice:
    """Return the choice of the largest budget up to which every one stays within ``--max-drop``.

    Accuracy is measured on ``--val`` or on the calibration samples.

    Args:
        source: the whole model.
        settings: of ``prune``.
        budgets: in order, the first of which removes nothing.
        choose: the choice for a budget.
        log: hears of the first choice, and of every accuracy.
    """
    dataset, used = _samples(source, settings, log)
    source = named_by_data(source, settings.val or settings.data or "", settings.limit)
    choices: list[Choice] = []

    def correct() -> Iterable[int]:
        for budget in budgets:
            choices.append(choose(budget, Log() if len(choices) > 1 else log))
            mask = choices[-1][0]
            right = _right(source, mask, dataset, used, settings)
            log.info(f"{budget} removed: accuracy {right / len(used):.4f} of {len(used)} samples")
            yield right

    assert settings.max_drop is not None
    count, seen = steps_within(correct(), len(used), settings.max_drop)
    mask, details, samples = choices[count]
    measured_on = "val" if settings.val else "data"
    details = {**details, **_provenance(settings.max_drop, measured_on, len(used), seen)}
    return mask, details, merged(samples, [entry("prune", "val", dataset, used)])


def _provenance(max_drop: float, on: str, samples: int, correct: Sequence[int]) -> dict[str, Any]:
    return {"max_drop": max_drop, "measured": {"on": on, "n": samples, "correct": list(correct)}}


def _samples(source: Source, settings: PruneSettings, log: Log) -> tuple[Dataset, list[int]]:
    """Open the labelled set that accuracy is measured on; return it and which of its samples are used."""
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


def _right(source: Source, mask: HeadMask, dataset: Dataset, used: Sequence[int], settings: PruneSettings) -> int:
    """Count the samples that the pruned model classifies right."""
    description, tensors = pruned(source, mask, "sliced")
    model = build_model(replace(source, description=description, tensors=tensors), settings.device, settings.dtype)
    parameter = next(model.parameters())
    right = 0
    with torch.inference_mode():
        for batch in batches(
            dataset, model.preprocess, settings.batch_size, workers=settings.workers, indices=list(used)
        ):
            inputs = move(batch.inputs, parameter.device, parameter.dtype)
            logits = model.member_logits(inputs)[0]  # [batch, classes]
            assert batch.labels is not None
            is_right = logits.argmax(dim=-1).cpu() == batch.labels
            right += int(is_right.sum())
    return right
