"""Merging: flag over ``HYDRACTL_*`` variable over the verb's mapping over a top-level key over the built-in value."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from hydractl.settings.common import FLAG, SHARED_KEY, VARIABLE, VERB_KEY, Common, raise_problems
from hydractl.settings.config import Config, find_config
from hydractl.settings.option import Option, Raw, options_of
from hydractl.settings.verbs import SETTINGS

RESERVED_VARIABLES = ("HYDRACTL_DEBUG", "HYDRACTL_CONFIG")

SettingsT = TypeVar("SettingsT", bound=Common)


def merge(
    settings_type: type[SettingsT],
    flags: Mapping[str, Raw | None],
    environ: Mapping[str, str],
    folder: Path,
) -> SettingsT:
    """The checked settings of one verb.

    Args:
        settings_type: the settings dataclass of the verb.
        flags: what the command line gives, by field name; None is "not given".
        environ: the environment.
        folder: the working directory, where ``hydra.yaml`` is looked for.

    Raises:
        UsageError: listing every problem of all sources at once.
    """
    flag = flags.get("config")
    named = (flag if isinstance(flag, str) else None) or environ.get("HYDRACTL_CONFIG") or None
    config = find_config(folder, named)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    ranks: dict[str, int] = {}
    unread: list[str] = []
    problems = list(config.problems)
    for one in options_of(settings_type):
        sources[one.name] = "default"
        found = _weightiest(one, settings_type.verb, flags, environ, config)
        if found is None:
            continue
        raw, sources[one.name], ranks[one.name] = found
        try:
            values[one.name] = one.parse(raw)
        except ValueError as error:
            unread.append(one.name)
            problems.append(f"{one.label} {error} ({sources[one.name]})")
    settings = settings_type(**values, sources=sources, ranks=ranks, unread=frozenset(unread))
    raise_problems(settings_type.verb, problems + settings.problems())
    return settings


def _weightiest(
    one: Option, verb: str, flags: Mapping[str, Raw | None], environ: Mapping[str, str], config: Config
) -> tuple[Raw, str, int] | None:
    """The given value of an option that wins, its source and its weight; None if nobody gives one."""
    given = flags.get(one.name)
    if given is not None and given != []:
        return given, "flag", FLAG
    text = environ.get(one.variable)
    if text:  # an empty variable is how a shell unsets one for a single command
        many = one.many and not one.split
        return (text.splitlines() if many else text), one.variable, VARIABLE
    for values, place, rank in (
        (config.verbs.get(verb, {}), f"{config.name}:{verb}.{one.key}", VERB_KEY),
        (config.shared, f"{config.name}:{one.key}", SHARED_KEY),
    ):
        if one.key in values:
            return values[one.key], place, rank
    return None


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """A line for each ``HYDRACTL_*`` variable that no verb reads: most often a misspelling."""
    ours = [name for name in sorted(environ) if name.startswith("HYDRACTL_") and name not in RESERVED_VARIABLES]
    if not ours:  # the options of all verbs need not be read
        return []
    known = {o.variable for settings in SETTINGS.values() for o in options_of(settings)} | set(RESERVED_VARIABLES)
    found = []
    for name in ours:
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known), n=1)
            guess = f"; did you mean {near[0]}?" if near else ""
            found.append(f"the environment variable {name} is not read by hydractl{guess}")
    return found
