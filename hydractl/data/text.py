"""Texts and pairs of texts in ``.csv``, ``.tsv``, ``.jsonl`` (each also ``.gz``) and ``.parquet`` files."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hydractl.data.base import Dataset
from hydractl.data.labels import RawLabels
from hydractl.data.spec import Spec
from hydractl.data.text_columns import Columns, choose_columns, second_text
from hydractl.data.text_rows import ParquetTable, Row, open_csv, open_jsonl, open_tsv
from hydractl.errors import InputError
from hydractl.jsonio import shown
from hydractl.log import Log

Text = str | tuple[str, str]
"""One text, or a pair."""

QUERY = ("text", "text_b", "label")

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_LARGEST = 2**63 - 1

# Reading stops at this many broken rows: the rest of such a file says no more.
_MOST_PROBLEMS = 20


class Texts(Dataset):
    """Texts, all of them single or all of them pairs.

    Args:
        spec: the SPEC.
        where: what messages call it.
        ids: one per text.
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
        for part in self._parts(i):
            content = part.encode("utf-8")
            yield f"text {len(content)}\n".encode()
            yield content

    def lengths(self) -> list[int]:
        """Characters of each sample, both texts of a pair together."""
        return [sum(map(len, self._parts(i))) for i in range(len(self))]

    def _parts(self, i: int) -> tuple[str, ...]:
        text = self.texts[i]
        return (text,) if isinstance(text, str) else text


def read_text(spec: Spec, limit: int | None) -> tuple[Dataset, RawLabels]:
    """Open a text file (UTF-8).

    The text is in the column (or under the key) ``text``, ``sentence``, ``text_a`` or ``sentence1``, the second of a
    pair in ``text_b`` or ``sentence2``, the label in ``label``; ``?text=``, ``?text_b=`` and ``?label=`` name others.
    With ``?text=``, only ``?text_b=`` makes pairs. ``?columns=label,text`` names the columns of a ``.csv`` or ``.tsv``
    without a header. A byte order mark at the start of those two is passed over; JSON has none.

    Labels are integers or names; in ``.csv`` and ``.tsv`` they are integers if all of them look like it, and an empty
    field is a missing label. With ``limit``, nothing behind the first so many rows is read: neither errors nor names
    of classes.

    Raises:
        InputError: for a file that cannot be read, with line and byte of what is not UTF-8, for columns that are not
            there, and listing the rows that are broken, have no text, or are pairs among single texts.
        UsageError: for Parquet without pyarrow.
    """
    path = Path(spec.path).expanduser()
    name = path.name.lower().removesuffix(".gz")
    tabular = name.endswith((".csv", ".tsv"))
    spec.check_query([*QUERY, "columns"] if tabular else QUERY)
    collector = _Collector(spec)
    if tabular:
        table = open_csv(spec) if name.endswith(".csv") else open_tsv(spec)
        if table.columns:
            collector.columns = choose_columns(spec, table.columns)
        collector.read(table.rows, limit)
    elif name.endswith(".jsonl"):
        collector.read(open_jsonl(spec).rows, limit)
    else:
        parquet = ParquetTable(spec)
        collector.columns = choose_columns(spec, parquet.columns)
        collector.read(parquet.rows(collector.columns.needed(parquet.columns)), limit)
    if not collector.texts:
        raise InputError(f"{spec.where}: no texts in the file")
    file_name = os.fsencode(path.name).decode("utf-8", "backslashreplace")
    return _finished(collector, lambda i: f"{file_name}#{i}", as_text=tabular)


def read_rows(
    spec: Spec, rows: Iterator[Row], limit: int | None, columns: Columns, name: Callable[[int], str]
) -> tuple[Dataset, RawLabels]:
    """Texts of rows from elsewhere, whose values have types; ``name`` gives the id of each.

    Raises:
        InputError: listing the rows that have no text, or are pairs among single texts.
    """
    collector = _Collector(spec, columns)
    collector.read(rows, limit)
    return _finished(collector, name, as_text=False)


def _finished(collector: _Collector, name: Callable[[int], str], *, as_text: bool) -> tuple[Dataset, RawLabels]:
    spec = collector.spec
    dataset = Texts(spec.text, spec.where, [name(i) for i in range(len(collector.texts))], collector.texts)
    return dataset, _raw_labels(collector, dataset.ids, as_text=as_text)


@dataclass
class _Collector:
    """Texts and labels of the rows so far, and what is wrong with them."""

    spec: Spec
    columns: Columns | None = None
    texts: list[Text] = field(default_factory=list)
    labels: list[Any] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def read(self, rows: Iterator[Row], limit: int | None) -> None:
        """Take the first ``limit`` rows.

        Raises:
            InputError: listing the broken rows.
        """
        for count, row in enumerate(rows, start=1):
            self._take(row)
            if count == limit or len(self.problems) == _MOST_PROBLEMS:
                break
        if self.problems:
            broken = len(self.problems)
            more = " or more" if broken == _MOST_PROBLEMS else ""
            raise InputError(
                f"{self.spec.where}: {broken}{more} {'row' if broken == 1 and not more else 'rows'} cannot be read",
                problems=self.problems,
            )

    def _take(self, row: Row) -> None:
        if row.problem:
            self.problems.append(f"{row.place} {row.problem}")
            return
        self.keys = self.keys or list(row.values)
        if self.columns is None:
            self.columns = choose_columns(self.spec, list(row.values), what="key", label_may_follow=True)
        try:
            text = self._text(row, self.columns)
        except ValueError as error:
            self.problems.append(f"{row.place} {error}")
            return
        self.texts.append(text)
        label = row.values.get(self.columns.label)
        # Thousands of rows share a few names.
        self.labels.append(sys.intern(label) if type(label) is str else label)

    def _text(self, row: Row, columns: Columns) -> Text:
        """The text of one row.

        Raises:
            ValueError: with the rest of a sentence that starts with the place of the row.
        """
        parts = []
        for name in (columns.text, columns.text_b):
            if name is None:
                continue
            value = row.values.get(name)
            if value is None:
                pair = ", and other rows are pairs" if name == columns.text_b else ""
                raise ValueError(f"has no {name!r}{pair}")
            if not isinstance(value, str):
                raise ValueError(f"has {shown(value)} for {name!r}, which is no text")
            parts.append(value)
        second = second_text(columns, row.values)
        if second is not None:
            raise ValueError(f"is a pair with {second!r}, and other rows are single texts")
        return parts[0] if len(parts) == 1 else (parts[0], parts[1])


def _raw_labels(found: _Collector, ids: Sequence[str], *, as_text: bool) -> RawLabels:
    """The labels of all rows: all integers, all names, or none at all.

    Args:
        found: the rows.
        ids: sample ids, for messages.
        as_text: whether every value is a string whose looks decide.
    """
    values: list[Any] = [(value.strip() or None) if isinstance(value, str) else value for value in found.labels]
    texts: list[Any] | None = None
    if as_text and all(value is None or _INTEGER.fullmatch(value) for value in values):
        texts = values
        values = [None if value is None else int(value) for value in values]
    assert found.columns is not None  # there is a row
    missing = [i for i, value in enumerate(values) if value is None]
    if len(missing) == len(values):
        if found.columns.label_asked and found.columns.label not in found.keys:
            return RawLabels(problems=[f"no row has {found.columns.label!r}, which ?label= names"])
        return RawLabels(hint=_label_hint(found))
    problems = []
    if missing:
        more = f", and for {len(missing) - 1} more" if len(missing) > 1 else ""
        problems.append(f"no label for sample {ids[missing[0]]}{more}")
    numbers = [type(value) is int for value in values]
    wrong = [i for i, value in enumerate(values) if value is not None and type(value) not in (int, str)]
    if wrong:
        value = shown(values[wrong[0]])
        problems.append(f"label {value} of sample {ids[wrong[0]]} is neither an integer nor a name")
    beyond = [i for i, value in enumerate(values) if numbers[i] and not -_LARGEST <= value <= _LARGEST]
    if beyond:
        problems.append(f"the label of sample {ids[beyond[0]]} is beyond 2^63")
    names = [i for i, value in enumerate(values) if isinstance(value, str)]
    if names and any(numbers):
        problems.append(f"label {shown(values[names[0]])} of sample {ids[names[0]]} is a name, others are numbers")
    if problems:
        return RawLabels(problems=problems)
    if names:
        return RawLabels(values, sorted(set(values)))
    return RawLabels(np.array(values, dtype=np.int64), texts=texts)


def _label_hint(found: _Collector) -> str:
    there = ", ".join(found.keys[:_MOST_PROBLEMS])
    return f"the rows have {there}: name what holds the labels with ?label=NAME"


def report_cut(dataset: Dataset, collate: Any, log: Log, indices: Sequence[int] | None = None) -> int | None:
    """Count the texts that a model cuts, and warn of them.

    Args:
        dataset: any data set.
        collate: the model's ``preprocess``.
        log: hears of it.
        indices: the samples that are used; None: all.

    Returns:
        How many are cut; None for images, which are never cut.
    """
    if dataset.kind != "text":
        return None
    used = range(len(dataset)) if indices is None else indices
    cut: int = collate.cut(dataset[i] for i in used)
    if cut:
        verb = "is" if cut == 1 else "are"
        log.warn(
            f"{dataset.where}: {cut} of {len(used)} texts {verb} longer than {collate.max_length} tokens, "
            "and what is behind them is not read"
        )
    return cut
