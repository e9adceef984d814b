"""Writes predictions with one line or row for each sample: ``.jsonl``, ``.csv`` with a header, or ``.parquet``."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from hydractl.data.parquet_rows import write_predictions_parquet
from hydractl.files.atomic import Output, write_with
from hydractl.metrics.samples import Samples

LineValue = str | int | float | None

FIELDS = ("id", "label", "predicted", "confidence", "entropy", "mi", "ood_score")
FLAG = "is_ood"
"""An additional field, if there is a threshold."""

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}


def write_lines(
    output: Output,
    samples: Samples,
    ids: Sequence[str],
    labels: Sequence[str] | None,
    threshold: float | None = None,
) -> Path:
    """Write one line or row for each sample.

    Args:
        output: the file.
        samples: the predictions for all samples.
        ids: the id of each sample.
        labels: the names of the classes; None writes classes as numbers.
        threshold: samples with at least this OOD score are flagged as ``is_ood``; None leaves the field out.
    """
    rows = _sample_rows(samples, ids, labels, threshold)
    fields: tuple[str, ...] = FIELDS
    if threshold is not None:
        fields = (*FIELDS, FLAG)

    return write_rows(output, rows, fields)


def write_rows(
    output: Output, rows: Iterable[Mapping[str, object]], fields: Sequence[str], *, named_classes: bool = True
) -> Path:
    """Write rows one after another, as CSV or Parquet if the file has such an ending, otherwise as JSON lines.

    Args:
        output: the file.
        rows: for each sample the values of all fields, by the name of the field.
        fields: the names of the fields, in the order of the columns.
        named_classes: whether classes are written as names; otherwise they are numbers. Only Parquet needs this.
    """
    suffix = output.path.suffix.lower()

    def write_file(handle: IO[bytes]) -> None:
        if suffix == ".csv":
            _write_csv(handle, rows, fields)
        elif suffix == ".parquet":
            write_predictions_parquet(handle, rows, fields, named_classes=named_classes)
        else:
            _write_json_lines(handle, rows)

    return write_with(output, write_file)


def _sample_rows(
    samples: Samples, ids: Sequence[str], labels: Sequence[str] | None, threshold: float | None
) -> Iterator[dict[str, LineValue]]:
    """Yield one dict of fields for each sample: those in :data:`FIELDS`, and :data:`FLAG` if there is a threshold.

    The label is None for unlabelled data. Entropy and mutual information are in nats. Without an OOD score
    ``ood_score`` is None, and there is no flag.

    Args:
        samples: the predictions for all samples.
        ids: the id of each sample.
        labels: the names of the classes; None gives classes as numbers.
        threshold: samples with at least this OOD score are flagged; None means no flags.
    """
    for index, sample_id in enumerate(ids):
        label = None
        if samples.labels is not None:
            label = _class_name(int(samples.labels[index]), labels)
        predicted = _class_name(int(samples.predicted[index]), labels)
        row: dict[str, LineValue] = {
            "id": sample_id,
            "label": label,
            "predicted": predicted,
            "confidence": float(samples.confidence[index]),
            "entropy": float(samples.entropy[index]),
            "mi": float(samples.mi[index]),
            "ood_score": None,
        }
        if samples.score is not None:
            score = samples.score[index]
            row["ood_score"] = float(score)
            if threshold is not None:
                row[FLAG] = bool(score >= threshold)
        yield row


def _class_name(index: int, labels: Sequence[str] | None) -> str | int:
    """Return the name of a class, or its number if there are no names."""
    if labels is None:
        return index
    return labels[index]


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
