"""What a checkpoint tells of its training: the course of the loss, and which epoch was kept."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hydractl.files.description import Description
from hydractl.files.fingerprints import Entry
from hydractl.files.model_records import EpochRecord, TrainingRecord
from hydractl.files.verb_answers import TrainingProgress

_POINTS = 60
"""Epochs of a history that are kept, about."""
_NUMBERS = ("loss", "val_accuracy", "val_nll")
"""Keys of the numbers of an epoch, of which the loss is always there."""


def trainings_of(descriptions: Iterable[Description]) -> list[TrainingRecord]:
    """Return the trainings of the members of one row or file, of those that came straight from one.

    Args:
        descriptions: of the files of the row, in the order of its members.
    """
    trainings = []
    first_member = 0
    for description in descriptions:
        for place, provenance in enumerate(_provenances_of_members(description)):
            training = _training_of_member(first_member + place, provenance, description.seen)
            if training is not None:
                trainings.append(training)
        first_member += len(description.masks)
    return trainings


def _provenances_of_members(description: Description) -> list[Any]:
    """Return how each member of a file was made: of a fused file as it says, unless it was trained as a whole."""
    was_fused_last = description.kind == "fused" and description.provenance.get("verb") != "finetune"
    if was_fused_last:
        return [member.get("provenance") for member in description.members]
    return [description.provenance]


def kept_accuracies(trainings: Iterable[TrainingRecord]) -> list[tuple[float, int]]:
    """Return the validation accuracy of the weights that each training kept, and of how many samples (0: not known).

    Args:
        trainings: as of :func:`trainings_of`, perhaps from a predictions file. Those without any are left out.
    """
    accuracies = []
    for training in trainings:
        kept = training.kept
        if kept is not None and kept.val_accuracy is not None:
            accuracies.append((kept.val_accuracy, training.n_val or 0))
    return accuracies


def training_text(training: TrainingRecord) -> str:
    """Describe a training in a line: ``epoch 2 of 3 kept, 18 steps, last loss 0.1234, validation accuracy 0.9500``.

    Args:
        training: of :func:`trainings_of`, so that it has epochs, each with its loss.
    """
    assert training.epochs
    last = training.epochs[-1]
    weights = "weights of several steps"
    if training.kept_epoch is not None:
        weights = f"epoch {training.kept_epoch} of {last.epoch} kept"
    facts = [weights, f"{training.steps} steps", f"last loss {last.loss:.4f}"]
    kept = training.kept
    if kept is not None and kept.val_accuracy is not None:
        facts.append(f"validation accuracy {kept.val_accuracy:.4f}")
    return ", ".join(facts)


def unfinished(header: Mapping[str, object]) -> TrainingProgress:
    """Read off a state file's header (``hydractl.training/1``) how far the run is.

    Args:
        header: perhaps of an untrusted file: what is not as it should be is left out.
    """
    progress = _object_at(header, "progress")
    step = None
    steps = None
    if type(progress.get("steps")) is int:
        step = progress["steps"]
        steps = progress.get("total")
    best_epoch = None
    if progress.get("best") is not None:
        best_epoch = progress.get("kept_epoch")
    return TrainingProgress(
        step=step,
        steps=steps,
        learning_rate=_learning_rate_words(header),
        epochs=_last_epochs(progress.get("epochs")),
        best_epoch=best_epoch,
        best_val_accuracy=progress.get("best"),
    )


def _learning_rate_words(header: Mapping[str, object]) -> str | None:
    """Say which of several learning rates a run is at: ``2 of 3``; None where that is not known."""
    rates = _object_at(header, "fingerprint").get("lr")
    candidate = _object_at(header, "progress").get("candidate")
    if not isinstance(rates, list) or type(candidate) is not int:
        return None
    return f"{candidate + 1} of {len(rates)}"


def _last_epochs(epochs: object) -> list[str]:
    """Return the last epochs of a run, a line each, five at most; none where these are no epochs."""
    if not isinstance(epochs, list) or not all(map(_is_epoch, epochs)):
        return []
    return [epoch_text(epoch) for epoch in epochs[-5:]]


def begun_with(header: Mapping[str, object]) -> dict[str, object]:
    """Read off a state file's header what the run was begun with: its settings, and where it ran."""
    settings = {}
    for key, value in _object_at(header, "fingerprint").items():
        if value is not None:
            settings[key] = value
    return {**settings, **_object_at(header, "environment")}


def _object_at(header: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return a part of a header; an empty one where it is not there or no object."""
    part = header.get(key)
    if isinstance(part, Mapping):
        return part
    return {}


def _training_of_member(member: int, provenance: Any, seen: Sequence[Entry]) -> TrainingRecord | None:
    """Read the training of a member off a provenance; None where it was not trained, or where it is broken.

    Args:
        member: its number.
        provenance: perhaps of an untrusted file.
        seen: the data sets that the file has seen, with their numbers of samples.
    """
    if not isinstance(provenance, Mapping) or provenance.get("verb") != "finetune":
        return None
    settings = provenance.get("settings")
    if not isinstance(settings, Mapping):
        return None
    history = settings.get("history")
    if not isinstance(history, list) or not history or not all(map(_is_epoch, history)):
        return None
    last = history[-1]

    # Of snapshots none is chosen: the weights are those at the end.
    is_snapshot = "cycle" in settings
    kept = settings.get("kept_epoch")
    if is_snapshot:
        kept = last["epoch"]
    # An average is of no epoch, and everything else of one.
    is_average = "averaged" in settings
    if is_average and kept is not None:
        return None
    if not is_average and type(kept) is not int:
        return None
    return TrainingRecord(
        member=member,
        steps=settings.get("cycle_end", last["steps"]),
        kept_epoch=kept,
        n=_samples_of(seen, settings.get("train")),
        n_val=_samples_of(seen, settings.get("val")),
        epochs=_thinned_out(history, kept),
    )


def _thinned_out(history: Sequence[Mapping[str, Any]], kept: int | None) -> list[EpochRecord]:
    """Return about ``_POINTS`` evenly spread epochs of a long history, the kept and the last one among them."""
    step = math.ceil(len(history) / _POINTS)
    last = history[-1]
    epochs = []
    for place, epoch in enumerate(history):
        if place % step == 0 or epoch is last or epoch["epoch"] == kept:
            epochs.append(EpochRecord(**_known_facts(epoch)))
    return epochs


def _is_epoch(entry: Any) -> bool:
    """Return whether a value from a file is an epoch with a loss, whose numbers are all finite."""
    if not isinstance(entry, Mapping) or "loss" not in entry:
        return False
    if type(entry.get("epoch")) is not int or type(entry.get("steps")) is not int:
        return False
    numbers = [entry[key] for key in _NUMBERS if key in entry]
    return all(map(_is_finite_number, numbers))


def _is_finite_number(value: Any) -> bool:
    """Return whether this is a number, other than a truth value, NaN and infinity."""
    if type(value) not in (int, float):
        return False
    return math.isfinite(value)


def epoch_text(epoch: Mapping[str, object]) -> str:
    """Describe an epoch: ``epoch 2, steps 12, loss 0.1234, val_accuracy 0.9500``."""
    facts = []
    for key, value in _known_facts(epoch).items():
        if isinstance(value, float):
            shown = f"{value:.4f}"
        else:
            shown = str(value)
        facts.append(f"{key} {shown}")
    return ", ".join(facts)


def _known_facts(epoch: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known of an epoch, and nothing else that a file may say of it."""
    known = {}
    for key in ("epoch", "steps", *_NUMBERS):
        if key in epoch:
            known[key] = epoch[key]
    return known


def _samples_of(seen: Iterable[Entry], fingerprint: Any) -> int | None:
    """Return how many samples a data set had that weights were trained on, by its fingerprint; None if not known."""
    for entry in seen:
        if entry["by"] == "finetune" and entry["data"] == fingerprint:
            return entry["n"]
    return None
