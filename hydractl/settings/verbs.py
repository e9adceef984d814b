"""The settings class of each verb."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping

from hydractl.settings.common import Common
from hydractl.settings.option import Option, options_of
from hydractl.settings.registry import VERBS, settings_of


class _Settings(Mapping[str, type[Common]]):
    """The settings classes by the names of the verbs; a class is imported when asked for, as some look for plugins."""

    def __getitem__(self, verb: str) -> type[Common]:
        settings: type[Common] = pkgutil.resolve_name(settings_of(verb))
        return settings

    def __iter__(self) -> Iterator[str]:
        return iter(VERBS)

    def __len__(self) -> int:
        return len(VERBS)


SETTINGS: Mapping[str, type[Common]] = _Settings()
"""The settings dataclass of each verb, in the order of the help."""


def options_of_verb(verb: str) -> tuple[Option, ...]:
    """Return the options of a verb."""
    return options_of(SETTINGS[verb])
