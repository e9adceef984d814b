"""Metrics against the number of heads removed, against models that were really pruned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from examples.analyses.removal import removal_curve, removal_order, without_heads
from examples.analyses.samples import UNKNOWN, in_memory
from hydractl.data import open_data
from hydractl.errors import InputError
from hydractl.heads.mask import HeadScores, all_heads
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


def test_orders_of_scores_and_of_circuits(model: HydraModel) -> None:
    heads = all_heads(model.sites)
    scores = HeadScores({s.path: tuple(float(-h) for h in range(s.heads)) for s in model.sites}).to_json()
    found = removal_order(scores, model, "s.json")
    assert sorted(found) == sorted(heads) and [head for _, head in found] == sorted((h for _, h in heads), reverse=True)
    steps = [{"step": i + 1, "site": path, "head": head} for i, (path, head) in enumerate(heads[:3])]
    circuit = {"schema": "hydractl.circuit/2", "removed": steps}
    assert removal_order(circuit, model, "c.json") == heads[:3]
    with pytest.raises(InputError, match="neither scores nor a circuit"):
        removal_order({"schema": "hydractl.mask/1"}, model, "m.json")
    with pytest.raises(InputError, match="has 3 heads, 4 are to be removed"):
        removal_curve(model, heads[:3], [4], [], {}, Log(), title="c")


def test_gates_are_taken_away_after_an_error(model: HydraModel) -> None:
    with pytest.raises(KeyError), without_heads(model, []):
        raise KeyError
    assert all(attention.head_gate is None for attention in model.attentions)


def test_samples_stay_in_memory(model: HydraModel, tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (5, 16, 16, 3), dtype=np.uint8)
    np.savez(tmp_path / "d.npz", x=x, y=np.array([0, 1, 2, 0, 1]))
    np.savez(tmp_path / "o.npz", x=x)
    labelled = in_memory(model, open_data(str(tmp_path / "d.npz"), labels=[]), 2)
    assert [len(known) for _, known in labelled] == [2, 2, 1]
    assert torch.cat([known for _, known in labelled]).tolist() == [0, 1, 2, 0, 1]
    plain = in_memory(model, open_data(str(tmp_path / "o.npz")), 2)
    assert torch.equal(plain[0][0], labelled[0][0]) and set(plain[2][1].tolist()) == {UNKNOWN}
