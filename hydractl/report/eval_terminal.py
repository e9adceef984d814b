"""The tables of an eval on a terminal."""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
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
    return Group(*parts, _Footnote(answer))


class _Footnote:
    """The explanation of runs, marks, intervals and the sign of significance, as far as they show."""

    def __init__(self, answer: EvalAnswer) -> None:
        self._answer = answer

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield up to three lines."""
        rows = self._answer.models
        meaning = []
        # Without a terminal, text has no styles, and so no marks.
        if len(rows) > 1 and console.is_terminal and not console.is_dumb_terminal:
            meaning.append("bold: best of the column, underlined: second best")
        intervals = [tables.known_interval(interval) for row in rows for interval in row.ci.values()]
        if any(interval is not None for interval in intervals):
            level = tables.level_text(self._answer)
            meaning.append(f"below a number: its {level} interval".replace("  ", " "))
        significant = ""
        if any(row.difference for row in rows):
            significant = f"{tables.SIGNIFICANT} the interval of a difference excludes 0"
        for line in (tables.runs_text(self._answer), "; ".join(meaning), significant):
            if line:
                yield Text(line)
