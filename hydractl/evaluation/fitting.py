"""Fits a calibration, a threshold and prediction sets of one model, and chooses one of several OOD scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hydractl.evaluation.choosing import as_good_as_the_best, compare_scores
from hydractl.evaluation.fitted import Fit
from hydractl.evaluation.gathering import LogitsReader, gather
from hydractl.evaluation.options import EvalOptions, FitOptions
from hydractl.evaluation.predictions.store import LogitsBatch
from hydractl.evaluation.providers.interface import LogitsProvider
from hydractl.evaluation.sets import OOD_VAL, VAL, EvalSet, of_role, only
from hydractl.files.model_records import Calibration, StoredThreshold
from hydractl.metrics.calibrators import fit_calibration
from hydractl.metrics.conformal import fit_conformal
from hydractl.metrics.ood_scores import says_nothing
from hydractl.metrics.plausibility import calibration_warning, chance_warning, few_for_sets_warning, threshold_warning
from hydractl.metrics.probabilities import Floats, pooled_log_probs
from hydractl.metrics.samples import Samples
from hydractl.metrics.threshold import choose_threshold, flagged


def sets_chosen_on(sets: Sequence[EvalSet], what: FitOptions) -> list[EvalSet]:
    """Return the validation sets on which something is fitted, or a given threshold is tried."""
    chosen_on = of_role(sets, VAL) if what.uses_val else []
    if what.needs_ood_val:
        chosen_on += of_role(sets, OOD_VAL)
    return chosen_on


def unused_sets(sets: Sequence[EvalSet], options: EvalOptions) -> list[EvalSet]:
    """Return the validation sets that are not used: nothing is chosen on them, and no predictions file stores them."""
    if options.predictions is not None:
        return []
    chosen_on = sets_chosen_on(sets, options)
    validation_sets = of_role(sets, VAL) + of_role(sets, OOD_VAL)
    return [dataset for dataset in validation_sets if dataset not in chosen_on]


def fit(
    model: LogitsProvider, sets: Sequence[EvalSet], what: FitOptions, scores: Sequence[str], read: LogitsReader
) -> Fit:
    """Return the calibration, OOD score, threshold and prediction sets of a model, fitted on validation data only.

    A calibration or threshold that the options do not ask for is that of the model's file, or None. The order matters:
    scores are compared on calibrated predictions, and the threshold is on the score that was chosen.

    Args:
        model: the model; its scores on features are fitted already.
        sets: all data sets of the command.
        what: the options of fitting.
        scores: the names of the OOD scores of the row. If there are several, one of them is chosen.
        read: returns the logits of a data set.

    Raises:
        InputError: if all scores are constant for the model, or a set has no sample that can be read.
    """
    name = model.name
    compares_scores = len(scores) > 1
    warnings: list[str | None] = []

    # The predictions on the ID validation set, without a calibration; None if nothing needs them.
    val = only(sets, VAL)
    batches: list[LogitsBatch] = []
    validation = None
    if val is not None and (what.uses_val or compares_scores):
        batches = list(read(val))
        validation = gather(iter(batches), val, name, scores=scores).samples

    # The calibration: --temperature fit or vector fits it here, a number is taken as it is, and none means none. The
    # default is the one in the model's file, if there is one.
    calibration = model.stored.calibration
    if what.temperature is not None and what.temperature.is_fitted:
        assert val is not None and validation is not None and validation.labels is not None
        log_probs = pooled_log_probs(_logits(batches))  # [N, C]
        kind = "vector" if what.temperature.text == "vector" else "temperature"
        fitted = fit_calibration(kind, log_probs, validation.labels)
        calibration = fitted.model_copy(update={"fitted_on": val.record()})
        warnings.append(calibration_warning(calibration, log_probs, validation.labels))
    elif what.temperature is not None:
        given = what.temperature.value
        calibration = None if given is None else Calibration.of_temperature(given)

    # The calibrated predictions on validation data, by which scores are compared and a threshold is chosen.
    inside = None
    if compares_scores or what.threshold is not None:
        inside = validation
        if val is not None and validation is not None and calibration is not None:
            calibrated = gather(iter(batches), val, name, scores=scores, calibration=calibration)
            inside = calibrated.samples
    outside: dict[str, Samples] = {}
    if compares_scores or what.needs_ood_val:
        for dataset in of_role(sets, OOD_VAL):
            gathered = gather(read(dataset), dataset, name, scores=scores, calibration=calibration)
            outside[dataset.name] = gathered.samples

    # Of several OOD scores take the best, or the first of those that are nearly as good; the others are near ties.
    score = scores[0]
    compared = {}
    near_ties: Sequence[str] = ()
    if compares_scores:
        assert inside is not None
        compared = compare_scores(scores, inside, outside, model.members)
        score, *near_ties = as_good_as_the_best(compared, name)

    # Its threshold, the share of each validation set that this flags, and whether it separates any of them.
    scored = _scored(score, inside, outside)  # its values by validation set, [N] each
    threshold = _threshold(model, what, score, scored, warnings)
    shares = {}
    if threshold is not None:
        shares = {name: flagged(values, threshold.value) for name, values in scored.items()}
    id_values = scored.pop(VAL, None)  # what remains are the OOD validation sets
    warnings.append(chance_warning(score, id_values, scored))

    # Prediction sets.
    conformal = None
    if what.conformal is not None:
        assert validation is not None and validation.labels is not None
        conformal = fit_conformal(
            _logits(batches),
            validation.labels,
            method=what.conformal_score,
            alpha=what.conformal,
            calibration=calibration,
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
        validation=validation if what.uses_val else None,
        warnings=[warning for warning in warnings if warning is not None],
    )


def _logits(batches: Sequence[LogitsBatch]) -> npt.NDArray[Any]:
    """Return the logits of batches in the order of their samples, ``[M, N, C]``."""
    rows = np.concatenate([batch.rows for batch in batches])
    logits = np.concatenate([batch.logits for batch in batches], axis=1)
    in_order: npt.NDArray[Any] = logits[:, np.argsort(rows, kind="stable")]
    return in_order


def _scored(score: str, inside: Samples | None, outside: Mapping[str, Samples]) -> dict[str, Floats]:
    """Return the values of an OOD score, ``[N]``, on ``val`` and each OOD validation set where it is not constant.

    Args:
        score: the name of the score.
        inside: the calibrated predictions on the ID validation set; None without one.
        outside: those on each OOD validation set, by name.
    """
    samples_by_set = dict(outside)
    if inside is not None:
        samples_by_set[VAL] = inside
    scored = {}
    for name, samples in samples_by_set.items():
        values = samples.scores[score]
        if values is not None:
            scored[name] = values
    return scored


def _threshold(
    model: LogitsProvider,
    what: FitOptions,
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
    ``id:S``, ``ood:S``      a quantile of the scores on ``--val`` or on all ``--ood-val`` sets
    =======================  ===========================================================================

    Args:
        model: the model.
        what: the options of fitting.
        score: the name of the score.
        scored: its values on each validation set, by name.
        warnings: receives a sentence if the threshold is odd.
    """
    requested = what.threshold
    if requested is None:
        # The one in the model's file, unless it is for another score or another calibration.
        stored = model.stored.threshold
        is_kept = stored is not None and stored.score == score and what.temperature is None
        return stored if is_kept else None
    # A constant score (e.g. mutual information of a single member) has no useful threshold.
    if says_nothing(score, model.members):
        return None

    # score:0.5 is the threshold itself. Validation data, if there are some, only tell what it flags.
    value = float(requested.number)
    if requested.side == "score" and VAL not in scored:
        return StoredThreshold(score=score, value=value, rule=requested.rule)

    # The scores on the ID validation set, or for ood:S on all OOD validation sets together.
    counts_ood = requested.side == "ood"
    option = "--ood-val" if counts_ood else "--val"
    counted = [values for name, values in scored.items() if (name != VAL) == counts_ood]
    scores = np.concatenate(counted)
    if requested.side != "score":
        value = choose_threshold(requested, scores)
    warnings.append(threshold_warning(requested, value, scores, option))
    return StoredThreshold(score=score, value=value, rule=requested.rule)
