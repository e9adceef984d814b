"""Metrics against the number of heads removed, against models that were really pruned."""

from __future__ import annotations

import pytest
import torch

from examples.analyses.removal import removal_curve
from examples.analyses.samples import UNKNOWN
from hydractl.heads.mask import all_heads
from hydractl.log import Log
from hydractl.metrics.ood import OOD_SCORES
from hydractl.metrics.rows import id_metrics, ood_metrics
from hydractl.model.runtime import HydraModel
from tests.pico import images, inputs, logits, shared_stock, source_of, stock, zero_columns


def built(variant: str) -> HydraModel:
    source = source_of(shared_stock(variant), variant)
    return HydraModel(source.description, source.tensors)


@pytest.fixture
def model() -> HydraModel:
    return built("class-token")


@pytest.mark.parametrize("variant", ["class-token", "bert", "clip"])
def test_every_row_is_that_of_a_pruned_model(variant: str) -> None:
    """Of the library's own, with the output columns of the removed heads zeroed."""
    model, first = built(variant), inputs(variant)
    second = images(4, seed=2) if isinstance(first, torch.Tensor) else {name: x[:2] for name, x in first.items()}
    count = 4 if isinstance(second, torch.Tensor) else 2
    labels = torch.arange(3 + count) % 3
    inside = [(first, labels[:3]), (second, labels[3:])]
    outside = {"o": [(images(6, seed=3) if isinstance(first, torch.Tensor) else first, torch.full((6,), UNKNOWN))]}
    order = all_heads(model.sites)[::-1]
    rows = removal_curve(model, order, [0, 2, len(order)], inside, outside, Log())
    assert [row["removed"] for row in rows] == [0, 2, len(order)]
    for row in rows:
        reference = zero_columns(stock(variant), order[: row["removed"]])
        with torch.no_grad():
            known = torch.cat([logits(reference, x) for x, _ in inside]).double().numpy()[None]
            strange = logits(reference, outside["o"][0][0]).double().numpy()[None]
        expected = id_metrics(known, labels.numpy())
        for key in ("n", "accuracy", "nll", "brier", "ece"):
            assert row["id"][key] == pytest.approx(getattr(expected, key), abs=1e-5)
        assert row["ood"]["o"]["auroc"] == row["ood_avg"]["auroc"]
        # Without any head nothing of a sample reaches the class token: then all scores are equal but for rounding.
        if variant != "bert" and row["removed"] < len(order):
            msp = OOD_SCORES["msp"]
            assert row["ood_avg"]["auroc"] == ood_metrics(msp(known), msp(strange)).auroc
    assert rows[0]["id"]["nll"] != rows[2]["id"]["nll"]
