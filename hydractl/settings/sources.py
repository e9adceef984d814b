"""Merging: flag over ``HYDRACTL_*`` variable over the verb's mapping over a top-level key over the built-in value.

And the way back: settings as a command line that gives the same ones again, wherever they came from.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from hydractl.jsonio import shown
from hydractl.settings.common import FLAG, RECIPE, SHARED_KEY, VARIABLE, VERB_KEY, Common, raise_problems
from hydractl.settings.option import Option, Raw, Refusal, options_of
from hydractl.settings.suggestions import ENVIRONMENT, about_option
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
        name = item.name
        self.sources[name] = given.source
        self.ranks[name] = given.rank
        try:
            self.values[name] = item.parse(given.raw)
        except ValueError as error:
            self.unread.add(name)
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
        settings = settings_type(
            **self.values,
            sources=self.sources,
            ranks=self.ranks,
            unread=frozenset(self.unread),
        )
        problems = self.problems + settings.problems()
        raise_problems(settings_type.verb, problems)
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
    named = environ.get(_CONFIG)
    if isinstance(flag, str) and flag:
        named = flag
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
    if named is not None:
        named = str(named)
    config = find_config(None, named)
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
        raw: Raw = text
        if item.many and not item.split:
            raw = text.splitlines()
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
        values = getattr(settings, item.name)
        for value in _shown_values(item, values):
            pattern = rf"(?<!\S){re.escape(value)}(?![\w./?&=-])"
            place = re.search(pattern, text)
            if place is None:
                continue
            before = text[: place.end()]
            behind = text[place.end() :]
            text = f"{before} (from {source}){behind}"
    return text


def _shown_values(item: Option, value: Any) -> list[str]:
    """Return the values of an option as messages show them, each behind its flag; a MODEL stands alone."""
    values = [value]
    if isinstance(value, list):
        values = value
    texts = [text for text in values if isinstance(text, str)]
    if item.name == "model":
        return texts
    shown = [f"{item.flag} {text}" for text in texts]
    if not item.names:
        return shown
    for text in texts:
        left, equals, spec = text.partition("=")
        if equals:  # NAME:GROUP=SPEC is called by its name
            name, _, _ = left.partition(":")
            shown.append(f"{item.flag} {name} {spec}")
    return shown


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Return a line for each ``HYDRACTL_*`` variable that no verb reads: most often a misspelling."""
    of_the_program = (_CONFIG, _DEBUG)
    names = []
    for name in sorted(environ):
        if name.startswith("HYDRACTL_") and name not in of_the_program:
            names.append(name)
    if not names:  # the options of all verbs need not be read
        return []
    known: set[str] = set()
    for settings in SETTINGS.values():
        known.update(option.variable for option in options_of(settings))
    lines = []
    for name in names:
        if name not in known:
            meant = about_option(name.removeprefix("HYDRACTL_"), None, ENVIRONMENT)
            lines.append(f"the environment variable {name} is not read by hydractl{meant}")
    return lines


def bare_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the variables that hydractl reads settings from."""
    bare = {}
    for name, text in environ.items():
        if name == _DEBUG or not name.startswith("HYDRACTL_"):
            bare[name] = text
    return bare


def to_argv(settings: Common, without: Collection[str] = ()) -> list[str]:
    """Return the flags of every option that somebody gave; a recipe, which is among them, decides the rest again.

    To be read without variables (see :func:`bare_environment`): what those and ``hydra.yaml`` said is among the flags,
    or, of options without a flag, in the mapping of ``--config``, which takes the place of ``hydra.yaml``.

    Args:
        settings: checked.
        without: options to leave out, by name; MODEL and ``--config`` always are.
    """
    argv = []
    keys = {}
    for item in options_of(type(settings)):
        if item.name in ("model", "config", *without) or settings._rank(item.name) <= RECIPE:
            continue
        if item.flagless:
            keys[item.key] = getattr(settings, item.name)
        else:
            argv += _flags(item, getattr(settings, item.name))
    config = os.devnull
    if keys:
        config = json.dumps({settings.verb: keys})
    return [*argv, f"--config={config}"]


def _value_text(value: Any) -> str:
    """Return a value as a flag has it, a float with all its digits."""
    if isinstance(value, float):
        return repr(value)
    return str(value)


def _flags(item: Option, value: Any) -> list[str]:
    """Return one option; ``--name=value`` in one word, so that a value may start with a dash."""
    if item.type is bool:
        if value:
            return [item.flag]
        return [f"--no-{item.flag[2:]}"]
    parts = [value]
    if item.many:
        parts = value
    texts = [_value_text(part) for part in parts]
    if item.split and texts:
        texts = [",".join(texts)]
    return [f"{item.flag}={text}" for text in texts]
