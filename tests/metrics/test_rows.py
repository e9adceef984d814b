"""The metrics put together as the evaluation's JSON holds them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest

from hydractl.errors import NonFiniteError
from hydractl.evaluation.answer import sentences
from hydractl.files.eval_answer import OodSetMetrics
from hydractl.metrics import curves, rows
from hydractl.metrics.samples import samples_of

SHARES = ["0.80", "0.90", "0.95"]
OOD_KEYS = ["n", "auroc", "fpr95", "fpr95_nearest", "aupr", "aupr_trapezoid", "aupr_in"]


def random_case(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Logits [3, 101, 6] and labels."""
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=(3, 101, 6)) * 3).astype(np.float32)
    return logits, rng.integers(0, 6, 101)


def test_id_metrics_by_hand() -> None:
    # Members (3/4, 1/4) and (1/2, 1/2): p = (5/8, 3/8), once right and once wrong.
    logits = np.log(np.array([[[3.0, 1.0]] * 2, [[1.0, 1.0]] * 2]))
    got = rows.id_metrics(logits, np.array([0, 1])).to_dict()
    # 80 % of two samples, rounded up, are both.
    assert got.pop("accuracy_at") == {"0.80": 0.5, "0.90": 0.5, "0.95": 0.5}
    expected = {
        "n": 2,
        "accuracy": 0.5,
        "brier": (2 * 0.375**2 + 2 * 0.625**2) / 2,
        "nll": -(np.log(0.625) + np.log(0.375)) / 2,
        "ece": 0.125,
        "aece": 0.125,  # two bins of one sample, each half right
        "aurc": 0.25,
    }
    assert {key: got[key] for key in expected} == pytest.approx(expected, abs=1e-15)


def test_empty_inputs_are_none_and_never_nan() -> None:
    empty = rows.id_metrics(np.zeros((3, 0, 4)), np.zeros(0, dtype=int)).to_dict()
    assert empty.pop("n") == 0 and empty.pop("accuracy_at") == dict.fromkeys(SHARES)
    assert {*empty.values()} == {None}
    no_ood = rows.ood_metrics(np.zeros(5), np.zeros(0))
    assert no_ood.n == 0 and {*no_ood.metrics.values()} == {None}
    no_id = rows.ood_metrics(np.zeros(0), np.zeros(5))
    assert no_id.n == 5 and {*no_id.metrics.values()} == {None}
    assert {*rows.diversity_values(samples_of(np.zeros((3, 0, 4)))).values()} == {None}
    of_one = rows.diversity_values(samples_of(np.zeros((1, 2, 4))))
    assert of_one["mi"] == 0.0 and of_one["disagreement"] is None


def test_logits_that_are_not_finite_are_an_error() -> None:
    logits, labels = random_case(2)
    logits[2, 100, 5] = np.nan
    with pytest.raises(NonFiniteError, match="member 2 are not finite at sample 100"):
        rows.id_metrics(logits, labels)


def measured(group: str | None, value: float, **others: float | None) -> rows.Blocks:
    return {"group": group, "n": 3, **dict.fromkeys(OOD_KEYS[1:], value), **others}


def test_group_averages_are_unweighted_and_ood_avg_is_over_all_sets() -> None:
    sets = {
        "a": measured("near", 0.5),
        "b": measured("far", 0.25),
        "c": measured("far", 0.75),
        "d": measured(None, 0.9),
    }
    averages = rows.group_averages(sets)
    assert list(averages) == ["near_avg", "far_avg", "ood_avg"]
    assert averages["near_avg"] == averages["far_avg"] == dict.fromkeys(OOD_KEYS[1:], 0.5)
    # Over all four sets, not over the means of the two groups.
    assert averages["ood_avg"] == pytest.approx(dict.fromkeys(OOD_KEYS[1:], 0.6))


def test_group_averages_without_a_value() -> None:
    averages = rows.group_averages({"a": measured("near", 0.5), "b": measured("near", 0.7, auroc=None)})
    assert averages["near_avg"]["auroc"] is averages["ood_avg"]["auroc"] is None
    assert averages["near_avg"]["fpr95"] == pytest.approx(0.6)
    assert set(averages["far_avg"].values()) == {None}
    assert set(rows.group_averages({})["ood_avg"].values()) == {None}


def dotted_keys(row: dict) -> Iterator[str]:
    for key, value in row.items():
        if not isinstance(value, dict):
            yield key
            continue
        for inner_key in dotted_keys(value):
            yield f"{key}.{inner_key}"


def test_the_keys_of_a_row_are_those_of_its_numbers() -> None:
    logits, labels = random_case(5)
    inside = samples_of(logits, labels)
    outside = samples_of(logits[:, :40] / 3)
    row = rows.row_blocks(inside, {"a.b": outside, "c": outside}, {"a.b": "near", "c": None})
    of_numbers = {key for key in dotted_keys(row.to_dict()) if not key.endswith(".group")}
    assert set(rows.row_keys(["a.b", "c"])) == of_numbers
    assert row.id == rows.id_metrics(logits, labels)
    assert row.ood["c"] == rows.ood_metrics(inside.score, outside.score)
    assert row.ood["a.b"] == OodSetMetrics(group="near", n=40, **row.near_avg.metrics)
    assert set(row.far_avg.metrics.values()) == {None}
    for name, samples in (("id", inside), ("c", outside)):
        assert row.diversity[name].metrics == rows.diversity_values(samples)


def test_data_without_labels_have_their_number_alone() -> None:
    assert rows.id_block(samples_of(random_case(6)[0])).to_dict() == {"n": 101}


def test_every_block_of_a_row_has_a_convention() -> None:
    inside = samples_of(*random_case(7))
    outside = samples_of(random_case(8)[0])
    row = rows.row_blocks(inside, {"a": outside}, {"a": "far"}).to_dict()
    drawn = curves.curves(inside, {"a": outside}).to_dict()
    named = {"ci", "difference", "calibration", "conformal", "threshold"}
    for block in (row, row["id"], row["ood"]["a"], row["diversity"]["a"], drawn):
        named.update(block)
    conventions = sentences()
    assert named - set(conventions) == {"id", "ood", "diversity", "group"}
    assert all(len(sentence) > 20 and sentence.endswith(".") for sentence in conventions.values())
    assert json.loads(json.dumps([row, conventions], allow_nan=False)) == [row, conventions]
