"""The last part of an exported graph: from logits and features to probabilities, OOD score, flag and prediction set."""

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
"""The names of a graph's outputs, in their order. Every graph has ``probabilities`` and ``member_logits``."""


class GraphAnswer(nn.Module):
    """Computes the outputs of a graph from the logits and features of all ensemble members, in float64.

    It calls the same functions as ``eval`` and ``predict``, which then run on tensors instead of numpy arrays.

    Args:
        chosen: the choices of ``calibrate`` for the model: calibration, OOD score, threshold, conformal prediction.
        detector: the fitted statistics of an OOD score on features; None for a score on logits.
        members: the number of members.

    Attributes:
        takes_features: whether the OOD score is computed from features.
        takes_layers: whether it takes what each block gives, too.
        outputs: the names of the outputs that it computes, some of :data:`OUTPUTS`.
    """

    def __init__(self, chosen: Chosen, detector: Detector | None, members: int) -> None:
        """Decide which outputs there are, and store what was fitted to the model."""
        super().__init__()
        self._chosen = chosen
        self.takes_features = detector is not None
        self.takes_layers = detector is not None and detector.takes_layers

        # What was fitted, for each member by name. Plain numbers are kept as they are. Arrays go into buffers, so that
        # the exported file contains them.
        self._numbers: list[dict[str, Floats]] = []
        self._fitted = nn.ModuleList()
        if detector is not None:
            names_of_numbers = FEATURE_SCORES[chosen.score].numbers
            for fitted_by_score in detector.members:
                numbers = {}
                arrays = nn.Module()
                for statistic, values in fitted_by_score[chosen.score].items():
                    if statistic in names_of_numbers:
                        numbers[statistic] = values
                    else:
                        # As in a checkpoint, float64 becomes float32 if that loses nothing. _fitted_to_member()
                        # converts the buffers back. torch allows no dots in their names.
                        buffer = statistic.replace(".", "_of_")
                        arrays.register_buffer(buffer, narrowed(values))
                self._numbers.append(numbers)
                self._fitted.append(arrays)

        # An output exists only if it says something (a single member has no disagreement), and if it was chosen.
        self._has_score = not says_nothing(chosen.score, members)
        self.outputs = [PROBABILITIES]
        if self._has_score:
            self.outputs.append(OOD_SCORE)
            if chosen.threshold is not None:
                self.outputs.append(IS_OOD)
        if chosen.conformal is not None:
            self.outputs.append(CONFORMAL_SET)
        self.outputs.append(MEMBER_LOGITS)

    def forward(self, member_logits: Tensor, features: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return the outputs by name, as many as :attr:`outputs` has.

        * ``probabilities``, float32 ``[B, classes]``: the mean over members; and ``member_logits`` as they are;
        * ``ood_score``, float64 ``[B]``, and ``is_ood``, bool ``[B]``: whether the score is at least the threshold;
        * ``conformal_set``, bool ``[B, classes]``: the classes in the prediction set.

        Args:
            member_logits: logits of all members, ``[M, B, classes]``.
            features: for each member its features ``[B, D]``; empty for a score on logits.
        """
        # The averaged probabilities, computed in float64 as by the model itself. With IN_GRAPH, Block computes with
        # tensors instead of numpy arrays; the casts are for the type checker.
        logits = cast("Floats", member_logits.double())
        block = Block(logits, self._chosen.calibration, IN_GRAPH)
        probabilities = cast("Tensor", block.probs)
        answer = {PROBABILITIES: probabilities.float()}

        # What was calibrated, as far as the graph has it: the OOD score, the flag, and the prediction set.
        if OOD_SCORE in self.outputs:
            answer[OOD_SCORE] = self._score(block, features)
        if IS_OOD in self.outputs:
            assert self._chosen.threshold is not None
            threshold = IN_GRAPH.number(self._chosen.threshold.value)
            answer[IS_OOD] = answer[OOD_SCORE] >= threshold
        if CONFORMAL_SET in self.outputs:
            assert self._chosen.conformal is not None
            sets = prediction_sets(block.probs, self._chosen.conformal, IN_GRAPH)
            answer[CONFORMAL_SET] = cast("Tensor", sets)
        answer[MEMBER_LOGITS] = member_logits
        return answer

    def _score(self, block: Block, features: Sequence[Tensor]) -> Tensor:
        """Return the OOD score, float64 ``[B]``; a score on features is the mean of the members' scores.

        Args:
            block: the logits of all members for the batch, and everything that follows from them.
            features: for each member its features ``[B, D]``; empty for a score on logits.
        """
        name = self._chosen.score
        if not self.takes_features:
            logit_score = SCORES[name]
            return cast("Tensor", logit_score(block))

        # A score on features: for each member from what was fitted to this member, [B] each. With IN_GRAPH functions
        # for numpy arrays compute with tensors; the casts are for the type checker.
        feature_score = FEATURE_SCORES[name].score
        scores = []
        for member, features_of_member in enumerate(features):
            fitted = cast("Mapping[str, Floats]", self._fitted_to_member(member))
            features_in_float64 = cast("Floats", features_of_member.double())
            logits = block.logits[member]
            scores.append(feature_score(fitted, features_in_float64, logits, IN_GRAPH))
        scores_of_members = torch.stack(cast("list[Tensor]", scores))  # [M, B]
        return scores_of_members.mean(dim=0)

    def _fitted_to_member(self, member: int) -> dict[str, object]:
        """Return the fitted statistics of one member by name: tensors in float64, and plain numbers."""
        statistics: dict[str, object] = dict(self._numbers[member])
        arrays = self._fitted[member]
        for buffer, values in arrays.named_buffers():
            statistic = buffer.replace("_of_", ".")
            statistics[statistic] = values.double()
        return statistics
