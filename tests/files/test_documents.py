"""Checking documents against forms: what is a number, where a problem is said to be, and that nothing is converted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from hydractl.errors import InputError
from hydractl.files.documents import FormMaker, check
from hydractl.files.records import Count, Number, Record, described, needed


@dataclass(frozen=True, kw_only=True)
class Leaf(Record):
    """A leaf."""

    value: Number = described("A number.")
    count: Count | None = described("A count.")


@dataclass(frozen=True, kw_only=True)
class TreeRecord(Record):
    """Leaves."""

    leaf: Leaf = needed("The first leaf.")
    leaves: Mapping[str, Sequence[Leaf]] = described("More leaves by name.", empty=dict)


Tree = FormMaker().form_of(TreeRecord)


def problems(document: Any) -> list[str]:
    try:
        check(document, Tree, "message", "hint")
    except InputError as error:
        return error.problems
    return []


def test_the_error_has_the_message_and_the_hint() -> None:
    with pytest.raises(InputError) as caught:
        check({}, Tree, "message", "hint")
    assert (caught.value.message, caught.value.hint) == ("message", "hint")


@pytest.mark.parametrize("value", [10**400, float("inf"), float("nan"), True, "1", []])
def test_what_is_no_number(value: Any) -> None:
    (problem,) = problems({"leaf": {"value": value}})
    assert problem.startswith("leaf.value is ") and problem.endswith(", not a number") and len(problem) < 100


@pytest.mark.parametrize("value", [None, 0, -1.5e300, 10**300])
def test_what_is_a_number(value: Any) -> None:
    document = {"leaf": {"value": value}}
    assert problems(document) == [] and document["leaf"]["value"] is value


@pytest.mark.parametrize("value", [-1, 1.0, True, "1", 2**63])
def test_what_is_no_count(value: Any) -> None:
    (problem,) = problems({"leaf": {"count": value}})
    assert problem.startswith("leaf.count is ") and ", not a count" in problem
    assert problems({"leaf": {"count": 2**63 - 1}}) == []


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (3, ["it is 3, not an object"]),
        (None, ["it is null"]),
        ({}, ["it has no leaf"]),
        ({"leaf": None}, ["it has no leaf"]),
        ({"leaf": []}, ["leaf is [], not an object"]),
        ({"leaf": {}, "leaves": {"a.b": [{}, None]}}, ["leaves.a.b[1] is null"]),
        ({"leaf": {}, "leaves": {"a\x1b[31m\nb": 3}}, [r"leaves.a\x1b[31m\nb is 3, not a list"]),
        ({"leaf": {}, "leaves": {"a": [7] * 100}}, [f"leaves.a[{n}] is 7, not an object" for n in range(10)]),
        ({"leaf": {"value": "x" * 1000}}, [f"leaf.value is {'x' * 1000!r:.57}..., not a number"]),
        ({"leaf": {"other": object()}, "more": {}}, []),
    ],
)
def test_where_a_problem_is(document: Any, expected: list[str]) -> None:
    assert problems(document) == expected
