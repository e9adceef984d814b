"""What the members of a fused model have in common, found by comparing their weights; it is stored once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hydractl.families.base import attention_names
from hydractl.files.header import TensorInfo, meta_tensor, tensor_info
from hydractl.heads.mask import Site
from hydractl.heads.weights import PER_HEAD, HeadWeights
from hydractl.model.source import Source

Owners = Sequence[tuple[int, int]]
"""For every head of a site that any member has, ascending: a member that has it, and its position there."""


def equal_names(sources: Sequence[Source], names: Sequence[str]) -> set[str]:
    """The tensors whose every element is the same in all members."""
    first, *others = sources
    equal = set()
    for name in names:
        tensor = first.tensors.read(name)
        if all(torch.equal(tensor, other.tensors.read(name)) for other in others):
            equal.add(name)
    return equal


def common_heads(sources: Sequence[Source], site: Site) -> Owners | None:
    """Where to find every head of a site, when each is the same in all members that have it.

    None where a head differs between two members, or what belongs to no head does.
    """
    blocks = [_weights(source, site) for source in sources]
    kept = [source.description.mask.kept[site.path] for source in sources]
    first = blocks[0]
    if not all(_same(first.o_bias, b.o_bias) for b in blocks) or not all(
        first.extra.keys() == b.extra.keys() and all(_same(first.extra[n], b.extra[n]) for n in b.extra) for b in blocks
    ):
        return None
    found: dict[int, tuple[int, int]] = {}
    for member, heads in enumerate(kept):
        for position, head in enumerate(heads):
            owner, where = found.setdefault(head, (member, position))
            if owner != member and not _same_head(blocks[owner], where, blocks[member], position):
                return None
    return [found[head] for head in sorted(found)]


def _weights(source: Source, site: Site) -> HeadWeights:
    names = attention_names(source.family, source.tensors.names(), source.sites, site)
    return source.family.read({name: source.tensors.read(name) for name in names}, site)


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other is None or (one is not None and other is not None and torch.equal(one, other))


def _same_head(one: HeadWeights, position: int, other: HeadWeights, at: int) -> bool:
    def pick(tensor: Tensor | None, where: int) -> Tensor | None:
        return None if tensor is None else tensor[where]

    return all(_same(pick(getattr(one, n), position), pick(getattr(other, n), at)) for n in PER_HEAD)


class UnitedHeads:
    """The attention tensors of one site under stock names, with the heads of all members in them.

    Args:
        sources: the members.
        site: of all of them.
        owners: from :func:`common_heads`.
    """

    def __init__(self, sources: Sequence[Source], site: Site, owners: Owners) -> None:
        self._sources, self._site, self._owners = sources, site, owners
        self.names = attention_names(sources[0].family, sources[0].tensors.names(), sources[0].sites, site)
        self._infos = self._shapes()

    def _shapes(self) -> dict[str, TensorInfo]:
        """Found on meta tensors, from a member that has a head to take the shape of."""
        source = self._sources[self._owners[0][0] if self._owners else 0]
        tensors = {n: meta_tensor(source.tensors.info(n)) for n in self.names}
        weights = source.family.read(tensors, self._site).select([0] * len(self._owners))
        source.family.write(tensors, self._site, weights)
        return {name: tensor_info(tensor) for name, tensor in tensors.items()}

    def info(self, name: str) -> TensorInfo:
        """Dtype and shape of one tensor."""
        return self._infos[name]

    def read(self) -> dict[str, Tensor]:
        """All tensors of the site."""
        members = sorted({member for member, _ in self._owners}) or [0]
        blocks = {member: _weights(self._sources[member], self._site) for member in members}
        heads = [(blocks[member], position) for member, position in self._owners]
        weights = HeadWeights.gathered(heads) if heads else blocks[0]
        tensors = {n: self._sources[0].tensors.read(n) for n in self.names}
        self._sources[0].family.write(tensors, self._site, weights)
        return tensors
