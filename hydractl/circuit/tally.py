"""Counting what logits say of samples, batch by batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hydractl.circuit.objective import LOSS_UNIT, Doubt, Measured
from hydractl.circuit.rounding import SLOPES, TOLERANCE, margins, tolerance
from hydractl.errors import NonFiniteError
from hydractl.metrics.ood import OOD_SCORES, two_u
from hydractl.metrics.probabilities import Floats, log_softmax


@dataclass(frozen=True)
class Values:
    """What one batch gives under one model.

    Attributes:
        scores: the OOD score of each sample, higher = more OOD.
        correct, nll, brier: as in :class:`Measured`; zero for OOD samples.
        doubt: of these three, as in :class:`Doubt`.
        near: how far rounding may take each score; a number holds for all.
    """

    labelled: bool
    scores: Floats
    correct: int = 0
    nll: int = 0
    brier: int = 0
    doubt: Doubt = Doubt()
    near: Floats | float = 0.0


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
    apart = tolerance(found, logits.dtype)
    # Half of it, so that the scores of two samples differ by as much as two logits do.
    near = apart / 2 * SLOPES[ood_score](found)
    if labels is None:
        return Values(False, scores, near=near)
    rows = np.arange(len(labels))
    log_p = log_softmax(found[None])[0]
    p = np.exp(log_p)
    # The sum over classes of (p - y)^2, by the classes that are wrong and the one that is right.
    brier = (p * p).sum(axis=1) + 1 - 2 * p[rows, labels]
    correct = int((found.argmax(axis=1) == labels).sum())
    margin = margins(found, labels)
    return Values(
        True,
        scores,
        correct,
        _units(-log_p[rows, labels]),
        _units(np.maximum(brier, 0)),
        Doubt(
            fewer=correct - int((margin > apart).sum()),
            more=int((margin >= -apart).sum()) - correct,
            loss=len(labels) * round(TOLERANCE[logits.dtype] / TOLERANCE[torch.float32]),
        ),
        near,
    )


def _units(losses: Floats) -> int:
    return int(np.rint(losses / LOSS_UNIT).astype(np.int64).sum())


class Pairs:
    """Twice the Mann-Whitney U of OOD scores above ID scores, over the batches so far."""

    def __init__(self) -> None:
        self.two_u = 0
        # Sorted, so that a batch is counted against everything before it in little time.
        self.inside: Floats = np.empty(0)
        self.outside: Floats = np.empty(0)

    def add(self, labelled: bool, scores: Floats) -> None:
        """Count the scores of one batch."""
        if labelled:
            self.two_u += two_u(scores, self.outside)
            self.inside = np.sort(np.concatenate([self.inside, scores]))
        else:
            self.two_u += two_u(self.inside, scores)
            self.outside = np.sort(np.concatenate([self.outside, scores]))


class Tally:
    """The counts of one model over the batches it has seen so far."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self._correct = self._nll = self._brier = 0
        self._doubt = Doubt()
        self._pairs, self._least, self._most = Pairs(), Pairs(), Pairs()

    def add(self, batch: int, values: Values) -> None:
        """Count one batch, which must be new."""
        assert batch not in self.seen
        self.seen.add(batch)
        self._correct += values.correct
        self._nll += values.nll
        self._brier += values.brier
        self._doubt = Doubt(*(one + more for one, more in zip(self._doubt, values.doubt, strict=True)))
        against = values.near if values.labelled else -values.near
        self._pairs.add(values.labelled, values.scores)
        self._least.add(values.labelled, values.scores + against)
        self._most.add(values.labelled, values.scores - against)

    def measured(self) -> Measured:
        """The counts over what has been seen."""
        n_id, n_ood = len(self._pairs.inside), len(self._pairs.outside)
        two_u = self._pairs.two_u if n_ood else None
        lower, higher = self._pairs.two_u - self._least.two_u, self._most.two_u - self._pairs.two_u
        doubt = self._doubt._replace(lower=lower, higher=higher)
        return Measured(self._correct, n_id, two_u, n_ood, self._nll, self._brier, doubt)
