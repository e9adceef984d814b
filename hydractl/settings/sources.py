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

    def add_text(self, item: Option, text: _TextWithSource) -> None:
        """Add the value of an option that a text gives; where it cannot be read, add that as a problem."""
        name = item.name
        self.sources[name] = text.source
        self.ranks[name] = text.rank
        try:
            self.values[name] = item.parse(text.raw)
        except ValueError as error:
            self.unread.add(name)
            self.problems.append(f"{item.label} {error} ({text.source})")

    def add_argument(self, item: Option, argument: object) -> None:
        """Add the value of an option that a Python call gives; where it breaks rules, add these as problems.

        They are told here, and not by the checks of all settings, as the rules alone: the argument stands before them.
        """
        self.sources[item.name] = "flag"
        self.ranks[item.name] = FLAG
        try:
            value = item.take(argument)
        except ValueError as error:
            refusals = [Refusal(str(error))]
        else:
            self.values[item.name] = value
            refusals = item.refusals(value)
        if refusals:
            self.unread.add(item.name)
        for refusal in refusals:
            # A rule that was told as a whole sentence may end with the argument.
            rule = refusal.rule.removesuffix(f", not {argument!r}")
            as_written = f"{item.name}={shown(argument)}"
            self.problems.append(f"{as_written}: {rule}{refusal.guess}")

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
    config_flag = flags.get("config")
    config_name = environ.get(_CONFIG)
    if isinstance(config_flag, str) and config_flag:
        config_name = config_flag
    config = find_config(folder, config_name or None)
    gathered = _Gathered(problems=list(config.problems))
    for item in options_of(settings_type):
        gathered.sources[item.name] = "default"
        winner = _weightiest_text(item, settings_type.verb, flags, environ, config)
        if winner is not None:
            gathered.add_text(item, winner)
    return gathered.settings(settings_type)


def from_arguments(settings_type: type[SettingsT], arguments: Mapping[str, object]) -> SettingsT:
    """Return the checked settings of a verb that a Python program calls.

    Args:
        settings_type: the settings dataclass of the verb.
        arguments: typed values by field name; ``config`` names a file of defaults, and no other one is looked for.

    Raises:
        UsageError: listing every problem; those of single arguments as ``keep=3.5: must be a whole number``.
    """
    config_name = arguments.get("config")
    if config_name is not None:
        config_name = str(config_name)
    config = find_config(None, config_name)
    gathered = _Gathered(problems=list(config.problems))
    for item in options_of(settings_type):
        gathered.sources[item.name] = "default"
        if item.name in arguments:
            gathered.add_argument(item, arguments[item.name])
            continue
        text_of_file = _weightiest_text(item, settings_type.verb, {}, {}, config)
        if text_of_file is not None:
            gathered.add_text(item, text_of_file)
    return gathered.settings(settings_type)


class _TextWithSource(NamedTuple):
    """A text that was given for an option.

    Attributes:
        raw: the text.
        source: where it was given: ``flag``, the name of a variable, or the file and the key in it.
        rank: how much that weighs.
    """

    raw: Raw
    source: str
    rank: int


def _weightiest_text(
    item: Option, verb: str, flags: Mapping[str, Raw | None], environ: Mapping[str, str], config: Contents
) -> _TextWithSource | None:
    """Return the text that decides an option: of a flag, else of a variable, else of the file of defaults.

    In the file, a key of the verb's own mapping weighs more than one for all verbs.

    Args:
        item: the option.
        verb: whose option it is.
        flags: what the command line gives, by field name; None and an empty list are "not given".
        environ: the environment.
        config: the file of defaults.

    Returns:
        None if nobody gives one.
    """
    flag = flags.get(item.name)
    if flag is not None and flag != []:
        return _TextWithSource(flag, "flag", FLAG)

    variable = environ.get(item.variable)
    if variable:  # an empty variable is how a shell unsets one for a single command
        raw: Raw = variable
        if item.many and not item.split:  # of a list without commas, each item is a line
            raw = variable.splitlines()
        return _TextWithSource(raw, item.variable, VARIABLE)

    texts_of_verb = config.verbs.get(verb, {})
    if item.key in texts_of_verb:
        source = f"{config.name}:{verb}.{item.key}"
        return _TextWithSource(texts_of_verb[item.key], source, VERB_KEY)
    if item.key in config.shared:
        source = f"{config.name}:{item.key}"
        return _TextWithSource(config.shared[item.key], source, SHARED_KEY)
    return None


def with_sources(text: str, settings: Common) -> str:
    """Return a message with the source of every value in it that is neither a flag nor a default.

    Whoever reads that ``--data`` is no data set, and did not give it, has to know who did.
    """
    for item in options_of(type(settings)):
        source = settings.sources.get(item.name, "default")
        if source == "flag" or source.startswith("default"):
            continue
        value = getattr(settings, item.name)
        for words in _words_in_messages(item, value):
            # A word of its own: neither within another word, nor the beginning of a longer path or query.
            pattern = rf"(?<!\S){re.escape(words)}(?![\w./?&=-])"
            match = re.search(pattern, text)
            if match is None:
                continue
            before = text[: match.end()]
            behind = text[match.end() :]
            text = f"{before} (from {source}){behind}"
    return text


def _words_in_messages(item: Option, value: Any) -> list[str]:
    """Return the words by which messages speak of the texts of an option.

    A MODEL is called by its text, and any other by its flag and the text. A data set ``NAME:GROUP=SPEC`` may also be
    called by its flag, its name and its SPEC.

    Args:
        item: the option.
        value: its value; what is no text is left out.
    """
    values = [value]
    if isinstance(value, list):
        values = value
    texts = [text for text in values if isinstance(text, str)]
    if item.name == "model":
        return texts
    words = [f"{item.flag} {text}" for text in texts]
    if not item.names:
        return words
    for text in texts:
        name_and_group, equals, spec = text.partition("=")
        if equals:
            name, _, _ = name_and_group.partition(":")
            words.append(f"{item.flag} {name} {spec}")
    return words


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Return a line for each ``HYDRACTL_*`` variable that no verb reads: most often a misspelling."""
    names = []
    for name in sorted(environ):
        is_of_the_program = name in (_CONFIG, _DEBUG)
        if name.startswith("HYDRACTL_") and not is_of_the_program:
            names.append(name)
    if not names:  # the options of all verbs need not be read
        return []
    known_variables: set[str] = set()
    for settings_type in SETTINGS.values():
        known_variables.update(item.variable for item in options_of(settings_type))
    lines = []
    for name in names:
        if name not in known_variables:
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
    left_out = ("model", "config", *without)
    argv = []
    values_without_flag = {}
    for item in options_of(type(settings)):
        was_given = settings._rank(item.name) > RECIPE
        if item.name in left_out or not was_given:
            continue
        value = getattr(settings, item.name)
        if item.flagless:
            values_without_flag[item.key] = value
        else:
            argv += _flags(item, value)
    config = os.devnull
    if values_without_flag:
        config = json.dumps({settings.verb: values_without_flag})
    return [*argv, f"--config={config}"]


def _value_text(value: Any) -> str:
    """Return a value as a flag has it, a float with all its digits."""
    if isinstance(value, float):
        return repr(value)
    return str(value)


def _flags(item: Option, value: Any) -> list[str]:
    """Return the flags that give an option its value; ``--name=value`` in one word, as a value may start with a dash.

    A list with commas is one flag, any other list a flag for each item.
    """
    if item.type is bool:
        if value:
            return [item.flag]
        name = item.flag.removeprefix("--")
        return [f"--no-{name}"]
    items = [value]
    if item.many:
        items = value
    texts = [_value_text(part) for part in items]
    if item.split and texts:
        texts = [",".join(texts)]
    return [f"{item.flag}={text}" for text in texts]
