"""Which OOD score to trust for mistakes: the one that finds a row's wrong answers, chosen before test data are read."""

from __future__ import annotations

from dataclasses import dataclass

from hydractl.files.study_answer import MistakesRecord
from hydractl.metrics.bootstrap import paired_differences
from hydractl.metrics.errors import answers_by_score, auroc
from hydractl.report.eval_tables import signed_number
from hydractl.report.texts import number
from hydractl.studies.choosing import REFERENCE
from hydractl.studies.measured_rows import MeasuredRow

_AUROC = "errors.auroc"


@dataclass(frozen=True)
class Mistakes:
    """Which score finds the wrong answers of a row, by validation and test data.

    Attributes:
        called: the name of the row in a sentence.
        row: the name of the row.
        best: the score with the highest AUROC of wrong answers on the validation data (MSP if several are equal); None
            if the validation data have no wrong or no right answers.
        aurocs: the AUROC of ``best`` and that of MSP on the test data; None if they were not measured, or if the test
            data have no wrong or no right answers.
        ci: the paired 95 % interval of their difference; None if there is none.
    """

    called: str
    row: str
    best: str | None
    aurocs: tuple[float, float] | None = None
    ci: tuple[float, float] | None = None

    @property
    def trusted(self) -> str:
        """The score to trust: ``best`` if it is significantly better than MSP on the test data, else MSP."""
        if self.best is None or self.ci is None:
            return REFERENCE
        low, _ = self.ci
        return self.best if low > 0 else REFERENCE

    @property
    def line(self) -> str:
        """The sentence of the verdict: the score to trust, or why no score is shown to be better than MSP."""
        if self.trusted != REFERENCE:
            return (
                f"For mistakes of {self.called} trust the score {self.trusted}, chosen on validation data: it finds "
                f"wrong answers better than MSP, with {self._figures}."
            )
        no_better = f"For mistakes of {self.called} no score is shown to be better than MSP"
        if self.best is None:
            return f"{no_better}: the validation data do not have both right and wrong answers."
        if self.best == REFERENCE:
            return f"{no_better}: it is the best on validation data."
        if self.aurocs is None:
            return f"{no_better}: the test data do not have both right and wrong answers."
        return f"{no_better}: {self.best}, the best on validation data, has {self._figures}."

    @property
    def _figures(self) -> str:
        """Both AUROCs of wrong answers on the test data, and the interval of their difference if there is one."""
        assert self.aurocs is not None  # line() uses this text only if there are AUROCs
        of_best, of_msp = self.aurocs
        text = f"an AUROC of {number(of_best)} against {number(of_msp)} on test data"
        if self.ci is None:
            return f"{text} (too few wrong or right answers for an interval)"
        low, high = self.ci
        return f"{text} ({signed_number(of_best - of_msp)}, {signed_number(low)} to {signed_number(high)})"

    def record(self) -> MistakesRecord:
        """Return the same as a record of the document."""
        auroc_of_best = None
        auroc_of_msp = None
        if self.aurocs is not None:
            auroc_of_best, auroc_of_msp = self.aurocs
        ci = None
        if self.ci is not None:
            ci = list(self.ci)
        return MistakesRecord(
            row=self.row,
            score=self.trusted,
            best=self.best,
            auroc=auroc_of_best,
            auroc_msp=auroc_of_msp,
            ci=ci,
        )


def mistakes_of(
    row: str, called: str, validation: MeasuredRow, test: MeasuredRow, rounds: int, seed: int
) -> Mistakes | None:
    """Choose the score for mistakes of a row on validation data, and compare it with MSP on test data.

    Args:
        row: the name of the row.
        called: its name in a sentence.
        validation, test: the row, measured on both data.
        rounds, seed: the rounds and the seed of the bootstrap.

    Returns:
        The result; None if the test data have no labels.
    """
    if test.inside.labels is None:
        return None
    best = _best_on(validation)
    if best is None or best == REFERENCE:
        return Mistakes(called, row, best)

    resampled_best = test.errors_resampled(best, rounds, seed)
    resampled_msp = test.errors_resampled(REFERENCE, rounds, seed)
    value_of_best = resampled_best.values[_AUROC]
    value_of_msp = resampled_msp.values[_AUROC]
    if value_of_best is None or value_of_msp is None:
        return Mistakes(called, row, best)
    difference = paired_differences(resampled_msp, resampled_best)[_AUROC]
    ci = None
    if difference["ci"] is not None:
        low, high = difference["ci"]
        ci = (low, high)
    return Mistakes(called, row, best, (value_of_best, value_of_msp), ci)


def _best_on(validation: MeasuredRow) -> str | None:
    """Return the score with the highest AUROC of wrong answers (MSP if several are equal); None without any AUROC."""
    best = None
    highest = -1.0
    # MSP comes first, so that it wins against equal scores.
    scores = [REFERENCE, *(name for name in validation.scores if name != REFERENCE)]
    for name in scores:
        answers = answers_by_score(validation.inside, name, validation.inside.scores[name])
        assert answers is not None  # the validation data of a study have labels
        value = auroc(answers)
        if value is not None and value > highest:
            best = name
            highest = value
    return best
