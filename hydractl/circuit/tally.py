"""Counting what logits say of samples, batch by batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from hydractl.circuit.objective import LOSS_UNIT, Measured
from hydractl.errors import NonFiniteError
from hydractl.metrics.ood import OOD_SCORES, two_u
from hydractl.metrics.probabilities import Floats, log_softmax


@dataclass(frozen=True)
class Values:
    """What one batch gives under one model.

    Attributes:
        scores: the OOD score of each sample, higher = more OOD.
        correct, nll, brier: as in :class:`Measured`; zero for OOD samples.
    """

    labelled: bool
    scores: Floats
    correct: int = 0
    nll: int = 0
    brier: int = 0


def values_of(logits: Tensor, labels: np.ndarray | None, ood_score: str) -> Values:
    """Count one batch, in float64.

    Args:
        logits: ``[B, classes]``.
        labels: ``[B]``, or None for OOD samples.
        ood_score: a name of :data:`hydractl.metrics.ood.OOD_SCORES`.

    Raises:
        NonFiniteError: for a logit that is NaN or infinite.
    """
    found = logits.double().cpu().numpy()
    if not np.isfinite(found).all():
        raise NonFiniteError("a logit is NaN or infinite during the search", hint="try a wider --dtype")
    scores = OOD_SCORES[ood_score](found[None])
    if labels is None:
        return Values(False, scores)
    rows = np.arange(len(labels))
    log_p = log_softmax(found[None])[0]
    p = np.exp(log_p)
    # The sum over classes of (p - y)^2, by the classes that are wrong and the one that is right.
    brier = (p * p).sum(axis=1) + 1 - 2 * p[rows, labels]
    return Values(
        True,
        scores,
        int((found.argmax(axis=1) == labels).sum()),
        _units(-log_p[rows, labels]),
        _units(np.maximum(brier, 0)),
    )


def _units(losses: Floats) -> int:
    return int(np.rint(losses / LOSS_UNIT).astype(np.int64).sum())


class Tally:
    """The counts of one model over the batches it has seen so far."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self._correct = self._nll = self._brier = self._two_u = 0
        # Sorted, so that a batch is counted against everything before it in little time.
        self._inside: Floats = np.empty(0)
        self._outside: Floats = np.empty(0)

    def add(self, batch: int, values: Values) -> None:
        """Count one batch, which must be new."""
        assert batch not in self.seen
        self.seen.add(batch)
        self._correct += values.correct
        self._nll += values.nll
        self._brier += values.brier
        if values.labelled:
            self._two_u += two_u(values.scores, self._outside)
            self._inside = np.sort(np.concatenate([self._inside, values.scores]))
        else:
            self._two_u += two_u(self._inside, values.scores)
            self._outside = np.sort(np.concatenate([self._outside, values.scores]))

    def measured(self) -> Measured:
        """The counts over what has been seen."""
        n_id, n_ood = len(self._inside), len(self._outside)
        found = self._two_u if n_ood else None
        return Measured(self._correct, n_id, found, n_ood, self._nll, self._brier)
