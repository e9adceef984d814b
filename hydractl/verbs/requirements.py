"""Checking ``--require`` on the rows of an answer; ``expressions/conditions`` explains how an expression is written."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from hydractl.errors import did_you_mean, refuse_options
from hydractl.expressions.conditions import Requirement
from hydractl.files.results import MISSING, value_at

Values = Mapping[str, object]
"""The values of a row by key, as JSON values: numbers, and groups of values."""

Row = tuple[str, Values]
"""The name of a row and its values."""


def unmet_in(rows: Sequence[Row], requirements: Sequence[Requirement], exempt: Collection[str] = ()) -> list[str]:
    """Return a line for each requirement that a row of an answer does not meet, with the reason; empty if all are met.

    A value that is null, missing or not a number does not meet a requirement. A requirement without any row to check
    gets a line, too.

    Args:
        rows: the name and the values of each row (the measurements of one model), in order.
        requirements: the expressions. One with a row name, e.g. ``fused:id.accuracy>0.9``, is checked on the rows of
            that name only, any other on all rows.
        exempt: names of rows that a requirement without a row name does not check, such as that of the reference.
    """
    failures = []
    for requirement in requirements:
        rows_to_check = _rows_of(requirement, rows, exempt)
        if not rows_to_check:  # no row has the name, or all rows are exempt
            why_no_row = _why_no_row(requirement, rows)
            failures.append(f"{requirement.text}: {why_no_row}")
        for name, values in rows_to_check:
            why_not_met = _failure(requirement, name, values)
            if why_not_met is not None:
                failures.append(f"{requirement.text}: {why_not_met}")
    return failures


def _failure(requirement: Requirement, name: str, values: Values) -> str | None:
    """Return why a row does not meet a requirement; None if it does.

    Args:
        requirement: the expression.
        name: the name of the row, for the message.
        values: the nested values of the row; the key of the requirement, e.g. ``id.accuracy``, is a path in them.
    """
    # A bench has several rows of the same name: one for each batch size and dtype.
    row = name
    if "batch_size" in values:
        row = f"{name} (batch {values['batch_size']}, {values['dtype']})"

    # The value may be missing, null or not a number.
    key = requirement.key
    value = value_at(values, key)
    if value is MISSING:
        return f"{row} has no {key}"
    if isinstance(value, bool) or not isinstance(value, int | float):  # bool is a subclass of int
        return f"{key} of {row} is {value!r}, not a number"
    if requirement.holds(value):
        return None
    return f"{key} of {row} is {value:.6g}"


def check_known(
    requirements: Sequence[Requirement], names: Sequence[str], keys: Sequence[str], exempt: Collection[str] = ()
) -> None:
    """Raise an error if a requirement can never be met because of the row or the key that it names.

    It is checked before any work, when only the names and the keys of the rows are known.

    Args:
        requirements: the expressions.
        names: the names of the rows to come.
        keys: the dotted keys of the numbers that every row will have, e.g. ``id.accuracy``.
        exempt: names of rows that a requirement without a row name does not check.

    Raises:
        UsageError: a key or a row is unknown, or a requirement has no row to be checked on; it lists all of these.
    """
    rows_to_come: list[Row] = [(name, {}) for name in names]  # no values yet
    problems = []
    for requirement in requirements:
        option = f"--require {requirement.text}"
        rows_to_check = _rows_of(requirement, rows_to_come, exempt)
        if not rows_to_check:
            reason = _why_no_row(requirement, rows_to_come)
            problems.append(f"{option}: {reason}")
        if requirement.key not in keys:
            advice = _advice_on_unknown_key(requirement.key, keys)
            problems.append(f"{option}: unknown key {requirement.key!r}{advice}")

    # Raises an error if there are problems.
    refuse_options(problems, "--require", hint=f"keys: {', '.join(keys)}")


def _advice_on_unknown_key(key: str, keys: Sequence[str]) -> str:
    """Return the end of the message about an unknown key, which names a key that may be meant; empty without one.

    Args:
        key: the dotted key of a requirement; it is not in ``keys``.
        keys: the dotted keys that every row will have.
    """
    # The user may have written only the last part, such as auroc for ood_avg.auroc.
    ending_in_it = [known for known in keys if known.endswith(f".{key}")]
    if ending_in_it:
        first_three = " or ".join(ending_in_it[:3])
        return f"; did you mean {first_three}?"
    # It may be a key of OOD metrics where no OOD data are given.
    is_of_ood = key.startswith(_OOD_GROUPS)
    has_ood = any(known.startswith(_OOD_GROUPS) for known in keys)
    if is_of_ood and not has_ood:
        return "; it needs OOD data: --ood NAME=SPEC"
    # It may be misspelt.
    return did_you_mean(key, keys)


_OOD_GROUPS = ("ood.", "ood_avg.", "near_avg.", "far_avg.")
"""The beginnings of keys that rows have only if there are OOD data."""


def _rows_of(requirement: Requirement, rows: Sequence[Row], exempt: Collection[str]) -> list[Row]:
    """Return the rows that a requirement is checked on: those that it names, else all that are not exempt."""
    if requirement.row is not None:
        return [(name, values) for name, values in rows if name == requirement.row]
    return [(name, values) for name, values in rows if name not in exempt]


def _why_no_row(requirement: Requirement, rows: Sequence[Row]) -> str:
    """Return why a requirement has no row to be checked on, and what to write instead.

    Either it names a row that there is not, or it names none and all rows are exempt: the only row is the first model,
    with which the others would be compared.
    """
    names = list(dict.fromkeys(name for name, _ in rows))  # each once
    if requirement.row is not None:
        guess = did_you_mean(requirement.row, names)
        return f"no row is named {requirement.row!r}{guess}"
    return f"it is not about the first model, and there is no other; write {', '.join(names)}:{requirement.text}"
