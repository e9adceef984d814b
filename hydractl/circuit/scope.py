"""Which heads a search may remove, how many, and what the model costs without them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypedDict

from hydractl.errors import InputError, UsageError
from hydractl.files.fingerprints import Entry, seen_in
from hydractl.fusion.plan import check_members, plan_fusion
from hydractl.heads.mask import Head, HeadMask, Ranking, Site, mask_from_json, ranking_from_json
from hydractl.heads.selection import check_whole, leading_sites, total_budget
from hydractl.jsonio import read_json_file
from hydractl.log import Log
from hydractl.model.cost import dense_macs, macs
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


class ScopeDetails(TypedDict, total=False):
    """What the provenance of a circuit says of the heads that were searched."""

    share_sites: int | None
    allow_other_base: bool
    sites: str
    kept: list[int]


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
    details: ScopeDetails
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
    of_tower = sites_of(source, options.tower)
    before = source.description.mask.at(site.path for site in of_tower)
    headmap = options.algorithm == "headmap"
    total = None if headmap else _total(options, before)
    listed = [site.path for site in source.sites]
    if options.sites:
        listed = _numbered(options.sites, source.sites)
    start, leading, seen = _start(source, options, of_tower, before, log)
    for member in members:
        seen += member.description.seen
    after = start.at(before.heads)
    gone = len(before.kept_heads) - len(after.kept_heads)
    sites = [path for path in after.heads if path in listed and path not in leading]
    if not sites:
        raise UsageError("no site is left whose heads could be removed", hint="see --sites, --share-sites and --tower")

    kept = None
    left = start.at(sites).kept_heads
    if headmap:
        # It counts the heads that are kept at each site, not the mean over all of them.
        removed_here = None if options.budget is None else options.budget - gone
        kept = kept_at_sites(left, options.keep, removed_here)
        budget = len(left) - sum(kept.values())
    else:
        if total is None:
            total = gone + min(len(left), len(after.kept_heads) - 1)
        budget = total - gone
        _check_budget(budget, total, options, before, after, left)
    return Scope(
        source=_without(source, start),
        sites=sites,
        budget=budget,
        total=budget + gone,
        details=_details(options, leading, kept),
        seen=seen,
        kept=kept,
        members=members,
    )


def _total(options: SearchOptions, before: HeadMask) -> int | None:
    """Return how many heads are to be gone at the end, or None where only a constraint ends the search."""
    if options.keep is None and options.budget is None:
        return None
    return total_budget(before, options.keep, options.budget, "--budget")


def _check_budget(
    budget: int, total: int, options: SearchOptions, before: HeadMask, after: HeadMask, left: Sequence[Head]
) -> None:
    """Refuse a budget that removes nothing, everything, or more than the sites that are meant have.

    Args:
        budget: how many heads the search removes.
        total: the same with those that are gone at the beginning.
        options: of the search.
        before, after: the heads of the model, and those that the search begins with.
        left: the candidates.
    """
    option = "--keep" if options.budget is None else "--budget"
    gone = total - budget
    if budget < 1 and gone:
        raise UsageError(f"{gone} heads are gone at the beginning, and {option} asks for {total} in all")
    if budget < 1:
        raise UsageError(f"{option} removes no head")
    if budget >= len(after.kept_heads):
        span = f", so the range is 1..{len(before.kept_heads) - 1}" if option == "--budget" else ""
        raise UsageError(f"{option} removes all {total} heads: at least one must be left{span}")
    if budget > len(left):
        raise UsageError(
            f"{option} asks for {budget} more heads, and the sites that are meant have {len(left)}",
            hint="choose a smaller budget or more --sites",
        )


def _details(options: SearchOptions, leading: Sequence[str], kept: dict[str, int] | None) -> ScopeDetails:
    """Return what the provenance says of the scope."""
    details: ScopeDetails = {}
    if leading:
        details["share_sites"] = options.share_sites
    if options.allow_other_base:
        details["allow_other_base"] = True
    if options.sites:
        details["sites"] = options.sites
    if kept is not None:
        details["kept"] = list(kept.values())
    return details


def _start(
    source: Source, options: SearchOptions, of_tower: Sequence[Site], before: HeadMask, log: Log
) -> tuple[HeadMask, list[str], list[Entry]]:
    """Return where a search begins.

    Returns:
        The heads that it begins with, the leading sites that a circuit decides, and the samples that the mask and the
        circuit have seen.
    """
    start = source.description.mask
    leading: list[str] = []
    seen: list[Entry] = []
    if options.start_mask is not None:
        path = options.start_mask
        document = read_json_file(path)
        start = start.intersect(mask_from_json(document, source.sites, path, source.description.arch))
        check_base(document, path, source, allow_other=options.allow_other_base, log=log)
        seen += seen_in(document, path)
    if options.share_from is not None and options.share_sites is not None:
        path = options.share_from
        leading, fewest = leading_sites(of_tower, options.share_sites)
        if options.share_sites >= fewest:
            raise UsageError(f"--share-sites {options.share_sites} leaves no later site: the range is 1..{fewest - 1}")
        total = total_budget(before, options.keep, options.budget, "--budget")
        document = read_json_file(path)
        ranking = ranking_from_json(document, source.sites, path)
        check_base(document, path, source, allow_other=options.allow_other_base, log=log)
        seen += seen_in(document, path)
        removed = _first_removed(ranking, total, source, path)
        start = start.without(head for head in removed if head[0] in leading)
    return start, leading, seen


def _first_removed(ranking: Ranking, total: int, source: Source, path: str) -> list[Head]:
    """Return the heads of the model that a circuit has removed when so many are gone in all."""
    gone = set(ranking.start) & set(source.description.mask.kept_heads)
    longest = len(gone) + len(ranking.removed)
    if longest < total:
        raise InputError(
            f"{path} removes {longest} heads, fewer than the {total} of this search",
            hint="take a longer circuit, or a smaller budget",
        )
    count = total - len(gone)
    check_whole(ranking, ranking.removed[count:], path)
    return [*sorted(gone), *ranking.removed[:count]]


def _without(source: Source, start: HeadMask) -> Source:
    """Return the model with only the heads that a search begins with."""
    if start == source.description.mask:
        return source
    description, tensors = pruned(source, start, "sliced")
    return replace(source, description=description, tensors=tensors)


def _numbered(text: str, sites: Sequence[Site]) -> list[str]:
    """Return the paths of the sites that ``3-5,8`` lists."""
    numbers: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        low = int(first)
        high = int(last or first)
        if low > high or high >= len(sites):
            raise UsageError(f"--sites {text}: {part} is outside 0..{len(sites) - 1}, the sites of the model")
        numbers.update(range(low, high + 1))
    return [site.path for index, site in enumerate(sites) if index in numbers]


def kept_at_sites(heads: Sequence[Head], keep: int | None, budget: int | None) -> dict[str, int]:
    """Return how many heads Headmap chooses at each site.

    Args:
        heads: the candidates, each its site and head.
        keep: so many, or all where there are fewer.
        budget: where ``keep`` is None, how many go in all, the same number at every site.

    Raises:
        UsageError: for a number that the sites do not have, or a budget that is no multiple of the number of sites.
    """
    counts = Counter(site for site, _ in heads)
    if keep is not None:
        most = max(counts.values())
        if not 0 <= keep < most:
            raise UsageError(
                f"--keep {keep} is outside 0..{most - 1}: a site has at most {most} heads, and one must go"
            )
        return {site: min(keep, count) for site, count in counts.items()}

    assert budget is not None
    sites = len(counts)
    largest = sites * min(counts.values())
    if not 1 <= budget <= largest:
        raise UsageError(f"--budget {budget} is outside 1..{largest}, as many heads from each of {sites} sites")
    each, rest = divmod(budget, sites)
    if rest:
        multiples = [each * sites, (each + 1) * sites]
        possible = [str(multiple) for multiple in multiples if 0 < multiple <= largest]
        raise UsageError(
            f"--budget {budget} cannot be shared evenly by {sites} sites",
            hint=f"headmap removes as many heads at each: --budget {' or '.join(possible)}",
        )
    return {site: count - each for site, count in counts.items()}


# --- what a circuit costs in the ensemble that it joins ---------------------------------------------------------------


@dataclass(frozen=True)
class _SiteShape:
    """What the cost of one site depends on.

    Attributes:
        heads, keys: how many heads the circuit has, and how many heads of keys and values these share.
        all_heads, all_keys: the same of all members' heads together.
        is_shared: whether every other member has the same heads as the circuit.
    """

    heads: int
    keys: int
    all_heads: int
    all_keys: int
    is_shared: bool


class FusedCost:
    """Mult-adds of one sample through some members fused with a circuit, over those of the model with all its heads.

    Shared blocks of the fused model run once.

    Args:
        members: the others, in their order.
        source: the model that the circuit is cut from; its weights and theirs are read, to see what they share.
    """

    def __init__(self, members: Sequence[Source], source: Source) -> None:
        self._members = members
        self._source = source
        self._whole_plan = plan_fusion([*members, source])
        self._dense_macs = dense_macs(source.description)
        self._known_macs: dict[tuple[_SiteShape, ...], int] = {}

    def without(self, removed: Iterable[Head]) -> Fraction:
        """Return the ratio for a circuit that lacks these heads of the model."""
        mask = self._source.description.mask.without(removed)
        # Shapes decide, not which heads they are: most candidates of a site cost the same.
        shapes = tuple(self._shape(mask, site) for site in self._source.sites)
        if shapes not in self._known_macs:
            description, tensors = pruned(self._source, mask, "sliced")
            circuit = replace(self._source, description=description, tensors=tensors)
            plan = plan_fusion([*self._members, circuit], larger=self._whole_plan)
            self._known_macs[shapes] = macs(plan.description, plan.tensors)
        return Fraction(self._known_macs[shapes], self._dense_macs)

    def _shape(self, mask: HeadMask, site: Site) -> _SiteShape:
        kept = mask.kept[site.path]
        kept_by_others = [member.description.mask.kept[site.path] for member in self._members]
        union = set(kept)
        for heads in kept_by_others:
            union.update(heads)
        return _SiteShape(
            heads=len(kept),
            keys=len(site.key_heads(kept) or ()),
            all_heads=len(union),
            all_keys=len(site.key_heads(sorted(union)) or ()),
            is_shared=all(heads == kept for heads in kept_by_others),
        )
