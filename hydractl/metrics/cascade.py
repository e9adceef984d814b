"""A cascade: one member of an ensemble runs first, and answers alone if its OOD score is low; else all members run.

A sample *stops* if the first member answers it alone, and *goes on* otherwise. A sample that stops counts as if all
members agreed with the first: the averaged prediction is the first member's, mutual information and disagreement are 0,
and every OOD score is defined. A sample that goes on has the answers of the whole ensemble.

The threshold is fitted so that stopping loses little of the whole ensemble's figures (accuracy, NLL, AUROC). As in use,
the samples that stop and those that go on are in one ranking. Each loss is judged by its upper 95 % limit: for a mean
it follows from the paired standard error, for the AUROC from DeLong et al. 1988.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hydractl.errors import InputError
from hydractl.jsonio import shown
from hydractl.metrics.ood import OOD_SCORES
from hydractl.metrics.ood_scores import SCORES
from hydractl.metrics.probabilities import Floats
from hydractl.metrics.samples import samples_of

CONVENTIONS = {
    "cascade": "Samples whose OOD score by the first member alone is below the value stop there: its answer counts as"
    " that of all members. The others run all members; share: of each data set, their part. cost.macs is the mean over"
    " the ID samples.",
}

FEWEST_SAMPLES = 100
"""The fewest validation samples that each set must have; with fewer, nothing is fitted."""

_LIMIT = NormalDist().inv_cdf(0.95)
"""Standard errors from a loss to its upper 95 % limit."""


@dataclass(frozen=True)
class Cascade:
    """The rule that decides which samples the first member answers alone.

    Attributes:
        member: the index of the member that runs first, from 0.
        score: the name of the OOD score that decides; it is computed from the first member alone.
        value: a sample goes on to all members if its score is at or above this.
    """

    member: int
    score: str
    value: float

    def goes_on(self, logits: np.ndarray) -> NDArray[np.bool_]:
        """Return the mask ``[N]`` of the samples that run all members, from the first member's logits ``[N, C]``."""
        score_of = OOD_SCORES[self.score]
        scores = score_of(logits[None])  # [None] makes them the logits of an ensemble of one, [1, N, C]
        return np.asarray(scores >= self.value)

    def served(self, logits: np.ndarray) -> np.ndarray:
        """Return the logits ``[M, N, C]`` that the cascade serves, from the logits ``[M, N, C]`` of the whole ensemble.

        If a sample stops, all M members get the first member's logits.
        """
        first_logits = logits[self.member]  # [N, C]
        goes_on = self.goes_on(first_logits)  # [N]
        return np.where(goes_on[:, None], logits, first_logits)


def stored_cascade(document: Any, members: int) -> Cascade | None:
    """Return the cascade that a checkpoint holds; None if it holds none.

    Args:
        document: the checkpoint's entry ``cascade``; None if there is none.
        members: the number of members of the model.

    Raises:
        InputError: the entry is not one that ``fuse`` writes, or does not fit the model.
    """
    if document is None:
        return None
    broken = InputError(
        f"the checkpoint holds a broken cascade {shown(document)}", hint="write it again: fuse --cascade"
    )
    try:
        member = document["member"]
        score = document["score"]
        value = float(document["value"])
        needs_several = SCORES[score].of_several
    except (KeyError, TypeError, ValueError):
        raise broken from None
    is_member = type(member) is int and 0 <= member < members
    if not is_member or not np.isfinite(value):
        raise broken
    if needs_several:  # the score needs several members, and the first one runs alone
        raise broken
    return Cascade(member, score, value)


# --- fitting ----------------------------------------------------------------------------------------------------------


class CascadeLoss(NamedTuple):
    """How much worse the cascade is than the whole ensemble in one figure, and the upper 95 % limit of that loss."""

    value: float
    upper: float


class MemberAnswers(NamedTuple):
    """The answers of one member, or of the whole ensemble, on N samples; each field is [N].

    ``correct`` is 1 if the answer is right, else 0; ``log_p`` is log p of the label; ``score`` is the OOD score. The
    first two are None for OOD samples, which have no labels.
    """

    correct: Floats | None
    log_p: Floats | None
    score: Floats


@dataclass(frozen=True)
class AnswersOfSets:
    """The answers on the ID validation samples, and on the OOD validation samples of each set by its name."""

    inside: MemberAnswers
    outside: Mapping[str, MemberAnswers]


@dataclass(frozen=True)
class FittedCascade:
    """A fitted cascade, and its effect on the validation data.

    Attributes:
        cascade: the rule with the fitted threshold.
        share: the share of the ID samples that go on.
        losses: the loss of each figure, by its name: ``accuracy``, ``nll`` (how much it rises, in nats), and
            ``auroc.NAME`` for each OOD set.
    """

    cascade: Cascade
    share: float
    losses: Mapping[str, CascadeLoss]


def answers_of(logits: np.ndarray, labels: np.ndarray | None, score: str) -> MemberAnswers:
    """Return the answers of members with logits ``[M, N, C]``, and their OOD score of a name.

    Args:
        logits: the logits of one member (M = 1) or of all.
        labels: the labels, [N]; None for OOD samples.
        score: the name of the OOD score.
    """
    samples = samples_of(logits, labels, score=score, pairs=False)
    assert samples.score is not None, "the settings refuse scores of several members"
    correct = None
    if labels is not None:
        correct = samples.correct.astype(np.float64)
    return MemberAnswers(correct, samples.label_log_probs, samples.score)


def fit_cheapest_cascade(
    inside: np.ndarray,
    labels: np.ndarray,
    outside: Mapping[str, np.ndarray],
    score: str,
    allowed: float,
    costs: Sequence[tuple[float, float]],
) -> FittedCascade | None:
    """Fit the cascade of lowest expected cost whose losses are all at most ``allowed`` at their upper 95 % limits.

    A cascade runs one member first. Samples whose OOD score is below a threshold stop there; all others run the other
    members, too. A loss is how much worse a figure is than with all members: accuracy, NLL, or the AUROC of an OOD set.

    Every member is tried as the first one, and for each member the threshold at which the most ID samples stop without
    too large a loss. The cheapest of these is returned.

    Args:
        inside: logits ``[M, N, C]`` of the ID validation samples.
        labels: the labels of these samples, ``[N]``.
        outside: logits of the OOD validation samples of each set, by its name; if empty, the AUROC does not count.
        score: the name of the OOD score that decides and is served; a single member must have it.
        allowed: the largest loss that any figure may have.
        costs: for each member, the cost of running it first, and the cost of running all others after it.

    Returns:
        None if no member may answer any sample alone.

    Raises:
        InputError: a set has fewer than :data:`FEWEST_SAMPLES` samples.
    """
    _check_many_enough({"ID": inside, **outside})
    ensemble_answers = _answers_of_sets(inside, labels, outside, score)

    # Try each member as the first one, at the threshold where the most ID samples stop.
    cheapest: FittedCascade | None = None
    lowest_cost = np.inf
    for member, (first_cost, rest_cost) in enumerate(costs):
        alone = slice(member, member + 1)  # a slice, so that the logits stay [1, N, C]
        outside_logits_alone = {name: logits[alone] for name, logits in outside.items()}
        member_answers = _answers_of_sets(inside[alone], labels, outside_logits_alone, score)
        stopping = _most_stopping(member_answers, ensemble_answers, allowed)
        if stopping is None:  # no sample may stop at this member
            continue
        # Every sample pays for the first member; `stopping.share`, the share that goes on, also for the others.
        cost = first_cost + stopping.share * rest_cost
        if cost < lowest_cost:
            lowest_cost = cost
            cascade = Cascade(member, score, stopping.value)
            cheapest = FittedCascade(cascade, stopping.share, stopping.losses)
    return cheapest


def _check_many_enough(sets: Mapping[str, np.ndarray]) -> None:
    """Raise an error if some set has too few samples.

    Args:
        sets: the logits ``[M, N, C]`` of each set, by its name.

    Raises:
        InputError: a set has fewer than :data:`FEWEST_SAMPLES` samples; it names every such set.
    """
    too_small = []
    for name, logits in sets.items():
        samples = logits.shape[1]
        if samples < FEWEST_SAMPLES:
            too_small.append(f"{name} has {samples}")
    if too_small:
        listed = ", ".join(too_small)
        raise InputError(f"a cascade needs {FEWEST_SAMPLES} validation samples of each set: {listed}")


def _answers_of_sets(
    inside: np.ndarray, labels: np.ndarray, outside: Mapping[str, np.ndarray], score: str
) -> AnswersOfSets:
    """Return the answers on the ID set and on each OOD set, from their logits ``[M, N, C]``, with one OOD score."""
    answers_inside = answers_of(inside, labels, score)
    answers_outside = {}
    for name, logits in outside.items():
        answers_outside[name] = answers_of(logits, None, score)
    return AnswersOfSets(answers_inside, answers_outside)


class _Stopping(NamedTuple):
    """A threshold ``value``, the share of ID samples that go on at it, and the loss of each figure by name."""

    value: float
    share: float
    losses: dict[str, CascadeLoss]


def _most_stopping(member_answers: AnswersOfSets, ensemble_answers: AnswersOfSets, allowed: float) -> _Stopping | None:
    """Return the threshold at which the most ID samples stop while every loss is small enough; None if there is none.

    A sample stops (the first member answers it alone) if its score is below the threshold. Candidate thresholds are
    tried from the one where the most samples stop to the one where the fewest stop; the first with small enough losses
    counts.

    Args:
        member_answers: the answers of the member that runs first, on the ID set and each OOD set.
        ensemble_answers: the answers of the whole ensemble on the same sets.
        allowed: the largest loss that any figure may have, at its upper limit.
    """
    scores = member_answers.inside.score
    order = np.argsort(scores, kind="stable")
    rising_scores = scores[order]

    # Entry i of each array [N]: the loss if the ID samples 0..i, in order of rising score, stop.
    accuracy = _losses_of_mean("accuracy", member_answers.inside, ensemble_answers.inside, order)
    nll = _losses_of_mean("nll", member_answers.inside, ensemble_answers.inside, order)
    is_allowed = (accuracy.upper <= allowed) & (nll.upper <= allowed)

    # Samples of equal score stop together, so only the last sample of each distinct score can be the last to stop.
    next_higher = np.append(rising_scores[1:], np.inf)
    is_last_of_its_score = rising_scores != next_higher

    # Try the possible last samples from the highest index down, that is, from most to fewest samples that stop.
    last_indices = np.flatnonzero(is_allowed & is_last_of_its_score)[::-1]
    every_score = _distinct_scores(member_answers)
    for last_index in last_indices.tolist():
        value = _threshold_above(float(rising_scores[last_index]), every_score)
        auroc_losses = _auroc_losses_if_allowed(member_answers, ensemble_answers, value, allowed)
        if auroc_losses is None:
            continue
        losses = {"accuracy": accuracy.at(last_index), "nll": nll.at(last_index), **auroc_losses}
        # `last_index + 1` samples stop; the others go on.
        share = 1.0 - (last_index + 1) / len(scores)
        return _Stopping(value, share, losses)
    return None


def _distinct_scores(answers: AnswersOfSets) -> Floats:
    """Return the distinct OOD scores of all samples, ID and OOD, in rising order."""
    scores = [answers.inside.score]
    for outside in answers.outside.values():
        scores.append(outside.score)
    return np.unique(np.concatenate(scores))


def _auroc_losses_if_allowed(
    member_answers: AnswersOfSets, ensemble_answers: AnswersOfSets, value: float, allowed: float
) -> dict[str, CascadeLoss] | None:
    """Return the loss of the AUROC against each OOD set at a threshold; None if one of them is larger than ``allowed``.

    Args:
        member_answers: the answers of the member that runs first, on the ID set and each OOD set.
        ensemble_answers: the answers of the whole ensemble on the same sets.
        value: the threshold; samples whose first member scores below it stop.
        allowed: the largest upper limit that a loss may have.
    """
    inside_served = _served_scores(member_answers.inside, ensemble_answers.inside, value)
    losses = {}
    for name, outside_alone in member_answers.outside.items():
        outside_all = ensemble_answers.outside[name]
        outside_served = _served_scores(outside_alone, outside_all, value)
        ensemble_scores = (ensemble_answers.inside.score, outside_all.score)
        served_scores = (inside_served, outside_served)
        loss = auroc_loss(ensemble_scores, served_scores)
        if loss.upper > allowed:
            return None
        losses[f"auroc.{name}"] = loss
    return losses


def _served_scores(alone: MemberAnswers, together: MemberAnswers, value: float) -> Floats:
    """Return the OOD scores [N] that the cascade serves: the first member's if a sample stops, else the ensemble's."""
    stops = alone.score < value
    return np.where(stops, alone.score, together.score)


def _threshold_above(score: float, every_score: Floats) -> float:
    """Return the number half way between a score and the next higher score of any sample.

    A threshold there is as far from both scores as possible, so that rounding does not decide about a sample.

    Args:
        score: a score; the threshold lies above it.
        every_score: the distinct scores of all samples, in rising order.
    """
    next_index = int(np.searchsorted(every_score, score, side="right"))
    if next_index < len(every_score):
        next_score = float(every_score[next_index])
    else:
        next_score = float(np.nextafter(score, np.inf))
    half_way = score + (next_score - score) / 2
    if half_way > score:
        return half_way
    return next_score  # no float64 lies between the two


class _MeanLosses(NamedTuple):
    """The losses of a mean, and their upper 95 % limits, both ``[N]``: entry i if the samples 0..i of an order stop."""

    values: Floats
    upper: Floats

    def at(self, last: int) -> CascadeLoss:
        """Return the loss if the sample at index ``last`` of the order is the last one that stops."""
        value = float(self.values[last])
        upper = float(self.upper[last])
        return CascadeLoss(value, upper)


def _losses_of_mean(name: str, alone: MemberAnswers, together: MemberAnswers, order: NDArray[np.int64]) -> _MeanLosses:
    """Return how much a mean figure loses if the first 1, 2, ... N samples of an order stop.

    Args:
        name: the figure: ``accuracy`` or ``nll``.
        alone: the answers of the member that runs first, on labelled samples.
        together: the answers of the whole ensemble on the same samples.
        order: the indices of the samples in the order in which they stop, ``[N]``.
    """
    if name == "accuracy":
        values_alone = alone.correct
        values_together = together.correct
    else:
        values_alone = alone.log_p
        values_together = together.log_p
    assert values_alone is not None and values_together is not None  # labelled samples have them
    loss_of_sample = values_together - values_alone
    losses = loss_of_sample[order]

    # Entry i: the first i + 1 samples of the order stop. Cumulative sums give all N cases at once. The samples that go
    # on lose 0 but count in the mean, so divide by N and not by i + 1.
    n = len(losses)
    mean = np.cumsum(losses) / n
    mean_square = np.cumsum(losses**2) / n
    variance = np.maximum(mean_square - mean**2, 0.0)  # a value below 0 is rounding
    standard_error = np.sqrt(variance / n)
    upper = mean + _LIMIT * standard_error
    return _MeanLosses(mean, upper)


def auroc_loss(before: tuple[Floats, Floats], after: tuple[Floats, Floats]) -> CascadeLoss:
    """Return the AUROC of the scores ``before`` minus that of the scores ``after``, and the upper limit of that loss.

    Args:
        before, after: two OOD scores of the same samples, each as (scores of the ID samples [N], of the OOD samples
            [K]).

    Source: DeLong, DeLong and Clarke-Pearson 1988: the variance of a difference, from the placements of each sample.
    """
    # The placement of an OOD sample is the share of ID samples below it, and that of an ID sample the share of OOD
    # samples above it. Both have the AUROC as their mean. The two AUROCs are of the same samples, so the variance of
    # their difference comes from the difference of placements of each sample.
    inside_before, outside_before = placements(*before)
    inside_after, outside_after = placements(*after)
    inside_lost = inside_before - inside_after  # [N]
    outside_lost = outside_before - outside_after  # [K]
    value = float(outside_lost.mean())

    inside_variance = inside_lost.var() / len(inside_lost)
    outside_variance = outside_lost.var() / len(outside_lost)
    variance = inside_variance + outside_variance
    standard_error = float(np.sqrt(variance))
    upper = value + _LIMIT * standard_error
    return CascadeLoss(value, upper)


def placements(inside: Floats, outside: Floats) -> tuple[Floats, Floats]:
    """Return the share of OOD samples above each ID sample [N], and the share of ID samples below each OOD sample [K].

    Ties count half.

    Args:
        inside: the scores of the ID samples, [N].
        outside: the scores of the OOD samples, [K].
    """
    ood_above = 1.0 - _share_below(inside, outside)
    id_below = _share_below(outside, inside)
    return ood_above, id_below


def _share_below(scores: Floats, others: Floats) -> Floats:
    """Return, for each score, the share of the ``others`` that are below it; ties count half."""
    rising = np.sort(others)
    lower = np.searchsorted(rising, scores, "left")
    lower_or_equal = np.searchsorted(rising, scores, "right")
    twice_lower = lower + lower_or_equal
    share = twice_lower / (2 * len(others))
    return np.asarray(share, dtype=np.float64)
