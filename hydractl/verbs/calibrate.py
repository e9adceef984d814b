"""``hydractl calibrate``: choose temperature, threshold and OOD score of a checkpoint on validation data."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from hydractl.data.base import report_skipped
from hydractl.evaluation.answer import records_of_sets
from hydractl.evaluation.calibrated import kept_conformal, write_calibrated
from hydractl.evaluation.features import open_features
from hydractl.evaluation.fitted import Fit
from hydractl.evaluation.fitting import fit, fit_scores, unused_sets
from hydractl.evaluation.gathering import Reading
from hydractl.evaluation.options import EvalOptions
from hydractl.evaluation.plausibility import (
    report_cut_texts,
    warning_of_unsuited,
    warnings_before,
    warnings_of_fit,
    warnings_of_samples,
)
from hydractl.evaluation.providers.running import RunningModel
from hydractl.evaluation.rows import check_scores, find_row_to_calibrate, row_scores
from hydractl.evaluation.sets import TRAIN, OpenedSets, open_fitted_sets, option_of
from hydractl.expressions.models import ModelRef
from hydractl.files.atomic import Output, check_outputs, file_path
from hydractl.files.calibrate_answer import (
    CalibrateAnswer,
    CalibratedModelRecord,
    ChosenConformalRecord,
    ComparedScoreRecord,
)
from hydractl.files.model_records import ThresholdRecord
from hydractl.log import Log
from hydractl.metrics.conformal import Conformal
from hydractl.model.loading import resolve_device
from hydractl.model.source import ModelOptions
from hydractl.verbs.outcome import Outcome


def run(
    ref: ModelRef,
    opening: ModelOptions,
    options: EvalOptions,
    *,
    note: str | None,
    dry_run: bool,
    log: Log,
) -> Outcome:
    """Choose temperature, threshold and OOD score on validation data, and write the checkpoint with them.

    Args:
        ref: the MODEL.
        opening: how it is opened.
        options: the options of an evaluation on the same validation data, without test data. Without an output the
            checkpoint is named after the model.
        note: a text that the checkpoint keeps; None for none.
        dry_run: whether to stop after the checks.
        log: receives warnings and what was chosen.
    """
    # Open and check the model, the data sets and the output paths before any work.
    resolve_device(options.run.device)
    model = find_row_to_calibrate(ref, opening, options, log)
    opened = open_fitted_sets(options.data, model)
    check_scores([model], opened.sets, options)
    model.check_sets(opened.sets)
    path = file_path(options.output or f"{model.name}.calibrated.st")
    features_path = None
    if options.features is not None:
        features_path = file_path(options.features)
    for note in opened.notes:
        log.info(note)

    for warning in warnings_before([model], opened.sets):
        log.warn(warning)
    if dry_run:
        for warning in warnings_of_samples([model], opened.sets, options):
            log.warn(warning)
        check_outputs([path], force=options.force)
        return _dry_run(model, opened, path, features_path, log)

    with ExitStack() as stack:
        # Claim the output files, and say which sets will not be run.
        checkpoint = stack.enter_context(Output(path, force=options.force))
        features_file = None
        if features_path is not None:
            features_file = open_features(features_path, stack)
        report_cut_texts([model], opened.sets, log)
        compares_scores = len(options.fit.scores.names) > 1  # for which all validation sets are run
        if not compares_scores:
            for eval_set in unused_sets(opened.sets, options):
                log.info(f"{option_of(eval_set)} is not run: nothing is chosen on it")

        # Choose. Comparing scores may leave several that are equally good.
        try:
            scores = row_scores(model, options)
            fit_scores(model, opened.sets, options.fit, scores, features_file, log)
            validation_sets = [dataset for dataset in opened.sets if dataset.role != TRAIN]
            fitted = fit(model, opened.sets, options.fit, scores, Reading(model, validation_sets, None, log))
        finally:
            model.release()
        for warning in warnings_of_samples([model], opened.sets, options):
            log.warn(warning)
        unsuited = warning_of_unsuited(model, scores.on_features, set())
        if unsuited is not None:
            log.warn(unsuited)
        if fitted.near_ties:
            ties = ", ".join(fitted.near_ties)
            log.warn(f"{fitted.score} was named first and is taken; as good on the validation data: {ties}")

        for warning in warnings_of_fit(model, fitted):
            log.warn(warning)
        left_out = _left_out(model, fitted, options)
        if left_out is not None:
            log.warn(left_out)

        # Write the checkpoint. It gets an OOD score only if one was asked for, or if it had one before.
        score = None
        if options.fit.scores.are_named or model.stored.score:
            score = fitted.score
        write_calibrated(model, fitted, score, opened.sets, note, checkpoint)
    for eval_set in opened.sets:
        if eval_set.dataset is not None:
            report_skipped(eval_set.dataset, log)
    answer = _make_answer(model, opened, fitted, score, options, note, log.warnings)
    return Outcome(answer, files=[path])


def _left_out(model: RunningModel, fitted: Fit, options: EvalOptions) -> str | None:
    """Return a sentence on what the model's file holds and the new one will not, as it fits no longer; or None."""
    (source,) = model.argument.sources
    stored = source.description.extra
    flag_by_name = {}
    has_no_threshold = fitted.threshold is None and options.fit.threshold is None
    if "threshold" in stored and has_no_threshold:
        flag_by_name["threshold"] = "--threshold"
    if "conformal" in stored and kept_conformal(model, fitted) is None:
        flag_by_name["prediction sets"] = "--conformal"
    if not flag_by_name:
        return None
    names = " and ".join(flag_by_name)
    flags = " and ".join(flag_by_name.values())
    return (
        f"{model.name}: {names} in its file were chosen with another calibration or OOD score, and are left out; to "
        f"choose anew: {flags}"
    )


def _dry_run(model: RunningModel, opened: OpenedSets, path: Path, features: Path | None, log: Log) -> Outcome:
    """Return which data would be used and which files written.

    Args:
        model: the model to calibrate.
        opened: the data sets that something is chosen on.
        path: the path of the calibrated model.
        features: the file that stores features, written if it does not exist; None if features are not stored.
        log: has the warnings so far.
    """
    files = [path]
    if features is not None and not features.exists():
        files.append(features)
    samples_by_set = {dataset.name: len(dataset) for dataset in opened.sets}
    names = [str(file) for file in files]
    planned_model = CalibratedModelRecord.partly(name=model.name)
    planned = CalibrateAnswer.planned(model=planned_model, samples=samples_by_set, files_=names, warnings=log.warnings)
    return Outcome(planned)


def _make_answer(
    model: RunningModel,
    opened: OpenedSets,
    fitted: Fit,
    score: str | None,
    options: EvalOptions,
    note: str | None,
    warnings: Sequence[str],
) -> CalibrateAnswer:
    """Return the answer: what was chosen, and on which data.

    Args:
        model: the calibrated model.
        opened: the data sets.
        fitted: what was chosen on them.
        score: the OOD score that was written to the checkpoint; None if none was.
        options: the options of the choice.
        note: a text that the checkpoint keeps; None for none.
        warnings: all warnings of the run.
    """
    records = records_of_sets(opened.sets, options, all_used=bool(fitted.compared))
    compared = {}
    for name, aurocs in fitted.compared.items():
        compared[name] = ComparedScoreRecord(auroc=aurocs.mean, by_set=dict(aurocs.by_set))
    threshold = None
    if fitted.threshold is not None:
        threshold = ThresholdRecord.model_validate(fitted.threshold)
    return CalibrateAnswer(
        model=CalibratedModelRecord(name=model.name, sha256=model.argument.sources[0].sha256),
        calibration=fitted.calibration_record(stored=fitted.stored),
        threshold=threshold,
        conformal=_conformal_record(fitted.conformal),
        ood_score=score,
        compared=compared or None,
        near_ties=list(fitted.near_ties) or None,
        val=records.val,
        ood_val=records.ood_val or None,
        train=records.train,
        note=note,
        warnings=warnings,
    )


def _conformal_record(conformal: Conformal | None) -> ChosenConformalRecord | None:
    """Return the conformal prediction sets in the form of the answer; None if there are none."""
    if conformal is None:
        return None
    return ChosenConformalRecord(
        method=conformal.method, alpha=conformal.alpha, qhat=conformal.qhat, n_val=conformal.n_val
    )
