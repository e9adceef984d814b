"""The two tables of a study, described once: terminal, report and pages show the same cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydractl.files.eval_answer import OodAverage, OodDetection, SampleMetrics, average_of
from hydractl.report.eval_tables import single_number
from hydractl.report.texts import number

DIGITS = 3
_OF_ID = {"accuracy": "accuracy", "NLL": "nll", "ECE": "ece"}
"""The titles of the columns on ID data, and the metrics under them."""
_OF_OOD: dict[str, tuple[OodAverage, str]] = {
    "near AUROC": ("near_avg", "auroc"),
    "far AUROC": ("far_avg", "auroc"),
    "AUROC": ("ood_avg", "auroc"),
    "FPR95": ("ood_avg", "fpr95"),
}
"""The titles of the columns on OOD data, and the averages over sets and metrics under them."""


@dataclass(frozen=True)
class StudyTable:
    """One table: its title, its columns, and for each row its cells, the name first."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def study_tables(study: Mapping[str, Any]) -> list[StudyTable]:
    """Return the rows under one score, then each row under its own."""
    return [_same_score(study), _own_scores(study)]


def _same_score(study: Mapping[str, Any]) -> StudyTable:
    """Return all rows under the score of the single model, behind that model as it is, the row to use marked."""
    baseline = study["baseline"]
    rows = [["single, MSP, no temperature", "1.00", *_id_cells(baseline), *_ood_cells(baseline)]]
    for row in study["rows"]:
        ratio = "-" if row["mac_ratio"] is None else f"{row['mac_ratio']:.2f}"
        rows.append([_marked_name(row), ratio, *_id_cells(row["test"]), *_ood_cells(row["common"] or {})])
    score = study["common_score"]
    title = f"test data, all rows with their temperature and under the score of the single model, {score}; * is best.st"
    return StudyTable(title, ["", "mult-adds", *_OF_ID, *_OF_OOD], rows)


def _own_scores(study: Mapping[str, Any]) -> StudyTable:
    """Return each row under the score that validation data gave it."""
    telling = study["choice"]["telling"]
    rows = []
    for row in study["rows"]:
        auroc_of_sets = row["validation"]["auroc"][row["score"]]
        known = [auroc_of_sets[name] for name in telling]
        mean = sum(known) / len(known) if known else None
        rows.append([_marked_name(row), row["score"], number(mean, DIGITS), *_ood_cells(row["test"])])
    return StudyTable("test data, each row under its own score", ["", "score", "validation AUROC", *_OF_OOD], rows)


def _marked_name(row: Mapping[str, Any]) -> str:
    name = str(row["name"])
    return f"{name} *" if row["used"] else name


def _id_cells(block: Mapping[str, Any]) -> list[str]:
    """Return accuracy, NLL and ECE; dashes for data without labels."""
    metrics = SampleMetrics.from_json(block.get("id") or {}).metrics
    return [number(single_number(metrics.get(key)), DIGITS) for key in _OF_ID.values()]


def _ood_cells(block: Mapping[str, Any]) -> list[str]:
    """Return the detection of OOD samples; dashes where a row has not the score."""
    detection = OodDetection.from_json(block)
    cells = []
    for average, key in _OF_OOD.values():
        value = single_number(average_of(detection, average).get(key))
        cells.append(number(value, DIGITS))
    return cells
