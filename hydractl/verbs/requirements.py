"""Holding ``--require`` against the rows of an answer; ``expressions/conditions`` says how an expression is written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeGuard

from hydractl.errors import UsageError, did_you_mean
from hydractl.expressions.conditions import Requirement

Values = Mapping[str, object]
"""The values of a row by key, as JSON has them: numbers, and groups of values."""

Row = tuple[str, Values]
"""The name of a row and its values."""


def unmet_in(
    rows: Sequence[Row],
    requirements: Sequence[Requirement],
    *,
    skip_first: bool,
    label: Callable[[str, Values], str] = lambda name, _: name,
    named_only: Collection[str] = (),
) -> list[str]:
    """Return the requirements that do not hold, with the reason.

    Args:
        rows: name and values of each row, in order.
        requirements: the expressions; with a row name one is about the rows of that name, else about all.
        skip_first: whether an expression without a row name leaves out the rows of the first name (the reference).
        label: returns what to call a row in a failure, from its name and its values, where names may be repeated.
        named_only: names of rows that only an expression with their name is about.

    Returns:
        One line for each requirement and each row in which it does not hold. A value that is null, missing or no
        number does not meet a requirement. One that no row is left for has a line of its own.
    """
    failures = []
    for requirement in requirements:
        rows_to_check = _rows_of(requirement, rows, skip_first, named_only)
        if not rows_to_check:
            reason = _why_no_row(requirement, rows)
            failures.append(f"{requirement.text}: {reason}")
        for name, values in rows_to_check:
            reason_in_row = _failure(requirement, label(name, values), values)
            if reason_in_row is not None:
                failures.append(f"{requirement.text}: {reason_in_row}")
    return failures


def _failure(requirement: Requirement, name: str, values: Values) -> str | None:
    """Return why a requirement does not hold in one row; None where it does."""
    key = requirement.key
    value = lookup(values, key)
    if value is _MISSING:
        guess = did_you_mean(key, _number_keys(values))
        return f"{name} has no {key}{guess}"
    if value is None:
        return f"{key} of {name} is null"
    if not _is_number(value):
        return f"{key} of {name} is {value!r}, not a number"
    if requirement.holds(value):
        return None
    return f"{key} of {name} is {value:.6g}"


def unmet_of_bench(
    results: Sequence[Values], requirements: Sequence[Requirement], compared: Collection[str]
) -> list[str]:
    """Return the requirements that do not hold in the rows of a bench.

    Args:
        results: its rows, those of the reference first.
        requirements: the expressions.
        compared: names of rows that ``--compare`` added.

    Returns:
        One line for each row in which one does not hold.
    """

    def with_setting(name: str, row: Values) -> str:
        """Name a row with what it was measured at, since a model has one row for each batch size and dtype."""
        batch_size = row["batch_size"]
        dtype = row["dtype"]
        return f"{name} (batch {batch_size}, {dtype})"

    rows = [(str(row["model"]), row) for row in results]
    return unmet_in(rows, requirements, skip_first=True, label=with_setting, named_only=compared)


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
        skip_first: whether an expression without a row name leaves out the rows of the first name (the reference).
        named_only: names of rows that only an expression with their name is about.

    Raises:
        UsageError: listing every unknown key or row, and every requirement without a row to hold it against.
    """
    rows_without_values: list[Row] = [(name, {}) for name in names]
    problems = []
    for requirement in requirements:
        option = f"--require {requirement.text}"
        rows_to_check = _rows_of(requirement, rows_without_values, skip_first, named_only)
        if not rows_to_check:
            reason = _why_no_row(requirement, rows_without_values)
            problems.append(f"{option}: {reason}")
        if requirement.key not in keys:
            advice = _advice_on_unknown_key(requirement.key, keys)
            problems.append(f"{option}: unknown key {requirement.key!r}{advice}")
    if not problems:
        return
    hint = f"keys: {', '.join(keys)}"
    if len(problems) == 1:
        (only_problem,) = problems
        raise UsageError(only_problem, hint=hint)
    raise UsageError(f"{len(problems)} problems with --require", hint=hint, problems=problems)


_OOD_GROUPS = ("ood.", "ood_avg.", "near_avg.", "far_avg.")
"""The beginnings of keys that rows have only where there are OOD data."""


def _advice_on_unknown_key(key: str, keys: Sequence[str]) -> str:
    """Return the end of the message on an unknown key: which key was meant, or which data it needs.

    Args:
        key: the dotted key of a requirement; none of ``keys``.
        keys: the dotted keys that every row will have.

    Returns:
        A text that follows the key, beginning with ``;``; empty where no key is like it.
    """
    # Only the last part was written, such as auroc for ood_avg.auroc.
    ending_in_it = [known for known in keys if known.endswith(f".{key}")]
    if ending_in_it:
        first_three = " or ".join(ending_in_it[:3])
        return f"; did you mean {first_three}?"

    # The key exists, but only in an evaluation with other data.
    has_ood_data = any(known.startswith(_OOD_GROUPS) for known in keys)
    if key.startswith(_OOD_GROUPS) and not has_ood_data:
        return "; it needs OOD data: --ood NAME=SPEC"
    is_evaluation = "id.n" in keys
    has_labels = any(known.startswith("id.acc") for known in keys)
    if key.startswith("id.") and is_evaluation and not has_labels:
        return "; it needs labels, and the data have none"

    # A slip of the pen.
    return did_you_mean(key, keys)


_MISSING = object()
"""Stands for the value of a key that a row does not have; None would be a value."""


def lookup(row: Values, key: str) -> object:
    """Return the value of a dotted key, such as ``ood_avg.auroc``.

    Any dot may be part of a name, as in ``ood.set.v2.auroc``, so every place to cut the key into the name of a group
    and the rest is tried, the longest name first. Entries of lists are looked up by their index.

    Returns:
        The value; None where the whole group is null; ``_MISSING`` where the row has no such key.
    """
    if key in row:
        return row[key]
    parts = key.split(".")
    for parts_of_name in range(len(parts) - 1, 0, -1):
        group_name = ".".join(parts[:parts_of_name])
        rest = ".".join(parts[parts_of_name:])
        group = row.get(group_name, _MISSING)
        if isinstance(group, Mapping):
            value = lookup(group, rest)
            if value is not _MISSING:
                return value
        elif isinstance(group, list):
            if rest.isdecimal() and int(rest) < len(group):
                return group[int(rest)]
        elif group is None:  # a whole group without meaning, for example an average over no data set
            return None
    return _MISSING


def _number_keys(row: Values, prefix: str = "") -> Iterator[str]:
    """Yield all dotted keys that hold a number, or null where a number may stand."""
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from _number_keys(value, f"{prefix}{key}.")
        elif value is None or _is_number(value):
            yield f"{prefix}{key}"


def _is_number(value: object) -> TypeGuard[float]:
    if isinstance(value, bool):  # in Python an int too
        return False
    return isinstance(value, (int, float))


def _rows_of(requirement: Requirement, rows: Sequence[Row], skip_first: bool, named_only: Collection[str]) -> list[Row]:
    """Return the rows that a requirement is about.

    Args:
        requirement: if it names a row, it is about all rows of that name; else about all but those left out.
        rows: name and values of each row, in order.
        skip_first: whether the rows of the first name (the reference) are left out.
        named_only: names of further rows that are left out.
    """
    if requirement.row is not None:
        return [(name, values) for name, values in rows if name == requirement.row]
    names_left_out = set(named_only)
    if skip_first and rows:
        reference, _ = rows[0]
        names_left_out.add(reference)
    return [(name, values) for name, values in rows if name not in names_left_out]


def _why_no_row(requirement: Requirement, rows: Sequence[Row]) -> str:
    """Return why a requirement is about no row at all, and what to write instead."""
    names: list[str] = []
    for name, _ in rows:
        if name not in names:
            names.append(name)
    if requirement.row is not None:
        guess = did_you_mean(requirement.row, names)
        return f"no row is named {requirement.row!r}{guess}"
    return f"it is not about the first model, and there is no other; write {', '.join(names)}:{requirement.text}"
