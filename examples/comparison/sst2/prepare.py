"""The data sets of the study: validation rows, training phrases that nothing is measured on, the first of OOD sets.

The files named below are JSON lines with ``text`` (or ``text_a`` and ``text_b``) and ``label``.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

TRAIN, TEST = "sst2_train", "sst2_test"
VALIDATION = 3000
"""The first rows of the training set, as in the paper; the last of them are for temperatures alone."""
CALIBRATION = 500
OOD = ("customer_reviews", "trec", "20ng", "mnli_matched_1000", "rte_dev", "wmt16")
OOD_VALIDATION = "agnews_val"


def lines(path: Path) -> list[str]:
    """The rows of a file, as they are."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return list(file)


def write(path: Path, rows: Iterable[str]) -> None:
    """Compressed without a time of day, so that the same rows are the same bytes."""
    with open(path, "wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=0) as file:
        file.writelines(row.encode("utf-8") for row in rows)


def content(row: str) -> str:
    """The text of a row without what letters' case and spaces make different."""
    return " ".join(json.loads(row)["text"].lower().split())


def prepare(data: Path, runs: Path, study: dict[str, Any], model: str | None, step: Callable[..., str]) -> str:
    """Cut the data sets, unless that is done, and give the MODEL of the study: the one that was named."""
    if model is None:
        sys.exit("name a MODEL that was fine-tuned on SST-2")
    if not (runs / "data" / "overlap.json").exists():
        cut(data, runs / "data", int(study["train"]), int(study["ood"]))
    return model


def cut(data: Path, folder: Path, train_rows: int, ood_rows: int) -> dict[str, int]:
    """Write the parts, and say how many rows of the training set are in another part as well.

    Args:
        data: the folder of the data sets.
        folder: where the parts go.
        train_rows: phrases to fine-tune on: the first ones that are no test sentence and no validation row.
        ood_rows: the first rows of every OOD set that is tested on.
    """
    folder.mkdir(parents=True, exist_ok=True)
    train, test = lines(data / f"{TRAIN}.jsonl.gz"), lines(data / f"{TEST}.jsonl.gz")
    chosen, rest = train[:VALIDATION], train[VALIDATION:]
    tested, validated = ({content(row) for row in rows} for rows in (test, chosen))
    report = {
        "validation rows that are test sentences": sum(content(row) in tested for row in chosen),
        "training phrases that are test sentences": sum(content(row) in tested for row in rest),
        "training phrases that are validation rows": sum(content(row) in validated for row in rest),
    }
    parts = {
        "val": chosen[:-CALIBRATION],
        "calibration": chosen[-CALIBRATION:],
        "train": list(islice((row for row in rest if content(row) not in tested | validated), train_rows)),
        "test": test,
        OOD_VALIDATION: lines(data / f"{OOD_VALIDATION}.jsonl.gz"),
    }
    parts.update({name: lines(data / f"{name}.jsonl.gz")[:ood_rows] for name in OOD})
    for name, rows in parts.items():
        write(folder / f"{name}.jsonl.gz", rows)
    (folder / "overlap.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return report
