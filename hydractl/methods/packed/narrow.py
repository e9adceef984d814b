"""The narrow networks of Packed-Ensembles, drawn or cut out of the wide one.

A packed network is alpha times as wide as the model and its layers are cut into M groups, between which nothing passes:
with its embedding, its norms and its classifier cut alike it is M networks of alpha / M of the width. Its loss is the
sum of theirs, so each is trained as it would be alone. Within a member gamma cuts each linear layer of the blocks into
further groups; as in the authors' code the embedding and the classifier are not cut by it. The zeros between groups are
stored.
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
from hydractl.training.members import Together


@dataclass(frozen=True)
class Packed:
    """The number of members, the width of all of them together, and the groups within a member."""

    members: int
    alpha: Fraction
    gamma: int = 1

    @property
    def passes(self) -> int:
        """The passes of :class:`hydractl.training.members.MemberMaker`: one for each member."""
        return self.members

    def sources(self, source: Source, seed: int) -> tuple[Source, ...]:
        """Return the narrow members, see :class:`hydractl.training.members.MemberMaker`.

        They are drawn by the seed and those after it where the model is drawn, else parts of its weights
        (:func:`part_of`).
        """
        narrow = self._narrowed(source)
        if source.drawn_by is not None:
            tensors_of_members = self._drawn(narrow, seed)
        else:
            tensors_of_members = self._cut(source, narrow)
        members = []
        for tensors in tensors_of_members:
            if self.gamma > 1:
                _zero_between_groups(tensors, narrow, self.gamma)
            members.append(replace(narrow, tensors=DictTensors(tensors)))
        if self.gamma == 1:
            return tuple(members)
        # Weights that are pruned: trainings leave them zero.
        sparse = {"groups": self.gamma, "params_nonzero": nonzero_parameters(members[0].tensors)}
        description = replace(narrow.description, extra={"sparse": sparse})
        return tuple(replace(member, description=description) for member in members)

    def model(self, models: Sequence[HydraModel], source: Source, seed: int) -> Together:
        """Join the members, see :class:`hydractl.training.members.MemberMaker`."""
        return Together(models, self.members)

    def _drawn(self, narrow: Source, seed: int) -> list[dict[str, Tensor]]:
        """Draw the weights of each member by a seed of its own."""
        config = narrow.description.config
        return [narrow.family.initial(config, seed + member) for member in range(self.members)]

    def _cut(self, source: Source, narrow: Source) -> list[dict[str, Tensor]]:
        """Cut the weights of each member out of the wide model."""
        shapes = dict(source.family.build(narrow.description.config).state_dict())
        wide = {name: source.tensors.read(name) for name in source.tensors.names()}
        tensors_of_members = []
        for member in range(self.members):
            start = Fraction(member, self.members)
            tensors_of_members.append(part_of(wide, source, shapes, narrow.sites, start))
        return tensors_of_members

    def _narrowed(self, source: Source) -> Source:
        """Return the model with the width of a member, its tensors not yet changed.

        Raises:
            UsageError: it has none.
        """
        name = source.name
        description = source.description
        share = self.alpha / self.members
        if not description.mask.is_full:
            raise UsageError(f"--ensemble packed: {name} has lost heads", hint="pack the dense model")
        config = source.family.narrowed(description.config, share)
        if config is None:
            raise UsageError(
                f"--ensemble packed: a {description.arch} of {share} of the width is unknown",
                hint="packed are the ViTs of timm and the encoders of transformers whose layers all have the width",
            )
        wide_sizes = _sizes(source, description.config)
        sizes = _sizes(source, config)
        if sizes != [size * share for size in wide_sizes]:
            heads, width, mlp = wide_sizes[0], wide_sizes[1], wide_sizes[-1]
            raise UsageError(
                f"--ensemble packed: {share} of {heads} heads, a width of {width} or MLPs of {mlp} is no whole number",
                hint="choose M and ALPHA so that ALPHA / M of each is one",
            )
        uneven = [size for size in sizes if size % self.gamma]
        if uneven:
            raise UsageError(
                f"--ensemble packed: GAMMA {self.gamma} does not divide {uneven[0]} heads or channels of a member"
            )
        full = HeadMask.full(source.family.sites(config))
        narrow_description = replace(description, config=config, masks=[full], extra={})
        return replace(source, description=narrow_description)


def _sizes(source: Source, config: Mapping[str, Any]) -> list[int]:
    """Return the heads and width of each site, and the sides of the matrices of the MLPs.

    Raises:
        UsageError: an MLP has layers of several sizes: two layers in one are no neighbouring parts of one whole.
    """
    sites = source.family.sites(config)
    sizes = []
    for site in sites:
        sizes += [site.heads, site.d_model]
    sides = []
    for name, tensor in source.family.build(config).state_dict().items():
        if _is_mlp_matrix(name, tensor, source):
            sides += tensor.shape
    inner_sizes = set(sides) - {sites[0].d_model}
    if len(inner_sizes) > 1:
        raise UsageError(f"--ensemble packed: the MLPs of {source.description.arch} have layers of several sizes")
    return sizes + sides


# --- parts of a wide model --------------------------------------------------------------------------------------------


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
    family = source.family
    tensors: dict[str, Tensor] = {}
    for name, like in shapes.items():
        if family.part(name, sites) != "attention":
            tensors[name] = _cut_to(wide[name], like, start)
    for wide_site, site in zip(source.sites, sites, strict=True):
        wide_heads = family.read(wide, wide_site)
        like_heads = family.read(shapes, site)
        cut_heads: dict[str, Any] = {}
        for field, tensor in _tensor_fields(wide_heads).items():
            cut_heads[field] = _cut_to(tensor, getattr(like_heads, field), start)
        family.write(tensors, site, replace(wide_heads, **cut_heads))
    return tensors


def _cut_to(tensor: Tensor, like: Tensor, start: Fraction) -> Tensor:
    """Cut a tensor to the shape of another one, along each dimension from this share on and around its end."""
    for dim, (size, kept) in enumerate(zip(tensor.shape, like.shape, strict=True)):
        if size != kept:
            first = int(size * start)
            indices = (torch.arange(kept) + first) % size
            tensor = tensor.index_select(dim, indices)
    return tensor.clone()


def _tensor_fields(weights: HeadWeights) -> dict[str, Tensor]:
    """Return the tensors among the fields of weights, by the names of the fields."""
    tensors = {}
    for field in fields(weights):
        value = getattr(weights, field.name)
        if isinstance(value, Tensor):
            tensors[field.name] = value
    return tensors


# --- groups -----------------------------------------------------------------------------------------------------------


def _zero_between_groups(tensors: dict[str, Tensor], source: Source, gamma: int) -> None:
    """Zero what lies between groups, in place: in attention heads and channels, in MLPs neurons and channels."""
    for name, tensor in tensors.items():
        if _is_mlp_matrix(name, tensor, source):
            rows, columns = tensor.shape
            tensors[name] = tensor * _same_group(rows, columns, gamma)
    for site in source.family.sites(source.description.config):
        heads = source.family.read(tensors, site)
        grouped: dict[str, Any] = {}
        for field, tensor in _tensor_fields(heads).items():
            grouped[field] = _zero_between_heads(field, tensor, gamma)
        source.family.write(tensors, site, replace(heads, **grouped))


def _zero_between_heads(field: str, tensor: Tensor, gamma: int) -> Tensor:
    """Return a tensor of :class:`HeadWeights` without what lies between groups of heads and channels."""
    if tensor.dim() < 3:
        return tensor
    if field == "o":  # [heads, d_model, head_dim]
        heads, channels, _ = tensor.shape
        return tensor * _same_group(heads, channels, gamma)[:, :, None]
    heads, _, channels = tensor.shape  # [heads, head_dim, d_model]
    return tensor * _same_group(heads, channels, gamma)[:, None]


def _same_group(rows: int, columns: int, gamma: int) -> Tensor:
    """Return whether each row and column are of one group, bool ``[rows, columns]``."""
    group_of_row = torch.arange(rows) * gamma // rows
    group_of_column = torch.arange(columns) * gamma // columns
    return group_of_row[:, None] == group_of_column


def _is_mlp_matrix(name: str, tensor: Tensor, source: Source) -> bool:
    return tensor.dim() == 2 and source.family.part(name, source.sites) == "mlp"
