"""What a training starts from: the weights given, or drawn anew, a classifier of zeros, dropout."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from hydractl.errors import UsageError
from hydractl.files.checkpoint import DictTensors, MappedTensors, replaced
from hydractl.files.header import torch_dtype
from hydractl.heads.mask import HeadMask
from hydractl.model.slicing import sliced
from hydractl.model.source import Source


def drawn(source: Source, seed: int) -> Source:
    """The same architecture with weights as its library draws them; heads that are gone stay gone."""
    description, family = source.description, source.family
    tensors = DictTensors(family.initial(description.config, seed))
    full = HeadMask.full(source.sites)
    return replace(source, tensors=sliced(tensors, family, source.sites, full, description.mask))


def with_new_head(source: Source, labels: list[str] | None, classes: int) -> Source:
    """The model with a classifier of zeros for these classes.

    Args:
        source: with a classifier.
        labels: names of the classes, or None where they have none.
        classes: how many.

    Raises:
        UsageError: for a model without a classifier.
    """
    family, description = source.family, source.description
    config = family.with_classes(description.config, classes)
    zeros = {n: torch.zeros(t.shape) for n, t in _head(source, family.build(config).state_dict(), "--reset-head")}
    labels = None if labels is None else list(labels)
    made = replace(source, description=replace(description, config=config, labels=labels))
    return replace(made, tensors=_with(source, zeros))


def with_drawn_head(source: Source, seed: int) -> Source:
    """The model with its classifier as the library draws it.

    Raises:
        UsageError: for a model without a classifier.
    """
    family, config = source.family, source.description.config
    names = [name for name, _ in _head(source, family.build(config).state_dict(), "--init head")]
    initial = family.initial(config, seed)
    return replace(source, tensors=_with(source, {name: initial[name] for name in names}))


def _head(source: Source, tensors: Mapping[str, Tensor], option: str) -> list[tuple[str, Tensor]]:
    """Of the tensors of a model those of its classifier."""
    pattern = source.family.named_parts.get("head", "$.")
    found = [(name, tensor) for name, tensor in tensors.items() if re.match(pattern, name)]
    if not found:
        raise UsageError(f"{option}: {source.description.arch} has no classifier that can be made anew")
    return found


def _with(source: Source, tensors: Mapping[str, Tensor]) -> MappedTensors:
    """The weights with some of them replaced, each in the dtype it has."""
    dtypes = {name: torch_dtype(source.tensors.info(name)) for name in tensors}
    return replaced(source.tensors, {name: tensor.to(dtypes[name]) for name, tensor in tensors.items()})


def with_dropout(source: Source, rate: float | None) -> Source:
    """The model with dropout in each layer, for training; None: as it is."""
    if rate is None:
        return source
    description = source.description
    config = source.family.with_dropout(description.config, rate)
    return replace(source, description=replace(description, config=config))
