"""The narrow networks of Packed-Ensembles, drawn or cut out of the wide one.

A packed network is alpha times as wide as the model, and its layers are cut into M groups that exchange nothing. Its
embedding, norms and classifier are cut in the same way, so it consists of M networks of alpha / M times the width. Its
loss is the sum of their losses, so each is trained as if it were alone. Within a member, gamma cuts each linear layer
of the blocks into further groups, but not the embedding and the classifier, as in the authors' code. The zeros between
groups are stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction

import torch
from torch import Tensor

from hydractl.errors import UsageError
from hydractl.families.config_json import LibraryConfig
from hydractl.files.checkpoint import DictTensors
from hydractl.heads.mask import HeadMask, Site
from hydractl.heads.weights import HeadWeights
from hydractl.methods.classifiers.one_body import draw_members
from hydractl.model.cost import nonzero_parameters
from hydractl.model.runtime import HydraModel
from hydractl.model.source import Source
from hydractl.model.stored import stock_tensors
from hydractl.training.members import Together


@dataclass(frozen=True)
class Packed:
    """Makes the narrow networks of Packed-Ensembles.

    Attributes:
        members: the number of networks.
        alpha: the width of all of them together, as a multiple of the width of the model.
        gamma: the number of groups within each network.
    """

    members: int
    alpha: Fraction
    gamma: int = 1

    @property
    def passes(self) -> int:
        """See :class:`hydractl.training.members.MemberMaker`: a sample passes through each member once."""
        return self.members

    def sources(self, source: Source, seed: int) -> tuple[Source, ...]:
        """Return the narrow members; see :class:`hydractl.training.members.MemberMaker`.

        If the weights of the model are random, those of the members are drawn with the seed and the seeds after it.
        Otherwise they are cut out of the model's weights (:func:`part_of`).
        """
        narrow = self._narrowed(source)
        if source.drawn_by is not None:
            tensors_of_members = draw_members(narrow, self.members, seed)
        else:
            tensors_of_members = self._cut(source, narrow)

        # Cut each member into groups, and declare the zeros between them. Heads, channels and neurons are each cut into
        # groups of neighbours; a weight is kept if it connects a head or a neuron with a channel of the same group.
        if self.gamma > 1:
            for tensors in tensors_of_members:
                # The matrices of the MLPs.
                for name, tensor in tensors.items():
                    if _is_mlp_matrix(name, tensor, narrow):
                        rows, columns = tensor.shape
                        tensors[name] = tensor * _same_group(rows, columns, self.gamma)

                # The weights of the heads, site by site; a site is an attention block.
                for site in narrow.family.sites(narrow.description.config):
                    heads = narrow.family.read(tensors, site)
                    zeroed: dict[str, Tensor] = {}
                    for field, tensor in _tensor_fields(heads).items():
                        zeroed[field] = _zero_between_heads(field, tensor, self.gamma)
                    narrow.family.write(tensors, site, _with_fields(heads, zeroed))

            # Trainings leave the zeros that are declared zero.
            nonzero = nonzero_parameters(DictTensors(tensors_of_members[0]))
            sparse = {"groups": self.gamma, "params_nonzero": nonzero}
            description = replace(narrow.description, extra={"sparse": sparse})
            narrow = replace(narrow, description=description)
        members = []
        for tensors in tensors_of_members:
            members.append(replace(narrow, tensors=DictTensors(tensors)))
        return tuple(members)

    def model(self, models: Sequence[HydraModel], source: Source, seed: int) -> Together:
        """Join the members into the model that is trained; see :class:`hydractl.training.members.MemberMaker`."""
        return Together(models, self.members)

    def _cut(self, source: Source, narrow: Source) -> list[dict[str, Tensor]]:
        """Cut the weights of each member out of the wide model, and return the tensors of each member by name.

        Args:
            source: the wide model.
            narrow: a model with the configuration of a member, from which only shapes are taken.
        """
        wide = {}
        for name in source.tensors.names():
            wide[name] = source.tensors.read(name)
        shapes = stock_tensors(source.family, narrow.description.config)

        tensors_of_members = []
        for member in range(self.members):
            start = Fraction(member, self.members)  # member i begins at i / M of the width
            tensors = part_of(wide, source, shapes, narrow.sites, start)
            tensors_of_members.append(tensors)
        return tensors_of_members

    def _narrowed(self, source: Source) -> Source:
        """Return the model with the configuration of a member, but still with the wide tensors.

        A member has the share ALPHA / M of each size: with M = 3 and ALPHA = 2, 4 of 6 heads and a width of 256 of 384.

        Raises:
            UsageError: a member of this width is not possible: the model has lost heads, its architecture has no
                narrow form, or ALPHA / M or GAMMA does not divide its sizes.
        """
        name = source.name
        description = source.description
        share = self.alpha / self.members
        if not description.mask.is_full:
            raise UsageError(f"--ensemble packed: {name} has lost heads", hint="pack the dense model")

        # The configuration of a member; None if the family cannot make one.
        config = source.family.narrowed(description.config, share)
        if config is None:
            raise UsageError(
                f"--ensemble packed: a {description.arch} of {share} of the width is unknown",
                hint="packed are the ViTs of timm and the encoders of transformers whose layers all have the width",
            )

        # Every size must be exactly the wanted share of the wide size, so a size that is not whole is an error.
        wide_sizes = _sizes(source, description.config)
        wanted_sizes = [size * share for size in wide_sizes]
        sizes = _sizes(source, config)
        if sizes != wanted_sizes:
            heads, width, mlp = wide_sizes[0], wide_sizes[1], wide_sizes[-1]
            raise UsageError(
                f"--ensemble packed: {share} of {heads} heads, a width of {width} or MLPs of {mlp} is no whole number",
                hint="choose M and ALPHA so that ALPHA / M of each is one",
            )

        # Groups must divide every size.
        uneven = [size for size in sizes if size % self.gamma]
        if uneven:
            raise UsageError(
                f"--ensemble packed: GAMMA {self.gamma} does not divide {uneven[0]} heads or channels of a member"
            )
        sites = source.family.sites(config)
        full_mask = HeadMask.full(sites)
        narrow_description = replace(description, config=config, masks=[full_mask], extra={})
        return replace(source, description=narrow_description)


def _sizes(source: Source, config: LibraryConfig) -> list[int]:
    """Return all sizes that a narrow model scales: heads and width of each site, then the sides of the MLPs' matrices.

    E.g. for one block of a ViT-S they are [6, 384, 1536, 384, 384, 1536].

    Args:
        source: the wide model, whose family knows the layout.
        config: the configuration of the model whose sizes are returned, e.g. of a narrow one.

    Raises:
        UsageError: the MLPs have layers of several inner sizes. A layer may then hold two layers side by side, from
            which neighbouring rows cannot be cut.
    """
    sites = source.family.sites(config)
    sizes = []
    for site in sites:
        sizes.append(site.heads)
        sizes.append(site.d_model)

    # Rows and columns of the MLPs' matrices. One of the two is always the width, the other an inner size.
    sides: list[int] = []
    for name, tensor in stock_tensors(source.family, config).items():
        if _is_mlp_matrix(name, tensor, source):
            sides += tensor.shape
    inner_sizes = set(sides) - {sites[0].d_model}
    if len(inner_sizes) > 1:
        raise UsageError(f"--ensemble packed: the MLPs of {source.description.arch} have layers of several sizes")
    return sizes + sides


# --- parts of a wide model --------------------------------------------------------------------------------------------


def part_of(
    wide: dict[str, Tensor], source: Source, shapes: Mapping[str, Tensor], sites: Sequence[Site], start: Fraction
) -> dict[str, Tensor]:
    """Return the weights of a narrow model, cut out of a wide one: neighbouring heads, channels and neurons.

    The cut begins at the share ``start`` of each size, and continues at the beginning when it reaches the end: with
    ``start`` 2/3, 4 of 6 heads are 4, 5, 0 and 1. This is a rule of hydractl, as the paper trains from scratch. The
    narrow model does not compute what the wide one computes.

    Args:
        wide: the tensors of the wide model, by name.
        source: the wide model.
        shapes: the tensors of a narrow model, by name. Only their shapes are used.
        sites: the sites (attention blocks) of the narrow model.
        start: the share of each size where the cut begins, at least 0 and below 1.

    Returns:
        The tensors of the narrow model, by name.
    """
    family = source.family
    tensors: dict[str, Tensor] = {}

    # Outside attention: cut each tensor to its narrow shape.
    for name, like in shapes.items():
        if family.part(name, sites) != "attention":
            tensors[name] = _cut_to(wide[name], like, start)

    # In attention, a tensor may hold queries, keys and values on top of each other, so it cannot be cut as a whole.
    # Read the weights of the heads from it (queries, keys, ... as separate fields), and cut each field to its narrow
    # shape.
    for wide_site, narrow_site in zip(source.sites, sites, strict=True):
        wide_heads = family.read(wide, wide_site)
        narrow_shapes = family.read(shapes, narrow_site)
        cut_fields: dict[str, Tensor] = {}
        for field, tensor in _tensor_fields(wide_heads).items():
            like = getattr(narrow_shapes, field)
            cut_fields[field] = _cut_to(tensor, like, start)
        narrow_heads = _with_fields(wide_heads, cut_fields)
        family.write(tensors, narrow_site, narrow_heads)  # adds the library's tensors of this site to `tensors`
    return tensors


def _cut_to(tensor: Tensor, like: Tensor, start: Fraction) -> Tensor:
    """Cut a tensor to the shape of ``like``.

    Along each dimension the cut begins at the share ``start`` and continues at the beginning if it reaches the end.
    """
    sizes = zip(tensor.shape, like.shape, strict=True)
    for dim, (size, narrow_size) in enumerate(sizes):
        if narrow_size == size:
            continue
        # Neighbouring indices from `first` on, modulo the size.
        first = int(size * start)
        indices = (torch.arange(narrow_size) + first) % size
        tensor = tensor.index_select(dim, indices)
    return tensor.clone()


def _tensor_fields(weights: HeadWeights) -> dict[str, Tensor]:
    """Return the fields of weights that are tensors, by field name."""
    tensors = {}
    for field in fields(weights):
        value = getattr(weights, field.name)
        if isinstance(value, Tensor):
            tensors[field.name] = value
    return tensors


def _with_fields(weights: HeadWeights, tensors: Mapping[str, Tensor]) -> HeadWeights:
    """Return weights with some of their tensor fields replaced, given by field name."""
    return replace(weights, **tensors)  # type: ignore[arg-type]  # only fields of tensors are named


# --- groups -----------------------------------------------------------------------------------------------------------


def _zero_between_heads(field: str, tensor: Tensor, gamma: int) -> Tensor:
    """Return a tensor of :class:`HeadWeights` with zeros where a head and a channel belong to different groups.

    A tensor with fewer than 3 dimensions, e.g. a bias, connects nothing and is returned unchanged.

    Args:
        field: the name of the tensor's field; ``o`` is the output projection.
        tensor: one tensor of the heads of a site.
        gamma: the number of groups.
    """
    if tensor.dim() < 3:
        return tensor
    if field == "o":
        heads, channels, _ = tensor.shape  # [heads, d_model, head_dim]
        same_group = _same_group(heads, channels, gamma)
        return tensor * same_group[:, :, None]
    heads, _, channels = tensor.shape  # [heads, head_dim, d_model]
    same_group = _same_group(heads, channels, gamma)
    return tensor * same_group[:, None]


def _same_group(rows: int, columns: int, gamma: int) -> Tensor:
    """Return whether a row and a column belong to the same of ``gamma`` groups, bool ``[rows, columns]``."""
    row_numbers = torch.arange(rows)
    column_numbers = torch.arange(columns)
    group_of_row = row_numbers * gamma // rows
    group_of_column = column_numbers * gamma // columns
    return group_of_row[:, None] == group_of_column


def _is_mlp_matrix(name: str, tensor: Tensor, source: Source) -> bool:
    """Return whether a tensor is the weight matrix of a linear layer of an MLP."""
    if tensor.dim() != 2:
        return False
    part = source.family.part(name, source.sites)
    return part == "mlp"
