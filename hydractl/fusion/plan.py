"""Plan of a fusion: each tensor is averaged, stored once because it is equal in all members, or kept per member.

Paper section 4.2. By default MLPs, block and final norms, and embeddings are averaged, the only reading that gives the
paper's parameter count. Everything inside attention, LayerScale, poolers and classifiers stay per member if they
differ. Heads are compared one by one, because members may share some of their heads with equal weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from hydractl.errors import InputError
from hydractl.families.base import MERGEABLE, attention_names, read_heads
from hydractl.families.meta_device import plain_sizes
from hydractl.files.checkpoint import MappedTensors, TensorSource, read_piece, shapes_only
from hydractl.files.description import Description
from hydractl.files.fingerprints import merged as merged_seen
from hydractl.files.fuse_answer import SharedTower
from hydractl.files.header import tensor_info, torch_dtype
from hydractl.heads.mask import Site
from hydractl.heads.weights import OF_KEYS, PER_HEAD, HeadWeights
from hydractl.model.matching import label_differences, length_hint, preprocess_differences
from hydractl.model.runtime import HydraModel
from hydractl.model.source import Source
from hydractl.model.stored import heads_of_any_member, member_name

PIECE = 1 << 16
"""The number of elements of a tensor that are averaged, or compared, at once."""

_MOST_NAMED = 3
"""How many tensors of another dtype are named at most."""


class HeadOwner(NamedTuple):
    """The source of a head: the index of a member that has it, and the head's position among that member's heads."""

    member: int
    position: int


Owners = Sequence[HeadOwner]
"""The owners of the heads of a site: one for every head that any member has, in ascending order of the heads."""


@dataclass(frozen=True)
class FusionPlan:
    """A fusion that has not been carried out yet.

    Attributes:
        description: the description of the fused model.
        tensors: the weights of the fused model, computed when they are read.
        averaged: stock names of the averaged tensors.
        shared: stock names of the other tensors that are stored once, because they are equal in all members.
        own: stock names of the tensors that every member keeps for itself.
        warnings: sentences about oddities of the members that are allowed.
    """

    description: Description
    tensors: FusedTensors
    averaged: Sequence[str]
    shared: Sequence[str]
    own: Sequence[str]
    warnings: Sequence[str]


class _Origin(NamedTuple):
    """The source of a stored tensor: the index of a member (None: all members), and its stock name there."""

    member: int | None
    stock_name: str


class FusedTensors(MappedTensors):
    """The tensors of a fused model, read from the members' files when they are asked for.

    Stock names are the names in the library's own model.

    Args:
        sources: the members.
        averaged: stock names of the tensors that are the mean over members.
        equal: stock names of the tensors that are equal in all members; they are their own mean.
        unions: the sites whose heads are stored once.

    Attributes:
        equal: as above.
    """

    def __init__(
        self, sources: Sequence[Source], averaged: Sequence[str], equal: Sequence[str], unions: Sequence[HeadUnion]
    ) -> None:
        """Work out the names of all stored tensors, and where each comes from; no tensor is read yet."""
        self.sources = [source.tensors for source in sources]
        self.equal = frozenset(equal)
        self._to_average = set(averaged) - self.equal

        # Tensors of sites whose heads are stored once (unions), by their names.
        self._union_of: dict[str, HeadUnion] = {}
        for union_of_site in unions:
            for name in union_of_site.names:
                self._union_of[name] = union_of_site

        # Every stored tensor by its name in the fused model: first the tensors that are stored once, under their names
        # in the library's own model (stock names), then those that each member keeps, under names with its index.
        self._origins: dict[str, _Origin] = {}
        stored_once = {*averaged, *equal, *self._union_of}
        for name in stored_once:
            self._origins[name] = _Origin(None, name)
        for member, tensors in enumerate(self.sources):
            for name in tensors.names():
                if name not in stored_once:
                    stored_name = member_name(name, member)
                    self._origins[stored_name] = _Origin(member, name)

        # The tensors of a site (attention block) are read one after another, so those of the last one are kept.
        self._tensors_of_site = lru_cache(maxsize=1)(HeadUnion.read)

        # Dtype and shape of every stored tensor; those of a tensor of all members (None) are the first member's.
        infos = {}
        for name, (member_or_all, stock_name) in self._origins.items():
            if name in self._union_of:
                infos[name] = self._union_of[name].infos[name]
            else:
                infos[name] = self.sources[member_or_all or 0].info(stock_name)
        super().__init__(infos, self._read)

    def elements(self, stock: Sequence[str]) -> int:
        """Return the number of stored elements of the tensors with these stock names, over all members."""
        wanted = set(stock)
        elements = 0
        for name, origin in self._origins.items():
            if origin.stock_name in wanted:
                elements += self.info(name).numel
        return elements

    def _read(self, name: str) -> Tensor:
        """Return a stored tensor, read from the members' files. By its name it is one of these:

        * a tensor of a site (attention block) whose heads are stored once: the heads of all members, put together;
        * an average: the mean over members, in float64 and rounded once;
        * a tensor of one member, or one that is equal in all: read as it is.
        """
        union_of_site = self._union_of.get(name)
        if union_of_site is not None:
            return self._tensors_of_site(union_of_site)[name]
        member, stock_name = self._origins[name]
        if stock_name in self._to_average:
            # Piece by piece, written into the mean in place.
            info = self.info(stock_name)
            mean = torch.empty(info.shape, dtype=torch_dtype(info))
            pieces_of_mean = mean.view(-1).split(PIECE)
            for piece_of_mean, pieces in zip(pieces_of_mean, pieces_of(self.sources, stock_name), strict=True):
                total = sum(piece.double() for piece in pieces)
                piece_of_mean.copy_(total / len(pieces))
            return mean
        source = self.sources[member or 0]  # a tensor that is equal in all members is read from the first
        return source.read(stock_name)


def pieces_of(tensors_of_members: Sequence[TensorSource], name: str) -> Iterator[list[Tensor]]:
    """Yield pieces of one tensor in storage order, each of all members.

    They fit into the processor's cache: a whole embedding of all members in float64 is big and slow.
    """
    count = tensors_of_members[0].info(name).numel
    for start in range(0, count, PIECE):
        stop = min(start + PIECE, count)
        yield [read_piece(tensors, name, start, stop) for tensors in tensors_of_members]


def plan_fusion(
    sources: Sequence[Source],
    merge: Sequence[str] = MERGEABLE,
    *,
    headers_only: bool = False,
) -> FusionPlan:
    """Return how the members become one model: which tensors are averaged, stored once, or kept by each member.

    A tensor of a part in ``merge`` is averaged. Any other is stored once if it is equal in all members; so are the
    heads of a site if each is equal in all members that have it. Everything else is kept by each member.

    Args:
        sources: dense or pruned models of one architecture; each may keep other heads.
        merge: the parts to average, any of ``mlp``, ``norm``, ``embed``; empty to keep every member whole.
        headers_only: read no weights, and count no tensors as equal; the real fused model may then be smaller.

    Raises:
        InputError: the members differ where they must not; all differences are listed.
    """
    merged_parts = [part for part in MERGEABLE if part in merge]
    check_members(sources)

    # The tensors to average, by the parts they belong to.
    first = sources[0]
    names = first.tensors.names()
    averaged = [name for name in names if first.family.part(name) in merged_parts]

    # Attention: if each head is equal in all members that have it, the heads of the site are stored once (a union).
    unions: list[HeadUnion] = []
    in_attention: set[str] = set()
    for site in first.sites:
        names_of_site = attention_names(first.family, names, site)
        in_attention.update(names_of_site)
        owners: Owners | None = None if headers_only else common_heads(sources, site, names_of_site)
        if owners is not None:
            unions.append(HeadUnion(sources, site, names_of_site, owners))

    # Outside attention, a tensor that is equal in all members is stored once, and need not be averaged.
    elsewhere = [name for name in names if name not in in_attention]
    equal: set[str] = set() if headers_only else equal_names(sources, elsewhere)

    # Every member keeps its own tensor of what is neither averaged nor shared.
    shared = equal.difference(averaged)
    for union_of_site in unions:
        shared.update(union_of_site.names)
    own = set(names).difference(averaged, shared)
    warnings: list[str] = [] if headers_only else _warnings_about_members(sources)
    return FusionPlan(
        description=_fused_description(sources, merged_parts, headers_only),
        tensors=FusedTensors(sources, averaged, sorted(equal), unions),
        averaged=averaged,
        shared=sorted(shared),
        own=sorted(own),
        warnings=warnings,
    )


def _fused_description(sources: Sequence[Source], merged: Sequence[str], headers_only: bool) -> Description:
    """Return the description of the fused model: one head mask and one provenance for each member.

    What must be equal in all members comes from the first. With ``headers_only`` no weights are read, so the members
    have no SHA-256.
    """
    descriptions = [source.description for source in sources]
    first = descriptions[0]
    masks = [description.mask for description in descriptions]
    seen_by_members = [description.seen for description in descriptions]

    # The origin on the hub, if all members have the same.
    origins = {description.origin for description in descriptions}
    common_origin = first.origin if len(origins) == 1 else None

    # Take class names and prompt from the first member that names its classes.
    named = next((description for description in descriptions if description.labels is not None), first)

    # Each member's digest and provenance.
    members: list[dict[str, object]] = []
    for source in sources:
        member: dict[str, object] = {}
        if not headers_only:
            member["sha256"] = source.sha256
        member["provenance"] = dict(source.description.provenance)
        members.append(member)

    # Everything else is the same in all members.
    return Description(
        kind="fused",
        family=first.family,
        family_version=sources[0].family.version,
        arch=first.arch,
        config=first.config,
        preprocess=first.preprocess,
        labels=named.labels,
        prompt=named.prompt,
        masks=masks,
        merge=merged,
        members=members,
        seen=tuple(merged_seen(*seen_by_members)),
        origin=common_origin,
    )


def _warnings_about_members(sources: Sequence[Source]) -> list[str]:
    """Return sentences on what is odd but allowed: a single member, or members that are the same checkpoint."""
    warnings = []
    if len(sources) == 1:
        warnings.append("one member: the fused model is that member, with no diversity to measure")
    name_of_digest: dict[str, str] = {}
    for source in sources:
        same_before = name_of_digest.get(source.sha256)
        if same_before is None:
            name_of_digest[source.sha256] = source.name
        else:
            warnings.append(f"{source.name} and {same_before} are the same checkpoint: they add no diversity")
    return warnings


def check_members(sources: Sequence[Source]) -> None:
    """Check whether models can be members of one fused model, from their headers only.

    Raises:
        InputError: the models differ where they must not; all differences are listed.
    """
    problems = [f"{source.name} is itself a fused model" for source in sources if source.description.kind == "fused"]

    # Compare every other model with the first.
    first = sources[0]
    for other in sources[1:]:
        for difference in _differences_of_members(first, other):
            problems.append(f"{other.name} against {first.name}: {difference}")
    if problems:
        raise InputError("these models cannot be members of one fused model", length_hint(problems), problems)


def _differences_of_members(a: Source, b: Source) -> list[str]:
    """Return words for each difference between two members that is not allowed, e.g. "architecture x, not y".

    There x is the value of ``b``, and y that of ``a``. If e.g. the architectures differ, only such differences are
    listed, since everything else would differ too.
    """
    first = a.description
    second = b.description

    # Qualities that must be equal for a further comparison to make sense. An unknown number of classes or prompt (None)
    # agrees with every other.
    compared: list[tuple[str, object, object]] = [
        ("family", first.family, second.family),
        ("architecture", first.arch, second.arch),
        ("number of classes", a.classes, b.classes),
        ("prompt", first.prompt, second.prompt),
        ("input size", first.preprocess.get("input_size"), second.preprocess.get("input_size")),
    ]
    differences: list[str] = []
    for quality, expected, actual in compared:
        if expected is not None and actual is not None and actual != expected:
            differences.append(f"{quality} {actual!r}, not {expected!r}")
    if differences:
        return differences

    # Details of the same architecture.
    differences += label_differences(first.labels, second.labels)
    differences += preprocess_differences(first.preprocess, second.preprocess)
    if first.config != second.config:
        differences.append("another configuration of the architecture (compare with: hydractl --info)")

    # The first tensors of another dtype. Tensors that a model lacks show elsewhere.
    of_dtypes: list[str] = []
    for name in sorted({*a.tensors.names()} & {*b.tensors.names()}):
        expected = a.tensors.info(name).dtype
        actual = b.tensors.info(name).dtype
        if actual != expected:
            of_dtypes.append(f"tensor {name!r} is {actual}, not {expected}")
    return [*differences, *of_dtypes[:_MOST_NAMED]]


# --- what members have in common --------------------------------------------------------------------------------------


def equal_names(sources: Sequence[Source], names: Sequence[str]) -> set[str]:
    """Return the names of the tensors that are equal in all members, element by element."""
    tensors_of_members = [source.tensors for source in sources]
    return {name for name in names if _is_equal_in_all(tensors_of_members, name)}


def _is_equal_in_all(tensors_of_members: Sequence[TensorSource], name: str) -> bool:
    """Return whether a tensor is equal in all members, which are read up to the first piece that differs."""
    if len({tensors.info(name).shape for tensors in tensors_of_members}) > 1:
        return False
    return all(torch.equal(pieces[0], other) for pieces in pieces_of(tensors_of_members, name) for other in pieces[1:])


def common_heads(sources: Sequence[Source], site: Site, names: Sequence[str]) -> Owners | None:
    """Return the owner of each head of a site (attention block), if each head is equal in all members that have it.

    The owner is the first member that has the head, with the position of the head among the member's heads. E.g. if
    member 0 has the heads 1 and 4 and member 1 the heads 4 and 7, the owners of 1, 4 and 7 are (0, 0), (0, 1), (1, 1).

    Args:
        sources: the members.
        site: the site (attention block), the same in all members.
        names: the stock names of the site's tensors.

    Returns:
        For each head that any member has, a member to take it from. None if a head, or a tensor of the site that
        belongs to no head, differs between members.
    """
    blocks = []  # one for each member
    for source in sources:
        blocks.append(_read_head_weights(source, source.tensors, site, names))

    # Tensors that belong to no head, e.g. the bias of the output projection.
    for block in blocks:
        if not _same_apart_from_heads(blocks[0], block):
            return None

    # Compare each head of each member with the same head of the first member that has it, its owner. Query heads may
    # share one head of keys and values: two members without a common query head may still have that one in common.
    owners: dict[int, HeadOwner] = {}
    owners_of_keys: dict[int, HeadOwner] = {}
    for member, source in enumerate(sources):
        for position, head in enumerate(source.description.mask.kept[site.path]):
            this_head = HeadOwner(member, position)
            # The first member with the head becomes its owner, and so for the head of keys and values.
            owner = owners.setdefault(head, this_head)
            owner_of_keys = owners_of_keys.setdefault(head // site.sharing, this_head)
            if not _same_head(blocks, owner, this_head, PER_HEAD):
                return None
            if not _same_head(blocks, owner_of_keys, this_head, OF_KEYS):
                return None
    return [owners[head] for head in sorted(owners)]


def _read_head_weights(source: Source, tensors: TensorSource, site: Site, names: Sequence[str]) -> HeadWeights:
    """Return the weights of the heads of a site in one member, read from its tensors, or from their shapes alone."""
    kept = source.description.mask.kept[site.path]
    return read_heads(source.family, {name: tensors.read(name) for name in names}, site, kept)


def _same_tensor(a: Tensor | None, b: Tensor | None) -> bool:
    """Return whether two tensors are equal, or both are missing."""
    if a is None or b is None:
        return a is b
    return torch.equal(a, b)


def _same_apart_from_heads(a: HeadWeights, b: HeadWeights) -> bool:
    """Return whether two blocks have equal tensors that belong to no head."""
    if not _same_tensor(a.o_bias, b.o_bias):
        return False
    if a.extra.keys() != b.extra.keys():
        return False
    return all(_same_tensor(tensor, b.extra[name]) for name, tensor in a.extra.items())


def _same_head(blocks: Sequence[HeadWeights], first: HeadOwner, other: HeadOwner, names: Sequence[str]) -> bool:
    """Return whether a head is equal in two members; True if they are the same member.

    Args:
        blocks: the weights of the heads of one attention block, for each member.
        first, other: both members by their indices, each with the position of the head among its own.
        names: the tensors to compare, from :data:`hydractl.heads.weights.PER_HEAD`.
    """
    if first.member == other.member:
        return True
    first_head = blocks[first.member].select([first.position])
    other_head = blocks[other.member].select([other.position])
    return all(_same_tensor(getattr(first_head, name), getattr(other_head, name)) for name in names)


class HeadUnion:
    """The attention tensors of one site under their stock names, with the heads of all members in them.

    Args:
        sources: the members.
        site: the site (attention block), the same in all members.
        names: the stock names of the site's tensors.
        owners: the owners of the heads, from :func:`common_heads`.

    Attributes:
        infos: dtype and shape of each tensor.
    """

    def __init__(self, sources: Sequence[Source], site: Site, names: Sequence[str], owners: Owners) -> None:
        """Work out dtype and shape of each tensor with the heads of all members; no numbers are read."""
        self._sources = sources
        self._site = site
        self._owners = owners
        self.names = names
        with plain_sizes():
            tensors = self._gathered([shapes_only(source.tensors) for source in sources])
        self.infos = {name: tensor_info(tensor) for name, tensor in tensors.items()}

    def read(self) -> dict[str, Tensor]:
        """Read all tensors of the site, by stock name."""
        return self._gathered([source.tensors for source in self._sources])

    def _gathered(self, tensors_of_members: Sequence[TensorSource]) -> dict[str, Tensor]:
        """Return the tensors of the first member, with the heads of all members in the place of its own.

        The heads are in the order of their original numbers: of two members with the heads 1, 4 and 4, 7, they are 1, 4
        and 7. Each is read from its owner, the first member that has it; head 4 is equal in both.

        Args:
            tensors_of_members: the tensors of each member, or their shapes alone.
        """
        # Read each member once, and collect the block and position of each head. Without any head at this site, the
        # tensors of the first member are those of all.
        tensors = {name: tensors_of_members[0].read(name) for name in self.names}
        blocks: dict[int, HeadWeights] = {}  # by the index of the member
        heads = []
        for member, position in self._owners:
            if member not in blocks:
                source = self._sources[member]
                blocks[member] = _read_head_weights(source, tensors_of_members[member], self._site, self.names)
            heads.append((blocks[member], position))
        if not heads:
            return tensors

        # Heads that share keys and values in a member also share them in the new block. The family of the model writes
        # the new weights of the heads over those in "tensors".
        masks = [source.description.mask for source in self._sources]
        key_heads = self._site.key_heads(heads_of_any_member(masks, self._site.path))
        self._sources[0].family.write(tensors, self._site, HeadWeights.gathered(heads, key_heads))
        return tensors


# --- the computation that members share -------------------------------------------------------------------------------


@plain_sizes()
def shared_parts(plan: FusionPlan) -> list[SharedTower]:
    """Return for each tower (encoder) what runs once for all members (stem, first blocks), and where they part.

    The model is built without numbers, since the plan alone decides which parts run once.
    """
    model = HydraModel(plan.description, shapes_only(plan.tensors), torch.device("meta"))
    stages_of_towers = model.family.stages(model.networks[0])
    towers = []
    for chain, stages in zip(model.chains, stages_of_towers, strict=True):
        start = chain.start
        # Where members begin to differ: in the stem, in a block (by their heads, their weights, or both), or never.
        parts_at: str | None = None
        differences: list[str] = []
        prefixes = stages.stem_prefixes
        if not start.shared_stem:
            parts_at = "stem"
        elif start.blocks < len(chain.sites):
            parts_at = chain.block_paths[start.blocks]
            prefixes = stages.prefixes_of(start.blocks)
            path = model.sites[start.first_apart].path
            if len({mask.kept[path] for mask in plan.description.masks}) > 1:
                differences.append("heads")
        if parts_at is not None and any(name.startswith(prefixes) for name in plan.own):
            differences.append("weights")

        # What runs once: the stem, some leading blocks, and perhaps the attention of the next block.
        tower = SharedTower(
            tower=chain.tower,
            blocks=len(chain.sites),
            stem=start.shared_stem,
            blocks_once=start.blocks,
            attention_once=start.pool,
            parts_at=parts_at,
            differs=" and ".join(differences) or None,
        )
        towers.append(tower)
    return towers
