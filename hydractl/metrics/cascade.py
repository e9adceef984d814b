"""A cascade: one member of an ensemble answers alone where its OOD score is low; the others run for the other samples.

A sample that stops counts as one on which all members agree with the first: the averaged prediction is the first
member's, mutual information and disagreement are 0, and every OOD score is defined. All members of a sample that goes
on are those of the whole ensemble.

The threshold is fitted to what stopping loses of the whole ensemble's figures, with the samples that stop and those
that go on in one ranking, as they are served. A loss counts at its upper 95 % limit: of means by their paired standard
error, of the AUROC by DeLong et al. 1988.
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
        score: the OOD score, of the first member alone, that decides.
        value: samples with this score or a higher one go on.
    """

    member: int
    score: str
    value: float

    def goes_on(self, logits: np.ndarray) -> NDArray[np.bool_]:
        """Return which samples run all members, ``[N]``, from the logits ``[N, C]`` of the first one."""
        scores = OOD_SCORES[self.score](logits[None])
        return np.asarray(scores >= self.value)

    def served(self, logits: np.ndarray) -> np.ndarray:
        """Return the logits ``[M, N, C]`` that a cascade gives, from those of the whole ensemble."""
        first = logits[self.member]
        goes_on = self.goes_on(first)
        return np.where(goes_on[:, None], logits, first)


def stored_cascade(document: Any, members: int) -> Cascade | None:
    """Return the cascade that a checkpoint holds; None without one.

    Raises:
        InputError: for what fuse does not write.
    """
    if document is None:
        return None
    broken = InputError(
        f"the checkpoint holds a broken cascade {shown(document)}", hint="write it again: fuse --cascade"
    )
    try:
        cascade = Cascade(document["member"], document["score"], float(document["value"]))
        is_member = type(cascade.member) is int and 0 <= cascade.member < members
        says_something = not SCORES[cascade.score].of_several
    except (KeyError, TypeError, ValueError):
        raise broken from None
    if not is_member or not says_something or not np.isfinite(cascade.value):
        raise broken
    return cascade


# --- fitting ----------------------------------------------------------------------------------------------------------


class CascadeLoss(NamedTuple):
    """The loss that a cascade has in a figure of the whole ensemble, and the upper 95 % limit of it."""

    value: float
    upper: float


class MemberAnswers(NamedTuple):
    """The answers of one member, or of all, on N samples: which are right, log p of the label, the OOD score.

    The first two are None for OOD samples.
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
        cascade: what was fitted.
        share: of the ID samples, those that go on.
        losses: of ``accuracy``, of ``nll`` (its rise, in nats), and of the AUROC of each OOD set as ``auroc.NAME``.
    """

    cascade: Cascade
    share: float
    losses: Mapping[str, CascadeLoss]


def answers_of(logits: np.ndarray, labels: np.ndarray | None, score: str) -> MemberAnswers:
    """Return the answers of logits ``[M, N, C]``."""
    samples = samples_of(logits, labels, score=score, pairs=False)
    assert samples.score is not None, "the settings refuse scores of several members"
    correct = None if labels is None else samples.correct.astype(np.float64)
    return MemberAnswers(correct, samples.label_log_probs, samples.score)


def fit_cheapest_cascade(
    inside: np.ndarray,
    labels: np.ndarray,
    outside: Mapping[str, np.ndarray],
    score: str,
    allowed: float,
    costs: Sequence[tuple[float, float]],
) -> FittedCascade | None:
    """Fit the cascade of lowest expected cost on ID data whose losses are at most ``allowed``, at their upper limits.

    Every member is tried as the first one, at every threshold that tells two ID samples apart. Between two of them the
    lowest counts, at which the fewest OOD samples stop.

    Args:
        inside: logits ``[M, N, C]`` of the ID validation samples.
        labels: theirs, ``[N]``.
        outside: logits of each set of OOD validation samples, by its name; without any, no AUROC is looked at.
        score: the OOD score that decides and is served, one that means something of a single member.
        allowed: largest loss of each figure.
        costs: for each member, that of running it first, and that of running the others behind it.

    Returns:
        None where no sample may stop.

    Raises:
        InputError: fewer than :data:`FEWEST_SAMPLES` samples in some set.
    """
    _check_many_enough({"ID": inside, **outside})
    of_all = _answers_of_sets(inside, labels, outside, score)
    cheapest: FittedCascade | None = None
    lowest_cost = np.inf
    for member, (first, rest) in enumerate(costs):
        alone = slice(member, member + 1)
        outside_alone = {name: logits[alone] for name, logits in outside.items()}
        of_member = _answers_of_sets(inside[alone], labels, outside_alone, score)
        stopping = _most_stopping(of_member, of_all, allowed)
        if stopping is None:
            continue
        cost = first + stopping.share * rest
        if cost < lowest_cost:
            lowest_cost = cost
            cheapest = FittedCascade(Cascade(member, score, stopping.value), stopping.share, stopping.losses)
    return cheapest


def _check_many_enough(sets: Mapping[str, np.ndarray]) -> None:
    """Refuse too few samples, from the logits ``[M, N, C]`` of each set.

    Raises:
        InputError: naming every set that has too few.
    """
    few = [f"{name} has {logits.shape[1]}" for name, logits in sets.items() if logits.shape[1] < FEWEST_SAMPLES]
    if few:
        raise InputError(f"a cascade needs {FEWEST_SAMPLES} validation samples of each set: {', '.join(few)}")


def _answers_of_sets(
    inside: np.ndarray, labels: np.ndarray, outside: Mapping[str, np.ndarray], score: str
) -> AnswersOfSets:
    of_outside = {name: answers_of(logits, None, score) for name, logits in outside.items()}
    return AnswersOfSets(answers_of(inside, labels, score), of_outside)


class _Stopping(NamedTuple):
    """A threshold, the share of ID samples that go on at it, and what is lost."""

    value: float
    share: float
    losses: dict[str, CascadeLoss]


def _most_stopping(of_member: AnswersOfSets, of_all: AnswersOfSets, allowed: float) -> _Stopping | None:
    """Return the threshold at which most ID samples stop at the answer of one member, and no loss is too large.

    Args:
        of_member: the answers of the member that runs first.
        of_all: those of all members.
        allowed: largest loss of each figure.
    """
    scores = of_member.inside.score
    order = np.argsort(scores, kind="stable")
    rising = scores[order]
    # By the number of ID samples that stop, in the order of their scores: [N].
    accuracy = _losses_of_mean("accuracy", of_member.inside, of_all.inside, order)
    nll = _losses_of_mean("nll", of_member.inside, of_all.inside, order)
    is_allowed = (accuracy.upper <= allowed) & (nll.upper <= allowed)
    next_higher = np.append(rising[1:], np.inf)
    is_last_of_its_score = rising != next_higher
    all_scores = [scores]
    for answers in of_member.outside.values():
        all_scores.append(answers.score)
    every_score = np.unique(np.concatenate(all_scores))
    # The place of the last sample that stops, from the most that stop to the fewest.
    candidates = np.flatnonzero(is_allowed & is_last_of_its_score)[::-1]
    for last in candidates.tolist():
        value = _above(float(rising[last]), every_score)
        auroc_losses = _auroc_losses(of_member, of_all, value, allowed)
        if auroc_losses is not None:
            losses = {"accuracy": accuracy.at(last), "nll": nll.at(last), **auroc_losses}
            share = 1.0 - (last + 1) / len(scores)
            return _Stopping(value, share, losses)
    return None


def _auroc_losses(
    of_member: AnswersOfSets, of_all: AnswersOfSets, value: float, allowed: float
) -> dict[str, CascadeLoss] | None:
    """Return the loss of the AUROC against each OOD set at a threshold; None as soon as one is too large."""
    inside = _served_scores(of_member.inside, of_all.inside, value)
    losses = {}
    for name, outside_alone in of_member.outside.items():
        outside_all = of_all.outside[name]
        outside = _served_scores(outside_alone, outside_all, value)
        loss = auroc_loss((of_all.inside.score, outside_all.score), (inside, outside))
        if loss.upper > allowed:
            return None
        losses[f"auroc.{name}"] = loss
    return losses


def _served_scores(alone: MemberAnswers, every: MemberAnswers, value: float) -> Floats:
    """Return the scores that are served: of the first member where a sample stops, else of all members."""
    return np.where(alone.score < value, alone.score, every.score)


def _above(score: float, every: Floats) -> float:
    """Return half way from a score to the next higher one of any sample, so that rounding decides about none."""
    place = int(np.searchsorted(every, score, side="right"))
    following = float(every[place]) if place < len(every) else float(np.nextafter(score, np.inf))
    half = score + (following - score) / 2
    if half > score:
        return half
    return following  # there is no number between the two


class _MeanLosses(NamedTuple):
    """How much a mean loses when the first ``1..N`` samples of an order stop, and the upper limits of that: ``[N]``."""

    values: Floats
    upper: Floats

    def at(self, last: int) -> CascadeLoss:
        """Return the loss where the last sample that stops has this place in the order."""
        return CascadeLoss(float(self.values[last]), float(self.upper[last]))


def _losses_of_mean(name: str, alone: MemberAnswers, every: MemberAnswers, order: NDArray[np.int64]) -> _MeanLosses:
    """Return what the mean of ``accuracy`` or ``nll`` loses when the first samples of an order stop."""
    if name == "accuracy":
        of_first, of_every = alone.correct, every.correct
    else:
        of_first, of_every = alone.log_p, every.log_p
    assert of_first is not None and of_every is not None  # of labelled samples
    lost = (of_every - of_first)[order]
    n = len(lost)
    mean = np.cumsum(lost) / n
    mean_square = np.cumsum(lost**2) / n
    variance = np.maximum(mean_square - mean**2, 0.0)
    standard_error = np.sqrt(variance / n)
    return _MeanLosses(mean, mean + _LIMIT * standard_error)


def auroc_loss(before: tuple[Floats, Floats], after: tuple[Floats, Floats]) -> CascadeLoss:
    """Return the AUROC of OOD scores before minus that after, on the same samples, and its upper limit.

    Args:
        before, after: the scores of ID samples, then of OOD samples.

    Source: DeLong, DeLong and Clarke-Pearson 1988: the variance of a difference, from the placements of each sample.
    """
    inside_before, outside_before = _placements(*before)
    inside_after, outside_after = _placements(*after)
    inside = inside_before - inside_after
    outside = outside_before - outside_after
    value = float(outside.mean())
    variance = inside.var() / len(inside) + outside.var() / len(outside)
    standard_error = float(np.sqrt(variance))
    return CascadeLoss(value, value + _LIMIT * standard_error)


def _placements(inside: Floats, outside: Floats) -> tuple[Floats, Floats]:
    """Return the share of OOD samples above each ID sample, and of ID samples below each OOD sample; ties half."""
    return 1.0 - _below(inside, outside), _below(outside, inside)


def _below(scores: Floats, others: Floats) -> Floats:
    """Return for each sample the share of others below it, ties half."""
    rising = np.sort(others)
    lower = np.searchsorted(rising, scores, "left")
    lower_or_equal = np.searchsorted(rising, scores, "right")
    return np.asarray((lower + lower_or_equal) / (2 * len(others)), dtype=np.float64)
