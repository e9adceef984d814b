"""Which heads a search may remove, and how many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hydractl.errors import InputError, UsageError
from hydractl.files.fingerprints import Entry, seen_in
from hydractl.fusion.plan import check_members
from hydractl.heads.mask import Head, HeadMask, Site, mask_from_json, ranking_from_json
from hydractl.heads.selection import check_whole, leading_sites, total_budget
from hydractl.jsonio import read_json_file
from hydractl.log import Log
from hydractl.model.matching import check_base, sites_of
from hydractl.model.source import Source, pruned


@dataclass(frozen=True)
class SearchOptions:
    """The options of a search, each as the option of this name; None is "not given".

    ``data`` and ``ood`` are SPECs, ``weights`` none or one for each of ``data``. Neither ``keep`` nor ``budget`` is
    given where a constraint ends the search.
    """

    data: Sequence[str]
    ood: Sequence[str]
    weights: Sequence[int]
    paired: bool
    limit: int | None
    objective: Sequence[str]
    ensemble_with: Sequence[str]
    ood_score: str
    algorithm: str
    approx: str | None
    bounds: bool
    check_against: str | None
    keep: int | None
    budget: int | None
    max_drop: float | None
    max_cost: float | None
    subject_to: Sequence[str]
    tower: str | None
    sites: str | None
    start_mask: str | None
    share_from: str | None
    share_sites: int | None
    batch_size: int
    dtype: str
    device: str
    workers: int
    memory: str | None
    seed: int
    resume: bool
    force: bool
    allow_other_base: bool


@dataclass(frozen=True)
class Scope:
    """The heads of one search.

    Attributes:
        source: the model, without the heads that the search begins without.
        sites: the paths of the sites whose heads are candidates, in model order.
        budget: how many of them to remove, at most.
        total: the budget as it was asked for: with the heads that are gone at the beginning.
        details: what the provenance says of it.
        seen: the samples that the masks and circuits it begins with have seen.
        kept: of Headmap, how many heads are kept at each of these sites.
        members: the other members of the ensemble whose score is measured, in its order, before the circuit.
    """

    source: Source
    sites: list[str]
    budget: int
    total: int
    details: dict[str, Any]
    seen: list[Entry]
    kept: dict[str, int] | None = None
    members: Sequence[Source] = ()

    @property
    def heads(self) -> list[Head]:
        """The candidates, in model order."""
        return self.source.description.mask.at(self.sites).kept_heads


def scope_of(source: Source, options: SearchOptions, log: Log, members: Sequence[Source] = ()) -> Scope:
    """Where a search begins and how far it goes, for a circuit alone or one that joins ``members``.

    Raises:
        UsageError: for a budget, sites or shares outside what the model has, with the range.
        InputError: for a mask or a circuit that does not fit the model, or was made from other weights; for members
            that could not be fused with it.
    """
    check_members([*members, source])
    meant = sites_of(source, options.tower)
    before = source.description.mask.at(site.path for site in meant)
    headmap = options.algorithm == "headmap"
    limited = not headmap and (options.keep, options.budget) != (None, None)
    total = total_budget(before, options.keep, options.budget, "--budget") if limited else 0
    allowed = _numbered(options.sites, source.sites) if options.sites else [site.path for site in source.sites]
    start, leading, seen = _start(source, options, meant, before, log)
    seen += [one for member in members for one in member.description.seen]
    details: dict[str, Any] = {"share_sites": options.share_sites} if leading else {}
    if options.allow_other_base:
        details["allow_other_base"] = True
    if options.sites:
        details["sites"] = options.sites
    after = start.at(before.heads)
    gone = len(before.kept_heads) - len(after.kept_heads)
    sites = [path for path in after.heads if path in allowed and path not in leading]
    if not sites:
        raise UsageError("no site is left whose heads could be removed", hint="see --sites, --share-sites and --tower")
    left = start.at(sites).kept_heads
    if headmap:
        # It counts the heads that are kept at each site, not the mean over all of them.
        kept = kept_at_sites(left, options.keep, None if options.budget is None else options.budget - gone)
        budget = len(left) - sum(kept.values())
        details["kept"] = list(kept.values())
        return Scope(_without(source, start), sites, budget, budget + gone, details, seen, kept, members)
    if not limited:
        total = gone + min(len(left), len(after.kept_heads) - 1)
    option = "--budget" if options.budget is not None else "--keep"
    budget = total - gone
    if budget < 1:
        if gone:
            raise UsageError(f"{gone} heads are gone at the beginning, and {option} asks for {total} in all")
        raise UsageError(f"{option} removes no head")
    if budget >= len(after.kept_heads):
        span = f", so the range is 1..{len(before.kept_heads) - 1}" if option == "--budget" else ""
        raise UsageError(f"{option} removes all {total} heads: at least one must be left{span}")
    if budget > len(left):
        raise UsageError(
            f"{option} asks for {budget} more heads, and the sites that are meant have {len(left)}",
            hint="choose a smaller budget or more --sites",
        )
    return Scope(_without(source, start), sites, budget, total, details, seen, members=members)


def _start(
    source: Source, options: SearchOptions, meant: Sequence[Site], before: HeadMask, log: Log
) -> tuple[HeadMask, list[str], list[Entry]]:
    """The heads that a search begins with, the leading sites that a circuit decides, and the samples that these saw."""
    start = source.description.mask
    leading: list[str] = []
    seen: list[Entry] = []
    if (path := options.start_mask) is not None:
        document = read_json_file(path)
        start = start.intersect(mask_from_json(document, source.sites, path, source.description.arch))
        check_base(document, path, source, allow_other=options.allow_other_base, log=log)
        seen += seen_in(document, path)
    if (path := options.share_from) is not None and options.share_sites is not None:
        leading, fewest = leading_sites(meant, options.share_sites)
        if options.share_sites >= fewest:
            raise UsageError(f"--share-sites {options.share_sites} leaves no later site: the range is 1..{fewest - 1}")
        total = total_budget(before, options.keep, options.budget, "--budget")
        document = read_json_file(path)
        ranking = ranking_from_json(document, source.sites, path)
        check_base(document, path, source, allow_other=options.allow_other_base, log=log)
        seen += seen_in(document, path)
        gone = set(ranking.start) & set(source.description.mask.kept_heads)
        if len(gone) + len(ranking.removed) < total:
            raise InputError(
                f"{path} removes {len(gone) + len(ranking.removed)} heads, fewer than the {total} of this search",
                hint="take a longer circuit, or a smaller budget",
            )
        check_whole(ranking, ranking.removed[total - len(gone) :], path)
        removed = [*sorted(gone), *ranking.removed[: total - len(gone)]]
        start = start.without(head for head in removed if head[0] in leading)
    return start, leading, seen


def _without(source: Source, start: HeadMask) -> Source:
    if start == source.description.mask:
        return source
    description, tensors = pruned(source, start, "sliced")
    return replace(source, description=description, tensors=tensors)


def _numbered(text: str, sites: Sequence[Site]) -> list[str]:
    """``3-5,8``: the paths of those sites."""
    numbers: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if low > high or high >= len(sites):
            raise UsageError(f"--sites {text}: {part} is outside 0..{len(sites) - 1}, the sites of the model")
        numbers.update(range(low, high + 1))
    return [site.path for index, site in enumerate(sites) if index in numbers]


def kept_at_sites(heads: Sequence[Head], keep: int | None, budget: int | None) -> dict[str, int]:
    """How many heads are chosen at each site.

    Args:
        heads: the candidates, each its site and head.
        keep: so many, or all where there are fewer.
        budget: where ``keep`` is None, how many go in all, the same number at every site.

    Raises:
        UsageError: for a number that the sites do not have, or a budget that is no multiple of the number of sites.
    """
    there = Counter(site for site, _ in heads)
    if keep is not None:
        most = max(there.values())
        if not 0 <= keep < most:
            raise UsageError(
                f"--keep {keep} is outside 0..{most - 1}: a site has at most {most} heads, and one must go"
            )
        return {site: min(keep, count) for site, count in there.items()}
    assert budget is not None
    sites, most = len(there), min(there.values())
    if not 1 <= budget <= sites * most:
        raise UsageError(f"--budget {budget} is outside 1..{sites * most}, as many heads from each of {sites} sites")
    each, rest = divmod(budget, sites)
    if rest:
        near = [n for n in (each * sites, (each + 1) * sites) if 0 < n <= sites * most]
        raise UsageError(
            f"--budget {budget} cannot be shared evenly by {sites} sites",
            hint=f"headmap removes as many heads at each: --budget {' or '.join(map(str, near))}",
        )
    return {site: count - each for site, count in there.items()}
