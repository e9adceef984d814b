"""YAML files of options: ``hydra.yaml`` (a mapping for each verb, and keys for all verbs), and recipes of ``finetune``.

Every value stays text until its option reads it, so that YAML's guesses (``no`` is false, ``1e-4`` is a text) never
apply.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from hydractl.errors import UsageError, did_you_mean
from hydractl.options.option import Raw
from hydractl.options.registry import VERBS
from hydractl.options.suggestions import about_option, by_key, names_of_options

RECIPES = Path(__file__).resolve().parents[1] / "training" / "recipes"
DEFAULT_NAME = "hydra.yaml"
_FOREIGN = "x_"  # "x-" after its dash became "_": keys for other readers of the file, such as the script of a study
_ABOUT = "about"  # a key of a recipe that is no option: one sentence on where the recipe comes from

_EMPTY = (None, "", "~", "null")
"""How a value is written that gives nothing."""


@dataclass
class Contents:
    """The contents of a file of options, as texts that no option has read yet.

    Attributes:
        name: the name of the file, as it was given.
        folder: the folder in which the file was found; what it names for writing has to stay there. None if the user
            named the file, who may write anywhere.
        values: the keys in each verb's own mapping, by the verb; of None, the top-level keys, which are for all verbs.
        problems: the problems of keys and of the form of values.
    """

    name: str
    folder: Path | None = None
    values: defaultdict[str | None, dict[str, Raw]] = field(default_factory=lambda: defaultdict(dict))
    problems: list[str] = field(default_factory=list)

    def add_value(self, verb: str | None, key: str, value: Any) -> None:
        """Add a value to ``values``: a text, or a list or mapping of texts.

        An empty one adds nothing. One with lists or mappings inside adds a problem.
        """
        if value in _EMPTY:
            return
        texts = value.values() if isinstance(value, dict) else value
        if all(isinstance(text, str) for text in texts):
            self.values[verb][key] = value
        else:
            self.problems.append(f"{self.name}: {key} is nested too deeply")


def not_a_default(place: str, key: str) -> str:
    """Return the problem of a file or a variable that sets an option which only a command itself may give.

    Args:
        place: the file or the variable.
        key: the option.
    """
    return f"{place}: {key} cannot be a default; give --{key} with the command that is to replace an output"


def find_config(folder: Path | None, named: str | None) -> Contents:
    """Return the contents of the file of defaults: that of ``--config``, else ``hydra.yaml`` in the folder, else empty.

    Args:
        folder: the folder in which ``hydra.yaml`` is looked for; None means that it is not looked for.
        named: the value of ``--config``: a file, or a YAML mapping in braces; None if it is not given.

    Raises:
        UsageError: the file cannot be read, is no YAML, repeats a key or is no mapping.
    """
    config = Contents(named or DEFAULT_NAME)
    path = (folder or Path()) / config.name
    if named is None:  # then there may be nothing to read
        if folder is None or not path.exists():
            return config
        config.folder = folder

    # Read a mapping in braces, or a file.
    if config.name.startswith("{"):
        config.name = "--config"
        root = _parse_yaml(str(named), config.name)
    else:
        root = _read_yaml(path, config.name, "check --config and HYDRACTL_CONFIG")

    # A top-level key is either a verb, with a mapping of its options, or an option for all verbs that have it.
    for key, value in _by_key(root, config.name, "the file").items():
        verb = key.replace("_", "-")
        if verb in VERBS:
            for key_of_verb, value_of_verb in _by_key(value, config.name, verb).items():
                _take_default(config, verb, key_of_verb, value_of_verb)
        elif not key.startswith(_FOREIGN):
            _take_default(config, None, key, value)
    return config


def _take_default(config: Contents, verb: str | None, key: str, value: Any) -> None:
    """Keep the value of a known key; any other key is a problem, with what was probably meant.

    Args:
        config: the contents, which get the value or the problem.
        verb: the verb in whose mapping the key stands; None at the top of the file.
        key: the key.
        value: its value.
    """
    if key.replace("_", "-") in names_of_options([verb] if verb else list(VERBS), by_key):
        config.add_value(verb, key, value)
    elif key == "force":
        config.problems.append(not_a_default(config.name, key))
    else:
        of_verb = f" of {verb}" if verb else ""
        about = about_option(key, verb, by_key) or did_you_mean(key, VERBS, repr)
        config.problems.append(f"{config.name}: unknown key {key!r}{of_verb}{about}")


def recipe_names() -> list[str]:
    """Return the names of the recipes in the package, sorted."""
    return sorted(file.stem for file in RECIPES.glob("*.yaml"))


def read_recipe(recipe: str, known: Collection[str]) -> Contents:
    """Return the contents of a recipe, a YAML file of hyper-parameters for ``finetune``; problems of keys are in it.

    Its keys stand at the top of the file, so they are in ``values[None]``.

    Args:
        recipe: the name of a recipe in the package, or a file that ends in ``.yaml`` or ``.yml``.
        known: the keys that a recipe may have.

    Raises:
        UsageError: there is no such recipe, or it is no YAML mapping.
    """
    # The path: a file of the user, or a recipe of the package by its name.
    names = recipe_names()
    is_file = recipe.endswith((".yaml", ".yml"))
    if is_file:
        path = Path(recipe)
        contents = Contents(recipe)
    elif recipe in names:
        path = RECIPES / f"{recipe}.yaml"
        contents = Contents(f"recipe {recipe}")
    else:
        guess = did_you_mean(recipe, names)
        listed = ", ".join(names)
        raise UsageError(f"there is no recipe {recipe!r}{guess}", hint=f"{listed}, or a file ending in .yaml")

    # The values stay texts, which the options read later.
    root = _read_yaml(path, contents.name, "check --recipe")
    for key, value in _by_key(root, contents.name, "the file").items():
        if key in known:
            contents.add_value(None, key, value)
        elif key != _ABOUT:
            guess = did_you_mean(key, known, repr)
            contents.problems.append(f"{contents.name}: a recipe has no key {key!r}{guess}")
    return contents


# --- YAML as plain text -----------------------------------------------------------------------------------------------


def _by_key(content: Any, name: str, where: str) -> dict[str, Any]:
    """Return a mapping of options with ``_`` for ``-``, so that ``batch-size`` and ``batch_size`` are the same key.

    Args:
        content: what was read, which should be a mapping; nothing gives an empty one.
        name: the name of the file, for messages.
        where: the name of the mapping in the file, for messages.

    Raises:
        UsageError: it is no mapping, or has a key with ``-`` and with ``_``.
    """
    if content in _EMPTY:
        return {}
    if not isinstance(content, dict):
        raise UsageError(f"{name}: {where} must be a mapping of options to values")
    by_key: dict[str, Any] = {}
    for written, value in content.items():
        key = written.replace("-", "_")
        if key in by_key:
            raise UsageError(f"{name}: {where} has the key {key!r} twice")
        by_key[key] = value
    return by_key


def _read_yaml(path: Path, name: str, hint: str) -> Any:
    """Return the content of a file, see :func:`_parse_yaml`.

    Args:
        path: the file.
        name: its name in messages.
        hint: what to do if it cannot be read.

    Raises:
        UsageError: the file cannot be read, or is no YAML.
    """
    try:
        with open(path, encoding="utf-8") as handle:
            return _parse_yaml(handle, name)
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror}", hint=hint) from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not UTF-8 text (byte {error.start})") from None


def _parse_yaml(source: str | TextIO, name: str) -> Any:
    """Return the content of a YAML text or file: dicts, lists and texts, each as it is written; None if it is empty.

    Args:
        source: a text, or an open file.
        name: the name of the source in messages.

    Raises:
        UsageError: the source is no YAML, or has a key twice in one mapping; the message tells where.
    """
    import yaml

    class Loader(yaml.BaseLoader):
        """Reads all scalars as texts, and makes no objects, so that the file cannot run code."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            """Return a mapping; refuse a key that is there twice, which the library lets pass."""
            mapping = super().construct_mapping(node, deep)
            if len(mapping) < len(node.value):
                keys = Counter(key.value for key, _ in node.value)
                [(key, _)] = keys.most_common(1)
                raise yaml.constructor.ConstructorError(
                    problem=f"the key {key!r} is there twice", problem_mark=node.start_mark
                )
            return mapping

    try:
        return yaml.load(source, Loader)
    except yaml.MarkedYAMLError as error:
        problem = ", ".join(filter(None, (error.context, error.problem)))
        mark: Any = error.problem_mark  # every error of these has one
        raise UsageError(f"{name} line {mark.line + 1}: {problem}") from None
    except yaml.reader.ReaderError as error:
        raise UsageError(f"{name}: a character that YAML does not allow at position {error.position}") from None
    except RecursionError:
        raise UsageError(f"{name} is nested too deeply") from None
