"""Stored predictions as what a study decides by: per row the samples of each set, under every OOD score."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hydractl.evaluate.predictions.reading import Predictions, read_predictions
from hydractl.metrics import bootstrap
from hydractl.metrics.calibrators import Calibration, fit
from hydractl.metrics.ood_scores import SCORES, says_nothing
from hydractl.metrics.probabilities import pooled_log_probs
from hydractl.metrics.samples import Samples, samples_of


@dataclass(frozen=True)
class Measured:
    """One row on ID data and OOD sets.

    Attributes:
        name: of the row.
        members: how many.
        macs, params: of one sample; None where they are not known.
        calibration: what probabilities are taken with; None for those of the model.
        inside: the ID samples by OOD score.
        outside: by OOD score, by set.
        groups: ``near``, ``far`` or None by set.
    """

    name: str
    members: int
    macs: int | None
    params: int | None
    calibration: Calibration | None
    inside: Mapping[str, Samples]
    outside: Mapping[str, Mapping[str, Samples]]
    groups: Mapping[str, str | None]

    def resampled(
        self, score: str, rounds: int, seed: int, advance: Callable[[int], None] = lambda rounds: None
    ) -> bootstrap.Resampled:
        """Every metric with this score, on the data and on its resamples; ``advance`` is called after each."""
        own = (self.inside[score], self.outside[score], self.groups)
        return bootstrap.resample(*own, rounds=rounds, seed=seed, advance=advance)

    def aurocs(self, score: str, rounds: int, seed: int) -> bootstrap.Resampled:
        """The mean AUROC alone, likewise."""
        inside = self.inside[score].score
        outside = {name: own for name, one in self.outside[score].items() if (own := one.score) is not None}
        assert inside is not None  # scores that say nothing are not among them
        return bootstrap.resample_auroc(inside, outside, rounds=rounds, seed=seed)


def scores_for(members: int) -> list[str]:
    """The OOD scores that mean something for so many members."""
    return [name for name in SCORES if not says_nothing(name, members)]


def fitted_temperature(path: Path) -> Calibration:
    """The temperature that fits the labels of a predictions file best."""
    predictions = read_predictions(path)
    logits, labels = _all(predictions, 0)
    assert labels is not None  # the validation data of a study have labels
    return fit("temperature", pooled_log_probs(logits), labels)


def measure(name: str, path: Path, scores: Sequence[str] | None, calibration: Calibration | None) -> Measured:
    """A row from its predictions file.

    Args:
        name: of the row.
        path: of its predictions.
        scores: the OOD scores; None for all that mean something.
        calibration: of the averaged prediction.
    """
    predictions = read_predictions(path)
    members = predictions.shape(0)[0]
    names = scores_for(members) if scores is None else list(scores)
    inside: dict[str, Samples] = {}
    outside: dict[str, dict[str, Samples]] = {score: {} for score in names}
    groups: dict[str, str | None] = {}
    for index, entry in enumerate(predictions.sets):
        logits, labels = _all(predictions, index)
        if entry.role == "ood":
            groups[entry.name] = entry.group
        for score in names:
            own = samples_of(logits, labels if entry.role == "id" else None, score=score, calibration=calibration)
            if entry.role == "id":
                inside[score] = own
            elif entry.role == "ood":
                outside[score][entry.name] = own
    cost: Mapping[str, Any] = predictions.model.get("cost") or {}
    return Measured(name, members, cost.get("macs"), cost.get("params"), calibration, inside, outside, groups)


def _all(predictions: Predictions, index: int) -> tuple[Any, Any]:
    """The logits ``[members, N, classes]`` of a set and its labels ``[N]``, without samples that could not be read."""
    pieces = list(_pieces(predictions, index))
    labels = predictions.sets[index].labels
    rows = np.concatenate([np.asarray(rows, dtype=np.int64) for rows, _ in pieces])
    return np.concatenate([logits for _, logits in pieces], axis=1), None if labels is None else labels[rows]


def _pieces(predictions: Predictions, index: int) -> Iterator[tuple[Sequence[int], Any]]:
    members, _, classes = predictions.shape(index)
    yield [], np.zeros((members, 0, classes), dtype=np.float32)
    yield from predictions.batches(index)
