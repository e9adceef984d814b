"""Which OOD score to trust for mistakes: the one that finds a row's wrong answers, chosen before test data are read."""

from __future__ import annotations

from dataclasses import replace

from hydractl.files.study_answer import MistakesRecord
from hydractl.metrics.bootstrap import paired_differences
from hydractl.report.eval_tables import signed_number, signed_range
from hydractl.report.texts import number
from hydractl.studies.measured_rows import MeasuredRow
from hydractl.studies.rule import REFERENCE, SINGLE

_AUROC = "errors.auroc"


def mistakes_of(row: str, validation: MeasuredRow, test: MeasuredRow) -> MistakesRecord | None:
    """Return which OOD score to trust for finding wrong answers of a row (a model of the study); None without labels.

    The score with the highest AUROC of wrong answers on the validation data is taken if it is significantly better than
    MSP on the test data, else MSP.

    Args:
        row: the name of the row.
        validation, test: the row, measured on both data.
    """
    if test.inside.labels is None:
        return None
    # The score that is best on validation data; None if they have no wrong answers, or no right ones. There is nothing
    # to compare then, and neither if MSP is the best.
    best = _best_on(validation)
    if best is None or best == REFERENCE:
        return MistakesRecord(row=row, score=REFERENCE, best=best)

    # AUROC of wrong answers on the test data: of this score, of MSP, and the interval of the difference.
    of_best = test.on_id({"auroc"}, best)
    of_msp = test.on_id({"auroc"}, REFERENCE)
    ci = paired_differences(of_msp, of_best)[_AUROC]["ci"]
    is_better = ci is not None and ci[0] > 0  # the whole interval lies above 0
    return MistakesRecord(
        row=row,
        score=best if is_better else REFERENCE,
        best=best,
        auroc=of_best.values[_AUROC],
        auroc_msp=of_msp.values[_AUROC],
        ci=ci,
    )


def sentence_on_mistakes(mistakes: MistakesRecord) -> str:
    """Return the sentence of the verdict on mistakes: the OOD score to trust, with figures where two were compared.

    ``score`` is the one to trust, ``best`` the best on validation data; ``best`` and ``auroc`` are None where the
    validation data, or the test data, have no wrong or no right answers.
    """
    name = "the single model" if mistakes.row == SINGLE else mistakes.row
    figures = ""
    if mistakes.auroc is not None and mistakes.auroc_msp is not None:
        figures = f", with an AUROC of {number(mistakes.auroc)} against {number(mistakes.auroc_msp)} on test data"
        if mistakes.ci is not None:
            figures += f" ({signed_number(mistakes.auroc - mistakes.auroc_msp)}, {signed_range(*mistakes.ci)})"
    if mistakes.score != REFERENCE:
        return (
            f"For mistakes of {name} trust the score {mistakes.score}: it finds wrong answers better than MSP{figures}."
        )
    on_best = ""
    if mistakes.best not in (None, REFERENCE):
        on_best = f": {mistakes.best} is the best on validation data{figures}"
    return f"For mistakes of {name} no score is shown to be better than MSP{on_best}."


def _best_on(validation: MeasuredRow) -> str | None:
    """Return the score with the highest AUROC of wrong answers (MSP if several are equal); None without any AUROC."""
    aurocs = {}
    on_data = replace(validation, rounds=0)  # the same row without resamples, as no interval is needed
    # MSP comes first, so that it wins against equal scores.
    for name in dict.fromkeys([REFERENCE, *validation.scores]):
        value = on_data.on_id({"auroc"}, name).values[_AUROC]
        if value is not None:
            aurocs[name] = value
    return max(aurocs, key=lambda name: aurocs[name], default=None)
