"""Holding ``--require`` against the rows of an answer; ``expressions/conditions`` says how an expression is written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from hydractl.errors import UsageError, did_you_mean
from hydractl.expressions.conditions import Requirement

Row = tuple[str, Mapping[str, Any]]
"""The name of a row and its values."""


def unmet_in(
    rows: Sequence[Row],
    requirements: Sequence[Requirement],
    *,
    skip_first: bool,
    label: Callable[[str, Mapping[str, Any]], str] = lambda name, _: name,
    named_only: Collection[str] = (),
) -> list[str]:
    """Hold requirements against the rows they are about.

    Args:
        rows: name and values of each row, in order.
        requirements: the expressions; with a row name one is about the rows of that name, else about all.
        skip_first: whether an expression without a row name leaves out the rows of the first name (the reference).
        label: what to call a row in a failure, where several rows have the same name.
        named_only: names of rows that only an expression with their name is about.

    Returns:
        One line for each row in which one does not hold; a value that is null, missing or no number does not hold,
        nor does a requirement that no row is left for.
    """
    failures = []
    for requirement in requirements:
        chosen = _rows_of(requirement, rows, skip_first, named_only)
        if not chosen:
            failures.append(f"{requirement.text}: {_no_row(requirement, rows)}")
        for name, row in chosen:
            failure = _failure(requirement, label(name, row), row)
            if failure is not None:
                failures.append(f"{requirement.text}: {failure}")
    return failures


def _failure(requirement: Requirement, name: str, row: Mapping[str, Any]) -> str | None:
    """Return why a requirement does not hold in one row; None where it does."""
    key = requirement.key
    value = lookup(row, key)
    if value is _MISSING:
        return f"{name} has no {key}{did_you_mean(key, _number_keys(row))}"
    if value is None:
        return f"{key} of {name} is null"
    if not _is_number(value):
        return f"{key} of {name} is {value!r}, not a number"
    if requirement.holds(value):
        return None
    return f"{key} of {name} is {value:.6g}"


def unmet_of_bench(
    results: Sequence[Mapping[str, Any]], requirements: Sequence[Requirement], compared: Collection[str]
) -> list[str]:
    """Hold requirements against the rows of a bench.

    Args:
        results: its rows, those of the reference first.
        requirements: the expressions.
        compared: names of rows that ``--compare`` added.

    Returns:
        One line for each row in which one does not hold.
    """

    def label(name: str, row: Mapping[str, Any]) -> str:
        return f"{name} (batch {row['batch_size']}, {row['dtype']})"

    rows = [(row["model"], row) for row in results]
    return unmet_in(rows, requirements, skip_first=True, label=label, named_only=compared)


def check_known(
    requirements: Sequence[Requirement],
    names: Sequence[str],
    keys: Sequence[str],
    *,
    skip_first: bool,
    named_only: Collection[str] = (),
) -> None:
    """Refuse, before any work, requirements that can never hold because of what they name.

    Args:
        requirements: the expressions.
        names: the names of the rows to come.
        keys: the dotted keys of the numbers that every row will have.
        skip_first, named_only: as in :func:`unmet_in`.

    Raises:
        UsageError: listing every unknown key or row, and every requirement without a row to hold it against.
    """
    problems = []
    rows: list[Row] = [(name, {}) for name in names]
    for requirement in requirements:
        if not _rows_of(requirement, rows, skip_first, named_only):
            problems.append(f"--require {requirement.text}: {_no_row(requirement, rows)}")
        if requirement.key not in keys:
            guess = _guess(requirement.key, keys)
            problems.append(f"--require {requirement.text}: unknown key {requirement.key!r}{guess}")
    hint = f"keys: {', '.join(keys)}"
    if len(problems) == 1:
        raise UsageError(problems[0], hint=hint)
    if problems:
        raise UsageError(f"{len(problems)} problems with --require", hint=hint, problems=problems)


def _guess(key: str, keys: Sequence[str]) -> str:
    """Guess what an unknown key meant: a key that ends in it, else one that is like it."""
    ending_in_it = [known for known in keys if known.endswith(f".{key}")]
    if ending_in_it:
        return f"; did you mean {' or '.join(ending_in_it[:3])}?"
    outside = ("ood.", "ood_avg.", "near_avg.", "far_avg.")
    if key.startswith(outside) and not any(known.startswith(outside) for known in keys):
        return "; it needs OOD data: --ood NAME=SPEC"
    if key.startswith("id.") and "id.n" in keys and not any(known.startswith("id.acc") for known in keys):
        return "; it needs labels, and the data have none"
    return did_you_mean(key, keys)


_MISSING = object()


def lookup(row: Mapping[str, Any], key: str) -> Any:
    """Return the value of a dotted key; names with dots of their own are found too, list entries by their place.

    A marker object where there is none.
    """
    if key in row:
        return row[key]
    parts = key.split(".")
    for length in range(len(parts) - 1, 0, -1):
        inner = row.get(".".join(parts[:length]), _MISSING)
        rest = ".".join(parts[length:])
        if isinstance(inner, Mapping):
            value = lookup(inner, rest)
            if value is not _MISSING:
                return value
        elif isinstance(inner, list):
            if rest.isdecimal() and int(rest) < len(inner):
                return inner[int(rest)]
        elif inner is None:  # a whole group without meaning, for example an average over no data set
            return None
    return _MISSING


def _number_keys(row: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield all dotted keys that hold a number, or null where a number may stand."""
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from _number_keys(value, f"{prefix}{key}.")
        elif value is None or _is_number(value):
            yield f"{prefix}{key}"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _rows_of(requirement: Requirement, rows: Sequence[Row], skip_first: bool, named_only: Collection[str]) -> list[Row]:
    if requirement.row is not None:
        return [row for row in rows if row[0] == requirement.row]
    left_out = set(named_only)
    if skip_first and rows:
        left_out.add(rows[0][0])
    return [row for row in rows if row[0] not in left_out]


def _no_row(requirement: Requirement, rows: Sequence[Row]) -> str:
    names = list(dict.fromkeys(name for name, _ in rows))
    if requirement.row is not None:
        return f"no row is named {requirement.row!r}{did_you_mean(requirement.row, names)}"
    return f"it is not about the first model, and there is no other; write {', '.join(names)}:{requirement.text}"
