"""What a command line asks for, once it is split into words: which verb, and what its options are given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from hydractl.settings.option import Raw

INFO = "--info"
"""Not a verb, but a command with arguments of its own."""


class Request(NamedTuple):
    """A parsed command line: a verb (or ``--info``) and the values by option; None is "not given"."""

    verb: str
    given: Mapping[str, Raw | None]
