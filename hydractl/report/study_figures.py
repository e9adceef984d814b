"""The two tables of a study, described once: terminal, report and pages show the same cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydractl.report.eval_tables import at
from hydractl.report.texts import number

DIGITS = 3
_OF_ID = (("accuracy", "accuracy"), ("NLL", "nll"), ("ECE", "ece"))
_OF_OOD = (
    ("near AUROC", "near_avg", "auroc"),
    ("far AUROC", "far_avg", "auroc"),
    ("AUROC", "ood_avg", "auroc"),
    ("FPR95", "ood_avg", "fpr95"),
)


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
    """All rows under the score of the single model, behind the single model as it is, the row to use marked."""
    columns = ["", "mult-adds", *(title for title, _ in _OF_ID), *(title for title, *_ in _OF_OOD)]
    baseline = study["baseline"]
    rows = [["single, MSP, no temperature", "1.00", *_id_cells(baseline), *_ood_cells(baseline)]]
    for row in study["rows"]:
        ratio = "-" if row["mac_ratio"] is None else f"{row['mac_ratio']:.2f}"
        rows.append([_marked(row), ratio, *_id_cells(row["test"]), *_ood_cells(row["common"] or {})])
    title = (
        f"test data, all rows with their temperature and under the score of the single model, {study['common_score']}"
    )
    return StudyTable(f"{title}; * is best.st", columns, rows)


def _own_scores(study: Mapping[str, Any]) -> StudyTable:
    """Each row under the score that validation data gave it."""
    columns = ["", "score", "validation AUROC", *(title for title, *_ in _OF_OOD)]
    telling = study["choice"]["telling"]
    rows = []
    for row in study["rows"]:
        by_set = row["validation"]["auroc"][row["score"]]
        known = [by_set[name] for name in telling]
        mean = sum(known) / len(known) if known else None
        rows.append([_marked(row), row["score"], number(mean, DIGITS), *_ood_cells(row["test"])])
    return StudyTable("test data, each row under its own score", columns, rows)


def _marked(row: Mapping[str, Any]) -> str:
    return f"{row['name']} *" if row["used"] else str(row["name"])


def _id_cells(block: Mapping[str, Any]) -> list[str]:
    """Accuracy, NLL and ECE; dashes for data without labels."""
    return [number(at(block, "id", key), DIGITS) for _, key in _OF_ID]


def _ood_cells(block: Mapping[str, Any]) -> list[str]:
    """The detection of OOD samples; dashes where a row has not the score."""
    return [number(at(block, group, key), DIGITS) for _, group, key in _OF_OOD]
