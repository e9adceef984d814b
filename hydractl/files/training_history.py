"""What a checkpoint tells of its training: the course of the loss, and which epoch was kept."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from hydractl.files.description import Description

_POINTS = 60
_PARTS = ("progress", "fingerprint", "environment")
_NUMBERS = ("loss", "val_accuracy", "val_nll")


def trainings_of(descriptions: Iterable[Description]) -> list[dict[str, Any]]:
    """Return the trainings of the members of one row or file, of those that came straight from one.

    Returns:
        For each: ``member`` (its number), ``steps``, ``kept_epoch`` (null of an average), ``n`` and ``n_val`` (samples,
        null where they are not known) and ``epochs``: ``epoch``, ``steps`` made by its end, ``loss`` (the mean over the
        steps of the epoch), ``val_accuracy`` and ``val_nll`` where it was validated. Of long trainings at most about
        60 epochs.
    """
    trainings, first = [], 0
    for description in descriptions:
        origins: list[Any] = [description.provenance]
        if description.kind == "fused" and description.provenance.get("verb") != "finetune":
            origins = [member.get("provenance") for member in description.members]
        for index, provenance in enumerate(origins):
            training = _training(provenance, description.seen)
            if training is not None:
                trainings.append({"member": first + index, **training})
        first += len(description.masks)
    return trainings


def kept_accuracies(trainings: Iterable[Mapping[str, Any]]) -> list[tuple[float, int]]:
    """Return the validation accuracy of the weights that each training kept, and of how many samples (0: not known).

    Args:
        trainings: as of :func:`trainings_of`, perhaps from a predictions file. Those without any are left out.
    """
    found = []
    for training in trainings:
        kept = [epoch for epoch in training.get("epochs") or () if epoch.get("epoch") == training.get("kept_epoch")]
        accuracy = kept[0].get("val_accuracy") if kept else None
        if accuracy is not None:
            found.append((float(accuracy), int(training.get("n_val") or 0)))
    return found


def training_text(training: Mapping[str, Any]) -> str:
    """Describe a training in a line: ``epoch 2 of 3 kept, 18 steps, last loss 0.1234, validation accuracy 0.9500``."""
    epochs, kept = training["epochs"], training["kept_epoch"]
    weights = "weights of several steps" if kept is None else f"epoch {kept} of {epochs[-1]['epoch']} kept"
    text = f"{weights}, {training['steps']} steps, last loss {epochs[-1]['loss']:.4f}"
    accuracy = next((e.get("val_accuracy") for e in epochs if e["epoch"] == kept), None)
    return text if accuracy is None else f"{text}, validation accuracy {accuracy:.4f}"


def unfinished(header: Mapping[str, Any]) -> dict[str, Any]:
    """Read off a state file's header (``hydractl.training/1``) how far the run is, and what it was begun with.

    Args:
        header: perhaps of an untrusted file: what is not as it should be is left out.
    """
    progress, begun, on = ({} if not isinstance(header.get(key), Mapping) else header[key] for key in _PARTS)
    facts: dict[str, Any] = {}
    if type(progress.get("steps")) is int:
        facts = {"step": progress["steps"], "of": progress.get("total")}
    rates = begun.get("lr")
    if isinstance(rates, list) and type(progress.get("candidate")) is int:
        facts["learning_rate"] = f"{progress['candidate'] + 1} of {len(rates)}"
    epochs = progress.get("epochs")
    if isinstance(epochs, list) and epochs and all(map(_is_epoch, epochs)):
        facts["epochs"] = [epoch_text(epoch) for epoch in epochs[-5:]]
    if progress.get("best") is not None:
        facts |= {"best_epoch": progress.get("kept_epoch"), "best_val_accuracy": progress["best"]}
    return {**facts, "source": {**{k: v for k, v in begun.items() if v is not None}, **on}}


def _training(provenance: Any, seen: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Read a training off the provenance of one file; None where it was not trained, or where it is broken."""
    if not isinstance(provenance, Mapping) or provenance.get("verb") != "finetune":
        return None
    settings = provenance.get("settings")
    history = settings.get("history") if isinstance(settings, Mapping) else None
    if not isinstance(history, list) or not history or not all(map(_is_epoch, history)):
        return None
    assert isinstance(settings, Mapping)  # there is a history in it
    # Of snapshots none is chosen: the weights are those at the end. An average is of no epoch.
    kept = history[-1]["epoch"] if "cycle" in settings else settings.get("kept_epoch")
    if type(kept) is not (type(None) if "averaged" in settings else int):
        return None
    every, last = -(-len(history) // _POINTS), len(history) - 1
    chosen = [e for i, e in enumerate(history) if i % every == 0 or i == last or e["epoch"] == kept]
    return {
        "steps": settings.get("cycle_end", history[-1]["steps"]),
        "kept_epoch": kept,
        "n": _samples(seen, settings.get("data")),
        "n_val": _samples(seen, settings.get("val")),
        "epochs": [_known(epoch) for epoch in chosen],
    }


def _is_epoch(entry: Any) -> bool:
    if not isinstance(entry, Mapping) or any(type(entry.get(key)) is not int for key in ("epoch", "steps")):
        return False
    numbers = [entry[key] for key in _NUMBERS if key in entry]
    return "loss" in entry and all(type(value) in (int, float) and math.isfinite(value) for value in numbers)


def epoch_text(epoch: Mapping[str, Any]) -> str:
    """Describe an epoch: ``epoch 2, steps 12, loss 0.1234, val_accuracy 0.9500``."""
    facts = _known(epoch).items()
    return ", ".join(f"{key} {value:.4f}" if isinstance(value, float) else f"{key} {value}" for key, value in facts)


def _known(epoch: Mapping[str, Any]) -> dict[str, Any]:
    return {key: epoch[key] for key in ("epoch", "steps", *_NUMBERS) if key in epoch}


def _samples(seen: Iterable[Mapping[str, Any]], fingerprint: Any) -> int | None:
    """Return how many samples a data set had, by its fingerprint."""
    return next((e["n"] for e in seen if e["by"] == "finetune" and e["data"] == fingerprint), None)
