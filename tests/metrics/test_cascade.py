"""Thresholds of cascades, against every threshold tried one after another."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from hydractl.errors import InputError
from hydractl.metrics.cascade import Cascade, FittedCascade, auroc_loss, fit_cheapest_cascade, stored_cascade
from hydractl.metrics.samples import samples_of
from tests.spread import marked_long

COSTS = [(1.0, 0.5), (0.9, 0.7)]


def ensemble(seed: int, samples: int, sharp: float) -> np.ndarray:
    """Logits [2, N, 3] of two members that agree the more, the surer they are."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(samples, 3)) * sharp * rng.random((samples, 1))
    first = common + rng.normal(size=(samples, 3)) * 0.3
    second = common * 0.8 + rng.normal(size=(samples, 3)) * 0.3
    return np.stack([first, second])


INSIDE = ensemble(0, 140, 8.0)
OUTSIDE = {"a": ensemble(1, 110, 2.0), "b": ensemble(2, 100, 3.0)}
LABELS = np.where(np.random.default_rng(3).random(140) < 0.9, INSIDE.sum(axis=0).argmax(axis=1), 0)


def msp(probs: np.ndarray) -> np.ndarray:
    """The OOD scores [N] of p [N, C]."""
    return -probs.max(axis=1)


def of_labels(probs: np.ndarray) -> np.ndarray:
    """log p of the label, [N], of the ID samples' p [N, C]."""
    return np.log(probs[np.arange(len(LABELS)), LABELS])


def served(logits: np.ndarray, member: int, value: float) -> np.ndarray:
    """p [N, C], sample by sample."""
    rows = []
    for of_members in softmax(logits, axis=2).transpose(1, 0, 2):
        stops = -of_members[member].max() < value
        rows.append(of_members[member] if stops else of_members.mean(axis=0))
    return np.stack(rows)


def wins(inside: np.ndarray, outside: np.ndarray) -> np.ndarray:
    """1 where an OOD sample scores higher than an ID sample, half where equal, [ID, OOD]."""
    return (outside[None] > inside[:, None]) + 0.5 * (outside[None] == inside[:, None])


def delong(before: tuple[np.ndarray, np.ndarray], after: tuple[np.ndarray, np.ndarray]) -> tuple[float, float]:
    """AUROC before minus after, and its upper limit, from all pairs of an ID and an OOD sample."""
    lost = wins(*before) - wins(*after)  # [ID, OOD]
    of_inside = lost.mean(axis=1)
    of_outside = lost.mean(axis=0)
    variance = of_inside.var() / len(of_inside) + of_outside.var() / len(of_outside)
    return lost.mean(), lost.mean() + norm.ppf(0.95) * np.sqrt(variance)


def upper_limit(lost: np.ndarray) -> float:
    """The upper 95 % limit of the mean of what is lost, [N]."""
    return lost.mean() + norm.ppf(0.95) * lost.std() / np.sqrt(len(lost))


class TriedCascade(NamedTuple):
    """A cascade, and the upper limit of the most that it loses of any figure."""

    cost: float
    member: int
    value: float
    share: float
    worst: float


@functools.cache
def tried() -> list[TriedCascade]:
    """Every threshold between the scores of two samples, for each member that may be first."""
    whole = softmax(INSIDE, axis=2).mean(axis=0)
    whole_outside = {name: softmax(logits, axis=2).mean(axis=0) for name, logits in OUTSIDE.items()}
    cascades = []
    for member, (first, rest) in enumerate(COSTS):
        scores = msp(softmax(INSIDE[member], axis=1))
        outside_scores = [msp(softmax(logits[member], axis=1)) for logits in OUTSIDE.values()]
        every_score = np.unique(np.concatenate([scores, *outside_scores]))
        for score in scores:
            above = every_score[every_score > score]
            value = (score + above[0]) / 2 if len(above) else np.nextafter(score, np.inf)
            p = served(INSIDE, member, value)
            lost_accuracy = (whole.argmax(axis=1) == LABELS).astype(float) - (p.argmax(axis=1) == LABELS)
            lost_nll = of_labels(whole) - of_labels(p)
            limits = [upper_limit(lost_accuracy), upper_limit(lost_nll)]
            for name, logits in OUTSIDE.items():
                before = (msp(whole), msp(whole_outside[name]))
                after = (msp(p), msp(served(logits, member, value)))
                _, limit = delong(before, after)
                limits.append(limit)
            share = float((scores >= value).mean())
            cascades.append(TriedCascade(first + share * rest, member, value, share, max(limits)))
    return cascades


def fitted(allowed: float) -> FittedCascade:
    cascade = fit_cheapest_cascade(INSIDE, LABELS, OUTSIDE, "msp", allowed, COSTS)
    assert cascade is not None
    return cascade


@pytest.mark.parametrize("allowed", [0.02, *marked_long([0.004, 0.5])])
def test_the_cheapest_allowed_threshold(allowed: float) -> None:
    cheapest = min(cascade for cascade in tried() if cascade.worst <= allowed)
    chosen = fitted(allowed)
    assert chosen.cascade == Cascade(cheapest.member, "msp", pytest.approx(cheapest.value, abs=1e-12))
    assert chosen.share == pytest.approx(cheapest.share)
    assert list(chosen.losses) == ["accuracy", "nll", "auroc.a", "auroc.b"]
    assert max(loss.upper for loss in chosen.losses.values()) == pytest.approx(cheapest.worst)


def test_what_is_served_is_what_was_fitted() -> None:
    chosen = fitted(0.02)
    assert 0.0 < chosen.share < 1.0
    logits = chosen.cascade.served(INSIDE)
    p = served(INSIDE, chosen.cascade.member, chosen.cascade.value)
    samples = samples_of(logits, LABELS)
    assert samples.confidence == pytest.approx(p.max(axis=1))
    assert samples.label_log_probs == pytest.approx(of_labels(p))
    stops = ~chosen.cascade.goes_on(INSIDE[chosen.cascade.member])
    assert (samples.mi[stops] < 1e-12).all()
    assert (samples.differing_pairs[stops] == 0).all()
    assert np.array_equal(logits[:, ~stops], INSIDE[:, ~stops])


def test_the_losses_are_those_of_what_is_served() -> None:
    chosen = fitted(0.02)
    samples = samples_of(chosen.cascade.served(INSIDE), LABELS)
    whole = softmax(INSIDE, axis=2).mean(axis=0)
    lost_accuracy = np.mean(whole.argmax(axis=1) == LABELS) - samples.mean("correct")
    lost_nll = of_labels(whole).mean() - samples.mean("label_log_probs")
    assert chosen.losses["accuracy"].value == pytest.approx(lost_accuracy, abs=1e-12)
    assert chosen.losses["nll"].value == pytest.approx(lost_nll, abs=1e-12)


def test_delong_against_all_pairs_with_ties() -> None:
    rng = np.random.default_rng(0)
    before = (rng.integers(0, 6, 40) / 4.0, rng.integers(1, 8, 30) / 4.0)
    after = (rng.integers(0, 6, 40) / 4.0, rng.integers(1, 8, 30) / 4.0)
    assert auroc_loss(before, after) == pytest.approx(delong(before, after))
    is_outside = [0] * 40 + [1] * 30
    auroc_before = roc_auc_score(is_outside, np.concatenate(before))
    auroc_after = roc_auc_score(is_outside, np.concatenate(after))
    assert auroc_loss(before, after).value == pytest.approx(auroc_before - auroc_after)


def test_no_sample_may_stop() -> None:
    apart = np.stack([INSIDE[0], np.roll(INSIDE[0], 1, axis=1)])  # members that never agree
    assert fit_cheapest_cascade(apart, INSIDE[0].argmax(axis=1), {}, "msp", -1.0, COSTS) is None


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(InputError, match=r"100 validation samples of each set: ID has 99, a has 50$"):
        fit_cheapest_cascade(INSIDE[:, :99], LABELS[:99], {"a": OUTSIDE["a"][:, :50]}, "msp", 0.1, COSTS)


@pytest.mark.parametrize(
    "document",
    [
        7,
        {"member": 2, "score": "msp", "value": 0.1},
        {"member": True, "score": "msp", "value": 0.1},
        {"member": 0, "score": "mi", "value": 0.1},
        {"member": 0, "score": "msp", "value": float("nan")},
    ],
)
def test_what_fuse_does_not_write_is_refused(document: Any) -> None:
    with pytest.raises(InputError, match="broken cascade"):
        stored_cascade(document, 2)
