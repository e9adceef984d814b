"""Which heads a search may remove, and how many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hydractl.circuit.headmap import kept_at_sites
from hydractl.circuit.options import SearchOptions
from hydractl.errors import InputError, UsageError
from hydractl.files.fingerprints import Entry, seen_in
from hydractl.heads.mask import Head, HeadMask, Site, mask_from_json, ranking_from_json
from hydractl.heads.selection import total_budget
from hydractl.jsonio import read_json_file
from hydractl.model.matching import sites_of
from hydractl.model.source import Source, pruned


@dataclass(frozen=True)
class Scope:
    """The heads of one search.

    Attributes:
        source: the model, without the heads that the search begins without.
        sites: the paths of the sites whose heads are candidates, in model order.
        budget: how many of them to remove.
        total: the budget as it was asked for: with the heads that are gone at the beginning.
        kept: of Headmap, how many heads are kept at each of these sites.
        details: what the provenance says of it.
        seen: the samples that the masks and circuits it begins with have seen.
    """

    source: Source
    sites: list[str]
    budget: int
    total: int
    details: dict[str, Any] = field(default_factory=dict)
    kept: dict[str, int] | None = None
    seen: list[Entry] = field(default_factory=list)

    @property
    def heads(self) -> list[Head]:
        """The candidates, in model order."""
        return self.source.description.mask.at(self.sites).kept_heads


def scope_of(source: Source, options: SearchOptions) -> Scope:
    """Where a search begins and how far it goes.

    Raises:
        UsageError: for a budget, sites or shares outside what the model has, with the range.
        InputError: for a mask or a circuit that does not fit the model.
    """
    meant = sites_of(source, options.tower)
    before = source.description.mask.at(site.path for site in meant)
    headmap = options.algorithm == "headmap"
    total = 0 if headmap else total_budget(before, options.keep, options.budget, "--budget")
    start = source.description.mask
    details: dict[str, Any] = {}
    allowed = _numbered(options.sites, source.sites) if options.sites else [site.path for site in source.sites]
    seen: list[Entry] = []
    if options.start_mask is not None:
        start = start.intersect(_mask(options.start_mask, source, seen))
    if options.share_from is not None and options.share_sites is not None:
        leading = _leading(meant, options.share_sites)
        start = start.without(_shared(options.share_from, source, leading, total or _total(options, before), seen))
        allowed = [path for path in allowed if path not in leading]
        details["share_sites"] = options.share_sites
    if options.sites:
        details["sites"] = options.sites
    after = start.at(before.heads)
    gone = len(before.kept_heads) - len(after.kept_heads)
    sites = [path for path in after.heads if path in allowed]
    if not sites:
        raise UsageError("no site is left whose heads could be removed", hint="see --sites, --share-sites and --tower")
    if headmap:
        return replace(_headmap(_without(source, start), sites, gone, options, details), seen=seen)
    there = len(start.at(sites).kept_heads)
    option = "--budget" if options.budget is not None else "--keep"
    if total - gone < 1:
        if gone:
            raise UsageError(f"{gone} heads are gone at the beginning, and {option} asks for {total} in all")
        raise UsageError(f"{option} removes no head")
    if total - gone >= len(after.kept_heads):
        span = f", so the range is 1..{len(before.kept_heads) - 1}" if option == "--budget" else ""
        raise UsageError(f"{option} removes all {total} heads: at least one must be left{span}")
    if total - gone > there:
        raise UsageError(
            f"{option} asks for {total - gone} more heads, and the sites that are meant have {there}",
            hint="choose a smaller budget or more --sites",
        )
    return Scope(_without(source, start), sites, total - gone, total, details, seen=seen)


def _total(options: SearchOptions, before: HeadMask) -> int:
    return total_budget(before, options.keep, options.budget, "--budget")


def _headmap(source: Source, sites: list[str], gone: int, options: SearchOptions, details: dict[str, Any]) -> Scope:
    """Headmap counts the heads that are kept at each site, not the mean over all of them."""
    heads = source.description.mask.at(sites).kept_heads
    kept = kept_at_sites(heads, options.keep, None if options.budget is None else options.budget - gone)
    budget = len(heads) - sum(kept.values())
    return Scope(source, sites, budget, budget + gone, {**details, "kept": list(kept.values())}, kept)


def _without(source: Source, start: HeadMask) -> Source:
    if start == source.description.mask:
        return source
    description, tensors = pruned(source, start, "sliced")
    return replace(source, description=description, tensors=tensors)


def _mask(path: str, source: Source, seen: list[Entry]) -> HeadMask:
    """The mask of a file; the samples it has seen go into ``seen``."""
    document = read_json_file(path)
    mask = mask_from_json(document, source.sites, path, source.description.arch)
    seen += seen_in(document, path)
    return mask


def _leading(meant: Sequence[Site], count: int) -> list[str]:
    """The paths of the first sites of each tower."""
    towers: dict[str, list[str]] = {}
    for site in meant:
        towers.setdefault(site.tower, []).append(site.path)
    fewest = min(len(paths) for paths in towers.values())
    if count >= fewest:
        raise UsageError(f"--share-sites {count} leaves no later site: the range is 1..{fewest - 1}")
    return [path for paths in towers.values() for path in paths[:count]]


def _shared(path: str, source: Source, leading: Sequence[str], total: int, seen: list[Entry]) -> list[Head]:
    """What a circuit removes at these sites with the same budget; the samples it has seen go into ``seen``."""
    document = read_json_file(path)
    ranking = ranking_from_json(document, source.sites, path)
    seen += seen_in(document, path)
    gone = set(ranking.start) & set(source.description.mask.kept_heads)
    if len(gone) + len(ranking.removed) < total:
        raise InputError(
            f"{path} removes {len(gone) + len(ranking.removed)} heads, fewer than the {total} of this search",
            hint="take a longer circuit, or a smaller budget",
        )
    removed = [*sorted(gone), *ranking.first(total - len(gone))]
    return [head for head in removed if head[0] in leading]


def _numbered(text: str, sites: Sequence[Site]) -> list[str]:
    """``3-5,8``: the paths of those sites."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if low > high or high >= len(sites):
            raise UsageError(f"--sites {text}: {part} is outside 0..{len(sites) - 1}, the sites of the model")
        found.update(range(low, high + 1))
    return [site.path for index, site in enumerate(sites) if index in found]
