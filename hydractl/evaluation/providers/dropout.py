"""A row of MC dropout: the model runs several times with dropout turned on, and every pass counts as a member."""

from __future__ import annotations

from typing import Any

from hydractl.evaluation.mc_dropout import MCDropout, with_layers
from hydractl.evaluation.providers.answering import BatchPlace, MemberOutputs, OwnClassifier
from hydractl.files.model_records import DropoutRecord
from hydractl.model.loading import Runnable
from hydractl.model.source import Source


class DropoutPasses(OwnClassifier):
    """Every member answers N times with its own classifier, each time with other units dropped.

    Args:
        settings: the dropout rate, the number of passes N, and the seed of the masks.
    """

    unlike_file = "without dropout"

    def __init__(self, settings: DropoutRecord) -> None:
        self.mc_dropout = settings
        self.passes = settings.passes

    def prepared(self, source: Source) -> Source:
        """Return the model with dropout layers.

        Raises:
            UsageError: if the model can have none.
        """
        return with_layers(source)

    def start(self, model: Runnable) -> None:
        """Store the model and turn on its dropout."""
        settings = self.mc_dropout
        assert settings is not None
        self._runs = MCDropout(model, p=settings.p, passes=settings.passes, seed=settings.seed)

    def outputs(self, inputs: Any, place: BatchPlace, with_features: bool) -> MemberOutputs:
        """Return the logits of all passes, ``[N * M, B, C]``; the settings allow no scores on features."""
        return MemberOutputs(self._runs.member_logits(inputs, place.dataset, place.first))

    def release(self) -> None:
        """Release the weights."""
        del self._runs
