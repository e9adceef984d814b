"""Messages of the verbs in terms of a Python program: arguments instead of flags."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hydractl.errors import HydraError
from hydractl.options.option import Option

_COMMAND = "hydractl "
"""The text after this in a message is a command to type, whose flags stay as they are."""
_FROM_THE_CALL = " (flag)"
_FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]*)")
_MODEL = re.compile(r"\bMODEL(?=s?\b)")
_NOT_WITHIN_A_VALUE = r"(?![\w./?&=-])"


class Wording:
    """Rewrites the messages of one call in terms of Python: ``--data cal.npz`` becomes ``data='cal.npz'``.

    Args:
        verb: the verb on the command line.
        function: the function that was called.
        options: the options of the verb.
        values: the values that the call gave, by argument.
    """

    def __init__(self, verb: str, function: str, options: Iterable[Option], values: Mapping[str, Any]) -> None:
        self._help = {f"hydractl {verb} --help": f"help(hydractl.{function})"}
        self._argument_by_flag: dict[str, str] = {}
        for option in options:
            self._argument_by_flag[option.flag] = option.name

        # By each text that a message may contain, e.g. ``--keep 3``, its form in Python, ``keep=3``. Texts are replaced
        # in this order, and those about samples in memory must be replaced first.
        self._python_by_text: dict[str, str] = {}
        for option in options:
            value = values.get(option.name)
            if option.takes_data:
                for key in value if isinstance(value, Mapping) else [""]:
                    self._python_by_text |= _texts_of_samples(option, key)
        for option in options:
            for value in _shown_values(option, values.get(option.name)):
                self._python_by_text[f"{option.flag} {value}"] = f"{option.name}={value!r}"

    def translate(self, error: HydraError) -> None:
        """Rewrite the message, the hint and the problems of an error in place."""
        error.message = self.said(error.message)
        error.args = (error.message,)
        error.problems = [self.said(problem) for problem in error.problems]
        if error.hint is not None:
            error.hint = self._help.get(error.hint) or self.said(error.hint)

    def said(self, text: str) -> str:
        """Return a message in terms of Python; a command to type at its end stays as it is."""
        # Only what comes before a command to type is rewritten.
        message, command, command_line = text.partition(_COMMAND)
        message = message.replace(_FROM_THE_CALL, "")

        # First flags with the values of this call, then the flags that are left, then the word MODEL.
        for text_of_option, text_in_python in self._python_by_text.items():
            pattern = re.escape(text_of_option) + _NOT_WITHIN_A_VALUE
            # Double the backslashes, because re.sub() treats them as escapes in a replacement.
            replacement = text_in_python.replace("\\", "\\\\")
            message = re.sub(pattern, replacement, message)
        message = _FLAG.sub(self._argument_for_flag, message)
        message = _MODEL.sub("model", message)
        return f"{message}{command}{command_line}"

    def _argument_for_flag(self, flag: re.Match[str]) -> str:
        """Return the name of the argument for a matched flag; the flag may belong to another verb."""
        argument = self._argument_by_flag.get(flag[0])
        if argument is not None:
            return argument
        return flag[1].replace("-", "_")


def _texts_of_samples(option: Option, key: str) -> dict[str, str]:
    """Return the texts by which messages name samples in memory, each with the Python form that replaces it.

    Args:
        option: the option of the argument.
        key: the key of the samples in a mapping, such as ``svhn`` or ``svhn:far``; empty if they are the argument.

    Returns:
        By text, ``data`` or ``ood['svhn']``. The text of the samples alone comes last, because the other texts contain
        it and must be replaced before.
    """
    argument, flag = option.name, option.flag
    if not key:
        spec = f"memory:{argument}"
        return {f"{flag} {spec}": argument, spec: argument}
    spec = f"memory:{argument}.{key}"
    element = f"{argument}[{key!r}]"
    set_name = key.partition(":")[0]
    return {
        f"{flag} {spec}": argument,
        f"{flag} {set_name} {spec}": element,
        spec: element,
    }


def _shown_values(option: Option, value: Any) -> list[str | float]:
    """Return the texts and numbers of an argument's value, which messages may show after its flag."""
    items: Sequence[Any] = [value]
    if option.many and isinstance(value, list | tuple):
        items = value
    shown: list[str | float] = []
    for item in items:
        is_switch = isinstance(item, bool)  # bool is a subclass of int
        if isinstance(item, str | int | float) and not is_switch:
            shown.append(item)
    return shown
