"""Removing heads from stored weights, tensor by tensor: nothing is read before it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from hydractl.families.base import ModelFamily, attention_names
from hydractl.files.checkpoint import TensorSource, read_piece
from hydractl.files.description import Description
from hydractl.files.header import TensorInfo, meta_tensor, tensor_info
from hydractl.heads.mask import HeadMask, Site
from hydractl.heads.weights import HeadWeights

Edit = Callable[[Site, HeadWeights], HeadWeights]


class EditedHeads:
    """A tensor source whose attention weights pass through ``edit``, one site at a time.

    Shapes and dtypes are found by running the edit on meta tensors, so a plan costs no weights.
    """

    def __init__(self, source: TensorSource, family: ModelFamily, sites: Sequence[Site], edit: Edit) -> None:
        self.source, self.family, self.edit = source, family, edit
        names = source.names()
        self._site_of: dict[str, Site] = {}
        self._infos: dict[str, TensorInfo] = {}
        for site in sites:
            members = attention_names(family, names, sites, site)
            for name, tensor in self._edited(site, {n: meta_tensor(source.info(n)) for n in members}).items():
                self._site_of[name] = site
                self._infos[name] = tensor_info(tensor)
        self._cached: tuple[str, Mapping[str, Tensor]] | None = None

    def _edited(self, site: Site, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        result = dict(tensors)
        self.family.write(result, site, self.edit(site, self.family.read(tensors, site)))
        return result

    def names(self) -> list[str]:
        """All tensor names, sorted."""
        return self.source.names()

    def info(self, name: str) -> TensorInfo:
        """Dtype and shape after the edit."""
        return self._infos[name] if name in self._infos else self.source.info(name)

    def read(self, name: str) -> Tensor:
        """One tensor after the edit."""
        site = self._site_of.get(name)
        if site is None:
            return self.source.read(name)
        # The tensors of one site are asked for in a row, so one site in memory is enough.
        if self._cached is None or self._cached[0] != site.path:
            members = [n for n, s in self._site_of.items() if s.path == site.path]
            self._cached = (site.path, self._edited(site, {n: self.source.read(n) for n in members}))
        return self._cached[1][name]

    def read_piece(self, name: str, start: int, stop: int) -> Tensor:
        """Some elements of one tensor after the edit, in storage order."""
        if name in self._site_of:
            return self.read(name).reshape(-1)[start:stop]
        return read_piece(self.source, name, start, stop)


class StoredHeads:
    """The heads of a source as a criterion sees those of a model, read when it asks for them: one site in memory.

    Attributes:
        description, sites: as those of :class:`hydractl.model.runtime.HydraModel`.
    """

    def __init__(
        self, tensors: TensorSource, description: Description, family: ModelFamily, dtype: torch.dtype
    ) -> None:
        self.description, self.sites = description, family.sites(description.config)
        self._tensors, self._family, self._dtype = tensors, family, dtype

    def head_weights(self, site_index: int) -> HeadWeights:
        """The attention weights of one site, on the CPU."""
        site = self.sites[site_index]
        names = attention_names(self._family, self._tensors.names(), self.sites, site)
        return self._family.read({name: self._tensors.read(name).to(self._dtype) for name in names}, site)


def sliced(
    source: TensorSource, family: ModelFamily, sites: Sequence[Site], present: HeadMask, kept: HeadMask
) -> EditedHeads:
    """Only the heads of ``kept``, from weights that hold the heads of ``present``."""

    def edit(site: Site, weights: HeadWeights) -> HeadWeights:
        here = present.kept[site.path]
        return weights.select([here.index(h) for h in kept.kept[site.path]])

    return EditedHeads(source, family, sites, edit)


def zeroed(
    source: TensorSource, family: ModelFamily, sites: Sequence[Site], present: HeadMask, kept: HeadMask
) -> EditedHeads:
    """Stock shapes: heads of ``present`` in their places, output columns zero for all that ``kept`` lacks."""

    def edit(site: Site, weights: HeadWeights) -> HeadWeights:
        full = weights.expanded(present.kept[site.path], site.heads)
        return full.zeroed([h for h in range(site.heads) if h not in kept.kept[site.path]])

    return EditedHeads(source, family, sites, edit)
