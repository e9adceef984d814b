"""The tables of an eval on a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from hydractl.files.eval_answer import EvalAnswer
from hydractl.report import eval_tables as tables
from hydractl.report.tables import fitted


def eval_table(answer: EvalAnswer, width: int) -> RenderableType:
    """Return the tables of an eval for a terminal of this width; those without rows are left out."""
    rows = answer.models
    optional = (
        tables.every_set_table(rows),
        tables.score_table(rows),
        tables.error_table(rows),
        tables.difference_table(rows),
        tables.corrupted_accuracy(rows),
        tables.corruption_means(rows),
        tables.settings_table(rows),
    )
    parts: list[RenderableType] = []
    for shown in (tables.main_table(rows), *(table for table in optional if table.rows)):
        parts += [fitted(shown, width), Text("")]
    return Group(*parts, *map(Text, _footnotes(answer)))


def _footnotes(answer: EvalAnswer) -> list[str]:
    """Return the explanation of runs, intervals and the sign of significance, as far as they show."""
    rows = answer.models
    notes = []
    if answer.over is not None or answer.bootstrap is not None:
        notes.append(tables.interval_sentence(answer))
    if any(row.difference for row in rows):
        notes.append(f"{tables.SIGNIFICANT} the interval of a difference excludes 0")
    return notes
