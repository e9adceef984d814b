"""Sites, head masks, head scores and rankings: the vocabulary of hydractl, in pure Python.

A *site* is one attention block of a model. A *head* is (site path, index in the ORIGINAL numbering): pruning never
renumbers heads, so masks of one base model can always be compared, combined and applied again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from hydractl.errors import InputError
from hydractl.jsonio import shown

MASK_SCHEMA = "hydractl.mask/1"
SCORES_SCHEMA = "hydractl.scores/1"
CIRCUIT_SCHEMA = "hydractl.circuit/2"

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

        The indices count only the heads of keys and values that kept heads use, in the order of first use.
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
        """Return this mask at some of its sites only, in model order."""
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
        """All removed heads in model order."""
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
            arch: the architecture of the model; left out if None, like ``source``.
            source: how the mask was made.
            seen: entries of :mod:`hydractl.files.fingerprints` for data that had an influence; left out if empty.
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
        """Return the scores as the JSON object ``hydractl.scores/1``."""
        sites: dict[str, list[float | None]] = {}
        for path, scores in self.scores.items():
            values: list[float | None] = []
            for score in scores:
                values.append(None if math.isinf(score) else score)  # None: a removed head
            sites[path] = values
        return {"schema": SCORES_SCHEMA, "sites": sites, **self.info}


# --- reading the JSON forms -------------------------------------------------------------------------------------------


def _read_listed_sites(
    listed: Any, sites: Sequence[Site], problems: list[str], *, whole_towers: bool = False
) -> Mapping[str, object]:
    """Return the ``sites`` object of a file, and add a sentence to ``problems`` for each unknown or missing site.

    Args:
        listed: the object, which may be any value; for anything but an object, {} is returned.
        sites: the sites of the model.
        problems: an output: the sentences are appended to it.
        whole_towers: whether it is enough to list all sites of one tower; a model of images and texts has two.
    """
    if not isinstance(listed, Mapping):
        problems.append('"sites" is missing or not an object')
        return {}

    known_paths = {site.path for site in sites}
    for path in listed:
        if path not in known_paths:
            problems.append(f"unknown site {shown(path)}")

    missing = [site for site in sites if site.path not in listed]
    listed_towers = {site.tower for site in sites if site.path in listed}
    if whole_towers and listed_towers:
        # A tower is left out, not missing, if none of its sites is listed.
        missing = [site for site in missing if site.tower in listed_towers]
    for site in missing:
        problems.append(f"site {site.path} is missing")
    return listed


def _read_document(document: Any, schema: str, origin: str) -> Mapping[str, object]:
    """Return the document of a file if it is an object of this schema.

    Raises:
        InputError: it is not an object, or has another schema.
    """
    if not isinstance(document, Mapping):
        raise InputError(f"{origin} is not a JSON object, so it is no {schema} file")
    schema_of_file = document.get("schema")
    if schema_of_file != schema:
        raise InputError(f"{origin} has the schema {shown(schema_of_file)}, expected {schema!r}")
    return document


def _is_index(value: Any) -> TypeGuard[int]:
    """Return whether a value is an integer; ``True`` and ``False``, which Python counts as integers, are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    """Return whether a value is a number that a float can hold; ``True`` and ``False`` are not."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that is too large for a float
        return False


def _text_of_shape(counts: Sequence[int]) -> str:
    """Describe a model by its number of sites and the number of heads of each, e.g. ``12 sites x 12 heads``."""
    if len(set(counts)) == 1:
        return f"{len(counts)} sites x {shown(counts[0])} heads"
    return f"{len(counts)} sites, heads {shown(list(counts), 100)}"


def mask_from_json(document: Any, sites: Sequence[Site], origin: str, arch: str | None = None) -> HeadMask:
    """Return the mask in a JSON document, checked against the sites of a model.

    Args:
        document: the mask, as read from a file.
        sites: the sites of the model.
        origin: the name of the mask in messages.
        arch: the architecture of the model, if it is to be checked.

    Raises:
        InputError: lists all problems: unknown or missing sites, head counts of another model, heads that are negative,
            out of range, repeated or not integers.
    """
    document = _read_document(document, MASK_SCHEMA, origin)
    problems: list[str] = []

    # Read every site, so that one message lists all problems.
    listed = _read_listed_sites(document.get("sites"), sites, problems)
    kept: dict[str, tuple[int, ...]] = {}
    for site in sites:
        if site.path in listed:
            kept[site.path] = _read_entry(listed[site.path], site, problems)

    # A mask may say which architecture it was made for; without that, any model will do.
    if arch is not None and document.get("arch", arch) != arch:
        problems.append(f"made for {shown(document['arch'])}, the model is {arch!r}")

    if problems:
        shape_of_model = _text_of_shape([site.heads for site in sites])
        raise InputError(
            f"mask {origin} does not fit the model ({shape_of_model}; the mask has {_text_of_mask_shape(listed)})",
            hint="make the mask from this model, or check the site names with: hydractl --info MODEL",
            problems=problems,
        )
    heads = {site.path: site.heads for site in sites}
    return HeadMask(heads, kept)


def _read_entry(entry: object, site: Site, problems: list[str]) -> tuple[int, ...]:
    """Return the kept heads of one site of a mask file, ascending; an empty tuple if the file does not list them.

    Heads that are no index of the site, or are listed twice, are left out and reported in ``problems``.

    Args:
        entry: the entry of the site in the file, which may be any value.
        site: the site of the model.
        problems: an output: a sentence for each problem is appended to it.
    """
    if not isinstance(entry, Mapping) or not isinstance(entry.get("kept"), list):
        problems.append(f'site {site.path} needs a list "kept"')
        return ()
    count = entry.get("heads", site.heads)  # a mask need not say how many heads there were
    if not _is_index(count) or count != site.heads:
        problems.append(f"site {site.path} has {shown(count)} heads in the mask, {site.heads} in the model")
    kept: list[int] = []
    for value in entry["kept"]:
        if not _is_index(value):
            problems.append(f"site {site.path}: head {shown(value)} is not an integer")
        elif not 0 <= value < site.heads:
            problems.append(f"site {site.path}: head {shown(value)} is outside 0..{site.heads - 1}")
        elif value in kept:
            problems.append(f"site {site.path}: head {value} is listed twice")
        else:
            kept.append(value)
    return tuple(sorted(kept))


def _text_of_mask_shape(listed: Mapping[str, object]) -> str:
    """Describe a mask file by its number of sites and, if all sites state them, their numbers of heads."""
    only_sites = f"{len(listed)} sites"
    counts: list[int] = []
    for entry in listed.values():
        if not isinstance(entry, Mapping):
            return only_sites
        count = entry.get("heads")
        if not _is_index(count):
            return only_sites
        counts.append(count)
    if not counts:
        return only_sites
    return _text_of_shape(counts)


def scores_from_json(document: Any, sites: Sequence[Site], origin: str) -> HeadScores:
    """Read a scores file, and check it against the sites of a model. The file may leave out whole towers.

    Args:
        document: the scores, as read from a file.
        sites: the sites of the model.
        origin: the name of the scores in messages.

    Raises:
        InputError: lists all problems.
    """
    document = _read_document(document, SCORES_SCHEMA, origin)
    problems: list[str] = []
    listed = _read_listed_sites(document.get("sites"), sites, problems, whole_towers=True)
    scores: dict[str, tuple[float, ...]] = {}

    # Read every site, so that one message lists all problems.
    for site in sites:
        if site.path not in listed:
            continue
        values = listed[site.path]
        if not isinstance(values, list):
            problems.append(f"site {site.path} has no list of scores, the model {site.heads} heads")
        elif len(values) != site.heads:
            problems.append(f"site {site.path} has {len(values)} scores, the model {site.heads} heads")
        else:
            # A null becomes minus infinity: it means that the head was already removed when the scores were made.
            scores_of_site = []
            for head, value in enumerate(values):
                if value is None:
                    scores_of_site.append(-math.inf)
                elif _is_finite(value):
                    scores_of_site.append(float(value))
                else:
                    problems.append(f"site {site.path}: score of head {head} is {shown(value)}, not a finite number")
            scores[site.path] = tuple(scores_of_site)
    if problems:
        raise InputError(f"scores {origin} do not fit the model", problems=problems)

    # All other entries of the file, e.g. how the scores were made, are kept as they are.
    info = dict(document)
    del info["schema"], info["sites"]
    return HeadScores(scores, info)


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


def ranking_from_json(document: Any, sites: Sequence[Site], origin: str) -> Ranking:
    """Read the removal order of a circuit file, and check it against the sites of a model.

    Args:
        document: the circuit, as read from a file.
        sites: the sites of the model.
        origin: the name of the circuit in messages.

    Raises:
        InputError: lists all problems, e.g. a removed head that the search already began without.
    """
    document = _read_document(document, CIRCUIT_SCHEMA, origin)
    steps = document.get("removed")
    if not isinstance(steps, list):
        raise InputError(f'circuit {origin} has no list "removed"')

    # Read every step, so that one message lists all problems.
    heads_of_site = {site.path: site.heads for site in sites}
    problems: list[str] = []
    removed: list[Head] = []
    for number, step in enumerate(steps, start=1):
        # A malformed step has neither site nor head.
        entries: Mapping[str, Any] = step if isinstance(step, Mapping) else {}
        path = entries.get("site")
        head = entries.get("head")

        # The site must exist, then the head in it, and it must still be there.
        if not isinstance(path, str) or path not in heads_of_site:
            problems.append(f"step {number}: unknown site {shown(path)}")
            continue
        count = heads_of_site[path]
        if not _is_index(head) or not 0 <= head < count:
            problems.append(f"step {number}: head {shown(head)} of {path} is outside 0..{count - 1}")
        elif (path, head) in removed:
            problems.append(f"step {number}: head {head} of {path} is removed twice")
        else:
            removed.append((path, head))
    if problems:
        raise InputError(f"circuit {origin} does not fit the model", problems=problems)

    # Heads that were removed before the first step cannot be removed again.
    gone_at_start: list[Head] = []
    start_document = document.get("start_mask")
    if start_document is not None:
        start_mask = mask_from_json(start_document, sites, f"{origin} (start_mask)")
        gone_at_start = start_mask.removed_heads
    removed_twice = set(gone_at_start).intersection(removed)
    if removed_twice:
        problems = [f"head {head} of {site} is already gone in its start mask" for site, head in sorted(removed_twice)]
        raise InputError(f"circuit {origin} contradicts itself", problems=problems)

    is_nested = document.get("algorithm") != "headmap"
    return Ranking(tuple(removed), tuple(gone_at_start), is_nested)
