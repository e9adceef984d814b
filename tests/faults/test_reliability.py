"""docs/reliability.md and the tests say the same."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
PAGE = (TESTS.parent / "docs" / "reliability.md").read_text()


def marked() -> Iterator[tuple[int, str]]:
    """Every case and the test marked with it, as ``folder/file.py::name``, from the sources alone."""
    for path in sorted(TESTS.rglob("test_*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            for decorator in getattr(function, "decorator_list", ()):
                if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.fault":
                    for number in decorator.args:
                        yield ast.literal_eval(number), f"{path.relative_to(TESTS)}::{getattr(function, 'name', '')}"


def test_the_page_names_every_test_of_every_case() -> None:
    rows = re.findall(r"^\| (\d+) \| .* \| (.*) \|$", PAGE, re.M)
    listed = {(int(number), test) for number, tests in rows for test in re.findall(r"`([^`]+::\w+)`", tests)}
    assert listed == set(marked())
    assert [int(number) for number, _ in rows] == list(range(1, 58))
    assert {number for number, _ in listed} == set(range(1, 58))
