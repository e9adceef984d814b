"""Checks of a JSON document's form, put together from small ones; each yields what is wrong and where."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hydractl.jsonio import shown

Check = Callable[[Any, str], Iterator[str]]
"""Given a value and its place, yields one line a problem."""

_MOST = sys.float_info.max
_MOST_COUNTED = 2**63 - 1


def number(value: Any, where: str) -> Iterator[str]:
    """A finite number or null: every measured number may be missing."""
    if value is not None and not _is_number(value):
        yield f"{where} is {shown(value)}, not a number"


def count(value: Any, where: str) -> Iterator[str]:
    """A whole number that is not negative."""
    if type(value) is not int or not 0 <= value <= _MOST_COUNTED:
        yield f"{where} is {shown(value)}, not a count"


def text(value: Any, where: str) -> Iterator[str]:
    if not isinstance(value, str):
        yield f"{where} is {shown(value)}, not a text"


def anything(value: Any, where: str) -> Iterator[str]:
    yield from ()


def maybe(check: Check) -> Check:
    """What the check takes, or null."""

    def run(value: Any, where: str) -> Iterator[str]:
        if value is not None:
            yield from check(value, where)

    return run


def listing(check: Check, least: int = 0) -> Check:
    """A list whose items all pass the check."""

    def run(value: Any, where: str) -> Iterator[str]:
        if not isinstance(value, list) or len(value) < least:
            yield f"{where} is {shown(value)}, not a list" + (f" of {least} or more" if least else "")
            return
        for index, item in enumerate(value):
            yield from check(item, f"{where}[{index}]")

    return run


def mapping(check: Check) -> Check:
    """An object whose values all pass the check."""

    def run(value: Any, where: str) -> Iterator[str]:
        if not isinstance(value, Mapping):
            yield f"{where} is {shown(value)}, not an object"
            return
        for key, item in value.items():
            yield from check(item, f"{where}.{key}")

    return run


def record(checks: Mapping[str, Check], required: tuple[str, ...] = ()) -> Check:
    """An object with these entries; those that are not required may be missing or null, others may be there."""

    def run(value: Any, where: str) -> Iterator[str]:
        if not isinstance(value, Mapping):
            yield f"{where} is {shown(value)}, not an object"
            return
        for key, check in checks.items():
            if key in required and value.get(key) is None:
                yield f"{where} has no {key}"
            elif value.get(key) is not None:
                yield from check(value[key], f"{where}.{key}")

    return run


def equally_long(check: Check, *keys: str, first_longer: bool = False) -> Check:
    """After the check, lists that belong together; the first may be edges, one more than what lies between them."""

    def run(value: Any, where: str) -> Iterator[str]:
        problems = list(check(value, where))
        yield from problems
        if not problems:
            names = keys or tuple(value)
            lengths = [len(value[key]) - (first_longer and key == names[0]) for key in names]
            if len(set(lengths)) > 1:
                yield f"the lists of {where} differ in length"

    return run


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _MOST
