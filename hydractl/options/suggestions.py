"""Suggestions of what was probably meant by an unknown option or verb.

They are looked for in this order: another verb that has the option, then the name that is spelled most alike.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hydractl.errors import nearest
from hydractl.options.registry import GONE_VERBS, VERBS
from hydractl.options.verbs import options_of_verb

_BESIDE_VERBS: Mapping[str | None, Sequence[str]] = {
    None: ("help", "version", "info", "install-completion", "show-completion"),
    "--info": ("json", "help"),
}
"""Options of the program itself (None), and of ``--info``, which is a command but no verb."""
_MOST_VERBS = 3
"""The most verbs in one message."""


@dataclass(frozen=True)
class Door:
    """The way in which options are given: on the command line, in a file, in the environment, or in Python.

    Attributes:
        option: writes an option from its name (as in its flag).
        verb: writes the name of a verb.
        negations: whether a switch can also be given with ``no-`` before it.
        lacks: options that cannot be given there.
        needs_flags: whether options without a flag cannot be given there.
    """

    option: Callable[[str], str]
    verb: Callable[[str], str]
    negations: bool = False
    lacks: Collection[str] = ()
    needs_flags: bool = False

    def names(self, verb: str | None) -> list[str]:
        """Return the names, as in their flags, of the options that can be given in this way, each once.

        Args:
            verb: the verb that has the options; None means all verbs.
        """
        verbs = list(VERBS)
        if verb is not None:
            verbs = [verb]
        names: list[str] = []
        for known_verb in verbs:
            for option in options_of_verb(known_verb):
                name = option.flag.removeprefix("--")
                # Leave out what cannot be given in this way.
                lacks_flag = self.needs_flags and option.flagless
                if lacks_flag or name in self.lacks:
                    continue
                names.append(name)
                if self.negations and option.type is bool:
                    names.append(f"no-{name}")
        return list(dict.fromkeys(names))

    def verbs_with(self, name: str) -> list[str]:
        """Return the verbs that have an option of this name."""
        return [verb for verb in VERBS if name in self.names(verb)]


def _as_flag(name: str) -> str:
    """Return ``--name``."""
    return f"--{name}"


def _as_key(name: str) -> str:
    """Return ``'name'``, in quotes."""
    return repr(name.replace("-", "_"))


def _as_variable(name: str) -> str:
    """Return ``HYDRACTL_NAME``."""
    key = name.replace("-", "_")
    return f"HYDRACTL_{key.upper()}"


def _as_command(verb: str) -> str:
    """Return ``hydractl VERB``."""
    return f"hydractl {verb}"


COMMAND_LINE = Door(_as_flag, _as_command, negations=True, needs_flags=True)
YAML_FILE = Door(_as_key, _as_command, lacks=("config", "force"))
ENVIRONMENT = Door(_as_variable, _as_command, lacks=("force",))


def about_option(name: str, verb: str | None, door: Door) -> str:
    """Return the end of a message about an option that a verb does not have; empty if nothing can be suggested.

    Args:
        name: the unknown name without a prefix such as ``--`` or ``HYDRACTL_``; ``-`` and ``_`` count as the same.
        verb: the verb; None if the option was given to all verbs.
        door: the way in which it was given, e.g. on the command line.
    """
    option_name = name.replace("_", "-").lower()

    # The option exists, but it has no flag, or another verb has it.
    if verb is not None:
        if door.needs_flags and _is_flagless(option_name, verb):
            return "; it is a key of a recipe or hydra.yaml"
        others = door.verbs_with(option_name)
        if others:
            return f"; see {door.verb(_listed(others))}"

    # A similar name exists.
    return _did_you_mean(option_name, door.names(verb), door.option)


def _is_flagless(name: str, verb: str) -> bool:
    """Return whether a verb has an option of this name, and it has no flag."""
    for option in options_of_verb(verb):
        if option.flag == f"--{name}":
            return option.flagless
    return False


def about_word(word: str, verb: str | None) -> str:
    """Return the end of a message about an unknown word of the command line; empty if nothing can be suggested.

    Args:
        word: a flag, or what stands where a verb is expected.
        verb: the verb that the flag was given to, or ``--info``; None if it was given to the program itself.
    """
    # The word stands where a verb is expected.
    if word in GONE_VERBS:
        return f"; it is gone: {GONE_VERBS[word]}"
    if not word.startswith("-"):
        return _did_you_mean(word, [*VERBS, "--info", "--version"], str)

    # The word is a flag after a verb.
    name = word.removeprefix("--")
    if verb in VERBS:
        return about_option(name, verb, COMMAND_LINE) or _did_you_mean(name, ["help"], _as_flag)

    # The word is a flag of the program itself, or of --info; or it belongs to a verb.
    meant = _did_you_mean(name, _BESIDE_VERBS[verb], _as_flag)
    if meant:
        return meant
    verbs_with_it = COMMAND_LINE.verbs_with(name)
    if not verbs_with_it:
        return ""
    command = _as_command(_listed(verbs_with_it))
    return f"; see {command}"


def about_key_of_file(key: str) -> str:
    """Return the end of a message about an unknown key at the top of a file of options: an option or a verb."""
    if key in GONE_VERBS:
        return f"; it is gone: {GONE_VERBS[key]}"
    name = key.replace("_", "-").lower()
    near_name = nearest(name, [*VERBS, *YAML_FILE.names(None)])
    if near_name is None:
        return ""
    written = repr(near_name) if near_name in VERBS else YAML_FILE.option(near_name)
    return f"; did you mean {written}?"


def _did_you_mean(word: str, names: Iterable[str], written: Callable[[str], str]) -> str:
    """Return the end of a message that suggests the name spelled most like a word; empty if none is.

    Args:
        word: what was written.
        names: the existing names.
        written: how the name is written in the message.
    """
    near_name = nearest(word, names)
    if near_name is None:
        return ""
    return f"; did you mean {written(near_name)}?"


def _listed(verbs: Sequence[str]) -> str:
    """Return verbs as a list in words, e.g. ``a, b or c``; of more than three verbs only the first three."""
    if len(verbs) == 1:
        return verbs[0]
    if len(verbs) > _MOST_VERBS:
        first_ones = ", ".join(verbs[:_MOST_VERBS])
        return f"{first_ones} and others"
    *others, last = verbs
    listed = ", ".join(others)
    return f"{listed} or {last}"
