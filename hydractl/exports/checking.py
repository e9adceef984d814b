"""What an exported file with rounded weights does on data: accuracy, OOD AUROC, and how many answers are the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hydractl.data import batches
from hydractl.data.base import Dataset
from hydractl.log import Log
from hydractl.metrics.calibrators import Calibration
from hydractl.metrics.ood import auroc, curve_of
from hydractl.metrics.ood_scores import says_nothing
from hydractl.metrics.samples import samples_of
from hydractl.metrics.threshold import stored_score
from hydractl.model.runtime import HydraModel

Answers = list[tuple[np.ndarray, np.ndarray]]
"""The predicted class and the OOD score of every sample, ``[N]`` each, for each data set, ID first."""


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
        extra, answers = model.description.extra, []
        how: dict[str, Any] = {"score": score_of(model), "pairs": False}
        if extra.get("calibration"):
            how["calibration"] = Calibration.from_json(extra["calibration"])
        sets = [self.inside, *self.outside.values()]
        with log.progress("check on data", sum(map(len, sets)), "samples") as progress:
            for one in sets:
                predicted, scores = np.empty(len(one), np.int64), np.empty(len(one))
                for batch in batches(one, model.preprocess, self.batch_size, workers=self.workers):
                    samples = samples_of(run(batch.inputs).numpy(), **how)
                    predicted[batch.indices], scores[batch.indices] = samples.predicted, samples.score
                    progress.advance(len(samples))
                answers.append((predicted, scores))
        return answers

    def compared(self, model: HydraModel, before: Answers, after: Answers) -> dict[str, Any]:
        """Compare the answers of a model before and after.

        Returns:
            ``data`` (fingerprint), ``n`` and ``score``; ``agreement``, the share of ID samples of the same predicted
            class; ``before`` and ``after``, each with ``accuracy`` and by OOD set ``auroc``.
        """
        return {
            "data": self.inside.fingerprint(),
            "n": len(self.inside),
            "score": score_of(model),
            "agreement": float((before[0][0] == after[0][0]).mean()),
            "before": self._figures(before),
            "after": self._figures(after),
        }

    def _figures(self, answers: Answers) -> dict[str, Any]:
        (predicted, inside), *rest = answers
        curves = {name: curve_of(inside, scores) for name, (_, scores) in zip(self.outside, rest, strict=True)}
        ood = {name: None if curve is None else auroc(curve) for name, curve in curves.items()}
        return {"accuracy": float((predicted == self.inside.labels).mean()), "auroc": ood}


def score_of(model: HydraModel) -> str:
    """Return the OOD score of its checkpoint, where that says something of so many members, else ``msp``."""
    score = stored_score(model.description.extra) or "msp"
    return "msp" if says_nothing(score, model.members) else score
