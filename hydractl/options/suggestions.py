"""Suggestions of what was probably meant by an unknown option.

They are looked for in this order: another verb that has the option, then the name that is spelled most alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hydractl.errors import did_you_mean
from hydractl.options.option import Option, either
from hydractl.options.registry import VERBS
from hydractl.options.verbs import options_of_verb

_MOST_VERBS = 3
"""The most verbs in one message."""

Way = Callable[[Option], str]
"""How an option is written where it is given, e.g. in a file; empty if it cannot be given there."""


def by_flag(option: Option) -> str:
    """Return an option as the command line has it; of one without a flag, where its key may stand."""
    return f"{option.key} in a recipe or hydra.yaml" if option.flagless else option.flag


def by_key(option: Option) -> str:
    """Return the key of an option in a file of options, in quotes."""
    return "" if option.name in ("config", "force") else repr(option.key)


def by_variable(option: Option) -> str:
    """Return the environment variable of an option."""
    return "" if option.flag_only else option.variable


def names_of_options(verbs: Sequence[str], way: Way) -> dict[str, str]:
    """Return how the options of verbs are written, by their names in flags: ``{"batch-size": "'batch_size'"}``.

    Args:
        verbs: the verbs whose options are listed.
        way: how one option is written: as a flag, a key of a file, or a variable; empty if it cannot be given so.
    """
    written: dict[str, str] = {}
    for verb in verbs:
        for option in options_of_verb(verb):
            as_given = way(option)
            if as_given:
                written.setdefault(option.flag[2:], as_given)  # several verbs may have it: the first counts
    return written


def about_option(name: str, verb: str | None, way: Way) -> str:
    """Return the end of a message about an unknown option, such as ``; did you mean --keep?``; empty without a guess.

    The first guess that applies:

    - this verb does not have the option, but others do: a hint at their help;
    - the verb (or, without one, any verb) has an option that is spelled alike: that option.

    Args:
        name: the unknown name without a prefix such as ``--`` or ``HYDRACTL_``; ``-`` and ``_`` count as the same.
        verb: the verb; None if the option was given to all verbs.
        way: how options are written where it was given.
    """
    option_name = name.replace("_", "-").lower()
    known = names_of_options(list(VERBS) if verb is None else [verb], way)
    verbs = [other for other in VERBS if option_name in names_of_options([other], way)]
    if not verbs or option_name in known:
        return did_you_mean(option_name, known, known.__getitem__)
    if len(verbs) > _MOST_VERBS:
        return f"; see hydractl {', '.join(verbs[:_MOST_VERBS])} and others"
    return f"; see hydractl {either(verbs)}"
