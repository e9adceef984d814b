"""The two tables of a study, described once; terminal, report and pages show the same cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hydractl.files.eval_answer import OodAverage, OodDetection, SampleMetrics, average_of
from hydractl.files.study_answer import StudyAnswer, StudyRowRecord
from hydractl.report.eval_tables import single_number
from hydractl.report.texts import number

DIGITS = 3
_OF_ID = {"accuracy": "accuracy", "NLL": "nll", "ECE": "ece"}
"""The metric of each column on ID data, by the title of the column."""
_OF_OOD: dict[str, tuple[OodAverage, str]] = {
    "near AUROC": ("near_avg", "auroc"),
    "far AUROC": ("far_avg", "auroc"),
    "AUROC": ("ood_avg", "auroc"),
    "FPR95": ("ood_avg", "fpr95"),
}
"""The average over sets and the metric of each column on OOD data, by the title of the column."""


@dataclass(frozen=True)
class StudyTable:
    """One table: its title, its columns, and the cells of each row, beginning with its name."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def study_tables(study: StudyAnswer) -> list[StudyTable]:
    """Return the table of all rows under one common score, and the table of each row under its own score."""
    return [_table_under_one_score(study), _table_under_own_scores(study)]


def _table_under_one_score(study: StudyAnswer) -> StudyTable:
    """Return the table of the unchanged single model and all rows, under the single model's score.

    The row to use is marked.
    """
    baseline = study.baseline
    figures_of_baseline = [*_id_cells(baseline.id), *_ood_cells(baseline)]
    rows = [["single, MSP, no temperature", "1.00", *figures_of_baseline]]
    for row in study.rows:
        ratio = "-"
        if row.mac_ratio is not None:
            ratio = f"{row.mac_ratio:.2f}"

        detection: OodDetection = OodDetection()  # empty, shown as dashes, if the row does not have the common score
        if row.common is not None:
            detection = row.common
        figures = [*_id_cells(row.test.id), *_ood_cells(detection)]
        rows.append([_marked_name(row), ratio, *figures])

    score = study.common_score
    title = f"test data, all rows with their temperature and under the score of the single model, {score}; * is best.st"
    return StudyTable(title, ["", "mult-adds", *_OF_ID, *_OF_OOD], rows)


def _table_under_own_scores(study: StudyAnswer) -> StudyTable:
    """Return the table of each row under its own score, chosen on validation data, with the rates of its trainings."""
    has_trainings = any(row.lr for row in study.rows)
    rows = []
    for row in study.rows:
        auroc = _validation_auroc(row, study.choice.telling)
        auroc_text = number(auroc, DIGITS)
        on_test = _ood_cells(row.test)
        cells = [_marked_name(row), row.score, auroc_text, *on_test]
        if has_trainings:
            cells.append(_learning_rates_text(row.lr))
        rows.append(cells)
    titles = ["", "score", "validation AUROC", *_OF_OOD]
    if has_trainings:
        titles.append("learning rate")
    return StudyTable("test data, each row under its own score", titles, rows)


def _learning_rates_text(rates: Sequence[float] | None) -> str:
    """Return the learning rates of the trainings of a row, one where all are the same; a dash without trainings."""
    if not rates:
        return "-"
    texts = [f"{rate:g}" for rate in rates]
    if len(set(texts)) == 1:
        texts = texts[:1]
    return ", ".join(texts)


def _validation_auroc(row: StudyRowRecord, sets: Sequence[str]) -> float | None:
    """Return the mean AUROC of a row under its own score over these OOD validation sets; None if there are no sets."""
    auroc_of_sets = row.validation.auroc[row.score]
    aurocs: list[float] = []
    for name in sets:
        auroc = auroc_of_sets[name]
        assert auroc is not None  # a set without an AUROC is not among those that choose
        aurocs.append(auroc)
    if not aurocs:
        return None
    return sum(aurocs) / len(aurocs)


def _marked_name(row: StudyRowRecord) -> str:
    """Return the name of a row; the row to use has a mark after it."""
    if row.used:
        return f"{row.name} *"
    return row.name


def _id_cells(measured: SampleMetrics) -> list[str]:
    """Return the accuracy, the NLL and the ECE as cells; dashes for data without labels."""
    cells = []
    for key in _OF_ID.values():
        value = single_number(measured.metrics.get(key))
        cells.append(number(value, DIGITS))
    return cells


def _ood_cells(detection: OodDetection) -> list[str]:
    """Return the near, far and mean AUROC and the mean FPR95 as cells; a dash for what was not measured."""
    cells = []
    for average, key in _OF_OOD.values():
        means = average_of(detection, average)
        value = single_number(means.get(key))
        cells.append(number(value, DIGITS))
    return cells
