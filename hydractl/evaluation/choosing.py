"""What ``calibrate`` chooses for one model on validation data: an OOD score, a temperature, a threshold, a qhat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hydractl.errors import InputError
from hydractl.evaluation.features import FeaturesFile
from hydractl.evaluation.fitting import RowFit, fit_on_validation
from hydractl.evaluation.gathering import LogitsReader, Reading, gather
from hydractl.evaluation.options import EvalOptions, FitOptions, RowScores
from hydractl.evaluation.plausibility import unsuited, warning_of_unsuited, warnings_of_constants
from hydractl.evaluation.predictions.store import LogitsBatch
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
"""Scores whose mean AUROCs differ by less than this count as equally good; the first one in the options is chosen."""


@dataclass(frozen=True)
class ComparedScore:
    """The AUROCs of one OOD score by OOD validation set, and their unweighted mean; None for a constant score."""

    mean: float | None
    by_set: Mapping[str, float]


@dataclass(frozen=True)
class Choice:
    """Everything that was chosen for one model.

    Attributes:
        fitted: the calibration, threshold and prediction sets.
        score: the chosen OOD score.
        compared: the AUROCs of all scores that were compared, by name; empty if there was only one score.
        near_ties: other scores that are about as good as the chosen one.
    """

    fitted: RowFit
    score: str
    compared: Mapping[str, ComparedScore] = field(default_factory=dict)
    near_ties: Sequence[str] = ()


def choose_for(
    model: RunningModel, sets: Sequence[EvalSet], options: EvalOptions, features: FeaturesFile | None, log: Log
) -> Choice:
    """Choose everything that the options ask for, using only validation data.

    The order is: first the temperature, because scores are compared with calibrated predictions; then the OOD score;
    then the threshold of this score and the prediction sets.

    Args:
        model: the model.
        sets: the validation sets, and the training data for scores on features.
        options: the options of the command.
        features: a file for the features of the training data; None means no file.
        log: receives warnings about scores that are constant on the training data, or do not suit the features; shows
            the progress.

    Raises:
        InputError: if all scores are constant for the model, or a set has no sample that can be read.
    """
    # Fit the scores on features to the training data. This also sets the detector of the model.
    scores = row_scores(model, options)
    if scores.on_features:
        _fit_scores(model, scores, sets, options.fit, features, log)
    unsuited_scores = unsuited(model, scores.beside or [scores.leading])
    if unsuited_scores:
        log.warn(warning_of_unsuited(model.name, unsuited_scores))

    # With a single score there is nothing to compare.
    validation_sets = [dataset for dataset in sets if dataset.role != TRAIN]
    read = _KeptReading(Reading(model, validation_sets, None, log))
    if not scores.beside:
        fitted = fit_on_validation(model, sets, options.fit, scores, read)
        return Choice(fitted, scores.leading)

    # Calibrate, compare the scores with calibrated predictions, and fit the rest for the best score.
    calibration = _fitted_calibration(model, sets, options.fit, scores, read)
    compared = _compare_scores(model, sets, scores, calibration, read)
    chosen_score, *near_ties = _as_good_as_the_best(compared, model.name)
    fitted = fit_on_validation(model, sets, options.fit, RowScores(chosen_score), read)
    return Choice(fitted, chosen_score, compared, near_ties)


def _fit_scores(
    model: RunningModel,
    scores: RowScores,
    sets: Sequence[EvalSet],
    options: FitOptions,
    features: FeaturesFile | None,
    log: Log,
) -> None:
    """Fit the OOD scores on features to the training data, if there are any, and set the model's detector.

    Warns of each score that is constant on the training data.
    """
    training = next(iter(of_role(sets, TRAIN)), None)
    model.fit_scores(scores.on_features, training, options.knn_k, features)
    if model.detector is None:
        return
    # Reduce the bank (stored training features) to the number in --knn-bank. A bank in the checkpoint is not changed.
    if training is not None and options.knn_bank is not None:
        model.detector = model.detector.with_bank(options.knn_bank)
    for warning in warnings_of_constants(model):
        log.warn(warning)


def _fitted_calibration(
    model: RunningModel, sets: Sequence[EvalSet], options: FitOptions, scores: RowScores, read: LogitsReader
) -> Calibration | None:
    """Return the calibration for the model; None if the options ask for none."""
    options_without_threshold = replace(options, threshold=None)  # the threshold is chosen later, for the best score
    only_leading_score = RowScores(scores.leading)
    fitted = fit_on_validation(model, sets, options_without_threshold, only_leading_score, read)
    return fitted.calibration


def _compare_scores(
    model: RunningModel,
    sets: Sequence[EvalSet],
    scores: RowScores,
    calibration: Calibration | None,
    read: LogitsReader,
) -> dict[str, ComparedScore]:
    """Return how well each OOD score separates the OOD validation sets from the ID validation set.

    Args:
        model: the model.
        sets: all data sets of the command.
        scores: the scores to compare; their names are in ``scores.beside``.
        calibration: the calibration of the predictions, or None.
        read: returns the logits of a data set.

    Returns:
        The AUROCs of each score by its name, in the order of the options; a constant score has none.
    """

    # Computes all scores of a data set from its logits, with one score for each sample.
    def samples_of_set(dataset: EvalSet) -> Samples:
        gathered = gather(read(dataset), dataset, model.name, scores=scores, calibration=calibration, pairs=False)
        return gathered.samples

    (validation_set,) = of_role(sets, VAL)  # the settings require --val to compare scores
    id_samples = samples_of_set(validation_set)
    ood_samples = {dataset.name: samples_of_set(dataset) for dataset in of_role(sets, OOD_VAL)}
    compared = {}
    for name in scores.beside:
        # A score that measures how members differ is constant for a single member, so it has no AUROC.
        if says_nothing(name, model.members):
            compared[name] = ComparedScore(None, {})
        else:
            compared[name] = _auroc_on_each_set(name, id_samples, ood_samples)
    return compared


def _auroc_on_each_set(name: str, inside: Samples, outside: Mapping[str, Samples]) -> ComparedScore:
    """Return the AUROC of one OOD score on each OOD validation set, and the mean of these AUROCs.

    Args:
        name: the name of the score.
        inside: the predictions on the ID validation set, with the score.
        outside: the predictions on each OOD validation set, by the name of the set. Sets without scores are left out.
    """
    id_scores = inside.scores[name]
    auroc_by_set = {}
    for set_name, samples in outside.items():
        ood_scores = samples.scores[name]
        if id_scores is None or ood_scores is None:
            continue
        curve = curve_of(id_scores, ood_scores)
        if curve is not None:
            auroc_by_set[set_name] = auroc(curve)
    mean = None
    if auroc_by_set:
        mean = sum(auroc_by_set.values()) / len(auroc_by_set)
    return ComparedScore(mean, auroc_by_set)


def _as_good_as_the_best(compared: Mapping[str, ComparedScore], model: str) -> list[str]:
    """Return the names of the scores whose mean AUROC is less than :data:`NEAR_TIE` below the best, in their order.

    Args:
        compared: the AUROCs of all scores, by name.
        model: the name of the model, for the message.

    Raises:
        InputError: if all scores are constant.
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
    """A reader of logits that stores everything it has read, so that the model runs only once on each data set."""

    def __init__(self, read: LogitsReader) -> None:
        self._read = read
        self._kept: dict[tuple[str, str], list[LogitsBatch]] = {}

    def __call__(self, dataset: EvalSet) -> LogitsBatches:
        role_and_name = (dataset.role, dataset.name)
        if role_and_name not in self._kept:
            self._kept[role_and_name] = list(self._read(dataset))
        yield from self._kept[role_and_name]
