"""The numbers of an eval as columns of tables: where they stand in the document, and which way is better."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydractl.metrics.declaration import Metric, table_metrics
from hydractl.report.figures import number

BEST, SECOND = "best", "second"
Row = Mapping[str, Any]
"""The entry of one model in the document of an eval."""


ID_METRICS, OOD_METRICS, DIVERSITY_METRICS = (table_metrics(kind) for kind in ("id", "ood", "diversity"))


@dataclass(frozen=True)
class Column:
    """A metric at one place of a row.

    Attributes:
        place: the keys that lead to it, from the outside in: ``("id",)``, ``("ood", NAME)``.
        metric: which.
        words: what a person calls it there.
    """

    place: tuple[str, ...]
    metric: Metric
    words: str = ""

    @property
    def key(self) -> str:
        """Its name among the intervals and differences of a row: ``id.accuracy``."""
        return ".".join((*self.place, self.metric.key))

    def value(self, row: Row) -> float | None:
        """The number in this row; None where there is none."""
        found: Any = row
        for key in (*self.place, self.metric.key):
            found = found.get(key) if isinstance(found, Mapping) else None
        return found

    def interval(self, row: Row) -> tuple[float, float] | None:
        """Its confidence interval in this row; None where none was made."""
        return _pair((row.get("ci") or {}).get(self.key))

    def difference(self, row: Row) -> tuple[float, tuple[float, float] | None] | None:
        """This row minus the first one, measured on the same samples, and the interval of that."""
        found = (row.get("difference") or {}).get(self.key)
        if not found or found.get("value") is None:
            return None
        return found["value"], _pair(found.get("ci"))


def _pair(ends: Sequence[float | None] | None) -> tuple[float, float] | None:
    low, high = ends or (None, None)
    return None if low is None or high is None else (low, high)


def columns(metrics: Sequence[Metric], *place: str, words: str = "") -> tuple[Column, ...]:
    """These metrics at one place; ``words`` go behind the name of each."""
    return tuple(Column(place, metric, metric.words + words) for metric in metrics)


ID_COLUMNS = columns(ID_METRICS, "id")
(ACCURACY,) = (column for column in ID_COLUMNS if column.metric.key == "accuracy")
(AURC,) = (column for column in ID_COLUMNS if column.metric.key == "aurc")
OOD_AVERAGE = columns(OOD_METRICS, "ood_avg", words=", mean over the OOD sets")
DIVERSITY = columns(DIVERSITY_METRICS, "diversity", "id")


def main_columns(rows: Sequence[Row]) -> list[Column]:
    """The columns of the main table; the averages over OOD sets only where there are such sets."""
    return [*ID_COLUMNS, *(OOD_AVERAGE if ood_names(rows) else ()), *DIVERSITY]


def ood_names(rows: Sequence[Row]) -> list[str]:
    """The OOD sets of all rows, in order."""
    return list(dict.fromkeys(name for row in rows for name in row.get("ood") or {}))


def ood_group(rows: Sequence[Row], name: str) -> str | None:
    """``near``, ``far`` or None."""
    return next((row["ood"][name].get("group") for row in rows if name in (row.get("ood") or {})), None)


def samples(rows: Sequence[Row], names: Sequence[str] = ("id",)) -> str:
    """``n = 497``, or ``n = 100 to 120`` where data sets or rows do not have equally many."""
    entries = [row.get("id") if name == "id" else (row.get("ood") or {}).get(name) for row in rows for name in names]
    return sizes_text(entry.get("n") for entry in entries if entry)


def sizes_text(sizes: Iterable[int | None]) -> str:
    """The same of any sizes, of which some may not be known."""
    known = {size for size in sizes if size is not None}
    if not known:
        return "n unknown"
    return f"n = {min(known)}" if len(known) == 1 else f"n = {min(known)} to {max(known)}"


def marks(values: Sequence[float | None], metric: Metric) -> list[str]:
    """For each value ``best``, ``second`` or nothing.

    Values that look the same in the table are the same: all of the best ones are best. Nothing is marked where there is
    no better and worse: in a single row, among equal values, and where neither direction is better. ``second`` is the
    next different value, marked among three rows or more.
    """
    shown = [None if value is None else float(number(value, metric.digits)) for value in values]
    ranked = sorted({value for value in shown if value is not None}, reverse=metric.direction == "higher")
    if not metric.direction or len(ranked) < 2:
        return [""] * len(shown)
    second = ranked[1] if sum(value is not None for value in shown) > 2 else None
    return [BEST if v == ranked[0] else SECOND if v is not None and v == second else "" for v in shown]


def level_text(document: Mapping[str, Any]) -> str:
    """``95 %``, or what else the intervals of this document cover; empty where it does not say."""
    level = (document.get("bootstrap") or {}).get("level")
    return "" if level is None else f"{100 * level:g} %"
