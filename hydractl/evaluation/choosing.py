"""What ``calibrate`` chooses of one model on validation data: an OOD score, a temperature, a threshold, a qhat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hydractl.errors import InputError
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

NEAR_TIE = 0.005
"""Mean AUROCs that differ by less count as equal: the score that is named first is taken."""


@dataclass(frozen=True)
class ComparedScore:
    """The AUROC of one OOD score on each OOD validation set, and their unweighted mean; None for a constant score."""

    mean: float | None
    by_set: Mapping[str, float]


@dataclass(frozen=True)
class Choice:
    """What was chosen.

    Attributes:
        fitted: the calibration, threshold and prediction sets.
        score: the OOD score that leads.
        compared: by name, what was found of each of several scores; empty for one.
        near_ties: further scores that are as good.
        warnings: of scores that learned nothing.
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

    The temperature comes first, as the samples that scores are compared on are calibrated; then the score; and last the
    threshold, which is one of that score.

    Args:
        model: the row.
        sets: the validation sets, and the training data of scores on features.
        options: what is asked for.
        features: keeps the features of the training data; None for none.
        log: hears of the progress.

    Raises:
        InputError: no score tells anything of the model, or a set has no sample that can be read.
    """
    scores = row_scores(model, options)
    warnings: list[str] = []
    if scores.on_features:
        training = next(iter(of_role(sets, TRAIN)), None)
        model.fit_scores(scores.on_features, training, options.fit.knn_k, features)
        if model.detector is not None:
            for name in model.detector.constant:
                warnings.append(f"{model.name}: {name} is constant on the training data")
    validation = [dataset for dataset in sets if dataset.role != TRAIN]
    read = _KeptReading(Reading(model, validation, None, log))
    if not scores.beside:
        fitted = fit_on_validation(model, sets, options.fit, scores, read)
        return Choice(fitted, scores.leading, warnings=warnings)
    without_threshold = replace(options.fit, threshold=None)
    calibration = _calibration_of(model, sets, without_threshold, scores, read)
    compared = _compared(model, sets, scores, calibration, read)
    chosen, *near_ties = _best_first(compared, model.name)
    fitted = fit_on_validation(model, sets, options.fit, RowScores(chosen), read)
    return Choice(fitted, chosen, compared, near_ties, warnings)


def _calibration_of(
    model: RunningModel, sets: Sequence[EvalSet], options: FitOptions, scores: RowScores, read: LogitsReader
) -> Calibration | None:
    fitted = fit_on_validation(model, sets, options, RowScores(scores.leading), read)
    return fitted.calibration


def _compared(
    model: RunningModel,
    sets: Sequence[EvalSet],
    scores: RowScores,
    calibration: Calibration | None,
    read: LogitsReader,
) -> dict[str, ComparedScore]:
    """Return how well each score tells the OOD validation sets from the validation data, in the order given."""
    samples = {}
    for dataset in [*of_role(sets, VAL), *of_role(sets, OOD_VAL)]:
        gathered = gather(read(dataset), dataset, model.name, scores=scores, calibration=calibration, pairs=False)
        samples[dataset.role, dataset.name] = gathered.samples
    compared = {}
    for name in scores.beside:
        if says_nothing(name, model.members):
            compared[name] = ComparedScore(None, {})
            continue
        inside_scores = samples[VAL, "val"].scores[name]
        by_set = {}
        for (role, set_name), outside in samples.items():
            if role == VAL:
                continue
            outside_scores = outside.scores[name]
            if inside_scores is None or outside_scores is None:
                continue
            curve = curve_of(inside_scores, outside_scores)
            if curve is not None:
                by_set[set_name] = auroc(curve)
        mean = None
        if by_set:
            mean = sum(by_set.values()) / len(by_set)
        compared[name] = ComparedScore(mean, by_set)
    return compared


def _best_first(compared: Mapping[str, ComparedScore], model: str) -> list[str]:
    """Return the scores that are as good as the best one, in the order given: the first one is taken.

    Raises:
        InputError: all are constant.
    """
    means = {name: score.mean for name, score in compared.items() if score.mean is not None}
    if not means:
        raise InputError(f"no OOD score tells anything of {model}: {', '.join(compared)} are constant")
    best = max(means.values())
    return [name for name, mean in means.items() if best - mean < NEAR_TIE]


class _KeptReading:
    """A reader that keeps what it has read, so that the model runs once on each set."""

    def __init__(self, read: LogitsReader) -> None:
        self._read = read
        self._kept: dict[tuple[str, str], list[LogitsBatch]] = {}

    def __call__(self, dataset: EvalSet) -> LogitsBatches:
        place = (dataset.role, dataset.name)
        if place not in self._kept:
            self._kept[place] = list(self._read(dataset))
        yield from self._kept[place]
