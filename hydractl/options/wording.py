"""Messages name options by their flags. Here they are told in the words of whoever gave the values.

On the command line a value that no flag gave is followed by its source. A Python program reads its own arguments.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hydractl.options.call import Call
from hydractl.options.option import Option

_COMMAND = "hydractl "
"""The text after this in a message is a command to type, whose flags stay as they are."""
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
_MODEL = re.compile(r"\bMODEL(?=s?\b)")
# Samples in memory: the flag, the name of the set, "memory:", the argument, and the key in a mapping.
_IN_MEMORY = re.compile(r"(?:--[a-z-]+ (?:[\w.+-]+ )?)?memory:([a-z_]+)(?:\.([\w.+-]+(?::near|:far)?))?(?![\w./?&=-])")


def with_sources(call: Call, text: str) -> str:
    """Return a message with the sources of the values in it that no flag gave: ``... (--data from hydra.yaml:data)``.

    Somebody who reads that ``--data x`` is no data set, and did not type it, has to know where it comes from.

    Args:
        call: the call of the verb.
        text: the message.
    """
    sources = []
    for option in call.declared.options:
        # Flags were typed, and defaults are not of the user. Numbers and switches are not looked for in messages.
        source = call.sources[option.name]
        value = call.values[option.name]
        is_typed_or_default = source == "flag" or not call.rank(option.name)  # rank 0 is a default
        if is_typed_or_default or value is None or option.type in (bool, int, float):
            continue
        values = value if option.many else [value]
        # A data set NAME:GROUP=SPEC is named by its SPEC.
        if any(str(getattr(item, "spec", item)) in text for item in values):
            sources.append(f"{option.label} from {source}")
    return f"{text} ({', '.join(sources)})" if sources else text


def in_python(text: str, options: Sequence[Option] = ()) -> str:
    """Return a message in terms of Python: ``--ood-val`` becomes ``ood_val``, and MODEL ``model``.

    A command to type, from ``hydractl `` to the end of the message, stays as it is.

    Args:
        text: the message.
        options: the options of the verb; none for a function of Python alone.
    """
    message, command, command_line = text.partition(_COMMAND)
    message = message.replace(" (flag)", "")

    # Samples in memory: "--ood svhn memory:ood.svhn" becomes "ood['svhn']".
    message = _IN_MEMORY.sub(lambda held: held[1] + (f"[{held[2]!r}]" if held[2] else ""), message)

    # The flags, which may belong to another verb. Only hints name an architecture, one that may be given.
    argument_by_flag = {option.flag: option.name for option in options}
    message = message.replace("--arch ", "arch=")
    message = _FLAG.sub(lambda flag: argument_by_flag.get(flag[0], flag[0][2:].replace("-", "_")), message)
    message = _MODEL.sub("model", message)
    return f"{message}{command}{command_line}"
