"""The tables of the study as Markdown, from two answers of ``hydractl eval --bootstrap``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def value(row: Row, key: str) -> float | None:
    """A number by its dotted key; None where it has no meaning."""
    found: Any = row
    for part in key.split("."):
        found = found[part]
    return None if found is None else float(found)


def number(row: Row, key: str, digits: int = 3) -> str:
    """A number as it is shown."""
    found = value(row, key)
    return "-" if found is None else f"{found:.{digits}f}"


def compared(row: Row, key: str) -> str:
    """The difference to the first row and its interval."""
    if "difference" not in row:
        return ""
    found = row["difference"][key]
    if found["ci"] is None:
        return "-"
    low, high = found["ci"]
    mark = "**" if low > 0 or high < 0 else ""
    return f"{mark}{found['value']:+.3f}{mark} ({low:+.3f}..{high:+.3f})"


def interval(row: Row, key: str) -> str:
    """A number and its interval."""
    low, high = row["ci"][key]
    return f"{number(row, key)} ({low:.3f}..{high:.3f})"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown; every column but the first to the right."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def tables(plain: Path, calibrated: Path) -> str:
    """All tables; ``calibrated`` is of the same predictions with ``--temperature fit``."""
    rows, after = (json.loads(path.read_text("utf-8"))["models"] for path in (plain, calibrated))
    return "\n".join((compared_table(rows), calibration_table(rows, after), sets_table(rows)))


def compared_table(rows: Sequence[Row]) -> str:
    """Accuracy and OOD detection against the first row, and cost."""
    single = rows[0]["cost"]["macs"]
    cells = []
    for row in rows:
        shown = interval if row is rows[0] else number
        cells.append(
            [
                row["name"],
                *(text for key in ("id.accuracy", "ood_avg.auroc") for text in (shown(row, key), compared(row, key))),
                *(number(row, f"ood_avg.{key}") for key in ("fpr95", "aupr")),
                f"{row['cost']['params'] / 1e6:.1f} M",
                f"{row['cost']['macs'] / single:.2f}",
            ]
        )
    return table(
        ["model", "accuracy", "difference", "OOD AUROC", "difference", "FPR95", "AUPR", "parameters", "mult-adds"],
        cells,
    )


def calibration_table(rows: Sequence[Row], after: Sequence[Row]) -> str:
    """Calibration before and after a temperature, and how much the members differ."""
    cells = [
        [
            row["name"],
            *(number(row, f"id.{key}") for key in ("brier", "nll")),
            compared(row, "id.nll"),
            *(number(row, f"id.{key}") for key in ("ece", "aece")),
            number(scaled, "calibration.temperature", 2),
            *(number(scaled, key) for key in ("id.nll", "id.ece", "ood_avg.auroc")),
            number(row, "diversity.id.mi", 4),
        ]
        for row, scaled in zip(rows, after, strict=True)
    ]
    return table(
        ["model", "Brier", "NLL", "difference", "ECE", "aECE", "T", "NLL at T", "ECE at T", "AUROC at T", "MI, ID"],
        cells,
    )


def sets_table(rows: Sequence[Row]) -> str:
    """AUROC of each OOD set, and of the groups."""
    names = list(rows[0]["ood"])
    groups = [group for group in ("near", "far") if value(rows[0], f"{group}_avg.auroc") is not None]
    cells = [
        [
            row["name"],
            *(number(row["ood"][name], "auroc") for name in names),
            *(text for group in groups for text in _group(row, group)),
        ]
        for row in rows
    ]
    return table(["AUROC", *names, *(text for group in groups for text in (group, "difference"))], cells)


def _group(row: Row, group: str) -> tuple[str, str]:
    return number(row, f"{group}_avg.auroc"), compared(row, f"{group}_avg.auroc")
