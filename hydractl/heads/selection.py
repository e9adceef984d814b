"""Head selection: a mask from scores or a ranking, and a budget. Pure Python; ties go to the lowest site, then head."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence

from hydractl.errors import InputError, UsageError
from hydractl.heads.mask import Head, HeadMask, HeadScores, Ranking, Site


def site_budget(present: HeadMask, keep: int | None, remove: int | None) -> dict[str, int]:
    """Return the number of heads to remove at each site for a budget per site.

    Raises:
        UsageError: for a budget outside what the sites have, with the range.
    """
    most = max(present.heads.values())
    if keep is not None:
        if not 0 <= keep <= most:
            raise UsageError(f"--keep {keep} is outside 0..{most}, the heads of a site")
        return {path: max(0, len(kept) - keep) for path, kept in present.kept.items()}
    fewest = min(len(kept) for kept in present.kept.values())
    if remove is None or not 0 <= remove <= fewest:
        raise UsageError(f"--remove {remove} is outside 0..{fewest}, the heads present at the smallest site")
    return dict.fromkeys(present.kept, remove)


def total_budget(present: HeadMask, keep: int | None, remove: int | None, option: str = "--remove") -> int:
    """Return the total number of heads to remove, for ``keep`` as the mean kept per site or ``remove`` as a total.

    Args:
        present: what the model still has.
        keep: the mean number of heads kept per site, or None.
        remove: the total, where ``keep`` is None.
        option: what ``remove`` was given as, for messages.

    Raises:
        UsageError: for a budget outside what the model has, with the range.
    """
    count = len(present.kept_heads)
    sites = len(present.heads)
    if keep is not None:
        if not 0 <= keep * sites <= count:
            raise UsageError(f"--keep {keep} is outside 0..{count // sites}, the mean number of heads per site")
        return count - keep * sites
    if remove is None or not 0 <= remove <= count:
        raise UsageError(f"{option} {remove} is outside 0..{count}, the heads present in the model")
    return remove


def lowest(scores: HeadScores, heads: Iterable[Head]) -> list[Head]:
    """Sort heads from the least to the most important, those of equal importance in the order they are given in."""

    def importance(head: Head) -> float:
        path, number = head
        return scores.scores[path][number]

    return sorted(heads, key=importance)


def select_per_site(scores: HeadScores, present: HeadMask, budget: Mapping[str, int]) -> HeadMask:
    """Remove the least important heads of each site."""
    removed: list[Head] = []
    for path, kept in present.kept.items():
        least_important_first = lowest(scores, [(path, head) for head in kept])
        removed += least_important_first[: budget[path]]
    return present.without(removed)


def select_global(
    order: Sequence[Head], present: HeadMask, count: int, fixed: Mapping[str, tuple[int, ...]]
) -> HeadMask:
    """Remove ``count`` heads in all: those of the ``fixed`` sites as given, the rest in the order of removal.

    Args:
        order: heads, first to be removed first.
        present: what the model still has.
        count: removals in all, those at fixed sites included.
        fixed: sites whose kept heads are decided already.

    Raises:
        InputError: when the order is too short for the budget.
        UsageError: when the fixed sites alone remove more than the budget.
    """
    mask = apply_fixed(present, fixed)
    removed_at_fixed_sites = len(present.kept_heads) - len(mask.kept_heads)
    rest = count - removed_at_fixed_sites
    if rest < 0:
        raise UsageError(
            f"the shared sites alone remove {removed_at_fixed_sites} heads, the budget is {count}",
            hint="share fewer sites or remove more heads",
        )
    still_there = set(mask.kept_heads)
    candidates = []
    for path, head in order:
        if path not in fixed and (path, head) in still_there:
            candidates.append((path, head))
    if len(candidates) < rest:
        raise InputError(
            f"the ranking has {len(candidates)} heads that can still be removed, the budget needs {rest}",
            hint="extract a longer ranking (--budget) or remove fewer heads",
        )
    return mask.without(candidates[:rest])


def apply_fixed(present: HeadMask, fixed: Mapping[str, tuple[int, ...]]) -> HeadMask:
    """Return ``present`` with the heads of the fixed sites taken from ``fixed``; what is gone stays gone."""
    kept = {}
    for path, heads in present.kept.items():
        if path in fixed:
            heads = tuple(head for head in heads if head in fixed[path])
        kept[path] = heads
    return HeadMask(present.heads, kept)


def leading_sites(sites: Sequence[Site], count: int) -> tuple[list[str], int]:
    """Return the paths of the first ``count`` sites of each tower, and how many sites the smallest tower has."""
    paths_by_tower: dict[str, list[str]] = {}
    for site in sites:
        paths_by_tower.setdefault(site.tower, []).append(site.path)
    leading = []
    for paths in paths_by_tower.values():
        leading += paths[:count]
    fewest = min(len(paths) for paths in paths_by_tower.values())
    return leading, fewest


def shared_sites(sites: Sequence[Site], mask: HeadMask, count: int) -> dict[str, tuple[int, ...]]:
    """Return the kept heads of ``mask`` in the first ``count`` sites of each tower.

    Raises:
        UsageError: when a tower has fewer sites.
    """
    paths, fewest = leading_sites(sites, count)
    if not 0 <= count <= fewest:
        raise UsageError(f"--share-sites {count} is outside 0..{fewest}, the sites of a tower")
    return {path: mask.kept[path] for path in paths}


def sample_ranking(ranking: Ranking, first: int, count: int, seed: int) -> list[Head]:
    """Draw ``count`` heads without replacement from the first ``first`` of a ranking (paper B.5: 48 of 100).

    Raises:
        UsageError: when there are not that many.
    """
    if not 1 <= first <= len(ranking.removed):
        raise UsageError(f"--sample-from {first} is outside 1..{len(ranking.removed)}, the length of the ranking")
    if count > first:
        raise UsageError(f"cannot draw {count} heads from the first {first} of the ranking")
    drawn_places = random.Random(seed).sample(range(first), count)
    return [ranking.removed[place] for place in sorted(drawn_places)]


def check_whole(ranking: Ranking, kept: Iterable[Head], origin: str) -> None:
    """Check that the heads of a ranking which is not nested are removed together.

    Args:
        ranking: the heads.
        kept: what would be kept.
        origin: what to call the ranking.

    Raises:
        UsageError: when it is not nested and some of its heads would be kept.
    """
    left = len(set(ranking.removed).intersection(kept))
    if left and not ranking.nested:
        raise UsageError(
            f"{origin} is a circuit of headmap, which removes its {len(ranking.removed)} heads together: "
            f"{left} of them would stay, and it ranks no head of one site against one of another",
            hint="leave the budget out, or search again: extract-circuit --algorithm headmap --keep K",
        )


def check_scored(scores: HeadScores, present: HeadMask) -> None:
    """Check that every head that is present has a score.

    Raises:
        InputError: listing those without.
    """
    missing = []
    for path, head in present.kept_heads:
        if math.isinf(scores.scores[path][head]):
            missing.append(f"{path} head {head}")
    if missing:
        raise InputError("the scores lack heads that the model has", problems=missing)
