"""Rows of ``study`` that methods declare: how the model of a row is made of the one that is studied."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hydractl.methods.base import MethodOptions

MEMBERS = 3
"""Members of every row of several."""


@dataclass(frozen=True)
class BySeeds:
    """Members that are trained one by one, each by a seed of its own, and fused.

    Attributes:
        options: of each ``finetune``, by name, as text.
        ensemble: what its ``--ensemble`` asks for, if anything.
    """

    options: Mapping[str, str] = field(default_factory=dict)
    ensemble: MethodOptions | None = None


@dataclass(frozen=True)
class ByOneTraining:
    """Members that one training leaves, fused.

    Attributes:
        ensemble: what ``--ensemble`` of this ``finetune`` asks for.
        options: further options of it, by name, as text.
        merge: ``--merge`` of ``fuse``, where it is not that of the other rows.
    """

    ensemble: MethodOptions
    options: Mapping[str, str] = field(default_factory=dict)
    merge: str | None = None


@dataclass(frozen=True)
class ByTraining:
    """One model that one training leaves.

    Attributes:
        ensemble: what ``--ensemble`` of this ``finetune`` asks for.
        options: further options of it, by name, as text.
    """

    ensemble: MethodOptions
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ByVerb:
    """One model that a verb of its own makes of ``--train`` and ``--val``.

    Attributes:
        verb: its name.
    """

    verb: str


@dataclass(frozen=True)
class AsMeasured:
    """The model as it is, measured in another way.

    Attributes:
        options: of ``eval``, by name, as text.
    """

    options: Mapping[str, str]


Recipe = BySeeds | ByOneTraining | ByTraining | ByVerb | AsMeasured


@dataclass(frozen=True)
class StudyRow:
    """A row of a study, which is made only when it is asked for.

    Attributes:
        name: as ``--rows`` has it.
        recipe: how its model is made; given the number of heads at each site, where it depends on it.
        place: among the rows of other methods, the lowest first.
        needs_training_data: whether it is trained or fitted.
        needs_labels: whether that takes labels.
        needs_classifier: whether a zero-shot model cannot have it.
        least_steps: the fewest steps of a training that it can be had of.
    """

    name: str
    recipe: Recipe | Callable[[int], Recipe]
    place: int = 100
    needs_training_data: bool = True
    needs_labels: bool = True
    needs_classifier: bool = False
    least_steps: int = 0

    def recipe_for(self, heads: int) -> Recipe:
        """Return how its model is made of one with so many heads at each site."""
        if callable(self.recipe):
            return self.recipe(heads)
        return self.recipe
