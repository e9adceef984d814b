"""Recipes of ``finetune``: YAML files of options, some of them in the package; only built-in values weigh less."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

from hydractl.errors import UsageError
from hydractl.settings.option import Raw
from hydractl.settings.yaml_text import compose, line_of, pairs, value_of

FOLDER = Path(__file__).resolve().parents[1] / "training" / "recipes"
ABOUT = "about"
"""The key of a recipe that is no option: one sentence on where it comes from."""


def recipe_names() -> list[str]:
    """The recipes in the package, sorted."""
    return sorted(file.stem for file in FOLDER.glob("*.yaml"))


def read_recipe(recipe: str, known: Iterable[str]) -> tuple[dict[str, Raw], list[str]]:
    """What a recipe says, as text, and what is wrong with its keys.

    Args:
        recipe: the name of one in the package, or a file ending in ``.yaml`` or ``.yml``.
        known: the keys that a recipe may have.

    Raises:
        UsageError: there is no such recipe, or it is no YAML mapping.
    """
    names, known = recipe_names(), list(known)
    if recipe.endswith((".yaml", ".yml")):
        path, name = Path(recipe), recipe
    elif recipe in names:
        path, name = FOLDER / f"{recipe}.yaml", f"recipe {recipe}"
    else:
        near = difflib.get_close_matches(recipe, names, n=1)
        guess = f"; did you mean {near[0]}?" if near else ""
        raise UsageError(f"there is no recipe {recipe!r}{guess}", hint=f"{', '.join(names)}, or a file ending in .yaml")
    root = compose(path, name, "check --recipe")
    found: dict[str, Raw] = {}
    problems: list[str] = []
    for key, node, line in () if root is None else pairs(root, name, "the file"):
        if key == ABOUT:
            continue
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            guess = f"; did you mean {near[0]!r}?" if near else ""
            problems.append(f"{name} line {line}: a recipe has no key {key!r}{guess}")
            continue
        try:
            value = value_of(node, name, key)
        except ValueError as error:
            problems.append(f"{name} line {line_of(node)}: {key} {error}")
            continue
        if value is not None:
            found[key] = value
    return found, problems
