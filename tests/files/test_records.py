"""Records: JSON objects as dataclasses, read, built and written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from hydractl.files.documents import FormMaker, check
from hydractl.files.records import (
    Count,
    Interval,
    Metrics,
    Number,
    Record,
    described,
    inline,
    json_fields,
    needed,
)


@dataclass(frozen=True, kw_only=True)
class Wheel(Record):
    """A wheel."""

    spokes: Count = needed("Number of spokes.")
    size: Number = described("Its size.", null=True)


@dataclass(frozen=True, kw_only=True)
class Paint(Record):
    """How something is painted."""

    colour: str | None = described("Its colour.")


@dataclass(frozen=True, kw_only=True)
class Bicycle(Record):
    """A bicycle."""

    name: str = needed("Its name.")
    paint: Paint = inline(Paint)
    wheels: Sequence[Wheel] = described("Its wheels.", empty=list)
    spare: Mapping[str, Wheel | None] | None = described("Spare wheels by name.", key="spare wheels")


@dataclass(frozen=True, kw_only=True)
class Lengths(Record):
    """Lists that belong together."""

    edges: Sequence[float] = needed("Edges.")
    counts: Sequence[Count] = needed("Counts.")
    ends: Interval | None = described("Both ends.")

    @classmethod
    def problem(cls, values: Mapping[str, Any]) -> str | None:
        if len(values["edges"]) != len(values["counts"]) + 1:
            return "has lists that differ in length"
        return None


BICYCLE = {
    "name": "one",
    "colour": "red",
    "wheels": [{"spokes": 8, "size": None}, {"spokes": 9, "size": 0.5}],
    "spare wheels": {"front": {"spokes": 3, "size": 1}, "rear": None},
}


def test_an_object_is_read_with_all_that_is_in_it() -> None:
    bicycle = Bicycle.from_json(BICYCLE)
    assert bicycle.paint.colour == "red" and bicycle.wheels[1] == Wheel(spokes=9, size=0.5)
    assert bicycle.spare is not None and bicycle.spare["rear"] is None
    assert Bicycle.from_json({"name": "one", "wheels": [None]}).wheels == [None]
    front = bicycle.spare["front"]
    assert front is not None and (front.spokes, front.size, type(front.size)) == (3, 1, int)


def test_a_record_writes_the_object_that_it_was_built_as() -> None:
    built = Bicycle(
        name="one",
        paint=Paint(colour="red"),
        wheels=[Wheel(spokes=8), Wheel(spokes=9, size=0.5)],
        spare={"front": Wheel(spokes=3, size=1), "rear": None},
    )
    assert built.to_json() == BICYCLE and list(built.to_json()) == list(BICYCLE)
    assert built == Bicycle.from_json(BICYCLE)
    assert Bicycle(name="one").to_json() == {"name": "one", "wheels": []}  # nothing else is written as null


def test_what_was_read_is_written_as_it_was_read_until_it_is_changed() -> None:
    document = {"wheels": None, "name": "one", "bell": "loud"}
    bicycle = Bicycle.from_json(document)
    assert bicycle.wheels == [] and bicycle.to_json() == document
    wheel = Wheel.from_json({"spokes": 3, "hub": "small"})
    assert wheel.to_json() == {"spokes": 3, "hub": "small"}
    assert replace(wheel, spokes=4).to_json() == {"spokes": 4, "size": None}


def test_what_every_document_has_may_be_null_and_not_missing() -> None:
    assert Wheel.from_json({"spokes": None}).spokes is None
    with pytest.raises(TypeError):
        Wheel.from_json({})


@dataclass(frozen=True, kw_only=True)
class Free(Record):
    """Values by name."""

    n: Count | None = described("How many.")
    values: Metrics = inline()


def test_values_by_name_stand_beside_the_other_fields() -> None:
    free = Free.from_json({"n": 3, "a": 0.5, "b": None})
    assert free.values == {"a": 0.5, "b": None}
    assert Free(n=3, values={"a": 0.5, "b": None}).to_json() == {"n": 3, "a": 0.5, "b": None}


def test_every_field_knows_its_key() -> None:
    assert [field.key for field in json_fields(Bicycle)] == ["name", "paint", "wheels", "spare wheels"]


def problems(record: type[Record], document: Any) -> list[str]:
    from hydractl.errors import InputError

    try:
        check(document, FormMaker().form_of(record), "wrong")
    except InputError as error:
        return list(error.problems)
    return []


def test_the_form_of_a_record_says_what_is_wrong() -> None:
    assert problems(Bicycle, BICYCLE) == [] and problems(Bicycle, {"name": "one", "more": 1}) == []
    assert problems(Bicycle, {"wheels": [{"spokes": -1}]}) == ["it has no name", "wheels[0].spokes is -1, not a count"]
    assert problems(Bicycle, {"name": "one", "colour": 3}) == ["colour is 3, not a text"]
    assert problems(Lengths, {"edges": [0.0, 1.0], "counts": [1]}) == []
    assert problems(Lengths, {"edges": [0.0, 1.0], "counts": [1, 2]}) == ["has lists that differ in length"]
    ends = {"edges": [0.0, 1.0], "counts": [1], "ends": [0.5]}
    assert problems(Lengths, ends) == ["ends is [0.5], not a list of 2 or more"]
