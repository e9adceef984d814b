"""What ``make artefacts`` records of a file, and what it says of two records."""

from __future__ import annotations

import pytest

from tests.record_artefacts import compare


def test_artefacts_that_differ_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    old = {"a.json": {"json": {"n": list(range(30))}}, "b.json": {"json": 1}, "c.json": {"json": 1}}
    new = {"a.json": {"json": {"n": list(range(1, 31))}}, "c.json": {"json": 1}, "d.json": {"json": 1}}
    assert compare(old, new, most=1) == 3
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        "a.json.json.n.0: 0 -> 1",
        "a.json: and 29 more",
        "b.json: missing",
        "d.json: new",
    ]
    assert said.err == "3 of 3 differ\n"
