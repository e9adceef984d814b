"""What the table of verbs refers to: the function of a verb with its options."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from typing import Any

from hydractl.options.option import Option, options_of
from hydractl.options.registry import VERBS, settings_of
from hydractl.options.signature import Declared


class _Settings(Mapping[str, Any]):
    """The settings classes of the verbs that have one; a class is imported when asked for."""

    def __getitem__(self, verb: str) -> Any:
        return pkgutil.resolve_name(settings_of(verb))

    def __iter__(self) -> Iterator[str]:
        return (verb for verb in VERBS if not VERBS[verb].signature)

    def __len__(self) -> int:
        return len(list(iter(self)))


SETTINGS: Mapping[str, Any] = _Settings()
"""The settings dataclass of each verb that is not a function yet, in the order of the help."""


def declared(verb: str) -> Declared | None:
    """Return a verb as its function declares it; None if it has a settings class."""
    place = VERBS[verb].signature
    if not place:
        return None
    function = pkgutil.resolve_name(place)
    signature: Declared = function.declared
    return signature


def options_of_verb(verb: str) -> tuple[Option, ...]:
    """Return the options of a verb."""
    signature = declared(verb)
    if signature is not None:
        return signature.options
    return options_of(SETTINGS[verb])
