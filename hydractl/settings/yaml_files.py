"""YAML files of options: ``hydra.yaml``, with a mapping per verb and keys that all share, and recipes of ``finetune``.

Every value stays text, read later by its option: YAML's own guesses (``no`` is false, ``1e-4`` is a text) never apply.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from hydractl.errors import UsageError, did_you_mean
from hydractl.settings.common import Common
from hydractl.settings.option import Raw, options_of
from hydractl.settings.suggestions import YAML_FILE, about_key_of_file, about_option
from hydractl.settings.verbs import SETTINGS

RECIPES = Path(__file__).resolve().parents[1] / "training" / "recipes"
DEFAULT_NAME = "hydra.yaml"
_FOREIGN = "x_"  # how "x-" reads here: keys for whoever else reads the file, such as the script of a study
_ABOUT = "about"  # the key of a recipe that is no option: one sentence on where it comes from

# A node of YAML's syntax tree: id "scalar", "sequence" or "mapping", value, tag, start_mark. The library is imported
# only when there is a file to read.
Node = Any


@dataclass
class Contents:
    """Contents of a file of options, as unparsed text.

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

    def take(self, values: dict[str, Raw], key: str, node: Node) -> None:
        """Add the text of a key to ``values``, if it has any."""
        try:
            value = _value_of(node, self.name, key)
        except ValueError as error:
            self.problems.append(f"{self.name} line {_line_of(node)}: {key} {error}")
        else:
            if value is not None:
                values[key] = value

    def unknown(self, key: str, line: int, verb: str | None = None) -> None:
        """Complain about a key that no option of a verb has, or at the top of the file no option at all."""
        place = f"{self.name} line {line}"
        if verb is None:
            about = about_key_of_file(key)
            self.problems.append(f"{place}: unknown key {key!r}{about}")
        else:
            meant = about_option(key, verb, YAML_FILE)
            self.problems.append(f"{place}: unknown key {key!r} of {verb}{meant}")


def _keys_of(settings_type: type[Common]) -> list[str]:
    """Return the keys of the options of a verb that may stand in a YAML file."""
    keys = []
    for declared in options_of(settings_type):
        if declared.key not in YAML_FILE.lacks:
            keys.append(declared.key)
    return keys


def find_config(folder: Path | None, named: str | None) -> Contents:
    """Return the configuration of ``--config``, else that of ``hydra.yaml`` in the folder, if there is one, else none.

    ``--config`` names a file, or is a YAML mapping itself, in braces.

    Raises:
        UsageError: if the file cannot be read, is no YAML, repeats a key or is not a mapping, with the line.
    """
    if named is not None and named.startswith("{"):
        config = Contents("--config")
        root = _composed(named, config.name)
    else:
        config = Contents(named or DEFAULT_NAME)
        path = (folder or Path()) / config.name
        if named is None and (folder is None or not path.exists()):
            return config
        root = _compose(path, config.name, "check --config and HYDRACTL_CONFIG")
    shared: list[str] = []
    for settings_type in SETTINGS.values():
        shared += _keys_of(settings_type)
    for key, node, line in _pairs(root, config.name, "the file"):
        verb = key.replace("_", "-")
        if key.startswith(_FOREIGN):
            continue
        if verb in SETTINGS:
            config.verbs[verb] = _verb_values(node, verb, config)
        elif key in shared:
            config.take(config.shared, key, node)
        else:
            config.unknown(key, line)
    return config


def _verb_values(node: Node, verb: str, config: Contents) -> dict[str, Raw]:
    values: dict[str, Raw] = {}
    if _is_null(node):
        return values
    known = _keys_of(SETTINGS[verb])
    for key, value, line in _pairs(node, config.name, verb):
        if key in known:
            config.take(values, key, value)
        else:
            config.unknown(key, line, verb)
    return values


def recipe_names() -> list[str]:
    """Return the names of the recipes in the package, sorted."""
    files = RECIPES.glob("*.yaml")
    return sorted(file.stem for file in files)


def recipe_about(name: str) -> str:
    """Return the sentence of a recipe in the package on where it comes from."""
    called = f"recipe {name}"
    root = _compose(RECIPES / f"{name}.yaml", called, "")
    for key, node, _ in _pairs(root, called, "the file"):
        if key == _ABOUT:
            return _text_of(node)
    return ""


def read_recipe(recipe: str, known: Collection[str]) -> Contents:
    """Return the contents of a recipe; all its keys are shared ones.

    Args:
        recipe: the name of one in the package, or a file ending in ``.yaml`` or ``.yml``.
        known: the keys that a recipe may have.

    Raises:
        UsageError: there is no such recipe, or it is no YAML mapping.
    """
    names = recipe_names()
    if recipe.endswith((".yaml", ".yml")):
        path = Path(recipe)
        contents = Contents(recipe)
    elif recipe in names:
        path = RECIPES / f"{recipe}.yaml"
        contents = Contents(f"recipe {recipe}")
    else:
        hint = f"{', '.join(names)}, or a file ending in .yaml"
        raise UsageError(f"there is no recipe {recipe!r}{did_you_mean(recipe, names)}", hint=hint)
    root = _compose(path, contents.name, "check --recipe")
    for key, node, line in _pairs(root, contents.name, "the file"):
        if key in known:
            contents.take(contents.shared, key, node)
        elif key != _ABOUT:
            guess = did_you_mean(key, known, quoted=True)
            contents.problems.append(f"{contents.name} line {line}: a recipe has no key {key!r}{guess}")
    return contents


# --- YAML as plain text -----------------------------------------------------------------------------------------------


def _value_of(node: Node, name: str, key: str) -> Raw | None:
    """Return a text, a list of texts or a mapping of texts; None for an empty value."""
    if _is_null(node):
        return None
    if node.id == "sequence":
        return [_text_of(item) for item in node.value]
    if node.id == "mapping":
        return {inner: _text_of(item) for inner, item, _ in _pairs(node, name, key, plain=True)}
    return _text_of(node)


def _text_of(node: Node) -> str:
    if node.id != "scalar":
        raise ValueError("is nested too deeply")
    return str(node.value)


def _pairs(node: Node | None, name: str, where: str, *, plain: bool = False) -> Iterator[tuple[str, Node, int]]:
    """Yield the entries of a mapping with the line of each key, the keys with ``_`` for ``-`` unless ``plain``."""
    if node is None:  # an empty file
        return
    if node.id != "mapping":
        raise UsageError(f"{name} line {_line_of(node)}: {where} must be a mapping of options to values")
    lines: dict[str, int] = {}
    for key_node, value in node.value:
        line = _line_of(key_node)
        if key_node.id != "scalar":
            raise UsageError(f"{name} line {line}: a key of {where} is not a text")
        key = key_node.value
        if not plain:
            key = key.replace("-", "_")
        if key in lines:
            raise UsageError(f"{name} line {line}: the key {key!r} is there already, on line {lines[key]}")
        lines[key] = line
        yield key, value, line


def _is_null(node: Node) -> bool:
    return bool(node.tag == "tag:yaml.org,2002:null")


def _line_of(node: Node) -> int:
    line = node.start_mark.line
    return int(line) + 1


def _compose(path: Path, name: str, hint: str) -> Node | None:
    """Return the syntax tree of a file; None for one without content."""
    try:
        with open(path, encoding="utf-8") as handle:
            return _composed(handle, name)
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror}", hint=hint) from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not UTF-8 text (byte {error.start})") from None


def _composed(source: str | TextIO, name: str) -> Node | None:
    """Return the syntax tree of YAML."""
    import yaml

    try:
        return yaml.compose(source, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = ""
        if mark is not None:
            line = f" line {mark.line + 1}"
        parts = [part for part in (error.context, error.problem) if part]
        raise UsageError(f"{name}{line}: {', '.join(parts)}") from None
    except yaml.reader.ReaderError as error:
        raise UsageError(f"{name}: a character that YAML does not allow at position {error.position}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{name} is not YAML: {error}") from None
    except RecursionError:
        raise UsageError(f"{name} is nested too deeply") from None
