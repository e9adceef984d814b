"""Predictions as files: one line per sample for people and scripts, or all member logits for later analysis."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hydractl.atomic import Output, write_with

if TYPE_CHECKING:
    import numpy as np

FIELDS = ("id", "label", "confidence", "entropy", "mi", "ood_score")


def sample_rows(
    logits: np.ndarray, ids: Sequence[str], labels: Sequence[str] | None, ood_score: str
) -> Iterator[dict[str, Any]]:
    """One mapping per sample: predicted label, its probability, entropy and mutual information (nats), OOD score.

    Args:
        logits: member logits ``[M, N, C]``.
        ids: sample ids, N of them.
        labels: class names; without them the label is the class index.
        ood_score: which score of ``hydractl.metrics.ood`` (higher = more out of distribution).
    """
    import numpy as np

    from hydractl.metrics.ood import OOD_SCORES
    from hydractl.metrics.probabilities import pooled_log_probs

    probability = np.exp(pooled_log_probs(logits))
    entropy, mi, score = OOD_SCORES["entropy"](logits), OOD_SCORES["mi"](logits), OOD_SCORES[ood_score](logits)
    top = probability.argmax(-1)
    for i, sample in enumerate(ids):
        yield {
            "id": sample,
            "label": int(top[i]) if labels is None else labels[int(top[i])],
            "confidence": float(probability[i, top[i]]),
            "entropy": float(entropy[i]),
            "mi": float(mi[i]),
            "ood_score": float(score[i]),
        }


def write_predictions(
    output: Output, logits: np.ndarray, dataset: Any, labels: Sequence[str] | None, ood_score: str
) -> Path:
    """Write ``.jsonl`` or ``.csv`` (one line per sample) or ``.st`` (member logits, true labels, ids)."""
    suffix = output.path.suffix
    if suffix == ".st":
        return _write_tensors(output, logits, dataset, labels)
    rows = sample_rows(logits, dataset.ids, labels, ood_score)

    def lines(handle: IO[bytes]) -> None:
        if suffix == ".csv":
            text = io.TextIOWrapper(handle, encoding="utf-8", newline="", write_through=True)
            writer = csv.DictWriter(text, FIELDS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
            text.detach()
            return
        for row in rows:
            handle.write((json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8"))

    return write_with(output, lines)


def _write_tensors(output: Output, logits: np.ndarray, dataset: Any, labels: Sequence[str] | None) -> Path:
    import numpy as np
    import torch

    from hydractl.checkpoint import DictTensors, write_tensors

    tensors = {"logits": torch.from_numpy(np.ascontiguousarray(logits))}
    if dataset.labels is not None:
        tensors["labels"] = torch.from_numpy(np.asarray(dataset.labels, dtype=np.int64))
    description = {
        "schema": "hydractl.predictions/1",
        "ids": list(dataset.ids),
        "labels": None if labels is None else list(labels),
        "data": dataset.fingerprint(),
    }

    def write(handle: IO[bytes]) -> None:
        write_tensors(handle, DictTensors(tensors), description)

    return write_with(output, write)
