"""The probes of one row: a classifier of the features of each member, in place of the model's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from hydractl.data.labels import some
from hydractl.errors import InputError
from hydractl.evaluation.probes import fit_probe
from hydractl.evaluation.sets import EvalSet
from hydractl.files.model_records import DataSetRecord, ProbeRecord
from hydractl.metrics.feature_scores.scores import MemberTraining
from hydractl.metrics.probabilities import Floats
from hydractl.model.detection import Detector, detector_of


@dataclass(frozen=True)
class Readouts:
    """The features that the members of a row make of a labelled data set.

    Attributes:
        source: the data set.
        labels: the labels of the samples that could be read, ``[N]``.
        features: the features of these samples by each member, float64 ``[N, D]``.
    """

    source: EvalSet
    labels: npt.NDArray[np.int64]
    features: Sequence[Floats]


class Probes:
    """One probe for each member.

    Args:
        name: ``knn`` or ``linear``.
        training: the features that they are fitted to.
        val: the features that a penalty is chosen on; None for the default penalty.
        classes: the number of classes.
        labels: the names of the classes; None where they have none.

    Attributes:
        facts: the entry ``probe`` of the row.

    Raises:
        InputError: the training data are too few, or have no sample of some class.
    """

    def __init__(
        self, name: str, training: Readouts, val: Readouts | None, classes: int, labels: Sequence[str] | None
    ) -> None:
        _check_every_class(training, classes, labels)
        self._training = training
        self._members = []
        for member, features in enumerate(training.features):
            val_of_member = None
            if val is not None:
                val_of_member = (val.features[member], val.labels)
            probe = fit_probe(name, features, training.labels, classes, val_of_member)
            self._members.append(probe)
        self.facts = self._record(name, val)

    def _record(self, name: str, val: Readouts | None) -> ProbeRecord:
        """Return the record of the probes in the row: their kind, the penalty of each, and the data behind them."""
        penalties = [probe.penalty for probe in self._members if probe.penalty is not None]
        fitted_on = DataSetRecord.from_json(self._training.source.to_json())
        chosen_on = None
        if val is not None:
            chosen_on = DataSetRecord.from_json(val.source.to_json())
        return ProbeRecord(name=name, c=penalties or None, fitted_on=fitted_on, chosen_on=chosen_on)

    def logits(self, features: Sequence[torch.Tensor]) -> torch.Tensor:
        """Compute float64 ``[M, B, C]`` from the features ``[B, D]`` of each member."""
        logits = []
        for probe, features_of_member in zip(self._members, features, strict=True):
            in_float64 = features_of_member.cpu().double().numpy()
            logits.append(probe.logits(in_float64))
        return torch.from_numpy(np.stack(logits))

    def detector(self, names: Sequence[str], neighbours: int, fitted_on: Mapping[str, object]) -> Detector:
        """Fit OOD scores on features to the data of the probes.

        Args:
            names: the names of the scores.
            neighbours: k of the score ``knn``.
            fitted_on: the entry of the training data, which the detector keeps.
        """
        labels = self._training.labels
        training_of_members = []
        for probe, features in zip(self._members, self._training.features, strict=True):
            # Only scores of linear classifiers look at the highest logits; other probes have a bias of no class.
            is_linear = len(probe.bias) > 0
            highest_logits = probe.bias
            if is_linear:
                highest_logits = probe.logits(features).max(axis=1)
            training_of_members.append(
                MemberTraining(features, labels, highest_logits, probe.weight, probe.bias, neighbours)
            )
        return detector_of(names, training_of_members, fitted_on)


def _check_every_class(training: Readouts, classes: int, labels: Sequence[str] | None) -> None:
    """Refuse training data without a sample of some class.

    Raises:
        InputError: naming the classes.
    """
    counts = np.bincount(training.labels, minlength=classes)
    missing = np.flatnonzero(counts == 0).tolist()
    if not missing:
        return
    names = labels
    if not names:
        names = [str(index) for index in range(classes)]
    missing_names = [names[index] for index in missing]
    raise InputError(
        f"--train {training.source.spec} has no sample of the class {some(missing_names, 5)}",
        hint="every class needs samples to be told apart by",
    )
