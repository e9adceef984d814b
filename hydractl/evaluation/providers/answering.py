"""How a model that runs answers a batch: by its own classifier, as here, or in one of the ways of the files beside."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hydractl.files.model_records import DropoutRecord, ProbeRecord
from hydractl.metrics.probabilities import Floats
from hydractl.model.detection import Detector, ensemble_features, readout
from hydractl.model.loading import ModelArgument, Runnable, SequentialEnsemble
from hydractl.model.runtime import HydraModel
from hydractl.model.source import Source


class MemberOutputs(NamedTuple):
    """The logits ``[M, B, C]`` of a batch, and by name its scores ``[M, B]`` on features."""

    logits: Tensor
    scores: Mapping[str, Floats]


class BatchPlace(NamedTuple):
    """The place of a batch, which seeds what is drawn for it: the fingerprint of its data set, and its first sample."""

    dataset: str
    first: int


class Answering(ABC):
    """One way to answer.

    Attributes:
        passes: how often the model runs for one answer; every pass of every member counts as a member of the row.
        unlike_file: how the predictions differ from those that a calibration in the file was chosen for, as words that
            follow "it was chosen for the predictions"; None where they do not.
        mc_dropout: the entry of the row for passes of dropout; None for others.
        probe: the entry of the row for a fitted probe; None for others, and before it is fitted.
    """

    passes: int = 1
    unlike_file: str | None = None
    mc_dropout: DropoutRecord | None = None
    probe: ProbeRecord | None = None

    def prepared(self, source: Source) -> Source:
        """Return a model as this way needs it.

        Raises:
            UsageError: it cannot answer in this way.
        """
        return source

    @abstractmethod
    def classes_of(self, argument: ModelArgument) -> tuple[Sequence[str] | None, int]:
        """Return the names of the classes, None where they have none, and their number."""

    def start(self, model: Runnable) -> None:
        """Take a model whose weights have just been read."""
        self._model = model

    @abstractmethod
    def outputs(self, inputs: Any, place: BatchPlace, detector: Detector | None) -> MemberOutputs:
        """Answer one batch.

        Args:
            inputs: the inputs of the batch, on the model's device.
            place: which batch of which data set it is.
            detector: computes the scores on features; None for no scores.
        """

    def fitted_detector(
        self, names: Sequence[str], neighbours: int, fitted_on: Mapping[str, object]
    ) -> Detector | None:
        """Return OOD scores fitted to features that were read already; None where they are yet to be read."""
        return None

    def release(self) -> None:
        """Forget the weights."""
        del self._model


class OwnClassifier(Answering):
    """Every member answers with the classifier that it has."""

    def classes_of(self, argument: ModelArgument) -> tuple[Sequence[str] | None, int]:
        """Return the classes of the model's own classifier, with the names that its first member with names has."""
        classes = argument.sources[0].classes
        assert classes is not None  # with_classes() has been here
        for source in argument.sources:
            if source.description.labels is not None:
                return source.description.labels, classes
        return None, classes

    def outputs(self, inputs: Any, place: BatchPlace, detector: Detector | None) -> MemberOutputs:
        """Run the model; its features are read only where scores are taken of them."""
        if detector is None:
            return MemberOutputs(self._model.member_logits(inputs), {})
        logits, features = ensemble_features(models_of(self._model), inputs)
        return MemberOutputs(logits, detector.scores(logits, features))


def models_of(model: Runnable) -> list[HydraModel]:
    """Return the models that run one after another."""
    if isinstance(model, SequentialEnsemble):
        return list(model.models)  # type: ignore[arg-type]
    return [model]


def member_features(model: Runnable, inputs: Any) -> list[torch.Tensor]:
    """Return the features ``[B, D]`` of every member."""
    features: list[torch.Tensor] = []
    for part in models_of(model):
        features += readout(part, inputs)
    return features
