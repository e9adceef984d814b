"""docs/reliability.md and the tests have the same cases."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
PAGE = (TESTS.parent / "docs" / "reliability.md").read_text()


def marked() -> Iterator[int]:
    """The cases that a test is marked with, from the sources alone."""
    for path in TESTS.rglob("test_*.py"):
        for numbers in re.findall(r"^ *@pytest\.mark\.fault\(([\d, ]+)\)$", path.read_text(), re.M):
            yield from map(int, numbers.split(","))


def test_every_case_of_the_page_has_a_test_but_those_that_went_with_a_feature() -> None:
    numbers: list[int] = []
    for first, last in re.findall(r"^\| (\d+)(?: to (\d+))? \| .* \| .* \|$", PAGE, re.M):
        numbers += range(int(first), int(last or first) + 1)
    assert numbers == sorted(set(numbers))
    assert numbers[:84] == list(range(1, 85))
    gone = [int(number) for number in re.findall(r"^\| (\d+) \| .* \| went with .* \|$", PAGE, re.M)]
    assert set(marked()) == set(numbers) - set(gone)
