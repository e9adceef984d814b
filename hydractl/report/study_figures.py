"""The tables of a study, described once; terminal, report and pages show the same cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hydractl.files.results import Record
from hydractl.files.study_answer import StudyAnswer, StudyRowRecord
from hydractl.report.eval_tables import metrics_at, single_number
from hydractl.report.tables import Table, text_table
from hydractl.report.texts import number

DIGITS = 3
_OF_ID = {"accuracy": "id.accuracy", "NLL": "id.nll", "ECE": "id.ece"}
_OF_OOD = {
    "near AUROC": "near_avg.auroc",
    "far AUROC": "far_avg.auroc",
    "AUROC": "ood_avg.auroc",
    "FPR95": "ood_avg.fpr95",
}
"""The dotted key of the metric of each column, by the title of the column."""


def _cells(measured: Record, keys: Iterable[str]) -> list[str]:
    """Return the metrics with these keys as cells; a dash for what was not measured."""
    cells = []
    for key in keys:
        place, _, metric = key.partition(".")
        cells.append(number(single_number(metrics_at(measured, [place]).get(metric)), DIGITS))
    return cells


def study_tables(study: StudyAnswer) -> list[Table]:
    """Return the table of all rows under one common score, and the table of each row under its own score."""
    return [_table_under_one_score(study), _table_under_own_scores(study)]


def _table_under_one_score(study: StudyAnswer) -> Table:
    """Return the table of the unchanged single model and all rows, under the single model's score.

    The row to use is marked.
    """
    baseline = study.baseline
    on_id, on_ood = _OF_ID.values(), _OF_OOD.values()
    rows = [["single, MSP, no temperature", "1.00", *_cells(baseline, [*on_id, *on_ood])]]
    for row in study.rows:
        detection = row.common or Record()  # nothing, shown as dashes, if the row does not have the common score
        cells = [*_cells(row.test, on_id), *_cells(detection, on_ood)]
        rows.append([_marked_name(row), number(row.mac_ratio, 2), *cells])
    for row_out in study.ruled_out:
        cells = _cells(row_out.validation, [*on_id, *on_ood])
        rows.append([on_validation(row_out.name), number(row_out.mac_ratio, 2), *cells])
    score = study.common_score
    title = f"test data, all rows with their temperature and under the score of the single model, {score}; * is best.st"
    if study.ruled_out:
        title += "; (validation): ruled out before the test, with its figures on validation data"
    return text_table(title, ["", "mult-adds", *_OF_ID, *_OF_OOD], rows)


def _table_under_own_scores(study: StudyAnswer) -> Table:
    """Return the table of each row under its own score, chosen on validation data, with the rates of its trainings."""
    has_trainings = any(row.lr for row in study.rows)
    rows = []
    for row in study.rows:
        auroc = number(_validation_auroc(row, study.choice.telling), DIGITS)
        cells = [_marked_name(row), row.score, auroc, *_cells(row.test, _OF_OOD.values())]
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
    return texts[0] if len(set(texts)) == 1 else ", ".join(texts)


def _validation_auroc(row: StudyRowRecord, sets: Sequence[str]) -> float | None:
    """Return the mean AUROC of a row under its own score over these OOD validation sets; None if there are no sets."""
    if not sets:
        return None
    auroc_of_sets = row.validation.auroc[row.score]
    # A set without an AUROC is not among those that choose.
    aurocs = [auroc for name in sets if (auroc := auroc_of_sets[name]) is not None]
    return sum(aurocs) / len(aurocs)


def on_validation(name: str) -> str:
    """Return the name of a row whose figures are those on validation data."""
    return f"{name} (validation)"


def _marked_name(row: StudyRowRecord) -> str:
    """Return the name of a row; the row to use has a mark after it."""
    return f"{row.name} *" if row.used else row.name


def glance(study: StudyAnswer) -> Table | None:
    """Return what the model to use changes, beside the single model with MSP; None if it is that model.

    Each line says in a word whether the paired difference is one.
    """
    (used,) = (row for row in study.rows if row.used)
    before, after = study.baseline, used.test
    words = {finding.metric: finding.kind for finding in study.verdict.against_baseline}
    is_single = used is study.rows[0]
    if is_single and used.score == before.ood_score:
        return None
    without_finding = "the same" if is_single else ""  # what a model has under any score, such as its accuracy
    lines = []
    for title, key in _AT_A_GLANCE.items():
        values = [*_cells(before, [key]), *_cells(after, [key])]
        if values != ["-", "-"]:
            lines.append([title, *values, words.get(key, without_finding)])
    lines.append(["mult-adds", "1.00", number(used.mac_ratio, 2), ""])
    return text_table("", ["", "now (MSP)", f"{used.name}, {used.score}", ""], lines)


def in_brief(study: StudyAnswer) -> list[str]:
    """Return the sentences that stand beside the first one of the verdict: on the next best row, and the doubts."""
    verdict = study.verdict
    next_best = [] if verdict.next_best is None else [verdict.next_best.line]
    return [*next_best, *verdict.doubts]


_AT_A_GLANCE = {"OOD AUROC": "ood_avg.auroc", "FPR95": "ood_avg.fpr95", "accuracy": "id.accuracy"}
"""The figures that are seen first, by title."""
