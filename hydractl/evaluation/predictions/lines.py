"""Predictions one sample each: ``.jsonl``, ``.csv`` with a line of names first, or the rows of a ``.parquet``."""

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
"""A field more, where a threshold is known."""

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}


def write_lines(
    output: Output,
    samples: Samples,
    ids: Sequence[str],
    labels: Sequence[str] | None,
    threshold: float | None = None,
) -> Path:
    """Write the predictions.

    Args:
        output: the file.
        samples: the predictions on the samples.
        ids: the id of each sample.
        labels: the names of the classes; None where a class is written as its number.
        threshold: the OOD score from which on a sample is ``is_ood``; None leaves that field out.
    """
    rows = _sample_rows(samples, ids, labels, threshold)
    fields: tuple[str, ...] = FIELDS
    if threshold is not None:
        fields = (*FIELDS, FLAG)

    return write_rows(output, rows, fields)


def write_rows(
    output: Output, rows: Iterable[Mapping[str, object]], fields: Sequence[str], *, named_classes: bool = True
) -> Path:
    """Write rows as they come: as CSV or Parquet where the file has that ending, else as JSON lines.

    Args:
        output: the file.
        rows: the value of every field by its name, one mapping for each sample.
        fields: the names of the fields, in the order of the columns.
        named_classes: whether classes are names; else they are numbers.
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
    """Yield one mapping per sample: label (or null), predicted label, its p, entropy and MI (nats), OOD score.

    Where there are both a score and a threshold, it also says whether the score reaches the threshold.
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
    """Return the name of a class; its number where classes have no names."""
    if labels is None:
        return index
    return labels[index]


def json_line(row: Mapping[str, object]) -> str:
    """Return a row as one line of JSON, with its end."""
    return json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"


def _write_json_lines(handle: IO[bytes], rows: Iterable[Mapping[str, object]]) -> None:
    for row in rows:
        handle.write(json_line(row).encode("utf-8"))


def _write_csv(handle: IO[bytes], rows: Iterable[Mapping[str, object]], names: Sequence[str]) -> None:
    """Write a line of the names, then one line for each row; the file stays open."""
    text = io.TextIOWrapper(handle, encoding="utf-8", newline="", write_through=True)
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        cells = {name: _cell(value) for name, value in row.items()}
        writer.writerow(cells)
    text.detach()  # else the handle would be closed with it


def _cell(value: Any) -> LineValue:
    """Return a value for a table that a spreadsheet may open; a list as JSON.

    A text that would be a formula has a ``'`` before it, and control characters are spelled. Source: OWASP, "CSV
    injection".
    """
    if isinstance(value, list):
        value = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if not isinstance(value, str):
        return value
    spelled = value.translate(_CONTROLS)
    if value.startswith(_FORMULA):
        return "'" + spelled
    return spelled
