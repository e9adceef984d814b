"""Which score a study says to trust for mistakes, and that it says it only where test data show it."""

from __future__ import annotations

from typing import Any

import numpy as np

from hydractl.files.study_answer import MistakesRecord
from hydractl.metrics.samples import Samples, samples_of
from hydractl.studies.measured_rows import MeasuredRow
from hydractl.studies.mistakes import mistakes_of, sentence_on_mistakes


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
        "For mistakes of whole@2 trust the score vilu: it finds wrong answers better than MSP, with an AUROC of "
    )
    assert mistakes.auroc > mistakes.auroc_msp and mistakes.ci[0] > 0


def test_a_score_that_test_data_do_not_confirm_is_not_trusted() -> None:
    mistakes = found(measured(0, 4.0), measured(1, -4.0))
    assert mistakes.best == "vilu" and mistakes.score == "msp"
    said = sentence_on_mistakes(mistakes)
    assert "no score is shown to be better than MSP: vilu is the best on validation data, with an AUROC" in said


def test_where_msp_is_the_best_on_validation_data() -> None:
    mistakes = found(measured(0, -4.0), measured(1, 4.0))
    assert mistakes.score == "msp" and mistakes.ci is None
    assert sentence_on_mistakes(mistakes).endswith("no score is shown to be better than MSP.")


def test_where_there_are_no_mistakes_or_no_labels() -> None:
    nothing = "For mistakes of whole@2 no score is shown to be better than MSP"
    none_there = found(measured(0, 1.0, accuracy=1.0), measured(1, 4.0))
    assert none_there.score == "msp" and sentence_on_mistakes(none_there) == f"{nothing}."
    none_here = found(measured(0, 4.0), measured(1, 4.0, accuracy=1.0))
    assert none_here.score == "msp"
    assert sentence_on_mistakes(none_here) == f"{nothing}: vilu is the best on validation data."
    assert mistakes_of("single", measured(0, 4.0), measured(1, 4.0, False)) is None


def test_too_few_wrong_answers_for_an_interval_say_both_figures() -> None:
    mistakes = MistakesRecord(row="single", score="msp", best="vim", auroc=0.9, auroc_msp=0.8)
    assert sentence_on_mistakes(mistakes).endswith("with an AUROC of 0.9000 against 0.8000 on test data.")
