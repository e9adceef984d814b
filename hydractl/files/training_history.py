"""The history of a training as a checkpoint records it: the course of the loss, and which epoch was kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, ValidationError

from hydractl.files.description import Description
from hydractl.files.fingerprints import Entry
from hydractl.files.model_records import EpochRecord, TrainingRecord
from hydractl.files.results import Count, Number, Record, optional
from hydractl.files.verb_answers import LearningRateTrial


class _SoundEpoch(EpochRecord):
    """An epoch of which these are known."""

    epoch: Count
    steps: Count
    loss: float


class _FinishedTraining(Record):
    """What is read of the settings in the provenance of a training."""

    history: Annotated[Sequence[_SoundEpoch], Field(min_length=1)]
    kept_epoch: int | None = None
    train: Any = None
    val: Any = None


class _ResultsOfTraining(Record):
    """What a training has written into the settings of its output, beside those that decided it."""

    lr: float
    history: Sequence[EpochRecord]
    kept_epoch: Count | None = None
    stopped_early: bool | None = None
    grid: Sequence[LearningRateTrial] | None = None


class FinishedRecord(Record):
    """What of the provenance of an output tells which training wrote it, and what came of it."""

    inputs: Annotated[Sequence[str], Field(min_length=1)]
    seed: int
    settings: _ResultsOfTraining


def trainings_of(descriptions: Iterable[Description]) -> list[TrainingRecord]:
    """Return the trainings of the members of one model; members that do not come straight from one are left out.

    Args:
        descriptions: the descriptions of the model's files, in the order of its members; a file may hold several.
    """
    trainings = []
    first_member = 0  # of the file: its number, from 0, among all members
    for description in descriptions:
        for index_in_file, provenance in enumerate(_provenances_of_members(description)):
            training = _training_of_member(first_member + index_in_file, provenance, description.seen)
            if training is not None:
                trainings.append(training)
        first_member += len(description.masks)
    return trainings


def _provenances_of_members(description: Description) -> list[Any]:
    """Return the provenance of each member of a file; a fused file lists them, unless it was trained afterwards."""
    was_fused_last = description.kind == "fused" and description.provenance.get("verb") != "finetune"
    if was_fused_last:
        return [member.get("provenance") for member in description.members]
    return [description.provenance]


def kept_accuracies(trainings: Iterable[TrainingRecord]) -> list[tuple[float, int]]:
    """Return the validation accuracy of the weights that each training kept, with the number of samples.

    Args:
        trainings: the result of :func:`trainings_of`, perhaps read from a predictions file.

    Returns:
        Pairs of accuracy and number of validation samples (0: not known); trainings without validation are left out.
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
        training: a training from :func:`trainings_of`, which thus has epochs, each with its loss.
    """
    assert training.epochs
    last = training.epochs[-1]
    weights = "no epoch chosen"
    if training.kept_epoch is not None:
        weights = f"epoch {training.kept_epoch} of {last.epoch} kept"
    facts = [weights, f"{training.steps} steps", f"last loss {last.loss:.4f}"]
    kept = training.kept
    if kept is not None and kept.val_accuracy is not None:
        facts.append(f"validation accuracy {kept.val_accuracy:.4f}")
    return ", ".join(facts)


class ProgressRecord(Record):
    """How far an unfinished training is; between two trainings of a grid no steps are known."""

    steps: Count | None = optional("Number of steps made.")
    total: Count | None = optional("Number of all its steps.")
    candidate: Count | None = optional("Which of several learning rates is tried, from 0.")
    epochs: Sequence[EpochRecord] = optional("Its epochs so far.", ())
    kept_epoch: Count | None = optional("The best epoch so far.")
    best: Number = optional("The validation accuracy of that epoch, if there has been a validation.")


class UnfinishedRecord(Record):
    """What is shown of the header of a state file (``hydractl.training/1``)."""

    progress: ProgressRecord
    fingerprint: Mapping[str, Any]
    """The settings that the run was begun with."""
    environment: Mapping[str, Any]
    """The environment that it was begun in."""

    def facts(self) -> dict[str, object]:
        """Return the facts that are shown of an unfinished run, by name: how far it is, and with what it was begun.

        A fact that is not known is None.
        """
        progress = self.progress
        rates = self.fingerprint.get("lr")
        learning_rate = None  # e.g. "2 of 3", if several rates are tried one after another
        if isinstance(rates, list) and progress.candidate is not None:
            learning_rate = f"{progress.candidate + 1} of {len(rates)}"
        settings = {key: value for key, value in self.fingerprint.items() if value is not None}
        return {
            "step": progress.steps,
            "of": progress.total,
            "learning_rate": learning_rate,
            "epochs": [epoch_text(epoch) for epoch in progress.epochs[-5:]] or None,
            "best_epoch": None if progress.best is None else progress.kept_epoch,
            "best_val_accuracy": progress.best,
            "source": {**settings, **self.environment},
        }


def _training_of_member(member: int, provenance: Any, seen: Sequence[Entry]) -> TrainingRecord | None:
    """Return the training of a member from its provenance; None if it was not trained, or the provenance is broken.

    Args:
        member: the number of the member, from 0.
        provenance: the provenance, perhaps from an untrusted file.
        seen: records of the data sets that commands have used for the file, with their numbers of samples.
    """
    if not isinstance(provenance, Mapping) or provenance.get("verb") != "finetune":
        return None

    # A training that can be shown has a history of sound epochs. Weights that a method has collected or averaged belong
    # to none of them.
    try:
        training = _FinishedTraining.model_validate(provenance.get("settings"))
    except ValidationError:
        return None
    return TrainingRecord(
        member=member,
        steps=training.history[-1].steps,
        kept_epoch=training.kept_epoch,
        n=_samples_of(seen, training.train),
        n_val=_samples_of(seen, training.val),
        epochs=training.history,
    )


def epoch_text(epoch: EpochRecord) -> str:
    """Describe an epoch in a line: ``epoch 2, steps 12, loss 0.1234, val_accuracy 0.9500``."""
    facts = []
    for key, value in epoch.to_dict().items():
        shown = f"{value:.4f}" if isinstance(value, float) else str(value)
        facts.append(f"{key} {shown}")
    return ", ".join(facts)


def _samples_of(seen: Iterable[Entry], fingerprint: Any) -> int | None:
    """Return how many samples a data set of a training had, by its fingerprint; None if not known."""
    for entry in seen:
        if entry["by"] == "finetune" and entry["data"] == fingerprint:
            return entry["n"]
    return None
