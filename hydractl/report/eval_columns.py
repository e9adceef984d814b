"""The numbers of an eval as columns: where they stand in the document, and which way is better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydractl.metrics.registry import table_metrics
from hydractl.report.figures import number

BEST, SECOND = "best", "second"


@dataclass(frozen=True)
class Column:
    """One number of a row.

    Attributes:
        path: its keys in the row of a model, from the outside in.
        title: a short heading.
        words: what a person calls it.
        better: ``higher``, ``lower``, or empty where neither is better.
    """

    path: tuple[str, ...]
    title: str
    words: str
    better: str = ""

    def value(self, row: Mapping[str, Any]) -> float | None:
        """The number in this row; None where there is none."""
        found: Any = row
        for key in self.path:
            found = found.get(key) if isinstance(found, Mapping) else None
        return found

    def interval(self, row: Mapping[str, Any]) -> tuple[float, float] | None:
        """Its confidence interval in this row; None where none was made."""
        ends = (row.get("ci") or {}).get(".".join(self.path))
        return None if not ends or None in ends else (ends[0], ends[1])

    def difference(self, row: Mapping[str, Any]) -> tuple[float, tuple[float, float] | None] | None:
        """This row minus the first one, measured on the same samples, and the interval of that."""
        found = (row.get("difference") or {}).get(".".join(self.path))
        if not found or found.get("value") is None:
            return None
        ends = found.get("ci")
        return found["value"], None if not ends or None in ends else (ends[0], ends[1])


ID_COLUMNS = tuple(Column(("id", one.key), one.label, one.words, one.direction) for one in table_metrics("id"))


def ood_columns(*place: str, words: str = "") -> tuple[Column, ...]:
    """The OOD numbers found at a place: of one set, ``("ood", NAME)``, or of an average, ``("near_avg",)``."""
    return tuple(Column((*place, m.key), m.label, f"{m.words}{words}", m.direction) for m in table_metrics("ood"))


OOD_AVERAGE = ood_columns("ood_avg", words=", mean over the OOD sets")
DIVERSITY = tuple(
    Column(("diversity", "id", one.key), one.label, one.words, one.direction) for one in table_metrics("diversity")
)


def main_columns(rows: Sequence[Mapping[str, Any]]) -> list[Column]:
    """The columns of the main table; the averages over OOD sets only where there are such sets."""
    return [*ID_COLUMNS, *(OOD_AVERAGE if ood_names(rows) else ()), *DIVERSITY]


def ood_names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The OOD sets of all rows, in order."""
    return list(dict.fromkeys(name for row in rows for name in row.get("ood") or {}))


def ood_group(rows: Sequence[Mapping[str, Any]], name: str) -> str | None:
    """``near``, ``far`` or None."""
    return next((row["ood"][name].get("group") for row in rows if name in (row.get("ood") or {})), None)


def marks(values: Sequence[float | None], better: str, digits: int = 4) -> list[str]:
    """For each value ``best``, ``second`` or nothing.

    Values that look the same in the table are the same: all of the best ones are best. Nothing is marked where there is
    no better and worse: in a single row, among equal values, and where neither direction is better. ``second`` is the
    next different value, marked among three rows or more.
    """
    shown = [None if value is None else float(number(value, digits)) for value in values]
    ranked = sorted({value for value in shown if value is not None}, reverse=better == "higher")
    if not better or len(ranked) < 2:
        return [""] * len(shown)
    second = ranked[1] if sum(value is not None for value in shown) > 2 else None
    return [BEST if v == ranked[0] else SECOND if v is not None and v == second else "" for v in shown]


def level_text(document: Mapping[str, Any]) -> str:
    """``95 %``, or what else the intervals of this document cover; empty where it does not say."""
    level = (document.get("bootstrap") or {}).get("level")
    return "" if level is None else f"{100 * level:g} %"
