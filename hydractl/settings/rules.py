"""Rules between the options of one verb: what one option needs beside it, and what excludes what.

A settings class lists its rules in ``rules``, in the order in which their problems are told. A rule is a function that
takes the settings and returns the problems it finds; those here are made from the names of options.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from hydractl.settings.common import Common, Rule


def required(name: str) -> Rule:
    """Return the rule that an option is given, whatever the others are."""

    def rule(settings: Common) -> list[str]:
        return settings.needs(name)

    return rule


def required_by(name: str, chooser: str, values: Collection[str]) -> Rule:
    """Return the rule that an option is given where another one has one of some values."""

    def rule(settings: Common) -> list[str]:
        value = getattr(settings, chooser)
        if value not in values:
            return []
        return settings.needs(name, f"{settings.called(chooser)} {value}")

    return rule


def needs(name: str, other: str) -> Rule:
    """Return the rule that the first option is given together with the second."""

    def rule(settings: Common) -> list[str]:
        return settings.goes_with(name, other)

    return rule


def together(name: str, other: str) -> Rule:
    """Return the rule that two options are given together, or neither of them."""

    def rule(settings: Common) -> list[str]:
        problems = settings.goes_with(name, other)
        return problems + settings.goes_with(other, name)

    return rule


def exactly_one(*names: str) -> Rule:
    """Return the rule that one of these options is given, and only one."""

    def rule(settings: Common) -> list[str]:
        return settings.exactly_one(*names)

    return rule


def at_most_one(*names: str) -> Rule:
    """Return the rule that these options exclude each other."""

    def rule(settings: Common) -> list[str]:
        return settings.at_most_one(*names)

    return rule


def names_once(name: str, form: Callable[[str], str] = str) -> Rule:
    """Return the rule that no two data sets of an option have one name, which ``form`` makes sure to be there."""

    def rule(settings: Common) -> list[str]:
        return settings.twice_named(name, form)

    return rule


def one_from_stdin(*names: str) -> Rule:
    """Return the rule that standard input is the file of one of these options at most."""

    def rule(settings: Common) -> list[str]:
        return settings.one_from_stdin(*names)

    return rule
