"""The answer of a study on a terminal: the verdict, and every row under it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from hydractl.report.rich_parts import table
from hydractl.report.study_figures import StudyTable, study_tables
from hydractl.report.texts import duration_text

_OF_COST_AND_ID = 5
"""Columns of the first table that stay with the names where it has to be cut in two."""


def study_table(document: dict[str, Any], width: int) -> RenderableType:
    """The verdict, then the rows on the test data; of a dry run the commands."""
    if document.get("dry_run"):
        return _plan(document, width)
    lines = [Text(line) for line in document["verdict"]["lines"]]
    shown: list[RenderableType] = []
    for one in study_tables(document):
        for part in _fitting(one, width):
            shown += [Text(""), part]
    after = [Text(document["verdict"]["footnote"])]
    for timing in document.get("latency", []):
        ratio = f"{timing['ratio']:.2f} times the single model's"
        after.append(Text(f"time of best.st, batches of {timing['batch_size']}: {ratio}"))
    return Group(*lines, *shown, Text(""), *after)


def _fitting(one: StudyTable, width: int) -> list[RenderableType]:
    """A table, in two parts where the terminal is too narrow for it."""
    left = 2 if "score" in one.columns else 1
    whole = table(one.title, _short(one.columns), one.rows, left=left)
    if Console(width=10**4).measure(table("", _short(one.columns), one.rows, left=left)).maximum <= width:
        return [whole]
    cut = _OF_COST_AND_ID
    first = table(one.title, _short(one.columns[:cut]), [row[:cut] for row in one.rows], left=left)
    names_and_rest = [[row[0], *row[cut:]] for row in one.rows]
    second = table("", _short([one.columns[0], *one.columns[cut:]]), names_and_rest, left=1)
    return [first, second]


def _short(columns: Sequence[str]) -> list[str]:
    """Titles of columns in two lines where they are of two words."""
    return [column.replace(" ", "\n") for column in columns]


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
