"""Sites, head masks, head scores and rankings: the vocabulary of hydractl, in pure Python.

A *site* is one attention block of a model. A *head* is (site path, index in the ORIGINAL numbering): pruning never
renumbers heads, so masks of one base model can always be compared, combined and applied again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MASK_SCHEMA = "hydractl.mask/1"
SCORES_SCHEMA = "hydractl.scores/1"

Head = tuple[str, int]
"""One head: (site path, index in the original numbering)."""

MOST_HEADS = 4096
"""The most heads of one site: a file may claim any number, and each head may be listed."""
MOST_HEADS_OF_ALL = 65_536
"""The most heads of all sites of one model."""


@dataclass(frozen=True)
class Site:
    """One attention block.

    Attributes:
        path: module path in the library's own model, for example ``blocks.0.attn``.
        heads: number of heads before any pruning.
        head_dim: width of one head.
        d_model: width of the residual stream.
        tower: ``main``, or ``visual`` / ``text`` in a model with two towers.
        layout: the layout of its tensors, if the family knows several.
        sharing: how many neighbouring query heads share one head of keys and values (grouped-query attention).
    """

    path: str
    heads: int
    head_dim: int
    d_model: int
    tower: str = "main"
    layout: str = ""
    sharing: int = 1

    def key_heads(self, kept: Sequence[int]) -> tuple[int, ...] | None:
        """Return for each kept head the index of its keys and values; None if every head has its own.

        With grouped-query attention, ``sharing`` neighbouring heads use the same keys and values. Those that no kept
        head uses are not counted, and the others are numbered in the order of first use. E.g. with two heads to each
        and the heads 2, 3, 5 kept: (0, 0, 1).

        Args:
            kept: the kept heads, by their numbers before any pruning.
        """
        if self.sharing == 1:
            return None
        index_of_key: dict[int, int] = {}
        indices = []
        for head in kept:
            key = head // self.sharing
            if key not in index_of_key:
                index_of_key[key] = len(index_of_key)
            indices.append(index_of_key[key])
        return tuple(indices)


def all_heads(sites: Iterable[Site]) -> list[Head]:
    """List every head of the given sites in model order, which is also the order that decides ties in hydractl."""
    return [(site.path, number) for site in sites for number in range(site.heads)]


@dataclass(frozen=True)
class HeadMask:
    """The kept heads of each site.

    Attributes:
        heads: the original number of heads of each site, in model order.
        kept: the kept heads of each site, ascending, in the original numbering; a site may keep none.
    """

    heads: Mapping[str, int]
    kept: Mapping[str, tuple[int, ...]]

    @classmethod
    def full(cls, sites: Iterable[Site]) -> HeadMask:
        """Return the mask that keeps every head."""
        heads = {}
        kept = {}
        for site in sites:
            heads[site.path] = site.heads
            kept[site.path] = tuple(range(site.heads))
        return cls(heads, kept)

    def without(self, removed: Iterable[Head]) -> HeadMask:
        """Return this mask with more heads removed; heads that are already gone stay gone."""
        to_remove = set(removed)
        kept = {}
        for path, heads in self.kept.items():
            kept[path] = tuple(head for head in heads if (path, head) not in to_remove)
        return HeadMask(self.heads, kept)

    def intersect(self, other: HeadMask) -> HeadMask:
        """Return the mask of the heads that both masks keep. Pruning a pruned model again is this operation."""
        kept = {}
        for path, heads in self.kept.items():
            other_heads = other.kept[path]
            kept[path] = tuple(head for head in heads if head in other_heads)
        return HeadMask(self.heads, kept)

    def at(self, paths: Iterable[str]) -> HeadMask:
        """Return this mask with only some of its sites (attention modules), in model order.

        Args:
            paths: the paths of these sites; a path that the mask does not have is ignored.
        """
        wanted = set(paths)
        heads = {}
        kept = {}
        for path, count in self.heads.items():
            if path in wanted:
                heads[path] = count
                kept[path] = self.kept[path]
        return HeadMask(heads, kept)

    def updated(self, other: HeadMask) -> HeadMask:
        """Return this mask with the kept heads of ``other`` at all sites that ``other`` has."""
        kept = {path: other.kept.get(path, heads) for path, heads in self.kept.items()}
        return HeadMask(self.heads, kept)

    @property
    def kept_heads(self) -> list[Head]:
        """All kept heads in model order."""
        return [(path, number) for path, numbers in self.kept.items() for number in numbers]

    @property
    def removed_heads(self) -> list[Head]:
        """All removed heads in model order, as (path of the site, index of the head)."""
        removed: list[Head] = []
        for path, count in self.heads.items():
            kept = set(self.kept[path])
            removed += [(path, number) for number in range(count) if number not in kept]
        return removed

    @property
    def is_full(self) -> bool:
        """Whether no head has been removed."""
        return sum(self.counts()) == sum(self.heads.values())

    def counts(self) -> list[int]:
        """Return the number of kept heads per site, in model order."""
        return [len(numbers) for numbers in self.kept.values()]

    def to_json(
        self,
        arch: str | None = None,
        source: Mapping[str, object] | None = None,
        seen: Sequence[Mapping[str, object]] = (),
    ) -> dict[str, object]:
        """Return the mask as the JSON object ``hydractl.mask/1``.

        Args:
            arch: the name of the model's architecture; left out if None.
            source: how the mask was made; left out if None.
            seen: the data that had an influence on the mask, as entries of :mod:`hydractl.files.fingerprints`; left out
                if empty.
        """
        sites: dict[str, object] = {}
        for path, count in self.heads.items():
            sites[path] = {"heads": count, "kept": list(self.kept[path])}
        document: dict[str, object] = {"schema": MASK_SCHEMA}
        if arch is not None:
            document["arch"] = arch
        document["sites"] = sites
        if source is not None:
            document["source"] = dict(source)
        if seen:
            document["seen"] = [dict(entry) for entry in seen]
        return document


@dataclass(frozen=True)
class HeadScores:
    """One importance per head; higher means keep.

    Attributes:
        scores: for each site, in model order, one finite float per head of the original numbering. In a model with two
            towers, the scores may cover one tower only. A head that was already removed when the scores were made has
            the score ``-inf`` in memory and ``null`` in JSON.
        info: further entries of the scores file, by key.
    """

    scores: Mapping[str, tuple[float, ...]]
    info: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Return the scores as the JSON object ``hydractl.scores/1``: for each site a list with a number for each head.

        A head that was already removed has the score ``-inf`` here, and None (``null``) there.
        """
        sites: dict[str, list[float | None]] = {}
        for path, scores in self.scores.items():
            values: list[float | None] = []
            for score in scores:
                values.append(None if math.isinf(score) else score)  # None: a removed head
            sites[path] = values
        return {"schema": SCORES_SCHEMA, "sites": sites, **self.info}


@dataclass(frozen=True)
class Ranking:
    """The heads that a circuit search removes, usually in order: nested masks for every budget up to their number.

    Attributes:
        removed: the heads in the order of their removal.
        start: the heads that were removed before the first step.
        nested: whether removing only the first N of them is also a valid result. It is not for Headmap, which decides
            how many heads each site keeps, and measures sites with different numbers of masked heads.
    """

    removed: tuple[Head, ...]
    start: tuple[Head, ...] = ()
    nested: bool = True
