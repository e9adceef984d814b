"""Shared code of models that compare images with texts: prompts for class names, and their features."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from hydractl.errors import UsageError
from hydractl.families.base import State

_PLACE = re.compile(r"\{label\}|\{\}")


def filled_templates(labels: Sequence[str], templates: Sequence[str]) -> list[str]:
    """Return all templates filled with the first class name, then all filled with the second, and so on.

    E.g. the names "cat", "dog" and the templates "a {}", "the {}" give "a cat", "the cat", "a dog", "the dog".

    Args:
        labels: class names.
        templates: prompts with at least one ``{label}`` or ``{}`` in the place of the class name.

    Raises:
        UsageError: if there are no labels or no templates, or if a template has no place for the name or has other
            braces.
    """
    # Check the templates: take all places of the name out, count them, and look for braces in what is left.
    problems = []
    for template in templates:
        text_around, places = _PLACE.subn("", template)
        if places == 0:
            problems.append(f"prompt {template!r} has no place for the class name")
        elif "{" in text_around or "}" in text_around:
            problems.append(f"prompt {template!r} has braces that are no place for the class name")
    if problems:
        hint = "write {label} where the name goes: 'A photo of a {label}.'"
        several = problems if len(problems) > 1 else ()
        raise UsageError(problems[0], hint=hint, problems=several)
    if not labels or not templates:
        raise UsageError("prompts need class names and templates")

    # Fill them, all prompts of a class together.
    texts = []
    for label in labels:
        for template in templates:
            # Split and join, because str.format or repeated replacement would also fill braces in the class name.
            pieces = _PLACE.split(template)
            texts.append(label.join(pieces))
    return texts


@dataclass(frozen=True)
class PromptReadout:
    """The end of a text tower: one token of each prompt is normalised, and projected to a feature.

    The context of the state has ``ids``, the token ids ``[classes, prompts, T]``. With the entry ``read``, the token
    that is used is the only one left in the state.

    Attributes:
        positions: computes the position of that token, ``[N, 1]``, from the token ids of N texts, ``[N, T]``.
        norm: the last norm.
        project: the last layer, from ``[N, d_model]`` to features ``[N, D]``.
    """

    positions: Callable[[Tensor], Tensor]
    norm: Callable[[Tensor], Tensor]
    project: Callable[[Tensor], Tensor]

    def reads(self, state: State) -> Tensor:
        """Return the position of the token that is used of each prompt, ``[classes * prompts, 1]``."""
        ids = state.context["ids"].flatten(0, 1)  # [classes, prompts, T] -> [classes * prompts, T]
        return self.positions(ids)

    def _pooled(self, state: State) -> Tensor:
        """Return the normalised token of each prompt, ``[classes * prompts, d_model]``."""
        hidden = state.hidden  # [classes * prompts, T, d_model]
        if "read" not in state.context:
            positions = self.reads(state)
            hidden = hidden.take_along_dim(positions[..., None], dim=1)  # [classes * prompts, 1, d_model]
        return self.norm(hidden[:, 0])

    def inputs(self, state: State) -> Tensor:
        """Return the inputs of the last layer, ``[classes, prompts, d_model]``; see :class:`Projection`."""
        _, prompts, _ = state.context["ids"].shape
        return self._pooled(state).unflatten(0, (-1, prompts))

    def features(self, state: State) -> Tensor:
        """Return one feature vector of length 1 for each class, ``[classes, D]``, from the features of its prompts.

        The features of the prompts are normalised, averaged and normalised again.
        """
        _, prompts, _ = state.context["ids"].shape
        features = self.project(self._pooled(state))  # [classes * prompts, D]
        by_class = F.normalize(features, dim=-1).unflatten(0, (-1, prompts))  # [classes, prompts, D]
        means = by_class.mean(dim=1)
        lengths = means.norm(dim=1, keepdim=True)
        return means / lengths
