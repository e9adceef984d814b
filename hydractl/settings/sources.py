"""Merging the sources of options.

A flag wins over a ``HYDRACTL_*`` variable, this over the verb's own mapping in ``hydra.yaml``, this over a top-level
key there, and this over the built-in value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hydractl.jsonio import shown
from hydractl.options.call import raise_problems
from hydractl.options.option import Option, Raw, Refusal, options_of
from hydractl.options.sources import CONFIG, FLAG, Given, deciding_text, paths_out_of_folder, text_of_file
from hydractl.options.yaml_files import find_config, not_a_default
from hydractl.settings.common import Common

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

    def add_text(self, item: Option, text: Given) -> None:
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
            # The problem begins with the argument, so a rule need not repeat it in ", not ARGUMENT".
            rule = refusal.rule.replace(f", not {argument!r}", "")
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
    config_name = environ.get(CONFIG)
    if isinstance(config_flag, str) and config_flag:
        config_name = config_flag
    config = find_config(folder, config_name or None)

    # Each option has its value from one source only.
    gathered = _Gathered(problems=list(config.problems))
    for item in options_of(settings_type):
        gathered.sources[item.name] = "default"  # a value that is added replaces this
        if item.flag_only and environ.get(item.variable):
            gathered.problems.append(not_a_default(item.variable, item.key))
        text = deciding_text(item, settings_type.verb, flags, environ, config)
        if text is not None:
            gathered.add_text(item, text)
            gathered.problems += paths_out_of_folder(item, text, gathered.values.get(item.name), config)
    return gathered.settings(settings_type)


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
        text = text_of_file(item, settings_type.verb, config)
        if text is not None:
            gathered.add_text(item, text)
    return gathered.settings(settings_type)


def with_sources(text: str, options: Sequence[Option], values: Mapping[str, Any], sources: Mapping[str, str]) -> str:
    """Return a message in which each option's value is followed by its source, unless that is a flag or a default.

    Somebody who reads that ``--data x`` is no data set, and did not give it, has to know where it comes from.

    Args:
        text: the message.
        options: the options of the command.
        values: their values, by name.
        sources: where each value came from, by name.
    """
    for item in options:
        source = sources.get(item.name, "default")
        if source == "flag" or source.startswith("default"):
            continue
        value = values[item.name]
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
        value: its value; numbers are left out.
    """
    values = [value]
    if isinstance(value, list):
        values = value
    texts = [str(text) for text in values if isinstance(text, str) or item.reads is not None]

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
