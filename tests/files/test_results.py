"""Records: JSON objects as frozen models, built, written and read; what is refused, and in which words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pytest
from pydantic import ValidationError

from hydractl.errors import InputError
from hydractl.files.results import (
    Count,
    Interval,
    MetricValue,
    Number,
    Record,
    Result,
    optional,
    sparse,
)
from tests.running import refused


class Wheel(Record):
    """A wheel."""

    spokes: Count
    """Number of spokes."""
    size: Number = None
    """Its size."""


class Named(Record):
    """What has a name."""

    name: str
    """Its name."""


class Bicycle(Named):
    """A bicycle."""

    colour: str | None = optional("Its colour.")
    wheels: Sequence[Wheel] = optional("Its wheels.", [])
    spare: Mapping[str, Wheel | None] = sparse("Spare wheels by name.", {})
    list_: str | None = optional("Where it is listed.")
    ends: Interval | None = optional("Both ends.")


BICYCLE = {
    "name": "one",
    "colour": "red",
    "wheels": [{"spokes": 8, "size": None}, {"spokes": 9, "size": 0.5}],
    "spare": {"front": {"spokes": 3, "size": 1}, "rear": None},
    "list": "here",
}


def test_a_record_writes_the_object_that_it_was_built_as() -> None:
    built = Bicycle(
        name="one",
        colour="red",
        wheels=[Wheel(spokes=8), Wheel(spokes=9, size=0.5)],
        spare={"front": Wheel(spokes=3, size=1), "rear": None},
        list_="here",
    )
    assert built.to_dict() == BICYCLE and list(built.to_dict()) == list(BICYCLE)
    assert built == Bicycle.model_validate(BICYCLE)
    assert Bicycle(name="one").to_dict() == {"name": "one", "wheels": []}


def test_a_record_does_not_change() -> None:
    with pytest.raises(ValidationError):
        Wheel(spokes=3).spokes = 4
    assert Wheel(spokes=3).model_copy(update={"spokes": 4}).to_dict() == {"spokes": 4, "size": None}


class Free(Record, extra="allow"):
    """Values by name."""

    __pydantic_extra__: dict[str, MetricValue]
    n: Count | None = optional("How many.")


def test_values_by_name_stand_beside_the_other_fields() -> None:
    free = Free.model_validate({"n": 3, "a": 0.5, "b": None, "c": {"d": 1}})
    assert free == Free(n=3, a=0.5, b=None, c={"d": 1.0})  # type: ignore[call-arg]
    assert free.to_dict() == {"n": 3, "a": 0.5, "b": None, "c": {"d": 1.0}}
    assert problems(Free, {"a": "x", "b": {"c": True}}) == ["a is 'x': " + NUMBERS, "b is {'c': True}: " + NUMBERS]


# --- documents --------------------------------------------------------------------------------------------------------


class Garage(Result):
    """A document."""

    schema_: Literal["hydractl.garage/1"] = "hydractl.garage/1"
    first: Bicycle
    """The first."""


def test_a_document_names_its_form_first() -> None:
    garage = Garage(first=Bicycle(name="one"))
    assert garage.schema == Garage.form() == "hydractl.garage/1"
    assert list(garage.to_dict()) == ["schema", "first"]
    assert Garage.of(garage.to_dict(), "F") == garage


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (3, "F is not the JSON of garage (schema none)"),
        ({}, "F is not the JSON of garage (schema None)"),
        ({"schema": ["hydractl.garage/1"]}, "F is not the JSON of garage (schema ['hydractl.garage/1'])"),
        ({"schema": "hydractl.garage/1", "dry_run": True}, "F holds no results"),
        ({"schema": "hydractl.garage/1"}, "F is no document that garage writes"),
    ],
)
def test_other_documents_are_refused(document: Any, message: str) -> None:
    caught = refused(InputError, Garage.of, document, "F")
    assert caught.message == message


# --- problems ---------------------------------------------------------------------------------------------------------


class Leaf(Record):
    """A leaf."""

    value: Number = optional("A number.")
    count: Count | None = optional("A count.")


class Tree(Record):
    """Leaves."""

    leaf: Leaf
    """The first leaf."""
    leaves: Mapping[str, Sequence[Leaf]] = optional("More leaves by name.", {})


A_LEAF = "Input should be a valid dictionary or instance of Leaf"
AT_LEAST = "Input should be greater than or equal to 0"
NUMBERS = "Input should be a number, or numbers by name"


def problems(record: type[Record], document: Any) -> list[str]:
    try:
        record.checked(document, "message", "hint")
    except InputError as error:
        return error.problems
    return []


def test_the_error_has_the_message_and_the_hint() -> None:
    caught = refused(InputError, Tree.checked, {}, "message", "hint")
    assert (caught.message, caught.hint) == ("message", "hint")


def test_the_problems_of_a_record() -> None:
    assert problems(Bicycle, BICYCLE) == [] and problems(Bicycle, {"name": "one", "more": 1}) == []
    assert problems(Bicycle, {"wheels": [{"spokes": -1}]}) == ["name is missing", "wheels[0].spokes is -1: " + AT_LEAST]
    assert problems(Bicycle, {"name": "one", "colour": 3}) == ["colour is 3: Input should be a valid string"]
    assert problems(Bicycle, {"name": "one", "ends": [0.5]}) == [
        "ends is [0.5]: Value should have at least 2 items after validation, not 1"
    ]


@pytest.mark.parametrize("value", [10**400, float("inf"), float("nan"), True, "1", []])
def test_what_is_no_number(value: Any) -> None:
    (problem,) = problems(Tree, {"leaf": {"value": value}})
    assert problem.startswith("leaf.value is ") and problem.endswith(" number") and len(problem) < 110


@pytest.mark.parametrize("value", [None, 0, -1.5e300, 10**300])
def test_what_is_a_number(value: Any) -> None:
    assert problems(Tree, {"leaf": {"value": value}}) == []


@pytest.mark.parametrize("value", [-1, 1.0, True, "1", 2**63])
def test_what_is_no_count(value: Any) -> None:
    (problem,) = problems(Tree, {"leaf": {"count": value}})
    assert problem.startswith("leaf.count is ") and ": Input should be " in problem
    assert Leaf(count=2**63 - 1).count == 2**63 - 1


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (3, ["it is 3: Input should be a valid dictionary or instance of Tree"]),
        (None, ["it is None: Input should be a valid dictionary or instance of Tree"]),
        ({}, ["leaf is missing"]),
        ({"leaf": None}, [f"leaf is None: {A_LEAF}"]),
        ({"leaf": []}, [f"leaf is []: {A_LEAF}"]),
        ({"leaf": {}, "leaves": {"a.b": [{}, None]}}, [f"leaves.a.b[1] is None: {A_LEAF}"]),
        (
            {"leaf": {}, "leaves": {"a\x1b[31m\nb": 3}},
            [r"leaves.a\x1b[31m\nb is 3: Input should be an instance of Sequence"],
        ),
        ({"leaf": {}, "leaves": {"a": [7] * 100}}, [f"leaves.a[{n}] is 7: {A_LEAF}" for n in range(10)]),
        ({"leaf": {"value": "x" * 1000}}, [f"leaf.value is {'x' * 1000!r:.57}...: Input should be a valid number"]),
        ({"leaf": {"other": object()}, "more": {}}, []),
    ],
)
def test_where_a_problem_is(document: Any, expected: list[str]) -> None:
    assert problems(Tree, document) == expected
