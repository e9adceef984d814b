"""The way in which a running model answers a batch: with its own classifier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from hydractl.files.model_records import DropoutRecord
from hydractl.model.detection import ensemble_features
from hydractl.model.loading import ModelArgument, Runnable, SequentialEnsemble
from hydractl.model.runtime import HydraModel
from hydractl.model.source import Source


class MemberOutputs(NamedTuple):
    """The logits of a batch, ``[M, B, C]``, and the features of each member, ``[B, D]``, if they are asked for."""

    logits: Tensor
    features: Sequence[Tensor] = ()


class BatchPlace(NamedTuple):
    """Identifies a batch, to seed random numbers: the fingerprint of its data set, and its first sample's index."""

    dataset: str
    first: int


class OwnClassifier:
    """The usual way in which a running model answers: every member with its own classifier.

    Attributes:
        passes: how often the model runs for one answer; every pass of every member counts as a member of the row.
        unlike_file: why a calibration in the model's file does not fit these predictions, as words that follow "it was
            chosen for the predictions", e.g. ``without dropout``; None if it fits.
        mc_dropout: the record of MC dropout in the row; None for other ways.
    """

    passes: int = 1
    unlike_file: str | None = None
    mc_dropout: DropoutRecord | None = None

    def prepared(self, source: Source) -> Source:
        """Return the model with the changes that this way needs, e.g. dropout layers.

        Raises:
            UsageError: if the model cannot answer in this way.
        """
        return source

    def classes_of(self, argument: ModelArgument) -> tuple[Sequence[str] | None, int]:
        """Return the names and the number of the classes; the names are those of the first member that has names."""
        classes = argument.sources[0].classes
        assert classes is not None  # with_classes() has set the classes of zero-shot models
        for source in argument.sources:
            if source.description.labels is not None:
                return source.description.labels, classes
        return None, classes

    def start(self, model: Runnable) -> None:
        """Store a model whose weights have just been read; :meth:`outputs` runs it."""
        self._model = model

    def outputs(self, inputs: Any, place: BatchPlace, with_features: bool) -> MemberOutputs:
        """Answer one batch. On a GPU the outputs need not be computed yet.

        Args:
            inputs: the inputs of the batch, on the model's device.
            place: identifies the batch.
            with_features: whether OOD scores are computed from the members' features; else none are read.
        """
        if not with_features:
            return MemberOutputs(self._model.member_logits(inputs))
        logits, features = ensemble_features(models_of(self._model), inputs)
        return MemberOutputs(logits, features)

    def release(self) -> None:
        """Release the weights."""
        del self._model


def models_of(model: Runnable) -> list[HydraModel]:
    """Return the models of a sequential ensemble; a single model is returned as a list of one."""
    if isinstance(model, SequentialEnsemble):
        return list(model.models)  # type: ignore[arg-type]
    return [model]
