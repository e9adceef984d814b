"""Which tar files a ``wds:`` SPEC names: one, those of a folder, or those of a name with braces."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator

from hydractl.data.files import printable
from hydractl.data.spec import Spec
from hydractl.errors import InputError, UsageError

_RANGE = re.compile(r"([0-9]+)\.\.([0-9]+)")
_BRACES = re.compile(r"\{([^{}]*)\}")
_MOST_SHARDS = 1_000_000


def shard_paths(spec: Spec) -> list[str]:
    """The tar files that a SPEC names, in order.

    Raises:
        UsageError: for a scheme of the network, or braces that cannot be expanded.
        InputError: for a folder without tar files, and listing all files that are missing.
    """
    if "://" in spec.path or spec.path.startswith("pipe:"):
        raise UsageError(f"{spec.where}: shards are read from local files only", hint="fetch them first")
    path = os.path.expanduser(spec.path)
    if os.path.isdir(path):
        found = sorted(entry.path for entry in os.scandir(path) if entry.name.lower().endswith(".tar"))
        if not found:
            raise InputError(f"{spec.where}: no .tar files in the folder")
        return found
    try:
        found = list(itertools.islice(expand_braces(path), _MOST_SHARDS + 1))
    except ValueError as error:
        raise UsageError(f"{spec.where}: {error}", hint="for example shard-{000..012}.tar or {train,val}.tar") from None
    if len(found) > _MOST_SHARDS:
        raise UsageError(f"{spec.where}: these are more than {_MOST_SHARDS:,} shards")
    missing = [shard for shard in found if not os.path.isfile(shard)]
    if missing:
        raise InputError(
            f"{spec.where}: {len(missing)} of {len(found)} shards do not exist",
            problems=[f"no file {printable(shard)}" for shard in missing],
        )
    return found


def expand_braces(text: str) -> Iterator[str]:
    """``a{08..10}b{x,y}`` -> ``a08bx``, ``a08by``, ``a09bx``, ...; a range keeps the width of its first number.

    Raises:
        ValueError: for braces that hold neither a range nor a list, or do not close.
    """
    parts: list[list[str]] = []
    end = 0
    for match in _BRACES.finditer(text):
        parts.append([text[end : match.start()]])
        parts.append(_alternatives(match[1]))
        end = match.end()
    parts.append([text[end:]])
    if any("{" in plain or "}" in plain for (plain,) in parts[::2]):
        raise ValueError("braces that do not match")
    return ("".join(chosen) for chosen in itertools.product(*parts))


def _alternatives(inside: str) -> list[str]:
    numbers = _RANGE.fullmatch(inside)
    if numbers is None:
        if "," not in inside:
            raise ValueError(f"{{{inside}}} is neither a range such as {{000..012}} nor a list such as {{a,b}}")
        return inside.split(",")
    first, last = int(numbers[1]), int(numbers[2])
    if last < first or last - first >= _MOST_SHARDS:
        raise ValueError(f"{{{inside}}} is no range upwards of at most {_MOST_SHARDS:,}")
    return [str(number).zfill(len(numbers[1])) for number in range(first, last + 1)]
