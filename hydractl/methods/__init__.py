"""Ensemble methods: ways of making the members of an ensemble, each in a file or folder of its own, found by name.

``docs/adding-a-method.md`` describes how to add one. Importing this module, or the declaration of a method, must not
import torch, because help texts list the declared methods and have to be fast.
"""

from __future__ import annotations

import dataclasses
from operator import attrgetter

from hydractl.errors import did_you_mean
from hydractl.files.plugins import Registry
from hydractl.methods.base import MethodOptions, fields_in_order, read_arguments, shape_of
from hydractl.methods.method import Method
from hydractl.methods.study_rows import StudyRow

METHODS: Registry[Method] = Registry(__name__, __path__, "METHOD", helpers=("base", "method", "study_rows"))

_FIRST = ("deep", "lora", "batch_ensemble", "packed", "mimo", "classifiers")
"""The methods that come first in help texts, in this order; the others follow by name."""


def _all_methods() -> list[Method]:
    """Return every method in the order of the help texts."""
    by_name = {method.name: method for method in METHODS.all()}
    first = [by_name.pop(name) for name in _FIRST]
    return first + list(by_name.values())


def rows_of_methods() -> list[StudyRow]:
    """Return the rows of a study that methods declare, sorted by their ``place`` in its table."""
    rows: list[StudyRow] = []
    for method in _all_methods():
        rows += method.rows
    return sorted(rows, key=attrgetter("place"))


def ensemble_kinds() -> dict[str, type[MethodOptions]]:
    """Return the options classes of all methods that train, by the kind that ``--ensemble`` takes."""
    kinds = {}
    for method in _all_methods():
        if method.options is not None:
            kinds[method.options.kind] = method.options
    return kinds


def read_ensemble(text: str) -> MethodOptions:
    """Return the options that the text ``KIND[:ARGS]`` stands for.

    Raises:
        ValueError: there is no such kind, or its arguments are wrong. The caller puts the name of the option before the
            message.
    """
    kind, _, arguments = text.strip().partition(":")
    kinds = ensemble_kinds()
    if kind not in kinds:
        known_kinds = ", ".join(kinds)
        guess = did_you_mean(kind, kinds) or "; a package may add it: docs/ensembles.md#to-add-another"
        raise ValueError(f"must begin with one of {known_kinds}, as in packed:3,2, not {kind!r}{guess}")
    return read_arguments(kinds[kind], arguments)


def ensemble_help() -> list[tuple[str, str]]:
    """Return the help of ``--ensemble``: for each kind how it is written, and its summary followed by the defaults.

    E.g. ("packed:M,ALPHA[,GAMMA]", "Train M narrow networks ... [default: GAMMA 1]"), where M, ALPHA and GAMMA are the
    names of the arguments in help texts (metavars).
    """
    lines = []
    for options in ensemble_kinds().values():
        defaults = []
        # List the defaults. An argument that must be given has none (MISSING), and None is not shown.
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
    "MethodOptions",
    "ensemble_help",
    "ensemble_kinds",
    "read_ensemble",
    "rows_of_methods",
]
