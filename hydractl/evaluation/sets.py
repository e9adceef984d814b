"""The data sets of one evaluation, each with a role: sets for testing, and sets for fitting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from hydractl.data.base import Dataset, skipped_document
from hydractl.files.fingerprints import Entry, entry
from hydractl.files.model_records import DataSetRecord
from hydractl.files.predictions_header import PredictedSetRecord, SetGroup, SetRole

ID, OOD, VAL, OOD_VAL, CORRUPTION, TRAIN = "id", "ood", "val", "ood_val", "corruption", "train"


@dataclass(frozen=True)
class EvalSet:
    """One data set of a command, or of a predictions file.

    Attributes:
        name: ``id``, ``val``, the name of an OOD set, or ``CORRUPTION/SEVERITY``.
        role: ``id``, ``ood``, ``val``, ``ood_val``, ``corruption``, or ``train``, which is neither measured nor kept.
        group: the group of an OOD set, ``near`` or ``far``; None for all others.
        ids: the id of each sample.
        labels: the labels, int64 ``[N]``; None if the set is unlabelled, or its labels are not used.
        known_fingerprint: the fingerprint of the samples, their order and their labels, if only predictions for them
            are available.
        seen: the number of its samples that the model of a predictions file had seen before.
        spec: the SPEC from which it was opened.
        dataset: the samples; None if only predictions for them are available.
        left_out: the number of samples that were removed from a validation set because they are also training data.
    """

    name: str
    role: str
    group: str | None
    ids: Sequence[str]
    labels: npt.NDArray[np.int64] | None
    known_fingerprint: str = ""
    seen: int = 0
    spec: str = ""
    dataset: Dataset | None = None
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of samples, their order and labels; samples that were not read yet are read for it."""
        if self.dataset is None:
            return self.known_fingerprint
        return self.dataset.fingerprint()

    def option_and_spec(self) -> str:
        """Return the option with which the user gave the set, and its SPEC, for messages, e.g. ``--test test.npz``.

        A set of stored predictions has no SPEC of its own, because each row of a command may come from another file.
        """
        option = option_of(self)
        if self.dataset is None:
            return option
        return f"{option} {self.spec}".rstrip()

    def record(self) -> DataSetRecord:
        """Return the record of the set under ``data`` in an answer."""
        return DataSetRecord(
            spec=self.spec,
            n=len(self),
            fingerprint=self.fingerprint,
            skipped=None if self.dataset is None else skipped_document(self.dataset),
            left_out=self.left_out or None,
        )

    def header(self) -> PredictedSetRecord:
        """Return the entry of this set in the header of a predictions file."""
        return PredictedSetRecord(
            name=self.name,
            role=cast("SetRole", self.role),
            group=cast("SetGroup | None", self.group),
            n=len(self.ids),
            fingerprint=self.fingerprint,
            labelled=self.labels is not None,
            seen=self.seen,
        )


def tested(sets: Sequence[EvalSet]) -> list[EvalSet]:
    """Return the ID and OOD test sets, without corrupted ones, in their order (ID first)."""
    return of_role(sets, ID, OOD)


def of_role(sets: Sequence[EvalSet], *roles: str) -> list[EvalSet]:
    """Return the sets with one of some roles, e.g. ``val``, in their order."""
    return [dataset for dataset in sets if dataset.role in roles]


def only(sets: Sequence[EvalSet], role: str) -> EvalSet | None:
    """Return the set with a role that one set has at most, e.g. ``train``; None if there is none."""
    return next(iter(of_role(sets, role)), None)


_OPTIONS = {ID: "--test", VAL: "--val", TRAIN: "--train"}


def option_of(dataset: EvalSet) -> str:
    """Return the option with which the user gave a data set, for messages, e.g. ``--ood NAME``."""
    if dataset.role in _OPTIONS:
        return _OPTIONS[dataset.role]
    flag = dataset.role.replace("_", "-")
    return f"--{flag} {dataset.name}"


def fitted_sets(sets: Sequence[EvalSet]) -> list[EvalSet]:
    """Return the sets to which this command fits something, or on which it chooses: validation, then training data."""
    return of_role(sets, VAL, OOD_VAL, TRAIN)


def fitted_entries(sets: Sequence[EvalSet], verb: str = "eval") -> list[Entry]:
    """Return the entries that record to which data a command fits something, see :mod:`hydractl.files.fingerprints`.

    Args:
        sets: all data sets of the command.
        verb: the name of the command.
    """
    entries = []
    for dataset in fitted_sets(sets):
        if dataset.dataset is None:
            continue
        for origin in dataset.dataset.origins():
            entries.append(entry(verb, dataset.role, origin))
    return entries
