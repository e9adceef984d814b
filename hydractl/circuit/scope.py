"""The heads that a search may remove, how many of them, and the model it begins with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hydractl.errors import InputError, UsageError
from hydractl.expressions.data_sets import DataSpec
from hydractl.files.fingerprints import Entry, seen_in
from hydractl.files.head_documents import mask_from_json, ranking_from_json
from hydractl.fusion.plan import check_members
from hydractl.heads.mask import Head, HeadMask, Site
from hydractl.heads.selection import check_whole, leading_sites, total_budget
from hydractl.jsonio import Document
from hydractl.log import Log
from hydractl.model.matching import check_base, sites_of
from hydractl.model.source import Source, pruned


@dataclass(frozen=True)
class SearchOptions:
    """The options of a search, each named like its command-line option; None means the option was not given.

    Neither ``keep`` nor ``budget`` is given if ``max_drop`` ends the search.
    """

    val: Sequence[DataSpec]
    ood_val: Sequence[DataSpec]
    paired: bool
    limit: int | None
    objective: Sequence[str]
    ood_score: str
    algorithm: str
    approx: str | None
    keep: int | None
    budget: int | None
    max_drop: float | None
    tower: str | None
    sites: str | None
    start_mask: Document | None
    share_from: Document | None
    share_sites: int | None
    batch_size: int
    dtype: str
    device: str
    workers: int | None
    memory: str | None
    seed: int
    resume: bool
    force: bool
    allow_other_base: bool


@dataclass(frozen=True)
class Scope:
    """The heads of one search.

    Attributes:
        source: the model, without the heads that are removed before the search begins.
        sites: the paths of the sites whose heads are candidates, in model order.
        budget: how many of the candidates to remove, at most.
        removed_before: how many heads that the options count are removed before the search begins.
        details: the part of the provenance that describes the scope.
        seen: the samples that the starting mask and circuit were made from.
        kept: how many heads Headmap keeps at each of these sites; None for other searches.
    """

    source: Source
    sites: list[str]
    budget: int
    removed_before: int
    details: Mapping[str, object]
    seen: list[Entry]
    kept: dict[str, int] | None = None

    @property
    def heads(self) -> list[Head]:
        """The candidates, in model order."""
        return self.source.description.mask.at(self.sites).kept_heads


def scope_of(source: Source, options: SearchOptions, log: Log) -> Scope:
    """Decide from the options which heads a search may remove, how many of them, and the model it begins with.

    A site is an attention block of the model, named by its path.

    Raises:
        UsageError: for a budget, sites or shares outside the model's range; the message names the range.
        InputError: for a mask or a circuit that does not fit the model, or was made from other weights.
    """
    check_members([source])
    sites_of_tower = sites_of(source, options.tower)
    paths_of_tower = [site.path for site in sites_of_tower]
    model_mask = source.description.mask.at(paths_of_tower)
    is_headmap = options.algorithm == "headmap"

    # The options count all heads that are gone at the end (`total`), also those that the model or the start of the
    # search already lacks. `budget` is what is left for the search itself to remove.
    total = None  # with max_drop alone, and of headmap
    if not is_headmap and (options.keep is not None or options.budget is not None):
        total = total_budget(model_mask, options.keep, options.budget, "--budget")

    # The sites whose heads may be removed: the listed ones (default: all), in the model that the search begins with.
    listed_paths = [site.path for site in source.sites]
    if options.sites:
        listed_paths = _paths_of_numbers(options.sites, source.sites)
    start = _starting_point(source, options, sites_of_tower, model_mask, log)
    starting_mask = start.mask.at(model_mask.heads)
    sites = [path for path in starting_mask.heads if path in listed_paths and path not in start.leading]
    if not sites:
        raise UsageError("no site is left whose heads could be removed", hint="see --sites, --share-sites and --tower")

    # How many of these heads to remove.
    kept = None
    removed_before = len(model_mask.kept_heads) - len(starting_mask.kept_heads)
    candidates = start.mask.at(sites).kept_heads
    if is_headmap:
        # Headmap: --keep counts the heads of each site separately, and decides the budget.
        assert options.keep is not None
        kept = kept_at_sites(candidates, options.keep)
        budget = len(candidates) - sum(kept.values())
    else:
        if total is None:
            # Only the drop of accuracy ends the search: allow all removals but the last head of the tower.
            all_but_one = len(starting_mask.kept_heads) - 1
            total = removed_before + min(len(candidates), all_but_one)
        budget = total - removed_before
        _check_budget(budget, removed_before, options, len(starting_mask.kept_heads), len(candidates))
    searched = source
    if start.mask != source.description.mask:
        description, tensors = pruned(source, start.mask, "sliced")
        searched = replace(source, description=description, tensors=tensors)
    return Scope(
        source=searched,
        sites=sites,
        budget=budget,
        removed_before=removed_before,
        details=_provenance_details(options, start.leading, kept),
        seen=start.seen,
        kept=kept,
    )


def _check_budget(budget: int, removed_before: int, options: SearchOptions, present: int, candidates: int) -> None:
    """Check that a budget removes at least one head, leaves one, and is not above the number of candidates.

    Heads may be gone before the search begins: the options ``--keep`` and ``--budget`` count them, ``budget`` does not.

    Args:
        budget: how many heads the search itself removes.
        removed_before: how many heads are removed before it begins.
        options: the options of the search.
        present: how many heads there are when the search begins.
        candidates: how many of them the search may remove.

    Raises:
        UsageError: for a budget out of range.
    """
    # Name the option that the budget came from.
    option = "--keep" if options.budget is None else "--budget"
    total = budget + removed_before

    # Nothing to remove; the first message is for a search that begins with heads removed already.
    if budget < 1 and removed_before:
        raise UsageError(f"{removed_before} heads are gone at the beginning, and {option} asks for {total} in all")
    if budget < 1:
        raise UsageError(f"{option} removes no head")

    # Nothing would be left.
    if budget >= present:
        most = removed_before + present - 1
        raise UsageError(f"{option} removes all {total} heads: at least one must be left, so {most} can go at most")

    # The searched sites do not have so many heads.
    if budget > candidates:
        raise UsageError(
            f"{option} asks for {budget} more heads, and the sites that are meant have {candidates}",
            hint="choose a smaller budget or more --sites",
        )


def _provenance_details(
    options: SearchOptions, leading: Sequence[str], kept: dict[str, int] | None
) -> dict[str, object]:
    """Return the part of the provenance that says which heads could be removed; unused options are left out.

    Args:
        options: the options of the search.
        leading: the paths of the leading sites (attention blocks) where another circuit decides (``--share-sites``).
        kept: how many heads Headmap keeps at each site; None for other searches.
    """
    details: dict[str, object] = {}
    if leading:
        details["share_sites"] = options.share_sites
    if options.allow_other_base:
        details["allow_other_base"] = True
    if options.sites:
        details["sites"] = options.sites
    if kept is not None:
        details["kept"] = list(kept.values())
    return details


@dataclass(frozen=True)
class _StartingPoint:
    """The model that a search begins with.

    Attributes:
        mask: the heads that are present.
        leading: the paths of the leading sites where another circuit decides (``--share-sites``).
        seen: the samples that the mask and the circuit were made from.
    """

    mask: HeadMask
    leading: list[str]
    seen: list[Entry]


def _starting_point(
    source: Source, options: SearchOptions, sites_of_tower: Sequence[Site], before: HeadMask, log: Log
) -> _StartingPoint:
    """Return the heads that a search begins with: the model's heads without those that two options remove.

    ``--start-mask`` names a mask. ``--share-from`` names a circuit: at the first ``--share-sites`` sites, its removals
    are taken over.

    Args:
        source: the model.
        options: the options of the search.
        sites_of_tower: the sites of the searched tower, in model order.
        before: the heads of the model at these sites.
        log: receives a warning about a file made from other weights, if that is allowed.
    """
    mask = source.description.mask
    leading: list[str] = []
    seen: list[Entry] = []
    if options.start_mask is not None:
        document = options.start_mask.content
        start_mask = mask_from_json(document, source.sites, options.start_mask.text, source.description.arch)
        check_base(document, options.start_mask.text, source, allow_other=options.allow_other_base, log=log)
        mask = mask.intersect(start_mask)
        seen += seen_in(document, options.start_mask.text)

    # Take over the circuit's removals at the leading sites, as many as it has made when all removals are done.
    if options.share_from is not None and options.share_sites is not None:
        leading, fewest = leading_sites(sites_of_tower, options.share_sites)
        if options.share_sites >= fewest:
            raise UsageError(f"--share-sites {options.share_sites} leaves no later site: the range is 1..{fewest - 1}")
        total = total_budget(before, options.keep, options.budget, "--budget")
        document = options.share_from.content
        ranking = ranking_from_json(document, source.sites, options.share_from.text)
        check_base(document, options.share_from.text, source, allow_other=options.allow_other_base, log=log)
        seen += seen_in(document, options.share_from.text)
        kept_by_model = set(source.description.mask.kept_heads)
        removed_at_start = kept_by_model.intersection(ranking.start)
        if len(removed_at_start) > total:
            raise InputError(
                f"{options.share_from.text} begins with {len(removed_at_start)} heads gone, "
                f"more than the {total} of this search",
                hint="take a circuit that begins with all heads, or a larger budget",
            )
        longest = len(removed_at_start) + len(ranking.removed)
        if longest < total:
            raise InputError(
                f"{options.share_from.text} removes {longest} heads, fewer than the {total} of this search",
                hint="take a longer circuit, or a smaller budget",
            )

        # Take its first removals, until so many are gone. Removals of a headmap circuit belong together, so none may be
        # left over.
        count = total - len(removed_at_start)
        first_removed = ranking.removed[:count]
        left_over = ranking.removed[count:]
        check_whole(ranking, left_over, options.share_from.text)
        removed = [*sorted(removed_at_start), *first_removed]
        removed_at_leading = [(site, head) for site, head in removed if site in leading]
        mask = mask.without(removed_at_leading)
    return _StartingPoint(mask, leading, seen)


def _paths_of_numbers(text: str, sites: Sequence[Site]) -> list[str]:
    """Return the paths of the sites (attention blocks) that a text such as ``3-5,8`` lists, in model order.

    Sites are numbered from 0. Ranges include both ends, so these are the sites 3, 4, 5 and 8; a site that is listed
    twice is returned once.

    Raises:
        UsageError: for a number or a range that the model does not have.
    """
    last_number = len(sites) - 1
    numbers: set[int] = set()
    for part in text.split(","):  # "3-5" or "8"
        first, _, last = part.partition("-")
        low = int(first)
        high = int(last or first)  # "8" means "8-8"
        if low > high or high > last_number:
            raise UsageError(f"--sites {text}: {part} is outside 0..{last_number}, the sites of the model")
        numbers.update(range(low, high + 1))
    return [sites[number].path for number in sorted(numbers)]


def kept_at_sites(heads: Sequence[Head], keep: int) -> dict[str, int]:
    """Return how many heads Headmap keeps at each site (attention block): ``keep``, or all if the site has fewer.

    Args:
        heads: the candidates, each the path of its site and its number there.
        keep: how many heads each site keeps.

    Raises:
        UsageError: for a number with which no site would lose a head.
    """
    heads_of_site = Counter(site for site, _ in heads)
    most = max(heads_of_site.values())
    if not 0 <= keep < most:
        raise UsageError(f"--keep {keep} is outside 0..{most - 1}: a site has at most {most} heads, and one must go")
    return {site: min(keep, count) for site, count in heads_of_site.items()}
