"""What metrics take of a model's predictions on one data set: a few numbers a sample, from one pass over logits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hydractl.metrics import classification
from hydractl.metrics.calibrators import Calibration
from hydractl.metrics.diversity import block_mi, block_pair_mi
from hydractl.metrics.ood_scores import BLOCK_SCORES, entropy_of
from hydractl.metrics.probabilities import Block, Floats, blocks, check_shape, log_softmax, softmax


@dataclass(frozen=True, eq=False)
class Samples:
    """The predictions of M members on N samples, as far as metrics need them.

    Attributes:
        predicted: [N], the class of highest p, the lowest index on a tie.
        confidence: [N], the highest p.
        entropy: [N], of p, in nats.
        mi: [N], mutual information of the members, in nats.
        score: [N], the OOD score asked for, higher = more OOD.
        votes: int32 [M, N], the class each member votes for.
        pair_mi: [M(M-1)/2], mean mutual information of each two members, in the order of ``itertools.combinations``;
            empty where nobody asked for pairs.
        labels: [N], or None for data without labels; then the next two are None as well.
        label_log_probs: [N], log p of the label, in nats.
        brier_terms: [N], the sum over classes of (p_k - 1[y = k])^2.
    """

    predicted: NDArray[np.int64]
    confidence: Floats
    entropy: Floats
    mi: Floats
    score: Floats
    votes: NDArray[np.int32]
    pair_mi: Floats
    labels: NDArray[np.int64] | None = None
    label_log_probs: Floats | None = None
    brier_terms: Floats | None = None

    def __len__(self) -> int:
        return len(self.predicted)

    @property
    def correct(self) -> NDArray[np.bool_]:
        """[N], whether the predicted class is the label.

        Raises:
            ValueError: the data have no labels.
        """
        if self.labels is None:
            raise ValueError("these samples have no labels")
        return self.predicted == self.labels


def samples_of(
    logits: np.ndarray,
    labels: np.ndarray | None = None,
    *,
    score: str = "msp",
    calibration: Calibration | None = None,
    pairs: bool = True,
) -> Samples:
    """Reduce member logits to :class:`Samples`, in one pass over blocks of samples, in float64.

    Args:
        logits: [M, N, C], any float type; as large as you like if it is a memory map. What is kept are 40 + 4M bytes
            a sample, 24 more with labels.
        labels: [N] integers in 0..C-1.
        score: a name of ``OOD_SCORES``.
        calibration: what to apply to log p; ``energy``, ``maxlogit``, ``mi``, ``variance`` and votes stay as they are.
        pairs: whether each two members are compared, which takes time quadratic in their number.

    Raises:
        NonFiniteError: a logit is NaN or infinite.
        InputError: a label is outside 0..C-1, or the calibration is for another number of classes.
    """
    shape = check_shape(logits).shape
    found = _empty(shape, None if labels is None else classification.check_labels(labels, *shape[1:]), pairs)
    pair_sums = np.zeros(len(found.pair_mi))
    for rows, block in blocks(logits):
        probs, log_probs, predicted = _prediction(block, calibration)
        confidence = probs.max(axis=1)
        found.predicted[rows] = predicted
        found.confidence[rows] = confidence
        found.votes[:, rows] = block.votes
        found.entropy[rows] = entropy_of(log_probs)
        found.mi[rows] = block_mi(block)
        if score == "msp":
            found.score[rows] = -confidence
        elif score in ("entropy", "mi"):
            found.score[rows] = (found.entropy if score == "entropy" else found.mi)[rows]
        else:
            found.score[rows] = BLOCK_SCORES[score](block)
        if len(pair_sums):
            pair_sums += block_pair_mi(block).sum(axis=1)
        if found.labels is not None and found.label_log_probs is not None and found.brier_terms is not None:
            of = found.labels[rows]
            found.label_log_probs[rows] = classification.label_log_probs(log_probs, of)
            found.brier_terms[rows] = classification.brier_terms(probs, of)
    found.pair_mi[:] = pair_sums / max(1, len(found))
    return found


def calibrated_blocks(logits: np.ndarray, calibration: Calibration | None) -> Iterator[tuple[slice, Floats]]:
    """Yield which samples, and their calibrated p [n, C], run by run in order.

    Args:
        logits: [M, N, C], any float type.
        calibration: None leaves p as it is.

    Raises:
        NonFiniteError: a logit is NaN or infinite.
        InputError: the calibration is for another number of classes.
    """
    for rows, block in blocks(logits):
        yield rows, block.probs if calibration is None else softmax(calibration.scaled(block.log_probs))


def _prediction(block: Block, calibration: Calibration | None) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """p and log p [n, C] and the predicted class [n], calibrated."""
    if calibration is None:
        return block.probs, block.log_probs, block.predicted
    scaled = calibration.scaled(block.log_probs)
    probs = softmax(scaled)
    # A temperature changes no prediction; taken anew, rounding could decide between two classes of one probability.
    predicted = probs.argmax(axis=1) if calibration.kind == "vector" else block.predicted
    return probs, log_softmax(scaled), predicted


def _empty(shape: tuple[int, ...], labels: NDArray[np.int64] | None, pairs: bool) -> Samples:
    members, n, _ = shape
    return Samples(
        predicted=np.empty(n, dtype=np.int64),
        confidence=np.empty(n),
        entropy=np.empty(n),
        mi=np.empty(n),
        score=np.empty(n),
        votes=np.empty((members, n), dtype=np.int32),
        pair_mi=np.zeros(members * (members - 1) // 2 if pairs else 0),
        labels=labels,
        label_log_probs=None if labels is None else np.empty(n),
        brier_terms=None if labels is None else np.empty(n),
    )
