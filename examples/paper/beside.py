"""Print tables of the paper with a line for one's own figures below each of theirs.

    python examples/paper/beside.py 1-imagenet 15 --runs runs/paper -o table.md

The published figures, and where ours are in the answers of ``hydractl``, are kept in ``docs/results/paper.json``. Ours
have as many digits as theirs. Where a script does not make a row, or a figure is not in its answer, a cell is empty.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hydractl.files.atomic import Output, write_bytes

PAPER = Path(__file__).resolve().parents[2] / "docs" / "results" / "paper.json"


@cache
def _document(path: Path) -> Any:
    """Read a JSON file, once."""
    return json.loads(path.read_text(encoding="utf-8"))


def table_names() -> list[str]:
    """The names of all tables, in the paper's order."""
    return list(_document(PAPER)["tables"])


def markdown(name: str, runs: Path | None = None) -> str:
    """Return one table of the paper.

    Args:
        name: of the table in ``paper.json``.
        runs: the folder of one's own results; None: the lines for them are empty.
    """
    table = _document(PAPER)["tables"][name]
    titles = [table["first"], *(column["name"] for column in table["columns"])]
    lines = [f"| {' | '.join(titles)} |", f"|---|{'---:|' * len(table['columns'])}"]
    for row in table["rows"]:
        lines.append(f"| {row['name']} | {' | '.join(row['values'])} |")
        places = [_place(table, column, row) for column in table["columns"]]
        if any(places):
            cells = [_cell(place, runs, text) for place, text in zip(places, row["values"], strict=True)]
            lines.append(f"| *yours* | {' | '.join(cells)} |")
    return "\n".join(lines)


def _place(table: Mapping[str, Any], column: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return where one's own figure is, None where it is nowhere: ``file``, ``row``, ``key``; perhaps ``scale``."""
    known = {"file": table.get("file"), **column, **row}
    if not all(known.get(part) for part in ("file", "row", "key")):
        return None
    return known


def _cell(place: Mapping[str, Any] | None, runs: Path | None, theirs: str) -> str:
    """Return one's own figure as text, with the digits of theirs; empty where there is none."""
    if place is None or runs is None:
        return ""
    path = runs / place["file"]
    if not path.is_file():
        return ""
    keys = [place["key"]] if isinstance(place["key"], str) else place["key"]
    document = _document(path)
    entry = _entry(document, place)
    values = [_value(entry, key) for key in keys]
    known = [value for value in values if value is not None]
    if entry is None or not known or len(known) < len(values):
        return ""
    scale = place.get("scale", 1)
    digits = len(re.split(r"[ (]", theirs)[0].partition(".")[2])
    text = f"{scale * sum(known) / len(known):.{digits}f}"
    # Data sets and corruptions differ by more than chance: the deviation over them is none of a figure of the paper.
    deviation = entry["std"].get(keys[0]) if document.get("over") == "seed" else None
    return text if deviation is None else f"{text} ± {scale * deviation:.{digits}f}"


def _entry(document: Mapping[str, Any], place: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the row of an answer: of ``eval`` by its name, of ``bench`` by its name and number format."""
    if "results" in document:
        rows = [row for row in document["results"] if row["dtype"] == place.get("dtype")]
        named = [row for row in rows if row["model"] == place["row"]]
    else:
        named = [row for row in document["models"] if row["name"].partition("#")[0] == place["row"]]
    return named[0] if named else None


def _value(entry: Any, key: str) -> float | None:
    """Return the number at a dotted key, None where there is none."""
    for part in key.split("."):
        if not isinstance(entry, Mapping) or part not in entry:
            return None
        entry = entry[part]
    return None if entry is None else float(entry)


def main(words: Sequence[str] | None = None) -> None:
    """Read the arguments, print the tables and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", metavar="TABLE", choices=table_names(), help="names of tables")
    parser.add_argument("--runs", type=Path, metavar="FOLDER", help="the folder of your results")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.md", help="also write the tables to a file")
    asked = parser.parse_args(words)
    parts = []
    for name in asked.tables:
        title = f"Table {name.partition('-')[0]}: {_document(PAPER)['tables'][name]['caption']}"
        parts.append(f"{title}\n\n{markdown(name, asked.runs)}\n")
    text = "\n".join(parts)
    print(text, end="")
    if asked.output is not None:
        asked.output.parent.mkdir(parents=True, exist_ok=True)
        with Output(asked.output, force=True) as output:
            write_bytes(output, text.encode())


if __name__ == "__main__":
    main()
