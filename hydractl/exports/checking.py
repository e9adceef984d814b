"""The check of an exported file with rounded weights on data: accuracy, OOD AUROC, and the share of equal answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from hydractl.data import batches
from hydractl.data.base import Dataset
from hydractl.files.export_answer import RoundedFigures, RoundedOnData
from hydractl.log import Log
from hydractl.metrics.calibrators import Calibration
from hydractl.metrics.ood import auroc, curve_of
from hydractl.metrics.ood_scores import says_nothing
from hydractl.metrics.samples import samples_of
from hydractl.metrics.threshold import stored_score
from hydractl.model.runtime import HydraModel


class SetAnswers(NamedTuple):
    """The answers to all samples of a data set.

    Attributes:
        predicted: the predicted class of every sample, ``[N]``.
        scores: its OOD score, ``[N]``.
    """

    predicted: np.ndarray
    scores: np.ndarray


Answers = list[SetAnswers]
"""The answers to each data set, ID first."""


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
    def measure(self, model: HydraModel, run: Callable[[Any], torch.Tensor], log: Log) -> Answers:
        """Return the answers of the model itself, or of a file in its place.

        Args:
            model: prepares inputs, and says which OOD score is taken: that of its checkpoint, else ``msp``.
            run: from inputs to member logits ``[M, B, classes]``.
            log: receives the progress.
        """
        score = score_of(model)
        stored = model.description.extra.get("calibration")
        calibration = Calibration.from_json(stored) if stored else None
        sets = [self.inside, *self.outside.values()]
        total = sum(map(len, sets))
        answers = []
        with log.progress("check on data", total, "samples") as progress:
            for dataset in sets:
                predicted = np.empty(len(dataset), np.int64)
                scores = np.empty(len(dataset))
                for batch in batches(dataset, model.preprocess, self.batch_size, workers=self.workers):
                    logits = run(batch.inputs).numpy()  # [members, B, classes]
                    samples = samples_of(logits, score=score, pairs=False, calibration=calibration)
                    # Longer texts run first, so that samples come in another order than that of the data.
                    predicted[batch.indices] = samples.predicted
                    scores[batch.indices] = samples.score
                    progress.advance(len(samples))
                answers.append(SetAnswers(predicted, scores))
        return answers

    def compared(self, model: HydraModel, before: Answers, after: Answers) -> RoundedOnData:
        """Compare the answers of a model before and after."""
        same = before[0].predicted == after[0].predicted
        return RoundedOnData(
            data=self.inside.fingerprint(),
            n=len(self.inside),
            score=score_of(model),
            agreement=float(same.mean()),
            before=self._figures(before),
            after=self._figures(after),
        )

    def _figures(self, answers: Answers) -> RoundedFigures:
        """Return the accuracy, and the AUROC for each OOD set; None where a set has no samples."""
        inside, *outside = answers
        aurocs: dict[str, float | None] = {}
        for name, ood_answers in zip(self.outside, outside, strict=True):
            curve = curve_of(inside.scores, ood_answers.scores)
            aurocs[name] = None
            if curve is not None:
                aurocs[name] = auroc(curve)
        correct = inside.predicted == self.inside.labels
        return RoundedFigures(accuracy=float(correct.mean()), auroc=aurocs)


def score_of(model: HydraModel) -> str:
    """Return the OOD score of the model's checkpoint; ``msp`` where it has none, or one that says nothing here."""
    score = stored_score(model.description.extra) or "msp"
    if says_nothing(score, model.members):
        return "msp"
    return score
