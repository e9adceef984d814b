"""Plan of a fusion: each tensor is averaged, stored once because it is equal in all members, or kept per member.

Paper section 4.2. Averaged by default are MLPs, block and final norms, and embeddings, the only reading that gives the
paper's parameter count; everything inside attention, LayerScale, poolers and classifiers stay per member where they
differ. Heads are compared one by one, because members may have the same heads of the same weights among others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import torch
from torch import Tensor

from hydractl.errors import InputError, UsageError
from hydractl.families.base import MERGEABLE, Stages, attention_names, read_heads
from hydractl.files.checkpoint import TensorSource, read_piece, shapes_only
from hydractl.files.description import Description
from hydractl.files.fingerprints import merged as merged_seen
from hydractl.files.header import TensorInfo, meta_tensor, tensor_info, torch_dtype
from hydractl.heads.mask import Site
from hydractl.heads.weights import OF_KEYS, PER_HEAD, HeadWeights
from hydractl.model.chain import Chain
from hydractl.model.matching import label_differences, length_hint, preprocess_differences
from hydractl.model.runtime import HydraModel
from hydractl.model.source import Source
from hydractl.model.stored import member_name, union

PIECE = 1 << 16
"""Elements of a tensor that are averaged in one go."""

_NAMED = 3
"""Tensors that are named of those that differ."""

Owners = Sequence[tuple[int, int]]
"""For every head of a site that any member has, ascending: a member that has it, and its position there."""


@dataclass(frozen=True)
class FusionPlan:
    """A fusion that has not happened yet.

    Attributes:
        description: of the fused model.
        tensors: its weights, computed when they are read.
        averaged: stock names of the averaged tensors.
        shared: stock names of the other tensors that are stored once, because members do not differ in them.
        own: stock names of the tensors that every member keeps for itself.
        warnings: what is odd about the members but allowed.
    """

    description: Description
    tensors: FusedTensors
    averaged: Sequence[str]
    shared: Sequence[str]
    own: Sequence[str]
    warnings: Sequence[str]


class FusedTensors:
    """The tensors of a fused model.

    Args:
        sources: the members.
        averaged: stock names of what is the mean over members.
        equal: stock names of what is the same in all members.
        unions: sites whose heads are stored once.
    """

    def __init__(
        self, sources: Sequence[Source], averaged: Sequence[str], equal: Sequence[str], unions: Sequence[HeadUnion]
    ) -> None:
        self.sources = [source.tensors for source in sources]
        self._union_of: dict[str, HeadUnion] = {}
        for union_of_site in unions:
            self._union_of.update(dict.fromkeys(union_of_site.names, union_of_site))
        self._averaged = set(averaged)
        stored_once = {*averaged, *equal, *self._union_of}
        # Where a stored tensor comes from: the member, None for all of them, and its stock name.
        self._where: dict[str, tuple[int | None, str]] = {name: (None, name) for name in stored_once}
        for member, source in enumerate(self.sources):
            for name in source.names():
                if name not in stored_once:
                    self._where[member_name(name, member)] = (member, name)
        # The tensors of one site are asked for in a row, so one site in memory is enough.
        self._cached: tuple[HeadUnion, dict[str, Tensor]] | None = None

    def elements(self, stock: Sequence[str]) -> int:
        """Count the stored elements of what bears these names in the library's own model."""
        wanted = set(stock)
        elements = 0
        for name, (_, stock_name) in self._where.items():
            if stock_name in wanted:
                elements += self.info(name).numel
        return elements

    def names(self) -> list[str]:
        """All tensor names, sorted."""
        return sorted(self._where)

    def info(self, name: str) -> TensorInfo:
        """Dtype and shape."""
        if name in self._union_of:
            return self._union_of[name].infos[name]
        member, stock = self._where[name]
        return self.sources[member or 0].info(stock)

    def read(self, name: str) -> Tensor:
        """Read a tensor; averages are taken in float64 and rounded once, so equal members stay exactly as they are."""
        union_of_site = self._union_of.get(name)
        if union_of_site is not None:
            if self._cached is None or self._cached[0] is not union_of_site:
                self._cached = (union_of_site, union_of_site.read())
            return self._cached[1][name]
        member, stock = self._where[name]
        if member is None and stock in self._averaged:
            return self._mean(stock)
        return self.sources[member or 0].read(stock)

    def _mean(self, name: str) -> Tensor:
        """Compute the mean over members of a tensor."""
        info = self.info(name)
        mean = torch.empty(info.shape, dtype=torch_dtype(info))
        flat = mean.view(-1)
        # Piece by piece, which the processor's cache holds: sums of a whole embedding in float64 are big and slow.
        for start in range(0, info.numel, PIECE):
            piece = flat[start : start + PIECE]
            total = torch.zeros(len(piece), dtype=torch.float64)
            for source in self.sources:
                total += read_piece(source, name, start, start + len(piece)).to(torch.float64)
            piece.copy_(total / len(self.sources))
        return mean


def plan_fusion(
    sources: Sequence[Source],
    merge: Sequence[str] = MERGEABLE,
    *,
    headers_only: bool = False,
) -> FusionPlan:
    """Decide how the members become one model.

    Args:
        sources: dense or pruned models of one architecture; each may keep other heads.
        merge: which parts are averaged: any of ``mlp``, ``norm``, ``embed``; none of them keeps every member whole.
        headers_only: read no weights, and so take nothing for equal: the fused model may turn out smaller.

    Raises:
        UsageError: for another part.
        InputError: listing everything in which the members differ and must not.
    """
    unknown = [part for part in merge if part not in MERGEABLE]
    if unknown:
        raise UsageError(f"unknown parts to merge: {', '.join(unknown)}", hint=f"any of {', '.join(MERGEABLE)}")
    merged = [part for part in MERGEABLE if part in merge]
    check_members(sources)
    first = sources[0]
    names = first.tensors.names()
    averaged = [name for name in names if first.family.part(name, first.sites) in merged]
    unions: list[HeadUnion] = []
    in_attention: set[str] = set()
    for site in first.sites:
        names_of_site = attention_names(first.family, names, first.sites, site)
        in_attention.update(names_of_site)
        owners: Owners | None = None
        if not headers_only:
            owners = common_heads(sources, site)
        if owners is not None:
            unions.append(HeadUnion(sources, site, owners))
    elsewhere = [name for name in names if name not in in_attention and name not in averaged]
    equal: set[str] = set()
    if not headers_only:
        equal = equal_names(sources, elsewhere)
    shared = set(equal)
    for union_of_site in unions:
        shared.update(union_of_site.names)
    return FusionPlan(
        description=_fused_description(sources, merged, headers_only),
        tensors=FusedTensors(sources, averaged, sorted(equal), unions),
        averaged=averaged,
        shared=sorted(shared),
        own=sorted(set(names).difference(averaged, shared)),
        warnings=[] if headers_only else _warnings(sources),
    )


def _fused_description(sources: Sequence[Source], merged: Sequence[str], headers_only: bool) -> Description:
    """Return what the fused model says of itself; without the digests of its members where no weights are read."""
    descriptions = [source.description for source in sources]
    first = descriptions[0]
    with_names = [description for description in descriptions if description.labels is not None]
    named = with_names[0] if with_names else first
    members: list[dict[str, Any]] = []
    for source in sources:
        member: dict[str, Any] = {}
        if not headers_only:
            member["sha256"] = source.sha256
        member["provenance"] = dict(source.description.provenance)
        members.append(member)
    origins = {description.origin for description in descriptions}
    return Description(
        kind="fused",
        family=first.family,
        family_version=sources[0].family.version,
        arch=first.arch,
        config=first.config,
        preprocess=first.preprocess,
        labels=named.labels,
        prompt=named.prompt,
        masks=[description.mask for description in descriptions],
        merge=merged,
        members=members,
        seen=tuple(merged_seen(*(description.seen for description in descriptions))),
        origin=first.origin if len(origins) == 1 else None,
    )


def _warnings(sources: Sequence[Source]) -> list[str]:
    """Say what is odd about the members but allowed."""
    warnings = []
    if len(sources) == 1:
        warnings.append("one member: the fused model is that member, with no diversity to measure")
    seen: dict[str, str] = {}
    for source in sources:
        if source.sha256 in seen:
            warnings.append(f"{source.name} and {seen[source.sha256]} are the same checkpoint: they add no diversity")
        seen.setdefault(source.sha256, source.name)
    return warnings


def check_members(sources: Sequence[Source]) -> None:
    """Check whether models can be members of one fused model, by their headers alone.

    Raises:
        UsageError: for no models.
        InputError: listing everything in which they differ and must not.
    """
    if not sources:
        raise UsageError("no members to fuse", hint="hydractl fuse a.st b.st c.st -o hydra.st")
    problems = []
    for source in sources:
        if source.description.kind == "fused":
            problems.append(f"{source.name} is itself a fused model")
    first = sources[0]
    for other in sources[1:]:
        problems += [f"{other.name} against {first.name}: {what}" for what in _differences(first, other)]
    if problems:
        raise InputError("these models cannot be members of one fused model", length_hint(problems), problems)


def _differences(a: Source, b: Source) -> list[str]:
    """List in what two members differ and must not: the architecture, and only where that is the same, the rest."""
    first, second = a.description, b.description
    differences: list[str] = []

    def compare(what: str, value: object, other: object) -> None:
        if value != other:
            differences.append(f"{what} {other!r}, not {value!r}")

    compare("family", first.family, second.family)
    compare("architecture", first.arch, second.arch)
    if a.classes is not None and b.classes is not None:  # what is unknown agrees with everything
        compare("number of classes", a.classes, b.classes)
    if first.prompt is not None and second.prompt is not None:
        compare("prompt", first.prompt, second.prompt)
    compare("input size", first.preprocess.get("input_size"), second.preprocess.get("input_size"))
    if differences:
        return differences
    differences += label_differences(first.labels, second.labels)
    differences += preprocess_differences(first.preprocess, second.preprocess)
    if first.config != second.config:
        differences.append("another configuration of the architecture (compare with: hydractl --info)")
    return differences + _dtype_differences(a.tensors, b.tensors)


_MOST_DTYPES = 3
"""How many tensors of another dtype are named."""


def _dtype_differences(a: TensorSource, b: TensorSource) -> list[str]:
    """Name the first tensors that have another dtype in the second model."""
    differences: list[str] = []
    names_in_both = set(b.names())
    for name in a.names():
        if name not in names_in_both or len(differences) == _MOST_DTYPES:
            continue
        dtype = a.info(name).dtype
        other = b.info(name).dtype
        if dtype != other:
            differences.append(f"tensor {name!r} is {other}, not {dtype}")
    return differences


# --- what members have in common --------------------------------------------------------------------------------------


def equal_names(sources: Sequence[Source], names: Sequence[str]) -> set[str]:
    """Return the tensors whose every element is the same in all members."""
    first, *others = sources
    equal = set()
    for name in names:
        tensor = first.tensors.read(name)
        if all(torch.equal(tensor, other.tensors.read(name)) for other in others):
            equal.add(name)
    return equal


def common_heads(sources: Sequence[Source], site: Site) -> Owners | None:
    """Return the member to take each head of a site from, if the head is the same in all members that have it.

    None where a head differs between two members, or what belongs to no head does.
    """
    blocks = [_weights(source, site) for source in sources]
    if not all(_same_beside_heads(blocks[0], block) for block in blocks):
        return None
    owners = _first_owners(sources, site)
    key_owners: dict[int, tuple[int, int]] = {}
    for member, source in enumerate(sources):
        for position, head in enumerate(source.description.mask.kept[site.path]):
            owner, place = owners[head]
            if owner != member and not _same_head(blocks[owner], place, blocks[member], position, PER_HEAD):
                return None
            if site.sharing == 1:
                continue
            # Members may have no head in common, and yet one of keys and values.
            key_head = head // site.sharing
            owner, place = key_owners.setdefault(key_head, (member, position))
            if owner != member and not _same_head(blocks[owner], place, blocks[member], position, OF_KEYS):
                return None
    return list(owners.values())


def _first_owners(sources: Sequence[Source], site: Site) -> dict[int, tuple[int, int]]:
    """Return, for every head that any member has, ascending, the first member that has it and its position there."""
    owners: dict[int, tuple[int, int]] = {}
    for member, source in enumerate(sources):
        for position, head in enumerate(source.description.mask.kept[site.path]):
            owners.setdefault(head, (member, position))
    return dict(sorted(owners.items()))


def _weights(source: Source, site: Site, *, meta: bool = False) -> HeadWeights:
    """Read the heads of a site; their shapes only where ``meta`` is true."""
    tensors = {}
    for name in attention_names(source.family, source.tensors.names(), source.sites, site):
        if meta:
            tensors[name] = meta_tensor(source.tensors.info(name))
        else:
            tensors[name] = source.tensors.read(name)
    kept = source.description.mask.kept[site.path]
    return read_heads(source.family, tensors, site, kept)


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    """Return whether two tensors are equal, or both are missing."""
    if a is None or b is None:
        return a is b
    return torch.equal(a, b)


def _same_beside_heads(a: HeadWeights, b: HeadWeights) -> bool:
    """Return whether what belongs to no head is the same in two attentions."""
    if not _same(a.o_bias, b.o_bias) or a.extra.keys() != b.extra.keys():
        return False
    return all(_same(a.extra[name], b.extra[name]) for name in a.extra)


def _same_head(a: HeadWeights, position_a: int, b: HeadWeights, position_b: int, names: Sequence[str]) -> bool:
    """Return whether a head of one attention has the same tensors of these names as a head of another."""
    head_a = a.select([position_a])
    head_b = b.select([position_b])
    return all(_same(getattr(head_a, name), getattr(head_b, name)) for name in names)


class HeadUnion:
    """The attention tensors of one site under stock names, with the heads of all members in them.

    Args:
        sources: the members.
        site: of all of them.
        owners: from :func:`common_heads`.

    Attributes:
        infos: dtype and shape of each tensor.
    """

    def __init__(self, sources: Sequence[Source], site: Site, owners: Owners) -> None:
        self._sources = sources
        self._site = site
        self._owners = owners
        first = sources[0]
        self.names = attention_names(first.family, first.tensors.names(), first.sites, site)
        shapes = {name: meta_tensor(first.tensors.info(name)) for name in self.names}
        self._write_heads(shapes, meta=True)
        self.infos = {name: tensor_info(tensor) for name, tensor in shapes.items()}

    def read(self) -> dict[str, Tensor]:
        """Read all tensors of the site."""
        tensors = {name: self._sources[0].tensors.read(name) for name in self.names}
        self._write_heads(tensors, meta=False)
        return tensors

    def _write_heads(self, tensors: dict[str, Tensor], *, meta: bool) -> None:
        """Write the heads of their owners into the tensors of the site."""
        first = self._sources[0]
        if not self._owners:  # no member has a head here
            first.family.write(tensors, self._site, _weights(first, self._site, meta=meta))
            return
        members = sorted({member for member, _ in self._owners})
        blocks = {member: _weights(self._sources[member], self._site, meta=meta) for member in members}
        heads = [(blocks[member], position) for member, position in self._owners]
        masks = [source.description.mask for source in self._sources]
        kept = union(masks, self._site.path)
        weights = HeadWeights.gathered(heads, self._site.key_heads(kept))
        first.family.write(tensors, self._site, weights)


# --- what of the computation they share -------------------------------------------------------------------------------


class SharedParts(TypedDict):
    """The parts of one tower that run once for all members.

    Attributes:
        tower: its name.
        blocks: how many blocks it has.
        stem: whether what comes before them runs once.
        blocks_once: how many leading blocks run once.
        attention_once: whether the attention behind these does.
        parts_at: where members part; None where they never do, in this and in the next two.
        differs: in what they differ there.
        hint: what would make them part later.
    """

    tower: str
    blocks: int
    stem: bool
    blocks_once: int
    attention_once: bool
    parts_at: str | None
    differs: str | None
    hint: str | None


def shared_parts(plan: FusionPlan) -> list[SharedParts]:
    """Describe the parts that run once for all members, for each tower."""
    model = HydraModel(plan.description, shapes_only(plan.tensors), torch.device("meta"))
    towers = []
    for chain, stages in zip(model.chains, model.family.stages(model.networks[0]), strict=True):
        parts_at: str | None = None
        differs: str | None = None
        hint: str | None = None
        if not chain.start.shared_stem:
            parts_at = "stem"
            differs, hint = _parting_in_stem(plan, model, stages)
        elif chain.start.blocks < len(chain.sites):
            parts_at = chain.block_paths[chain.start.blocks]
            differs, hint = _parting_in_block(plan, model, chain, stages)
        towers.append(
            SharedParts(
                tower=chain.tower,
                blocks=len(chain.sites),
                stem=chain.start.shared_stem,
                blocks_once=chain.start.blocks,
                attention_once=chain.start.pool,
                parts_at=parts_at,
                differs=differs,
                hint=hint,
            )
        )
    return towers


def _parting_in_stem(plan: FusionPlan, model: HydraModel, stages: Stages) -> tuple[str, str]:
    """Return in what members differ before the first block of a tower, and what would change that."""
    differing = [name for name in plan.own if name.startswith(stages.stem_prefixes)]
    parts = {model.family.part(name, model.sites) for name in differing}
    hint = "do not train it (finetune --train-last N)"
    mergeable = sorted(parts & set(MERGEABLE))
    if mergeable:
        hint = f"average it (--merge {','.join(mergeable)}), or {hint}"
    return _some_tensors(differing), hint


def _parting_in_block(plan: FusionPlan, model: HydraModel, chain: Chain, stages: Stages) -> tuple[str, str]:
    """Return in what members differ in the first block that is not the same for all, and what would change that."""
    block = chain.start.blocks
    site = model.sites[chain.sites.start + block].path
    kept = [mask.kept[site] for mask in plan.description.masks]
    differing = [name for name in plan.own if name.startswith(stages.prefixes_of(block))]
    differences = []
    hints = []
    if any(heads != kept[0] for heads in kept):
        differences.append("heads")
        hints.append("the same heads (prune --share-sites N --with MASK)")
    if differing:
        differences.append(_some_tensors(differing))
        hints.append("weights left as they are (finetune --train-last N)")
    hint = f"members that are the same in more leading blocks: {' and '.join(hints)}"
    return "; ".join(differences), hint


def _some_tensors(names: Sequence[str]) -> str:
    """Name the first of some tensors, and count the others."""
    named = ", ".join(names[:_NAMED])
    if len(names) <= _NAMED:
        return named
    return f"{named} and {len(names) - _NAMED} more tensors"
