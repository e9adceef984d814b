"""The winner of a round of a search, decided exactly by integers.

A round is one step of a search: each candidate is a head, and its *trial* is what was counted without the head. The
trial with the highest key of the objective wins; keys are integers (``objective.py``), so equally good trials have
equal keys. Of equal keys the lowest site wins, then the lowest head. Nothing here reads a file, a tensor or a clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from hydractl.circuit.objective import EvaluationCounts


class CandidateHead(NamedTuple):
    """A head that may be removed: ``site`` is the index of its attention block, ``position`` its index in the block."""

    site: int
    position: int


@dataclass(frozen=True)
class Trial:
    """One head, and what was counted without it.

    Attributes:
        head: the head that was left out.
        counts: the counts of the model without it.
        given_up: the objectives for which the head was given up before everything was counted.
        forecast_errors: for each objective the score minus its forecast; None if there were no forecasts.
    """

    head: CandidateHead
    counts: EvaluationCounts
    given_up: tuple[str, ...] = ()
    forecast_errors: Mapping[str, float] | None = None


Standing = tuple[int, int, int]
"""The rank of a trial in its round: its key, minus its site and minus its head. The greater standing wins."""


def standing(objective: str, head: CandidateHead, counts: EvaluationCounts) -> Standing:
    """Return the standing that a head has with these counts."""
    site, position = head
    return counts.key(objective), -site, -position


def best_first(objective: str, trials: Iterable[Trial]) -> list[Trial]:
    """Return trials sorted by score, the highest first; equal scores by site, then by head, the lowest first."""

    def standing_here(trial: Trial) -> Standing:
        return standing(objective, trial.head, trial.counts)

    return sorted(trials, key=standing_here, reverse=True)
