"""The rows of ``study`` that methods declare: recipes that make the model of a row from the studied model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hydractl.methods.base import MethodOptions

MEMBERS = 3
"""The number of members in every row that is an ensemble."""


@dataclass(frozen=True)
class BySeeds:
    """A recipe: train members one by one, each with its own seed, and fuse them with nothing averaged.

    Attributes:
        options: options of each ``finetune``, by name.
        ensemble: the value of its ``--ensemble``; None to leave it out.
        of_classifiers: further options, used only if the model has a classifier (a zero-shot model has none).
    """

    options: Mapping[str, object] = field(default_factory=dict)
    ensemble: MethodOptions | None = None
    of_classifiers: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class ByTraining:
    """A recipe: take the one model that a training, or a method without one, leaves; or fuse its several members.

    Attributes:
        ensemble: the value of ``--ensemble`` of this ``finetune``; members are fused with nothing averaged.
        options: its further options, by name.
    """

    ensemble: MethodOptions
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class AsMeasured:
    """A recipe: take the studied model itself, but measure it in another way.

    Attributes:
        options: options of ``eval``, by name.
    """

    options: Mapping[str, object]


Recipe = BySeeds | ByTraining | AsMeasured


@dataclass(frozen=True)
class StudyRow:
    """A row of a study that is made only if the user asks for it.

    Attributes:
        name: the name that ``--rows`` takes.
        recipe: the recipe for its model, or a function from the number of heads at each site to the recipe.
        place: the sort key among the rows of methods, the lowest first.
        needs_training_data: whether the model is trained or fitted.
        needs_labels: whether the training data need labels.
        needs_classifier: whether the model needs a classifier, which a zero-shot model does not have.
        needs_images: whether the model needs to read images.
    """

    name: str
    recipe: Recipe | Callable[[int], Recipe]
    place: int = 100
    needs_training_data: bool = True
    needs_labels: bool = True
    needs_classifier: bool = False
    needs_images: bool = False

    def recipe_for(self, heads: int) -> Recipe:
        """Return the recipe for a model with this number of heads at each site."""
        recipe = self.recipe
        if callable(recipe):
            return recipe(heads)
        return recipe
