"""Measures an exported file with rounded weights on data: accuracy, OOD AUROC, and how often its answers change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from hydractl.data import batches
from hydractl.data.base import Dataset
from hydractl.files.export_answer import RoundedFigures, RoundedFlags, RoundedOnData
from hydractl.log import Log, Progress
from hydractl.metrics.ood import auroc, curve_of
from hydractl.model.prediction import Chosen, Prediction


class SetAnswers(NamedTuple):
    """The answers to all N samples of a data set.

    Attributes:
        predicted: the predicted class of each sample, ``[N]``.
        scores: the OOD score of each sample, ``[N]``; if the model has none, minus its confidence (``msp``).
        flagged: whether each sample is flagged as OOD, bool ``[N]``; all False if the model has no threshold.
    """

    predicted: np.ndarray
    scores: np.ndarray
    flagged: np.ndarray


Answers = list[SetAnswers]
"""The answers to each data set: first the in-distribution (ID) set, then the OOD sets in their order."""


class WholeAnswers(Protocol):
    """A model that can answer: a hydractl model, or an exported file.

    Attributes:
        preprocess: a function from a list of raw samples to inputs.
    """

    preprocess: Callable[[list[Any]], Any]

    def predict(self, inputs: Any) -> Prediction:
        """Return predictions, OOD scores, flags and so on for a batch."""


@dataclass(frozen=True)
class CheckData:
    """The data on which a model and its exported file are compared.

    Attributes:
        inside: labelled in-distribution (ID) data.
        outside: OOD data sets by name.
        batch_size, workers: how data are read.
    """

    inside: Dataset
    outside: Mapping[str, Dataset]
    batch_size: int
    workers: int | None

    @torch.no_grad()
    def measure(self, model: WholeAnswers, log: Log) -> Answers:
        """Run a model, or an exported file, on all data sets; return its answers, those to the ID set first."""
        sets = [self.inside, *self.outside.values()]
        total = sum(map(len, sets))
        answers = []
        with log.progress("check on data", total, "samples") as progress:
            for dataset in sets:
                answers.append(self._answers_to(dataset, model, progress))
        return answers

    def _answers_to(self, dataset: Dataset, model: WholeAnswers, progress: Progress) -> SetAnswers:
        """Run a model on one data set; return its answers in the order of the data, and advance ``progress``."""
        answer = SetAnswers(
            predicted=np.empty(len(dataset), np.int64),
            scores=np.empty(len(dataset)),
            flagged=np.zeros(len(dataset), np.bool_),
        )
        for batch in batches(dataset, model.preprocess, self.batch_size, workers=self.workers):
            prediction = model.predict(batch.inputs)
            # Batches are sorted by length, so samples come in another order than in the data.
            answer.predicted[batch.indices] = prediction.predicted
            answer.scores[batch.indices] = _scores_of(prediction)
            if prediction.is_ood is not None:
                answer.flagged[batch.indices] = prediction.is_ood
            progress.advance(len(prediction))
        return answer

    def compared(self, chosen: Chosen, before: Answers, after: Answers) -> RoundedOnData:
        """Compare the answers of a model with those of its exported file, whose weights are rounded.

        Args:
            chosen: the choices of ``calibrate`` for the model.
            before: the answers of the model.
            after: the answers of the file to the same data.
        """
        # How often the predicted class is the same, on ID data only.
        same = before[0].predicted == after[0].predicted

        # Flags exist only if a threshold was chosen.
        flags = None
        if chosen.threshold is not None:
            flags = self._flags(before, after)
        return RoundedOnData(
            data=self.inside.fingerprint(),
            n=len(self.inside),
            score=chosen.score,
            agreement=float(same.mean()),
            before=self._figures(before),
            after=self._figures(after),
            score_moved=_mean_shift_of_scores(before, after),
            flags=flags,
        )

    def _flags(self, before: Answers, after: Answers) -> dict[str, RoundedFlags]:
        """Return the shares of samples that are flagged before and after rounding, and whose flag changes.

        Returns:
            The shares for each data set by name; the ID set is called ``id``. Empty sets are left out.
        """
        flags = {}
        names = ["id", *self.outside]
        for name, unrounded, rounded in zip(names, before, after, strict=True):
            if not len(unrounded.flagged):
                continue
            changed = unrounded.flagged != rounded.flagged
            flags[name] = RoundedFlags(
                before=float(unrounded.flagged.mean()),
                after=float(rounded.flagged.mean()),
                changed=float(changed.mean()),
            )
        return flags

    def _figures(self, answers: Answers) -> RoundedFigures:
        """Return the accuracy on the ID set, and the AUROC of the OOD score for each OOD set.

        An AUROC is None if the ID set or the OOD set has no samples.
        """
        id_answers, *answers_to_ood_sets = answers
        correct = id_answers.predicted == self.inside.labels
        accuracy = float(correct.mean())
        aurocs: dict[str, float | None] = {}
        for name, ood_answers in zip(self.outside, answers_to_ood_sets, strict=True):
            curve = curve_of(id_answers.scores, ood_answers.scores)
            aurocs[name] = None
            if curve is not None:
                aurocs[name] = auroc(curve)
        return RoundedFigures(accuracy=accuracy, auroc=aurocs)


def _scores_of(prediction: Prediction) -> np.ndarray:
    """Return OOD scores ``[B]``; if the model has none (e.g. one member and ``mi``), minus the confidence (``msp``)."""
    if prediction.ood_score is None:
        return -prediction.confidence.numpy()
    return prediction.ood_score.numpy()


def _mean_shift_of_scores(before: Answers, after: Answers) -> float:
    """Return the mean absolute difference of the OOD scores before and after rounding, over all samples of all sets."""
    differences = []
    for unrounded, rounded in zip(before, after, strict=True):
        differences.append(np.abs(rounded.scores - unrounded.scores))
    return float(np.concatenate(differences).mean())
