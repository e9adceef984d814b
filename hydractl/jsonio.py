"""JSON as hydractl reads and writes it: strictly parsed, canonically written, shown without a control character."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from hydractl.errors import InputError

_HALF = re.compile("[\ud800-\udfff]")

_DEEPEST = 64
"""Lists and objects in each other: written with a line for each value, deeper ones grow a thousandfold."""


def shown(value: Any, limit: int = 60) -> str:
    """Return a value of an untrusted file as it stands in a message: escaped, and cut where it is long."""
    try:
        text = repr(value)
    except RecursionError:
        text = f"a nested {type(value).__name__}"
    if len(text) <= limit:
        return text
    return text[: limit - 3] + "..."


def parse_json(text: str | bytes, origin: str) -> Any:
    """Return a JSON document, parsed strictly: no duplicate keys, NaN, Infinity, half characters or absurd nesting.

    Raises:
        InputError: naming ``origin`` and the place.
    """
    text = _decoded(text, origin)

    def object_of(pairs: list[tuple[str, Any]]) -> dict[str, object]:
        """Return the object with these keys and values; refuse a key that is there twice."""
        result: dict[str, object] = {}
        for key, value in pairs:
            if key in result:
                raise InputError(f"{origin} has the key {shown(key)} twice in one object")
            result[key] = value
        return result

    def refuse_constant(name: str) -> Any:
        """Refuse NaN and Infinity, which Python would read."""
        raise InputError(f"{origin} contains {name}, which is not a number in JSON")

    def finite_number(number: str) -> float:
        """Return a number; refuse one that Python would round to infinity."""
        value = float(number)
        if math.isinf(value):
            raise InputError(f"{origin} contains {number[:20]}, which is too large for a number")
        return value

    try:
        document = json.loads(
            text,
            object_pairs_hook=object_of,
            parse_constant=refuse_constant,
            parse_float=finite_number,
        )
        if "\\u" in text:  # only an escape can stand for half a character, which could never be written again
            json.dumps(document, ensure_ascii=False).encode("utf-8")
        if _is_deeper(document, _DEEPEST):
            raise RecursionError
        return document
    except json.JSONDecodeError as error:
        problem = error.msg.removesuffix(" at")
        raise InputError(f"{origin} is not JSON: {problem} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise InputError(f"{origin} is nested too deeply to be a hydractl file") from None
    except UnicodeEncodeError:
        raise InputError(f"{origin} contains half a character (an unpaired surrogate)") from None
    except ValueError as error:  # integers of thousands of digits
        raise InputError(f"{origin} cannot be read: {error}") from None


def _decoded(text: str | bytes, origin: str) -> str:
    """Return the text of a JSON document, which has to be UTF-8 without a byte order mark, and not empty.

    Raises:
        InputError: it is not.
    """
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{origin} is not UTF-8 text (byte {error.start})") from None
    if text.startswith("\ufeff"):
        raise InputError(f"{origin} starts with a byte order mark", hint="save it as UTF-8 without BOM")
    if not text.strip():
        raise InputError(f"{origin} is empty")
    return text


def _is_deeper(document: Any, most: int) -> bool:
    """Return whether lists and objects are nested more than so many levels deep.

    Level by level rather than by recursion, which the same nesting could exhaust.
    """
    level = [document]
    for _ in range(most + 1):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner += value.values()
            elif isinstance(value, list):
                inner += value
        level = [value for value in inner if isinstance(value, (dict, list))]
        if not level:
            return False
    return True


class Held(str):
    """What a Python program gives to an option that takes a text on the command line: the object, under a name.

    It goes through the options as the text does that names a file, and whoever would open the file takes the object.

    Args:
        name: what messages and documents call it.
        value: the object.
    """

    value: Any

    def __new__(cls, name: str, value: Any) -> Self:
        held = super().__new__(cls, name)
        held.value = value
        return held

    def __getnewargs__(self) -> tuple[str, Any]:  # type: ignore[override]
        return str(self), self.value


def held_as(text: str, name: str) -> str:
    """Return a name that is made of a text, such as a SPEC with another setting, with the object that the text holds.

    Args:
        text: of an option.
        name: what it becomes.
    """
    if isinstance(text, Held):
        return type(text)(name, text.value)
    return name


class HeldDocument(Held):
    """A JSON document in the place of the path of a file; ``value`` is what the file would hold."""


def read_json_file(path: str | Path) -> Any:
    """Return the document in a JSON artefact, parsed strictly.

    Args:
        path: of the file; ``-`` for standard input, or a held document, which is returned as it is.

    Raises:
        InputError: it cannot be read, or is no JSON.
    """
    import sys

    if isinstance(path, HeldDocument):
        return path.value
    if str(path) == "-":
        if sys.stdin is None:
            raise InputError("standard input is closed")
        return parse_json(sys.stdin.buffer.read(), "standard input")
    try:
        return parse_json(Path(path).read_bytes(), str(path))
    except FileNotFoundError:
        raise InputError(f"no such file: {path}") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


def canonical_json(document: Any) -> str:
    """Return a document as JSON in its only spelling: sorted keys, no spaces, no NaN."""
    return json.dumps(
        document,
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
    )


def differences(there: Mapping[str, object], now: Mapping[str, object], where: str) -> list[str]:
    """Return a line for each setting in which an earlier run and this one do not agree.

    Args:
        there: the settings of the earlier run, which may come from an untrusted file.
        now: those of this run.
        where: what is said of an earlier value: ``in the journal``.
    """
    lines = []
    keys_gone = [key for key in there if key not in now]
    for key in (*now, *keys_gone):
        in_both = key in there and key in now
        if in_both and canonical_json(there[key]) == canonical_json(now[key]):
            continue
        before = _shown_value(there, key)
        after = _shown_value(now, key)
        if after == before:  # long values that differ where they are cut
            after = "another value"
        name = key
        if key not in now:  # of an untrusted file
            name = shown(key)
        lines.append(f"{name}: {before} {where}, {after} now")
    return lines


def _shown_value(settings: Mapping[str, object], key: str) -> str:
    """Return a value as a message shows it; ``nothing`` where there is none."""
    if key not in settings:
        return "nothing"
    return shown(settings[key])


def json_bytes(document: Any) -> bytes:
    """Return a JSON document as the bytes hydractl writes: UTF-8, two spaces, keys in the given order, no NaN.

    A file name that is not UTF-8 holds half characters: they are spelled as ``\\udcff``, for no reader takes them.
    """
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    written = _HALF.sub(_spelled, text)
    return f"{written}\n".encode()


def _spelled(half: re.Match[str]) -> str:
    """Return half a character spelled out behind a backslash, which JSON writes twice."""
    code = f"{ord(half[0]):04x}"
    return f"\\\\u{code}"
