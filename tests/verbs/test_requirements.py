"""``--require`` against rows, word for word."""

from __future__ import annotations

from typing import Any

import pytest

from hydractl.errors import UsageError
from hydractl.expressions.conditions import parse_requirement
from hydractl.metrics.rows import row_keys
from hydractl.verbs.requirements import check_known, unmet_in

ROWS: list[tuple[str, dict[str, Any]]] = [
    ("base", {"ratio": 1.0, "latency_ms": {"median": 4.0}, "peak": None, "group": "near", "compile": True}),
    ("hydra", {"ratio": 2.5, "latency_ms": {"median": 10.0}, "peak": None, "group": "far", "compile": True}),
    ("hydra", {"ratio": 1.25, "latency_ms": {"median": 5.0}, "peak": None, "group": "far", "compile": True}),
]


def failures(text: str, rows: list[tuple[str, dict[str, Any]]] = ROWS, exempt: tuple[str, ...] = ()) -> list[str]:
    return unmet_in(rows, [parse_requirement(text)], exempt)


def test_every_row_is_held_against_it() -> None:
    assert failures("ratio<=2.5") == []
    assert failures("ratio<=1.0") == [
        "ratio<=1.0: ratio of hydra is 2.5",
        "ratio<=1.0: ratio of hydra is 1.25",
    ]


def test_the_first_name_is_left_out_with_all_its_rows() -> None:
    rows = [("base", {"ratio": 1.0}), ("hydra", {"ratio": 3.0}), ("base", {"ratio": 1.0}), ("hydra", {"ratio": 4.0})]
    assert failures("ratio>=3", rows, ("base",)) == []
    assert len(failures("ratio>=3", rows)) == 2


@pytest.mark.parametrize(
    ("sign", "value", "holds"),
    [(">=", 4, True), ("<=", 4, True), ("==", 4, True), (">", 4, False), ("<", 4, False), (">", 3.9, True)],
)
def test_signs(sign: str, value: float, holds: bool) -> None:
    assert (failures(f"base:latency_ms.median{sign}{value}") == []) is holds


def test_a_named_row_is_held_against_it_even_if_it_is_the_first() -> None:
    text = "base:latency_ms.median<=3"
    assert failures(text, exempt=("base",)) == [f"{text}: latency_ms.median of base is 4"]


def test_no_row_to_hold_it_against_is_a_failure() -> None:
    assert failures("hidra:ratio<=3") == ["hidra:ratio<=3: no row is named 'hidra'; did you mean hydra?"]
    assert len(failures("ratio<=9", ROWS[:1], ("base",))) == 1


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("peak<=1", "peak of base is None, not a number"),
        ("group==1", "group of base is 'near', not a number"),
        ("compile==1", "compile of base is True, not a number"),
        ("latency_ms<=1", "latency_ms of base is {'median': 4.0}, not a number"),
        ("latency_ms.medain<=1", "base has no latency_ms.medain"),
        ("watts<=1", "base has no watts"),
    ],
)
def test_what_is_no_number_does_not_hold(key: str, why: str) -> None:
    assert failures(f"base:{key}") == [f"base:{key}: {why}"]


def test_names_with_dots_and_groups_that_are_null() -> None:
    rows = [("m", {"ood": {"cifar-10.1": {"auroc": 0.9}}, "near_avg": None, "ood_avg": {"auroc": 0.8}})]
    assert failures("ood.cifar-10.1.auroc>=0.9", rows) == []
    assert failures("near_avg.auroc>=0.5", rows) == ["near_avg.auroc>=0.5: near_avg.auroc of m is None, not a number"]


def test_names_with_colons_and_spaces_beside_the_sign() -> None:
    rows = [("hf:o/n", {"id": {"ece": 0.01}})]
    assert failures("hf:o/n:id.ece <= 1e-2", rows) == []
    assert failures("hf:o/n:id.ece < 1e-2", rows) == ["hf:o/n:id.ece < 1e-2: id.ece of hf:o/n is 0.01"]


def test_rows_of_one_name_are_told_apart() -> None:
    rows = [("hydra", {"ratio": ratio, "batch_size": size, "dtype": "float32"}) for ratio, size in ((2.5, 1), (1, 8))]
    assert failures("ratio<=2", rows) == ["ratio<=2: ratio of hydra (batch 1, float32) is 2.5"]


def test_unknown_keys_and_rows_are_refused_beforehand() -> None:
    requirements = [parse_requirement(t) for t in ("rato<=1", "hydra:ratio<=1", "hidra:ratio<=1")]
    with pytest.raises(UsageError) as caught:
        check_known(requirements, ["base", "hydra"], ["ratio", "macs"], ["base"])
    assert caught.value.problems == [
        "--require rato<=1: unknown key 'rato'; did you mean ratio?",
        "--require hidra:ratio<=1: no row is named 'hidra'; did you mean hydra?",
    ]
    assert caught.value.hint == "keys: ratio, macs"
    check_known(requirements[1:2], ["base", "hydra"], ["ratio"], ["base"])


@pytest.mark.parametrize(
    ("key", "sets", "guess"),
    [
        ("auroc", ["far"], "; did you mean ood.far.auroc or near_avg.auroc or far_avg.auroc?"),
        ("accuracy", [], "; did you mean id.accuracy?"),
        ("ood_avg.auroc", [], "; it needs OOD data: --ood NAME=SPEC"),
    ],
)
def test_a_key_without_its_group_and_one_without_data(key: str, sets: list[str], guess: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_known([parse_requirement(f"{key}>=0.5")], ["vit"], row_keys(sets))
    assert caught.value.message == f"--require {key}>=0.5: unknown key '{key}'{guess}"


def test_a_requirement_that_would_hold_nothing_is_refused_beforehand() -> None:
    with pytest.raises(UsageError, match="there is no other; write vit:ratio<=1"):
        check_known([parse_requirement("ratio<=1")], ["vit"], ["ratio"], ["vit"])
    check_known([parse_requirement("ratio<=1")], ["vit"], ["ratio"])
