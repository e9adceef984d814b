"""A row measured with probes: classifiers of each member's features, fitted to ``--train``, replace its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hydractl.evaluation.probing import Probes, Readouts
from hydractl.evaluation.providers.answering import Answering, BatchPlace, MemberOutputs, member_features
from hydractl.model.detection import Detector
from hydractl.model.loading import ModelArgument


class ProbeClassifier(Answering):
    """Every member answers with a probe, a classifier of its features.

    Args:
        kind: ``knn`` or ``linear``.
        labels: the names of the classes; None if there are none.
        classes: the number of classes C.
    """

    unlike_file = "of the model's own classifier"

    def __init__(self, kind: str, labels: Sequence[str] | None, classes: int) -> None:
        self._kind = kind
        self._labels = labels
        self._classes = classes
        self.chooses_on_val = kind == "linear"
        self._probes: Probes | None = None

    def classes_of(self, argument: ModelArgument) -> tuple[Sequence[str] | None, int]:
        """Return the names of the probe's classes (None if there are none) and their number."""
        return self._labels, self._classes

    def fit_probe(self, data: Readouts, val: Readouts | None) -> None:
        """Fit a probe for each member, and set :attr:`probe` to their record.

        Args:
            data: the features of the training data.
            val: the features of the validation data on which the penalty is chosen; None means the default penalty.

        Raises:
            InputError: if there are too few training data, or no sample of some class.
        """
        self._probes = Probes(self._kind, data, val, self._classes, self._labels)
        self.probe = self._probes.facts

    def outputs(self, inputs: Any, place: BatchPlace, with_features: bool) -> MemberOutputs:
        """Return the logits of each member's probe, and the features that it reads."""
        assert self._probes is not None  # fit_probe() was called before
        features = member_features(self._model, inputs)
        logits = self._probes.logits(features)
        if not with_features:
            return MemberOutputs(logits)
        return MemberOutputs(logits, features)

    def fitted_detector(self, names: Sequence[str], neighbours: int, fitted_on: Mapping[str, object]) -> Detector:
        """Return OOD scores that are fitted to the same features as the probes."""
        assert self._probes is not None  # fit_probe() was called before
        return self._probes.detector(names, neighbours, fitted_on)

    def release(self) -> None:
        """Release the weights and the probes."""
        super().release()
        self._probes = None
