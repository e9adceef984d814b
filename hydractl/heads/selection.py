"""Head selection: a mask from scores or a ranking, and a budget. Pure Python; ties go to the lowest site, then head."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence

from hydractl.errors import InputError, UsageError
from hydractl.heads.mask import Head, HeadMask, HeadScores, Ranking, Site


def site_budget(present: HeadMask, keep: int | None, remove: int | None) -> dict[str, int]:
    """Return the number of heads to remove at each site (attention module), by its path, for a budget per site.

    E.g. for sites of 12 and 3 heads, ``keep`` 4 removes 8 and 0, and ``remove`` 2 removes 2 of each.

    Args:
        present: the heads that the model still has.
        keep: the number of heads to keep at each site; a site with fewer loses none.
        remove: the number of heads to remove at each site, used if ``keep`` is None.

    Raises:
        UsageError: the budget is outside the range of the sites; the message names the range.
    """
    if keep is not None:
        most = max(present.heads.values())
        if not 0 <= keep <= most:
            raise UsageError(f"--keep {keep} is outside 0..{most}, the heads of a site")
        return {path: max(0, len(kept) - keep) for path, kept in present.kept.items()}

    # Every site loses the same number, which the smallest one must have.
    fewest = min(present.counts())
    if remove is None or not 0 <= remove <= fewest:
        raise UsageError(f"--remove {remove} is outside 0..{fewest}, the heads present at the smallest site")
    return dict.fromkeys(present.kept, remove)


def total_budget(present: HeadMask, keep: int | None, remove: int | None, option: str = "--remove") -> int:
    """Return the total number of heads to remove, from ``keep`` as a mean per site or from ``remove`` as a total.

    A site is an attention module. E.g. for 12 sites with 144 heads in all, ``keep`` 10 removes 144 - 10 * 12 = 24.

    Args:
        present: the heads that the model still has.
        keep: the mean number of heads to keep per site, or None.
        remove: the total number to remove, used if ``keep`` is None.
        option: the option that ``remove`` was given by, for messages.

    Raises:
        UsageError: the budget is outside the range of the model; the message names the range.
    """
    count = len(present.kept_heads)
    sites = len(present.heads)
    if keep is not None:
        kept_in_all = keep * sites
        if not 0 <= kept_in_all <= count:
            raise UsageError(f"--keep {keep} is outside 0..{count // sites}, the mean number of heads per site")
        return count - kept_in_all
    if remove is None or not 0 <= remove <= count:
        raise UsageError(f"{option} {remove} is outside 0..{count}, the heads present in the model")
    return remove


def lowest(scores: HeadScores, heads: Iterable[Head]) -> list[Head]:
    """Return the heads from the least to the most important; heads of equal importance keep the order given."""

    def importance(head: Head) -> float:
        path, number = head
        return scores.scores[path][number]

    return sorted(heads, key=importance)


def select_per_site(scores: HeadScores, present: HeadMask, budget: Mapping[str, int]) -> HeadMask:
    """Return the mask without the least important heads of each site (attention module).

    Args:
        scores: the importance of each head.
        present: the heads that the model still has.
        budget: how many heads to remove at each site, by its path.
    """
    removed: list[Head] = []
    for path, kept in present.kept.items():
        least_important_first = lowest(scores, [(path, number) for number in kept])
        removed += least_important_first[: budget[path]]
    return present.without(removed)


def select_global(
    order: Sequence[Head], present: HeadMask, count: int, fixed: Mapping[str, tuple[int, ...]]
) -> HeadMask:
    """Return the mask with ``count`` heads removed in all.

    A site is an attention module. At the sites of ``fixed``, exactly the heads that it lacks are removed, which uses up
    some of the count. The rest are the first heads of ``order`` at the other sites.

    Args:
        order: heads, the first to be removed first.
        present: the heads that the model still has.
        count: how many heads are removed in all, including those at fixed sites.
        fixed: the kept heads of sites that are already decided, by the path of the site.

    Raises:
        InputError: the order has too few heads for the budget.
        UsageError: the fixed sites alone remove more than the budget.
    """
    # The fixed sites use up some of the budget.
    mask = apply_fixed(present, fixed)
    removed_at_fixed_sites = len(present.kept_heads) - len(mask.kept_heads)
    rest = count - removed_at_fixed_sites
    if rest < 0:
        raise UsageError(
            f"the shared sites alone remove {removed_at_fixed_sites} heads, the budget is {count}",
            hint="share fewer sites or remove more heads",
        )

    # Remove the rest at the other sites, skipping heads that are gone already.
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
    """Return the mask ``present`` with the heads removed that ``fixed`` does not keep.

    Args:
        present: the heads that the model still has.
        fixed: for some sites (attention modules), by path, the heads to keep; other sites stay as they are. A head that
            the model no longer has is not brought back.
    """
    kept = {}
    for path, heads in present.kept.items():
        kept[path] = heads
        if path in fixed:
            fixed_heads = [head for head in heads if head in fixed[path]]
            kept[path] = tuple(fixed_heads)
    return HeadMask(present.heads, kept)


def leading_sites(sites: Sequence[Site], count: int) -> tuple[list[str], int]:
    """Return the paths of the first ``count`` sites of each tower, and the number of sites of the smallest tower.

    A site is an attention module. A tower is a stack of them: an image or a text encoder; a CLIP has one of each.
    """
    paths_by_tower: dict[str, list[str]] = {}
    for site in sites:
        paths_by_tower.setdefault(site.tower, []).append(site.path)
    leading = []
    sites_of_towers = []
    for paths in paths_by_tower.values():
        leading += paths[:count]
        sites_of_towers.append(len(paths))
    return leading, min(sites_of_towers)


def shared_sites(sites: Sequence[Site], mask: HeadMask, count: int) -> dict[str, tuple[int, ...]]:
    """Return the kept heads of ``mask`` at the first ``count`` sites of each tower, by the path of the site.

    A site is an attention module. A tower is a stack of them: an image or a text encoder; a CLIP has one of each.

    Raises:
        UsageError: a tower has fewer sites.
    """
    paths, fewest = leading_sites(sites, count)
    if not 0 <= count <= fewest:
        raise UsageError(f"--share-sites {count} is outside 0..{fewest}, the sites of a tower")
    kept = {path: mask.kept[path] for path in paths}
    return kept


def sample_ranking(ranking: Ranking, first: int, count: int, seed: int) -> list[Head]:
    """Return ``count`` heads, drawn without replacement from the first ``first`` of a ranking, in its order.

    The paper (B.5) draws 48 of the first 100.

    Raises:
        UsageError: the ranking has fewer heads, or more are to be drawn than it may draw from.
    """
    length = len(ranking.removed)
    if not 1 <= first <= length:
        raise UsageError(f"--sample-from {first} is outside 1..{length}, the length of the ranking")
    if count > first:
        raise UsageError(f"cannot draw {count} heads from the first {first} of the ranking")
    generator = random.Random(seed)
    drawn_indices = generator.sample(range(first), count)
    return [ranking.removed[index] for index in sorted(drawn_indices)]


def check_whole(ranking: Ranking, kept: Iterable[Head], origin: str) -> None:
    """Check that the heads of a ranking that is not nested are removed all together.

    Args:
        ranking: the heads that the search removes.
        kept: the heads that would be kept.
        origin: the name of the ranking in the message.

    Raises:
        UsageError: the ranking is not nested, and some of its heads would be kept.
    """
    if ranking.nested:
        return
    left = len(set(ranking.removed).intersection(kept))
    if left:
        raise UsageError(
            f"{origin} is a circuit of headmap, which removes its {len(ranking.removed)} heads together: "
            f"{left} of them would stay, and it ranks no head of one site against one of another",
            hint="leave the budget out, or search again: extract-circuit --algorithm headmap --keep K",
        )


def check_scored(scores: HeadScores, present: HeadMask) -> None:
    """Check that every head that is present has a score.

    Raises:
        InputError: lists the heads without a score.
    """
    missing = []
    for path, head in present.kept_heads:
        if math.isinf(scores.scores[path][head]):
            missing.append(f"{path} head {head}")
    if missing:
        raise InputError("the scores lack heads that the model has", problems=missing)
