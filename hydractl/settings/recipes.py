"""Recipes of ``finetune``: YAML files of options, some of them in the package; only built-in values weigh less."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydractl.errors import UsageError
from hydractl.settings.common import RECIPE, Batched
from hydractl.settings.option import Option, Raw
from hydractl.settings.yaml_text import compose, line_of, pairs, value_of

FOLDER = Path(__file__).resolve().parents[1] / "training" / "recipes"
ABOUT = "about"
"""The key of a recipe that is no option: one sentence on where it comes from."""


def recipe_names() -> list[str]:
    """The recipes in the package, sorted."""
    return sorted(file.stem for file in FOLDER.glob("*.yaml"))


def read_recipe(recipe: str, known: Iterable[str]) -> tuple[dict[str, Raw], list[str]]:
    """Contents of a recipe, as text, and the problems of its keys.

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
    values: dict[str, Raw] = {}
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
            values[key] = value
    return values, problems


@dataclass(kw_only=True)
class Prescribed(Batched):
    """Options of which a recipe fills in those that nobody gave; ``val`` is one of them.

    Attributes:
        from_recipe: what the recipe decided, by option name.
        passed_over: what it says and nothing can be made of, in sentences.
    """

    from_recipe: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    passed_over: list[str] = field(default_factory=list, repr=False, compare=False)

    def _rank(self, name: str) -> int:
        return RECIPE if self.ranks is None and name in self.from_recipe else super()._rank(name)

    def take_recipe(self, recipe: str, may_decide: Sequence[Option]) -> list[str]:
        """Fill in what a recipe says and nobody gave, of the options it may decide. Returns what is wrong with it."""
        options = {option.key: option for option in may_decide}
        values, problems = read_recipe(recipe, options)
        for key, raw in values.items():
            option, source = options[key], f"recipe {recipe}"
            name = option.name
            rivals = [rival for group in self.alternatives if name in group for rival in group]
            if self._rank(name) > 0 or name in self.unread or any(self._rank(rival) > RECIPE for rival in rivals):
                continue
            try:
                value = option.parse(raw)
            except ValueError as error:
                problems.append(f"{option.label} {error} ({source})")
                continue
            setattr(self, name, value)
            self.from_recipe[name], self.sources[name] = value, source
            if self.ranks is not None:
                self.ranks[name] = RECIPE
        self._pass_over(recipe)
        return problems

    def _pass_over(self, recipe: str) -> None:
        """Put back what only the recipe says and nothing can be made of without validation data."""
        self.passed_over = []
        for name in () if self.given("val") else ("patience", "min_delta"):
            if name in self.from_recipe and self._rank(name) == RECIPE:
                self._put_back(name, "val")
                del self.from_recipe[name]
                self.sources[name] = f"default, as recipe {recipe} needs --val for it"
                self.passed_over.append(f"{self.called(name)} of recipe {recipe} is passed over: it needs --val")
