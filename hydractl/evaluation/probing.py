"""The probes of one row: a classifier of the features of each member, in place of the model's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from hydractl.data.labels import some
from hydractl.errors import InputError
from hydractl.evaluation.sets import EvalSet
from hydractl.metrics.feature_scores import Training
from hydractl.metrics.probabilities import Floats
from hydractl.metrics.probes import fit_probe
from hydractl.model.detection import Detector, detector_of


@dataclass(frozen=True)
class Readouts:
    """The features that the members of a row make of a labelled data set.

    Attributes:
        source: the data set.
        labels: ``[N]``.
        features: of each member float64 ``[N, D]``.
    """

    source: EvalSet
    labels: npt.NDArray[np.int64]
    features: Sequence[Floats]


class Probes:
    """One probe for each member.

    Args:
        name: ``knn`` or ``linear``.
        training: what they are fitted to.
        val: what a penalty is chosen on; None for the default.
        classes: number of classes.
        labels: their names, None where they have none.

    Attributes:
        facts: as they stand under ``probe`` in the row.

    Raises:
        InputError: the training data are too few, or have no sample of some class.
    """

    def __init__(
        self, name: str, training: Readouts, val: Readouts | None, classes: int, labels: Sequence[str] | None
    ) -> None:
        missing = np.flatnonzero(np.bincount(training.labels, minlength=classes) == 0).tolist()
        if missing:
            names = [str(index) if labels is None else labels[index] for index in missing]
            raise InputError(
                f"--fit {training.source.spec} has no sample of the class {some(names, 5)}",
                hint="every class needs samples to be told apart by",
            )
        chosen = [None] * len(training.features) if val is None else [(own, val.labels) for own in val.features]
        each = zip(training.features, chosen, strict=True)
        self._members = [fit_probe(name, own, training.labels, classes, picked) for own, picked in each]
        self._training = training
        self.facts: Mapping[str, Any] = {
            "name": name,
            **{key: [probe.facts[key] for probe in self._members] for key in self._members[0].facts},
            "fitted_on": training.source.to_json(),
            "chosen_on": None if val is None else val.source.to_json(),
        }

    def logits(self, features: Sequence[torch.Tensor]) -> torch.Tensor:
        """Compute float64 ``[M, B, C]`` from the features ``[B, D]`` of each member."""
        each = zip(self._members, features, strict=True)
        return torch.from_numpy(np.stack([probe.logits(own.cpu().double().numpy()) for probe, own in each]))

    def detector(self, names: Sequence[str], neighbours: int, fitted_on: Mapping[str, Any]) -> Detector:
        """OOD scores on features, fitted to the data of the probes; ``neighbours`` is k of ``knn``."""
        labels, training = self._training.labels, []
        for probe, own in zip(self._members, self._training.features, strict=True):
            highest = probe.logits(own).max(axis=1) if len(probe.bias) else probe.bias  # read by scores of classifiers
            training.append(Training(own, labels, highest, probe.weight, probe.bias, neighbours))
        return detector_of(names, training, fitted_on)
