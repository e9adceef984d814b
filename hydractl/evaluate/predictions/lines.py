"""Predictions as lines: ``.jsonl`` or ``.csv``, one sample each."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from hydractl.files.atomic import Output, write_with
from hydractl.metrics.samples import Samples

FIELDS = ("id", "label", "confidence", "entropy", "mi", "ood_score")
FLAG = "is_ood"
"""A field more, where a threshold is known."""


def sample_rows(
    samples: Samples, ids: Sequence[str], labels: Sequence[str] | None, threshold: float | None = None
) -> Iterator[dict[str, Any]]:
    """One mapping per sample: predicted label, its probability, entropy and mutual information (nats), OOD score.

    Args:
        samples: N of them.
        ids: their ids.
        labels: class names; without them the label is the class index.
        threshold: OOD scores from here on are ``is_ood``; None: nothing is said of it.
    """
    for i, sample in enumerate(ids):
        top = int(samples.predicted[i])
        row = {
            "id": sample,
            "label": top if labels is None else labels[top],
            "confidence": float(samples.confidence[i]),
            "entropy": float(samples.entropy[i]),
            "mi": float(samples.mi[i]),
            "ood_score": float(samples.score[i]),
        }
        if threshold is not None:
            row[FLAG] = bool(samples.score[i] >= threshold)
        yield row


def write_lines(
    output: Output,
    samples: Samples,
    ids: Sequence[str],
    labels: Sequence[str] | None,
    threshold: float | None = None,
) -> Path:
    """Write ``.jsonl``, or ``.csv`` with a line of names first; the arguments are those of :func:`sample_rows`."""
    rows = sample_rows(samples, ids, labels, threshold)

    def lines(handle: IO[bytes]) -> None:
        if output.path.suffix == ".csv":
            text = io.TextIOWrapper(handle, encoding="utf-8", newline="", write_through=True)
            names = FIELDS if threshold is None else (*FIELDS, FLAG)
            writer = csv.DictWriter(text, names, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
            text.detach()
            return
        for row in rows:
            handle.write((json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8"))

    return write_with(output, lines)
