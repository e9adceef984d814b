"""Stored predictions as what a study decides by: per row the samples of each set, under every OOD score."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hydractl.evaluation.predictions.reading import Piece, Predictions, read_predictions
from hydractl.evaluation.sets import ID, OOD
from hydractl.metrics.bootstrap import Resampled, resample, resample_aurocs, resample_id
from hydractl.metrics.calibrators import Calibration, fit
from hydractl.metrics.ood_scores import SCORES
from hydractl.metrics.probabilities import pooled_log_probs
from hydractl.metrics.rows import row_blocks
from hydractl.metrics.samples import Samples, samples_of
from hydractl.studies.words import KINDS


@dataclass(frozen=True)
class Measured:
    """One row on ID data and OOD sets.

    Attributes:
        source: the predictions that it was taken from.
        members: how many.
        macs, params: of one sample; None where they are not known.
        inside: the ID samples, with every OOD score that means something for them.
        outside: those of each OOD set, likewise.
        groups: ``near``, ``far`` or None by set.
    """

    source: Predictions
    members: int
    macs: int | None
    params: int | None
    inside: Samples
    outside: Mapping[str, Samples]
    groups: Mapping[str, str | None]

    @property
    def scores(self) -> list[str]:
        """The names of the scores."""
        return [name for name, values in self.inside.scores.items() if values is not None]

    def _under(self, score: str) -> tuple[Samples, dict[str, Samples]]:
        """The samples with one score leading, and alone."""
        inside, *outside = (
            replace(one, score=one.scores[score], scores={}) for one in (self.inside, *self.outside.values())
        )
        return inside, dict(zip(self.outside, outside, strict=True))

    def block(self, score: str) -> dict[str, Any]:
        """Every metric with this score, as in the row of an eval."""
        return {**row_blocks(*self._under(score), self.groups), "ood_score": score}

    def resampled(
        self, score: str, rounds: int, seed: int, advance: Callable[[int], None] = lambda rounds: None
    ) -> Resampled:
        """What a verdict judges, with this score, on the data and their resamples; ``advance`` is called after each."""
        names = {key.rpartition(".")[2] for key in KINDS}
        own: dict[str, Any] = {"rounds": rounds, "seed": seed, "names": names, "advance": advance}
        return resample(*self._under(score), self.groups, **own)

    def aurocs(self, scores: Sequence[str], rounds: int, seed: int) -> dict[str, Resampled]:
        """By score the AUROC against each OOD set under its name, likewise."""
        known = {score: self.inside.scores[score] for score in scores}
        strange = {name: {score: samples.scores[score] for score in scores} for name, samples in self.outside.items()}
        # Each of them says something: they are of self.scores.
        return resample_aurocs(known, strange, rounds=rounds, seed=seed)  # type: ignore[arg-type]

    def accuracy_and_nll(self, rounds: int, seed: int) -> Resampled:
        """Accuracy and NLL of the labelled ID samples, likewise."""
        return resample_id(self.inside, rounds=rounds, seed=seed)


def fitted_temperature(path: Path) -> Calibration:
    """The temperature that fits the labels of a predictions file best."""
    logits, labels, _ = _all(read_predictions(path), 0)
    assert labels is not None  # the validation data of a study have labels
    return fit("temperature", pooled_log_probs(logits), labels)


def measure(row: Path | Predictions, calibration: Calibration | None, roles: tuple[str, str] = (ID, OOD)) -> Measured:
    """A row from its predictions file; probabilities are taken with the calibration.

    ``roles`` are those of the ID set and of the OOD sets.
    """
    predictions = read_predictions(row) if isinstance(row, Path) else row
    samples, groups = {}, {}
    for index, entry in enumerate(predictions.sets):
        if entry.role in roles:
            logits, labels, given = _all(predictions, index)
            own: dict[str, Any] = {"beside": [*SCORES, *given], "given": given, "calibration": calibration}
            samples[entry.name] = samples_of(logits, labels if entry.role == roles[0] else None, pairs=False, **own)
        if entry.role == roles[1]:
            groups[entry.name] = entry.group
    cost: Mapping[str, Any] = predictions.model.get("cost") or {}
    (inside,) = (samples[name] for name in samples if name not in groups)
    outside = {name: samples[name] for name in groups}
    return Measured(predictions, predictions.shape(0)[0], cost.get("macs"), cost.get("params"), inside, outside, groups)


def _all(predictions: Predictions, index: int) -> tuple[Any, Any, dict[str, Any]]:
    """The logits ``[members, N, classes]`` of a set, its labels ``[N]`` and its scores on features ``[N]``.

    Without samples that could not be read.
    """
    members, _, classes = predictions.shape(index)
    names = predictions.scores
    empty: Piece = (
        [],
        np.zeros((members, 0, classes), dtype=np.float32),
        {name: np.zeros((members, 0)) for name in names},
    )
    pieces = [empty, *predictions.batches(index)]
    rows = np.concatenate([np.asarray(rows, dtype=np.int64) for rows, _, _ in pieces])
    labels = predictions.sets[index].labels
    logits = np.concatenate([logits for _, logits, _ in pieces], axis=1)
    # As eval has it, the score of an ensemble is the mean of its members'.
    given = {name: np.concatenate([scores[name] for *_, scores in pieces], axis=1).mean(axis=0) for name in names}
    return logits, None if labels is None else labels[rows], given
