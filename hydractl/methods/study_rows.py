"""The rows of ``study`` that methods declare: recipes for making the model of a row from the studied one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hydractl.methods.base import MethodOptions

MEMBERS = 3
"""The number of members of every row of an ensemble."""


@dataclass(frozen=True)
class BySeeds:
    """Members that are trained one by one, each with a seed of its own, and fused.

    Attributes:
        options: options of each ``finetune``, as text, by name.
        ensemble: its ``--ensemble``; None without.
        of_classifiers: further options where the model has a classifier, which a zero-shot model has not.
        merge: ``--merge`` of ``fuse``; None for that of the other rows.
    """

    options: Mapping[str, str] = field(default_factory=dict)
    ensemble: MethodOptions | None = None
    of_classifiers: Mapping[str, str] = field(default_factory=dict)
    merge: str | None = None


@dataclass(frozen=True)
class ByOneTraining:
    """Members that one training leaves, fused.

    Attributes:
        ensemble: ``--ensemble`` of this ``finetune``.
        options: its further options, as text, by name.
        merge: ``--merge`` of ``fuse``; None for that of the other rows.
    """

    ensemble: MethodOptions
    options: Mapping[str, str] = field(default_factory=dict)
    merge: str | None = None


@dataclass(frozen=True)
class ByTraining:
    """One model that one training leaves.

    Attributes:
        ensemble: ``--ensemble`` of this ``finetune``.
        options: its further options, as text, by name.
    """

    ensemble: MethodOptions
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ByVerb:
    """One model that a verb of its own makes from ``--train`` and ``--val``.

    Attributes:
        verb: the name of the verb.
    """

    verb: str


@dataclass(frozen=True)
class AsMeasured:
    """The model as it is, measured in another way.

    Attributes:
        options: options of ``eval``, as text, by name.
    """

    options: Mapping[str, str]


Recipe = BySeeds | ByOneTraining | ByTraining | ByVerb | AsMeasured


@dataclass(frozen=True)
class StudyRow:
    """A row of a study that is made only when it is asked for.

    Attributes:
        name: the name that ``--rows`` takes.
        recipe: the recipe for its model, or a function from the number of heads at each site to the recipe.
        place: its place among the rows of methods, the lowest first.
        needs_training_data: whether it is trained or fitted.
        needs_labels: whether it needs labels of the training data.
        needs_classifier: whether it needs a classifier, which a zero-shot model does not have.
        least_steps: the fewest steps that its training can have; 0 for any number.
    """

    name: str
    recipe: Recipe | Callable[[int], Recipe]
    place: int = 100
    needs_training_data: bool = True
    needs_labels: bool = True
    needs_classifier: bool = False
    least_steps: int = 0

    def recipe_for(self, heads: int) -> Recipe:
        """Return the recipe for a model with this number of heads at each site."""
        recipe = self.recipe
        if callable(recipe):
            return recipe(heads)
        return recipe
