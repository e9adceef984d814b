"""YAML files of options: ``hydra.yaml``, with a mapping per verb and keys that all share, and recipes of ``finetune``.

Every value stays text, read later by its option: YAML's own guesses (``no`` is false, ``1e-4`` is a text) never apply.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydractl.errors import UsageError, did_you_mean
from hydractl.settings.option import Raw, options_of
from hydractl.settings.verbs import SETTINGS

RECIPES = Path(__file__).resolve().parents[1] / "training" / "recipes"
DEFAULT_NAME = "hydra.yaml"
_FOREIGN = "x_"  # how "x-" reads here: keys for whoever else reads the file, such as the script of a study
_ABOUT = "about"  # the key of a recipe that is no option: one sentence on where it comes from
_NOT_IN_FILES = ("config",)

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

    def unknown(self, key: str, line: int, known: Collection[str], of: str = "") -> None:
        """Complain about a key that no option has, or not here."""
        others = [verb for verb, settings in SETTINGS.items() if key in (o.key for o in options_of(settings))]
        guess = did_you_mean(key, known, quoted=True)
        if others and key not in _NOT_IN_FILES:
            guess = f"; it is one of {', '.join(others)}"
        self.problems.append(f"{self.name} line {line}: unknown key {key!r}{of}{guess}")


def find_config(folder: Path | None, named: str | None) -> Contents:
    """The configuration named by ``--config``, else ``hydra.yaml`` of the folder, if there is one, else nothing.

    Raises:
        UsageError: if the file cannot be read, is no YAML, repeats a key or is not a mapping, with the line.
    """
    config = Contents(named or DEFAULT_NAME)
    path = (folder or Path()) / config.name
    if named is None and (folder is None or not path.exists()):
        return config
    root = _compose(path, config.name, "check --config and HYDRACTL_CONFIG")
    shared = [o.key for settings in SETTINGS.values() for o in options_of(settings) if o.key not in _NOT_IN_FILES]
    for key, node, line in _pairs(root, config.name, "the file"):
        verb = key.replace("_", "-")
        if key.startswith(_FOREIGN):
            continue
        if verb in SETTINGS:
            config.verbs[verb] = _verb_values(node, verb, config)
        elif key in shared:
            config.take(config.shared, key, node)
        else:
            config.unknown(key, line, [*SETTINGS, *shared])
    return config


def _verb_values(node: Node, verb: str, config: Contents) -> dict[str, Raw]:
    values: dict[str, Raw] = {}
    known = [o.key for o in options_of(SETTINGS[verb]) if o.key not in _NOT_IN_FILES]
    for key, value, line in () if _is_null(node) else _pairs(node, config.name, verb):
        if key in known:
            config.take(values, key, value)
        else:
            config.unknown(key, line, known, f" of {verb}")
    return values


def recipe_names() -> list[str]:
    """The recipes in the package, sorted."""
    return sorted(file.stem for file in RECIPES.glob("*.yaml"))


def read_recipe(recipe: str, known: Collection[str]) -> Contents:
    """Contents of a recipe; all its keys are shared ones.

    Args:
        recipe: the name of one in the package, or a file ending in ``.yaml`` or ``.yml``.
        known: the keys that a recipe may have.

    Raises:
        UsageError: there is no such recipe, or it is no YAML mapping.
    """
    names = recipe_names()
    if recipe.endswith((".yaml", ".yml")):
        path, contents = Path(recipe), Contents(recipe)
    elif recipe in names:
        path, contents = RECIPES / f"{recipe}.yaml", Contents(f"recipe {recipe}")
    else:
        hint = f"{', '.join(names)}, or a file ending in .yaml"
        raise UsageError(f"there is no recipe {recipe!r}{did_you_mean(recipe, names)}", hint=hint)
    for key, node, line in _pairs(_compose(path, contents.name, "check --recipe"), contents.name, "the file"):
        if key in known:
            contents.take(contents.shared, key, node)
        elif key != _ABOUT:
            guess = did_you_mean(key, known, quoted=True)
            contents.problems.append(f"{contents.name} line {line}: a recipe has no key {key!r}{guess}")
    return contents


# --- YAML as plain text -----------------------------------------------------------------------------------------------


def _value_of(node: Node, name: str, key: str) -> Raw | None:
    """A text, a list of texts or a mapping of texts; None for an empty value."""
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
    """The entries of a mapping with the line of each key, the keys with ``_`` for ``-`` unless ``plain``."""
    if node is None:  # an empty file
        return
    if node.id != "mapping":
        raise UsageError(f"{name} line {_line_of(node)}: {where} must be a mapping of options to values")
    lines: dict[str, int] = {}
    for key_node, value in node.value:
        line = _line_of(key_node)
        if key_node.id != "scalar":
            raise UsageError(f"{name} line {line}: a key of {where} is not a text")
        key = key_node.value if plain else key_node.value.replace("-", "_")
        if key in lines:
            raise UsageError(f"{name} line {line}: the key {key!r} is there already, on line {lines[key]}")
        lines[key] = line
        yield key, value, line


def _is_null(node: Node) -> bool:
    return bool(node.tag == "tag:yaml.org,2002:null")


def _line_of(node: Node) -> int:
    return int(node.start_mark.line) + 1


def _compose(path: Path, name: str, hint: str) -> Node | None:
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
