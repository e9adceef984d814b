"""Cases of a test of several axes, without the full product, and which pico models a release waits for."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from math import gcd
from typing import Any

import pytest

RELEASE_VARIANTS = (
    *("registers", "xlm-roberta", "camembert", "electra-unprojected", "hf-vit-no-bias", "hf-deit"),
    *("hf-dinov2-registers", "clip-layer-scale"),
    *("mistral", "qwen2", "qwen3", "gemma", "gemma3", "sapiens2"),
    *("ernie", "hf-vit-msn", "hf-clip-images", "hf-siglip-images"),
)
"""Pico models that are tested before a release alone: what they have of their own is little."""
ONE_OF_EACH = (
    *("class-token", "map-pooling", "eva", "beit", "bert", "modernbert", "llama", "hf-vit"),
    *("clip", "custom-text-first-token", "hf-siglip"),
)
"""One pico model of each library and mechanism, for what depends little on the library."""


def spread(first: Iterable[Any], *others: Iterable[Any], each: int = 1) -> list[Any]:
    """Cases for ``parametrize``: every value of the first axis with ``each`` points of the product of the others.

    The points are taken in turn, far from each other, so that all of them occur where there are enough cases.
    """
    points = list(product(*others))
    stride = round(len(points) * 0.618)
    while gcd(stride, len(points)) != 1:  # or some points would never occur
        stride += 1
    cases = []
    for value in first:
        for _ in range(each):
            place = len(cases) * stride % len(points)
            cases.append((value, *points[place]))
    return cases


def marked_long(cases: Iterable[Any]) -> list[Any]:
    """The same cases, which only the long run has."""
    return _marked(cases, pytest.mark.long)


def marked_release(cases: Iterable[Any]) -> list[Any]:
    """The same cases, which only the run before a release has."""
    return _marked(cases, pytest.mark.release)


def _marked(cases: Iterable[Any], mark: pytest.MarkDecorator) -> list[Any]:
    """Return every case, a value or a tuple of values, as a parameter with the mark."""
    marked = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        marked.append(pytest.param(*values, marks=mark))
    return marked
