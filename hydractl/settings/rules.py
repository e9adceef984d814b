"""Rules between the options of one verb: which option needs which other one, and which options exclude each other.

A settings class lists its rules in ``rules``, in the order in which their problems are reported. A rule is a function
that takes the settings and returns the problems it finds. The functions here make rules from the names of options.
"""

from __future__ import annotations

from collections.abc import Callable

from hydractl.settings.common import Common, Rule


def required(name: str) -> Rule:
    """Return the rule that an option must be given."""

    def rule(settings: Common) -> list[str]:
        return settings.needs(name)

    return rule


def needs(name: str, other: str) -> Rule:
    """Return the rule that option ``name`` may be given only together with option ``other``."""

    def rule(settings: Common) -> list[str]:
        return settings.goes_with(name, other)

    return rule


def at_most_one(*names: str) -> Rule:
    """Return the rule that at most one of these options may be given."""

    def rule(settings: Common) -> list[str]:
        return settings.at_most_one(*names)

    return rule


def names_once(name: str, form: Callable[[str], str] = str) -> Rule:
    """Return the rule that no two data sets of an option may have the same name.

    Args:
        name: the option, whose values are ``NAME=SPEC``.
        form: adds the name to a value that has none.
    """

    def rule(settings: Common) -> list[str]:
        return settings.twice_named(name, form)

    return rule
