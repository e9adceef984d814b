"""Thresholds of cascades, against every threshold tried one after another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from hydractl.errors import InputError
from hydractl.metrics.cascade import Cascade, auroc_loss, fit, stored
from hydractl.metrics.samples import samples_of

COSTS = [(1.0, 0.5), (0.9, 0.7)]


def ensemble(seed: int, samples: int, sharp: float) -> np.ndarray:
    """Logits [2, N, 3] of two members that agree the more, the surer they are."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(samples, 3)) * sharp * rng.random((samples, 1))
    return np.stack([common + rng.normal(size=(samples, 3)) * 0.3, common * 0.8 + rng.normal(size=(samples, 3)) * 0.3])


INSIDE, OUTSIDE = ensemble(0, 300, 8.0), {"a": ensemble(1, 150, 2.0), "b": ensemble(2, 120, 3.0)}
LABELS = np.where(np.random.default_rng(3).random(300) < 0.9, INSIDE.sum(0).argmax(1), 0)


def served(logits: np.ndarray, member: int, value: float) -> np.ndarray:
    """p [N, C], sample by sample."""
    each = softmax(logits, axis=2)
    return np.stack([m[member] if -m[member].max() < value else m.mean(0) for m in each.transpose(1, 0, 2)])


def delong(before: tuple[np.ndarray, np.ndarray], after: tuple[np.ndarray, np.ndarray]) -> tuple[float, float]:
    """AUROC before minus after, and its upper limit, from all pairs of an ID and an OOD sample."""
    wins = [(o[None] > i[:, None]) + 0.5 * (o[None] == i[:, None]) for i, o in (before, after)]
    lost = wins[0] - wins[1]  # [ID, OOD]
    variance = lost.mean(1).var() / lost.shape[0] + lost.mean(0).var() / lost.shape[1]
    value = roc_auc_score([0] * lost.shape[0] + [1] * lost.shape[1], np.concatenate(before)) - roc_auc_score(
        [0] * lost.shape[0] + [1] * lost.shape[1], np.concatenate(after)
    )
    return value, value + norm.ppf(0.95) * np.sqrt(variance)


def naive(allowed: float) -> tuple[int, float, float] | None:
    """Member, threshold and share of the cheapest cascade."""
    found = []
    whole, rows = served(INSIDE, 0, -2.0), np.arange(300)
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
            for outside in OUTSIDE.values():
                pairs = [(-a.max(1), -served(outside, member, v).max(1)) for a, v in ((whole, -2.0), (p, value))]
                uppers.append(delong(pairs[0], pairs[1])[1])
            if max(uppers) <= allowed:
                share = float((scores >= value).mean())
                found.append((first + share * rest, member, value, share))
    return None if not found else min(found)[1:]


@pytest.mark.parametrize("allowed", [0.004, 0.02, 0.5])
def test_the_cheapest_allowed_threshold(allowed: float) -> None:
    found, expected = fit(INSIDE, LABELS, OUTSIDE, "msp", allowed, COSTS), naive(allowed)
    assert found is not None and expected is not None
    assert found.cascade == Cascade(expected[0], "msp", pytest.approx(expected[1], abs=1e-12))
    assert found.share == pytest.approx(expected[2]) and max(loss.upper for loss in found.losses.values()) <= allowed
    assert [*found.losses] == ["accuracy", "nll", "auroc.a", "auroc.b"]


def test_what_is_served_is_what_was_fitted() -> None:
    found = fit(INSIDE, LABELS, OUTSIDE, "msp", 0.02, COSTS)
    assert found is not None and 0.0 < found.share < 1.0
    logits = found.cascade.served(INSIDE)
    p = served(INSIDE, found.cascade.member, found.cascade.value)
    samples = samples_of(logits, LABELS)
    assert np.allclose(samples.confidence, p.max(1)) and np.allclose(
        samples.label_log_probs, np.log(p[range(300), LABELS])
    )
    stops = ~found.cascade.goes_on(INSIDE[found.cascade.member])
    assert (samples.mi[stops] < 1e-12).all() and (samples.differing_pairs[stops] == 0).all()
    assert np.array_equal(logits[:, ~stops], INSIDE[:, ~stops])
    lost = {"accuracy": np.mean(softmax(INSIDE, axis=2).mean(0).argmax(1) == LABELS) - samples.mean("correct")}
    lost["nll"] = np.log(softmax(INSIDE, axis=2).mean(0)[range(300), LABELS]).mean() - samples.mean("label_log_probs")
    for name, value in lost.items():
        assert found.losses[name].value == pytest.approx(value, abs=1e-12)


def test_delong_against_all_pairs_with_ties() -> None:
    rng = np.random.default_rng(0)
    before, after = ((rng.integers(0, 6, 40) / 4.0, rng.integers(1, 8, 30) / 4.0) for _ in range(2))
    assert auroc_loss(before, after) == pytest.approx(delong(before, after))


def test_no_sample_may_stop_and_too_few_samples() -> None:
    apart = np.stack([INSIDE[0], np.roll(INSIDE[0], 1, axis=1)])  # members that never agree
    assert fit(apart, INSIDE[0].argmax(1), {}, "msp", -1.0, COSTS) is None
    with pytest.raises(InputError, match=r"100 validation samples of each set: ID has 99, a has 50$"):
        fit(INSIDE[:, :99], LABELS[:99], {"a": OUTSIDE["a"][:, :50]}, "msp", 0.1, COSTS)


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
        stored(document, 2)
