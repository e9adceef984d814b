"""The whole answer of a model as part of its graph: from logits and features to probabilities, score, flag and set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from hydractl.exports.graph_arrays import IN_GRAPH
from hydractl.metrics.conformal import prediction_sets
from hydractl.metrics.feature_scores.scores import FEATURE_SCORES
from hydractl.metrics.ood_scores import SCORES, says_nothing
from hydractl.metrics.probabilities import Block, Floats
from hydractl.model.detection import Detector, narrowed
from hydractl.model.prediction import Chosen

PROBABILITIES, OOD_SCORE, IS_OOD, CONFORMAL_SET, MEMBER_LOGITS = OUTPUTS = (
    "probabilities",
    "ood_score",
    "is_ood",
    "conformal_set",
    "member_logits",
)
"""The outputs of graphs by name, in their order; ``probabilities`` and ``member_logits`` every graph has."""


class GraphAnswer(nn.Module):
    """What follows from the logits and the features of the members, in float64.

    It is computed by the same functions as in ``eval`` and ``predict``, which run on tensors here.

    Args:
        chosen: what ``calibrate`` chose for the model.
        detector: what the OOD score was fitted to; None for a score on logits.
        members: how many there are.

    Attributes:
        takes_features: whether the score is one on features.
        outputs: the names of what it computes.
    """

    def __init__(self, chosen: Chosen, detector: Detector | None, members: int) -> None:
        super().__init__()
        self._chosen = chosen
        self.takes_features = detector is not None
        self._numbers: list[dict[str, Floats]] = []
        self._fitted = nn.ModuleList()
        if detector is not None:
            self._keep_fitted(detector)

        self._has_score = not says_nothing(chosen.score, members)
        self.outputs = [PROBABILITIES]
        if self._has_score:
            self.outputs.append(OOD_SCORE)
            if chosen.threshold is not None:
                self.outputs.append(IS_OOD)
        if chosen.conformal is not None:
            self.outputs.append(CONFORMAL_SET)
        self.outputs.append(MEMBER_LOGITS)

    def _keep_fitted(self, detector: Detector) -> None:
        """Keep what the score was fitted to, member by member: numbers here, arrays as buffers that the file holds."""
        score = self._chosen.score
        names_of_numbers = FEATURE_SCORES[score].numbers
        for fitted in detector.members:
            numbers = {}
            arrays = nn.Module()
            for part, values in fitted[score].items():
                if part in names_of_numbers:
                    numbers[part] = values
                else:
                    # Numbers of half the size where that loses nothing, as in the checkpoint: see _fitted_to_member().
                    arrays.register_buffer(_buffer_name(part), narrowed(values))
            self._numbers.append(numbers)
            self._fitted.append(arrays)

    def forward(self, member_logits: Tensor, features: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return the outputs by name.

        Args:
            member_logits: ``[M, B, classes]``.
            features: of each member ``[B, D]``; none for a score on logits.
        """
        logits = cast("Floats", member_logits.double())
        block = Block(logits, self._chosen.calibration, IN_GRAPH)
        probabilities = cast("Tensor", block.probs)
        answer = {PROBABILITIES: probabilities.float()}
        if OOD_SCORE in self.outputs:
            answer[OOD_SCORE] = self._score(block, features)
        if IS_OOD in self.outputs:
            assert self._chosen.threshold is not None
            threshold = IN_GRAPH.number(self._chosen.threshold)
            answer[IS_OOD] = answer[OOD_SCORE] >= threshold
        if CONFORMAL_SET in self.outputs:
            assert self._chosen.conformal is not None
            sets = prediction_sets(block.probs, self._chosen.conformal, IN_GRAPH)
            answer[CONFORMAL_SET] = cast("Tensor", sets)
        answer[MEMBER_LOGITS] = member_logits
        return answer

    def _score(self, block: Block, features: Sequence[Tensor]) -> Tensor:
        """Return the OOD score, float64 ``[B]``: one on features is the mean of those of the members."""
        name = self._chosen.score
        if not self.takes_features:
            score_of_logits = SCORES[name]
            return cast("Tensor", score_of_logits(block))
        score_of_features = FEATURE_SCORES[name].score
        scores = []
        for member, features_of_member in enumerate(features):
            fitted = cast("Mapping[str, Floats]", self._fitted_to_member(member))
            features_in_float64 = cast("Floats", features_of_member.double())
            logits = block.logits[member]
            scores.append(score_of_features(fitted, features_in_float64, logits, IN_GRAPH))
        scores_of_members = torch.stack(cast("list[Tensor]", scores))  # [M, B]
        return scores_of_members.mean(dim=0)

    def _fitted_to_member(self, member: int) -> dict[str, object]:
        """Return what the score was fitted to for a member: tensors in float64, and numbers."""
        statistics: dict[str, object] = dict(self._numbers[member])
        arrays = self._fitted[member]
        for buffer, values in arrays.named_buffers():
            part = _part_of_buffer(buffer)
            statistics[part] = values.double()
        return statistics


def _buffer_name(part: str) -> str:
    """Return the name of the buffer of a part, whose own name may have dots."""
    return part.replace(".", "_of_")


def _part_of_buffer(buffer: str) -> str:
    """Return the part that a buffer holds."""
    return buffer.replace("_of_", ".")
