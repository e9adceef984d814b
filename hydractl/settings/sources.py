"""Merging: flag over ``HYDRACTL_*`` variable over the verb's mapping over a top-level key over the built-in value.

And the way back: settings as a command line that gives the same ones again, wherever they came from.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from hydractl.errors import did_you_mean
from hydractl.jsonio import shown
from hydractl.settings.common import FLAG, RECIPE, SHARED_KEY, VARIABLE, VERB_KEY, Common, raise_problems
from hydractl.settings.option import Option, Raw, Refusal, options_of
from hydractl.settings.verbs import SETTINGS
from hydractl.settings.yaml_files import Contents, find_config

_CONFIG, _DEBUG = "HYDRACTL_CONFIG", "HYDRACTL_DEBUG"

SettingsT = TypeVar("SettingsT", bound=Common)


@dataclass
class _Gathered:
    """The values of one verb as they are gathered, option by option.

    Attributes:
        values, sources, ranks, unread: as those of :class:`Common`.
        problems: what is wrong with single values, and with the file of defaults.
    """

    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    ranks: dict[str, int] = field(default_factory=dict)
    unread: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    def read(self, item: Option, given: _Given) -> None:
        """Take in a text that somebody gave for an option."""
        self.sources[item.name] = given.source
        self.ranks[item.name] = given.rank
        try:
            self.values[item.name] = item.parse(given.raw)
        except ValueError as error:
            self.unread.add(item.name)
            self.problems.append(f"{item.label} {error} ({given.source})")

    def take(self, item: Option, value: object) -> None:
        """Take in an argument of a Python call."""
        self.sources[item.name] = "flag"
        self.ranks[item.name] = FLAG
        try:
            taken = item.take(value)
        except ValueError as error:
            refusals = [Refusal(str(error))]
        else:
            self.values[item.name] = taken
            refusals = item.refusals(taken)
        if refusals:
            self.unread.add(item.name)
        for refusal in refusals:
            # The value stands at the front already; a rule that was told as a whole sentence may end with it.
            rule = refusal.rule.removesuffix(f", not {value!r}")
            self.problems.append(f"{item.name}={shown(value)}: {rule}{refusal.guess}")

    def settings(self, settings_type: type[SettingsT]) -> SettingsT:
        """Return the checked settings.

        Raises:
            UsageError: listing every problem.
        """
        settings = settings_type(**self.values, sources=self.sources, ranks=self.ranks, unread=frozenset(self.unread))
        raise_problems(settings_type.verb, self.problems + settings.problems())
        return settings


def merge(
    settings_type: type[SettingsT], flags: Mapping[str, Raw | None], environ: Mapping[str, str], folder: Path | None
) -> SettingsT:
    """Return the checked settings of one verb of the command line.

    Args:
        settings_type: the settings dataclass of the verb.
        flags: what the command line gives, by field name; None is "not given".
        environ: the environment.
        folder: the working directory, where ``hydra.yaml`` is looked for; None: it is not.

    Raises:
        UsageError: listing every problem of all sources at once.
    """
    flag = flags.get("config")
    named = flag if isinstance(flag, str) and flag else environ.get(_CONFIG)
    config = find_config(folder, named or None)
    gathered = _Gathered(problems=list(config.problems))
    for item in options_of(settings_type):
        gathered.sources[item.name] = "default"
        winner = _weightiest(item, settings_type.verb, flags, environ, config)
        if winner is not None:
            gathered.read(item, winner)
    return gathered.settings(settings_type)


def from_arguments(settings_type: type[SettingsT], arguments: Mapping[str, object]) -> SettingsT:
    """Return the checked settings of a verb that a Python program calls.

    Args:
        settings_type: the settings dataclass of the verb.
        arguments: typed values by field name; ``config`` names a file of defaults, and no other one is looked for.

    Raises:
        UsageError: listing every problem; those of single arguments as ``keep=3.5: must be a whole number``.
    """
    named = arguments.get("config")
    config = find_config(None, None if named is None else str(named))
    gathered = _Gathered(problems=list(config.problems))
    for item in options_of(settings_type):
        gathered.sources[item.name] = "default"
        if item.name in arguments:
            gathered.take(item, arguments[item.name])
            continue
        default = _weightiest(item, settings_type.verb, {}, {}, config)
        if default is not None:
            gathered.read(item, default)
    return gathered.settings(settings_type)


class _Given(NamedTuple):
    """A text that was given for an option, where it was given, and how much that weighs."""

    raw: Raw
    source: str
    rank: int


def _weightiest(
    item: Option, verb: str, flags: Mapping[str, Raw | None], environ: Mapping[str, str], config: Contents
) -> _Given | None:
    """Return the given text of an option that wins; None if nobody gives one."""
    flag = flags.get(item.name)
    if flag is not None and flag != []:
        return _Given(flag, "flag", FLAG)
    text = environ.get(item.variable)
    if text:  # an empty variable is how a shell unsets one for a single command
        raw = text.splitlines() if item.many and not item.split else text
        return _Given(raw, item.variable, VARIABLE)
    of_verb = config.verbs.get(verb, {})
    if item.key in of_verb:
        return _Given(of_verb[item.key], f"{config.name}:{verb}.{item.key}", VERB_KEY)
    if item.key in config.shared:
        return _Given(config.shared[item.key], f"{config.name}:{item.key}", SHARED_KEY)
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
    values = value if isinstance(value, list) else [value]
    texts = [text for text in values if isinstance(text, str)]
    if item.name == "model":
        return texts
    found = [f"{item.flag} {text}" for text in texts]
    if not item.names:
        return found
    for text in texts:
        name, equals, spec = text.partition("=")
        if equals:  # NAME:GROUP=SPEC is called by its name
            found.append(f"{item.flag} {name.partition(':')[0]} {spec}")
    return found


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """A line for each ``HYDRACTL_*`` variable that no verb reads: most often a misspelling."""
    ours = [name for name in sorted(environ) if name.startswith("HYDRACTL_") and name not in (_CONFIG, _DEBUG)]
    if not ours:  # the options of all verbs need not be read
        return []
    known = {_CONFIG, _DEBUG}
    for settings in SETTINGS.values():
        known.update(option.variable for option in options_of(settings))
    lines = []
    for name in ours:
        if name not in known:
            guess = did_you_mean(name, sorted(known))
            lines.append(f"the environment variable {name} is not read by hydractl{guess}")
    return lines


def bare_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables that hydractl reads settings from."""
    bare = {}
    for name, text in environ.items():
        if name == _DEBUG or not name.startswith("HYDRACTL_"):
            bare[name] = text
    return bare


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
    texts = []
    for part in value if item.many else [value]:
        texts.append(repr(part) if isinstance(part, float) else str(part))
    if item.split and texts:
        texts = [",".join(texts)]
    return [f"{item.flag}={text}" for text in texts]
