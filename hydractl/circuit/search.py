"""Algorithm 1 of the paper (D.1.2): greedy backward elimination over all heads of a model.

At each step every remaining head is ablated alone on top of the heads already removed, and the head whose removal
gives the highest score is removed for good. Ties: lowest site first, then lowest head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hydractl.circuit.evaluator import Candidate, Evaluator
from hydractl.circuit.objective import Measured


@dataclass(frozen=True)
class Step:
    """One removal."""

    candidate: Candidate
    measured: Measured
    evaluations: int


class GreedySearch:
    """Rankings for any number of objectives over the same data; what two of them have in common is measured once."""

    def __init__(self, evaluator: Evaluator, heads: Sequence[Candidate]) -> None:
        """``heads`` are the candidates in model order."""
        self.evaluator = evaluator
        self.heads = list(heads)
        self._known: dict[tuple[Candidate, ...], tuple[Measured, list[Measured]]] = {}
        self.evaluations = 0

    def rank(self, objective: str, budget: int, report: Callable[[Step], None]) -> tuple[Measured, list[Step]]:
        """Remove ``budget`` heads one after another.

        Returns:
            What the model gave before the first removal, and the steps.
        """
        removed: list[Candidate] = []
        steps: list[Step] = []
        base: Measured | None = None
        while len(removed) < budget:
            left = [head for head in self.heads if head not in set(removed)]
            current, results = self._measure(removed, left)
            base = base or current
            # max() keeps the first of equals, and candidates come in model order.
            best = max(range(len(left)), key=lambda i: results[i].key(objective))
            removed.append(left[best])
            steps.append(Step(left[best], results[best], len(left)))
            report(steps[-1])
        assert base is not None
        return base, steps

    def _measure(self, removed: list[Candidate], left: list[Candidate]) -> tuple[Measured, list[Measured]]:
        # The same heads removed in another order are the same model.
        key = tuple(sorted(removed))
        if key not in self._known:
            self._known[key] = self.evaluator.measure(removed, left)
            self.evaluations += len(left)
        return self._known[key]


def evaluations(heads: int, budget: int) -> int:
    """Evaluations of the whole data that Algorithm 1 needs: 5,784 for 48 of 144 heads."""
    return sum(heads - step for step in range(budget))
