"""Write the tables of studies into README.md and docs/, from the answers kept in docs/results/.

    python docs/make_results.py

A table stands between ``<!-- study: NAME ROW ... -->`` and ``<!-- end -->``: rows of ``docs/results/NAME.json``, a
``study.json`` as ``hydractl study`` writes it, all of them where none is named; ``verdict`` for its sentences,
``conclusion`` for the first of them, without the differences. A test fails where a page differs from what this makes.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
PAGES = (DOCS.parent / "README.md", DOCS / "study.md", *sorted((DOCS / "numbers").glob("*.md")))

_PLACE = re.compile(r"(<!-- study: ([\w-]+)((?: \S+)*) -->\n).*?(<!-- end -->)", re.DOTALL)
_COLUMNS = (
    ("accuracy", "id.accuracy"),
    ("NLL", "id.nll"),
    ("ECE", "id.ece"),
    ("OOD AUROC", "ood_avg.auroc"),
    ("FPR95", "ood_avg.fpr95"),
)


def value(row: Any, key: str) -> float:
    """The number at a dotted key."""
    for part in key.split("."):
        row = row[part]
    return float(row)


def label(row: dict[str, Any], chosen: str) -> str:
    """A row by name, with the score it takes; in bold the chosen one."""
    text = f"{'single model' if row['name'] == 'single' else row['name']}, {row['score']}"
    return f"**{text}**" if row["name"] == chosen else text


def table(study: dict[str, Any], names: list[str]) -> str:
    """Rows of a study on its test data, behind the single model as it is, and the differences of the chosen one."""
    rows = [row for row in study["rows"] if not names or row["name"] in names]
    chosen = next(row for row in study["rows"] if row["name"] == study["choice"]["row"])
    baseline, rival = (
        {one["metric"]: one for one in study["verdict"][name]} for name in ("against_baseline", "against_rival")
    )
    lines = [f"| test data | {' | '.join(title for title, _ in _COLUMNS)} | mult-adds |", f"|---|{'---:|' * 6}"]
    lines.append(line("single model, as it is, MSP", [base_value(chosen, baseline[key]) for _, key in _COLUMNS], 1.0))
    for row in rows:
        lines.append(
            line(label(row, chosen["name"]), [value(row["test"], key) for _, key in _COLUMNS], row["mac_ratio"])
        )
    for other, differences in ((study["choice"]["rival"], rival), ("as it is, MSP", baseline)):
        if differences:
            cells = " | ".join(interval(differences[key]) for _, key in _COLUMNS)
            lines.append(f"| minus the single model, {other} | {cells} | |")
    return "\n".join(lines)


def line(title: str, values: list[float], cost: float) -> str:
    """One row of the table."""
    return f"| {title} | {' | '.join(f'{one:.3f}' for one in values)} | {cost:.2f} |"


def base_value(chosen: dict[str, Any], difference: dict[str, Any]) -> float:
    """What the chosen row was compared with."""
    return value(chosen["test"], difference["metric"]) - float(difference["value"])


def interval(difference: dict[str, Any]) -> str:
    """A paired difference with its interval."""
    low, high = difference["ci"]
    return f"{difference['value']:+.3f} ({low:+.3f} to {high:+.3f})"


def sentences(study: dict[str, Any], part: str) -> list[str]:
    """The verdict, or what stands in it before the chosen model and its differences."""
    lines: list[str] = study["verdict"]["lines"]
    return lines if part == "verdict" else [line for line in lines if not line.startswith(("best.st", "Against"))]


def filled(text: str) -> str:
    """A page with its tables made anew."""

    def fill(match: re.Match[str]) -> str:
        study = json.loads((DOCS / "results" / f"{match[2]}.json").read_text(encoding="utf-8"))
        names = match[3].split()
        if names in (["verdict"], ["conclusion"]):
            made = "\n".join(f"> {line}" for line in sentences(study, names[0]))
        else:
            made = table(study, names)
        return f"{match[1]}{made}\n{match[4]}"

    return _PLACE.sub(fill, text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
