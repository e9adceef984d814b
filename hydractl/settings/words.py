"""Settings as the words of a command line that gives the same settings again, wherever they came from."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from hydractl.settings.common import RECIPE, Common
from hydractl.settings.option import Option, options_of
from hydractl.settings.sources import RESERVED_VARIABLES

_DEBUG = "HYDRACTL_DEBUG"


def words_of(settings: Common, without: Collection[str] = ()) -> list[str]:
    """The flags of every option that somebody gave; a recipe, which is among them, decides the rest again.

    To be read without variables and ``hydra.yaml`` (see :func:`bare_environment`): what those said is in the words.

    Args:
        settings: checked.
        without: options to leave out, by name; MODEL always is.
    """
    words = []
    for one in options_of(type(settings)):
        if one.name == "model" or one.name in without or settings._rank(one.name) <= RECIPE:
            continue
        words += _words(one, getattr(settings, one.name))
    return words


def bare_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables that hydractl reads settings from."""
    kept = {_DEBUG}.intersection(RESERVED_VARIABLES)
    return {name: text for name, text in environ.items() if not name.startswith("HYDRACTL_") or name in kept}


def _words(one: Option, value: Any) -> list[str]:
    """One option; ``--name=value`` in one word, so that a value may start with a dash."""
    if one.type is bool:
        return [one.flag if value else f"--no-{one.flag[2:]}"]
    if not one.many:
        return [f"{one.flag}={_text(value)}"]
    if one.split:
        return [f"{one.flag}={','.join(map(_text, value))}"] if value else []
    return [f"{one.flag}={_text(item)}" for item in value]


def _text(value: Any) -> str:
    return repr(value) if isinstance(value, float) else str(value)
