"""Rows of a study, measured from stored predictions: the samples of each data set with every OOD score."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from hydractl.errors import InputError
from hydractl.evaluation.gathering import gather
from hydractl.evaluation.predictions.reading import Predictions, read_predictions
from hydractl.evaluation.sets import tested
from hydractl.files.calibrate_answer import CalibrateAnswer
from hydractl.files.model_records import Calibration, MeasuredThreshold, StoredThreshold
from hydractl.files.study_answer import TestedRecord
from hydractl.metrics.bootstrap import Resampled, mean_over_sets, resample, resample_aurocs
from hydractl.metrics.ood_scores import SCORES
from hydractl.metrics.probabilities import Floats
from hydractl.metrics.requested import Threshold
from hydractl.metrics.rows import row_blocks
from hydractl.metrics.samples import Samples
from hydractl.metrics.threshold import choose_threshold, measured_threshold
from hydractl.model.prediction import Chosen
from hydractl.studies.rule import REFERENCE
from hydractl.studies.words import AUROC, KINDS


@dataclass(frozen=True)
class MeasuredRow:
    """One row, measured on the ID data and on the OOD sets.

    Attributes:
        source: the predictions that the row was measured from; they know its members and its cost.
        calibration: what its probabilities were calibrated by; None for nothing.
        inside: the ID samples with all their OOD scores; a score that the row does not have is None.
        outside: by the name of each OOD set, its samples in the same form.
        groups: by the name of each OOD set, ``near``, ``far`` or None.
        rounds, seed: the resamples of its data, and the seed of their draws.
        known: by score, what :meth:`resampled` has measured.
    """

    source: Predictions
    calibration: Calibration | None
    inside: Samples
    outside: Mapping[str, Samples]
    groups: Mapping[str, str | None]
    rounds: int = 1000
    seed: int = 0
    known: dict[str, Resampled] = field(default_factory=dict)

    @property
    def macs(self) -> int:
        """The mult-adds of one sample."""
        macs = self.source.cost.macs
        assert macs is not None  # an eval of a model has counted them
        return macs

    @property
    def temperature(self) -> float:
        """The temperature of a row that was calibrated by one."""
        assert self.calibration is not None and self.calibration.temperature is not None
        return self.calibration.temperature

    @property
    def scores(self) -> list[str]:
        """The names of the OOD scores that the row has."""
        return [name for name, values in self.inside.scores.items() if values is not None]

    def smallest_set(self, metric: str) -> int:
        """Return the number of samples of the smallest set that a metric of the verdict is measured on.

        ========================  =====================================
        ``id.nll``                the ID set
        ``near_avg.auroc``        the ID set, and the near OOD sets
        ``ood_avg.auroc``         the ID set, and all OOD sets
        ========================  =====================================
        """
        measured_on, _, _ = metric.partition("_avg")  # ood, near or far; the whole metric if it is of ID data
        sizes = [len(samples) for name, samples in self.outside.items() if measured_on in ("ood", self.groups[name])]
        return min([len(self.inside), *sizes])

    def uncalibrated(self) -> MeasuredRow:
        """Return the same row without a calibration."""
        return measure_row(self.source, None, rounds=self.rounds, seed=self.seed)

    def _under(self, score: str) -> tuple[Samples, dict[str, Samples]]:
        """Return the ID samples, and by name those of each OOD set, with ``score`` as their only score."""
        outside = {name: _with_score_alone(samples, score) for name, samples in self.outside.items()}
        return _with_score_alone(self.inside, score), outside

    def metrics(self, score: str) -> TestedRecord:
        """Return every metric under ``score``."""
        return TestedRecord(ood_score=score, **dict(row_blocks(*self._under(score), self.groups)))

    def resampled(self, score: str) -> Resampled:
        """Return the metrics that a verdict judges, under ``score``, on the data and on their resamples."""
        if score not in self.known:
            # Measured once and kept. The metrics by the last part of each key: "auroc" of "ood_avg.auroc".
            names = {key.rpartition(".")[2] for key in KINDS}
            self.known[score] = resample(
                *self._under(score), self.groups, rounds=self.rounds, seed=self.seed, names=names
            )
        return self.known[score]

    def aurocs(self, scores: Collection[str]) -> dict[str, Resampled]:
        """Return, by score, the AUROC against each OOD set (by its name), on the data and on their resamples."""
        return resample_aurocs(self.inside, self.outside, scores, rounds=self.rounds, seed=self.seed)

    def mean_aurocs(self, scores: Collection[str]) -> dict[str, float]:
        """Return by score the mean AUROC over all OOD sets; a score is missing if a set has no AUROC under it."""
        means = {}
        for score, aurocs in replace(self, rounds=1).aurocs(scores).items():
            mean = mean_over_sets(aurocs, AUROC).values[AUROC]
            if mean is not None:
                means[score] = mean
        return means

    def on_id(self, names: Collection[str], score: str = REFERENCE) -> Resampled:
        """Return these metrics of the labelled ID data, on the data and on their resamples.

        Args:
            names: the last parts of their keys: ``nll`` of ``id.nll``, ``auroc`` of ``errors.auroc``.
            score: the OOD score by which wrong answers are found; others do not depend on it.
        """
        inside = _with_score_alone(self.inside, score)
        return resample(inside, {}, {}, rounds=self.rounds, seed=self.seed, names=names)

    def thresholded(self, rule: Threshold, validation: MeasuredRow, score: str) -> MeasuredThreshold:
        """Return a threshold on a score, and the shares of ID samples and of each OOD set at or above it.

        Args:
            rule: the share of ID validation samples that it flags, e.g. ``id:0.05``.
            validation: the same row on the validation data.
            score: the name of the OOD score.
        """
        value = choose_threshold(rule, _values(validation.inside, score))
        threshold = StoredThreshold(score=score, value=value, rule=rule.rule)
        outside = {name: _values(samples, score) for name, samples in self.outside.items()}
        return measured_threshold(threshold, _values(self.inside, score), outside)


def _with_score_alone(samples: Samples, score: str) -> Samples:
    """Return the samples with ``score`` as their only score."""
    return replace(samples, scores={score: samples.scores[score]})


def _values(samples: Samples, score: str) -> Floats:
    """Return a score of the samples, [N], which the row has."""
    values = samples.scores[score]
    assert values is not None
    return values


def fitted_temperature(path: Path) -> Calibration:
    """Return the temperature that ``calibrate`` has written to a file.

    Raises:
        InputError: the file, which somebody has changed since, holds none.
    """
    answer = CalibrateAnswer.read(str(path))
    fitted = Chosen.of(answer.to_dict(), str(path)).calibration
    if fitted is None or fitted.temperature is None:
        raise InputError(f"{path} holds no temperature", hint="remove it, and give the command again")
    return fitted


def measure_row(
    row: Path | Predictions, calibration: Calibration | None, *, rounds: int = 1000, seed: int = 0
) -> MeasuredRow:
    """Return the samples of a row (a model of the study) with every OOD score, made from its stored predictions.

    Nothing runs but the scores: the logits, and the scores on features, are in the file.

    Args:
        row: the predictions, or their file; the ID test set comes first, and all test sets but OOD sets are ignored.
        calibration: the calibration to apply to the probabilities; None for none.
        rounds, seed: the resamples of its data, and the seed of their draws.
    """
    predictions = read_predictions(row) if isinstance(row, Path) else row

    # The samples of each data set by its name, with all scores on logits and the stored scores on features.
    all_scores = [*SCORES.of_studies(), *predictions.on_features]
    id_set, *ood_sets = tested(predictions.sets)
    samples = {}
    for entry in (id_set, *ood_sets):
        batches = predictions.batches(entry)
        gathered = gather(batches, entry, predictions.name, scores=all_scores, calibration=calibration)
        samples[entry.name] = gathered.samples
    groups = {entry.name: entry.group for entry in ood_sets}
    inside = samples[id_set.name]
    outside = {entry.name: samples[entry.name] for entry in ood_sets}
    return MeasuredRow(predictions, calibration, inside, outside, groups, rounds, seed)
