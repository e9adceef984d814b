"""The winner of a round of a search, decided exactly: integers, ties, and what rounding leaves open.

A round is one step of a search: each candidate is a head, and its *trial* is what was counted without it. Three rules
decide every round, whichever search it is of:

* The highest key of the objective wins. Keys are integers (``objective.py``), so that two trials which fare equally
  well have equal keys.
* Of equal keys the lowest site wins, then the lowest head.
* A candidate that might win on a machine that rounds differently is a rival of the winner: every one whose highest
  possible counts are not below the lowest possible counts of another. So rivals depend on the counts alone, and not on
  the order of counting.

Nothing here reads a file, a tensor or a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from hydractl.circuit.objective import EvaluationCounts, Limits, allowed


class CandidateHead(NamedTuple):
    """A head that may be removed, by numbers: ``site`` of the attention block, ``position`` among its heads."""

    site: int
    position: int


@dataclass(frozen=True)
class Trial:
    """One head and what was counted without it.

    Attributes:
        head: the head that was left out.
        counts: the counts of the model without it.
        rivals: of a winner, the trials that could have won on a machine that rounds differently, the best first.
    """

    head: CandidateHead
    counts: EvaluationCounts
    rivals: tuple[Trial, ...] = ()


class Standing(NamedTuple):
    """The place of a trial in its round: of two standings the greater one wins, and no two heads have the same."""

    key: int
    minus_site: int
    minus_head: int


def standing(objective: str, head: CandidateHead, counts: EvaluationCounts) -> Standing:
    """Return where these counts would put a head."""
    site, position = head
    return Standing(counts.key(objective), -site, -position)


def surest_standing(objective: str, trial: Trial) -> Standing:
    """Return the standing that a trial has at least on every machine: rounding is taken against it."""
    least = trial.counts.least
    return standing(objective, trial.head, least)


def highest_standing(objective: str, trial: Trial) -> Standing:
    """Return the highest standing that a trial may have on another machine: rounding is taken in its favour."""
    most = trial.counts.most
    return standing(objective, trial.head, most)


def best_first(objective: str, trials: Iterable[Trial]) -> list[Trial]:
    """Return trials sorted by score, the highest first; of equal ones the lowest site, then the lowest head."""

    def standing_here(trial: Trial) -> Standing:
        return standing(objective, trial.head, trial.counts)

    return sorted(trials, key=standing_here, reverse=True)


def first_of_highest(heads: Iterable[CandidateHead], value: Callable[[CandidateHead], float]) -> CandidateHead:
    """Return the head with the highest value; of equal ones the lowest site, then the lowest head."""
    in_model_order = sorted(heads)
    return max(in_model_order, key=value)  # the first of equal ones


def could_beat(objective: str, trial: Trial, other: Trial) -> bool:
    """Return whether rounding could put a trial before another one.

    Two trials with the very same counts, losses to the last unit, are the same model: the heads that were left out do
    nothing, and between such heads their order decides on every machine.
    """
    if trial.counts.read_by(objective) == other.counts.read_by(objective):
        return False
    return highest_standing(objective, trial) > surest_standing(objective, other)


# --- a whole round ----------------------------------------------------------------------------------------------------


def contenders(objective: str, trials: Sequence[Trial], limits: Limits) -> list[Trial]:
    """Return the winner, and after it those that could have won on another machine, the best first.

    Machines round differently, which may decide whether a trial keeps the limits, and which of two is ahead. So a trial
    is listed if it perhaps keeps the limits and perhaps reaches the best that surely does.

    Args:
        objective: the score to win by.
        trials: of the candidates of a round.
        limits: the lowest allowed key of each objective; the winner is the best trial that keeps all of them here.

    Returns:
        The winner and its rivals. Where no trial keeps the limits here there is no winner, and the first trial of the
        list is one that keeps them on another machine at most.
    """
    perhaps_allowed = [trial for trial in trials if allowed(trial.counts.most, limits)]
    allowed_here = [trial for trial in perhaps_allowed if allowed(trial.counts, limits)]
    surely_allowed = [trial for trial in perhaps_allowed if allowed(trial.counts.least, limits)]

    # A trial that cannot reach what another one surely has cannot win on any machine.
    could_win = perhaps_allowed
    if surely_allowed:
        surest = max(surely_allowed, key=lambda trial: surest_standing(objective, trial))
        could_win = []
        for trial in perhaps_allowed:
            if trial is surest or could_beat(objective, trial, surest):
                could_win.append(trial)

    # The winner here may be behind one that only perhaps keeps the limits, so it is put first.
    in_order = best_first(objective, could_win)
    if not allowed_here:
        return in_order
    winner = best_first(objective, allowed_here)[0]
    others = [trial for trial in in_order if trial != winner]
    return [winner, *others]


def winner_of(objective: str, trials: Sequence[Trial], limits: Limits) -> Trial | None:
    """Return the winner of a round with its rivals; None where no trial keeps the limits.

    The counts of the rivals leave out OOD samples where the objective reads none: who has been counted on them depends
    on what else was searched for.
    """
    in_order = contenders(objective, trials, limits)
    if not in_order:
        return None
    winner, *others = in_order
    if not allowed(winner.counts, limits):
        return None
    rivals = []
    for other in others:
        counts = other.counts.read_by(objective)
        rivals.append(replace(other, counts=counts))
    return replace(winner, rivals=tuple(rivals))


def lowest_chosen(objective: str, trials: Sequence[Trial], count: int) -> tuple[list[Trial], list[Trial]]:
    """Choose the trials with the lowest scores.

    Args:
        objective: whose score it is.
        trials: of all heads of one site.
        count: how many to choose; all where there are fewer.

    Returns:
        The chosen trials, and the others. Both begin with the highest score. The rivals of a trial that was not chosen
        are the chosen ones that another machine may put before it.
    """
    in_order = best_first(objective, trials)
    count_left_over = max(0, len(in_order) - count)
    chosen = in_order[count_left_over:]
    left_over = []
    for trial in in_order[:count_left_over]:
        rivals = [rival for rival in chosen if could_beat(objective, rival, trial)]
        left_over.append(replace(trial, rivals=tuple(rivals)))
    return chosen, left_over


# --- a round that is not yet counted to its end -----------------------------------------------------------------------


class SureLeads:
    """The highest standing that any candidate of a round surely has, for each objective.

    A candidate that cannot reach it, even if everything not yet counted falls on its side, need not be counted to the
    end. The lead is taken with rounding against it and the best case with rounding in its favour, so no candidate is
    given up that could win on another machine.

    Args:
        limits: the keys that a winner has to keep.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._leads: dict[str, Standing] = {}

    def raise_if_ahead(self, objective: str, trial: Trial) -> bool:
        """Raise the lead to a trial that is counted to its end, if it is above; return whether it was raised.

        Only a trial that keeps the limits on every machine can lead.
        """
        surely_allowed = allowed(trial.counts.least, self._limits)
        if not surely_allowed:
            return False
        sure = surest_standing(objective, trial)
        lead = self._leads.get(objective)
        is_behind = lead is not None and sure <= lead
        if is_behind:
            return False
        self._leads[objective] = sure
        return True

    def out_of_reach(self, objective: str, head: CandidateHead, best_case: EvaluationCounts) -> bool:
        """Return whether a candidate can no longer win.

        Args:
            objective: the objective that it could win.
            head: the candidate.
            best_case: the most that it can still reach, with rounding in its favour.
        """
        if not allowed(best_case, self._limits):
            return True
        lead = self._leads.get(objective)
        if lead is None:
            return False
        return standing(objective, head, best_case) < lead
