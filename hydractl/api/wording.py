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
        self._names: dict[str, str] = {}  # of arguments, by flag
        flags: dict[str, str] = {}  # by name of the argument
        for option in options:
            self._names[option.flag] = option.name
            flags[option.name] = option.flag

        # What messages say of a value, and what the call says.
        self._values: dict[str, str] = {}
        for option in options:
            for value in _shown_values(option, values.get(option.name)):
                self._values[f"{option.flag} {value}"] = f"{option.name}={value!r}"

        # What they say of samples in memory.
        self._held: dict[str, str] = {}
        for called, spec in data.items():
            if not isinstance(spec, Held):
                continue
            name, _, key = called.partition(".")
            flag = flags.get(name, f"--{name}")
            held = name
            self._held[f"{flag} {spec}"] = name
            if key:
                held = f"{name}[{key!r}]"
                set_name = key.partition(":")[0]
                self._held[f"{flag} {set_name} {spec}"] = held
            self._held[spec] = held  # last: the texts before hold this one

    def translate(self, error: HydraError) -> None:
        """Change the message, the hint and the problems of an error."""
        error.message = self.said(error.message)
        error.args = (error.message,)
        error.problems = [self.said(problem) for problem in error.problems]
        if error.hint is not None:
            error.hint = self._help.get(error.hint) or self.said(error.hint)

    def said(self, text: str) -> str:
        """Return a message in Python's words."""
        words, command, rest = text.partition(_COMMAND)
        words = words.replace(_FROM_THE_CALL, "")
        for flag_and_value, argument in {**self._held, **self._values}.items():
            literal = argument.replace("\\", "\\\\")  # a replacement is no pattern, but obeys backslashes
            words = re.sub(re.escape(flag_and_value) + _NOT_WITHIN_A_VALUE, literal, words)
        words = _FLAG.sub(self._argument, words)
        words = _MODEL.sub("model", words)
        return f"{words}{command}{rest}"

    def _argument(self, flag: re.Match[str]) -> str:
        """Return the name of the argument for a flag, also for one of another verb."""
        return self._names.get(flag[0]) or flag[1].replace("-", "_")


def _shown_values(option: Option, value: Any) -> list[str | float]:
    """Return the texts and numbers of an argument, which messages may show behind its flag; no samples in memory."""
    items: Sequence[Any] = [value]
    if option.many and isinstance(value, list | tuple):
        items = value
    shown: list[str | float] = []
    for item in items:
        if isinstance(item, str | int | float) and not isinstance(item, bool):
            shown.append(item)
    return shown
