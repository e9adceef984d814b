"""Merging: flag over ``HYDRACTL_*`` variable over the verb's mapping over a top-level key over the built-in value.

And the way back: settings as a command line that gives the same ones again, wherever they came from.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

from hydractl.errors import did_you_mean
from hydractl.settings.common import FLAG, RECIPE, SHARED_KEY, VARIABLE, VERB_KEY, Common, raise_problems
from hydractl.settings.option import Option, Raw, options_of
from hydractl.settings.verbs import SETTINGS
from hydractl.settings.yaml_files import Contents, find_config

_CONFIG, _DEBUG = "HYDRACTL_CONFIG", "HYDRACTL_DEBUG"

SettingsT = TypeVar("SettingsT", bound=Common)


def merge(
    settings_type: type[SettingsT], flags: Mapping[str, Raw | None], environ: Mapping[str, str], folder: Path | None
) -> SettingsT:
    """The checked settings of one verb.

    Args:
        settings_type: the settings dataclass of the verb.
        flags: what the command line gives, by field name; None is "not given".
        environ: the environment.
        folder: the working directory, where ``hydra.yaml`` is looked for; None: it is not.

    Raises:
        UsageError: listing every problem of all sources at once.
    """
    flag = flags.get("config")
    config = find_config(folder, (flag if isinstance(flag, str) else None) or environ.get(_CONFIG) or None)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    ranks: dict[str, int] = {}
    unread: list[str] = []
    problems = list(config.problems)
    for item in options_of(settings_type):
        sources[item.name] = "default"
        winner = _weightiest(item, settings_type.verb, flags, environ, config)
        if winner is None:
            continue
        raw, sources[item.name], ranks[item.name] = winner
        try:
            values[item.name] = item.parse(raw)
        except ValueError as error:
            unread.append(item.name)
            problems.append(f"{item.label} {error} ({sources[item.name]})")
    settings = settings_type(**values, sources=sources, ranks=ranks, unread=frozenset(unread))
    raise_problems(settings_type.verb, problems + settings.problems())
    return settings


def _weightiest(
    item: Option, verb: str, flags: Mapping[str, Raw | None], environ: Mapping[str, str], config: Contents
) -> tuple[Raw, str, int] | None:
    """The given value of an option that wins, its source and its weight; None if nobody gives one."""
    value = flags.get(item.name)
    if value is not None and value != []:
        return value, "flag", FLAG
    text = environ.get(item.variable)
    if text:  # an empty variable is how a shell unsets one for a single command
        many = item.many and not item.split
        return (text.splitlines() if many else text), item.variable, VARIABLE
    for values, place, rank in (
        (config.verbs.get(verb, {}), f"{config.name}:{verb}.{item.key}", VERB_KEY),
        (config.shared, f"{config.name}:{item.key}", SHARED_KEY),
    ):
        if item.key in values:
            return values[item.key], place, rank
    return None


def with_sources(text: str, settings: Common) -> str:
    """Return a message with the source of every value in it that is neither a flag nor a default.

    Whoever reads that ``--data`` is no data set, and did not give it, has to know who did.
    """
    for item in options_of(type(settings)):
        source = settings.sources.get(item.name, "default")
        if source == "flag" or source.startswith("default"):
            continue
        for value in _shown_values(item, getattr(settings, item.name)):
            place = re.search(rf"(?<!\S){re.escape(value)}(?![\w./?&=-])", text)
            if place is not None:
                text = f"{text[: place.end()]} (from {source}){text[place.end() :]}"
    return text


def _shown_values(item: Option, value: Any) -> list[str]:
    """The values of an option as messages show them, each behind its flag; a MODEL stands alone."""
    texts = [text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)]
    if item.name == "model":
        return texts
    found = [f"{item.flag} {text}" for text in texts]
    if item.names:  # NAME:GROUP=SPEC is called by its name
        named = [text.partition("=") for text in texts if "=" in text]
        found += [f"{item.flag} {name.partition(':')[0]} {spec}" for name, _, spec in named]
    return found


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """A line for each ``HYDRACTL_*`` variable that no verb reads: most often a misspelling."""
    ours = [name for name in sorted(environ) if name.startswith("HYDRACTL_") and name not in (_CONFIG, _DEBUG)]
    if not ours:  # the options of all verbs need not be read
        return []
    known = sorted({o.variable for settings in SETTINGS.values() for o in options_of(settings)} | {_CONFIG, _DEBUG})
    return [
        f"the environment variable {name} is not read by hydractl{did_you_mean(name, known)}"
        for name in ours
        if name not in known
    ]


def bare_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables that hydractl reads settings from."""
    return {name: text for name, text in environ.items() if not name.startswith("HYDRACTL_") or name == _DEBUG}


def to_argv(settings: Common, without: Collection[str] = ()) -> list[str]:
    """The flags of every option that somebody gave; a recipe, which is among them, decides the rest again.

    To be read without variables and ``hydra.yaml`` (see :func:`bare_environment`): what those said is among the flags.

    Args:
        settings: checked.
        without: options to leave out, by name; MODEL always is.
    """
    argv = []
    for item in options_of(type(settings)):
        if item.name not in ("model", *without) and settings._rank(item.name) > RECIPE:
            argv += _flags(item, getattr(settings, item.name))
    return argv


def _flags(item: Option, value: Any) -> list[str]:
    """One option; ``--name=value`` in one word, so that a value may start with a dash."""
    if item.type is bool:
        return [item.flag if value else f"--no-{item.flag[2:]}"]
    texts = [repr(v) if isinstance(v, float) else str(v) for v in (value if item.many else [value])]
    if item.split:
        texts = [",".join(texts)] if texts else []
    return [f"{item.flag}={text}" for text in texts]
