"""Settings as a command line that gives the same settings again, wherever they came from."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from hydractl.settings.common import RECIPE, Common
from hydractl.settings.option import Option, options_of
from hydractl.settings.sources import RESERVED_VARIABLES

_DEBUG = "HYDRACTL_DEBUG"


def to_argv(settings: Common, without: Collection[str] = ()) -> list[str]:
    """The flags of every option that somebody gave; a recipe, which is among them, decides the rest again.

    To be read without variables and ``hydra.yaml`` (see :func:`bare_environment`): what those said is among the flags.

    Args:
        settings: checked.
        without: options to leave out, by name; MODEL always is.
    """
    argv = []
    for one in options_of(type(settings)):
        if one.name == "model" or one.name in without or settings._rank(one.name) <= RECIPE:
            continue
        argv += _flags(one, getattr(settings, one.name))
    return argv


def bare_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables that hydractl reads settings from."""
    kept = {_DEBUG}.intersection(RESERVED_VARIABLES)
    return {name: text for name, text in environ.items() if not name.startswith("HYDRACTL_") or name in kept}


def _flags(one: Option, value: Any) -> list[str]:
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
