"""Stored predictions as what a study decides by: per row the samples of each set, under every OOD score."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hydractl.evaluation.predictions.reading import Predictions, read_predictions
from hydractl.evaluation.sets import ID, OOD
from hydractl.files.model_records import CostRecord
from hydractl.metrics.bootstrap import Resampled, resample, resample_aurocs, resample_id
from hydractl.metrics.calibrators import Calibration, fit_calibration
from hydractl.metrics.ood_scores import SCORES
from hydractl.metrics.probabilities import Floats, pooled_log_probs
from hydractl.metrics.rows import row_blocks
from hydractl.metrics.samples import Samples, samples_of
from hydractl.studies.words import KINDS


@dataclass(frozen=True)
class MeasuredRow:
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
        """Return the samples with one score leading, and alone."""
        inside = _with_score_alone(self.inside, score)
        outside = {name: _with_score_alone(samples, score) for name, samples in self.outside.items()}
        return inside, outside

    def block(self, score: str) -> dict[str, Any]:
        """Return every metric with this score, as in the row of an eval."""
        inside, outside = self._under(score)
        return {**row_blocks(inside, outside, self.groups), "ood_score": score}

    def resampled(
        self, score: str, rounds: int, seed: int, advance: Callable[[int], None] = lambda rounds: None
    ) -> Resampled:
        """Return what a verdict judges, with this score, on the data and their resamples; each calls ``advance``."""
        inside, outside = self._under(score)
        names = {key.rpartition(".")[2] for key in KINDS}
        return resample(inside, outside, self.groups, rounds=rounds, seed=seed, names=names, advance=advance)

    def aurocs(self, scores: Sequence[str], rounds: int, seed: int) -> dict[str, Resampled]:
        """Return by score the AUROC against each OOD set under its name, likewise."""
        id_scores = _values_of(self.inside, scores)
        ood_scores = {name: _values_of(samples, scores) for name, samples in self.outside.items()}
        return resample_aurocs(id_scores, ood_scores, rounds=rounds, seed=seed)

    def accuracy_and_nll(self, rounds: int, seed: int) -> Resampled:
        """Return accuracy and NLL of the labelled ID samples, likewise."""
        return resample_id(self.inside, rounds=rounds, seed=seed)


def _with_score_alone(samples: Samples, score: str) -> Samples:
    return replace(samples, score=samples.scores[score], scores={})


def _values_of(samples: Samples, scores: Sequence[str]) -> dict[str, Floats]:
    """Return some scores of some samples, each of which says something."""
    values = {}
    for score in scores:
        values_of_score = samples.scores[score]
        assert values_of_score is not None  # they are of MeasuredRow.scores
        values[score] = values_of_score
    return values


def fitted_temperature(path: Path) -> Calibration:
    """Return the temperature that fits the labels of a predictions file best."""
    data_set = _read_set(read_predictions(path), 0)
    assert data_set.labels is not None  # the validation data of a study have labels
    return fit_calibration("temperature", pooled_log_probs(data_set.logits), data_set.labels)


def measure_row(
    row: Path | Predictions, calibration: Calibration | None, roles: tuple[str, str] = (ID, OOD)
) -> MeasuredRow:
    """Measure a row from its predictions file; probabilities are taken with the calibration.

    ``roles`` are those of the ID set and of the OOD sets.
    """
    predictions = read_predictions(row) if isinstance(row, Path) else row
    id_role, ood_role = roles
    inside = []
    outside = {}
    groups = {}
    for index, entry in enumerate(predictions.sets):
        if entry.role not in roles:
            continue
        data_set = _read_set(predictions, index)
        labels = None
        if entry.role == id_role:
            labels = data_set.labels
        samples = samples_of(
            data_set.logits,
            labels,
            beside=[*SCORES, *data_set.feature_scores],
            fitted_scores=data_set.feature_scores,
            calibration=calibration,
            pairs=False,
        )
        if entry.role == ood_role:
            outside[entry.name] = samples
            groups[entry.name] = entry.group
        else:
            inside.append(samples)
    (id_samples,) = inside
    members, _, _ = predictions.shape(0)
    cost = predictions.model.cost or CostRecord()
    return MeasuredRow(
        source=predictions,
        members=members,
        macs=cost.macs,
        params=cost.params,
        inside=id_samples,
        outside=outside,
        groups=groups,
    )


class _StoredSet(NamedTuple):
    """The predictions of one set, without samples that could not be read.

    Attributes:
        logits: ``[members, N, classes]``.
        labels: ``[N]``, None where there are none.
        feature_scores: OOD scores on features by name, ``[N]`` each.
    """

    logits: NDArray[Any]
    labels: NDArray[np.int64] | None
    feature_scores: dict[str, Floats]


def _read_set(predictions: Predictions, index: int) -> _StoredSet:
    """Return the predictions of a set, all of it in memory."""
    members, _, classes = predictions.shape(index)
    # An empty piece first: a set may have no batches.
    rows_read = [np.zeros(0, dtype=np.int64)]
    logits_read = [np.zeros((members, 0, classes), dtype=np.float32)]
    scores_read = {name: [np.zeros((members, 0))] for name in predictions.scores}
    for rows, logits, scores in predictions.batches(index):
        rows_read.append(np.asarray(rows, dtype=np.int64))
        logits_read.append(logits)
        for name, pieces in scores_read.items():
            pieces.append(scores[name])

    labels = predictions.sets[index].labels
    if labels is not None:
        rows_of_set = np.concatenate(rows_read)
        labels = labels[rows_of_set]
    feature_scores = {}
    for name, pieces in scores_read.items():
        by_member = np.concatenate(pieces, axis=1)  # [members, N]
        # As eval has it, the score of an ensemble is the mean of its members'.
        feature_scores[name] = by_member.mean(axis=0)
    return _StoredSet(np.concatenate(logits_read, axis=1), labels, feature_scores)
