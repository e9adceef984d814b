"""Sites, head masks, head scores and rankings: the vocabulary of hydractl, in pure Python.

A *site* is one attention block of a model. A *head* is (site path, index in the ORIGINAL numbering): pruning never
renumbers heads, so masks of one base model can always be compared, combined and applied again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Required, TypedDict, TypeGuard

from hydractl.errors import InputError
from hydractl.jsonio import shown

MASK_SCHEMA = "hydractl.mask/1"
SCORES_SCHEMA = "hydractl.scores/1"
CIRCUIT_SCHEMA = "hydractl.circuit/2"

Head = tuple[str, int]
"""One head: (site path, index in the original numbering)."""

MOST_HEADS = 4096
"""Heads of one site, where a file may say any number: each may be listed."""
MOST_HEADS_OF_ALL = 65_536
"""Heads of all sites of one model."""


@dataclass(frozen=True)
class Site:
    """One attention block.

    Attributes:
        path: module path in the library's own model, for example ``blocks.0.attn``.
        heads: number of heads before any pruning.
        head_dim: width of one head.
        d_model: width of the residual stream.
        tower: ``main``, or ``visual`` / ``text`` in a model with two towers.
        layout: which of the layouts that a family knows its tensors have, where there are several.
        sharing: how many neighbouring heads, which are those of queries, share one head of keys and values.
    """

    path: str
    heads: int
    head_dim: int
    d_model: int
    tower: str = "main"
    layout: str = ""
    sharing: int = 1

    def key_heads(self, kept: Sequence[int]) -> tuple[int, ...] | None:
        """Return the place of each head's keys and values among those in use; None where no head shares any."""
        if self.sharing == 1:
            return None
        used_keys = [head // self.sharing for head in kept]
        keys_in_use = dict.fromkeys(used_keys)  # each once, in order of first use
        place_of_key = {key: place for place, key in enumerate(keys_in_use)}
        return tuple(place_of_key[key] for key in used_keys)


def all_heads(sites: Iterable[Site]) -> list[Head]:
    """List every head of the given sites, in model order: the order of ties everywhere in hydractl."""
    return [(site.path, head) for site in sites for head in range(site.heads)]


class SiteDocument(TypedDict):
    """One site of a mask file: its number of heads before any pruning, and those that are kept."""

    heads: int
    kept: list[int]


class MaskDocument(TypedDict, total=False):
    """A mask file ``hydractl.mask/1``."""

    schema: Required[str]
    arch: str
    sites: dict[str, SiteDocument]
    source: dict[str, Any]
    seen: list[dict[str, Any]]


@dataclass(frozen=True)
class HeadMask:
    """The kept heads of each site.

    Attributes:
        heads: original number of heads per site, in model order.
        kept: the kept heads per site, ascending, in the original numbering; a site may keep none.
    """

    heads: Mapping[str, int]
    kept: Mapping[str, tuple[int, ...]]

    @classmethod
    def full(cls, sites: Iterable[Site]) -> HeadMask:
        """Return the mask that keeps every head."""
        heads = {site.path: site.heads for site in sites}
        kept = {path: tuple(range(count)) for path, count in heads.items()}
        return cls(heads, kept)

    def without(self, removed: Iterable[Head]) -> HeadMask:
        """Return this mask with more heads removed; heads that are already gone stay gone."""
        gone = set(removed)
        kept = {}
        for path, heads in self.kept.items():
            kept[path] = tuple(head for head in heads if (path, head) not in gone)
        return HeadMask(self.heads, kept)

    def intersect(self, other: HeadMask) -> HeadMask:
        """Return the heads kept by both masks. Pruning a pruned model again is this operation."""
        kept = {}
        for path, heads in self.kept.items():
            kept[path] = tuple(head for head in heads if head in other.kept[path])
        return HeadMask(self.heads, kept)

    def at(self, paths: Iterable[str]) -> HeadMask:
        """Return the part of this mask at some sites, in model order."""
        wanted = set(paths)
        heads = {path: count for path, count in self.heads.items() if path in wanted}
        kept = {path: self.kept[path] for path in heads}
        return HeadMask(heads, kept)

    def updated(self, other: HeadMask) -> HeadMask:
        """Return this mask with the sites of ``other`` as they are there."""
        kept = {path: other.kept.get(path, heads) for path, heads in self.kept.items()}
        return HeadMask(self.heads, kept)

    @property
    def kept_heads(self) -> list[Head]:
        """All kept heads in model order."""
        return [(path, head) for path, heads in self.kept.items() for head in heads]

    @property
    def removed_heads(self) -> list[Head]:
        """All removed heads in model order."""
        removed = []
        for path, count in self.heads.items():
            kept = set(self.kept[path])
            removed += [(path, head) for head in range(count) if head not in kept]
        return removed

    @property
    def is_full(self) -> bool:
        """Whether nothing has been removed."""
        return all(len(self.kept[path]) == count for path, count in self.heads.items())

    def counts(self) -> list[int]:
        """Return the number of kept heads per site, in model order."""
        return [len(heads) for heads in self.kept.values()]

    def to_json(
        self,
        arch: str | None = None,
        source: Mapping[str, Any] | None = None,
        seen: Sequence[Mapping[str, Any]] = (),
    ) -> MaskDocument:
        """Return the JSON form ``hydractl.mask/1``; ``seen`` is what :mod:`hydractl.files.fingerprints` notes."""
        document: MaskDocument = {"schema": MASK_SCHEMA}
        if arch is not None:
            document["arch"] = arch
        document["sites"] = {}
        for path, count in self.heads.items():
            document["sites"][path] = {"heads": count, "kept": list(self.kept[path])}
        if source is not None:
            document["source"] = dict(source)
        if seen:
            document["seen"] = [dict(entry) for entry in seen]
        return document


@dataclass(frozen=True)
class HeadScores:
    """One importance per head; higher means keep.

    Attributes:
        scores: per site, in model order, one finite float per head of the original numbering; of a model of two
            towers perhaps those of one only. A head that was already removed when the scores were made has the score
            ``-inf`` in memory and ``null`` in JSON.
    """

    scores: Mapping[str, tuple[float, ...]]
    info: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form ``hydractl.scores/1``."""
        sites = {}
        for path, values in self.scores.items():
            sites[path] = [None if math.isinf(value) else value for value in values]
        return {"schema": SCORES_SCHEMA, "sites": sites, **self.info}


# --- reading the JSON forms -------------------------------------------------------------------------------------------


def _check_sites(
    listed: Any, sites: Sequence[Site], problems: list[str], *, whole_towers: bool = False
) -> Mapping[str, Any]:
    """Return the ``sites`` object of a file if it names exactly the model's sites; otherwise add to ``problems``.

    With ``whole_towers``, naming all sites of some towers is enough.
    """
    if not isinstance(listed, Mapping):
        problems.append('"sites" is missing or not an object')
        return {}
    known = {site.path for site in sites}
    for path in listed:
        if path not in known:
            problems.append(f"unknown site {shown(path)}")
    needed = sites
    listed_towers = {site.tower for site in sites if site.path in listed}
    if whole_towers and listed_towers:
        needed = [site for site in sites if site.tower in listed_towers]
    for site in needed:
        if site.path not in listed:
            problems.append(f"site {site.path} is missing")
    return listed


def _check_schema(document: Any, schema: str, origin: str) -> Mapping[str, Any]:
    """Return the document of a file if it is an object of this schema.

    Raises:
        InputError: it is not.
    """
    if not isinstance(document, Mapping):
        raise InputError(f"{origin} is not a JSON object, so it is no {schema} file")
    if document.get("schema") != schema:
        raise InputError(f"{origin} has the schema {shown(document.get('schema'))}, expected {schema!r}")
    return document


def _is_index(value: Any) -> TypeGuard[int]:
    """Return whether a value is an integer; ``True`` and ``False`` are none here."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        return False


def _shape_of(counts: Sequence[int]) -> str:
    """Say how many sites there are, and how many heads they have."""
    if counts and all(count == counts[0] for count in counts):
        return f"{len(counts)} sites x {shown(counts[0])} heads"
    return f"{len(counts)} sites, heads {shown(list(counts), 100)}"


def mask_from_json(document: Any, sites: Sequence[Site], origin: str, arch: str | None = None) -> HeadMask:
    """Read and check a mask against the sites of a model.

    Raises:
        InputError: listing every problem: unknown or missing sites, head counts of another model, heads that are
            negative, out of range, repeated or not integers.
    """
    document = _check_schema(document, MASK_SCHEMA, origin)
    problems: list[str] = []
    listed = _check_sites(document.get("sites"), sites, problems)
    kept: dict[str, tuple[int, ...]] = {}
    for site in sites:
        if site.path not in listed:
            continue
        entry = listed[site.path]
        if not isinstance(entry, Mapping) or not isinstance(entry.get("kept"), list):
            problems.append(f'site {site.path} needs a list "kept"')
            continue
        count = entry.get("heads", site.heads)
        if not _is_index(count) or count != site.heads:
            problems.append(f"site {site.path} has {shown(count)} heads in the mask, {site.heads} in the model")
        kept[site.path] = _check_kept(entry["kept"], site, problems)
    if arch is not None and document.get("arch", arch) != arch:
        problems.append(f"made for {shown(document['arch'])}, the model is {arch!r}")
    if problems:
        shape_of_model = _shape_of([site.heads for site in sites])
        raise InputError(
            f"mask {origin} does not fit the model ({shape_of_model}; the mask has {_mask_shape(listed)})",
            hint="make the mask from this model, or check the site names with: hydractl --info MODEL",
            problems=problems,
        )
    heads = {site.path: site.heads for site in sites}
    return HeadMask(heads, kept)


def _mask_shape(listed: Mapping[str, Any]) -> str:
    """Say how many sites and heads a mask file has, as far as it says."""
    counts: list[int] = []
    for entry in listed.values():
        count = entry.get("heads") if isinstance(entry, Mapping) else None
        if not _is_index(count):
            return f"{len(listed)} sites"
        counts.append(count)
    if not counts:
        return f"{len(listed)} sites"
    return _shape_of(counts)


def _check_kept(values: list[Any], site: Site, problems: list[str]) -> tuple[int, ...]:
    """Return the kept heads of one site of a file, ascending; add to ``problems`` each value that is no head."""
    kept: list[int] = []
    for value in values:
        if not _is_index(value):
            problems.append(f"site {site.path}: head {shown(value)} is not an integer")
        elif not 0 <= value < site.heads:
            problems.append(f"site {site.path}: head {shown(value)} is outside 0..{site.heads - 1}")
        elif value in kept:
            problems.append(f"site {site.path}: head {value} is listed twice")
        else:
            kept.append(value)
    return tuple(sorted(kept))


def scores_from_json(document: Any, sites: Sequence[Site], origin: str) -> HeadScores:
    """Read and check a scores file against the sites of a model. It may leave out whole towers.

    Raises:
        InputError: listing every problem.
    """
    document = _check_schema(document, SCORES_SCHEMA, origin)
    problems: list[str] = []
    listed = _check_sites(document.get("sites"), sites, problems, whole_towers=True)
    scores: dict[str, tuple[float, ...]] = {}
    for site in sites:
        if site.path not in listed:
            continue
        values = listed[site.path]
        if not isinstance(values, list):
            problems.append(f"site {site.path} has no list of scores, the model {site.heads} heads")
        elif len(values) != site.heads:
            problems.append(f"site {site.path} has {len(values)} scores, the model {site.heads} heads")
        else:
            scores[site.path] = _check_scores(values, site, problems)
    if problems:
        raise InputError(f"scores {origin} do not fit the model", problems=problems)
    info = {key: value for key, value in document.items() if key not in ("schema", "sites")}
    return HeadScores(scores, info)


def _check_scores(values: list[Any], site: Site, problems: list[str]) -> tuple[float, ...]:
    """Return the scores of one site of a file, minus infinity for null; add to ``problems`` each value that is none."""
    scores = []
    for head, value in enumerate(values):
        if value is None:
            scores.append(-math.inf)
        elif _is_finite(value):
            scores.append(float(value))
        else:
            problems.append(f"site {site.path}: score of head {head} is {shown(value)}, not a finite number")
    return tuple(scores)


@dataclass(frozen=True)
class Ranking:
    """The heads that a circuit search removes, as a rule in order: nested masks for every budget up to their number.

    Attributes:
        removed: heads in the order of their removal.
        start: heads that were already gone before the first step.
        nested: whether the first N of them are an answer too. Those of Headmap are not: it decides how many heads each
            site keeps, and scores of different sites were measured with different numbers of masked heads.
    """

    removed: tuple[Head, ...]
    start: tuple[Head, ...] = ()
    nested: bool = True


def ranking_from_json(document: Any, sites: Sequence[Site], origin: str) -> Ranking:
    """Read the removal order of a circuit file and check it against the sites of a model.

    Raises:
        InputError: listing every problem.
    """
    document = _check_schema(document, CIRCUIT_SCHEMA, origin)
    steps = document.get("removed")
    if not isinstance(steps, list):
        raise InputError(f'circuit {origin} has no list "removed"')
    removed = _check_removed(steps, sites, origin)
    start = document.get("start_mask")
    gone: list[Head] = []
    if start is not None:
        gone = mask_from_json(start, sites, f"{origin} (start_mask)").removed_heads
    removed_twice = sorted(set(gone) & set(removed))
    if removed_twice:
        problems = [f"head {head} of {site} is already gone in its start mask" for site, head in removed_twice]
        raise InputError(f"circuit {origin} contradicts itself", problems=problems)
    is_nested = document.get("algorithm") != "headmap"
    return Ranking(tuple(removed), tuple(gone), is_nested)


def _check_removed(steps: list[Any], sites: Sequence[Site], origin: str) -> list[Head]:
    """Return the heads that the steps of a circuit file remove.

    Raises:
        InputError: listing every problem.
    """
    counts = {site.path: site.heads for site in sites}
    problems: list[str] = []
    removed: list[Head] = []
    for number, step in enumerate(steps, start=1):
        site: Any = None
        head: Any = None
        if isinstance(step, Mapping):
            site = step.get("site")
            head = step.get("head")
        if not isinstance(site, str) or site not in counts:
            problems.append(f"step {number}: unknown site {shown(site)}")
        elif not _is_index(head) or not 0 <= head < counts[site]:
            problems.append(f"step {number}: head {shown(head)} of {site} is outside 0..{counts[site] - 1}")
        elif (site, head) in removed:
            problems.append(f"step {number}: head {head} of {site} is removed twice")
        else:
            removed.append((site, head))
    if problems:
        raise InputError(f"circuit {origin} does not fit the model", problems=problems)
    return removed
