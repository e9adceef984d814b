"""The tables of a study, described once; terminal, report and pages show the same cells."""

from __future__ import annotations

from collections.abc import Sequence

from hydractl.files.eval_answer import OodAverage, OodDetection, SampleMetrics, average_of
from hydractl.files.study_answer import StudyAnswer, StudyRowRecord
from hydractl.report.eval_tables import single_number
from hydractl.report.tables import Table, text_table
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


def study_tables(study: StudyAnswer) -> list[Table]:
    """Return the table of all rows under one common score, and the table of each row under its own score."""
    return [_table_under_one_score(study), _table_under_own_scores(study)]


def _table_under_one_score(study: StudyAnswer) -> Table:
    """Return the table of the unchanged single model and all rows, under the single model's score.

    The row to use is marked.
    """
    baseline = study.baseline
    rows = [["single, MSP, no temperature", "1.00", *_id_cells(baseline.id), *_ood_cells(baseline)]]
    for row in study.rows:
        detection = row.common or OodDetection()  # empty, shown as dashes, if the row does not have the common score
        rows.append([_marked_name(row), number(row.mac_ratio, 2), *_id_cells(row.test.id), *_ood_cells(detection)])
    score = study.common_score
    title = f"test data, all rows with their temperature and under the score of the single model, {score}; * is best.st"
    return text_table(title, ["", "mult-adds", *_OF_ID, *_OF_OOD], rows)


def _table_under_own_scores(study: StudyAnswer) -> Table:
    """Return the table of each row under its own score, chosen on validation data, with the rates of its trainings."""
    has_trainings = any(row.lr for row in study.rows)
    rows = []
    for row in study.rows:
        auroc = number(_validation_auroc(row, study.choice.telling), DIGITS)
        cells = [_marked_name(row), row.score, auroc, *_ood_cells(row.test)]
        if has_trainings:
            cells.append(_learning_rates_text(row.lr))
        rows.append(cells)
    titles = ["", "score", "validation AUROC", *_OF_OOD]
    if has_trainings:
        titles.append("learning rate")
    return text_table("test data, each row under its own score", titles, rows, left=2)


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
    return f"{row.name} *" if row.used else row.name


def _id_cells(measured: SampleMetrics) -> list[str]:
    """Return the accuracy, the NLL and the ECE as cells; dashes for data without labels."""
    return [number(single_number(measured.metrics.get(key)), DIGITS) for key in _OF_ID.values()]


def _ood_cells(detection: OodDetection) -> list[str]:
    """Return the near, far and mean AUROC and the mean FPR95 as cells; a dash for what was not measured."""
    cells = []
    for average, key in _OF_OOD.values():
        value = single_number(average_of(detection, average).get(key))
        cells.append(number(value, DIGITS))
    return cells


def glance(study: StudyAnswer) -> Table | None:
    """Return what the model to use changes, beside the single model with MSP; None if it is that model.

    Each line says in a word whether the paired difference is one.
    """
    (used,) = (row for row in study.rows if row.used)
    before, after = study.baseline, used.test
    found = {finding.metric: finding.kind for finding in study.verdict.against_baseline}
    if used is study.rows[0] and used.score == before.ood_score:
        return None
    lines = []
    for title, key in _AT_A_GLANCE.items():
        place, _, metric = key.partition(".")
        values = []
        for tested in (before, after):
            metrics = tested.id.metrics if place == "id" else average_of(tested, "ood_avg")
            values.append(number(single_number(metrics.get(metric)), DIGITS))
        if values != ["-", "-"]:
            lines.append([title, *values, found.get(key, "")])
    lines.append(["mult-adds", "1.00", number(used.mac_ratio, 2), ""])
    return text_table("", ["", "now (MSP)", f"{used.name}, {used.score}", ""], lines)


_AT_A_GLANCE = {"OOD AUROC": "ood_avg.auroc", "FPR95": "ood_avg.fpr95", "accuracy": "id.accuracy"}
"""The figures that are seen first, by title."""
