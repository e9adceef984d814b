"""Which score a study says to trust for mistakes, and that it says it only where test data show it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hydractl.files.study_answer import MistakesRecord
from hydractl.metrics.samples import Samples, samples_of
from hydractl.studies.measured_rows import MeasuredRow
from hydractl.studies.mistakes import mistakes_of, sentence_on_mistakes, trusted


def measured(seed: int, strength: float, labelled: bool = True, accuracy: float | None = None) -> MeasuredRow:
    """A row of 400 samples whose score ``vilu`` is above 0 for wrong answers, the more the stronger."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, 400)
    logits = rng.normal(size=(1, 400, 3))
    logits[0, np.arange(400), labels] += 1.0
    if accuracy == 1.0:
        logits[0, np.arange(400), labels] += 100
    wrong = logits[0].argmax(axis=1) != labels
    fitted = {"vilu": 1 / (1 + np.exp(-strength * wrong - rng.normal(size=400)))}
    inside: Samples = samples_of(
        logits, labels if labelled else None, scores=["msp", "energy", "mi", "vilu"], fitted_scores=fitted
    )
    anything: Any = None
    return MeasuredRow(anything, None, inside, {}, {}, rounds=200)


def found(validation: MeasuredRow, test: MeasuredRow) -> MistakesRecord:
    mistakes = mistakes_of("whole@2", validation, test)
    assert mistakes is not None
    return mistakes


def test_a_score_that_finds_more_mistakes_is_named() -> None:
    mistakes = found(measured(0, 4.0), measured(1, 4.0))
    assert mistakes.best == mistakes.score == "vilu"
    assert sentence_on_mistakes(mistakes).startswith(
        "For mistakes of whole@2 trust the score vilu, chosen on validation data: it finds "
    )
    assert mistakes.auroc > mistakes.auroc_msp and mistakes.ci[0] > 0


def test_a_score_that_test_data_do_not_confirm_is_not_trusted() -> None:
    mistakes = found(measured(0, 4.0), measured(1, -4.0))
    assert mistakes.best == "vilu" and mistakes.score == "msp"
    said = sentence_on_mistakes(mistakes)
    assert "no score is shown to be better than MSP: vilu, the best on validation data, has an AUROC" in said


def test_where_msp_is_the_best_on_validation_data() -> None:
    mistakes = found(measured(0, -4.0), measured(1, 4.0))
    assert mistakes.score == "msp" and mistakes.ci is None
    said = sentence_on_mistakes(mistakes)
    assert said.endswith("no score is shown to be better than MSP: it is the best on validation data.")


def test_where_there_are_no_mistakes_or_no_labels() -> None:
    none_there = found(measured(0, 1.0, accuracy=1.0), measured(1, 4.0))
    assert none_there.score == "msp" and "the validation data do not have both" in sentence_on_mistakes(none_there)
    none_here = found(measured(0, 4.0), measured(1, 4.0, accuracy=1.0))
    assert none_here.score == "msp" and "the test data do not have both" in sentence_on_mistakes(none_here)
    assert mistakes_of("single", measured(0, 4.0), measured(1, 4.0, False)) is None


@pytest.mark.parametrize("ci", [None, (-0.01, 0.2), (0.0, 0.2), (1e-9, 0.2)])
def test_a_score_is_trusted_only_with_an_interval_above_0(ci: tuple[float, float] | None) -> None:
    score = trusted("vim", ci)
    mistakes = MistakesRecord(row="single", score=score, best="vim", auroc=0.9, auroc_msp=0.8, ci=ci)
    is_significant = ci is not None and ci[0] > 0
    assert (score == "vim") is is_significant
    said = sentence_on_mistakes(mistakes)
    assert ("For mistakes of the single model trust the score vim" in said) is is_significant
    assert ("no score is shown to be better than MSP" in said) is not is_significant
    if ci is None:
        assert "too few wrong or right answers for an interval" in said
