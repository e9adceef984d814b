"""What models that compare images with texts have in common: prompts of class names, and logits of both features."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from hydractl.errors import UsageError

_PLACE = re.compile(r"\{label\}|\{\}")


def filled_templates(labels: Sequence[str], templates: Sequence[str]) -> list[str]:
    """Return every template filled with the first class, then with the second, and so on.

    Args:
        labels: names of the classes.
        templates: each with at least one ``{label}`` or ``{}`` where the name goes.

    Raises:
        UsageError: for templates without a place for the name, or with braces that mean something else.
    """
    problems = _problems_of_templates(templates)
    if problems:
        hint = "write {label} where the name goes: 'A photo of a {label}.'"
        several = problems if len(problems) > 1 else ()
        raise UsageError(problems[0], hint=hint, problems=several)
    if not labels or not templates:
        raise UsageError("prompts need class names and templates")
    texts = []
    for label in labels:
        for template in templates:
            # The name goes between the pieces, because it may hold what looks like a place.
            pieces = _PLACE.split(template)
            texts.append(label.join(pieces))
    return texts


def _problems_of_templates(templates: Sequence[str]) -> list[str]:
    """List the templates without a place for the name of a class, or with other braces."""
    problems = []
    for template in templates:
        text_around, places = _PLACE.subn("", template)
        if places == 0:
            problems.append(f"prompt {template!r} has no place for the class name")
        elif "{" in text_around or "}" in text_around:
            problems.append(f"prompt {template!r} has braces that are no place for the class name")
    return problems


def mean_features(features: Tensor, prompts: int) -> Tensor:
    """Return the normalised mean ``[classes, D]`` of the normalised features of the prompts of each class.

    Args:
        features: ``[classes * prompts, D]``.
        prompts: of each class.
    """
    normalised = F.normalize(features, dim=-1)
    by_class = normalised.unflatten(0, (-1, prompts))  # [classes, prompts, D]
    means = by_class.mean(dim=1)
    lengths = means.norm(dim=1, keepdim=True)
    return means / lengths


def scaled_cosines(model: Any, images: Tensor, classes: Tensor) -> Tensor:
    """Return the scaled (and shifted) cosines ``[B, classes]`` of images ``[B, D]`` and classes ``[classes, D]``."""
    logits = model.logit_scale.exp() * images @ classes.T
    bias = getattr(model, "logit_bias", None)
    if bias is None:
        return logits
    return logits + bias
