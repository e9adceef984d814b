"""docs/data.md says what the code does: every SPEC can be read, and suites and constants are those of the tables."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from hydractl.data.base import MOST_LISTED, parse_spec
from hydractl.data.corrupted import LARGE_SIDE, SMALL_SIDE, take_corruption
from hydractl.data.corruptions import TABLE
from hydractl.data.suites import SUITES

TEXT = (Path(__file__).resolve().parents[2] / "docs/data.md").read_text(encoding="utf-8")


def table(heading: str) -> list[list[str]]:
    """The cells of the table whose first column has this heading."""
    rows = re.search(rf"^\| {heading} \|.*\n\|[-|:]+\n((?:\|.*\n)+)", TEXT, flags=re.MULTILINE)
    assert rows is not None
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[1].splitlines()]


def test_every_spec_can_be_read() -> None:
    specs = [cell[0].strip("`") for cell in table("SPEC")]
    kinds = {take_corruption(parse_spec(spec))[0].kind for spec in specs}
    assert kinds == {"path", "npz", "text", "wds", "torchvision", "openood", "hf", "builtin", "captions"}


def names(cell: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", cell))


def test_suites() -> None:
    rows = {row[0].strip("`"): row[1:] for row in table("suite")}
    assert list(rows) == list(SUITES)
    for name, suite in SUITES.items():
        members = [member for member in suite.members if not member.stands_in]
        kinds = [m.group if not m.official else "official" for m in members]
        expected = [
            {m.name for m, of in zip(members, kinds, strict=True) if of == kind}
            for kind in ("near", "far", "official", None)
        ]
        assert [names(cell) for cell in rows[name]] == expected


@pytest.mark.parametrize("name", ["openood-imagenet", "openood-imagenet200", "openood-cifar100"])
def test_the_tree_of_openood(name: str) -> None:
    suite = SUITES[name]
    parts = [member for part in suite.parts.values() for member in part]
    for path in (*(member.files[0] for member in (*suite.members, *parts)), *suite.id_lists):
        folder, file = path.rsplit("/", 1)
        block = TEXT[TEXT.index(f"FOLDER/{folder}/") :]
        assert file in block[: block.index("FOLDER", 1)]


def test_names_of_texts() -> None:
    rows = {row[0].strip("`"): names(row[1]) for row in table("set")}
    for member in SUITES["sst2-paper"].members:
        if not member.stands_in:
            assert rows[member.name] == set(member.files)


def test_constants() -> None:
    rows = {row[0].strip("`"): row[2:] for row in table("corruption")}
    assert list(rows) == list(TABLE)
    for name, kind in TABLE.items():
        large, small = (ast.literal_eval(f"({cell},)") for cell in rows[name])
        if name == "elastic_transform":
            large = tuple(tuple(value * 244 / 224 for value in constants) for constants in large)
            assert [pytest.approx(one) for one in large] == list(kind.large)
        else:
            assert large == kind.large
        assert small == kind.small


def test_numbers_in_the_text() -> None:
    assert f"shorter side has {SMALL_SIDE} pixels or more" in TEXT
    assert f"shorter side of {LARGE_SIDE} pixels" in TEXT and f"{MOST_LISTED:,} ids" in TEXT
