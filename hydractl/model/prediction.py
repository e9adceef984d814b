"""The complete answer of a classifier to some samples, from one forward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hydractl.errors import InputError
from hydractl.files.calibrate_answer import Conformal
from hydractl.files.model_records import Calibration, StoredThreshold
from hydractl.files.results import Record
from hydractl.metrics.conformal import prediction_sets
from hydractl.metrics.ood_scores import SCORES, says_nothing
from hydractl.metrics.probabilities import Floats, block_of
from hydractl.metrics.threshold import stored_score


@dataclass(frozen=True)
class Chosen:
    """What ``calibrate`` has chosen for a model; a field is None if nothing was.

    Attributes:
        ood_score: the name of the OOD score.
        calibration: the calibration of the averaged prediction.
        threshold: a sample whose OOD score reaches its value is flagged.
        conformal: what makes prediction sets.
    """

    ood_score: str | None = None
    calibration: Calibration | None = None
    threshold: StoredThreshold | None = None
    conformal: Conformal | None = None

    @property
    def score(self) -> str:
        """The name of the OOD score; ``msp`` if none was chosen."""
        return self.ood_score or "msp"

    @classmethod
    def of(cls, document: Mapping[str, Any], origin: str = "") -> Chosen:
        """Return what ``calibrate`` stored: OOD score, calibration, threshold and prediction sets, each None if not.

        Args:
            document: the part ``extra`` of a description, the record of the model in a predictions file, or the answer
                of ``calibrate``.
            origin: the name of the file, with which messages begin.

        Raises:
            InputError: if it contains something that ``calibrate`` does not write.
        """
        try:
            stored = _Stored.checked({**document}, "what calibrate has chosen is broken")
            ood_score = stored_score(document)
        except InputError as error:
            if not origin:
                raise
            raise InputError(f"{origin}: {error.message}", error.hint, error.problems) from None
        calibration = None
        if stored.calibration is not None:  # results say that it was found in a file
            calibration = stored.calibration.model_copy(update={"stored": True})
        return cls(ood_score, calibration, stored.threshold, stored.conformal)


class _Stored(Record):
    """What ``calibrate`` stores beside the OOD score, as a file holds it."""

    calibration: Calibration | None = None
    threshold: StoredThreshold | None = None
    conformal: Conformal | None = None


@dataclass(frozen=True)
class Prediction:
    """The answers of M members to B samples, with C classes. Tensors are on the CPU, and numbers are float64.

    Attributes:
        labels: the class names; None if the model has none.
        probabilities: ``[B, C]``, of the ensemble, calibrated if the checkpoint holds a calibration.
        predicted: int64 ``[B]``, the class with the highest probability; the lowest index if several have it.
        confidence: ``[B]``, the highest probability.
        entropy: ``[B]``, the entropy of the probabilities, in nats.
        mi: ``[B]``, the mutual information of the members, which measures how far they disagree, in nats; 0 if there is
            one member.
        ood_score: ``[B]``, higher is more OOD; None if the score needs several members and there is one.
        is_ood: bool ``[B]``, whether the score reaches the threshold; None if there is no threshold or no score.
        sets: bool ``[B, C]``, which classes are in the conformal prediction set; None if the checkpoint makes no sets.
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
        """The name of each sample's predicted class; its index as a text if classes have no names."""
        indices = self.predicted.tolist()
        if self.labels is None:
            return [str(index) for index in indices]
        return [self.labels[index] for index in indices]


def prediction_of(
    logits: Tensor, fitted_scores: Mapping[str, Floats], chosen: Chosen, labels: Sequence[str] | None
) -> Prediction:
    """Turn the logits of some samples into the complete answer.

    Args:
        logits: ``[M, B, C]``, of any dtype and on any device.
        fitted_scores: the OOD scores on features, ``[B]`` each, by name.
        chosen: what ``calibrate`` has chosen for the model.
        labels: the class names; None if there are none.

    Raises:
        NonFiniteError: if a logit is NaN or infinite.
    """
    at_least_float32 = torch.promote_types(logits.dtype, torch.float32)  # numpy has no bfloat16
    values = logits.detach().to("cpu", at_least_float32).numpy()
    block = block_of(values, chosen.calibration)

    # The OOD score is either in `fitted_scores`, or computed from logits, or undefined: a score of the members'
    # disagreement says nothing about a single model.
    score = fitted_scores.get(chosen.score)
    if score is None and not says_nothing(chosen.score, len(logits)):
        score = np.asarray(SCORES[chosen.score](block), dtype=np.float64)

    # What the checkpoint did not ask for stays None.
    ood_score = None if score is None else torch.from_numpy(score)
    flags = None if score is None or chosen.threshold is None else score >= chosen.threshold.value
    is_ood = None if flags is None else torch.from_numpy(flags)
    sets = None if chosen.conformal is None else torch.from_numpy(prediction_sets(block.probs, chosen.conformal))
    return Prediction(
        labels=labels,
        probabilities=torch.from_numpy(block.probs),
        predicted=torch.from_numpy(block.predicted),
        confidence=torch.from_numpy(block.confidence),
        entropy=torch.from_numpy(block.entropy),
        mi=torch.from_numpy(block.mi),
        ood_score=ood_score,
        is_ood=is_ood,
        sets=sets,
        member_probabilities=torch.from_numpy(block.member_probs),
    )
