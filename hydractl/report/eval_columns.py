"""The numbers of an eval as columns: where they stand in the document, and which way is better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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


_ID = (
    ("accuracy", "acc", "accuracy", "higher"),
    ("nll", "nll", "negative log likelihood", "lower"),
    ("brier", "brier", "Brier score", "lower"),
    ("ece", "ece", "calibration error (equal width)", "lower"),
    ("aece", "aece", "calibration error (equal mass)", "lower"),
    ("aurc", "aurc", "area under risk and coverage", "lower"),
)
_OOD = (
    ("auroc", "auroc", "AUROC", "higher"),
    ("fpr95", "fpr95", "FPR at 95 % detected", "lower"),
    ("aupr", "aupr", "AUPR", "higher"),
)
ID_COLUMNS = tuple(Column(("id", key), title, words, better) for key, title, words, better in _ID)


def ood_columns(*place: str, words: str = "") -> tuple[Column, ...]:
    """The OOD numbers found at a place: of one set, ``("ood", NAME)``, or of an average, ``("near_avg",)``."""
    return tuple(Column((*place, key), title, f"{name}{words}", better) for key, title, name, better in _OOD)


OOD_AVERAGE = ood_columns("ood_avg", words=", mean over the OOD sets")
DIVERSITY = (
    Column(("diversity", "id", "mi"), "mi", "mutual information of the members"),
    Column(("diversity", "id", "disagreement"), "disagr", "disagreement of the members"),
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
