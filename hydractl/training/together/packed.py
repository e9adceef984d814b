"""Packed-Ensembles: M narrow networks that see the same batches, in the place of one wide network.

Laurent et al., Packed-Ensembles for Efficient Uncertainty Estimation (ICLR 2023), sections 3 and 4. A packed network is
alpha times as wide as the model and its layers are cut into M groups, between which nothing passes: with its embedding,
its norms and its classifier cut alike it is M networks of alpha / M of the width. Its loss is the sum of theirs, so
each is trained as it would be alone. Within a member gamma cuts each linear layer of the blocks into further groups;
as in the authors' code the embedding and the classifier are not cut by it. The zeros between groups are stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from hydractl.errors import UsageError
from hydractl.files.checkpoint import DictTensors
from hydractl.heads.mask import HeadMask, Site
from hydractl.heads.weights import HeadWeights
from hydractl.model.cost import nonzero_parameters
from hydractl.model.runtime import HydraModel
from hydractl.model.source import Source
from hydractl.training.together.base import Together


@dataclass(frozen=True)
class Packed:
    """The number of members, the width of all of them together, and the groups within a member."""

    members: int
    alpha: Fraction
    gamma: int = 1

    @property
    def passes(self) -> int:
        """The passes of :class:`hydractl.training.together.base.Method`: one for each member."""
        return self.members

    def sources(self, source: Source, seed: int) -> tuple[Source, ...]:
        """Return the narrow members, see :class:`hydractl.training.together.base.Method`.

        They are drawn by the seed and those after it where the model is drawn, else parts of its weights
        (:func:`part_of`).
        """
        narrow = self._narrowed(source)
        family, config, sites = source.family, narrow.description.config, narrow.sites
        shapes = dict(family.build(config).state_dict())
        scratch = source.drawn_by is not None
        wide = {} if scratch else {name: source.tensors.read(name) for name in source.tensors.names()}
        each = []
        for member in range(self.members):
            if scratch:
                tensors = family.initial(config, seed + member)
            else:
                tensors = part_of(wide, source, shapes, sites, Fraction(member, self.members))
            if self.gamma > 1:
                _group(tensors, narrow, self.gamma)
            each.append(replace(narrow, tensors=DictTensors(tensors)))
        if self.gamma == 1:
            return tuple(each)
        # Weights that are pruned: trainings leave them zero.
        sparse = {"groups": self.gamma, "params_nonzero": nonzero_parameters(each[0].tensors)}
        description = replace(narrow.description, extra={"sparse": sparse})
        return tuple(replace(one, description=description) for one in each)

    def model(self, models: Sequence[HydraModel], source: Source, seed: int) -> Together:
        """Join the members, see :class:`hydractl.training.together.base.Method`."""
        return Together(models, self.members)

    def _narrowed(self, source: Source) -> Source:
        """Return the model with the width of a member, its tensors not yet changed.

        Raises:
            UsageError: it has none.
        """
        name, description, share = source.name, source.description, self.alpha / self.members
        if not description.mask.is_full:
            raise UsageError(f"--packed: {name} has lost heads", hint="pack the dense model")
        config = source.family.narrowed(description.config, share)
        if config is None:
            raise UsageError(
                f"--packed: a {description.arch} of {share} of the width is unknown",
                hint="packed are the ViTs of timm and the encoders of transformers whose layers all have the width",
            )
        wide, sizes = _sizes(source, description.config), _sizes(source, config)
        if sizes != [size * share for size in wide]:
            raise UsageError(
                f"--packed: {share} of {wide[0]} heads, a width of {wide[1]} or MLPs of {wide[-1]} is no whole number",
                hint="choose M and ALPHA so that ALPHA / M of each is one",
            )
        uneven = [size for size in sizes if size % self.gamma]
        if uneven:
            raise UsageError(f"--packed: GAMMA {self.gamma} does not divide {uneven[0]} heads or channels of a member")
        masks = [HeadMask.full(source.family.sites(config))]
        return replace(source, description=replace(description, config=config, masks=masks, extra={}))


def _sizes(source: Source, config: Mapping[str, Any]) -> list[int]:
    """Return the heads and width of each site, and the sides of the matrices of the MLPs.

    Raises:
        UsageError: an MLP has layers of several sizes: two layers in one are no neighbouring parts of one whole.
    """
    sites, state = source.family.sites(config), source.family.build(config).state_dict()
    sides = [size for name, tensor in state.items() if _of_mlp(name, tensor, source) for size in tensor.shape]
    if len({*sides} - {sites[0].d_model}) > 1:
        raise UsageError(f"--packed: the MLPs of {source.description.arch} have layers of several sizes")
    return [size for site in sites for size in (site.heads, site.d_model)] + sides


def part_of(
    wide: dict[str, Tensor], source: Source, shapes: dict[str, Tensor], sites: Sequence[Site], start: Fraction
) -> dict[str, Tensor]:
    """Cut a narrow model's weights out of a wide one's: neighbouring heads, channels and neurons.

    They begin at this share of the whole and go on at its beginning when they reach its end. This is hydractl's own
    rule: the paper trains from scratch. The narrow model does not compute what the wide one does.

    Args:
        wide: its tensors.
        source: the wide model.
        shapes: tensors of the narrow model, of which only the shapes are used.
        sites: of the narrow model.
        start: below 1.
    """

    def cut(tensor: Tensor, like: Tensor) -> Tensor:
        for dim, (size, kept) in enumerate(zip(tensor.shape, like.shape, strict=True)):
            if size != kept:
                tensor = tensor.index_select(dim, (torch.arange(kept) + int(size * start)) % size)
        return tensor.clone()

    family, tensors = source.family, dict[str, Tensor]()
    for name, like in shapes.items():
        if family.part(name, sites) != "attention":
            tensors[name] = cut(wide[name], like)
    for whole, site in zip(source.sites, sites, strict=True):
        narrow = family.read(shapes, site)
        own = _changed(family.read(wide, whole), lambda field, tensor, to=narrow: cut(tensor, getattr(to, field)))
        family.write(tensors, site, own)
    return tensors


def _changed(weights: HeadWeights, change: Any) -> HeadWeights:
    """Return the weights with each of its own tensors changed, given the name of its field and itself."""
    own = {f.name: t for f in fields(weights) if isinstance(t := getattr(weights, f.name), Tensor)}
    return replace(weights, **{name: change(name, tensor) for name, tensor in own.items()})


def _group(tensors: dict[str, Tensor], source: Source, gamma: int) -> None:
    """Zero what lies between groups, in place: in attention heads and channels, in MLPs neurons and channels."""

    def diagonal(rows: int, columns: int) -> Tensor:
        row, column = (torch.arange(size) * gamma // size for size in (rows, columns))
        return row[:, None] == column

    def of_heads(field: str, tensor: Tensor) -> Tensor:
        if tensor.dim() < 3:
            return tensor
        if field == "o":  # [heads, d_model, head_dim]
            return tensor * diagonal(*tensor.shape[:2])[:, :, None]
        return tensor * diagonal(tensor.shape[0], tensor.shape[2])[:, None]  # [heads, head_dim, d_model]

    for name, tensor in tensors.items():
        if _of_mlp(name, tensor, source):
            tensors[name] = tensor * diagonal(*tensor.shape)
    for site in source.family.sites(source.description.config):
        source.family.write(tensors, site, _changed(source.family.read(tensors, site), of_heads))


def _of_mlp(name: str, tensor: Tensor, source: Source) -> bool:
    return tensor.dim() == 2 and source.family.part(name, source.sites) == "mlp"


def method(value: str) -> Packed:
    """Return the method that ``--packed`` asks for by ``M,ALPHA[,GAMMA]``."""
    members, alpha, *gamma = value.split(",")
    return Packed(int(members), Fraction(alpha), *map(int, gamma))
