"""Messages of the verbs in the words of a Python program: arguments instead of flags."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hydractl.errors import HydraError
from hydractl.jsonio import Held
from hydractl.settings.option import Option

_COMMAND = "hydractl "
"""What follows it in a message is a command to type, whose flags stay flags."""
_FROM_THE_CALL = " (flag)"
_FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]*)")
_MODEL = re.compile(r"\bMODEL(?=s?\b)")
_NOT_WITHIN_A_VALUE = r"(?![\w./?&=-])"


class Wording:
    """Puts the messages of one call into Python's words: ``--data cal.npz`` becomes ``data='cal.npz'``.

    Args:
        verb: the verb on the command line.
        function: the function that was called.
        options: the options of the verb.
        values: what the call gave, by argument.
        data: its data sets as the options hold them, by how the program calls them: ``data``, ``ood.svhn``.
    """

    def __init__(
        self, verb: str, function: str, options: Iterable[Option], values: Mapping[str, Any], data: Mapping[str, str]
    ) -> None:
        self._help = {f"hydractl {verb} --help": f"help(hydractl.{function})"}
        self._argument_by_flag: dict[str, str] = {}
        flag_by_argument: dict[str, str] = {}
        for option in options:
            self._argument_by_flag[option.flag] = option.name
            flag_by_argument[option.name] = option.flag

        # The words of Python for each text that a message may say; samples in memory first, as they are replaced first.
        self._python_by_text: dict[str, str] = {}
        for called, spec in data.items():
            if isinstance(spec, Held):
                argument = called.partition(".")[0]
                flag = flag_by_argument.get(argument, f"--{argument}")
                self._python_by_text |= _texts_of_samples(called, flag, spec)
        for option in options:
            for value in _shown_values(option, values.get(option.name)):
                self._python_by_text[f"{option.flag} {value}"] = f"{option.name}={value!r}"

    def translate(self, error: HydraError) -> None:
        """Change the message, the hint and the problems of an error."""
        error.message = self.said(error.message)
        error.args = (error.message,)
        error.problems = [self.said(problem) for problem in error.problems]
        if error.hint is not None:
            error.hint = self._help.get(error.hint) or self.said(error.hint)

    def said(self, text: str) -> str:
        """Return a message in Python's words; a command to type in it stays as it is."""
        words, command, rest = text.partition(_COMMAND)
        words = words.replace(_FROM_THE_CALL, "")
        for flag_and_value, argument in self._python_by_text.items():
            pattern = re.escape(flag_and_value) + _NOT_WITHIN_A_VALUE
            replacement = argument.replace("\\", "\\\\")  # no pattern, but one in which backslashes mean something
            words = re.sub(pattern, replacement, words)
        words = _FLAG.sub(self._argument_for_flag, words)
        words = _MODEL.sub("model", words)
        return f"{words}{command}{rest}"

    def _argument_for_flag(self, flag: re.Match[str]) -> str:
        """Return the name of the argument for a flag, also for one of another verb."""
        argument = self._argument_by_flag.get(flag[0])
        if argument is not None:
            return argument
        return flag[1].replace("-", "_")


def _texts_of_samples(called: str, flag: str, spec: str) -> dict[str, str]:
    """Return what messages may say of samples in memory, each with the argument that they came by.

    Args:
        called: the argument, ``data``; or with the name of one set among several, ``ood.svhn`` or ``ood.svhn:far``.
        flag: the flag of the argument.
        spec: the text that stands for the samples in messages.

    Returns:
        ``data`` or ``ood['svhn']``, by text. The text alone is last, as the others hold it, and are replaced before.
    """
    argument, _, key = called.partition(".")
    if not key:
        return {f"{flag} {spec}": argument, spec: argument}
    item = f"{argument}[{key!r}]"
    set_name = key.partition(":")[0]
    return {
        f"{flag} {spec}": argument,
        f"{flag} {set_name} {spec}": item,
        spec: item,
    }


def _shown_values(option: Option, value: Any) -> list[str | float]:
    """Return the texts and numbers of an argument, which messages may show behind its flag; no samples in memory."""
    items: Sequence[Any] = [value]
    if option.many and isinstance(value, list | tuple):
        items = value
    shown: list[str | float] = []
    for item in items:
        is_switch = isinstance(item, bool)  # in Python an int too
        if isinstance(item, str | int | float) and not is_switch:
            shown.append(item)
    return shown
