"""Reading a YAML file as plain text: its mapping, its lists, its lines, and never what YAML would guess of a value.

Every value stays text, read later by its option: YAML's own guesses (``no`` is false, ``1e-4`` is a text) never apply.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hydractl.errors import UsageError
from hydractl.settings.option import Raw

# A node of YAML's syntax tree: id "scalar", "sequence" or "mapping", value, tag, start_mark. The library is imported
# only when there is a file to read.
Node = Any


def value_of(node: Node, name: str, key: str) -> Raw | None:
    """A text, a list of texts or a mapping of texts; None for an empty value."""
    if is_null(node):
        return None
    if node.id == "sequence":
        return [text_of(item) for item in node.value]
    if node.id == "mapping":
        return {inner: text_of(item) for inner, item, _ in pairs(node, name, key, plain=True)}
    return text_of(node)


def text_of(node: Node) -> str:
    if node.id != "scalar":
        raise ValueError("is nested too deeply")
    return str(node.value)


def pairs(node: Node, name: str, where: str, *, plain: bool = False) -> Iterator[tuple[str, Node, int]]:
    """The entries of a mapping with the line of each key, the keys with ``_`` for ``-`` unless ``plain``.

    Raises:
        UsageError: if it is no mapping or has a key twice.
    """
    if node.id != "mapping":
        raise UsageError(f"{name} line {line_of(node)}: {where} must be a mapping of options to values")
    lines: dict[str, int] = {}
    for key_node, value in node.value:
        if key_node.id != "scalar":
            raise UsageError(f"{name} line {line_of(key_node)}: a key of {where} is not a text")
        key = key_node.value if plain else key_node.value.replace("-", "_")
        if key in lines:
            raise UsageError(f"{name} line {line_of(key_node)}: the key {key!r} is there already, on line {lines[key]}")
        lines[key] = line_of(key_node)
        yield key, value, lines[key]


def is_null(node: Node) -> bool:
    return bool(node.tag == "tag:yaml.org,2002:null")


def line_of(node: Node) -> int:
    return int(node.start_mark.line) + 1


def compose(path: Path, name: str, hint: str) -> Node | None:
    """The syntax tree; None for a file without content."""
    import yaml

    try:
        with open(path, encoding="utf-8") as handle:
            return yaml.compose(handle, Loader=yaml.SafeLoader)
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror}", hint=hint) from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not UTF-8 text (byte {error.start})") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" line {mark.line + 1}" if mark is not None else ""
        raise UsageError(f"{name}{line}: {', '.join(filter(None, (error.context, error.problem)))}") from None
    except yaml.reader.ReaderError as error:
        raise UsageError(f"{name}: a character that YAML does not allow at position {error.position}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{name} is not YAML: {error}") from None
    except RecursionError:
        raise UsageError(f"{name} is nested too deeply") from None
