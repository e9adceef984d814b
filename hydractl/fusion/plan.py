"""Plan of a fusion: each tensor is averaged, stored once because it is equal in all members, or kept per member.

Paper section 4.2. Averaged by default are MLPs, block and final norms, and embeddings, the only reading that gives the
paper's parameter count; everything inside attention, LayerScale, poolers and classifiers stay per member where they
differ. Heads are compared one by one, because members may have the same heads of the same weights among others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hydractl.errors import InputError, UsageError
from hydractl.families.base import MERGEABLE, attention_names, read_heads
from hydractl.files.checkpoint import read_piece, shapes_only
from hydractl.files.description import Description
from hydractl.files.fingerprints import merged as merged_seen
from hydractl.files.header import TensorInfo, meta_tensor, tensor_info, torch_dtype
from hydractl.heads.mask import Site
from hydractl.heads.weights import OF_KEYS, PER_HEAD, HeadWeights
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
        self._site_of = {name: site for site in unions for name in site.names}
        self._averaged = set(averaged)
        once = {*averaged, *equal, *self._site_of}
        self._where: dict[str, tuple[int | None, str]] = {name: (None, name) for name in once}
        for member, source in enumerate(self.sources):
            for name in source.names():
                if name not in once:
                    self._where[member_name(name, member)] = (member, name)
        # The tensors of one site are asked for in a row, so one site in memory is enough.
        self._cached: tuple[HeadUnion, dict[str, Tensor]] | None = None

    def elements(self, stock: Sequence[str]) -> int:
        """Count the stored elements of what bears these names in the library's own model."""
        wanted = set(stock)
        return sum(self.info(name).numel for name, (_, own) in self._where.items() if own in wanted)

    def names(self) -> list[str]:
        """All tensor names, sorted."""
        return sorted(self._where)

    def info(self, name: str) -> TensorInfo:
        """Dtype and shape."""
        if name in self._site_of:
            return self._site_of[name].infos[name]
        member, stock = self._where[name]
        return self.sources[member or 0].info(stock)

    def read(self, name: str) -> Tensor:
        """Read a tensor; averages are taken in float64 and rounded once, so equal members stay exactly as they are."""
        site = self._site_of.get(name)
        if site is not None:
            if self._cached is None or self._cached[0] is not site:
                self._cached = (site, site.read())
            return self._cached[1][name]
        member, stock = self._where[name]
        if member is not None or stock not in self._averaged:
            return self.sources[member or 0].read(stock)
        info = self.info(name)
        mean = torch.empty(info.shape, dtype=torch_dtype(info))
        flat = mean.view(-1)
        # Piece by piece, which the processor's cache holds: sums of a whole embedding in float64 are big and slow.
        for start in range(0, info.numel, PIECE):
            piece = flat[start : start + PIECE]
            total = torch.zeros(len(piece), dtype=torch.float64)
            for source in self.sources:
                total += read_piece(source, stock, start, start + len(piece)).to(torch.float64)
            piece.copy_(total / len(self.sources))
        return mean


def plan_fusion(
    sources: Sequence[Source],
    merge: Sequence[str] = MERGEABLE,
    *,
    headers_only: bool = False,
    larger: FusionPlan | None = None,
) -> FusionPlan:
    """Decide how the members become one model.

    Args:
        sources: dense or pruned models of one architecture; each may keep other heads.
        merge: which parts are averaged: any of ``mlp``, ``norm``, ``embed``; none of them keeps every member whole.
        headers_only: read no weights, and so take nothing for equal: the fused model may turn out smaller.
        larger: the plan of these members with more heads: what is equal there is taken for equal, no weights are read.

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
    known = next((s.description for s in sources if s.description.labels is not None), first.description)
    family, sites = first.family, first.sites
    names = first.tensors.names()
    averaged = [n for n in names if family.part(n, sites) in merged]
    at = {site: attention_names(family, names, sites, site) for site in sites}
    headers_only = headers_only or larger is not None
    heads: dict[Site, Owners | None] = dict.fromkeys(sites)
    if larger is not None:
        heads |= {s: list(_first_owners(sources, s).values()) for s in sites if set(at[s]) <= set(larger.shared)}
    elif not headers_only:
        heads = {site: common_heads(sources, site) for site in sites}
    unions = [HeadUnion(sources, site, owners) for site, owners in heads.items() if owners is not None]
    attention = {n for of_site in at.values() for n in of_site}
    elsewhere = [n for n in names if n not in attention | set(averaged)]
    equal = set() if headers_only else equal_names(sources, elsewhere)
    equal |= set() if larger is None else set(elsewhere) & set(larger.shared)
    shared = sorted({*equal, *(n for site in unions for n in site.names)})
    own = sorted(set(names).difference(averaged, shared))
    description = Description(
        kind="fused",
        family=first.description.family,
        family_version=family.version,
        arch=first.description.arch,
        config=first.description.config,
        preprocess=first.description.preprocess,
        labels=known.labels,
        prompt=known.prompt,
        masks=[s.description.mask for s in sources],
        merge=merged,
        members=[
            {**({} if headers_only else {"sha256": s.sha256}), "provenance": dict(s.description.provenance)}
            for s in sources
        ],
        seen=tuple(merged_seen(*(s.description.seen for s in sources))),
        origin=first.description.origin if len({s.description.origin for s in sources}) == 1 else None,
    )
    tensors = FusedTensors(sources, averaged, sorted(equal), unions)
    return FusionPlan(description, tensors, averaged, shared, own, [] if headers_only else _warnings(sources))


def _warnings(sources: Sequence[Source]) -> list[str]:
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
    problems = [f"{s.name} is itself a fused model" for s in sources if s.description.kind == "fused"]
    first = sources[0]
    for other in sources[1:]:
        problems += [f"{other.name} against {first.name}: {what}" for what in _differences(first, other)]
    if problems:
        raise InputError("these models cannot be members of one fused model", length_hint(problems), problems)


def _differences(a: Source, b: Source) -> list[str]:
    first, second = a.description, b.description
    unknown_agrees = (("number of classes", a.classes, b.classes), ("prompt", first.prompt, second.prompt))
    pairs: list[tuple[str, Any, Any]] = [
        ("family", first.family, second.family),
        ("architecture", first.arch, second.arch),
        *((name, x, y) for name, x, y in unknown_agrees if None not in (x, y)),
        ("input size", first.preprocess.get("input_size"), second.preprocess.get("input_size")),
    ]
    differences = [f"{name} {y!r}, not {x!r}" for name, x, y in pairs if x != y]
    if differences:
        return differences
    differences += label_differences(first.labels, second.labels)
    differences += preprocess_differences(first.preprocess, second.preprocess)
    if first.config != second.config:
        differences.append("another configuration of the architecture (compare with: hydractl --info)")
    differences += [
        f"tensor {n!r} is {b.tensors.info(n).dtype}, not {a.tensors.info(n).dtype}"
        for n in a.tensors.names()
        if n in set(b.tensors.names()) and a.tensors.info(n).dtype != b.tensors.info(n).dtype
    ][:3]
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
    kept = [source.description.mask.kept[site.path] for source in sources]
    first = blocks[0]
    if not all(_same(first.o_bias, b.o_bias) for b in blocks) or not all(
        first.extra.keys() == b.extra.keys() and all(_same(first.extra[n], b.extra[n]) for n in b.extra) for b in blocks
    ):
        return None
    owners = _first_owners(sources, site)
    of_keys: dict[int, tuple[int, int]] = {}  # members may have no head in common, and yet one of keys and values
    for member, heads in enumerate(kept):
        for position, head in enumerate(heads):
            place = (member, position)
            whole = (owners[head], PER_HEAD)
            keys = (of_keys.setdefault(head // site.sharing, place), OF_KEYS)
            for (owner, where), names in (whole, keys)[: 2 if site.sharing > 1 else 1]:
                if owner != member and not _same_head(blocks[owner], where, blocks[member], position, names):
                    return None
    return list(owners.values())


def _first_owners(sources: Sequence[Source], site: Site) -> dict[int, tuple[int, int]]:
    """Return, for every head that any member has, ascending, the first member that has it and its position there."""
    kept = [source.description.mask.kept[site.path] for source in sources]
    owners = {head: (member, i) for member in reversed(range(len(kept))) for i, head in enumerate(kept[member])}
    return dict(sorted(owners.items()))


def _weights(source: Source, site: Site, *, meta: bool = False) -> HeadWeights:
    names = attention_names(source.family, source.tensors.names(), source.sites, site)
    tensors = {n: meta_tensor(source.tensors.info(n)) if meta else source.tensors.read(n) for n in names}
    return read_heads(source.family, tensors, site, source.description.mask.kept[site.path])


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b is None or (a is not None and b is not None and torch.equal(a, b))


def _same_head(a: HeadWeights, head_a: int, b: HeadWeights, head_b: int, names: Sequence[str]) -> bool:
    one, other = a.select([head_a]), b.select([head_b])
    return all(_same(getattr(one, name), getattr(other, name)) for name in names)


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
        self._sources, self._site, self._owners = sources, site, owners
        self.names = attention_names(sources[0].family, sources[0].tensors.names(), sources[0].sites, site)
        shapes = self._joined({n: meta_tensor(sources[0].tensors.info(n)) for n in self.names}, meta=True)
        self.infos = {name: tensor_info(tensor) for name, tensor in shapes.items()}

    def read(self) -> dict[str, Tensor]:
        """All tensors of the site."""
        return self._joined({n: self._sources[0].tensors.read(n) for n in self.names}, meta=False)

    def _joined(self, tensors: dict[str, Tensor], *, meta: bool) -> dict[str, Tensor]:
        """Return the tensors with the heads of their owners written into them."""
        members = sorted({member for member, _ in self._owners}) or [0]
        blocks = {member: _weights(self._sources[member], self._site, meta=meta) for member in members}
        heads = [(blocks[member], position) for member, position in self._owners]
        kept = union([source.description.mask for source in self._sources], self._site.path)
        weights = HeadWeights.gathered(heads, self._site.key_heads(kept)) if heads else blocks[0]
        self._sources[0].family.write(tensors, self._site, weights)
        return tensors


# --- what of the computation they share -------------------------------------------------------------------------------


def shared_parts(plan: FusionPlan) -> list[dict[str, Any]]:
    """Describe the parts that run once for all members, for each tower.

    Returns:
        For each tower its name and number of ``blocks``; ``stem``: whether what comes before them runs once;
        ``blocks_once``: how many leading blocks do; ``attention_once``: whether the attention behind them does; and
        ``parts_at``, ``differs``, ``hint``: where members part, in what, and what would make them part later (None
        where they never do).
    """
    model = HydraModel(plan.description, shapes_only(plan.tensors), torch.device("meta"))
    masks = plan.description.masks
    towers = []
    for chain, stages in zip(model.chains, model.family.stages(model.networks[0]), strict=True):
        start, count = chain.start, len(chain.sites)
        part, differs, hint = None, None, None
        if not start.shared_stem:
            part = "stem"
            own = [name for name in plan.own if name.startswith(stages.stem_prefixes)]
            parts = sorted({model.family.part(name, model.sites) for name in own} & set(MERGEABLE))
            differs = _tensors(own)
            hint = "do not train it (finetune --train-last N)"
            hint = f"average it (--merge {','.join(parts)}), or {hint}" if parts else hint
        elif start.blocks < count:
            part = chain.block_paths[start.blocks]
            own = [name for name in plan.own if name.startswith(stages.prefixes_of(start.blocks))]
            site = model.sites[chain.sites.start + start.blocks].path
            heads = any(mask.kept[site] != masks[0].kept[site] for mask in masks)
            differs = "; ".join([*(["heads"] if heads else []), *([_tensors(own)] if own else [])])
            hints = ["the same heads (prune --share-sites N --with MASK)"] if heads else []
            hints += ["weights left as they are (finetune --train-last N)"] if own else []
            hint = f"members that are the same in more leading blocks: {' and '.join(hints)}"
        towers.append(
            {
                "tower": chain.tower,
                "blocks": count,
                "stem": start.shared_stem,
                "blocks_once": start.blocks,
                "attention_once": start.pool,
                "parts_at": part,
                "differs": differs,
                "hint": hint,
            }
        )
    return towers


def _tensors(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more tensors" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
