"""Whether what a journal holds can be what a search wrote: a damaged figure must not become a result."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydractl.circuit.journal import Journal
from hydractl.circuit.journal_files import START_OVER
from hydractl.circuit.objective import Doubt
from hydractl.circuit.tower import Candidate
from hydractl.errors import InputError
from hydractl.jsonio import shown

_MOST_LOSS = 1 << 100


def check_records(
    path: Path, journal: Journal, sizes: Mapping[str, int], heads: Collection[Candidate], objectives: Sequence[str]
) -> None:
    """Check the records of a journal that was opened.

    Args:
        path: of the journal, for messages.
        journal: whose records and order are checked.
        sizes: samples of the data, ``id`` and ``ood``.
        heads: the candidates.
        objectives: of the search.

    Raises:
        InputError: listing every record that cannot be one.
    """
    problems = []
    if journal.order is not None and not _is_order(journal.order, sizes):
        problems.append("the order of the samples is not one")
    removed: dict[tuple[str, int], Any] = {}
    for record in journal.records:
        if not _is_record(record, sizes, heads, objectives):
            problems.append(f"no record of this search: {shown(record, 200)}")
        elif "removed" in record:
            place = (record["removed"], record["step"])
            if removed.setdefault(place, record["head"]) != record["head"]:
                problems.append(f"step {place[1]} of {place[0]} removes two different heads")
    if problems:
        raise InputError(f"{path} is broken", hint=START_OVER, problems=problems)


def _is_order(order: Any, sizes: Mapping[str, int]) -> bool:
    if not isinstance(order, dict) or set(order) != set(sizes):
        return False
    lists = [(found, sizes[name]) for name, found in order.items()]
    whole = all(isinstance(found, list) and all(type(i) is int for i in found) for found, _ in lists)
    return whole and all(sorted(found) == list(range(size)) for found, size in lists)


def _is_record(
    record: Mapping[str, Any], sizes: Mapping[str, int], heads: Collection[Candidate], objectives: Sequence[str]
) -> bool:
    if "base" in record:
        return isinstance(record["base"], dict) and _are_counts(record["base"], sizes)
    if "listed" in record:
        listed = record.get("heads")
        return type(record.get("step")) is int and isinstance(listed, list) and all(_is_head(h, heads) for h in listed)
    owner = record.get("of", record.get("removed"))
    if owner not in objectives or type(record.get("step")) is not int:
        return False
    if not _is_head(record.get("head"), heads):
        return False
    if "of" in record and not isinstance(record.get("given_up"), list):
        return False
    rivals = record.get("rivals", [])
    if not isinstance(rivals, list) or not all(_is_rival(rival, sizes, heads) for rival in rivals):
        return False
    return _are_counts(record, sizes)


def _is_rival(value: Any, sizes: Mapping[str, int], heads: Collection[Candidate]) -> bool:
    return isinstance(value, dict) and _is_head(value.get("head"), heads) and _are_counts(value, sizes)


def _is_head(value: Any, heads: Collection[Candidate]) -> bool:
    pair = isinstance(value, list) and len(value) == 2 and all(type(i) is int for i in value)
    return pair and tuple(value) in heads


def _are_counts(counts: Mapping[str, Any], sizes: Mapping[str, int]) -> bool:
    n_id, n_ood = sizes["id"], sizes.get("ood", 0)
    if not (_within(counts.get("n_id"), n_id) and _within(counts.get("n_ood"), n_ood)):
        return False
    two_u = counts.get("two_u")
    pairs = 2 * counts["n_id"] * counts["n_ood"]
    doubt, most = counts.get("doubt", []), Doubt(n_id, n_id, pairs, pairs, _MOST_LOSS)
    if not isinstance(doubt, list) or len(doubt) not in (0, len(most)):
        return False
    return (
        _within(counts.get("correct"), counts["n_id"])
        and (two_u is None or _within(two_u, pairs))
        and _within(counts.get("nll"), _MOST_LOSS)
        and _within(counts.get("brier"), _MOST_LOSS)
        and all(
            _within(count, most) for count, most in zip(doubt, (n_id, n_id, pairs, pairs, _MOST_LOSS), strict=False)
        )
    )


def _within(value: Any, most: int) -> bool:
    return type(value) is int and 0 <= value <= most
