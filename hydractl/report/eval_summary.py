"""What an eval found, in plain words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hydractl.report.columns import BEST, SECOND, Column, level_text, main_columns, marks, ood_group, ood_names
from hydractl.report.figures import number
from hydractl.report.names import shown_name

_SEVERAL = 3  # names that a sentence may list


def measured(document: Mapping[str, Any]) -> list[str]:
    """Sentences on what was measured: models, data, and what to be careful about."""
    rows, data = document["models"], document.get("data") or {}
    models = f"{len(rows)} models were" if len(rows) != 1 else f"The model {shown_name(rows[0]['name'])} was"
    inside = data.get("id") or {}
    n = next((row["id"].get("n") for row in rows if row.get("id")), inside.get("n"))
    spec = f" of {shown_name(inside['spec'])}" if inside.get("spec") else ""
    kind = "labelled samples" if _labelled(rows) else "samples without labels"
    found = [f"{models} measured on {'an unknown number of' if n is None else n} {kind}{spec} (in distribution, ID)."]
    names = ood_names(rows)
    if names:
        sets = [_set_text(name, rows, data) for name in names]
        found.append(f"Out-of-distribution (OOD) data: {'; '.join(sets)}.")
        score = (document.get("conventions") or {}).get("ood_score")
        found += [f"ID and OOD are told apart by the score {shown_name(score)}."] if score else []
    else:
        found.append("No out-of-distribution data was given.")
    return found + _intervals(document) + _cautions(rows)


def _labelled(rows: Sequence[Mapping[str, Any]]) -> bool:
    return any((row.get("id") or {}).get("accuracy") is not None for row in rows)


def _set_text(name: str, rows: Sequence[Mapping[str, Any]], data: Mapping[str, Any]) -> str:
    n = next((row["ood"][name].get("n") for row in rows if name in (row.get("ood") or {})), None)
    n = (data.get(name) or {}).get("n") if n is None else n
    group = ood_group(rows, name)
    facts = [*([f"{group} OOD"] if group else []), *([f"n = {n}"] if n is not None else [])]
    return shown_name(name) + (f" ({', '.join(facts)})" if facts else "")


def _intervals(document: Mapping[str, Any]) -> list[str]:
    boot = document.get("bootstrap") or {}
    if not boot:
        return ["No confidence intervals were computed: small differences may be chance."]
    text = f"Intervals cover {level_text(document) or 'an unstated share'}"
    text += f", from {boot['rounds']} bootstrap resamples of the samples" if boot.get("rounds") else ""
    return [f"{text}; they do not cover training again with another seed."]


def _cautions(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What makes numbers look better than they are."""
    found = []
    for row in rows:
        seen = {name: count for name, count in (row.get("seen") or {}).items() if count}
        if seen:
            listed = ", ".join(
                f"{count} of {'ID' if name == 'id' else shown_name(name)}" for name, count in seen.items()
            )
            found.append(f"{shown_name(row['name'])} was made with some of these samples: {listed}.")
    return found


def best_lines(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """For each number that has a better and a worse: its name, and who is best at it, by how much.

    Empty for a single row.
    """
    rows = document["models"]
    found = []
    for column in main_columns(rows):
        values = [column.value(row) for row in rows]
        marked = marks(values, column.metric)
        first = [row for row, mark in zip(rows, marked, strict=True) if mark == BEST]
        if first:
            second = [row for row, mark in zip(rows, marked, strict=True) if mark == SECOND]
            text = f"{_names(first)} with {_value(column, first)}"
            text += f", then {_names(second)} with {_value(column, second)}" if second else ""
            text += _overlap(column, first, rows)
            found.append((f"{column.words} ({column.metric.direction} is better)", text + "."))
    return found


def _value(column: Column, rows: Sequence[Mapping[str, Any]]) -> str:
    """The number that these rows have in common, with its interval where it is that of a single row."""
    ends = column.interval(rows[0]) if len(rows) == 1 else None
    text = number(column.value(rows[0]))
    return text if ends is None else f"{text} ({number(ends[0])} to {number(ends[1])})"


def _names(rows: Sequence[Mapping[str, Any]]) -> str:
    listed = [shown_name(row["name"]) for row in rows[:_SEVERAL]]
    rest = len(rows) - len(listed)
    return " and ".join(listed) if not rest else f"{', '.join(listed)} and {rest} more"


def _overlap(column: Column, first: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> str:
    """How many others' intervals meet that of the best: they are not clearly worse."""
    ends = column.interval(first[0]) if len(first) == 1 else None
    others = [column.interval(row) for row in rows if not any(row is one for one in first)]
    if ends is None or not others or None in others:
        return ""
    meeting = sum(other[0] <= ends[1] and ends[0] <= other[1] for other in others if other is not None)
    if not meeting:
        return "; its interval meets no other row's"
    return f"; its interval meets {f'those of {meeting} other rows' if meeting > 1 else 'that of 1 other row'}"
