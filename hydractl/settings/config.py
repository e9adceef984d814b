"""Reading ``hydra.yaml``: one mapping per verb, and keys that all verbs share.

Keys that begin with ``x-`` are for whoever else reads the file, such as the script of a study.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from hydractl.settings.option import Raw, options_of
from hydractl.settings.verbs import SETTINGS
from hydractl.settings.yaml_text import Node, compose, is_null, line_of, pairs, value_of

DEFAULT_NAME = "hydra.yaml"
FOREIGN = "x_"  # as "x-" reads here
_NOT_IN_FILES = ("config",)


@dataclass
class Config:
    """Contents of a configuration file, as unparsed text.

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
    root = compose(path, name, "check --config and HYDRACTL_CONFIG")
    config = Config(name)
    if root is None:
        return config
    keys = shared_keys()
    for key, node, line in pairs(root, name, "the file"):
        verb = key.replace("_", "-")
        if key.startswith(FOREIGN):
            continue
        if verb in SETTINGS:
            config.verbs[verb] = _verb_mapping(node, verb, config)
        elif key not in keys:
            config.problems.append(_unknown(key, f"{name} line {line}", [*SETTINGS, *keys], ""))
        else:
            _add(config.shared, key, node, config)
    return config


def shared_keys() -> list[str]:
    """Every key allowed at the top level: the options of all verbs."""
    found = [o.key for settings in SETTINGS.values() for o in options_of(settings)]
    return [key for key in dict.fromkeys(found) if key not in _NOT_IN_FILES]


def _verb_mapping(node: Node, verb: str, config: Config) -> dict[str, Raw]:
    found: dict[str, Raw] = {}
    if is_null(node):
        return found
    known = [o.key for o in options_of(SETTINGS[verb]) if o.key not in _NOT_IN_FILES]
    for key, value, line in pairs(node, config.name, verb):
        if key not in known:
            config.problems.append(_unknown(key, f"{config.name} line {line}", known, f" of {verb}"))
        else:
            _add(found, key, value, config)
    return found


def _add(found: dict[str, Raw], key: str, node: Node, config: Config) -> None:
    try:
        value = value_of(node, config.name, key)
    except ValueError as error:
        config.problems.append(f"{config.name} line {line_of(node)}: {key} {error}")
    else:
        if value is not None:
            found[key] = value


def _unknown(key: str, place: str, known: Iterable[str], of: str) -> str:
    others = [verb for verb, settings in SETTINGS.items() if key in (o.key for o in options_of(settings))]
    near = difflib.get_close_matches(key, list(known), n=1)
    guess = f"; did you mean {near[0]!r}?" if near else ""
    if others and key not in _NOT_IN_FILES:
        guess = f"; it is one of {', '.join(others)}"
    return f"{place}: unknown key {key!r}{of}{guess}"
