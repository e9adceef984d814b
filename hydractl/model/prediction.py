"""The whole answer of a classifier to some samples, all of it from one forward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hydractl.metrics.calibrators import Calibration
from hydractl.metrics.conformal import Conformal, prediction_sets, stored_conformal
from hydractl.metrics.ood_scores import SCORES, says_nothing
from hydractl.metrics.probabilities import Floats, blocks
from hydractl.metrics.threshold import stored_score, stored_threshold
from hydractl.metrics.watching import Reference, stored_reference


@dataclass(frozen=True)
class Chosen:
    """The choices of ``calibrate`` for a model, as its checkpoint holds them.

    Attributes:
        score: name of the OOD score; ``msp`` where none was chosen.
        calibration: of the averaged prediction; None for none.
        threshold: the OOD score from which on a sample is flagged; None for none.
        conformal: what makes prediction sets; None for none.
        reference: what ID samples look like, to compare inputs with; None for none.
    """

    score: str
    calibration: Calibration | None
    threshold: float | None
    conformal: Conformal | None
    reference: Reference | None = None

    @classmethod
    def of(cls, extra: Mapping[str, Any]) -> Chosen:
        """Read the part ``extra`` of a description.

        Raises:
            InputError: for what ``calibrate`` does not write.
        """
        threshold = stored_threshold(extra.get("threshold"))
        calibration = extra.get("calibration")
        return cls(
            score=stored_score(extra) or "msp",
            calibration=Calibration.from_json(calibration) if calibration else None,
            threshold=None if threshold is None else float(threshold["value"]),
            conformal=stored_conformal(extra.get("conformal")),
            reference=stored_reference(extra.get("reference")),
        )


@dataclass(frozen=True)
class Prediction:
    """The answers of M members to B samples, with C classes; tensors on the CPU, numbers in float64.

    Attributes:
        labels: names of the classes; None where the model has none.
        probabilities: ``[B, C]``, of the ensemble, calibrated where the checkpoint holds a calibration.
        predicted: int64 ``[B]``, the class of highest probability, the lowest number on a tie.
        confidence: ``[B]``, the highest probability.
        entropy: ``[B]``, of the probabilities, in nats.
        mi: ``[B]``, the mutual information of the members, how far they disagree, in nats; 0 for a single member.
        ood_score: ``[B]``, higher = more OOD; None for a score of several members, of a single one.
        is_ood: bool ``[B]``, whether the score reaches the threshold; None where the checkpoint holds none.
        sets: bool ``[B, C]``, which classes are in the conformal prediction set; None where it holds none.
        member_probabilities: ``[M, B, C]``, of each member, not calibrated.
    """

    labels: Sequence[str] | None
    probabilities: Tensor
    predicted: Tensor
    confidence: Tensor
    entropy: Tensor
    mi: Tensor
    ood_score: Tensor | None
    is_ood: Tensor | None
    sets: Tensor | None
    member_probabilities: Tensor

    def __len__(self) -> int:
        return self.predicted.shape[0]

    @property
    def predicted_labels(self) -> list[str]:
        """The name of the predicted class of each sample; its number as a text where classes have no names."""
        numbers = self.predicted.tolist()
        if self.labels is None:
            return [str(number) for number in numbers]
        return [self.labels[number] for number in numbers]


def prediction_of(
    logits: Tensor, fitted_scores: Mapping[str, Floats], chosen: Chosen, labels: Sequence[str] | None
) -> Prediction:
    """Turn the logits of some samples into the whole answer.

    Args:
        logits: ``[M, B, C]``, of any format and on any device.
        fitted_scores: by name the OOD scores on features, ``[B]``.
        chosen: what was chosen for the model.
        labels: names of the classes; None where there are none.

    Raises:
        NonFiniteError: a logit is NaN or infinite.
    """
    members, count, classes = logits.shape
    at_least_float32 = torch.promote_types(logits.dtype, torch.float32)  # numpy has no bfloat16
    values = logits.detach().to("cpu", at_least_float32).numpy()

    # The OOD score was fitted to features, or is computed from logits, or says nothing of a single model.
    score = fitted_scores.get(chosen.score)
    takes_logits = score is None and not says_nothing(chosen.score, members)

    # All that is computed from logits, some samples at a time.
    probabilities = np.empty((count, classes))
    predicted = np.empty(count, dtype=np.int64)
    entropy = np.empty(count)
    mi = np.empty(count)
    member_probabilities = np.empty((members, count, classes))
    score_of_logits = np.empty(count)
    for rows, block in blocks(values, chosen.calibration):
        probabilities[rows] = block.probs
        predicted[rows] = block.predicted
        entropy[rows] = block.entropy
        mi[rows] = block.mi
        member_probabilities[:, rows] = block.member_probs
        if takes_logits:
            score_of_logits[rows] = SCORES[chosen.score](block)
    if takes_logits:
        score = score_of_logits

    # What the checkpoint may lack is None.
    ood_score = None
    if score is not None:
        ood_score = torch.from_numpy(score)
    is_ood = None
    if score is not None and chosen.threshold is not None:
        is_ood = torch.from_numpy(score >= chosen.threshold)
    sets = None
    if chosen.conformal is not None:
        sets = torch.from_numpy(prediction_sets(probabilities, chosen.conformal))
    return Prediction(
        labels=labels,
        probabilities=torch.from_numpy(probabilities),
        predicted=torch.from_numpy(predicted),
        confidence=torch.from_numpy(probabilities.max(axis=1)),
        entropy=torch.from_numpy(entropy),
        mi=torch.from_numpy(mi),
        ood_score=ood_score,
        is_ood=is_ood,
        sets=sets,
        member_probabilities=torch.from_numpy(member_probabilities),
    )
