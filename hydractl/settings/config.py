"""Reading ``hydra.yaml``: one mapping per verb, and keys that all verbs share.

Every value stays text, read later by its option: YAML's own guesses (``no`` is false, ``1e-4`` is a text) never apply.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydractl.errors import UsageError
from hydractl.settings.option import Raw, options_of
from hydractl.settings.verbs import SETTINGS

# A node of YAML's syntax tree: id "scalar", "sequence" or "mapping", value, tag, start_mark. The library is imported
# only when there is a file to read.
Node = Any

DEFAULT_NAME = "hydra.yaml"
_NOT_IN_FILES = ("config",)


@dataclass
class Config:
    """What a configuration file says, still as text.

    Attributes:
        name: the file as it was named.
        shared: the top-level keys.
        verbs: the keys of each verb's own mapping.
        problems: everything wrong with keys and shapes.
    """

    name: str
    shared: dict[str, Raw] = field(default_factory=dict)
    verbs: dict[str, dict[str, Raw]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def find_config(folder: Path, named: str | None) -> Config:
    """The configuration named by ``--config``, else ``hydra.yaml`` of the folder, else nothing.

    Raises:
        UsageError: if the file cannot be read, is no YAML, repeats a key or is not a mapping.
    """
    if named is None:
        path = folder / DEFAULT_NAME
        return read_config(path, DEFAULT_NAME) if path.exists() else Config(DEFAULT_NAME)
    return read_config(folder / named, named)


def read_config(path: Path, name: str) -> Config:
    """Read one configuration file; wrong keys are collected in ``problems``.

    Raises:
        UsageError: as in :func:`find_config`, with the line.
    """
    root = _compose(path, name)
    config = Config(name)
    if root is None:
        return config
    keys = shared_keys()
    for key, node, line in _pairs(root, name, "the file"):
        verb = key.replace("_", "-")
        if verb in SETTINGS:
            config.verbs[verb] = _verb_mapping(node, verb, config)
        elif key not in keys:
            config.problems.append(_unknown(key, f"{name} line {line}", [*SETTINGS, *keys], ""))
        else:
            _add(config.shared, key, node, config)
    return config


def shared_keys() -> list[str]:
    """Every key that may stand at the top: the options of all verbs."""
    found = [o.key for settings in SETTINGS.values() for o in options_of(settings)]
    return [key for key in dict.fromkeys(found) if key not in _NOT_IN_FILES]


def _verb_mapping(node: Node, verb: str, config: Config) -> dict[str, Raw]:
    found: dict[str, Raw] = {}
    if _is_null(node):
        return found
    known = [o.key for o in options_of(SETTINGS[verb]) if o.key not in _NOT_IN_FILES]
    for key, value, line in _pairs(node, config.name, verb):
        if key not in known:
            config.problems.append(_unknown(key, f"{config.name} line {line}", known, f" of {verb}"))
        else:
            _add(found, key, value, config)
    return found


def _add(found: dict[str, Raw], key: str, node: Node, config: Config) -> None:
    try:
        value = _value(node, config.name, key)
    except ValueError as error:
        config.problems.append(f"{config.name} line {_line(node)}: {key} {error}")
    else:
        if value is not None:
            found[key] = value


def _value(node: Node, name: str, key: str) -> Raw | None:
    """A text, a list of texts or a mapping of texts; None for an empty value."""
    if _is_null(node):
        return None
    if node.id == "sequence":
        return [_text(item) for item in node.value]
    if node.id == "mapping":
        return {inner: _text(item) for inner, item, _ in _pairs(node, name, key, plain=True)}
    return _text(node)


def _text(node: Node) -> str:
    if node.id != "scalar":
        raise ValueError("is nested too deeply")
    return str(node.value)


def _pairs(node: Node, name: str, where: str, *, plain: bool = False) -> Iterator[tuple[str, Node, int]]:
    """The entries of a mapping with the line of each key, the keys with ``_`` for ``-`` unless ``plain``.

    Raises:
        UsageError: if it is no mapping or has a key twice.
    """
    if node.id != "mapping":
        raise UsageError(f"{name} line {_line(node)}: {where} must be a mapping of options to values")
    lines: dict[str, int] = {}
    for key_node, value in node.value:
        if key_node.id != "scalar":
            raise UsageError(f"{name} line {_line(key_node)}: a key of {where} is not a text")
        key = key_node.value if plain else key_node.value.replace("-", "_")
        if key in lines:
            raise UsageError(f"{name} line {_line(key_node)}: the key {key!r} is there already, on line {lines[key]}")
        lines[key] = _line(key_node)
        yield key, value, lines[key]


def _unknown(key: str, place: str, known: Iterable[str], of: str) -> str:
    others = [verb for verb, settings in SETTINGS.items() if key in (o.key for o in options_of(settings))]
    near = difflib.get_close_matches(key, list(known), n=1)
    guess = f"; did you mean {near[0]!r}?" if near else ""
    if others and key not in _NOT_IN_FILES:
        guess = f"; it is one of {', '.join(others)}"
    return f"{place}: unknown key {key!r}{of}{guess}"


def _is_null(node: Node) -> bool:
    return bool(node.tag == "tag:yaml.org,2002:null")


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1


def _compose(path: Path, name: str) -> Node | None:
    """The syntax tree; None for a file without content."""
    import yaml

    try:
        with open(path, encoding="utf-8") as handle:
            return yaml.compose(handle, Loader=yaml.SafeLoader)
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror}", hint="check --config and HYDRACTL_CONFIG") from None
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
