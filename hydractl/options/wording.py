"""Messages name options by their flags. Here they are told in the words of whoever gave the values.

On the command line a value that no flag gave is followed by its source. A Python program reads its own arguments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hydractl.expressions.data_sets import OodSet
from hydractl.options.call import Call
from hydractl.options.option import Option

_COMMAND = "hydractl "
"""The text after this in a message is a command to type, whose flags stay as they are."""
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
_MODEL = re.compile(r"\bMODEL(?=s?\b)")
_NOT_WITHIN_A_VALUE = r"(?![\w./?&=-])"
# Samples in memory: the flag, the name of the set, "memory:", the argument, and the key in a mapping.
_IN_MEMORY = re.compile(
    rf"(?:--[a-z-]+ (?:[\w.+-]+ )?)?memory:([a-z_]+)(?:\.([\w.+-]+(?::near|:far)?))?{_NOT_WITHIN_A_VALUE}"
)


def with_sources(call: Call, text: str) -> str:
    """Return a message with the source behind each value that no flag gave: ``--data x (from hydra.yaml:data)``.

    Somebody who reads that ``--data x`` is no data set, and did not type it, has to know where it comes from.

    Args:
        call: the call of the verb.
        text: the message.
    """
    for option in call.declared.options:
        # Flags were typed, and defaults are not of the user. Numbers and switches are not looked for in messages.
        source = call.sources[option.name]
        if source == "flag" or source.startswith("default") or option.type in (bool, int, float):
            continue
        for value in _items(option, call.values[option.name]):
            # How the message may name the value. A MODEL is named by its text alone. A data set NAME:GROUP=SPEC may
            # also be named by NAME and SPEC.
            phrases = [str(value) if option.label == "MODEL" else f"{option.flag} {value}"]
            if isinstance(value, OodSet):
                phrases.append(f"{option.flag} {value.name} {value.spec}")
            for phrase in phrases:
                text = _with_words(text, rf"(?<!\S){re.escape(phrase)}", f"{phrase} (from {source})", count=1)
    return text


def in_python(text: str, options: Sequence[Option] = (), arguments: Mapping[str, Any] | None = None) -> str:
    """Return a message in terms of Python: ``--data cal.npz`` becomes ``data='cal.npz'``, and MODEL ``model``.

    A command to type, from ``hydractl `` to the end of the message, stays as it is.

    Args:
        text: the message.
        options: the options of the verb; none for a function of Python alone.
        arguments: what the call gave, by name.
    """
    message, command, command_line = text.partition(_COMMAND)
    message = message.replace(" (flag)", "")

    # The order matters: a phrase of several words is replaced before the single flags in it.
    # 1. Samples in memory: "--ood svhn memory:ood.svhn" becomes "ood['svhn']".
    message = _IN_MEMORY.sub(lambda held: held[1] + (f"[{held[2]!r}]" if held[2] else ""), message)

    # 2. Flags with the values of this call.
    argument_by_flag = {}
    for option in options:
        argument_by_flag[option.flag] = option.name
        for value in _items(option, (arguments or {}).get(option.name)):
            if isinstance(value, str | int | float) and not isinstance(value, bool):
                message = _with_words(message, re.escape(f"{option.flag} {value}"), f"{option.name}={value!r}")

    # 3. The flags that are left, which may belong to another verb: "--ood-val" becomes "ood_val". Only hints name an
    # architecture, one that may be given.
    message = message.replace("--arch ", "arch=")
    message = _FLAG.sub(lambda flag: argument_by_flag.get(flag[0], flag[0][2:].replace("-", "_")), message)
    message = _MODEL.sub("model", message)
    return f"{message}{command}{command_line}"


def _items(option: Option, value: Any) -> Sequence[Any]:
    """Return the values of an option as a sequence: those of a list, or the one value."""
    return value if option.many and isinstance(value, list | tuple) else [value]


def _with_words(text: str, pattern: str, replacement: str, count: int = 0) -> str:
    """Return a text with other words for what a pattern matches, unless a longer path or query begins there.

    Args:
        text: the text.
        pattern: a regular expression of the words to replace.
        replacement: the other words.
        count: how often at most; 0: wherever they stand.
    """
    return re.sub(pattern + _NOT_WITHIN_A_VALUE, lambda _: replacement, text, count=count)
