"""The probes of one row: for each member a classifier of its features, which replaces the model's own classifier."""

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
    """The features of all members of a row on a labelled data set.

    Attributes:
        source: the data set.
        labels: the labels of the N samples that could be read, ``[N]``.
        features: for each member the features of these samples, float64 ``[N, D]``.
    """

    source: EvalSet
    labels: npt.NDArray[np.int64]
    features: Sequence[Floats]


class Probes:
    """Fits one probe for each member.

    Args:
        name: ``knn`` or ``linear``.
        training: the features of the training data.
        val: the features of the validation data on which the penalty is chosen; None means the default penalty.
        classes: the number of classes.
        labels: the names of the classes; None if there are none.

    Attributes:
        facts: the record of the probes in the row.

    Raises:
        InputError: if there are too few training data, or no sample of some class.
    """

    def __init__(
        self, name: str, training: Readouts, val: Readouts | None, classes: int, labels: Sequence[str] | None
    ) -> None:
        _check_every_class(training, classes, labels)
        self._training = training
        self._members = []  # one probe for each member
        for member, features in enumerate(training.features):
            val_features_and_labels = None
            if val is not None:
                val_features_and_labels = (val.features[member], val.labels)
            probe = fit_probe(name, features, training.labels, classes, val_features_and_labels)
            self._members.append(probe)
        self.facts = self._record(name, val)

    def _record(self, name: str, val: Readouts | None) -> ProbeRecord:
        """Return the record of the probes in the row: their kind, their penalties, and the data they were fitted to."""
        penalties = [probe.penalty for probe in self._members if probe.penalty is not None]
        fitted_on = DataSetRecord.from_json(self._training.source.to_json())
        chosen_on = None
        if val is not None:
            chosen_on = DataSetRecord.from_json(val.source.to_json())
        return ProbeRecord(name=name, c=penalties or None, fitted_on=fitted_on, chosen_on=chosen_on)

    def logits(self, features: Sequence[torch.Tensor]) -> torch.Tensor:
        """Compute the logits of all members, float64 ``[M, B, C]``.

        Args:
            features: the features of each member, ``[B, D]``.
        """
        logits = []
        for probe, features_of_member in zip(self._members, features, strict=True):
            features_in_float64 = features_of_member.cpu().double().numpy()
            logits.append(probe.logits(features_in_float64))
        return torch.from_numpy(np.stack(logits))

    def detector(self, names: Sequence[str], neighbours: int, fitted_on: Mapping[str, object]) -> Detector:
        """Fit OOD scores on features to the same training data as the probes.

        Args:
            names: the names of the scores.
            neighbours: k of the score ``knn``.
            fitted_on: the record of the training data, which the detector stores.
        """
        labels = self._training.labels
        training_by_member = []
        for probe, features in zip(self._members, self._training.features, strict=True):
            # The highest logit of each training sample, [N]. Only scores of linear classifiers use it. For other
            # probes, whose bias is empty, the empty bias stands in.
            is_linear = len(probe.bias) > 0
            highest_logits = probe.bias
            if is_linear:
                highest_logits = probe.logits(features).max(axis=1)
            member_training = MemberTraining(features, labels, highest_logits, probe.weight, probe.bias, neighbours)
            training_by_member.append(member_training)
        return detector_of(names, training_by_member, fitted_on)


def _check_every_class(training: Readouts, classes: int, labels: Sequence[str] | None) -> None:
    """Raise an error if the training data have no sample of some class.

    Args:
        training: the training data.
        classes: the number of classes.
        labels: the names of the classes; without names their numbers are used in the message.

    Raises:
        InputError: with the names of up to 5 such classes.
    """
    samples_by_class = np.bincount(training.labels, minlength=classes)  # [classes]
    missing_classes = np.flatnonzero(samples_by_class == 0).tolist()
    if not missing_classes:
        return
    names = labels
    if not names:
        names = [str(index) for index in range(classes)]
    missing_names = [names[index] for index in missing_classes]
    raise InputError(
        f"--train {training.source.spec} has no sample of the class {some(missing_names, 5)}",
        hint="every class needs samples to be told apart by",
    )
