"""The check of an exported file with rounded weights on data: accuracy, OOD AUROC, and the share of equal answers."""

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
    """The answers to all samples of a data set.

    Attributes:
        predicted: the predicted class of every sample, ``[N]``.
        scores: its OOD score, ``[N]``; ``msp`` where its model has none.
        flagged: whether it is flagged as OOD, bool ``[N]``; none flagged without a threshold.
    """

    predicted: np.ndarray
    scores: np.ndarray
    flagged: np.ndarray


Answers = list[SetAnswers]
"""The answers to each data set, ID first."""


class WholeAnswers(Protocol):
    """A model that gives whole answers: the model itself, or a file of it.

    Attributes:
        preprocess: makes inputs of a list of raw samples.
    """

    preprocess: Callable[[list[Any]], Any]

    def predict(self, inputs: Any) -> Prediction:
        """Return the whole answer to a batch."""


@dataclass(frozen=True)
class CheckData:
    """Data that a file and the model it was made of are both run on.

    Attributes:
        inside: labelled data.
        outside: OOD data by name.
        batch_size, workers: how they are read.
    """

    inside: Dataset
    outside: Mapping[str, Dataset]
    batch_size: int
    workers: int

    @torch.no_grad()
    def measure(self, model: WholeAnswers, log: Log) -> Answers:
        """Return the answers of a model, or of a file of it, to each data set: ID first, then the OOD sets."""
        sets = [self.inside, *self.outside.values()]
        total = sum(map(len, sets))
        answers = []
        with log.progress("check on data", total, "samples") as progress:
            for dataset in sets:
                answers.append(self._answers_to(dataset, model, progress))
        return answers

    def _answers_to(self, dataset: Dataset, model: WholeAnswers, progress: Progress) -> SetAnswers:
        """Return the answers to all samples of a data set, in the order of the data."""
        answer = SetAnswers(
            predicted=np.empty(len(dataset), np.int64),
            scores=np.empty(len(dataset)),
            flagged=np.zeros(len(dataset), np.bool_),
        )
        for batch in batches(dataset, model.preprocess, self.batch_size, workers=self.workers):
            prediction = model.predict(batch.inputs)
            # Longer texts run first, so that samples come in another order than that of the data.
            answer.predicted[batch.indices] = prediction.predicted
            answer.scores[batch.indices] = _scores_of(prediction)
            if prediction.is_ood is not None:
                answer.flagged[batch.indices] = prediction.is_ood
            progress.advance(len(prediction))
        return answer

    def compared(self, chosen: Chosen, before: Answers, after: Answers) -> RoundedOnData:
        """Compare the answers of a model with those of its file, whose weights are rounded.

        Args:
            chosen: what ``calibrate`` chose for the model.
            before: the answers of the model.
            after: those of the file, to the same data.
        """
        same = before[0].predicted == after[0].predicted
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
        """Return for each data set with samples the shares of them that are flagged before and after, and that change.

        ID samples are under ``id``.
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
        """Return the accuracy, and the AUROC for each OOD set; None where a set has no samples."""
        inside, *outside = answers
        correct = inside.predicted == self.inside.labels
        accuracy = float(correct.mean())
        aurocs: dict[str, float | None] = {}
        for name, ood_answers in zip(self.outside, outside, strict=True):
            curve = curve_of(inside.scores, ood_answers.scores)
            aurocs[name] = None
            if curve is not None:
                aurocs[name] = auroc(curve)
        return RoundedFigures(accuracy=accuracy, auroc=aurocs)


def _scores_of(prediction: Prediction) -> np.ndarray:
    """Return OOD scores ``[B]``; ``msp`` of a score that says nothing of a single member."""
    if prediction.ood_score is None:
        return -prediction.confidence.numpy()
    return prediction.ood_score.numpy()


def _mean_shift_of_scores(before: Answers, after: Answers) -> float:
    """Return the mean absolute difference of the scores of all samples."""
    differences = []
    for unrounded, rounded in zip(before, after, strict=True):
        differences.append(np.abs(rounded.scores - unrounded.scores))
    return float(np.concatenate(differences).mean())
