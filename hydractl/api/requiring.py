"""``require``: what has to hold of the figures of a verb. Each verb says which of its rows that is about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from hydractl.expressions.conditions import Requirement, parse_requirement
from hydractl.options.option import Option
from hydractl.options.signature import opt

Required: TypeAlias = str | Sequence[str]
"""One expression or several, e.g. ``id.accuracy>=0.9``."""


def requiring(help: str, *, group: str) -> Option:
    """Return the option ``--require`` of a verb, with the help and the heading that are the verb's own."""
    return opt(help, group=group, metavar="EXPR", type=Requirement, reads=parse_requirement, often=True)
