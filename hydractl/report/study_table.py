"""The answer of a study on a terminal: the verdict, and every row under it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from hydractl.report.rich_parts import table
from hydractl.report.texts import duration_text, number

_NAMES = ("", "", "score")
_COLUMNS = ("mult-adds", "AUROC\nval.", "accuracy", "NLL", "ECE", "near AUROC", "far AUROC", "AUROC", "FPR95")
_OF_ID = 5
"""How many of them stand in the first table, where two are needed."""


def study_table(document: dict[str, Any], width: int) -> RenderableType:
    """The verdict, then the rows on the test data; of a dry run the commands."""
    if document.get("dry_run"):
        return _plan(document, width)
    rows = [_row(row) for row in document["rows"]]
    title = "test data; * chosen on validation data, each row with its own score and temperature"
    shown = [table(title, (*_NAMES, *_COLUMNS), rows, left=3)]
    if Console(width=10**4).measure(shown[0]).maximum > width:
        parts = (slice(3, 3 + _OF_ID), slice(3 + _OF_ID, None))
        columns = (*_NAMES, *_COLUMNS)
        shown = [table("", (*_NAMES, *columns[one]), [[*row[:3], *row[one]] for row in rows], left=3) for one in parts]
        shown[0].title = title
    lines = [Text(line) for line in document["verdict"]["lines"]]
    after = [Text(f"the highest mean AUROC on the test data, seen afterwards: {document['hindsight']}")]
    after += [
        Text(f"time of best.st, batches of {one['batch_size']}: {one['ratio']:.2f} times the single model's")
        for one in document.get("latency", [])
    ]
    return Group(*lines, *(part for one in shown for part in (Text(""), one)), Text(""), *after)


def _row(row: dict[str, Any]) -> list[str]:
    test = row["test"]
    values = [test["id"][key] for key in ("accuracy", "nll", "ece")]
    values += [test[group]["auroc"] for group in ("near_avg", "far_avg", "ood_avg")] + [test["ood_avg"]["fpr95"]]
    ratio = "-" if row["mac_ratio"] is None else f"{row['mac_ratio']:.2f}"
    own = number(row["validation"]["auroc"][row["score"]], 3)
    return ["*" if row["chosen"] else "", row["name"], row["score"], ratio, own, *(number(one, 3) for one in values)]


def _plan(document: dict[str, Any], width: int) -> RenderableType:
    lines = [_typed([f"{place}.", "hydractl", *argv], width) for place, argv in enumerate(document["steps"], 1)]
    lines += [f"to stay within the budget, {text}" for text in document["cut"]]
    lines.append(f"the study takes about {duration_text(document['seconds'])}")
    return Group(*map(Text, lines))


def _typed(words: Sequence[str], width: int) -> str:
    """A command in lines that a shell takes as one."""
    lines = [""]
    for word in map(shlex.quote, words):
        if lines[-1].strip() and len(lines[-1]) + len(word) + 3 > width:
            lines.append("   ")
        lines[-1] += f" {word}" if lines[-1] else word
    return " \\\n".join(lines)
