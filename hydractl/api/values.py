"""Python values as the options of a verb read them: a text is what the command line would be given."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hydractl.data.memory import HELD, Held
from hydractl.errors import InputError, UsageError
from hydractl.jsonio import json_bytes
from hydractl.settings.option import Option, Raw


def _is_data(option: Option) -> bool:
    return "SPEC" in (option.metavar or "")


@contextlib.contextmanager
def held_data(values: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """The SPEC of each of some data sets, by name, as long as this lasts.

    Args:
        values: a SPEC, samples, or ``(samples, labels)`` each.
    """
    sets = {name: value for name, value in values.items() if not isinstance(value, str | os.PathLike)}
    before = HELD.set({**HELD.get({}), **{name: _samples(value) for name, value in sets.items()}})
    try:
        yield {name: f"memory:{name}" if name in sets else os.fspath(value) for name, value in values.items()}
    finally:
        HELD.reset(before)


def _samples(value: Any) -> Held:
    return value if isinstance(value, tuple) and len(value) == 2 else (value, None)


def data_in(options: Mapping[str, Option], values: Mapping[str, Any]) -> dict[str, Any]:
    """Pick out the values that are data sets, each under a name of its own: ``data``, ``ood.NAME``."""
    found = {}
    for name, value in values.items():
        if _is_data(options[name]) and isinstance(value, Mapping):
            found.update({f"{name}.{one}": data for one, data in value.items()})
        elif _is_data(options[name]) and not options[name].names:
            found[name] = value
    return found


def raw(option: Option, value: Any, specs: Mapping[str, str], folder: Path) -> Raw:
    """One value as text, to be read by its option.

    Args:
        option: reads it.
        value: of any type; a document, or a list where one text is wanted, becomes a JSON file.
        specs: of the data sets, by the names of :func:`data_in`.
        folder: for such files.
    """
    if option.name in specs:
        return specs[option.name]
    if isinstance(value, bool) and option.type is bool:
        return value
    if _is_data(option) and isinstance(value, Mapping):
        named = {name: specs[f"{option.name}.{name}"] for name in value}
        return named if option.names else list(named.values())
    if not option.many and isinstance(value, Mapping | list | tuple):
        path = folder / f"{option.name}.json"
        try:
            path.write_bytes(json_bytes(value))
        except (TypeError, ValueError) as error:
            raise InputError(f"{option.name} is no JSON document: {error}") from None
        return str(path)
    values = list(value) if option.many and isinstance(value, list | tuple) else [value]
    for item in values:
        if isinstance(item, Mapping | list | tuple) or bool(getattr(item, "ndim", 0)):
            raise UsageError(f"{option.name} takes no {type(item).__name__}")
    return [str(item) for item in values] if option.many else str(value)
