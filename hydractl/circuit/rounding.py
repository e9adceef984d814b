"""What rounding leaves undecided: samples that another machine may count otherwise, and steps that hang on them.

Processors, versions of torch and numbers of threads add up in orders of their own, so that logits differ in their last
digits. That decides nothing where a sample is far from being classified otherwise, and everything where two logits are
the same but for rounding. So an evaluation says, beside what it counted, how far another machine may count otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import numpy as np
import torch

from hydractl.circuit.objective import Measured
from hydractl.circuit.tower import Candidate
from hydractl.metrics.probabilities import Floats, log_softmax

TOLERANCE = {torch.float64: 2e-14, torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
"""Two logits that differ by less, times the largest logit of the sample or 1, are the same but for rounding.

Machines were seen to differ by a twentieth of it, in half precision by a half.
"""


def tolerance(logits: Floats, dtype: torch.dtype) -> Floats:
    """Of each sample ``[B]``, by how much two logits of ``[B, classes]`` must differ to be apart."""
    return np.asarray(TOLERANCE[dtype] * np.maximum(1.0, np.abs(logits).max(axis=1)))


def margins(logits: Floats, labels: np.ndarray) -> Floats:
    """The logit of the label minus the highest other one, ``[B]``."""
    rows = np.arange(len(labels))
    others = logits.copy()
    others[rows, labels] = -np.inf
    return np.asarray(logits[rows, labels] - others.max(axis=1))


def _msp_slope(logits: Floats) -> Floats:
    log_p = log_softmax(logits).max(axis=1)
    return np.asarray(-np.exp(log_p) * np.expm1(log_p))


def _entropy_slope(logits: Floats) -> Floats:
    log_p = log_softmax(logits)
    p = np.exp(log_p)
    entropy = -(p * log_p).sum(axis=1, keepdims=True)
    return np.asarray((p * np.abs(log_p + entropy)).sum(axis=1))


def _one(logits: Floats) -> Floats:
    return np.ones(len(logits))


SLOPES: dict[str, Callable[[Floats], Floats]] = {
    "msp": _msp_slope,
    "entropy": _entropy_slope,
    "energy": _one,
    "maxlogit": _one,
}
"""By the name of an OOD score, by how much it changes at most for logits that differ by 1, ``[B]``."""


class Counted(Protocol):
    """A candidate whose samples have all been counted."""

    @property
    def candidate(self) -> Candidate:
        """Which head is removed."""

    @property
    def measured(self) -> Measured:
        """What was counted without it."""


C = TypeVar("C", bound=Counted)


def best_first(objective: str, counted: Sequence[C]) -> list[C]:
    """The highest score first, of equal ones the lowest site, then the lowest head."""
    return sorted(counted, key=lambda one: (-one.measured.key(objective), one.candidate))


def contenders(objective: str, counted: Sequence[C]) -> list[C]:
    """The winner, and after it those that could have won on another machine, the best first.

    A candidate contends unless another one has more at the least than it has at the most. So who contends hangs only on
    what was counted, not on the order of counting.
    """
    surest = min(counted, key=lambda one: (-one.measured.least.key(objective), one.candidate))
    return best_first(objective, [one for one in counted if one is surest or could_win(objective, one, surest)])


def could_win(objective: str, one: Counted, other: Counted) -> bool:
    """Whether rounding could put one candidate before another.

    Two that counted the very same, losses to the last unit, are the same model: what went are heads that do nothing.
    """
    first, second = one.measured.read_by(objective), other.measured.read_by(objective)
    could = (-first.most.key(objective), one.candidate) < (-second.least.key(objective), other.candidate)
    return could and first != second
