"""Ways of getting members of an ensemble: one file or folder each, found by name.

Adding one is described in ``docs/adding-a-method.md``. Importing this, or the declaration of a method, must not import
torch: the help texts list what the methods declare.
"""

from __future__ import annotations

import dataclasses

from hydractl.errors import did_you_mean
from hydractl.files.plugins import Registry
from hydractl.methods.base import (
    FinetuneRequest,
    MethodOptions,
    SeededOptions,
    argument,
    fields_in_order,
    read_arguments,
    shape_of,
)
from hydractl.methods.method import Method
from hydractl.methods.study_rows import StudyRow

METHODS: Registry[Method] = Registry(__name__, __path__, "METHOD", helpers=("base", "method", "study_rows"))

_FIRST = ("deep", "snapshots", "swa", "swag", "lora", "batch_ensemble", "packed", "mimo", "classifiers")
"""Methods that stand first in help texts, in this order; the others follow by name."""


def all_methods() -> list[Method]:
    """Return every method, in the order in which they stand in help texts."""
    methods = {method.name: method for method in METHODS.all()}
    first = [methods.pop(name) for name in _FIRST]
    return [*first, *methods.values()]


def rows_of_methods() -> list[StudyRow]:
    """Return the rows of a study that methods declare, in the order of its table."""
    rows = [row for method in all_methods() for row in method.rows]
    return sorted(rows, key=lambda row: row.place)


def ensemble_kinds() -> dict[str, type[MethodOptions]]:
    """Return what ``--ensemble`` can ask for: the options of every method that trains, by its kind."""
    kinds = {}
    for method in all_methods():
        if method.options is not None:
            kinds[method.options.kind] = method.options
    return kinds


def read_ensemble(text: str) -> MethodOptions:
    """Return what ``KIND[:ARGS]`` asks for.

    Raises:
        ValueError: there is no such kind, or its arguments are wrong; what follows the name of the option.
    """
    kind, _, arguments = text.strip().partition(":")
    kinds = ensemble_kinds()
    if kind not in kinds:
        guess = did_you_mean(kind, kinds)
        raise ValueError(f"must begin with one of {', '.join(kinds)}, as in packed:3,2, not {kind!r}{guess}")
    return read_arguments(kinds[kind], arguments)


def ensemble_help() -> list[tuple[str, str]]:
    """Return the shape of every kind of ``--ensemble``, and what it does, with the defaults of its arguments."""
    lines = []
    for options in ensemble_kinds().values():
        defaults = []
        for field in fields_in_order(options):
            if field.default in (dataclasses.MISSING, None):
                continue
            metavar = field.metadata["argument"].metavar
            defaults.append(f"{metavar} {field.default}")
        text = options.summary
        if defaults:
            text += f" [default: {', '.join(defaults)}]"
        lines.append((shape_of(options), text))
    return lines


__all__ = [
    "METHODS",
    "FinetuneRequest",
    "Method",
    "MethodOptions",
    "SeededOptions",
    "StudyRow",
    "all_methods",
    "argument",
    "ensemble_help",
    "ensemble_kinds",
    "read_ensemble",
    "rows_of_methods",
]
