"""docs/reliability.md and the tests have the same cases."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
PAGE = (TESTS.parent / "docs" / "reliability.md").read_text()


def marked() -> Iterator[int]:
    """The cases that a test is marked with, from the sources alone."""
    for path in sorted(TESTS.rglob("test_*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            for decorator in getattr(function, "decorator_list", ()):
                if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.fault":
                    yield from map(ast.literal_eval, decorator.args)


def test_every_case_of_the_page_has_a_test() -> None:
    numbers = [int(number) for number in re.findall(r"^\| (\d+) \| .* \| .* \|$", PAGE, re.M)]
    assert numbers == list(range(1, 85))
    assert set(marked()) == set(numbers)
