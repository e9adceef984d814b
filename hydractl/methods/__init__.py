"""Ways of getting members of an ensemble: one file or folder each, found by name.

Adding one is described in ``docs/adding-a-method.md``. Importing this, or the declaration of a method, must not import
torch: the help texts list what the methods declare.
"""

from __future__ import annotations

from hydractl.files.plugins import Registry
from hydractl.methods.base import FinetuneRequest, Method, MethodOption, OptionValues
from hydractl.methods.study_rows import StudyRow

METHODS: Registry[Method] = Registry(__name__, __path__, "METHOD", helpers=("base", "study_rows"))

_FIRST = ("snapshots", "swa", "lora", "batch_ensemble", "classifiers", "mimo", "packed")
"""Methods whose options stand first in help texts, in this order; the others follow by name."""


def all_methods() -> list[Method]:
    """Return every method, in the order in which their options stand in help texts."""
    methods = {method.name: method for method in METHODS.all()}
    first = [methods.pop(name) for name in _FIRST]
    return [*first, *methods.values()]


def rows_of_methods() -> list[StudyRow]:
    """Return the rows of a study that methods declare, in the order of its table."""
    rows = [row for method in all_methods() for row in method.rows]
    return sorted(rows, key=lambda row: row.place)


__all__ = [
    "METHODS",
    "FinetuneRequest",
    "Method",
    "MethodOption",
    "OptionValues",
    "all_methods",
    "rows_of_methods",
]
