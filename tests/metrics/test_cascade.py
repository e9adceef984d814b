"""Thresholds of cascades, against every threshold tried one after another."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from hydractl.errors import InputError
from hydractl.metrics.cascade import Cascade, auroc_loss, fit_cheapest_cascade, stored_cascade
from hydractl.metrics.samples import samples_of

COSTS = [(1.0, 0.5), (0.9, 0.7)]


def ensemble(seed: int, samples: int, sharp: float) -> np.ndarray:
    """Logits [2, N, 3] of two members that agree the more, the surer they are."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(samples, 3)) * sharp * rng.random((samples, 1))
    return np.stack([common + rng.normal(size=(samples, 3)) * 0.3, common * 0.8 + rng.normal(size=(samples, 3)) * 0.3])


INSIDE, OUTSIDE = ensemble(0, 140, 8.0), {"a": ensemble(1, 110, 2.0), "b": ensemble(2, 100, 3.0)}
LABELS = np.where(np.random.default_rng(3).random(140) < 0.9, INSIDE.sum(0).argmax(1), 0)


def served(logits: np.ndarray, member: int, value: float) -> np.ndarray:
    """p [N, C], sample by sample."""
    each = softmax(logits, axis=2)
    return np.stack([m[member] if -m[member].max() < value else m.mean(0) for m in each.transpose(1, 0, 2)])


def delong(before: tuple[np.ndarray, np.ndarray], after: tuple[np.ndarray, np.ndarray]) -> tuple[float, float]:
    """AUROC before minus after, and its upper limit, from all pairs of an ID and an OOD sample."""
    wins = [(o[None] > i[:, None]) + 0.5 * (o[None] == i[:, None]) for i, o in (before, after)]
    lost = wins[0] - wins[1]  # [ID, OOD]
    variance = lost.mean(1).var() / lost.shape[0] + lost.mean(0).var() / lost.shape[1]
    return lost.mean(), lost.mean() + norm.ppf(0.95) * np.sqrt(variance)


@functools.cache
def tried() -> list[tuple[float, int, float, float, float]]:
    """Cost, member, threshold and share of every cascade, and the most that it may lose."""
    cascades = []
    whole, rows = served(INSIDE, 0, -2.0), np.arange(len(LABELS))
    whole_outside = [served(outside, 0, -2.0) for outside in OUTSIDE.values()]
    for member, (first, rest) in enumerate(COSTS):
        scores = -softmax(INSIDE[member], axis=1).max(1)
        every = np.unique(np.concatenate([scores, *(-softmax(o[member], axis=1).max(1) for o in OUTSIDE.values())]))
        for score in scores:
            above = every[every > score]
            value = (score + above[0]) / 2 if len(above) else np.nextafter(score, np.inf)
            p = served(INSIDE, member, value)
            lost = [
                (whole.argmax(1) == LABELS).astype(float) - (p.argmax(1) == LABELS),
                np.log(whole[rows, LABELS]) - np.log(p[rows, LABELS]),
            ]
            uppers = [x.mean() + norm.ppf(0.95) * x.std() / np.sqrt(len(x)) for x in lost]
            for outside, whole_o in zip(OUTSIDE.values(), whole_outside, strict=True):
                p_outside = served(outside, member, value)
                uppers.append(delong((-whole.max(1), -whole_o.max(1)), (-p.max(1), -p_outside.max(1)))[1])
            share = float((scores >= value).mean())
            cascades.append((first + share * rest, member, value, share, max(uppers)))
    return cascades


def naive(allowed: float) -> tuple[int, float, float] | None:
    """Member, threshold and share of the cheapest cascade."""
    good = [cascade[:4] for cascade in tried() if cascade[4] <= allowed]
    return min(good)[1:] if good else None


@pytest.mark.parametrize("allowed", [0.004, 0.02, 0.5])
def test_the_cheapest_allowed_threshold(allowed: float) -> None:
    found, expected = fit_cheapest_cascade(INSIDE, LABELS, OUTSIDE, "msp", allowed, COSTS), naive(allowed)
    assert found is not None and expected is not None
    assert found.cascade == Cascade(expected[0], "msp", pytest.approx(expected[1], abs=1e-12))
    assert found.share == pytest.approx(expected[2]) and max(loss.upper for loss in found.losses.values()) <= allowed
    assert [*found.losses] == ["accuracy", "nll", "auroc.a", "auroc.b"]


def test_what_is_served_is_what_was_fitted() -> None:
    found = fit_cheapest_cascade(INSIDE, LABELS, OUTSIDE, "msp", 0.02, COSTS)
    assert found is not None and 0.0 < found.share < 1.0
    logits = found.cascade.served(INSIDE)
    p = served(INSIDE, found.cascade.member, found.cascade.value)
    samples = samples_of(logits, LABELS)
    assert np.allclose(samples.confidence, p.max(1)) and np.allclose(
        samples.label_log_probs, np.log(p[range(len(LABELS)), LABELS])
    )
    stops = ~found.cascade.goes_on(INSIDE[found.cascade.member])
    assert (samples.mi[stops] < 1e-12).all() and (samples.differing_pairs[stops] == 0).all()
    assert np.array_equal(logits[:, ~stops], INSIDE[:, ~stops])
    p_whole = softmax(INSIDE, axis=2).mean(0)
    lost = {"accuracy": np.mean(p_whole.argmax(1) == LABELS) - samples.mean("correct")}
    lost["nll"] = np.log(p_whole[range(len(LABELS)), LABELS]).mean() - samples.mean("label_log_probs")
    for name, value in lost.items():
        assert found.losses[name].value == pytest.approx(value, abs=1e-12)


def test_delong_against_all_pairs_with_ties() -> None:
    rng = np.random.default_rng(0)
    before, after = ((rng.integers(0, 6, 40) / 4.0, rng.integers(1, 8, 30) / 4.0) for _ in range(2))
    assert auroc_loss(before, after) == pytest.approx(delong(before, after))
    is_outside = [0] * 40 + [1] * 30
    aurocs = [roc_auc_score(is_outside, np.concatenate(pair)) for pair in (before, after)]
    assert delong(before, after)[0] == pytest.approx(aurocs[0] - aurocs[1])


def test_no_sample_may_stop_and_too_few_samples() -> None:
    apart = np.stack([INSIDE[0], np.roll(INSIDE[0], 1, axis=1)])  # members that never agree
    assert fit_cheapest_cascade(apart, INSIDE[0].argmax(1), {}, "msp", -1.0, COSTS) is None
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
        {"member": 0, "score": "msp"},
    ],
)
def test_what_fuse_does_not_write_is_refused(document: Any) -> None:
    with pytest.raises(InputError, match="broken cascade"):
        stored_cascade(document, 2)
