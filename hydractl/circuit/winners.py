"""The winner of a round of a search, decided exactly: integers, ties, and what rounding leaves open.

A round is one step of a search: each candidate is a head, and its *trial* is what was counted without the head. Three
rules decide every round of every search:

* The highest key of the objective wins. Keys are integers (``objective.py``), so equally good trials have equal keys.
* Of equal keys the lowest site wins, then the lowest head.
* A candidate that might win on a machine that rounds differently is a rival of the winner. These are all candidates
  whose highest possible counts are not below the lowest possible counts of another candidate. So rivals depend only on
  the counts, not on the order of counting.

Nothing here reads a file, a tensor or a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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
        rivals: only of a winner: the trials that could have won on a machine that rounds differently, the best first.
        given_up: the objectives for which the head was given up before everything was counted.
        forecast_errors: for each objective the score minus its forecast; None if there were no forecasts.
    """

    head: CandidateHead
    counts: EvaluationCounts
    rivals: tuple[Trial, ...] = ()
    given_up: tuple[str, ...] = ()
    forecast_errors: Mapping[str, float] | None = None


class Standing(NamedTuple):
    """The rank of a trial in its round: the greater standing wins; the negative indices make ties go to low heads."""

    key: int
    minus_site: int
    minus_head: int


def standing(objective: str, head: CandidateHead, counts: EvaluationCounts) -> Standing:
    """Return the standing that a head has with these counts."""
    site, position = head
    return Standing(counts.key(objective), -site, -position)


def surest_standing(objective: str, trial: Trial) -> Standing:
    """Return the standing that a trial has at least, on any machine: everything that rounding leaves open is lost."""
    least = trial.counts.least
    return standing(objective, trial.head, least)


def highest_standing(objective: str, trial: Trial) -> Standing:
    """Return the highest standing that a trial may have on another machine: all that rounding leaves open is won."""
    most = trial.counts.most
    return standing(objective, trial.head, most)


def best_first(objective: str, trials: Iterable[Trial]) -> list[Trial]:
    """Return trials sorted by score, the highest first; equal scores by site, then by head, the lowest first."""

    def standing_here(trial: Trial) -> Standing:
        return standing(objective, trial.head, trial.counts)

    return sorted(trials, key=standing_here, reverse=True)


def first_of_highest(heads: Iterable[CandidateHead], value: Callable[[CandidateHead], float]) -> CandidateHead:
    """Return the head with the highest value; of equal values the lowest site, then the lowest head."""
    in_model_order = sorted(heads)
    return max(in_model_order, key=value)  # max returns the first of equal values


def could_beat(objective: str, trial: Trial, other: Trial) -> bool:
    """Return whether rounding could put a trial before another trial.

    Two trials with exactly equal counts, including losses to the last unit, come from heads that do nothing. Between
    such heads, the tie rule decides on every machine: this returns False.
    """
    if trial.counts.read_by(objective) == other.counts.read_by(objective):
        return False
    return highest_standing(objective, trial) > surest_standing(objective, other)


# --- a whole round ----------------------------------------------------------------------------------------------------


def contenders(objective: str, trials: Sequence[Trial]) -> list[Trial]:
    """Return the winner of a round, followed by the trials that could have won on another machine, the best first.

    Rounding may decide which of two trials is ahead. Therefore a trial is included if it may reach the one that is
    surely ahead of most. The list is empty only if there are no trials.

    Args:
        objective: the objective by whose score trials are compared.
        trials: the trials of all candidates of a round.
    """
    if not trials:
        return []
    surest = max(trials, key=lambda trial: surest_standing(objective, trial))
    could_win = []
    for trial in trials:
        if trial is surest or could_beat(objective, trial, surest):
            could_win.append(trial)
    return best_first(objective, could_win)


def winner_of(objective: str, trials: Sequence[Trial]) -> Trial:
    """Return the winner of a round with its rivals.

    The counts of the rivals leave out OOD samples if the objective reads none: whether a rival was counted on them
    depends on the other objectives of the search.
    """
    winner, *others = contenders(objective, trials)
    rivals = []
    for other in others:
        counts = other.counts.read_by(objective)
        rivals.append(replace(other, counts=counts))
    return replace(winner, rivals=tuple(rivals))


def lowest_chosen(objective: str, trials: Sequence[Trial], count: int) -> tuple[list[Trial], list[Trial]]:
    """Choose the trials with the lowest scores.

    Args:
        objective: the objective by whose score trials are compared.
        trials: the trials of all heads of one site.
        count: how many trials to choose; all of them if there are fewer.

    Returns:
        The chosen trials, and the others, each list with its highest score first. The rivals of a trial that was not
        chosen are the chosen trials that another machine may rank before it.
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
    """The highest standing that any candidate of a round surely has (the lead), for each objective.

    A candidate that cannot reach the lead, even if everything not yet counted is in its favour, need not be counted to
    the end. The lead is taken with rounding against it, and the best case with rounding in its favour, so no candidate
    that could win on another machine is given up.
    """

    def __init__(self) -> None:
        self._leads: dict[str, Standing] = {}

    def raise_if_ahead(self, objective: str, trial: Trial) -> bool:
        """Raise the lead to a trial that is counted to its end, if it is above; return whether the lead was raised."""
        sure = surest_standing(objective, trial)
        lead = self._leads.get(objective)
        is_behind = lead is not None and sure <= lead
        if is_behind:
            return False
        self._leads[objective] = sure
        return True

    def out_of_reach(self, objective: str, head: CandidateHead, best_case: EvaluationCounts) -> bool:
        """Return whether a candidate can no longer win an objective.

        Args:
            objective: the objective.
            head: the candidate.
            best_case: the most that it can still reach, with rounding in its favour.
        """
        lead = self._leads.get(objective)
        if lead is None:
            return False
        return standing(objective, head, best_case) < lead
