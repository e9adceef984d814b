"""Merging the sources of options, and turning settings back into a command line.

A flag wins over a ``HYDRACTL_*`` variable, this over the verb's own mapping in ``hydra.yaml``, this over a top-level
key there, and this over the built-in value. :func:`to_argv` goes the other way: it returns flags that give the same
settings again, wherever they came from.
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
from hydractl.settings.yaml_files import Contents, find_config, not_a_default

_CONFIG, _DEBUG = "HYDRACTL_CONFIG", "HYDRACTL_DEBUG"

SettingsT = TypeVar("SettingsT", bound=Common)


@dataclass
class _Gathered:
    """The values of one verb's options, gathered one by one from their sources.

    Attributes:
        values: the typed values, by option name.
        sources, ranks, unread: the attributes of :class:`Common`.
        problems: the problems of single values and of the file of defaults.
    """

    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    ranks: dict[str, int] = field(default_factory=dict)
    unread: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    def add_text(self, item: Option, text: _TextWithSource) -> None:
        """Read the text of an option and add its value; a text that cannot be read adds a problem."""
        name = item.name
        self.sources[name] = text.source
        self.ranks[name] = text.rank
        try:
            self.values[name] = item.parse(text.raw)
        except ValueError as error:
            self.unread.add(name)
            self.problems.append(f"{item.label} {error} ({text.source})")

    def add_argument(self, item: Option, argument: object) -> None:
        """Check the argument of a Python call and add its value; broken rules are added as problems.

        Such a problem is written ``keep=3.5: must be a whole number``. The option then counts as unread, so that the
        checks of the whole settings do not report it again.

        Args:
            item: the option.
            argument: the value in the call.
        """
        self.sources[item.name] = "flag"
        self.ranks[item.name] = FLAG

        # First the type of the argument, then the rules of its value.
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
            # The problem begins with the argument, so a rule that ends in ", not ARGUMENT" need not repeat it.
            rule = refusal.rule.removesuffix(f", not {argument!r}")
            as_written = f"{item.name}={shown(argument)}"
            self.problems.append(f"{as_written}: {rule}{refusal.guess}")

    def settings(self, settings_type: type[SettingsT]) -> SettingsT:
        """Return the checked settings.

        Raises:
            UsageError: there is a problem; it lists all of them.
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
    """Return the checked settings of one verb that was called on the command line.

    Args:
        settings_type: the settings dataclass of the verb.
        flags: the values of the command line, by field name; None means "not given".
        environ: the environment variables.
        folder: the working directory, where ``hydra.yaml`` is looked for; None means that it is not looked for.

    Raises:
        UsageError: there is a problem; it lists the problems of all sources.
    """
    # The file of defaults: named by the flag, else by the variable, else hydra.yaml.
    config_flag = flags.get("config")
    config_name = environ.get(_CONFIG)
    if isinstance(config_flag, str) and config_flag:
        config_name = config_flag
    config = find_config(folder, config_name or None)

    # Each option has its value from one source only.
    gathered = _Gathered(problems=list(config.problems))
    for item in options_of(settings_type):
        gathered.sources[item.name] = "default"  # a value that is added replaces this
        if item.flag_only and environ.get(item.variable):
            gathered.problems.append(not_a_default(item.variable, item.key))
        text = _deciding_text(item, settings_type.verb, flags, environ, config)
        if text is not None:
            gathered.add_text(item, text)
            gathered.problems += _paths_out_of_folder(item, text, gathered.values.get(item.name), config)
    return gathered.settings(settings_type)


def _paths_out_of_folder(item: Option, text: _TextWithSource, value: Any, config: Contents) -> list[str]:
    """Return a problem for each path by which a ``hydra.yaml`` that was only found reaches out of its folder.

    A folder of somebody else may bring such a file. Nobody named it, so what it names for writing has to stay below
    the folder, and so has a text file whose lines would go into an output: it could be a secret of the user.

    Args:
        item: the option.
        text: the text that decides it.
        value: its typed value; None if it could not be read.
        config: the contents of the file of defaults.
    """
    is_of_file = text.rank in (SHARED_KEY, VERB_KEY)
    if config.folder is None or not is_of_file or not (item.writes or item.copied):
        return []
    paths = value or []
    if isinstance(value, str):
        paths = [value]

    problems = []
    folder = os.path.realpath(config.folder)
    for path in paths:
        try:
            target = os.path.realpath(os.path.join(folder, os.path.expanduser(path)))
        except ValueError:  # a NUL in the name: no file has it
            continue
        is_below = os.path.commonpath([folder, target]) == folder
        is_meant = item.writes or os.path.isfile(target)  # else it is no file, but e.g. a template
        if is_meant and not is_below:
            problems.append(
                f"{item.flag} {path} ({text.source}) leads out of this folder; give it on the command line, or say "
                f"--config {config.name}"
            )
    return problems


def from_arguments(settings_type: type[SettingsT], arguments: Mapping[str, object]) -> SettingsT:
    """Return the checked settings of one verb that a Python program called.

    An option has the value of its argument, else that of the file of defaults, else its built-in value. Environment
    variables are not read: they are for the command line.

    Args:
        settings_type: the settings dataclass of the verb.
        arguments: typed values by field name. ``config`` names the file of defaults; without it no file is read.

    Raises:
        UsageError: there is a problem; it lists all of them, e.g. ``keep=3.5: must be a whole number``.
    """
    config_name = arguments.get("config")
    if config_name is not None:
        config_name = str(config_name)
    config = find_config(None, config_name)

    # Each option has its value from one source only.
    gathered = _Gathered(problems=list(config.problems))
    for item in options_of(settings_type):
        gathered.sources[item.name] = "default"  # a value that is added replaces this
        if item.name in arguments:
            gathered.add_argument(item, arguments[item.name])
            continue
        text_of_file = _text_of_file(item, settings_type.verb, config)
        if text_of_file is not None:
            gathered.add_text(item, text_of_file)
    return gathered.settings(settings_type)


class _TextWithSource(NamedTuple):
    """A text that was given for an option.

    Attributes:
        raw: the text.
        source: where it was given: ``flag``, the name of a variable, or the file and the key in it.
        rank: the rank of that source; a higher one wins.
    """

    raw: Raw
    source: str
    rank: int


def _deciding_text(
    item: Option, verb: str, flags: Mapping[str, Raw | None], environ: Mapping[str, str], config: Contents
) -> _TextWithSource | None:
    """Return the text that decides an option: that of the flag, else of the variable, else of the file of defaults.

    Args:
        item: the option.
        verb: the verb that has it.
        flags: the values of the command line, by field name; None and an empty list mean "not given".
        environ: the environment variables.
        config: the contents of the file of defaults.

    Returns:
        None if the option is not given anywhere.
    """
    flag = flags.get(item.name)
    if flag is not None and flag != []:
        return _TextWithSource(flag, "flag", FLAG)

    variable = environ.get(item.variable)
    if variable and not item.flag_only:  # an empty one counts as not set: that is how a shell unsets it for one command
        raw: Raw = variable
        if item.many and not item.split:  # the items of a list without commas stand on a line each
            raw = variable.splitlines()
        return _TextWithSource(raw, item.variable, VARIABLE)
    return _text_of_file(item, verb, config)


def _text_of_file(item: Option, verb: str, config: Contents) -> _TextWithSource | None:
    """Return the text that the file of defaults has for an option of a verb; None if it has none.

    A key in the verb's own mapping wins over a key for all verbs.

    Args:
        item: the option.
        verb: the verb that has it.
        config: the contents of the file of defaults.
    """
    texts_of_verb = config.verbs.get(verb, {})
    if item.key in texts_of_verb:
        source = f"{config.name}:{verb}.{item.key}"
        return _TextWithSource(texts_of_verb[item.key], source, VERB_KEY)
    if item.key in config.shared:
        source = f"{config.name}:{item.key}"
        return _TextWithSource(config.shared[item.key], source, SHARED_KEY)
    return None


def with_sources(text: str, settings: Common) -> str:
    """Return a message in which each option's value is followed by its source, unless that is a flag or a default.

    Somebody who reads that ``--data x`` is no data set, and did not give it, has to know where it comes from.

    Args:
        text: the message.
        settings: the settings of the command.
    """
    for item in options_of(type(settings)):
        source = settings.sources.get(item.name, "default")
        if source == "flag" or source.startswith("default"):
            continue
        value = getattr(settings, item.name)
        for words in _words_in_messages(item, value):
            # Match whole words: not a part of another word, nor the beginning of a longer path or query.
            pattern = rf"(?<!\S){re.escape(words)}(?![\w./?&=-])"
            match = re.search(pattern, text)
            if match is None:
                continue
            before = text[: match.end()]
            behind = text[match.end() :]
            text = f"{before} (from {source}){behind}"
    return text


def _words_in_messages(item: Option, value: Any) -> list[str]:
    """Return the phrases by which messages name the texts of an option.

    A MODEL is named by its text alone, any other option by its flag and the text. A data set ``NAME:GROUP=SPEC`` may
    also be named by its flag, its name and its SPEC.

    Args:
        item: the option.
        value: its value; values that are no texts are left out.
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

    # A data set: the flag, NAME and SPEC.
    for text in texts:
        name_and_group, equals, spec = text.partition("=")
        if equals:
            name, _, _ = name_and_group.partition(":")
            words.append(f"{item.flag} {name} {spec}")
    return words


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Return a line for each ``HYDRACTL_*`` variable that no verb reads; most are misspelt."""
    names = []
    for name in sorted(environ):
        is_of_the_program = name in (_CONFIG, _DEBUG)
        if name.startswith("HYDRACTL_") and not is_of_the_program:
            names.append(name)
    if not names:  # then the options of all verbs need not be read, which takes time
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
    """Return the environment without the variables from which hydractl reads settings."""
    bare = {}
    for name, text in environ.items():
        if name == _DEBUG or not name.startswith("HYDRACTL_"):
            bare[name] = text
    return bare


def to_argv(settings: Common, without: Collection[str] = ()) -> list[str]:
    """Return flags that give the same settings again, wherever their values came from.

    They cover every option that somebody gave. Values of a recipe are left out, because the recipe is one of the
    options and decides them again. The command must run without variables (:func:`bare_environment`). Options that have
    no flag go into the mapping of ``--config``, which also keeps ``hydra.yaml`` from being read.

    Args:
        settings: the checked settings.
        without: names of further options to leave out; MODEL and ``--config`` always are.
    """
    left_out = ("model", "config", *without)
    argv = []
    values_without_flag = {}
    for item in options_of(type(settings)):
        # A recipe decides its values again, so only what ranks above a recipe counts as given.
        was_given = settings._rank(item.name) > RECIPE
        if item.name in left_out or not was_given:
            continue
        value = getattr(settings, item.name)
        if item.flagless:
            values_without_flag[item.key] = value
        else:
            argv += _flags(item, value)

    # An empty file of defaults, unless options without a flag are needed.
    config = os.devnull
    if values_without_flag:
        config = json.dumps({settings.verb: values_without_flag})
    return [*argv, f"--config={config}"]


def _value_text(value: Any) -> str:
    """Return a value as text for a flag; a float with all its digits."""
    if isinstance(value, float):
        return repr(value)
    return str(value)


def _flags(item: Option, value: Any) -> list[str]:
    """Return the flags that give an option its value, each in one word, ``--name=value``.

    A value may begin with a dash, so it must not be a word of its own. A list with commas is one flag; any other list
    has one flag for each item.

    Args:
        item: the option.
        value: its typed value.
    """
    if item.type is bool:
        if value:
            return [item.flag]
        name = item.flag.removeprefix("--")
        return [f"--no-{name}"]

    # A switch is handled above; every other value is written as text.
    items = [value]
    if item.many:
        items = value
    texts = [_value_text(part) for part in items]
    if item.split and texts:
        texts = [",".join(texts)]
    return [f"{item.flag}={text}" for text in texts]
