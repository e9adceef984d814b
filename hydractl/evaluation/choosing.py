"""What ``calibrate`` chooses of one model on validation data: an OOD score, a temperature, a threshold, a qhat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hydractl.errors import InputError
from hydractl.evaluation.doubts import signed_features
from hydractl.evaluation.features import FeaturesFile
from hydractl.evaluation.fitting import RowFit, fit_on_validation
from hydractl.evaluation.gathering import LogitsReader, Reading, gather
from hydractl.evaluation.options import EvalOptions, FitOptions, RowScores
from hydractl.evaluation.predictions.reading import LogitsBatch
from hydractl.evaluation.providers.interface import LogitsBatches
from hydractl.evaluation.providers.running import RunningModel
from hydractl.evaluation.rows import row_scores
from hydractl.evaluation.sets import OOD_VAL, TRAIN, VAL, EvalSet, of_role
from hydractl.log import Log
from hydractl.metrics.calibrators import Calibration
from hydractl.metrics.ood import auroc, curve_of
from hydractl.metrics.ood_scores import says_nothing
from hydractl.metrics.samples import Samples

NEAR_TIE = 0.005
"""Scores whose mean AUROCs differ by less than this count as equally good: the one that is named first is taken."""


@dataclass(frozen=True)
class ComparedScore:
    """The AUROC of one OOD score on each OOD validation set, and their unweighted mean; None for a constant score."""

    mean: float | None
    by_set: Mapping[str, float]


@dataclass(frozen=True)
class Choice:
    """Everything that was chosen for one model.

    Attributes:
        fitted: the calibration, threshold and prediction sets.
        score: the leading OOD score.
        compared: the comparison of the scores, by name; empty if there was only one.
        near_ties: further scores that are as good as the leading one.
        warnings: the warnings of scores that are constant on the training data.
    """

    fitted: RowFit
    score: str
    compared: Mapping[str, ComparedScore] = field(default_factory=dict)
    near_ties: Sequence[str] = ()
    warnings: Sequence[str] = ()


def choose_for(
    model: RunningModel, sets: Sequence[EvalSet], options: EvalOptions, features: FeaturesFile | None, log: Log
) -> Choice:
    """Choose everything that the options ask for, on validation data alone.

    The temperature comes first, as scores are compared on calibrated samples; then the score; and last the threshold,
    which is a value of that score.

    Args:
        model: the model.
        sets: the validation sets, and the training data of scores on features.
        options: what is asked for.
        features: the file that keeps the features of the training data; None to keep none.
        log: shows the progress.

    Raises:
        InputError: if all scores are constant for the model, or a set has no sample that can be read.
    """
    # The scores on features are fitted to the training data.
    scores = row_scores(model, options)
    warnings: list[str] = []
    if scores.on_features:
        warnings = _fit_scores(model, scores, sets, options.fit, features)

    # A single score leaves nothing to compare.
    validation = [dataset for dataset in sets if dataset.role != TRAIN]
    read = _KeptReading(Reading(model, validation, None, log))
    if not scores.beside:
        fitted = fit_on_validation(model, sets, options.fit, scores, read)
        return Choice(fitted, scores.leading, warnings=[*warnings, *_signed_features(model, [scores.leading])])

    # Calibration, score, threshold.
    calibration = _fitted_calibration(model, sets, options.fit, scores, read)
    compared = _compare_scores(model, sets, scores, calibration, read)
    chosen, *near_ties = _as_good_as_the_best(compared, model.name)
    fitted = fit_on_validation(model, sets, options.fit, RowScores(chosen), read)
    return Choice(fitted, chosen, compared, near_ties, [*warnings, *_signed_features(model, scores.beside)])


def _signed_features(model: RunningModel, scores: Sequence[str]) -> list[str]:
    """Return the warning of those of some scores that were made for features that are not negative, if some are."""
    if model.detector is None:
        return []
    doubtful = [name for name in model.detector.doubtful if name in scores]
    if not doubtful:
        return []
    return [signed_features(model.name, doubtful)]


def _fit_scores(
    model: RunningModel, scores: RowScores, sets: Sequence[EvalSet], options: FitOptions, features: FeaturesFile | None
) -> list[str]:
    """Fit the OOD scores on features to the training data, if there are any; they become the model's detector.

    Returns:
        A warning of each score that is constant on the training data.
    """
    training = next(iter(of_role(sets, TRAIN)), None)
    model.fit_scores(scores.on_features, training, options.knn_k, features)
    if model.detector is None:
        return []
    # A bank of fewer samples is chosen from training data alone; one that the checkpoint holds stays as it is.
    if training is not None and options.knn_bank is not None:
        model.detector = model.detector.with_bank(options.knn_bank)
    return [f"{model.name}: {name} is constant on the training data" for name in model.detector.constant]


def _fitted_calibration(
    model: RunningModel, sets: Sequence[EvalSet], options: FitOptions, scores: RowScores, read: LogitsReader
) -> Calibration | None:
    """Return the calibration that is fitted on the validation data; None if none is asked for."""
    without_threshold = replace(options, threshold=None)  # which depends on the score, and is chosen later
    leading_alone = RowScores(scores.leading)
    fitted = fit_on_validation(model, sets, without_threshold, leading_alone, read)
    return fitted.calibration


def _compare_scores(
    model: RunningModel,
    sets: Sequence[EvalSet],
    scores: RowScores,
    calibration: Calibration | None,
    read: LogitsReader,
) -> dict[str, ComparedScore]:
    """Return how well each score separates the OOD validation sets from the validation data, by its name.

    The scores stand in the order in which they were asked for; one that is constant for the model has no AUROC.
    """

    def samples_of_set(dataset: EvalSet) -> Samples:
        gathered = gather(read(dataset), dataset, model.name, scores=scores, calibration=calibration, pairs=False)
        return gathered.samples

    (validation_set,) = of_role(sets, VAL)  # scores are compared only where --val is given
    inside = samples_of_set(validation_set)
    outside = {dataset.name: samples_of_set(dataset) for dataset in of_role(sets, OOD_VAL)}
    compared = {}
    for name in scores.beside:
        if says_nothing(name, model.members):
            compared[name] = ComparedScore(None, {})
        else:
            compared[name] = _auroc_on_each_set(name, inside, outside)
    return compared


def _auroc_on_each_set(name: str, inside: Samples, outside: Mapping[str, Samples]) -> ComparedScore:
    """Return the AUROC of one score on each OOD validation set, and their mean; sets without scores are left out."""
    inside_scores = inside.scores[name]
    by_set = {}
    for set_name, samples in outside.items():
        outside_scores = samples.scores[name]
        if inside_scores is None or outside_scores is None:
            continue
        curve = curve_of(inside_scores, outside_scores)
        if curve is not None:
            by_set[set_name] = auroc(curve)
    mean = None
    if by_set:
        mean = sum(by_set.values()) / len(by_set)
    return ComparedScore(mean, by_set)


def _as_good_as_the_best(compared: Mapping[str, ComparedScore], model: str) -> list[str]:
    """Return the scores whose mean AUROC is less than :data:`NEAR_TIE` below the best, in the order given.

    Raises:
        InputError: if all are constant.
    """
    means = {}
    for name, score in compared.items():
        if score.mean is not None:
            means[name] = score.mean
    if not means:
        raise InputError(f"no OOD score tells anything of {model}: {', '.join(compared)} are constant")
    best_mean = max(means.values())
    return [name for name, mean in means.items() if best_mean - mean < NEAR_TIE]


class _KeptReading:
    """A reader that keeps all logits it has read, so that the model runs once on each set."""

    def __init__(self, read: LogitsReader) -> None:
        self._read = read
        self._kept: dict[tuple[str, str], list[LogitsBatch]] = {}

    def __call__(self, dataset: EvalSet) -> LogitsBatches:
        role_and_name = (dataset.role, dataset.name)
        if role_and_name not in self._kept:
            self._kept[role_and_name] = list(self._read(dataset))
        yield from self._kept[role_and_name]
