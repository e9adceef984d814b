"""Checked access to the values of configurations in JSON, which come from files that hydractl did not write.

In all functions ``origin`` names the file for error messages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeGuard

from hydractl.errors import InputError
from hydractl.jsonio import shown

LibraryConfig = Mapping[str, object]
"""The configuration from which a library builds a model, with the library's own keys."""

Preprocessing = Mapping[str, object]
"""How raw samples become the inputs of a model, with the library's own keys; ``kind`` is ``text`` or ``image``."""


def is_whole_number(value: object, least: int, most: float = math.inf) -> TypeGuard[int]:
    """Return whether ``value`` is an int (not a bool) with ``least <= value <= most``."""
    if type(value) is not int:
        return False
    return least <= value <= most


def are_whole_numbers(values: Sequence[object], least: int, most: float = math.inf) -> TypeGuard[Sequence[int]]:
    """Return whether all values are ints (not bools) with ``least <= value <= most``."""
    return all(is_whole_number(value, least, most) for value in values)


def object_in(values: Mapping[str, object], key: str, origin: str) -> Mapping[str, object]:
    """Return the object at a key.

    Raises:
        InputError: naming ``origin``, for anything else.
    """
    value = values.get(key)
    if not isinstance(value, Mapping):
        raise InputError(f"{origin} has the {key} {shown(value)}, no object")
    return value


def object_or_empty(values: Mapping[str, object], key: str) -> Mapping[str, object]:
    """Return the object at a key; return an empty one if the key is missing or its value is not an object."""
    value = values.get(key)
    if isinstance(value, Mapping):
        return value
    return {}
