"""Texts and pairs of texts in ``.csv``, ``.tsv``, ``.jsonl`` (each also ``.gz``) and ``.parquet`` files."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydractl.data.base import Dataset, RowIds
from hydractl.data.files import printable
from hydractl.data.labels import INTEGER, RawLabels, labels_of_column
from hydractl.data.text_rows import MOST_COLUMNS_SHOWN, TextRow, TextTable, open_table, read_rows
from hydractl.errors import InputError
from hydractl.expressions.data_sets import DataSpec

Text = str | tuple[str, str]
"""One text, or a pair of texts."""

TEXT_QUERY = ("text", "text_b", "label")

_LABEL = "label"
_NAMES: Mapping[str, Sequence[str]] = {
    "text": ("text", "sentence", "text_a", "sentence1"),
    "text_b": ("text_b", "sentence2"),
    "label": (_LABEL,),
}
"""Known names for the column of the text, or of the first text of a pair, of the second text, and of the label."""


def parts_of(text: Text) -> tuple[str, ...]:
    """Return the two texts of a pair, or a tuple with the single text."""
    return (text,) if isinstance(text, str) else text


def characters(text: Text) -> int:
    """Return the number of characters of a text, or of both texts of a pair together."""
    return sum(map(len, parts_of(text)))


@dataclass(eq=False, repr=False)
class Texts(Dataset):
    """Texts: all ``str``, or all pairs ``(str, str)``."""

    kind = "text"
    texts: Sequence[Text]

    def _sample(self, i: int) -> Text:
        return self.texts[i]

    def lengths(self) -> list[int]:
        """Return the number of characters of each sample, both texts of a pair together."""
        return list(map(characters, self.texts))


# --- reading ----------------------------------------------------------------------------------------------------------


def read_text(spec: DataSpec, limit: int | None) -> tuple[Dataset, RawLabels]:
    """Open a text file (UTF-8).

    The text is in the column (or under the key) ``text``, ``sentence``, ``text_a`` or ``sentence1``, the second text of
    a pair in ``text_b`` or ``sentence2``, and the label in ``label``. ``?text=``, ``?text_b=`` and ``?label=`` name
    other columns. If ``?text=`` is set, only ``?text_b=`` makes pairs. The first row of ``.csv`` and ``.tsv`` names the
    columns. A byte order mark at the start of these two is skipped; JSON has none.

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
    """Return the texts and labels in the rows of a table; the ids are ``name#0``, ``name#1``, ...

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
    # If the user has named a column of texts (?text=), a second one is not looked for by known names.
    names = dict(_NAMES)
    if "text" in spec.query:
        names["text_b"] = ()
    keys: list[str] = []  # of the first row
    texts: list[Text] = []
    labels: list[Any] = []

    def add(row: TextRow, columns: Mapping[str, str]) -> None:
        """Append the text of a row, or its pair of texts, to ``texts``, and its label or None to ``labels``.

        ``columns`` has the names of the columns ``text``, ``label`` and, in a table of pairs, ``text_b``. A ValueError
        is the end of a sentence on the row.
        """
        if not keys:  # the columns of the first row, for a message
            keys.extend(row.values)
        text = row.text_in(columns["text"])
        if "text_b" in columns:
            texts.append((text, row.text_in(columns["text_b"], hint=", and other rows are pairs")))
        else:  # single texts; no row may have a second one
            for column in names["text_b"]:
                if row.values.get(column) is not None:
                    raise ValueError(f"is a pair with {column!r}, and other rows are single texts")
            texts.append(text)
        label = row.values.get(columns.get("label", _LABEL))
        if isinstance(label, str):
            # Thousands of rows have the same few labels, so each text is kept once. An empty one is a missing label.
            label = sys.intern(label.strip()) or None
        labels.append(label)

    read_rows(spec, table, names, add, limit)
    if not texts:
        raise InputError(f"{spec.where}: no texts in the file")
    dataset = Texts(spec.text, spec.where, RowIds(name, len(texts)), texts)

    label_column = spec.query.get("label", _LABEL)
    given_labels = [label for label in labels if label is not None]
    hint = f"the rows have {', '.join(keys[:MOST_COLUMNS_SHOWN])}: name what holds the labels with ?label=NAME"
    raw = labels_of_column(labels, table.class_names.get(label_column), hint)
    raw.from_text = table.plain and all(INTEGER.fullmatch(text) for text in given_labels)
    return dataset, raw


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


def warning_of_cut(dataset: Dataset, cut: int, total: int | str, max_length: int, texts: str = "texts") -> str:
    """Return the warning of texts that are cut.

    Args:
        dataset: the texts.
        cut: how many are cut, at least one.
        total: how many are read.
        max_length: how many tokens are read of each.
        texts: what they are.
    """
    verb = "is" if cut == 1 else "are"
    return (
        f"{dataset.where}: {cut} of {total} {texts} {verb} longer than {max_length} tokens, and what is behind them is "
        "not read"
    )
