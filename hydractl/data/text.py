"""Texts and pairs of texts in ``.csv``, ``.tsv``, ``.jsonl`` (each also ``.gz``) and ``.parquet`` files."""

from __future__ import annotations

import difflib
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydractl.data.base import Dataset, Spec
from hydractl.data.files import printable
from hydractl.data.labels import INTEGER, RawLabels, raw_labels, some
from hydractl.data.text_rows import TextRow, TextTable, open_table
from hydractl.errors import InputError
from hydractl.jsonio import shown
from hydractl.log import Log

Text = str | tuple[str, str]
"""One text, or a pair."""

TEXT_QUERY = ("text", "text_b", "label")

# Names of the column of the text, or of the first of a pair, and of the second.
_FIRST = ("text", "sentence", "text_a", "sentence1")
_SECOND = ("text_b", "sentence2")
_LABEL = "label"

MOST_PROBLEMS = 20
"""Reading stops at this many broken rows: the rest of such a file says no more."""


def parts_of(text: Text) -> tuple[str, ...]:
    """Return the texts of a pair, or the one text."""
    if isinstance(text, str):
        return (text,)
    return text


def characters(text: Text) -> int:
    """Count the characters, of both texts of a pair together."""
    if isinstance(text, str):
        return len(text)
    first, second = text
    return len(first) + len(second)


class Texts(Dataset):
    """Texts, all of them single or all of them pairs.

    Args:
        spec: they were opened from.
        where: how messages call them.
        ids: one for each.
        texts: ``str`` each, or ``(str, str)`` each.
    """

    kind = "text"

    def __init__(self, spec: str, where: str, ids: Sequence[str], texts: Sequence[Text]) -> None:
        super().__init__(spec, where, ids)
        self.texts = texts

    def _sample(self, i: int) -> Text:
        return self.texts[i]

    def _content(self, i: int) -> Iterable[bytes]:
        # The lengths go in as well: the pair ("ab", "c") is not the pair ("a", "bc").
        for part in parts_of(self.texts[i]):
            content = part.encode("utf-8")
            yield f"text {len(content)}\n".encode()
            yield content

    def lengths(self) -> list[int]:
        """Return the number of characters of each sample, both texts of a pair together."""
        lengths = map(characters, self.texts)
        return list(lengths)


# --- columns ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Columns:
    """The columns of one file.

    Attributes:
        text: the column of the text.
        text_b: that of the second text; None for single texts.
        label: that of the label; where it is not there, there are no labels.
        label_asked: whether ``?label=`` named it.
        others: columns whose value in any row would make that row a pair.
    """

    text: str
    text_b: str | None
    label: str
    label_asked: bool
    others: tuple[str, ...]

    def needed(self, available: Sequence[str]) -> list[str]:
        """Return the columns to read, among those that exist."""
        wanted = {self.text, self.text_b, self.label}
        names = []
        for name in available:
            if name in wanted:
                names.append(name)
        return names


def choose_columns(spec: Spec, available: Sequence[str], what: str = "column") -> Columns:
    """Decide which columns to read, from the names that are there and from ``?text=``, ``?text_b=`` and ``?label=``.

    A file is of pairs if a column has the name of a second text; where ``?text=`` is given, only if ``?text_b=`` is
    given as well.

    Args:
        spec: the SPEC with its query.
        available: the columns, or the keys of the first row.
        what: what messages call a column: ``column``, or ``key`` where a later row may have the label that the first
            has not.

    Raises:
        InputError: naming the columns there are, for one that is not there, is there twice, or cannot be decided.
    """
    query = spec.query
    text = query.get("text")
    if text is None:
        text = _only_one_there(spec, _FIRST, available, what, "text")
    if text is None:
        raise _no_text_column(spec, available, what)
    text_b = query.get("text_b")
    others: tuple[str, ...] = ()
    may_be_pairs = text_b is None and "text" not in query
    if may_be_pairs:
        others = _SECOND
        text_b = _only_one_there(spec, _SECOND, available, what, "text_b")
    label = query.get("label", _LABEL)

    asked = {"text": text, "text_b": text_b}
    if what != "key":
        asked["label"] = query.get("label")
    _check_there(spec, asked, available, what)
    used = [text, label]
    if text_b is not None:
        used.append(text_b)
    _check_apart(spec, used, available, what)
    return Columns(text, text_b, label, "label" in query, others)


def _check_apart(spec: Spec, used: Sequence[str], available: Sequence[str], what: str) -> None:
    """Refuse a column that is there several times, and one that is taken for two things.

    Args:
        spec: of the file.
        used: the columns of the texts and of the label.
        available: the columns of the file.
        what: what messages call a column.

    Raises:
        InputError: naming the column, or what it is taken for.
    """
    times_there = Counter(available)
    for name in sorted(used):
        if times_there[name] > 1:
            raise InputError(f"{spec.where}: there are several columns {name!r}: it has {shown_columns(available)}")
    if len(set(used)) < len(used):
        raise InputError(f"{spec.where}: one {what} is taken for two things: text, text_b and label must differ")


def _no_text_column(spec: Spec, available: Sequence[str], what: str) -> InputError:
    """Return the error of a file without a column of texts."""
    hints = [f"name the {what} with ?text=NAME"]
    near = _hint_at_similar(_FIRST, available)
    if near is not None:
        hints.insert(0, near)
    if what == "column":
        hints.append("a file without a header needs ?columns=label,text or the like")
    return InputError(f"{spec.where}: no {what} of the text: it has {shown_columns(available)}", hint="; ".join(hints))


def _check_there(spec: Spec, asked: Mapping[str, str | None], available: Sequence[str], what: str) -> None:
    """Refuse columns that are asked for and are not there.

    Args:
        spec: of the file.
        asked: their names by setting, ``text``, ``text_b`` and ``label``; None where nothing is asked for.
        available: the columns of the file.
        what: what messages call a column.

    Raises:
        InputError: naming them all.
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


def _only_one_there(spec: Spec, names: Sequence[str], available: Sequence[str], what: str, key: str) -> str | None:
    """Return the one of some names that is there; None where none is.

    Args:
        spec: of the file.
        names: what the column may be called.
        available: the columns of the file.
        what: what messages call a column.
        key: the setting that decides between several.

    Raises:
        InputError: where several are there.
    """
    candidates = [name for name in names if name in available]
    if len(candidates) > 1:
        named = " and ".join(map(repr, candidates))
        raise InputError(
            f"{spec.where}: {named} may both be the text: it has {shown_columns(available)}",
            hint=f"say which {what} with ?{key}=NAME",
        )
    if not candidates:
        return None
    return candidates[0]


# A damaged file may seem to have thousands of columns, or names of thousands of characters.
_MOST_COLUMNS_SHOWN = 20
_LONGEST_NAME_SHOWN = 40


def shown_columns(names: Sequence[str]) -> str:
    """Return the names of columns as they stand in a message: some of them, cut where they are long."""
    shortened = []
    for name in names:
        shortened.append(repr(name[:_LONGEST_NAME_SHOWN]))
    return some(shortened, _MOST_COLUMNS_SHOWN)


def _hint_at_similar(wanted: Sequence[str], available: Sequence[str]) -> str | None:
    """Return a hint at the names that are most similar to the wanted ones, ignoring case; None where there are none.

    Args:
        wanted: names that are not there.
        available: names that are.
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


def read_text(spec: Spec, limit: int | None) -> tuple[Dataset, RawLabels]:
    """Open a text file (UTF-8).

    The text is in the column (or under the key) ``text``, ``sentence``, ``text_a`` or ``sentence1``, the second of a
    pair in ``text_b`` or ``sentence2``, the label in ``label``; ``?text=``, ``?text_b=`` and ``?label=`` name others.
    With ``?text=``, only ``?text_b=`` makes pairs. ``?columns=label,text`` names the columns of a ``.csv`` or ``.tsv``
    without a header. A byte order mark at the start of those two is passed over; JSON has none.

    Labels are integers or names; in ``.csv`` and ``.tsv`` they are integers if all of them look like it, and an empty
    field is a missing label. With ``limit``, nothing behind the first ``limit`` rows is read: neither errors nor
    names of classes.

    Args:
        spec: of the file.
        limit: how many rows, the first ones; None: all.

    Raises:
        InputError: for a file that cannot be read, with line and byte of what is not UTF-8, for columns that are not
            there, and listing the rows that are broken, have no text, or are pairs among single texts.
        UsageError: for Parquet without pyarrow.
    """
    table = open_table(spec, TEXT_QUERY)
    file_name = printable(Path(spec.path).name)
    return read_table(spec, table, limit, file_name)


def read_table(spec: Spec, table: TextTable, limit: int | None, name: str) -> tuple[Dataset, RawLabels]:
    """Open the texts of the rows of a table; the ids are ``name#0``, ``name#1``, ...

    Args:
        spec: of the data, which may name columns.
        table: its columns and rows.
        limit: how many rows are read, the first ones; None: all.
        name: what the ids begin with.

    Returns:
        The texts, and their labels before they are mapped to the classes of a model.

    Raises:
        InputError: for columns that are not there, and listing the rows that are broken or have no text.
    """
    if table.columns:
        columns = choose_columns(spec, table.columns)
        collector = _Collector(spec, columns)
        rows = table.rows(columns.needed(table.columns))
    else:  # every row has keys of its own: the first one decides
        collector = _Collector(spec)
        rows = table.rows(())
    collector.collect(rows, limit)
    if not collector.texts:
        raise InputError(f"{spec.where}: no texts in the file")
    ids = [f"{name}#{i}" for i in range(len(collector.texts))]
    dataset = Texts(spec.text, spec.where, ids, collector.texts)
    raw = _labels_of_rows(collector, ids, plain=table.plain)
    return dataset, raw


@dataclass
class _Collector:
    """Texts and labels of the rows so far, and what is wrong with them.

    Attributes:
        spec: of the file.
        columns: what to read; None until the first row where every row has keys of its own.
        texts, labels: one for each row; a label is None where there is none.
        keys: those of the first row.
        problems: one line for each row that cannot be read.
    """

    spec: Spec
    columns: Columns | None = None
    texts: list[Text] = field(default_factory=list)
    labels: list[Any] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def collect(self, rows: Iterator[TextRow], limit: int | None) -> None:
        """Take the texts and labels of the first ``limit`` rows.

        Raises:
            InputError: listing the broken rows, of which reading stops at :data:`MOST_PROBLEMS`.
        """
        for count, row in enumerate(rows, start=1):
            self._add(row)
            is_enough = count == limit or len(self.problems) == MOST_PROBLEMS
            if is_enough:
                break
        if not self.problems:
            return
        broken = f"{len(self.problems)} rows"
        if len(self.problems) == 1:
            broken = "1 row"
        elif len(self.problems) == MOST_PROBLEMS:
            broken = f"{MOST_PROBLEMS} or more rows"
        raise InputError(f"{self.spec.where}: {broken} cannot be read", problems=self.problems)

    def _add(self, row: TextRow) -> None:
        """Add the text and the label of a row, or the problem with it.

        Of the first row the keys are kept, and the columns are chosen by them where the file has no header.
        """
        if row.problem:
            self.problems.append(f"{row.place} {row.problem}")
            return
        if not self.keys:
            self.keys = list(row.values)
        if self.columns is None:
            self.columns = choose_columns(self.spec, list(row.values), "key")
        try:
            text = self._text_of(row, self.columns)
        except ValueError as error:
            self.problems.append(f"{row.place} {error}")
            return
        self.texts.append(text)
        label = row.values.get(self.columns.label)
        if type(label) is str:
            label = sys.intern(label)  # thousands of rows share a few names
        self.labels.append(label)

    def _text_of(self, row: TextRow, columns: Columns) -> Text:
        """Return the text of one row, or its pair of texts where the file is of pairs.

        Raises:
            ValueError: where it is not there, is no text, or is a pair among single texts.
        """
        text = self._text_in_column(row, columns.text)
        if columns.text_b is not None:
            second = self._text_in_column(row, columns.text_b, hint=", and other rows are pairs")
            return text, second
        for column in columns.others:
            if row.values.get(column) is not None:
                raise ValueError(f"is a pair with {column!r}, and other rows are single texts")
        return text

    def _text_in_column(self, row: TextRow, column: str, hint: str = "") -> str:
        """Return the text that a row has in a column.

        Raises:
            ValueError: where it has none, with ``hint`` at the end; or something else.
        """
        value = row.values.get(column)
        if value is None:
            raise ValueError(f"has no {column!r}{hint}")
        if not isinstance(value, str):
            raise ValueError(f"has {shown(value)} for {column!r}, which is no text")
        return value


def _labels_of_rows(collector: _Collector, ids: Sequence[str], *, plain: bool) -> RawLabels:
    """Return the labels of the rows: integers, or names; with a hint at the columns where there are none.

    Args:
        collector: the rows.
        ids: of the samples.
        plain: whether the file has no numbers but only texts; labels that all look like integers are integers then.
    """
    columns = collector.columns
    assert columns is not None  # there is a row
    labels = [_without_spaces(label) for label in collector.labels]
    given_labels = [label for label in labels if label is not None]
    is_asked_and_missing = columns.label_asked and columns.label not in collector.keys
    if not given_labels and is_asked_and_missing:
        return RawLabels(problems=[f"no row has {columns.label!r}, which ?label= names"])
    listed = ", ".join(collector.keys[:_MOST_COLUMNS_SHOWN])
    hint = f"the rows have {listed}: name what holds the labels with ?label=NAME"
    are_integers = plain and all(INTEGER.fullmatch(text) for text in given_labels)
    if not are_integers:
        return raw_labels(labels, ids, hint=hint)
    integers = [None if text is None else int(text) for text in labels]
    return raw_labels(integers, ids, hint=hint, texts=labels)


def _without_spaces(label: Any) -> Any:
    """Return a label without the spaces around it; None for an empty field, which is a missing label."""
    if not isinstance(label, str):
        return label
    return label.strip() or None


def report_cut(dataset: Dataset, collate: Any, log: Log, indices: Sequence[int] | None = None) -> int | None:
    """Count the texts that a model cuts, and warn of them.

    Args:
        dataset: texts or images.
        collate: makes the inputs of the model; for texts, its ``cut`` counts those that have more tokens than its
            ``max_length``.
        log: where to warn.
        indices: the samples to look at; None: all.

    Returns:
        How many are cut; None for images, which are never cut.
    """
    if dataset.kind != "text":
        return None
    if indices is None:
        indices = range(len(dataset))
    cut: int = collate.cut(dataset[i] for i in indices)
    if cut:
        verb = "is" if cut == 1 else "are"
        log.warn(
            f"{dataset.where}: {cut} of {len(indices)} texts {verb} longer than {collate.max_length} tokens, "
            "and what is behind them is not read"
        )
    return cut
