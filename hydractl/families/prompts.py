"""Shared code of models that compare images with texts: prompts for class names, and logits from features."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from hydractl.errors import UsageError

_PLACE = re.compile(r"\{label\}|\{\}")


def filled_templates(labels: Sequence[str], templates: Sequence[str]) -> list[str]:
    """Return all templates filled with the first class name, then all filled with the second, and so on.

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


def mean_features(features: Tensor, prompts: int) -> Tensor:
    """Return one feature vector of length 1 for each class, ``[classes, D]``, from the features of its prompts.

    The features of the prompts are normalised, averaged and normalised again.

    Args:
        features: features of all prompts, class by class, ``[classes * prompts, D]``.
        prompts: number of prompts of each class.
    """
    normalised = F.normalize(features, dim=-1)
    by_class = normalised.unflatten(0, (-1, prompts))  # [classes, prompts, D]
    means = by_class.mean(dim=1)
    lengths = means.norm(dim=1, keepdim=True)
    return means / lengths


def scaled_cosines(model: Any, images: Tensor, classes: Tensor) -> Tensor:
    """Return the logits ``[B, classes]``: cosines of images and classes, scaled (and shifted) by the model.

    Args:
        model: the library's model with ``logit_scale`` (a logarithm) and, for SigLIP, ``logit_bias``.
        images: normalised features ``[B, D]``.
        classes: normalised features ``[classes, D]``.
    """
    logits = model.logit_scale.exp() * images @ classes.T
    bias = getattr(model, "logit_bias", None)
    return logits if bias is None else logits + bias
