"""The options of ``eval`` for corruptions and bad samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from hydractl.expressions.data_sets import (
    CORRUPTIONS,
    corruptions_asked_for,
)

NEEDED = {"model": ["a.st"], "test": "d"}


def test_values(merged: Callable[..., Any]) -> None:
    flags = {"corruptions": ["fog,shot_noise"], "severities": ["5,1"], "on_bad": "skip"}
    settings = merged("eval", {**NEEDED, **flags})
    assert settings.corruptions == ["fog", "shot_noise"] and settings.severities == [5, 1]
    assert settings.on_bad == "skip"
    assert corruptions_asked_for(settings.corruptions) == ["shot_noise", "fog"]
    assert corruptions_asked_for(["all"]) == list(CORRUPTIONS)


WRONG: list[tuple[Mapping[str, Any], list[str]]] = [
    (
        {"corruptions": ["all,fog"]},
        ["--corruptions all names every corruption: leave out the others (flag)"],
    ),
    (
        {"corruptions": ["frost"]},
        [f"--corruptions must be one of all, {', '.join(CORRUPTIONS)}, not 'frost' (flag)"],
    ),
    ({"severities": ["3"]}, ["--severities (flag) needs --corruptions"]),
    (
        {"corruptions": ["fog"], "severities": ["0,6"]},
        ["--severities must be at least 1, not 0 (flag)", "--severities must be at most 5, not 6 (flag)"],
    ),
    ({"on_bad": "ignore"}, ["--on-bad must be one of error, skip, not 'ignore' (flag)"]),
]


@pytest.mark.parametrize(("flags", "expected"), WRONG)
def test_refused(flags: Mapping[str, Any], expected: list[str], refused: Callable[..., list[str]]) -> None:
    assert refused("eval", {**NEEDED, **flags}) == expected
