"""The options of ``eval`` for suites, corruptions and bad samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from hydractl.expressions.data_sets import (
    CORRUPTIONS,
    FROST,
    PHOTOGRAPHS,
    SuiteChoice,
    corruptions_asked_for,
    parse_ood_suite,
)

NEEDED = {"model": ["a.st"], "test": "d"}


def test_values(merged: Callable[..., Any]) -> None:
    suite = {"ood_suite": "openood-cifar10:svhn, mnist,partial", "ood_root": "d"}
    flags = {"corruptions": ["fog,shot_noise"], "severities": ["5,1"], "on_bad": "skip"}
    settings = merged("eval", {**NEEDED, **suite, **flags})
    assert parse_ood_suite(settings.ood_suite) == SuiteChoice("openood-cifar10", ("svhn", "mnist"), True)
    assert settings.corruptions == ["fog", "shot_noise"] and settings.severities == [5, 1]
    assert settings.on_bad == "skip"
    assert corruptions_asked_for(settings.corruptions, with_frost=False) == ["shot_noise", "fog"]
    assert corruptions_asked_for(["all"], with_frost=True) == list(CORRUPTIONS)
    assert set(CORRUPTIONS) - {*corruptions_asked_for(["all"], with_frost=False)} == {FROST}
    assert parse_ood_suite("sst2-paper") == SuiteChoice("sst2-paper", (), False)


WRONG: list[tuple[Mapping[str, Any], list[str]]] = [
    ({"ood_suite": "sst2-paper"}, ["--ood-suite sst2-paper needs --ood-root, the folder of its data"]),
    ({"ood_root": "d"}, ["--ood-root (flag) needs --ood-suite"]),
    (
        {"ood_suite": "openood", "ood_root": "d"},
        [
            "--ood-suite must be one of openood-imagenet, openood-imagenet200, openood-cifar100, openood-cifar10, "
            "sst2-paper, not 'openood' (flag)"
        ],
    ),
    (
        {"ood_suite": "sst2-paper:trec,", "ood_root": "d"},
        ["--ood-suite has an empty name of a set in 'sst2-paper:trec,' (flag)"],
    ),
    (
        {"ood_suite": "openood-cifar10:official,tin", "ood_root": "d"},
        [
            "--ood-suite has official, which is all sets, beside names of sets in 'openood-cifar10:official,tin' "
            "(flag)",
        ],
    ),
    (
        {"ood_suite": "sst2-paper:rte,rte", "ood_root": "d"},
        ["--ood-suite names 'rte' twice in 'sst2-paper:rte,rte' (flag)"],
    ),
    (
        {"corruptions": ["all,fog"]},
        ["--corruptions all names every corruption: leave out the others (flag)"],
    ),
    (
        {"corruptions": ["frost"]},
        [f"--corruptions frost (flag) needs --photographs, {PHOTOGRAPHS.format('the folder of photographs of frost')}"],
    ),
    (
        {"corruptions": ["fog"], "photographs": "d"},
        ["--photographs (flag) needs --corruptions frost, or all"],
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
