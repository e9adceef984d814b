"""Writes predictions with one line or row for each sample: ``.jsonl``, or ``.csv`` with a header."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from hydractl.files.atomic import Output, write_with
from hydractl.metrics.samples import Samples
from hydractl.model.prediction import Prediction

LineValue = str | int | float | None

ClassNames = Sequence[str] | range
"""The name of each class; classes without names are called by their numbers."""

FIELDS = ("id", "label", "predicted", "confidence", "entropy", "mi", "ood_score")
FLAG = "is_ood"
"""An additional field, if there is a threshold."""
CUT = "cut"
"""An additional field of texts: whether the model does not read the end of it."""

_BLOCK = 4096
"""The number of samples whose lines are made together."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}


def write_lines(
    output: Output,
    samples: Samples,
    ids: Sequence[str],
    names: ClassNames,
    threshold: float | None,
) -> Path:
    """Write one line or row for each sample.

    Args:
        output: the file.
        samples: the predictions for all samples.
        ids: the id of each sample.
        names: the names of the classes.
        threshold: samples with at least this OOD score are flagged as ``is_ood``; None leaves the field out.
    """
    fields: tuple[str, ...] = FIELDS
    flags = None
    if threshold is not None:
        fields = (*FIELDS, FLAG)
        if samples.score is not None:
            flags = samples.score >= threshold
    lines = lines_of(
        samples,
        ids=ids,
        labels=samples.labels,
        names=names,
        ood_score=samples.score,
        is_ood=flags,
    )
    return write_rows(output, lines, fields)


def write_rows(output: Output, rows: Iterable[Mapping[str, object]], fields: Sequence[str]) -> Path:
    """Write rows one after another, as CSV if the file has such an ending, otherwise as JSON lines.

    Args:
        output: the file.
        rows: for each sample the values of all fields, by the name of the field.
        fields: the names of the fields, in the order of the columns.
    """
    is_csv = output.path.suffix.lower() == ".csv"

    def write_file(handle: IO[bytes]) -> None:
        if is_csv:
            _write_csv(handle, rows, fields)
        else:
            _write_json_lines(handle, rows)

    return write_with(output, write_file)


def lines_of(
    answers: Samples | Prediction,
    *,
    ids: Sequence[str],
    labels: NDArray[np.int64] | None,
    names: ClassNames,
    ood_score: Any,
    is_ood: Any,
    more: Mapping[str, Sequence[Any]] = {},
) -> Iterator[dict[str, Any]]:
    """Yield one dict of fields for each sample: those in :data:`FIELDS`, a flag where there are flags, and ``more``.

    Entropy and mutual information are in nats.

    Args:
        answers: the predictions for all samples.
        ids: the id of each sample.
        labels: the true class of each sample, below 0 if it has none; None for unlabelled data.
        names: the names of the classes.
        ood_score: the OOD score of each sample, an array or tensor; None if there is none.
        is_ood: the flag of each sample, an array or tensor; None for no flags.
        more: further fields by name, with the value of each sample.
    """
    # Columns become lists a block at a time: reading single numbers from arrays would take longer than running a small
    # model, and lists of a whole data set would take much memory.
    for start in range(0, len(ids), _BLOCK):
        rows = slice(start, start + _BLOCK)
        block_ids = ids[rows]
        true_names: list[str | int | None] = [None] * len(block_ids)
        if labels is not None:
            true_names = [None if label < 0 else names[label] for label in labels[rows].tolist()]
        columns: dict[str, Sequence[Any]] = {
            "id": block_ids,
            "label": true_names,
            "predicted": [names[index] for index in answers.predicted[rows].tolist()],
            "confidence": answers.confidence[rows].tolist(),
            "entropy": answers.entropy[rows].tolist(),
            "mi": answers.mi[rows].tolist(),
            "ood_score": [None] * len(block_ids) if ood_score is None else ood_score[rows].tolist(),
        }
        if is_ood is not None:
            columns[FLAG] = is_ood[rows].tolist()
        for name, values in more.items():
            columns[name] = values[rows]
        for values_of_sample in zip(*columns.values(), strict=True):
            yield dict(zip(columns, values_of_sample, strict=True))


def json_line(row: Mapping[str, object]) -> str:
    """Return a row as one line of JSON, including the line break."""
    return json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"


def _write_json_lines(handle: IO[bytes], rows: Iterable[Mapping[str, object]]) -> None:
    for row in rows:
        handle.write(json_line(row).encode("utf-8"))


def _write_csv(handle: IO[bytes], rows: Iterable[Mapping[str, object]], names: Sequence[str]) -> None:
    """Write a header line with the names, then one line for each row; ``handle`` stays open."""
    text = io.TextIOWrapper(handle, encoding="utf-8", newline="", write_through=True)
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        cells = {name: _cell(value) for name, value in row.items()}
        writer.writerow(cells)
    text.detach()  # otherwise the wrapper would close the handle when it is deleted


def _cell(value: Any) -> LineValue:
    """Return a value as it is safe in a CSV file that a spreadsheet may open.

    A list becomes JSON. A text that a spreadsheet would read as a formula gets a leading ``'``, and control characters
    are written like ``\\x07``. Source: OWASP, "CSV injection".
    """
    if isinstance(value, list):
        value = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if not isinstance(value, str):
        return value
    printable = value.translate(_CONTROLS)
    if value.startswith(_FORMULA):
        return "'" + printable
    return printable
