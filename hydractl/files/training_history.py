"""What ``--info`` tells of a training: how it went, and which epoch was kept."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hydractl.files.description import Description

_PARTS = ("progress", "fingerprint", "environment")
_NUMBERS = ("loss", "val_accuracy", "val_nll")


def trainings_of(description: Description) -> list[str]:
    """A line for each training that the file, or one of its members, came straight from.

    ``member 0: epoch 2 of 3 kept, 18 steps, last loss 0.1234, validation accuracy 0.9500``; only a fused model has
    numbers of members.
    """
    origins: list[Any] = [description.provenance]
    if description.kind == "fused" and description.provenance.get("verb") != "finetune":
        origins = [member.get("provenance") for member in description.members]
    fused = description.kind == "fused"
    lines = [(f"member {index}: " if fused else "", _training(one)) for index, one in enumerate(origins)]
    return [name + text for name, text in lines if text]


def unfinished(header: Mapping[str, Any]) -> dict[str, Any]:
    """What the header of a state file (``hydractl.training/1``) says: how far the run is, and what it was begun with.

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


def _training(provenance: Any) -> str:
    """From the provenance of one file; empty where it was not trained, or where it is broken."""
    if not isinstance(provenance, Mapping) or provenance.get("verb") != "finetune":
        return ""
    settings = provenance.get("settings")
    history = settings.get("history") if isinstance(settings, Mapping) else None
    if not isinstance(history, list) or not history or not all(map(_is_epoch, history)):
        return ""
    assert isinstance(settings, Mapping)  # there is a history in it
    # Of snapshots none is chosen: the weights are those at the end.
    last = history[-1]
    kept = last["epoch"] if "cycle" in settings else settings.get("kept_epoch")
    if type(kept) is not int:
        return ""
    steps = settings.get("cycle_end", last["steps"])
    text = f"epoch {kept} of {last['epoch']} kept, {steps} steps, last loss {last['loss']:.4f}"
    accuracy = next((e.get("val_accuracy") for e in history if e["epoch"] == kept), None)
    return text if accuracy is None else f"{text}, validation accuracy {accuracy:.4f}"


def _is_epoch(entry: Any) -> bool:
    if not isinstance(entry, Mapping) or any(type(entry.get(key)) is not int for key in ("epoch", "steps")):
        return False
    numbers = [entry[key] for key in _NUMBERS if key in entry]
    return "loss" in entry and all(type(value) in (int, float) and math.isfinite(value) for value in numbers)


def epoch_text(epoch: Mapping[str, Any]) -> str:
    """``epoch 2, steps 12, loss 0.1234, val_accuracy 0.9500``."""
    facts = _known(epoch).items()
    return ", ".join(f"{key} {value:.4f}" if isinstance(value, float) else f"{key} {value}" for key, value in facts)


def _known(epoch: Mapping[str, Any]) -> dict[str, Any]:
    return {key: epoch[key] for key in ("epoch", "steps", *_NUMBERS) if key in epoch}
