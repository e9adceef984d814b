"""The tables of an eval on a terminal, laid out for its width."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from hydractl.files.eval_answer import EvalAnswer, EvalRow
from hydractl.report import eval_tables as tables
from hydractl.report.rich_parts import known_columns, table
from hydractl.report.texts import drawn_names, shown_name

_STYLES = {tables.BEST: "bold", tables.SECOND: "underline"}
_LETTERS_OF_NAME = (40, 24, 14)
"""The most letters of a model's name in a table; the largest number with which the table fits the width is taken."""
_FEWEST_LETTERS = _LETTERS_OF_NAME[-1]
_BESIDE_NAMES = 47  # width of the table of OOD sets without the names of models and sets
_ANY_WIDTH = Console(width=10**4)
_Part = tuple[str, Sequence[tables.Column]]
"""A table of main numbers: its title and its columns."""


def eval_table(answer: EvalAnswer, width: int) -> RenderableType:
    """Return the tables of an eval for a terminal of this width.

    All main numbers of a row are in one table if they fit, else in several. Intervals are below their numbers if they
    fit.
    """
    rows = answer.models
    main = _main_tables(rows, width)
    shown: list[RenderableType] = [*main]
    if tables.ood_names(rows):
        shown.append(_ood_table(rows, width))
    shown += _optional_tables(rows, width)

    # Put an empty line after each table, and explain marks and intervals at the end.
    parts: list[RenderableType] = []
    for part in shown:
        parts += [part, Text("")]
    footnote = _Footnote(answer, with_intervals=_shows_intervals(main))
    return Group(*parts, footnote)


class _Layout(NamedTuple):
    """A way to lay out the main numbers.

    Attributes:
        parts: the title and the columns of each table.
        intervals: whether numbers have their intervals below them.
        letters: the most letters of a name.
    """

    parts: Sequence[_Part]
    intervals: bool
    letters: int


def _main_tables(rows: Sequence[EvalRow], width: int) -> list[Table]:
    """Return the main numbers in the best layout that fits the width; in the narrowest layout if none fits."""
    drawn: list[Table] = []
    # Layouts come from the best to the narrowest; the last one is kept if none fits.
    for layout in _layouts(_parts_together(rows), _parts_apart(rows)):
        drawn = []
        for title, columns in layout.parts:
            shown = tables.metric_table(rows, columns, "", title)
            drawn.append(_terminal_table(shown, layout.letters, layout.intervals))
        if _fit(drawn, width):
            break
    return drawn


def _parts_together(rows: Sequence[EvalRow]) -> list[_Part]:
    """Return all main columns as one part."""
    title = _in_distribution_title(rows)
    if tables.ood_names(rows):
        title = f"{title}, {_ood_title(rows)}"
    return [(title, tables.main_columns(rows))]


def _parts_apart(rows: Sequence[EvalRow]) -> list[_Part]:
    """Return the main columns as two parts: the metrics of ID data, and all others."""
    in_distribution: _Part = (_in_distribution_title(rows), tables.ID_COLUMNS)
    rest: _Part = ("diversity in distribution", tables.DIVERSITY)
    if tables.ood_names(rows):
        rest = (f"{_ood_title(rows)}, and diversity in distribution", [*tables.OOD_AVERAGE, *tables.DIVERSITY])
    return [in_distribution, rest]


def _ood_title(rows: Sequence[EvalRow]) -> str:
    """Return the title of the columns on OOD data; it names the scores of the rows where they differ."""
    scores = {row.ood_score for row in rows if row.ood_score is not None}
    if len(scores) < 2:
        return "OOD averages"
    score_of_each = ", ".join(f"{shown_name(row.name)} by {shown_name(row.ood_score or '-')}" for row in rows)
    return f"OOD averages by different scores ({score_of_each})"


def _in_distribution_title(rows: Sequence[EvalRow]) -> str:
    """Return the title of the columns on ID data, with the number of samples."""
    size = rows[0].id.n
    if size is None:
        return "in distribution (n = -)"
    return f"in distribution (n = {size})"


def _layouts(together: Sequence[_Part], apart: Sequence[_Part]) -> Iterator[_Layout]:
    """Yield the ways to lay the columns out, from the best to the narrowest.

    A layout with intervals is better than one table without them, and one table is better than long names. Names are
    cut to the shortest length only without intervals.

    Args:
        together: all columns as one part.
        apart: all columns as two parts.
    """
    for parts in (together, apart):
        for letters in _LETTERS_OF_NAME[:2]:
            yield _Layout(parts, True, letters)
    for parts in (together, apart):
        for letters in _LETTERS_OF_NAME:
            yield _Layout(parts, False, letters)


def _fit(drawn: Iterable[Table], width: int) -> bool:
    """Return whether all tables fit this width without being cut."""
    widths = [_ANY_WIDTH.measure(part).maximum for part in drawn]
    return max(widths, default=0) <= width


def _shows_intervals(drawn: Sequence[Table]) -> bool:
    """Return whether any cell of these tables has a second line."""
    for part in drawn:
        for column in part.columns:
            if any("\n" in str(cell) for cell in column.cells):
                return True
    return False


def _optional_tables(rows: Sequence[EvalRow], width: int) -> Iterator[RenderableType]:
    """Yield tables of scores, paired differences, corruptions, and fitted or given settings, if any row has them.

    A table whose numbers have intervals is wide, so it is split into parts that fit the width. The others are drawn
    whole. Names are cut to the fewest letters.

    Args:
        rows: all rows of an eval, one for each model.
        width: the width of the terminal in characters.
    """
    # OOD detection, and wrong answers, by each score.
    scores = tables.score_table(rows)
    if scores.rows:
        yield from _in_parts(scores, width)
    errors = tables.error_table(rows)
    if errors.rows:
        yield from _in_parts(errors, width)

    # Differences to the first row, which is named in the title.
    differences = tables.difference_table(rows)
    if differences.rows:
        (first,) = drawn_names([rows[0].name], _FEWEST_LETTERS)  # a list of one cut name
        titled = replace(differences, title=f"paired difference to {first}")
        yield from _in_parts(titled, width)

    # Accuracy under each corruption. Its first two columns are texts, the model and the corruption, so they are aligned
    # to the left. The means over corruptions are the last of the corruption tables; the others are not shown here.
    corrupted = tables.corrupted_accuracy(rows)
    if corrupted.rows:
        yield _terminal_table(corrupted, _FEWEST_LETTERS, left=2)
        *_, mean = tables.corruption_tables(rows)
        yield from _in_parts(mean, width)

    # What was fitted or given. All three columns are texts: the model, the fact (e.g. "temperature") and its value.
    fitted = []
    for name, cells in tables.settings_table(rows).rows:
        texts = _texts(cells)
        fitted.append((name, *texts))
    if fitted:
        yield table("fitted or given", ("model", "what", ""), fitted, left=3)


def _in_parts(shown: tables.Table, width: int) -> list[Table]:
    """Split a table, with its intervals, into parts of its columns that fit the width and stand below each other."""
    drawn: list[Table] = []
    columns = len(shown.heads)
    # Try the most columns a part first. If not even one column fits, each is a part and will be cut.
    for columns_of_part in range(columns, 0, -1):
        drawn = []
        for start in range(0, columns, columns_of_part):
            part = _some_columns(shown, start, start + columns_of_part)
            drawn.append(_terminal_table(part, _FEWEST_LETTERS, intervals=True))
        if _fit(drawn, width):
            break
    return drawn


def _some_columns(shown: tables.Table, start: int, stop: int) -> tables.Table:
    """Return a table with the columns from ``start`` to ``stop``; only the part with the first one has the title."""
    title = ""
    if start == 0:
        title = shown.title
    rows = []
    for name, cells in shown.rows:
        rows.append((name, cells[start:stop]))
    return replace(shown, title=title, heads=shown.heads[start:stop], rows=rows)


def _terminal_table(shown: tables.Table, letters: int, intervals: bool = False, left: int = 1) -> Table:
    """Return a table for the terminal; columns that hold only dashes are left out.

    Args:
        shown: the table.
        letters: the most letters of a name; longer ones are cut.
        intervals: whether numbers have their intervals below them.
        left: the number of columns, including the names, that are aligned to the left.
    """
    short_names = _short_names(shown, letters)
    texts = [_texts(cells) for _, cells in shown.rows]
    known = known_columns(texts, len(shown.heads))

    # The names of the models, and the known columns.
    titles = ["model"]
    for index in known:
        label, _ = shown.heads[index]
        titles.append(label)

    drawn = table(shown.title, titles, [], left=left)
    for name, cells in shown.rows:
        short_name = Text(short_names[name])
        known_cells = [_cell_text(cells[index], intervals) for index in known]
        drawn.add_row(short_name, *known_cells)
    return drawn


def _short_names(shown: tables.Table, letters: int) -> dict[str, str]:
    """Return the names of a table, each with a unique short form of at most ``letters`` letters."""
    distinct_names = dict.fromkeys(name for name, _ in shown.rows)
    names = list(distinct_names)
    short_names = drawn_names(names, letters)
    return dict(zip(names, short_names, strict=True))


def _texts(cells: Sequence[tables.Cell]) -> list[str]:
    return [cell.text for cell in cells]


def _cell_text(cell: tables.Cell, intervals: bool) -> Text:
    """Return a number in the style of its mark; its interval is on a second line if that is wanted and known.

    Args:
        cell: the cell, with its text, mark and interval.
        intervals: whether intervals are wanted.
    """
    deviation_below = cell.text.replace(" ± ", "\n± ")  # on a line of its own, which saves width
    text = Text(deviation_below, _STYLES.get(cell.mark, ""))
    if not intervals or cell.ends is None:
        return text

    low, high = map(_short_number, cell.ends)
    between = "-"
    if cell.signed:
        between = " to "  # a dash would look like the sign of the second number
    interval = f"{low}{between}{high}"
    return Text.assemble(text, "\n", (interval, "not bold not underline"))


def _short_number(value: float) -> str:
    """Return a number with three decimals and without a zero before the point: an interval stands beside its number."""
    text = f"{value:.3f}"
    if -1 < value < 1:
        return text.replace("0.", ".", 1)
    return text


def _ood_table(rows: Sequence[EvalRow], width: int) -> Table:
    """Return the table of every OOD set of every row; names of models are as long as the width allows.

    Args:
        rows: all rows of an eval, one for each model.
        width: the width of the terminal in characters.
    """
    table_of_sets = tables.every_set_table(rows)
    sets = tables.ood_names(rows)
    short_names = drawn_names(sets, 16)
    short_name_of_set = dict(zip(sets, short_names, strict=True))

    # Put a short name in place of each set's name, which is the first cell after the model's name.
    lines = []
    for model_name, (set_cell, *cells) in table_of_sets.rows:
        short_name = short_name_of_set[set_cell.text]
        short_cell = tables.Cell(short_name)
        lines.append((model_name, [short_cell, *cells]))
    with_short_names = tables.Table("", table_of_sets.heads, lines, table_of_sets.title)

    longest_set = max(map(len, short_names))
    # The names of models get what is left of the width, within their limits.
    left_for_models = width - _BESIDE_NAMES - longest_set
    most_letters = _LETTERS_OF_NAME[0]
    fewest_letters = _FEWEST_LETTERS
    letters = max(fewest_letters, min(most_letters, left_for_models))
    return _terminal_table(with_short_names, letters, left=3)


class _Footnote:
    """The explanation of marks and of second lines, or of how to see intervals.

    Marks are explained only if they show.
    """

    def __init__(self, answer: EvalAnswer, with_intervals: bool) -> None:
        """Collect the sentences that the footnote may need."""
        rows = answer.models
        self.marks = ""
        if len(rows) > 1:
            self.marks = "bold: best of the column, underlined: second best"

        self.intervals = ""
        if any(_has_interval(row) for row in rows):
            self.intervals = _interval_words(answer, with_intervals)

        self.runs = tables.runs_text(answer)
        self.significant = ""
        if any(row.difference for row in rows):
            self.significant = f"{tables.SIGNIFICANT} the interval of a difference excludes 0"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield up to three lines: the runs, marks and intervals, and the sign of significance."""
        # Without a terminal, text has no styles, and so no marks.
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


def _interval_words(answer: EvalAnswer, are_shown: bool) -> str:
    """Return words on where the intervals stand, or on how to see them if they are not shown."""
    interval = "interval"
    level = tables.level_text(answer)
    if level:
        interval = f"{level} interval"
    if are_shown:
        return f"below a number: its {interval}"
    return f"{interval}s: --json, or a wider terminal"


def _has_interval(row: EvalRow) -> bool:
    """Return whether any interval of a row has both ends."""
    intervals = map(tables.known_interval, row.ci.values())
    return any(interval is not None for interval in intervals)
