"""A cascade: one member of an ensemble answers alone where its OOD score is low; the others run for the other samples.

A sample that stops counts as one on which all members agree with the first: the averaged prediction is the first
member's, mutual information and disagreement are 0, and every OOD score is defined. A sample that goes on has the
answers of the whole ensemble.

The threshold is fitted so that stopping loses little of the whole ensemble's figures. The samples that stop and those
that go on are in one ranking, as they are served. Each loss is judged by its upper 95 % limit: that of a mean follows
from the paired standard error, that of the AUROC from DeLong et al. 1988.
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
"""Validation samples of each set below which nothing is fitted."""

_LIMIT = NormalDist().inv_cdf(0.95)


@dataclass(frozen=True)
class Cascade:
    """A rule for the samples that the first member answers alone.

    Attributes:
        member: the number of the member that runs first, from 0.
        score: the name of the OOD score, of the first member alone, that decides.
        value: samples with this score or a higher one go on.
    """

    member: int
    score: str
    value: float

    def goes_on(self, logits: np.ndarray) -> NDArray[np.bool_]:
        """Return the mask ``[N]`` of the samples that run all members, from the first member's logits ``[N, C]``."""
        score_of = OOD_SCORES[self.score]
        scores = score_of(logits[None])
        return np.asarray(scores >= self.value)

    def served(self, logits: np.ndarray) -> np.ndarray:
        """Return the logits ``[M, N, C]`` that a cascade gives, from those of the whole ensemble."""
        first_logits = logits[self.member]  # [N, C]
        goes_on = self.goes_on(first_logits)  # [N]
        return np.where(goes_on[:, None], logits, first_logits)


def stored_cascade(document: Any, members: int) -> Cascade | None:
    """Return the cascade that a checkpoint holds; None without one.

    Args:
        document: the entry ``cascade`` of the checkpoint; None without one.
        members: the number of members of the model.

    Raises:
        InputError: for what fuse does not write.
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
    if needs_several:  # the first member alone has no such score
        raise broken
    return Cascade(member, score, value)


# --- fitting ----------------------------------------------------------------------------------------------------------


class CascadeLoss(NamedTuple):
    """The loss in one figure of the whole ensemble, and the upper 95 % limit of that loss."""

    value: float
    upper: float


class MemberAnswers(NamedTuple):
    """The answers of one member, or of all, on N samples: 1 where right, else 0; log p of the label; the OOD score.

    Each is [N]; the first two are None for OOD samples.
    """

    correct: Floats | None
    log_p: Floats | None
    score: Floats


@dataclass(frozen=True)
class AnswersOfSets:
    """The answers on the ID validation samples, and on those of each OOD set by its name."""

    inside: MemberAnswers
    outside: Mapping[str, MemberAnswers]


@dataclass(frozen=True)
class FittedCascade:
    """A threshold, and what it does on the validation data.

    Attributes:
        cascade: the rule with the fitted threshold.
        share: the share of the ID samples that go on.
        losses: by figure: ``accuracy``, ``nll`` (its rise, in nats), and ``auroc.NAME`` for each OOD set.
    """

    cascade: Cascade
    share: float
    losses: Mapping[str, CascadeLoss]


def answers_of(logits: np.ndarray, labels: np.ndarray | None, score: str) -> MemberAnswers:
    """Return the answers of logits ``[M, N, C]``, with the OOD score of a name; labels are None for OOD samples."""
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
    """Fit the cascade of lowest expected cost on ID data whose losses, at their upper limits, are at most ``allowed``.

    Every member is tried as the first one, at every threshold that tells two ID samples apart. Of the thresholds
    between two such samples the lowest is taken, at which the fewest OOD samples stop.

    Args:
        inside: logits ``[M, N, C]`` of the ID validation samples.
        labels: the labels of these samples, ``[N]``.
        outside: logits of each set of OOD validation samples, by its name; without any, no AUROC is considered.
        score: the OOD score that decides and is served, one that a single member has.
        allowed: the largest loss that any figure may have.
        costs: for each member, the cost of running it first, and that of running the others after it.

    Returns:
        None where no sample may stop.

    Raises:
        InputError: fewer than :data:`FEWEST_SAMPLES` samples in some set.
    """
    _check_many_enough({"ID": inside, **outside})
    ensemble_answers = _answers_of_sets(inside, labels, outside, score)

    # Each member as the first one, at the threshold where most samples stop.
    cheapest: FittedCascade | None = None
    lowest_cost = np.inf
    for member, (first_cost, rest_cost) in enumerate(costs):
        alone = slice(member, member + 1)  # a slice, so that the logits stay [1, N, C]
        outside_alone = {name: logits[alone] for name, logits in outside.items()}
        member_answers = _answers_of_sets(inside[alone], labels, outside_alone, score)
        stopping = _most_stopping(member_answers, ensemble_answers, allowed)
        if stopping is None:  # no sample may stop at this member
            continue
        cost = first_cost + stopping.share * rest_cost
        if cost < lowest_cost:
            lowest_cost = cost
            cascade = Cascade(member, score, stopping.value)
            cheapest = FittedCascade(cascade, stopping.share, stopping.losses)
    return cheapest


def _check_many_enough(sets: Mapping[str, np.ndarray]) -> None:
    """Refuse too few samples, from the logits ``[M, N, C]`` of each set.

    Raises:
        InputError: naming every set that has too few.
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
    """Return the answers on the ID set and on each OOD set, from their logits ``[M, N, C]``."""
    answers_inside = answers_of(inside, labels, score)
    answers_outside = {}
    for name, logits in outside.items():
        answers_outside[name] = answers_of(logits, None, score)
    return AnswersOfSets(answers_inside, answers_outside)


class _Stopping(NamedTuple):
    """A threshold, the share of ID samples that go on at it, and the losses by figure."""

    value: float
    share: float
    losses: dict[str, CascadeLoss]


def _most_stopping(member_answers: AnswersOfSets, ensemble_answers: AnswersOfSets, allowed: float) -> _Stopping | None:
    """Return the threshold at which most ID samples stop at the answer of one member and no loss is too large.

    None where no threshold loses little enough.

    Args:
        member_answers: the answers of the member that runs first, on the ID set and each OOD set.
        ensemble_answers: the answers of all members on the same sets.
        allowed: the largest loss that any figure may have.
    """
    scores = member_answers.inside.score
    order = np.argsort(scores, kind="stable")
    rising = scores[order]

    # The losses of the means, by the number of ID samples that stop in the order of their scores: [N].
    accuracy = _losses_of_mean("accuracy", member_answers.inside, ensemble_answers.inside, order)
    nll = _losses_of_mean("nll", member_answers.inside, ensemble_answers.inside, order)
    is_allowed = (accuracy.upper <= allowed) & (nll.upper <= allowed)

    # Samples of equal score stop together.
    next_higher = np.append(rising[1:], np.inf)
    is_last_of_its_score = rising != next_higher

    # The places of the last sample that may stop, from the most samples that stop to the fewest.
    last_places = np.flatnonzero(is_allowed & is_last_of_its_score)[::-1]
    every_score = _distinct_scores(member_answers)
    for last in last_places.tolist():
        value = _threshold_above(float(rising[last]), every_score)
        auroc_losses = _auroc_losses_if_allowed(member_answers, ensemble_answers, value, allowed)
        if auroc_losses is None:
            continue
        losses = {"accuracy": accuracy.at(last), "nll": nll.at(last), **auroc_losses}
        share = 1.0 - (last + 1) / len(scores)
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
    """Return the loss of the AUROC against each OOD set at a threshold; None as soon as one is too large."""
    inside_served = _served_scores(member_answers.inside, ensemble_answers.inside, value)
    losses = {}
    for name, outside_alone in member_answers.outside.items():
        outside_all = ensemble_answers.outside[name]
        outside_served = _served_scores(outside_alone, outside_all, value)
        before = (ensemble_answers.inside.score, outside_all.score)
        after = (inside_served, outside_served)
        loss = auroc_loss(before, after)
        if loss.upper > allowed:
            return None
        losses[f"auroc.{name}"] = loss
    return losses


def _served_scores(alone: MemberAnswers, together: MemberAnswers, value: float) -> Floats:
    """Return the scores [N] that are served: the first member's where a sample stops, else those of all members."""
    stops = alone.score < value
    return np.where(stops, alone.score, together.score)


def _threshold_above(score: float, every_score: Floats) -> float:
    """Return the number half way from a score to the next higher one of any sample.

    A threshold there lies as far from every score as it can, so that rounding decides about no sample.

    Args:
        score: the score below the threshold.
        every_score: the distinct scores of all samples, in rising order.
    """
    place = int(np.searchsorted(every_score, score, side="right"))
    if place < len(every_score):
        next_score = float(every_score[place])
    else:
        next_score = float(np.nextafter(score, np.inf))
    half_way = score + (next_score - score) / 2
    if half_way > score:
        return half_way
    return next_score  # there is no number between the two


class _MeanLosses(NamedTuple):
    """The losses of a mean when the first ``1..N`` samples of an order stop, and their upper 95 % limits, ``[N]``."""

    values: Floats
    upper: Floats

    def at(self, last: int) -> CascadeLoss:
        """Return the loss where the last sample that stops has this place in the order."""
        value = float(self.values[last])
        upper = float(self.upper[last])
        return CascadeLoss(value, upper)


def _losses_of_mean(name: str, alone: MemberAnswers, together: MemberAnswers, order: NDArray[np.int64]) -> _MeanLosses:
    """Return the losses of the mean ``accuracy`` or ``nll`` when the first ``1..N`` samples of an order stop.

    Args:
        name: ``accuracy`` or ``nll``.
        alone: the answers of the member that runs first, on labelled samples.
        together: the answers of all members on the same samples.
        order: the places of the samples in the order in which they stop, ``[N]``.
    """
    if name == "accuracy":
        values_alone = alone.correct
        values_together = together.correct
    else:
        values_alone = alone.log_p
        values_together = together.log_p
    assert values_alone is not None and values_together is not None  # of labelled samples
    loss_of_sample = values_together - values_alone
    losses = loss_of_sample[order]

    # A sample that goes on loses nothing, so that the means are over all N samples.
    n = len(losses)
    mean = np.cumsum(losses) / n
    mean_square = np.cumsum(losses**2) / n
    variance = np.maximum(mean_square - mean**2, 0.0)  # below 0 is rounding
    standard_error = np.sqrt(variance / n)
    upper = mean + _LIMIT * standard_error
    return _MeanLosses(mean, upper)


def auroc_loss(before: tuple[Floats, Floats], after: tuple[Floats, Floats]) -> CascadeLoss:
    """Return the AUROC of OOD scores before minus that after, on the same samples, and its upper limit.

    Args:
        before, after: the scores of the ID samples, and those of the OOD samples.

    Source: DeLong, DeLong and Clarke-Pearson 1988: the variance of a difference, from the placements of each sample.
    """
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
    """Return the share of OOD samples above each ID sample, and of ID samples below each OOD sample; ties half."""
    ood_above = 1.0 - _share_below(inside, outside)
    id_below = _share_below(outside, inside)
    return ood_above, id_below


def _share_below(scores: Floats, others: Floats) -> Floats:
    """Return for each score the share of the others that are below it, ties counted half."""
    rising = np.sort(others)
    lower = np.searchsorted(rising, scores, "left")
    lower_or_equal = np.searchsorted(rising, scores, "right")
    twice_lower = lower + lower_or_equal
    share = twice_lower / (2 * len(others))
    return np.asarray(share, dtype=np.float64)
