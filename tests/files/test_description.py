"""What a checkpoint says of itself: the round trip, and every field that can be broken."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from hydractl.errors import InputError
from hydractl.files.description import Description
from hydractl.heads.mask import HeadMask
from hydractl.jsonio import canonical_json
from tests.running import refused
from tests.spread import spread

HEADS = {"blocks.10.attn": 3, "blocks.2.attn": 2}
"""In an order that sorting would change."""


def mask(*kept: tuple[int, ...]) -> HeadMask:
    return HeadMask(HEADS, dict(zip(HEADS, kept, strict=True)))


DENSE = Description(
    kind="dense",
    family="timm",
    family_version="1.0.31",
    arch="vit_tiny",
    config={"architecture": "vit_tiny", "model_args": {"depth": 2}},
    preprocess={"input_size": [3, 16, 16], "mean": [0.5, 0.5, 0.5]},
    labels=["Katze", "Größe", "b"],
    masks=[mask((0, 1, 2), (0, 1))],
    provenance={"command": "import", "inputs": []},
)
PRUNED = replace(DENSE, kind="pruned", masks=[mask((1,), ())], layout="zeroed", labels=None)
FUSED = replace(
    DENSE,
    kind="fused",
    masks=[mask((0, 2), ()), mask((0, 1, 2), (0, 1))],
    merge=["mlp", "norm"],
    members=[{"sha256": "aa", "provenance": {"seed": 1}}, {"sha256": "bb", "provenance": {}}],
    extra={"self_check": {"samples": 4}},
)


@pytest.mark.parametrize("description", [DENSE, PRUNED, FUSED], ids=lambda d: d.kind)
def test_a_description_survives_canonical_json(description: Description) -> None:
    text = canonical_json(description.to_json())
    read = Description.from_json(json.loads(text), "a.st")
    assert canonical_json(read.to_json()) == text
    if description.kind == "fused":
        assert read == description
    else:  # members of a single model carry nothing but their heads
        assert replace(read, members=()) == description


def broken(changes: dict[str, Any], base: Description = DENSE, drop: str | None = None) -> list[str]:
    document = copy.deepcopy(base.to_json())
    document.update(changes)
    if drop:
        del document[drop]
    caught = refused(InputError, Description.from_json, json.loads(json.dumps(document)), "a.st")
    assert caught.message == "a.st has a broken description"
    assert caught.exit_code == 3
    assert all("\n" not in p and len(p) < 250 for p in caught.problems)
    return caught.problems


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"probe": {}}, "probe is {}: Extra inputs are not permitted"),
        ({"extra": {"self_check": {}, "watch": 1}}, "extra.watch is 1: Extra inputs are not permitted"),
    ],
)
def test_what_another_version_wrote_is_refused_by_name(changes: dict[str, Any], problem: str) -> None:
    document = {**DENSE.to_json(), **changes, "provenance": {"hydractl": "9.1"}}
    caught = refused(InputError, Description.from_json, document, "a.st")
    assert caught.exit_code == 3 and caught.problems == [problem]
    assert caught.hint == "hydractl '9.1' wrote it: open it with that version"


FIELDS = [key for key in DENSE.to_json() if key != "schema"]


def test_a_missing_field_and_one_that_is_null() -> None:
    for key in FIELDS:
        assert broken({}, drop=key) == [f"{key} is missing"]
        if key not in ("labels", "merge"):
            [problem] = broken({key: None})
            assert problem.startswith(f"{key} is None: Input should be ")


def test_a_field_of_another_type() -> None:
    for key, value in spread(FIELDS, [17, 1.5, True]):
        [problem] = broken({key: value})
        assert problem.startswith(f"{key} is {value!r}: Input should be "), key


def test_all_wrong_fields_are_listed_at_once() -> None:
    changes = {"kind": "thick", "layout": "round", "labels": [1], "merge": [None], "members": [], "extra": None}
    assert [problem.partition(":")[0] for problem in broken(changes, drop="arch")] == [
        "kind is 'thick'",
        "arch is missing",
        "labels[0] is 1",
        "layout is 'round'",
        "merge[0] is None",
        "members is []",
        "extra is None",
    ]


@pytest.mark.parametrize("schema", [None, "hydractl.mask/1", "hydractl.checkpoint/2", ["hydractl.checkpoint/1"]])
def test_another_schema(schema: Any) -> None:
    caught = refused(InputError, Description.from_json, {**DENSE.to_json(), "schema": schema}, "a.st")
    assert caught.message == f"a.st has the schema {schema!r}, expected 'hydractl.checkpoint/1'"


NO_PAIRS: list[Any] = [None, ["a"], ["a", 2, 3], [1, 2], ["a", True], ["a", 2.0], {"a": 2}, ["x", 0], ["x", -1]]
NO_HEADS: list[Any] = [None, "01", {"0": 1}, [0, 0], [1, 0], [-1], [2], [0, True], [0, 1.0], [[0]]]
NO_MEMBERS: list[Any] = [
    *(None, [], {}, {"kept": []}, {"kept": {"blocks.2.attn": [0]}}),
    {"kept": {"blocks.10.attn": [0], "blocks.2.attn": [0], "blocks.3.attn": []}},
]
MEMBERS = FUSED.to_json()["members"]


@pytest.mark.parametrize(
    ("base", "changes", "place"),
    [
        *((DENSE, {"sites": [["blocks.0.attn", 2], pair]}, "sites[1]") for pair in NO_PAIRS),
        *(
            (DENSE, {"members": [{"kept": {"blocks.10.attn": [0, 1, 2], "blocks.2.attn": kept}}]}, "blocks.2.attn")
            for kept in NO_HEADS
        ),
        *((FUSED, {"members": [*MEMBERS, member]}, "2") for member in NO_MEMBERS),
        (PRUNED, {"members": MEMBERS}, "a pruned model cannot have 2 members"),
        (FUSED, {"layout": "zeroed"}, "a fused model is always sliced"),
        (DENSE, {"members": MEMBERS[:1]}, "a dense model keeps every head, this one does not"),
        (DENSE, {"sites": [*DENSE.to_json()["sites"], ["blocks.2.attn", 2]]}, "a site is listed twice"),
    ],
)
def test_what_does_not_fit_is_said(base: Description, changes: dict[str, Any], place: str) -> None:
    [problem] = broken(changes, base)
    assert place in problem


def test_all_members_that_do_not_fit_are_listed() -> None:
    kept = {"blocks.10.attn": [9], "blocks.2.attn": [1, 1]}
    assert broken({"members": [{"kept": kept}, {"kept": {}}]}, FUSED) == [
        "member 0 keeps [9] at 'blocks.10.attn', which has 3 heads",
        "member 0 keeps [1, 1] at 'blocks.2.attn', which has 2 heads",
        "member 1 does not name the kept heads of every site",
    ]


def test_huge_values_stay_out_of_the_message() -> None:
    kept = {"blocks.10.attn": list(range(100_000)), "blocks.2.attn": []}
    [problem] = broken({"members": [{"kept": kept}]})
    assert problem.startswith("member 0 keeps [0, 1, 2,")
    assert problem.endswith("... at 'blocks.10.attn', which has 3 heads")
