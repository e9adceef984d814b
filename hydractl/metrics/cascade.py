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

FEWEST = 100
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
        return np.asarray(OOD_SCORES[self.score](logits[None]) >= self.value)

    def served(self, logits: np.ndarray) -> np.ndarray:
        """Return the logits ``[M, N, C]`` that a cascade gives, from those of the whole ensemble."""
        first = logits[self.member]
        return np.where(self.goes_on(first)[:, None], logits, first)


def stored(document: Any, members: int) -> Cascade | None:
    """Return the cascade that a checkpoint holds; None without one.

    Raises:
        InputError: for what fuse does not write.
    """
    if document is None:
        return None
    try:
        found = Cascade(document["member"], document["score"], float(document["value"]))
        right = type(found.member) is int and 0 <= found.member < members and np.isfinite(found.value)
        if right and not SCORES[found.score].of_several:
            return found
    except (KeyError, TypeError, ValueError):
        pass
    raise InputError(f"the checkpoint holds a broken cascade {shown(document)}", hint="write it again: fuse --cascade")


# --- fitting ----------------------------------------------------------------------------------------------------------


class Loss(NamedTuple):
    """The loss that a cascade has in a figure of the whole ensemble, and the upper 95 % limit of it."""

    value: float
    upper: float


class Answers(NamedTuple):
    """The answers of one member, or of all, on N samples: which are right, log p of the label, the OOD score.

    The first two are None for OOD samples.
    """

    correct: Floats | None
    log_p: Floats | None
    score: Floats


@dataclass(frozen=True)
class Fitted:
    """A threshold, and what it does on the validation data.

    Attributes:
        cascade: what was fitted.
        share: of the ID samples, those that go on.
        losses: of ``accuracy``, of ``nll`` (its rise, in nats), and of the AUROC of each OOD set as ``auroc.NAME``.
    """

    cascade: Cascade
    share: float
    losses: Mapping[str, Loss]


def answers(logits: np.ndarray, labels: np.ndarray | None, score: str) -> Answers:
    """Return the answers of logits ``[M, N, C]``."""
    samples = samples_of(logits, labels, score=score, pairs=False)
    assert samples.score is not None, "the settings refuse scores of several members"
    right = None if labels is None else samples.correct.astype(np.float64)
    return Answers(right, samples.label_log_probs, samples.score)


def fit(
    inside: np.ndarray,
    labels: np.ndarray,
    outside: Mapping[str, np.ndarray],
    score: str,
    allowed: float,
    costs: Sequence[tuple[float, float]],
) -> Fitted | None:
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
        InputError: fewer than :data:`FEWEST` samples in some set.
    """
    few = [f"{name} has {logits.shape[1]}" for name, logits in {"ID": inside, **outside}.items()]
    few = [text for text in few if int(text.rpartition(" ")[2]) < FEWEST]
    if few:
        raise InputError(f"a cascade needs {FEWEST} validation samples of each set: {', '.join(few)}")
    every = answers(inside, labels, score), {name: answers(own, None, score) for name, own in outside.items()}
    best: tuple[float, Fitted] | None = None
    for member, (first, rest) in enumerate(costs):
        own = slice(member, member + 1)
        alone = answers(inside[own], labels, score), {n: answers(x[own], None, score) for n, x in outside.items()}
        found = _cheapest(alone, every, allowed)
        if found is not None and (best is None or first + found[0] * rest < best[0]):
            share, value, losses = found
            best = first + share * rest, Fitted(Cascade(member, score, value), share, losses)
    return None if best is None else best[1]


_Sets = tuple[Answers, Mapping[str, Answers]]


def _cheapest(alone: _Sets, every: _Sets, allowed: float) -> tuple[float, float, dict[str, Loss]] | None:
    """Return share that goes on, threshold and losses of the cheapest allowed one, by answers of the first member."""
    scores = alone[0].score
    order = np.argsort(scores, kind="stable")
    rising = scores[order]
    means = {name: _losses_of_mean(name, alone[0], every[0], order) for name in ("accuracy", "nll")}
    allowed_by_means = np.logical_and.reduce([upper <= allowed for _, upper in means.values()])
    every_score = np.unique(np.concatenate([scores, *(own.score for own in alone[1].values())]))
    for last in np.flatnonzero(allowed_by_means & (rising != np.append(rising[1:], np.inf)))[::-1]:
        value = _above(float(rising[last]), every_score)
        losses = {name: Loss(float(values[last]), float(upper[last])) for name, (values, upper) in means.items()}
        for name, of_set in alone[1].items():
            pairs = (alone[0], every[0]), (of_set, every[1][name])
            inside, outside = (np.where(one.score < value, one.score, other.score) for one, other in pairs)
            losses[f"auroc.{name}"] = auroc_loss((every[0].score, every[1][name].score), (inside, outside))
            if losses[f"auroc.{name}"].upper > allowed:
                break
        else:
            return 1.0 - (int(last) + 1) / len(scores), value, losses
    return None


def _above(score: float, every: Floats) -> float:
    """Return half way from a score to the next higher one of any sample, so that rounding decides about none."""
    place = int(np.searchsorted(every, score, side="right"))
    following = float(every[place]) if place < len(every) else float(np.nextafter(score, np.inf))
    half = score + (following - score) / 2
    return half if half > score else following


def _losses_of_mean(name: str, alone: Answers, every: Answers, order: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Return how much the mean loses when the first ``1..N`` samples of an order stop, and the upper limits of that.

    Both are ``[N]``.
    """
    one, other = (each.correct if name == "accuracy" else each.log_p for each in (alone, every))
    assert one is not None and other is not None  # of labelled samples
    lost = (other - one)[order]
    mean = np.cumsum(lost) / len(lost)
    variance = np.maximum(np.cumsum(lost**2) / len(lost) - mean**2, 0.0)
    return mean, mean + _LIMIT * np.sqrt(variance / len(lost))


def auroc_loss(before: tuple[Floats, Floats], after: tuple[Floats, Floats]) -> Loss:
    """Return the AUROC of OOD scores before minus that after, on the same samples, and its upper limit.

    Args:
        before, after: the scores of ID samples, then of OOD samples.

    Source: DeLong, DeLong and Clarke-Pearson 1988: the variance of a difference, from the placements of each sample.
    """
    inside, outside = (a - b for a, b in zip(_placements(*before), _placements(*after), strict=True))
    value = float(outside.mean())
    return Loss(value, value + _LIMIT * float(np.sqrt(inside.var() / len(inside) + outside.var() / len(outside))))


def _placements(inside: Floats, outside: Floats) -> tuple[Floats, Floats]:
    """Return the share of OOD samples above each ID sample, and of ID samples below each OOD sample; ties half."""
    return 1.0 - _below(inside, outside), _below(outside, inside)


def _below(own: Floats, others: Floats) -> Floats:
    """Return for each sample the share of others below it, ties half."""
    rising = np.sort(others)
    counts = np.searchsorted(rising, own, "left") + np.searchsorted(rising, own, "right")
    return np.asarray(counts / (2 * len(others)), dtype=np.float64)
