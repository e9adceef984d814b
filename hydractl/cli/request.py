"""The request of a command line after parsing: which verb, and which values its options have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from hydractl.options.option import Raw

INFO = "--info"
"""A command that is not a verb, but has arguments of its own."""


class Request(NamedTuple):
    """A parsed command line: a verb (or ``--info``) and the values by option; None means "not given"."""

    verb: str
    given: Mapping[str, Raw | None]
