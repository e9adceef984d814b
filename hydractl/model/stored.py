"""The stored weights of a model: those of its members, with fewer heads, and whether they are what they should be.

What all members share stands under stock names, the rest under ``members.M.``. The heads of a site that are equal in
all members that have them are stored once too: the tensors of its attention then stand under their stock names and hold
every head that any member has, in ascending order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor

from hydractl.errors import InputError, NonFiniteError, UsageError
from hydractl.families import classes_of
from hydractl.families.base import ModelFamily, attention_names, read_heads
from hydractl.families.pixels import input_size
from hydractl.files.checkpoint import FileTensors, MappedTensors, TensorSource, is_finite, read_piece
from hydractl.files.description import Description
from hydractl.files.header import TensorInfo, meta_tensor, same_names, tensor_info, torch_dtype
from hydractl.heads.mask import HeadMask, Site
from hydractl.heads.weights import HeadWeights

Edit = Callable[[Site, HeadWeights], HeadWeights]


# --- members ----------------------------------------------------------------------------------------------------------


def member_name(name: str, member: int) -> str:
    """Where the tensor ``name`` of one member stands in a fused file; what all share keeps its stock name."""
    return f"members.{member}.{name}"


class MemberTensors(MappedTensors):
    """The tensors of one member of a fused source under their stock names, as they are stored.

    Attributes:
        stored: by stock name, the name in the file.
    """

    def __init__(self, tensors: TensorSource, member: int) -> None:
        prefix = member_name("", member)
        names = tensors.names()
        self.stored = {n: n for n in names if not n.startswith("members.")}
        self.stored.update({n.removeprefix(prefix): n for n in names if n.startswith(prefix)})
        infos = {name: tensors.info(stored) for name, stored in self.stored.items()}
        super().__init__(infos, lambda name: tensors.read(self.stored[name]))


def sites_stored_once(tensors: TensorSource, family: ModelFamily, sites: Sequence[Site]) -> set[str]:
    """The paths of the sites whose attention stands under stock names; all of them in a model of one member."""
    names = [name for name in tensors.names() if not name.startswith("members.")]
    return {site.path for site in sites if attention_names(family, names, sites, site)}


def union(masks: Sequence[HeadMask], path: str) -> tuple[int, ...]:
    """Every head that any member has at a site, ascending."""
    return tuple(sorted({head for mask in masks for head in mask.kept[path]}))


def held_mask(masks: Sequence[HeadMask], member: int, once: Collection[str]) -> HeadMask:
    """The heads that stand under the names of one member: its own, or at the sites of ``once`` those of all members."""
    mask = masks[member]
    return HeadMask(mask.heads, {p: union(masks, p) if p in once else kept for p, kept in mask.kept.items()})


# --- fewer heads ------------------------------------------------------------------------------------------------------


class EditedHeads:
    """A tensor source whose attention weights pass through ``edit``, one site at a time.

    Shapes and dtypes are found by running the edit on meta tensors, so a plan costs no weights.

    Args:
        source: holds the heads of ``present``.
    """

    def __init__(
        self, source: TensorSource, family: ModelFamily, sites: Sequence[Site], present: HeadMask, edit: Edit
    ) -> None:
        self.source, self.family, self.present, self.edit = source, family, present, edit
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
        weights = read_heads(self.family, tensors, site, self.present.kept[site.path])
        self.family.write(result, site, self.edit(site, weights))
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
        tensors = {name: self._tensors.read(name).to(self._dtype) for name in names}
        return read_heads(self._family, tensors, site, self.description.mask.kept[site.path])


def sliced(
    source: TensorSource, family: ModelFamily, sites: Sequence[Site], present: HeadMask, kept: HeadMask
) -> EditedHeads:
    """Only the heads of ``kept``, from weights that hold the heads of ``present``."""

    def edit(site: Site, weights: HeadWeights) -> HeadWeights:
        here = present.kept[site.path]
        return weights.select([here.index(h) for h in kept.kept[site.path]])

    return EditedHeads(source, family, sites, present, edit)


def zeroed(
    source: TensorSource, family: ModelFamily, sites: Sequence[Site], present: HeadMask, kept: HeadMask
) -> EditedHeads:
    """Stock shapes: heads of ``present`` in their places, output columns zero for all that ``kept`` lacks."""

    def edit(site: Site, weights: HeadWeights) -> HeadWeights:
        heads = range(site.heads)
        full = weights.expanded(present.kept[site.path], site.heads, site.key_heads(heads))
        return full.zeroed([h for h in heads if h not in kept.kept[site.path]])

    return EditedHeads(source, family, sites, present, edit)


# --- checks -----------------------------------------------------------------------------------------------------------


def check_tensors(origin: str, tensors: TensorSource, family: ModelFamily, description: Description) -> None:
    """Names and shapes of every member against the library's own model and the kept heads."""
    sites = family.sites(description.config)
    if [(s.path, s.heads) for s in sites] != list(description.masks[0].heads.items()):
        raise InputError(f"{origin} describes other attention blocks than its architecture {description.arch} has")
    shape = family.image_shape(description.config)
    if shape is not None and (size := input_size(description.preprocess)) != shape:  # before anything is made of it
        raise InputError(f"{origin} prepares images of {size}, its model takes {shape}")
    family.collate(description.preprocess)  # refuses what it does not understand
    problems: list[str] = []
    classes = classes_of(description)
    if description.labels is not None and classes is not None and len(description.labels) != classes:
        problems.append(f"{len(description.labels)} labels for {classes} classes")
    if description.prompt is not None:
        try:
            family.prompts(description.config, description.preprocess, ["a"], description.prompt)
        except UsageError as error:  # what a file says is no usage
            problems.append(error.message)
    stock = family.build(description.config).state_dict()
    once = sites_stored_once(tensors, family, sites)
    for index in range(len(description.masks)):
        member = MemberTensors(tensors, index)
        problems += same_names(member, stock, origin)
        shapes = _expected_shapes(stock, family, sites, held_mask(description.masks, index, once))
        for tensor_name in sorted(set(member) & set(shapes)):
            info = member.info(tensor_name)
            if info.shape != shapes[tensor_name]:
                problems.append(f"tensor {tensor_name!r} is {list(info.shape)}, expected {list(shapes[tensor_name])}")
            if stock[tensor_name].is_floating_point() and not torch_dtype(info).is_floating_point:
                problems.append(f"tensor {tensor_name!r} is {info.dtype}, expected a floating point number")
    problems += _misplaced(tensors, description, family, sites)
    if problems:
        raise InputError(f"{origin} does not hold the weights of {description.arch}", problems=problems[:40])


def _misplaced(
    tensors: TensorSource, description: Description, family: ModelFamily, sites: Sequence[Site]
) -> list[str]:
    """Names that no member would read, and what some members own and others share: tensors, or parts of a site."""
    if description.kind != "fused":
        return [f"unexpected tensor {n!r}" for n in tensors.names() if n.startswith("members.")][:10]
    views = [MemberTensors(tensors, m) for m in range(len(description.masks))]
    read = {stored for view in views for stored in view.stored.values()}
    unread = [f"unexpected tensor {n!r}" for n in tensors.names() if n not in read]
    owned = {n for view in views for n, stored in view.stored.items() if n != stored}
    shared = {n for view in views for n, stored in view.stored.items() if n == stored}
    once = sites_stored_once(tensors, family, sites)
    mixed = [
        f"the attention of {site.path} belongs partly to all members and partly to one"
        for site in sites
        if site.path in once and attention_names(family, owned, sites, site)
    ]
    both = [f"tensor {n!r} belongs to all members and to one" for n in sorted(owned & shared)]
    return unread[:10] + mixed[:10] + both[:10]


def _expected_shapes(
    stock: Mapping[str, Tensor], family: ModelFamily, sites: Sequence[Site], mask: HeadMask
) -> dict[str, tuple[int, ...]]:
    tensors = dict(stock)
    for site in sites:
        whole = read_heads(family, stock, site, range(site.heads))
        family.write(tensors, site, whole.select(mask.kept[site.path]))
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def check_finite(name: str, tensors: TensorSource) -> None:
    """Refuse weights with NaN or infinity, and a file of nothing but zeros.

    Raises:
        NonFiniteError: naming the first such tensor.
        InputError: every number of a file is zero.
    """
    if isinstance(tensors, FileTensors):  # the pass that hashed the file has seen it
        if tensors.scan().empty:
            raise InputError(f"{tensors.path} is damaged: every number in it is zero", hint="restore it from a copy")
        bad = iter(tensors.scan().not_finite)
    else:
        bad = (tensor_name for tensor_name in tensors.names() if not is_finite(tensors.read(tensor_name)))
    for tensor_name in bad:
        raise NonFiniteError(f"{name}: tensor {tensor_name!r} holds NaN or infinity")
