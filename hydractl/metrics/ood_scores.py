"""Out-of-distribution scores: one number a sample from the members' logits, higher = more OOD.

One function each, of a :class:`~hydractl.metrics.probabilities.Block`. The choices of ``--ood-score`` are read from
here when help is shown, so nothing here imports numpy: the arithmetic is the block's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hydractl.metrics.probabilities import Block, Floats


@dataclass(frozen=True)
class OodScore:
    """One score: its function of a block of n samples -> float64 [n], and the sentence that defines it."""

    function: Callable[[Block], Floats]
    convention: str

    def __call__(self, block: Block) -> Floats:
        return self.function(block)


SCORES: dict[str, OodScore] = {}
"""The scores by name, in the order of their declarations."""


def ood_score(convention: str) -> Callable[[Callable[[Block], Floats]], OodScore]:
    """Declare the function below as the score of its name."""

    def declare(function: Callable[[Block], Floats]) -> OodScore:
        SCORES[function.__name__] = OodScore(function, convention)
        return SCORES[function.__name__]

    return declare


@ood_score("OOD score: minus the highest p.")
def msp(block: Block) -> Floats:
    """Minus the maximum softmax probability of p, [n]. Source: Hendrycks and Gimpel 2017."""
    return -block.probs.max(axis=1)


@ood_score("OOD score: entropy of p, in nats.")
def entropy(block: Block) -> Floats:
    """Entropy of p in nats, [n]."""
    return block.entropy


@ood_score("OOD score: mean over members of -logsumexp of the logits (temperature 1).")
def energy(block: Block) -> Floats:
    """Mean over members of the energy -logsumexp(logits), [n]. Source: Liu et al. 2020, equation 4, T = 1."""
    return -block.logsumexp.mean(axis=0)


@ood_score("OOD score: mean over members of minus the highest logit.")
def maxlogit(block: Block) -> Floats:
    """Mean over members of minus the highest logit, [n]. Source: Hendrycks et al. 2022."""
    return -block.highest.mean(axis=0)


@ood_score("OOD score: H(p) - mean over members of H(p_m), in nats; constant for one member.")
def mi(block: Block) -> Floats:
    """Mutual information in nats, [n]; 0 for one member. Source: Depeweg et al. 2018."""
    return block.mi


@ood_score(
    "OOD score: population variance over members of the probability of the class with the highest p;"
    " constant for one member."
)
def variance(block: Block) -> Floats:
    """Population variance over members of the probability of the ensemble's predicted class, [n]; 0 for one member."""
    chosen = block.member_probs_of_predicted
    # The shift changes nothing but rounding: the variance of equal members is exactly 0.
    return (chosen - chosen[0]).var(axis=0)
