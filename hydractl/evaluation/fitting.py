"""Fits a calibration, a threshold and prediction sets of one model, and chooses one of several OOD scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from hydractl.evaluation.gathering import LogitsReader, gather, none_readable
from hydractl.evaluation.options import EvalOptions, FitOptions
from hydractl.evaluation.predictions.store import LogitsBatch
from hydractl.evaluation.providers.interface import LogitsProvider
from hydractl.evaluation.sets import OOD_VAL, TRAIN, VAL, EvalSet, of_role, only
from hydractl.files.calibrate_answer import ComparedScoreRecord
from hydractl.files.model_records import Calibration, StoredThreshold
from hydractl.metrics.bootstrap import mean_over_sets, resample_aurocs
from hydractl.metrics.calibrators import fit_calibration
from hydractl.metrics.conformal import fit_conformal
from hydractl.metrics.ood_scores import says_nothing
from hydractl.metrics.plausibility import calibration_warning, chance_warning, few_for_sets_warning, threshold_warning
from hydractl.metrics.probabilities import Floats, pooled_log_probs
from hydractl.metrics.samples import Samples
from hydractl.metrics.threshold import choose_threshold, flagged
from hydractl.model.prediction import Chosen

NEAR_TIE = 0.005
"""Scores whose mean AUROCs differ by less than this count as equally good; the first one in the options is chosen."""


@dataclass(frozen=True)
class Fit(Chosen):
    """What was fitted for one model; a field is None or empty if it was not.

    Attributes:
        flagged: the share of ``val`` and of each OOD validation set that the threshold flags, as far as they ran.
        compared: the AUROCs of all scores from which the score was chosen, by name; empty if there was no choice.
        near_ties: other scores that are about as good as the chosen one.
        validation: the predictions on the ID validation set, without vector scaling; None if they were not needed.
        warnings: sentences on what is odd about what was fitted, such as a temperature by few samples.
    """

    flagged: Mapping[str, float | None] = field(default_factory=dict)
    compared: Mapping[str, ComparedScoreRecord] = field(default_factory=dict)
    near_ties: Sequence[str] = ()
    validation: Samples | None = None
    warnings: Sequence[str] = ()


def fit(
    model: LogitsProvider, sets: Sequence[EvalSet], options: EvalOptions, scores: Sequence[str], read: LogitsReader
) -> Fit:
    """Return the calibration, OOD score, threshold and prediction sets of a model, fitted on validation data only.

    Its scores on features are fitted to the training data, and kept by the model.

    A calibration or threshold that the options do not ask for is that of the model's file, or None. The order matters:
    scores are compared on calibrated predictions, and the threshold is on the score that was chosen.

    Args:
        model: the model.
        sets: all data sets of the command.
        options: the options of the command.
        scores: the names of the OOD scores of the row. One of several is chosen, or else the first.
        read: returns the logits of a data set.

    Raises:
        InputError: if a set has no sample that can be read.
    """
    name = model.name
    warnings: list[str | None] = []
    model.fit_scores(scores, only(sets, TRAIN), options)
    compares_scores = options.compares_scores and len(scores) > 1
    if not compares_scores:
        scores = scores[:1]

    # The logits of the ID validation set. A pass over them stores them, if predictions are kept, even if nothing is
    # chosen on them.
    val = only(sets, VAL)
    batches: list[LogitsBatch] = []
    if val is not None and (options.chooses_on_val or compares_scores):
        batches = list(read(val))
        if not batches:
            raise none_readable(val, name)
    elif val is not None:
        gather(read(val), val, name)
        val = None

    # The calibration: --temperature fit or vector fits it here, a number is taken as it is, and none means none. The
    # default is the one in the model's file, if there is one.
    calibration = model.stored.calibration
    if options.temperature is not None and options.temperature.is_fitted:
        assert val is not None
        logits, labels = _logits_and_labels(batches, val)
        log_probs = pooled_log_probs(logits)  # [N, C]
        kind = "vector" if options.temperature.text == "vector" else "temperature"
        fitted = fit_calibration(kind, log_probs, labels)
        calibration = fitted.model_copy(update={"fitted_on": val.record()})
        warnings.append(calibration_warning(calibration, log_probs, labels))
    elif options.temperature is not None:
        given = options.temperature.value
        calibration = None if given is None else Calibration.of_temperature(given)

    # The calibrated predictions on validation data, by which scores are compared and a threshold is chosen.
    inside = None
    if val is not None:
        inside = gather(iter(batches), val, name, scores=scores, calibration=calibration).samples

    # Vector scaling hides labels that are in another order, so accuracy is judged without it.
    validation = inside
    if val is not None and calibration is not None and calibration.kind == "vector":
        validation = gather(iter(batches), val, name, scores=scores).samples
    outside: dict[str, Samples] = {}
    for dataset in of_role(sets, OOD_VAL):
        gathered = gather(read(dataset), dataset, name, scores=scores, calibration=calibration)
        outside[dataset.name] = gathered.samples

    # Of several OOD scores take the best, or the first of those that are nearly as good; the others are near ties.
    score = scores[0]
    compared = {}
    near_ties: list[str] = []
    if compares_scores:
        assert inside is not None
        compared = _compare_scores(inside, outside)
        score, *near_ties = as_good_as_the_best(compared)
        if near_ties:
            ties = ", ".join(near_ties)
            warnings.append(f"{score} was named first and is taken; as good on the validation data: {ties}")

    # Its threshold, the share of each validation set that this flags, and whether it separates any of them.
    samples_by_set = outside if inside is None else {**outside, VAL: inside}
    values_by_set = {set_name: samples.scores[score] for set_name, samples in samples_by_set.items()}  # [N] each
    scored = {set_name: values for set_name, values in values_by_set.items() if values is not None}  # not constant
    threshold = _threshold(model, options, score, scored, warnings)
    shares = {}
    if threshold is not None:
        shares = {name: flagged(values, threshold.value) for name, values in scored.items()}
    id_values = scored.pop(VAL, None)  # what remains are the OOD validation sets
    warnings.append(chance_warning(score, id_values, scored))

    # Prediction sets.
    conformal = None
    if options.conformal is not None:
        assert val is not None
        logits, labels = _logits_and_labels(batches, val)
        conformal = fit_conformal(
            logits, labels, method=options.conformal_score, alpha=options.conformal, calibration=calibration
        )
        warnings.append(few_for_sets_warning(conformal, model.classes))

    return Fit(
        ood_score=score,
        calibration=calibration,
        threshold=threshold,
        flagged=shares,
        conformal=conformal,
        compared=compared,
        near_ties=near_ties,
        validation=validation,
        warnings=[warning for warning in warnings if warning is not None],
    )


def _logits_and_labels(
    batches: Sequence[LogitsBatch], labelled: EvalSet
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Return the logits ``[M, N, C]`` and the labels ``[N]`` of all batches, sorted by the samples' indices in the set.

    Samples that could not be read are missing in the batches, and in the result.
    """
    assert labelled.labels is not None
    indices = np.concatenate([batch.rows for batch in batches])  # of the samples in the data set, [N]
    logits = np.concatenate([batch.logits for batch in batches], axis=1)
    order = np.argsort(indices, kind="stable")
    labels = labelled.labels[indices[order]]
    return logits[:, order], labels


def _threshold(
    model: LogitsProvider,
    options: FitOptions,
    score: str,
    scored: Mapping[str, Floats],
    warnings: list[str | None],
) -> StoredThreshold | None:
    """Return the threshold of an OOD score, at or above which samples are flagged as OOD; None if there is none.

    =======================  ===========================================================================
    ``--threshold``          the threshold
    =======================  ===========================================================================
    not given                the one in the model's file, if it suits the score and the calibration
    given, constant score    None
    ``score:X``              X
    ``id:S``, ``ood:S``      a quantile of the scores on ``--val`` or on all ``--ood-val`` sets together
    =======================  ===========================================================================

    Args:
        model: the model.
        options: the options of fitting.
        score: the name of the score.
        scored: its values on each validation set, by name: ``VAL`` is the ID set, all others are OOD sets.
        warnings: receives a sentence if the threshold is odd, and None if not; only if it was tried on data.
    """
    requested = options.threshold
    if requested is None:
        # The one in the model's file, unless it is for another score or another calibration.
        stored = model.stored.threshold
        is_kept = stored is not None and stored.score == score and options.temperature is None
        return stored if is_kept else None
    # A constant score (e.g. mutual information of a single member) has no useful threshold.
    if says_nothing(score, model.members):
        return None

    # score:0.5 is the threshold itself. Validation data, if there are some, only tell what it flags.
    value = float(requested.number)
    if requested.side == "score" and VAL not in scored:
        return StoredThreshold(score=score, value=value, rule=requested.rule)

    # The scores on the ID validation set, or for ood:S on all OOD validation sets together, [N].
    if requested.side == "ood":
        option = "--ood-val"
        scores = np.concatenate([values for name, values in scored.items() if name != VAL])
    else:
        option = "--val"
        scores = scored[VAL]
    if requested.side != "score":
        value = choose_threshold(requested, scores)
    warnings.append(threshold_warning(requested, value, scores, option))
    return StoredThreshold(score=score, value=value, rule=requested.rule)


def _compare_scores(inside: Samples, outside: Mapping[str, Samples]) -> dict[str, ComparedScoreRecord]:
    """Return the AUROC of each OOD score on every OOD validation set against the ID validation set, and their mean.

    A score that is constant for the model, e.g. the mutual information of a single member, has no AUROC and no mean.

    Args:
        inside: the calibrated predictions on the ID validation set, with all scores.
        outside: those on each OOD validation set, by the name of the set.
    """
    compared = {name: ComparedScoreRecord(by_set={}) for name in inside.scores}  # as constant scores stay
    aurocs_by_score = resample_aurocs(inside, outside, list(inside.scores), rounds=0)  # without constant scores
    for name, aurocs in aurocs_by_score.items():
        mean = mean_over_sets(aurocs, name).values[name]
        by_set = {set_name: auroc for set_name, auroc in aurocs.values.items() if auroc is not None}
        compared[name] = ComparedScoreRecord(auroc=mean, by_set=by_set)
    return compared


def as_good_as_the_best(compared: Mapping[str, ComparedScoreRecord]) -> list[str]:
    """Return the names of the scores whose mean AUROC is less than :data:`NEAR_TIE` below the best, in their order.

    Args:
        compared: the AUROCs of all scores, by name; at least one is not constant.
    """
    means = {name: score.auroc for name, score in compared.items() if score.auroc is not None}
    best_mean = max(means.values())
    return [name for name, mean in means.items() if best_mean - mean < NEAR_TIE]
