"""Texts and pairs of texts in ``.csv``, ``.tsv``, ``.jsonl`` (each also ``.gz``) and ``.parquet`` files."""

from __future__ import annotations

import difflib
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydractl.data.base import Dataset
from hydractl.data.files import printable
from hydractl.data.labels import INTEGER, RawLabels, labels_of_column, some
from hydractl.data.text_rows import TextRow, TextTable, open_table
from hydractl.errors import InputError
from hydractl.expressions.data_sets import DataSpec

Text = str | tuple[str, str]
"""One text, or a pair of texts."""

TEXT_QUERY = ("text", "text_b", "label")

# Known names for the column of the text or of the first text of a pair, and for the column of the second text.
_FIRST = ("text", "sentence", "text_a", "sentence1")
_SECOND = ("text_b", "sentence2")
_LABEL = "label"

MOST_PROBLEMS = 20
"""Reading stops after this many broken rows, because the rest of such a file tells nothing new."""


def parts_of(text: Text) -> tuple[str, ...]:
    """Return the two texts of a pair, or a tuple with the single text."""
    return (text,) if isinstance(text, str) else text


def characters(text: Text) -> int:
    """Return the number of characters of a text, or of both texts of a pair together."""
    return sum(map(len, parts_of(text)))


class Texts(Dataset):
    """Texts, either all single or all pairs.

    Args:
        spec: the SPEC from which the set was opened.
        where: the name of the set in messages.
        ids: one id for each sample.
        texts: all ``str``, or all ``(str, str)``.
    """

    kind = "text"

    def __init__(self, spec: str, where: str, ids: Sequence[str], texts: Sequence[Text]) -> None:
        super().__init__(spec, where, ids)
        self.texts = texts

    def _sample(self, i: int) -> Text:
        return self.texts[i]

    def lengths(self) -> list[int]:
        """Return the number of characters of each sample, both texts of a pair together."""
        return list(map(characters, self.texts))


# --- columns ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Columns:
    """The columns of one file.

    Attributes:
        text: the column of the text, or of the first text of a pair.
        text_b: the column of the second text; None for single texts.
        label: the column of the label. If the file does not have this column, there are no labels.
        label_asked: whether ``?label=`` named that column.
        others: columns in which no row may have a value, because the row would then be a pair among single texts.
    """

    text: str
    text_b: str | None
    label: str
    label_asked: bool
    others: tuple[str, ...]

    def needed(self, available: Sequence[str]) -> list[str]:
        """Return those of the available columns that must be read."""
        wanted = {self.text, self.text_b, self.label}
        return [name for name in available if name in wanted]


def choose_columns(spec: DataSpec, available: Sequence[str], what: str = "column") -> Columns:
    """Choose the columns to read, by ``?text=``, ``?text_b=`` and ``?label=``, or else by their known names.

    The file holds pairs if ``?text_b=`` is set. If neither ``?text=`` nor ``?text_b=`` is set, it also holds pairs if a
    column has one of the known names for a second text.

    Args:
        spec: the SPEC with its query.
        available: the columns of the file, or the keys of its first row.
        what: how messages call a column: ``column``, or ``key`` for rows that have keys of their own. With ``key``, a
            label that the first row lacks is accepted, because a later row may have it.

    Raises:
        InputError: if a column is missing, occurs twice or is ambiguous; the message names the available columns.
    """
    # The column of the text.
    query = spec.query
    if "text" in query:
        text: str | None = query["text"]
    else:
        text = _only_one_there(spec, _FIRST, available, what, "text")
    if text is None:
        hints = [f"name the {what} with ?text=NAME"]
        near = _hint_at_similar(_FIRST, available)
        if near is not None:
            hints.insert(0, near)
        separator = next((mark for mark in (";", "\t") if len(available) == 1 and mark in available[0]), None)
        if separator is not None:
            hints = [f"its columns are separated by {separator!r}: {_SEPARATED[separator]}"]
        elif what == "column":
            hints.append("a file without a header needs ?columns=label,text or the like")
        message = f"{spec.where}: no {what} of the text: it has {shown_columns(available)}"
        raise InputError(message, hint="; ".join(hints))

    # The column of the second text. If the user has named a column of texts, none is looked for by known names.
    # `others` are the known names of a second text: a row that has one is a pair among single texts, and is refused.
    text_b: str | None
    if "text_b" in query or "text" in query:
        text_b = query.get("text_b")
        others: tuple[str, ...] = ()
    else:
        text_b = _only_one_there(spec, _SECOND, available, what, "text_b")
        others = _SECOND
    label = query.get("label", _LABEL)

    # Check that the columns exist and differ.
    asked = {"text": text, "text_b": text_b}
    if what != "key":
        asked["label"] = query.get("label")
    _check_there(spec, asked, available, what)
    used = [text, label]
    if text_b is not None:
        used.append(text_b)
    _check_apart(spec, used, available, what)
    return Columns(text, text_b, label, "label" in query, others)


def _check_apart(spec: DataSpec, used: Sequence[str], available: Sequence[str], what: str) -> None:
    """Refuse a chosen column that occurs several times in the file, and one that is chosen for two purposes.

    Args:
        spec: the SPEC of the file.
        used: the columns chosen for the texts and the label.
        available: the columns of the file.
        what: how messages call a column.

    Raises:
        InputError: naming the column, or its purposes.
    """
    times_there = Counter(available)
    for name in sorted(used):
        if times_there[name] > 1:
            raise InputError(f"{spec.where}: there are several columns {name!r}: it has {shown_columns(available)}")
    if len(set(used)) < len(used):
        raise InputError(f"{spec.where}: one {what} is taken for two things: text, text_b and label must differ")


def _check_there(spec: DataSpec, asked: Mapping[str, str | None], available: Sequence[str], what: str) -> None:
    """Refuse columns that are asked for but are not in the file.

    Args:
        spec: the SPEC of the file.
        asked: the names of the columns by setting (``text``, ``text_b``, ``label``); None where none is asked for.
        available: the columns of the file.
        what: how messages call a column.

    Raises:
        InputError: naming all missing columns.
    """
    missing = {}
    for key, name in asked.items():
        if name is not None and name not in available:
            missing[key] = name
    if missing:
        listed = " and ".join(f"?{key}={name}" for key, name in missing.items())
        raise InputError(
            f"{spec.where}: no {what} for {listed}: it has {shown_columns(available)}",
            hint=_hint_at_similar(list(missing.values()), available),
        )


def _only_one_there(spec: DataSpec, names: Sequence[str], available: Sequence[str], what: str, key: str) -> str | None:
    """Return the only one of some possible names that the file has; None if it has none of them.

    Args:
        spec: the SPEC of the file.
        names: the possible names of the column.
        available: the columns of the file.
        what: how messages call a column.
        key: the setting by which the user can choose the column.

    Raises:
        InputError: if the file has several of the names.
    """
    candidates = [name for name in names if name in available]
    if len(candidates) > 1:
        named = " and ".join(map(repr, candidates))
        raise InputError(
            f"{spec.where}: {named} may both be the text: it has {shown_columns(available)}",
            hint=f"say which {what} with ?{key}=NAME",
        )
    return candidates[0] if candidates else None


_SEPARATED = {
    "\t": "name it FILE.tsv",
    ";": "write it with commas: pandas.read_csv(FILE, sep=';').to_csv(OUT, index=False)",
}
"""What to do with a .csv file whose columns are separated by something else."""

# A damaged file may seem to have thousands of columns, or names of thousands of characters.
_MOST_COLUMNS_SHOWN = 20
_LONGEST_NAME_SHOWN = 40


def shown_columns(names: Sequence[str]) -> str:
    """Return the names of columns for a message: the first few, with long ones cut."""
    shortened = [repr(name[:_LONGEST_NAME_SHOWN]) for name in names]
    return some(shortened, _MOST_COLUMNS_SHOWN)


def _hint_at_similar(wanted: Sequence[str], available: Sequence[str]) -> str | None:
    """Return a hint at available names that are similar to the wanted ones (ignoring case); None if there are none.

    Args:
        wanted: names that the file does not have.
        available: names that it has.
    """
    name_by_folded: dict[str, str] = {}
    for name in available:
        name_by_folded.setdefault(name.casefold(), name)
    similar: list[str] = []
    for name in wanted:
        for folded in difflib.get_close_matches(name.casefold(), name_by_folded, n=1):
            if folded not in similar:
                similar.append(folded)
    if not similar:
        return None
    listed = ", ".join(repr(name_by_folded[folded]) for folded in similar)
    return f"near: {listed}"


# --- rows -------------------------------------------------------------------------------------------------------------


def read_text(spec: DataSpec, limit: int | None) -> tuple[Dataset, RawLabels]:
    """Open a text file (UTF-8).

    The text is in the column (or under the key) ``text``, ``sentence``, ``text_a`` or ``sentence1``, the second text of
    a pair in ``text_b`` or ``sentence2``, and the label in ``label``. ``?text=``, ``?text_b=`` and ``?label=`` name
    other columns. If ``?text=`` is set, only ``?text_b=`` makes pairs. ``?columns=label,text`` names the columns of a
    ``.csv`` or ``.tsv`` file without a header. A byte order mark at the start of these two is skipped; JSON has none.

    Labels are integers or names. In ``.parquet`` integers index the names of a ``ClassLabel``, if the ``datasets``
    library stored one. In ``.csv`` and ``.tsv`` labels are integers if all of them look like integers, and an empty
    field is a missing label. With ``limit``, nothing after the first ``limit`` rows is read, so neither errors
    nor class names in later rows are noticed.

    Args:
        spec: the SPEC of the file.
        limit: take only this many rows from the start; None means all.

    Raises:
        InputError: if the file cannot be read or is not UTF-8, if columns are missing, or if rows are broken, have no
            text, or are pairs among single texts (all are listed).
        UsageError: for Parquet if pyarrow is not installed.
    """
    table = open_table(spec, TEXT_QUERY)
    file_name = printable(Path(spec.path).name)
    return read_table(spec, table, limit, file_name)


def read_table(spec: DataSpec, table: TextTable, limit: int | None, name: str) -> tuple[Dataset, RawLabels]:
    """Open the texts in the rows of a table; the ids are ``name#0``, ``name#1``, ...

    Args:
        spec: the SPEC of the data, which may name columns.
        table: the columns and rows.
        limit: read only this many rows from the start; None means all.
        name: the beginning of the ids.

    Returns:
        The texts, and their labels before they are mapped to the classes of a model.

    Raises:
        InputError: if columns are missing, or rows are broken or have no text (all are listed).
    """
    if table.columns:
        columns = choose_columns(spec, table.columns)
        collector = _Collector(spec, columns)
        rows = table.rows(columns.needed(table.columns))
    else:  # rows have keys of their own: the collector chooses the columns when it sees the first row
        collector = _Collector(spec)
        rows = table.rows(())
    collector.collect(rows, limit)
    if not collector.texts:
        raise InputError(f"{spec.where}: no texts in the file")
    ids = [f"{name}#{i}" for i in range(len(collector.texts))]
    dataset = Texts(spec.text, spec.where, ids, collector.texts)
    raw = _labels_of_rows(collector, table)
    return dataset, raw


@dataclass
class _Collector:
    """Collects the texts and labels of rows, and what is wrong with the rows.

    Attributes:
        spec: the SPEC of the file.
        columns: the columns to read. In a file whose rows have keys of their own, None until the first row was added.
        texts, labels: one entry for each row; a missing label is None.
        keys: the keys of the first row.
        problems: one line for each row that cannot be read.
    """

    spec: DataSpec
    columns: Columns | None = None
    texts: list[Text] = field(default_factory=list)
    labels: list[Any] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def collect(self, rows: Iterator[TextRow], limit: int | None) -> None:
        """Collect the texts and labels of the first ``limit`` rows.

        Raises:
            InputError: if rows are broken. They are listed; reading stops after :data:`MOST_PROBLEMS` of them.
        """
        for count, row in enumerate(rows, start=1):
            self._add(row)
            if count == limit or len(self.problems) == MOST_PROBLEMS:
                break
        if not self.problems:
            return

        # Report how many rows are broken. There may be more if reading has stopped.
        broken = f"{len(self.problems)} rows"
        if len(self.problems) == 1:
            broken = "1 row"
        elif len(self.problems) == MOST_PROBLEMS:
            broken = f"{MOST_PROBLEMS} or more rows"
        raise InputError(f"{self.spec.where}: {broken} cannot be read", problems=self.problems)

    def _add(self, row: TextRow) -> None:
        """Append the text and the label of a row, or append a line to ``problems``.

        The first row also sets ``keys``, and ``columns`` if the file has no header.
        """
        if row.problem:
            self.problems.append(f"{row.place} {row.problem}")
            return

        # The first row.
        if not self.keys:
            self.keys = list(row.values)
        if self.columns is None:
            self.columns = choose_columns(self.spec, list(row.values), "key")

        # Every row.
        try:
            text = self._text_of(row, self.columns)
        except ValueError as error:
            self.problems.append(f"{row.place} {error}")
            return
        self.texts.append(text)
        label = row.values.get(self.columns.label)
        if type(label) is str:
            label = sys.intern(label)  # thousands of rows have the same few labels, so keep each text once
        self.labels.append(label)

    def _text_of(self, row: TextRow, columns: Columns) -> Text:
        """Return the text of one row, or its pair of texts if the file holds pairs.

        Raises:
            ValueError: if a text is missing or is not a string, or if the row is a pair among single texts.
        """
        text = row.text_in(columns.text)
        if columns.text_b is not None:
            return text, row.text_in(columns.text_b, hint=", and other rows are pairs")
        for column in columns.others:
            if row.values.get(column) is not None:
                raise ValueError(f"is a pair with {column!r}, and other rows are single texts")
        return text


def _labels_of_rows(collector: _Collector, table: TextTable) -> RawLabels:
    """Return the labels of the rows, integers or names. If there are none, set a hint that names the columns.

    Args:
        collector: the collected rows, at least one.
        table: the table of the rows. If it stores everything as text, labels are integers if all of them look like
            integers. Integers index the class names of their column, if it has some.
    """
    columns = collector.columns
    assert columns is not None  # set by the first row
    labels = [_without_spaces(label) for label in collector.labels]
    given_labels = [label for label in labels if label is not None]

    # ?label= names a column that no row has.
    is_asked_and_missing = columns.label_asked and columns.label not in collector.keys
    if not given_labels and is_asked_and_missing:
        return RawLabels(problems=[f"no row has {columns.label!r}, which ?label= names"])

    listed = ", ".join(collector.keys[:_MOST_COLUMNS_SHOWN])
    hint = f"the rows have {listed}: name what holds the labels with ?label=NAME"
    raw = labels_of_column(labels, table.class_names.get(columns.label), hint)
    raw.from_text = table.plain and all(INTEGER.fullmatch(text) for text in given_labels)
    return raw


def _without_spaces(label: Any) -> Any:
    """Return a label without the spaces around it. An empty text is a missing label and gives None."""
    if not isinstance(label, str):
        return label
    return label.strip() or None


def cut_warning(dataset: Dataset, collate: Any) -> str | None:
    """Return a sentence on the texts that a model cuts because they are too long; None without any, and for images.

    Args:
        dataset: texts or images.
        collate: makes the inputs of the model. For texts it has a method ``cut``, which says of each text whether it
            has more tokens than its ``max_length``.
    """
    if dataset.kind != "text":
        return None
    total = len(dataset)
    cut = sum(collate.cut(dataset[i] for i in range(total)))
    if not cut:
        return None
    return warning_of_cut(dataset, cut, total, collate.max_length)


def warning_of_cut(dataset: Dataset, cut: int, total: int, max_length: int) -> str:
    """Return the warning of texts that are cut.

    Args:
        dataset: the texts.
        cut: how many are cut, at least one.
        total: how many are read.
        max_length: how many tokens are read of each.
    """
    verb = "is" if cut == 1 else "are"
    return (
        f"{dataset.where}: {cut} of {total} texts {verb} longer than {max_length} tokens, and what is behind them is "
        "not read"
    )
