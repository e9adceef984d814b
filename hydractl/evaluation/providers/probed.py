"""A row measured by probes: of each member a classifier of its features, fitted to ``--train``, in place of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hydractl.evaluation.probing import Probes, Readouts
from hydractl.evaluation.providers.answering import Answering, BatchPlace, MemberOutputs, member_features
from hydractl.model.detection import Detector
from hydractl.model.loading import ModelArgument


class ProbeClassifier(Answering):
    """Every member answers with a probe of its features.

    Args:
        kind: ``knn`` or ``linear``.
        labels: names of the classes, None where they have none.
        classes: number of classes C.
    """

    unlike_file = "of the model's own classifier"

    def __init__(self, kind: str, labels: Sequence[str] | None, classes: int) -> None:
        self._kind = kind
        self._labels = labels
        self._classes = classes
        self.chooses_on_val = kind == "linear"
        self._probes: Probes | None = None

    def classes_of(self, argument: ModelArgument) -> tuple[Sequence[str] | None, int]:
        """Return the names of the probe's classes, None where they have none, and their number."""
        return self._labels, self._classes

    def fit_probe(self, data: Readouts, val: Readouts | None) -> None:
        """Fit a probe for each member.

        Raises:
            InputError: the training data are too few, or have no sample of some class.
        """
        self._probes = Probes(self._kind, data, val, self._classes, self._labels)
        self.probe = self._probes.facts

    def outputs(self, inputs: Any, place: BatchPlace, detector: Detector | None) -> MemberOutputs:
        """Return the logits that each member's probe makes of the member's features, and their scores."""
        assert self._probes is not None  # fitted before anything is measured
        features = member_features(self._model, inputs)
        logits = self._probes.logits(features)
        if detector is None:
            return MemberOutputs(logits, {})
        return MemberOutputs(logits, detector.scores(logits, features))

    def fitted_detector(self, names: Sequence[str], neighbours: int, fitted_on: Mapping[str, object]) -> Detector:
        """Return OOD scores fitted to the features that the probes were fitted to."""
        assert self._probes is not None  # fitted before anything is measured
        return self._probes.detector(names, neighbours, fitted_on)

    def release(self) -> None:
        """Forget the weights, and what was fitted to them."""
        super().release()
        self._probes = None
