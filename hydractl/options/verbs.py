"""The functions to which the table of verbs refers, with their options."""

from __future__ import annotations

import pkgutil

from hydractl.options.option import Option
from hydractl.options.registry import VERBS
from hydractl.options.signature import Declared


def declared(verb: str) -> Declared:
    """Return a verb as its function declares it; the module of its signature is imported when asked for."""
    return pkgutil.resolve_name(VERBS[verb].signature).declared


def options_of_verb(verb: str) -> tuple[Option, ...]:
    """Return the options of a verb."""
    return declared(verb).options
