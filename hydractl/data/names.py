"""Class names and templates of prompts: from a file (one a line, or a JSON list), or built in by name."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from hydractl.data.label_sets import LABEL_SETS, SCHEME, label_set
from hydractl.errors import InputError, UsageError
from hydractl.jsonio import parse_json, shown

PROMPT_SETS = ("openai-imagenet", "simple-imagenet")
"""Sets of templates that can be named: the 80 that CLIP was published with for ImageNet, and 7 of them."""

_PLACE = re.compile(r"\{label\}|\{\}")


def read_labels(text: str, option: str = "--labels") -> list[str]:
    """The class names that an option asks for.

    Args:
        text: a file, or the name of one of :data:`hydractl.data.label_sets.LABEL_SETS`; where both are there, the list
            is meant by ``builtin:NAME`` and the file by ``./NAME``.
        option: for messages.

    Raises:
        InputError: for a file that cannot be read, has no names, or has one twice.
        UsageError: for a name that is both, or ``builtin:`` and none of the lists.
    """
    if _is_built_in(text, LABEL_SETS, f"{option} {text}"):
        return list(label_set(text).labels)
    if not os.path.lexists(Path(text).expanduser()) and not Path(text).suffix:
        near = difflib.get_close_matches(text, LABEL_SETS, n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise InputError(
            f"{option} {text}: neither a file nor a list of class names",
            hint=f"{meant}lists that are built in: {', '.join(LABEL_SETS)}",
        )
    return read_names(text, option)


def read_prompts(texts: Sequence[str], option: str = "--prompt") -> list[str]:
    """The templates that an option asks for, in the order given.

    Args:
        texts: each a template (with ``{label}`` or ``{}`` where the name goes), the name of one of
            :data:`PROMPT_SETS`, or a file with a template on each line or a JSON list of them. A text that is none of
            these stays as it is: what makes prompts refuses it.
        option: for messages.

    Raises:
        InputError: for a file that cannot be read or has no templates.
        UsageError: for a name that is both a set and a file, or ``builtin:`` and none of the sets.
    """
    found: list[str] = []
    for text in texts:
        where = f"{option} {text}"
        if _PLACE.search(text):
            found.append(text)
        elif _is_built_in(text, PROMPT_SETS, where):
            from hydractl.families.imagenet import templates

            found += templates(text.removeprefix(SCHEME))
        elif os.path.isfile(Path(text).expanduser()):
            found += _read_lines(text, where, "template", "templates")
        else:
            found.append(text)
    return found


def _is_built_in(text: str, known: Sequence[str], where: str) -> bool:
    if text.startswith(SCHEME):
        if text.removeprefix(SCHEME) not in known:
            raise UsageError(f"{where}: nothing of that name is built in", hint=f"there are: {', '.join(known)}")
        return True
    if text not in known:
        return False
    if os.path.lexists(text):
        raise UsageError(
            f"{where} is built in, and a file here has the same name", hint=f"write {SCHEME}{text}, or ./{text}"
        )
    return True


def read_names(path: str, option: str) -> list[str]:
    """The class names of a file, in its order.

    Args:
        path: a ``.json`` file with a list of strings, or a text file (UTF-8) with a name on each line; blank lines and
            spaces around names do not count.
        option: what named the file, for messages.

    Raises:
        InputError: for a file that cannot be read, has no names, or has one twice.
    """
    return _read_lines(path, f"{option} {path}", "class name", "class names")


def _read_lines(path: str, where: str, one: str, many: str) -> list[str]:
    try:
        content = Path(path).expanduser().read_bytes()
    except OSError as error:
        raise InputError(f"{where}: cannot read the file: {error.strerror}") from error
    if path.lower().endswith(".json"):
        document = parse_json(content, where)
        if not isinstance(document, list) or not all(isinstance(name, str) for name in document):
            raise InputError(f"{where}: not a JSON list of names but {shown(document)}")
        names = [name.strip() for name in document]
    else:
        try:
            names = [line.strip() for line in content.decode("utf-8-sig").split("\n") if line.strip()]
        except UnicodeDecodeError as error:
            raise InputError(f"{where}: not UTF-8 text (byte {error.start})", hint="save the file as UTF-8") from error
    if not names or not all(names):
        raise InputError(f"{where}: {f'an empty {one}' if names else f'no {many} in the file'}")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"{where}: {many} given more than once", problems=[shown(name) for name in twice])
    return names
