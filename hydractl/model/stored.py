"""The stored weights of a model: those of single members, with fewer heads, and checks that they are complete.

What all members share is stored under the library's names (stock names), everything else under ``members.M.NAME``. The
heads of a site may be equal in all members that have them. Then they are stored once: the tensors of that attention
block have stock names and hold every head that any member has, in ascending order.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from hydractl.errors import InputError, NonFiniteError, UsageError
from hydractl.families.base import ModelFamily, attention_names, read_heads
from hydractl.families.config_json import LibraryConfig
from hydractl.families.meta_device import plain_sizes
from hydractl.families.pixels import input_size
from hydractl.files.checkpoint import FileTensors, MappedTensors, TensorSource, is_finite, read_piece
from hydractl.files.description import Description
from hydractl.files.header import TensorInfo, meta_tensor, tensor_info, torch_dtype
from hydractl.heads.mask import HeadMask, Site
from hydractl.heads.weights import HeadWeights
from hydractl.jsonio import canonical_json

Edit = Callable[[Site, HeadWeights], HeadWeights]


# --- the library's own model ------------------------------------------------------------------------------------------


def stock_tensors(family: ModelFamily, config: LibraryConfig) -> Mapping[str, Tensor]:
    """Return the tensors of the library's own model, of which only names, dtypes and shapes are meant to be used.

    They are kept for the next calls: to build a model takes longer than all that is done with these.
    """
    return _stock_of_text(family, canonical_json(config))


@functools.lru_cache(maxsize=8)
def _stock_of_text(family: ModelFamily, text: str) -> Mapping[str, Tensor]:
    return family.build(json.loads(text)).state_dict()


# --- members ----------------------------------------------------------------------------------------------------------


def member_name(name: str, member: int) -> str:
    """Return the stored name of the tensor ``name`` of one member, for a tensor that members do not share."""
    return f"members.{member}.{name}"


class MemberTensors(MappedTensors):
    """The tensors of one member of a fused source, by their stock names; removed heads are missing as in the file.

    Attributes:
        stored: the name in the file, by stock name.
    """

    def __init__(self, tensors: TensorSource, member: int) -> None:
        """Find the stored name of every tensor of the member; nothing is read yet."""
        # `stored` is e.g. {"norm.weight": "norm.weight", "head.weight": "members.2.head.weight"}.
        prefix = member_name("", member)
        names = tensors.names()
        self.stored: dict[str, str] = {}

        # First what all members share, then what this member has for itself, which replaces a shared tensor.
        for stored_name in names:
            if not stored_name.startswith("members."):
                self.stored[stored_name] = stored_name
        for stored_name in names:
            if stored_name.startswith(prefix):
                stock_name = stored_name.removeprefix(prefix)
                self.stored[stock_name] = stored_name

        # Look like a source of tensors under the library's own (stock) names.
        infos = {stock_name: tensors.info(stored_name) for stock_name, stored_name in self.stored.items()}

        def read(stock_name: str) -> Tensor:
            return tensors.read(self.stored[stock_name])

        super().__init__(infos, read)


def sites_stored_once(tensors: TensorSource, family: ModelFamily, sites: Sequence[Site]) -> set[str]:
    """Return the paths of the sites whose attention is stored under stock names; all sites if there is one member."""
    stock_names = [name for name in tensors.names() if not name.startswith("members.")]
    paths = set()
    for site in sites:
        if attention_names(family, stock_names, site):
            paths.add(site.path)
    return paths


def heads_of_any_member(masks: Sequence[HeadMask], path: str) -> tuple[int, ...]:
    """Return every head that at least one member has at a site, ascending."""
    heads: set[int] = set()
    for mask in masks:
        heads.update(mask.kept[path])
    return tuple(sorted(heads))


def held_mask(masks: Sequence[HeadMask], member: int, once: Collection[str]) -> HeadMask:
    """Return the heads that the stored tensors of one member hold.

    Where heads are stored once for all members, these are the heads of any member; elsewhere the member's own.

    Args:
        masks: the masks of all members.
        member: the index of the member.
        once: the paths of the sites whose heads are stored once.
    """
    held = dict(masks[member].kept)
    for path in held:
        if path in once:
            held[path] = heads_of_any_member(masks, path)
    return HeadMask(masks[member].heads, held)


# --- fewer heads ------------------------------------------------------------------------------------------------------


class EditedHeads:
    """A tensor source that changes the attention weights of another source by ``edit``, one site at a time.

    Shapes and dtypes are found by running ``edit`` on meta tensors, so no weights are read for them.

    Args:
        source: the tensors to change.
        family, sites: the family of the model, and its attention blocks.
        present: the heads that ``source`` holds.
        edit: a function from a site and its head weights to the new head weights.
    """

    def __init__(
        self, source: TensorSource, family: ModelFamily, sites: Sequence[Site], present: HeadMask, edit: Edit
    ) -> None:
        """Find names, dtypes and shapes after the edit, without reading weights."""
        self.source = source
        self.family = family
        self.present = present
        self.edit = edit
        # The site that was read last, and its edited tensors. Those of one site are read one after another.
        self._cached: tuple[Site, Mapping[str, Tensor]] | None = None
        names = source.names()

        # For each tensor of an attention block: its site, and its dtype and shape after the edit.
        self._site_of: dict[str, Site] = {}
        self._infos: dict[str, TensorInfo] = {}
        for site in sites:
            names_of_site = attention_names(family, names, site)
            # Edit meta tensors, which have no numbers, to find names, dtypes and shapes after the edit.
            without_numbers = {name: meta_tensor(source.info(name)) for name in names_of_site}
            with plain_sizes():
                edited = self._edit_site(site, without_numbers)
            for name, tensor in edited.items():
                self._site_of[name] = site
                self._infos[name] = tensor_info(tensor)

    def _edit_site(self, site: Site, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return all tensors of a site after the edit."""
        present_heads = self.present.kept[site.path]
        weights = read_heads(self.family, tensors, site, present_heads)
        edited_weights = self.edit(site, weights)
        edited = dict(tensors)
        self.family.write(edited, site, edited_weights)
        return edited

    def names(self) -> list[str]:
        """Return all tensor names, sorted."""
        return self.source.names()

    def info(self, name: str) -> TensorInfo:
        """Return dtype and shape of a tensor after the edit."""
        return self._infos[name] if name in self._infos else self.source.info(name)

    def read(self, name: str) -> Tensor:
        """Return one tensor after the edit."""
        site = self._site_of.get(name)
        if site is None:  # the tensor belongs to no attention block
            return self.source.read(name)
        # An edit moves heads of all tensors of the site together, so all of them are read, and kept for the next calls.
        if self._cached is not None:
            cached_site, cached_tensors = self._cached
            if cached_site == site:
                return cached_tensors[name]
        names = [other for other, site_of_other in self._site_of.items() if site_of_other == site]
        tensors = {other: self.source.read(other) for other in names}
        edited = self._edit_site(site, tensors)
        self._cached = (site, edited)
        return edited[name]

    def read_piece(self, name: str, start: int, stop: int) -> Tensor:
        """Return some elements of one tensor after the edit, in storage order."""
        if name not in self._site_of:
            return read_piece(self.source, name, start, stop)
        return self.read(name).reshape(-1)[start:stop]


class StoredHeads:
    """The heads of a source, for a criterion that needs only weights. They are read one site at a time.

    Attributes:
        description, sites: the same attributes as :class:`hydractl.model.runtime.HydraModel` has.
    """

    def __init__(
        self, tensors: TensorSource, description: Description, family: ModelFamily, dtype: torch.dtype
    ) -> None:
        self.description = description
        self.sites = family.sites(description.config)
        self._tensors = tensors
        self._family = family
        self._dtype = dtype

    def head_weights(self, site_index: int) -> HeadWeights:
        """Return the attention weights of one site, head by head, on the CPU and in the dtype asked for."""
        site = self.sites[site_index]
        all_names = self._tensors.names()
        names = attention_names(self._family, all_names, site)
        tensors = {name: self._tensors.read(name).to(self._dtype) for name in names}
        kept = self.description.mask.kept[site.path]
        return read_heads(self._family, tensors, site, kept)


def sliced(
    source: TensorSource, family: ModelFamily, sites: Sequence[Site], present: HeadMask, kept: HeadMask
) -> EditedHeads:
    """Return a source of tensors with only the heads of ``kept``, all of which are among those of ``present``.

    E.g. if the weights hold heads 0, 2, 3 (``present``) and 0, 3 are kept, the first and the third are selected.
    """

    def select_kept(site: Site, weights: HeadWeights) -> HeadWeights:
        """Select the heads to keep from those that are present."""
        present_heads = present.kept[site.path]
        kept_heads = kept.kept[site.path]
        indices = [present_heads.index(head) for head in kept_heads]
        return weights.select(indices)

    return EditedHeads(source, family, sites, present, select_kept)


def zeroed(
    source: TensorSource, family: ModelFamily, sites: Sequence[Site], present: HeadMask, kept: HeadMask
) -> EditedHeads:
    """Return a source of tensors in the shapes of the library's own model, in which removed heads add nothing.

    The heads of ``present`` are put at their original indices. The output columns of all heads that are not in ``kept``
    are zero. E.g. of 4 heads, with 0, 2, 3 present and 0, 3 kept, heads 1 and 2 add nothing.

    Args:
        source: weights that hold the heads of ``present``.
        family, sites: the family of the model, and its attention blocks.
        present: the heads that the weights hold.
        kept: the heads that should have an effect, all of them heads of ``present``.
    """

    def expand_and_zero(site: Site, weights: HeadWeights) -> HeadWeights:
        """Put the heads at their original indices, and set the output of removed heads to zero."""
        all_heads = range(site.heads)
        key_heads = site.key_heads(all_heads)
        present_heads = present.kept[site.path]
        kept_heads = kept.kept[site.path]
        full = weights.expanded(present_heads, site.heads, key_heads)
        removed = [head for head in all_heads if head not in kept_heads]
        return full.zeroed(removed)

    return EditedHeads(source, family, sites, present, expand_and_zero)


# --- checks -----------------------------------------------------------------------------------------------------------


_MOST_PROBLEMS = 5


def check_tensors(
    origin: str, tensors: TensorSource, family: ModelFamily, description: Description, sites: Sequence[Site]
) -> None:
    """Check a model's description and the tensors of every member against the library's own model.

    Args:
        origin: the name of the model in messages.
        tensors: the tensors of the model.
        family: the family of the model.
        description: what the model says about itself.
        sites: the attention blocks that the family finds in the model's configuration.

    Raises:
        InputError: listing everything that does not fit.
    """
    # The attention blocks and the size of images come before anything is built with the sizes in the description.
    heads_of_sites = [(site.path, site.heads) for site in sites]
    described_heads = list(description.masks[0].heads.items())
    if heads_of_sites != described_heads:
        raise InputError(f"{origin} describes other attention blocks than its architecture {description.arch} has")
    shape = family.image_shape(description.config)
    if shape is not None:
        size = input_size(description.preprocess)
        if size != shape:
            raise InputError(f"{origin} prepares images of {size}, its model takes {shape}")

    # Compare the names and shapes of each member's tensors with the library's model, reduced to the kept heads.
    problems = _problems_of_classes(description, family)
    stock = stock_tensors(family, description.config)
    once = sites_stored_once(tensors, family, sites)
    members = [MemberTensors(tensors, member) for member in range(len(description.masks))]
    for member, member_tensors in enumerate(members):
        missing = sorted(set(stock).difference(member_tensors))
        unexpected = sorted(set(member_tensors).difference(stock))
        problems += [f"missing tensor {name!r}" for name in missing[:_MOST_PROBLEMS]]
        problems += [f"unexpected tensor {name!r}" for name in unexpected[:_MOST_PROBLEMS]]
        mask = held_mask(description.masks, member, once)
        shapes = _expected_shapes(stock, family, sites, mask)
        for name in sorted(set(member_tensors).intersection(shapes)):
            info = member_tensors.info(name)
            expected = shapes[name]
            if info.shape != expected:
                problems.append(f"tensor {name!r} is {list(info.shape)}, expected {list(expected)}")
            if stock[name].is_floating_point() and not torch_dtype(info).is_floating_point:
                problems.append(f"tensor {name!r} is {info.dtype}, expected a floating point number")
    if description.kind == "fused":
        problems += _problems_of_sharing(tensors, members, family, sites, once)
    else:
        problems += [f"unexpected tensor {name!r}" for name in tensors.names() if name.startswith("members.")]
    if problems:
        left = len(problems) - _MOST_PROBLEMS
        if left > 0:  # another architecture: a few lines tell as much as all
            problems[_MOST_PROBLEMS:] = [f"and {left} more"]
        raise InputError(f"{origin} does not hold the weights of {description.arch}", problems=problems)
    # Called because it refuses preprocessing that it does not know. It prepares an image of the size in the
    # description, for which memory is set aside only where the weights have that size, too.
    family.collate(description.preprocess)


def _problems_of_classes(description: Description, family: ModelFamily) -> list[str]:
    """Return one message for each thing in the class names and prompts that does not fit the model."""
    problems: list[str] = []
    labels = description.labels
    classes = family.classes(description.config)  # None for a zero-shot model, which takes any number of classes
    if labels is not None and classes is not None and len(labels) != classes:
        problems.append(f"{len(labels)} labels for {classes} classes")
    # Building a prompt for any class name checks the templates.
    if description.prompt is not None:
        try:
            family.prompts(description.config, description.preprocess, ["a"], description.prompt)
        except UsageError as error:  # here the file is wrong, and not the way in which the program is used
            problems.append(error.message)
    return problems


def _problems_of_sharing(
    tensors: TensorSource,
    members: Sequence[MemberTensors],
    family: ModelFamily,
    sites: Sequence[Site],
    once: Collection[str],
) -> list[str]:
    """Return messages about tensors of a fused model under wrong names.

    A tensor that all members share is stored under the library's own (stock) name, e.g. ``norm.weight``; a tensor of
    member 2 alone has ``members.2.`` before it. There are three kinds of mistakes: tensors that no member reads; names
    that some members share while others have their own; and sites that are stored once but also have tensors of single
    members.

    Args:
        tensors, members, family, sites: the model, the tensors of each member, and the attention blocks.
        once: the paths of the sites whose attention is stored once for all members, under stock names.
    """
    read_names: set[str] = set()
    own_names: set[str] = set()
    for member in members:
        read_names.update(member.stored.values())
        own_names.update(name for name, stored_name in member.stored.items() if name != stored_name)
    unread = [name for name in tensors.names() if name not in read_names]
    in_both = sorted(own_names.intersection(read_names))
    mixed_sites = [site.path for site in sites if site.path in once and attention_names(family, own_names, site)]

    problems = [f"unexpected tensor {name!r}" for name in unread]
    problems += [f"tensor {name!r} belongs to all members and to one" for name in in_both]
    problems += [f"the attention of {path} belongs partly to all members and partly to one" for path in mixed_sites]
    return problems


@plain_sizes()
def _expected_shapes(
    stock: Mapping[str, Tensor], family: ModelFamily, sites: Sequence[Site], mask: HeadMask
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors of a library's model with only the heads of a mask, by name."""
    # Cut the heads out of the tensors of each attention block, which have shapes but no numbers.
    tensors = dict(stock)
    for site in sites:
        all_heads = read_heads(family, stock, site, range(site.heads))
        kept_heads = all_heads.select(mask.kept[site.path])
        family.write(tensors, site, kept_heads)
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def check_finite_weights(name: str, tensors: TensorSource) -> None:
    """Refuse weights with NaN or infinity, and a file with nothing but zeros.

    Raises:
        NonFiniteError: naming the first such tensor.
        InputError: if every number of a file is zero.
    """
    not_finite: Iterable[str]  # the names of such tensors
    if isinstance(tensors, FileTensors):
        # All numbers of the file were seen when its hash was computed.
        scan = tensors.scan()
        if scan.empty:
            raise InputError(f"{tensors.path} is damaged: every number in it is zero", hint="restore it from a copy")
        not_finite = scan.not_finite
    else:
        # A generator, so that reading stops at the first such tensor.
        not_finite = (other for other in tensors.names() if not is_finite(tensors.read(other)))
    first = next(iter(not_finite), None)
    if first is not None:
        raise NonFiniteError(f"{name}: tensor {first!r} holds NaN or infinity")
