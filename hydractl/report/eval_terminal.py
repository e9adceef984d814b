"""The tables of an eval on a terminal, laid out for its width."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from hydractl.files.eval_answer import EvalAnswer, EvalRow
from hydractl.report import eval_tables as tables
from hydractl.report.rich_parts import known_columns, table
from hydractl.report.texts import drawn_names

_STYLES = {tables.BEST: "bold", tables.SECOND: "underline"}
_NAMES = (40, 24, 14)  # letters of a name, the more the better
_OTHERS = 47  # columns of the OOD sets' table beside its names
_ANY_WIDTH = Console(width=10**4)
_Part = tuple[str, Sequence[tables.Column]]  # a title and what stands under it


def eval_table(answer: EvalAnswer, width: int) -> RenderableType:
    """Return the tables of an eval: all numbers of a row beside each other, or in groups where they do not fit.

    Intervals are below their numbers where they fit.
    """
    rows = answer.models
    main = _main_tables(rows, width)
    shown: list[RenderableType] = [*main]
    if tables.ood_names(rows):
        shown.append(_ood(rows, width))
    shown += _asked_for(rows, width)
    parts: list[RenderableType] = []
    for part in shown:
        parts += [part, Text("")]
    return Group(*parts, _Note(answer, with_intervals=_shows_intervals(main)))


def _main_tables(rows: Sequence[EvalRow], width: int) -> list[Table]:
    """Return all columns in one table, else in two; with intervals if possible, and names as long as possible."""
    size = rows[0].id.n
    inside = "in distribution (n = -)"
    if size is not None:
        inside = f"in distribution (n = {size})"
    if tables.ood_names(rows):
        together: list[_Part] = [(f"{inside}, OOD averages", tables.main_columns(rows))]
        second: _Part = ("OOD averages, and diversity in distribution", [*tables.OOD_AVERAGE, *tables.DIVERSITY])
    else:
        together = [(inside, tables.main_columns(rows))]
        second = ("diversity in distribution", tables.DIVERSITY)
    apart: list[_Part] = [(inside, tables.ID_COLUMNS), second]
    drawn: list[Table] = []
    for parts, intervals, letters in _tries(together, apart):
        drawn = []
        for title, columns in parts:
            drawn.append(_rich(tables.metric_table(rows, columns, "", title), letters, intervals))
        if _fit(drawn, width):
            break
    return drawn


def _tries(together: list[_Part], apart: list[_Part]) -> Iterator[tuple[list[_Part], bool, int]]:
    """Yield the ways to lay the columns out, the best first: the parts, whether with intervals, letters of a name."""
    for parts in (together, apart):
        for letters in _NAMES[:2]:
            yield parts, True, letters
    for parts in (together, apart):
        for letters in _NAMES:
            yield parts, False, letters


def _fit(drawn: Iterable[Table], width: int) -> bool:
    widths = [_ANY_WIDTH.measure(part).maximum for part in drawn]
    return max(widths, default=0) <= width


def _shows_intervals(drawn: Sequence[Table]) -> bool:
    """Return whether any cell has a second line."""
    for part in drawn:
        for column in part.columns:
            if any("\n" in str(cell) for cell in column.cells):
                return True
    return False


def _asked_for(rows: Sequence[EvalRow], width: int) -> Iterator[RenderableType]:
    """Yield paired differences, corruptions, and what was fitted or given: each where it was asked for."""
    scores = tables.score_table(rows)
    if scores.rows:
        yield from _in_parts(scores, width)
    errors = tables.error_table(rows)
    if errors.rows:
        yield from _in_parts(errors, width)
    differences = tables.difference_table(rows)
    if differences.rows:
        (first,) = drawn_names([rows[0].name], _NAMES[-1])
        titled = replace(differences, title=f"paired difference to {first}")
        yield from _in_parts(titled, width)
    corrupted = tables.corrupted_accuracy(rows)
    if corrupted.rows:
        yield _rich(corrupted, _NAMES[-1], left=2)
        *_, mean = tables.corruption_tables(rows)
        yield from _in_parts(mean, width)
    fitted = []
    for name, cells in tables.settings_table(rows).rows:
        texts = _texts(cells)
        fitted.append((name, *texts))
    if fitted:
        yield table("fitted or given", ("model", "what", ""), fitted, left=3)


def _in_parts(shown: tables.Table, width: int) -> list[Table]:
    """Split a table with its intervals into as many parts of its columns as the width asks for, one below another."""
    drawn: list[Table] = []
    columns = len(shown.heads)
    for size in range(columns, 0, -1):
        drawn = []
        for start in range(0, columns, size):
            part = _some_columns(shown, start, start + size)
            drawn.append(_rich(part, _NAMES[-1], intervals=True))
        if _fit(drawn, width):
            break
    return drawn


def _some_columns(shown: tables.Table, start: int, stop: int) -> tables.Table:
    """Return a table of some of the columns; the title stays with the first of them."""
    title = ""
    if start == 0:
        title = shown.title
    rows = []
    for name, cells in shown.rows:
        rows.append((name, cells[start:stop]))
    return replace(shown, title=title, heads=shown.heads[start:stop], rows=rows)


def _rich(shown: tables.Table, letters: int, intervals: bool = False, left: int = 1) -> Table:
    """Make a table for the terminal, with names of so many letters."""
    names = list(dict.fromkeys(name for name, _ in shown.rows))
    short = dict(zip(names, drawn_names(names, letters), strict=True))
    texts = [_texts(cells) for _, cells in shown.rows]
    known = known_columns(texts, len(shown.heads))
    titles = ["model"]
    for index in known:
        label, _ = shown.heads[index]
        titles.append(label)
    drawn = table(shown.title, titles, [], left=left)
    for name, cells in shown.rows:
        known_cells = [_text(cells[index], intervals) for index in known]
        drawn.add_row(Text(short[name]), *known_cells)
    return drawn


def _texts(cells: Sequence[tables.Cell]) -> list[str]:
    return [cell.text for cell in cells]


def _text(cell: tables.Cell, intervals: bool) -> Text:
    """Return a number with its mark, and its interval on a second line."""
    deviation_below = cell.text.replace(" ± ", "\n± ")  # for the width
    text = Text(deviation_below, _STYLES.get(cell.mark, ""))
    if not intervals or cell.ends is None:
        return text
    low, high = map(_short, cell.ends)
    between = "-"
    if cell.signed:
        between = " to "
    return Text.assemble(text, "\n", (f"{low}{between}{high}", "not bold not underline"))


def _short(value: float) -> str:
    """Format to three digits with no nought before the point: an interval is read beside its number."""
    text = f"{value:.3f}"
    if -1 < value < 1:
        return text.replace("0.", ".", 1)
    return text


def _ood(rows: Sequence[EvalRow], width: int) -> Table:
    """Return the table of every OOD set of every row."""
    every = tables.every_set_table(rows)
    sets = tables.ood_names(rows)
    short_names = drawn_names(sets, 16)
    short = dict(zip(sets, short_names, strict=True))
    lines = []
    for name, (ood_set, *cells) in every.rows:
        set_cell = tables.Cell(short[ood_set.text])
        lines.append((name, [set_cell, *cells]))
    longest = max(map(len, short_names))
    left_over = width - _OTHERS - longest
    letters = min(_NAMES[0], left_over)
    with_short_names = tables.Table("", every.heads, lines, every.title)
    return _rich(with_short_names, max(_NAMES[-1], letters), left=3)


class _Note:
    """The meaning of the marks and second lines, or where intervals are to be had; of marks only where they show."""

    def __init__(self, answer: EvalAnswer, with_intervals: bool) -> None:
        rows = answer.models
        level = tables.level_text(answer)
        intervals = "interval"
        if level:
            intervals = f"{level} interval"
        self.marks = ""
        if len(rows) > 1:
            self.marks = "bold: best of the column, underlined: second best"
        self.intervals = ""
        if any(_has_interval(row) for row in rows):
            self.intervals = f"{intervals}s: --json, or a wider terminal"
            if with_intervals:
                self.intervals = f"below a number: its {intervals}"
        self.runs = tables.runs_text(answer)
        self.significant = ""
        if any(row.difference for row in rows):
            self.significant = f"{tables.SIGNIFICANT} the interval of a difference excludes 0"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shows_marks = console.is_terminal and not console.is_dumb_terminal
        meaning = []
        if shows_marks and self.marks:
            meaning.append(self.marks)
        if self.intervals:
            meaning.append(self.intervals)
        about_numbers = "; ".join(meaning)
        for line in (self.runs, about_numbers, self.significant):
            if line:
                yield Text(line)


def _has_interval(row: EvalRow) -> bool:
    intervals = map(tables.known_interval, row.ci.values())
    return any(interval is not None for interval in intervals)
