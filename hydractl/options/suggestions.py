"""Suggestions of what was probably meant by an unknown option or verb.

They are looked for in this order: another verb that has the option, then the name that is spelled most alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hydractl.errors import did_you_mean
from hydractl.options.option import Option, either
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
        option: writes an option as it is given there; empty if it cannot be.
        program: what stands before the name of a verb.
        verb: writes the name of a verb.
    """

    option: Callable[[Option], str]
    program: str = "hydractl "
    verb: Callable[[str], str] = str

    def names(self, verb: str | None) -> dict[str, str]:
        """Return how each option is written in this way, by its name in flags: ``{"batch-size": "--batch-size"}``.

        Options that cannot be given in this way are left out. On the command line a switch also has its ``no-`` form.

        Args:
            verb: the verb that has the options; None means all verbs.
        """
        written: dict[str, str] = {}
        for known_verb in VERBS if verb is None else [verb]:
            for option in options_of_verb(known_verb):
                as_given = self.option(option)
                if not as_given:  # it cannot be given in this way
                    continue
                name = option.flag[2:]
                written.setdefault(name, as_given)  # several verbs may have it: the first counts
                if self is COMMAND_LINE and option.type is bool:
                    written[f"no-{name}"] = _flag(f"no-{name}")
        return written

    def verbs_with(self, name: str) -> str:
        """Return the verbs that have an option of this name, ``hydractl a, b or c``; empty if none has it."""
        verbs = [self.verb(verb) for verb in VERBS if name in self.names(verb)]
        if not verbs:
            return ""
        if len(verbs) > _MOST_VERBS:
            return f"{self.program}{', '.join(verbs[:_MOST_VERBS])} and others"
        return f"{self.program}{either(verbs)}"


_flag = "--{}".format
COMMAND_LINE = Door(lambda option: "" if option.flagless else option.flag)
YAML_FILE = Door(lambda option: "" if option.name in ("config", "force") else repr(option.key))
ENVIRONMENT = Door(lambda option: "" if option.flag_only else option.variable)


def about_option(name: str, verb: str | None, door: Door) -> str:
    """Return the end of a message about an unknown option, such as ``; did you mean --keep?``; empty without a guess.

    The guesses, in this order: the option has no flag; other verbs have it; a name of this verb is spelled alike; a
    name of any verb is spelled nearly the same.

    Args:
        name: the unknown name without a prefix such as ``--`` or ``HYDRACTL_``; ``-`` and ``_`` count as the same.
        verb: the verb; None if the option was given to all verbs.
        door: the way in which it was given, e.g. on the command line.
    """
    option_name = name.replace("_", "-").lower()

    # The option exists, but it has no flag, or another verb has it.
    if verb is not None:
        flagless = [option.flag for option in options_of_verb(verb) if option.flagless]
        if door is COMMAND_LINE and f"--{option_name}" in flagless:
            return "; it is a key of a recipe or hydra.yaml"
        others = door.verbs_with(option_name)
        if others:
            return f"; see {others}"

    # A similar name exists, in this verb or, more alike (0.8 of 1 instead of 0.6), in others.
    written = door.names(verb)
    of_any_verb = door.names(None)

    def of_others(near: str) -> str:
        """Return how the option is written, and which verbs have it."""
        return f"{of_any_verb[near]} of {door.verbs_with(near)}"

    meant = did_you_mean(option_name, written, written.__getitem__)
    return meant or did_you_mean(option_name, of_any_verb, of_others, cutoff=0.8)


def about_word(word: str, verb: str | None) -> str:
    """Return the end of a message about an unknown word of the command line, with a guess; empty without a guess.

    Args:
        word: a flag, or what stands where a verb is expected.
        verb: the verb that the flag was given to, or ``--info``; None if it was given to the program itself.
    """
    # The word stands where a verb is expected.
    if word in GONE_VERBS:
        return f"; it is gone: {GONE_VERBS[word]}"
    if not word.startswith("-"):
        return did_you_mean(word, [*VERBS, "--info", "--version"])

    # The word is a flag. After a verb: an option of this verb or of others, or "help", which is not among the options.
    name = word.removeprefix("--")
    if verb in VERBS:
        return about_option(name, verb, COMMAND_LINE) or did_you_mean(name, ["help"], _flag)

    # Without a verb, or after --info: a few options of the program itself, else the verbs that have such a flag.
    meant = did_you_mean(name, _BESIDE_VERBS[verb], _flag)
    if meant:
        return meant
    verbs_with_it = COMMAND_LINE.verbs_with(name)
    if verbs_with_it:
        return f"; see {verbs_with_it}"
    return ""


def about_key_of_file(key: str) -> str:
    """Return the end of a message about an unknown key at the top of a file of options: an option or a verb."""
    if key in GONE_VERBS:
        return f"; it is gone: {GONE_VERBS[key]}"
    written = {verb: repr(verb) for verb in VERBS}
    written |= YAML_FILE.names(None)
    return did_you_mean(key.replace("_", "-").lower(), written, written.__getitem__)
