"""JSON as hydractl reads and writes it: parsed strictly, written canonically, shown without control characters."""

from __future__ import annotations

import errno
import functools
import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from hydractl.errors import InputError, near_path

_HALF = re.compile("[\ud800-\udfff]")

# Control characters (C0, DEL, C1), which a terminal may obey; marks of the direction of writing and line separators,
# which may deceive a reader; lone surrogates, which cannot be encoded; two characters that no XML may hold.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")

_DEEPEST = 64
"""The deepest nesting of lists and objects that is read; indentation would make deeper documents huge when written."""


MOST_BYTES = 1 << 28
"""The most bytes of a file that is read whole: an image, a list, or a document."""


def read_whole(path: str | Path) -> bytes:
    """Return the content of a file.

    Raises:
        OSError: it cannot be read, or is longer than any file of its kind; that is found before memory is set aside.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= MOST_BYTES:
            # A device has the size 0, and may never end: read one byte more than is allowed, and refuse it below.
            content = file.read(MOST_BYTES + 1) if size == 0 else file.read()
            if len(content) <= MOST_BYTES:
                return content
    raise OSError(errno.EFBIG, f"it has more than {MOST_BYTES >> 20} MiB")


def clean(text: str) -> str:
    """Return a text as one line that is safe to show: control characters are spelled out, as in ``\\x1b``."""
    return _UNSAFE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def shown(value: Any, limit: int = 60) -> str:
    """Return a value of an untrusted file for a message: escaped, and cut if it is long."""
    try:
        text = repr(value)
    except RecursionError:
        text = f"a nested {type(value).__name__}"
    if len(text) <= limit:
        return text
    return text[: limit - 3] + "..."


def parse_json(text: str | bytes, origin: str) -> Any:
    """Return the value of a JSON text, parsed strictly, because files may be broken or made to do harm.

    Refused are duplicate keys, NaN, Infinity, numbers too large for a float, half characters and very deep nesting.

    Raises:
        InputError: the text is not such a document; the message names ``origin`` and the position.
    """
    text = _decoded(text, origin)

    # json.loads() calls these for each object, constant and number.
    def object_of(pairs: list[tuple[str, Any]]) -> dict[str, object]:
        """Return the object with these keys and values; refuse a repeated key."""
        result: dict[str, object] = {}
        for key, value in pairs:
            if key in result:
                raise InputError(f"{origin} has the key {shown(key)} twice in one object")
            result[key] = value
        return result

    def refuse_constant(name: str) -> Any:
        """Refuse NaN and Infinity, which Python's parser accepts."""
        raise InputError(f"{origin} contains {name}, which is not a number in JSON")

    def finite_number(number: str) -> float:
        """Return a number; refuse a number so large that Python would read it as infinity."""
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
        # Only an escape can be half a character (a lone surrogate), which cannot be encoded, and so not be written.
        if "\\u" in text:
            json.dumps(document, ensure_ascii=False).encode("utf-8")
        if _is_deeper(document, _DEEPEST):
            raise RecursionError  # reported below, as the parser's own
        return document
    except json.JSONDecodeError as error:
        problem = error.msg.removesuffix(" at")
        raise InputError(f"{origin} is not JSON: {problem} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise InputError(f"{origin} is nested too deeply to be a hydractl file") from None
    except UnicodeEncodeError:
        raise InputError(f"{origin} contains half a character (an unpaired surrogate)") from None
    except ValueError as error:  # an integer of thousands of digits
        raise InputError(f"{origin} cannot be read: {error}") from None


def _decoded(text: str | bytes, origin: str) -> str:
    """Return the text of a JSON document, which must be UTF-8 without a byte order mark, and not empty.

    Raises:
        InputError: the text is not like that.
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


def _is_deeper(value: Any, most: int) -> bool:
    """Return whether lists and objects are nested more than ``most`` levels deep."""
    if not isinstance(value, (dict, list)):
        return False
    if most == 0:
        return True
    inner = value.values() if isinstance(value, dict) else value
    return any(_is_deeper(item, most - 1) for item in inner)


@dataclass(frozen=True)
class Document:
    """A JSON document that an option names, or that a Python program holds.

    Attributes:
        text: the path of its file, ``-`` for standard input; the name of a document in memory.
        held: the content of a document in memory, None for a file.
    """

    text: str
    held: Any = None

    @classmethod
    def of_option(cls, option: str, text: str) -> Self:
        """Return the document of a file; nothing is read yet."""
        return cls(text)

    def __str__(self) -> str:
        return self.text

    @functools.cached_property
    def content(self) -> Any:
        """The content, parsed strictly; InputError if the file cannot be read, or is not JSON."""
        return read_json_file(self.text) if self.held is None else self.held


def read_json_file(path: str | Path) -> Any:
    """Return the content of a JSON file, parsed strictly (see :func:`parse_json`).

    Args:
        path: the file; ``-`` for standard input.

    Raises:
        InputError: the file cannot be read, or is not JSON.
    """
    import sys

    # Not JSON but a model, beside which the results of a study may lie: say where they are.
    is_folder = os.path.isdir(path)
    if is_folder or str(path).endswith((".st", ".safetensors")):
        study = os.path.join(path if is_folder else os.path.dirname(path), "study.json")
        hint = f"hydractl --info {path} says what it holds"
        if os.path.exists(study):
            hint = f"the results of its study: {study}"
        raise InputError(f"{path} is a {'folder' if is_folder else 'file of weights'}, not JSON", hint=hint)
    # Standard input, or a file.
    if str(path) == "-":
        if sys.stdin is None:
            raise InputError("standard input is closed")
        return parse_json(sys.stdin.buffer.read(), "standard input")
    try:
        return parse_json(read_whole(path), str(path))
    except FileNotFoundError:
        raise InputError(f"no such file: {path}", hint=near_path(path)) from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


def canonical_json(document: Any) -> str:
    """Return a document as JSON in a unique spelling: sorted keys, no spaces, no NaN."""
    return json.dumps(
        document,
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
    )


def differences(there: Mapping[str, object], now: Mapping[str, object], where: str) -> list[str]:
    """Return a line for each setting in which an earlier run and this one differ: ``lr: 0.1 in the journal, 0.2 now``.

    Args:
        there: the settings of the earlier run, which may come from an untrusted file.
        now: the settings of this run.
        where: where the earlier settings are, for the lines, e.g. ``in the journal``.
    """
    # The keys of this run in their order, then those that only the earlier run has.
    lines = []
    keys_only_there = [key for key in there if key not in now]
    for key in (*now, *keys_only_there):
        in_both = key in there and key in now
        # As JSON, so that a tuple equals a list, and the order of keys does not matter.
        if in_both and canonical_json(there[key]) == canonical_json(now[key]):
            continue
        before = _shown_value(there, key)
        after = _shown_value(now, key)
        if after == before:  # long values may differ only in the part that is cut off
            after = "another value"
        name = key
        if key not in now:  # the key comes from an untrusted file, so escape it
            name = shown(key)
        lines.append(f"{name}: {before} {where}, {after} now")
    return lines


def _shown_value(settings: Mapping[str, object], key: str) -> str:
    """Return a value in the form of a message; ``nothing`` if there is no value."""
    if key not in settings:
        return "nothing"
    return shown(settings[key])


def json_list(values: Iterable[str] | None) -> list[str] | None:
    """Return texts as a list, as JSON has them; None where there are none to give."""
    if values is None:
        return None
    return list(values)


def json_bytes(document: Any) -> bytes:
    """Return a JSON document as the bytes hydractl writes: UTF-8, two spaces, keys in the given order, no NaN.

    A file name that is not UTF-8 holds half characters, which no reader of JSON accepts. They become the text
    ``\\udcff``, with a real backslash.
    """
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    written = _HALF.sub(_spelled, text)
    return f"{written}\n".encode()


def _spelled(half: re.Match[str]) -> str:
    """Return half a character as the JSON for a backslash, ``u`` and its code; JSON writes the backslash twice."""
    code = f"{ord(half[0]):04x}"
    return f"\\\\u{code}"
