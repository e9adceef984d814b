"""``hydractl calibrate``: choose temperature, threshold and OOD score of a checkpoint on validation data."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from hydractl.errors import InputError, UsageError
from hydractl.evaluation.answer import records_of_sets
from hydractl.evaluation.calibrated import calibrated_model, write_calibrated
from hydractl.evaluation.fitting import fit
from hydractl.evaluation.gathering import read_logits
from hydractl.evaluation.options import EvalOptions
from hydractl.evaluation.plausibility import (
    findings_before,
    findings_of_samples,
    report_skipped_samples,
    warnings_of_fit,
)
from hydractl.evaluation.providers.running import RunningModel
from hydractl.evaluation.rows import open_rows_and_sets, row_scores
from hydractl.evaluation.sets import fitted_entries
from hydractl.files.atomic import Output, check_outputs, file_path, write_json
from hydractl.files.calibrate_answer import CalibrateAnswer, CalibratedModelRecord
from hydractl.metrics.ood_scores import says_nothing
from hydractl.options.call import Call, filled
from hydractl.verbs.opening import opening_options
from hydractl.verbs.outcome import Outcome


def run(call: Call) -> Outcome:
    """Return what was chosen on validation data: temperature, threshold and OOD score of one model.

    It is written, too: into a copy of the checkpoint (``NAME.calibrated.st``), or as JSON where the model is no single
    checkpoint or the output ends in ``.json``. A dry run returns what would be read and written.
    """
    values, log = call.values, call.log
    (ref,) = values["model"]
    options = filled(EvalOptions, values, test=None, tests=False)

    # Open and check the model and the data sets before any work.
    (model,), sets = open_rows_and_sets([ref], opening_options(values), options, log)

    # The output: a checkpoint, or JSON (then checkpoint is None). Stored predictions, and several checkpoints, have no
    # file to copy.
    checkpoint = model if isinstance(model, RunningModel) and len(model.argument.sources) == 1 else None
    ending = "calibration.json" if checkpoint is None else "calibrated.st"
    path = file_path(options.output or f"{model.name}.{ending}")
    if path.suffix == ".json":
        checkpoint = None
    elif checkpoint is None:
        text = f"{ref} is not one checkpoint: what is chosen for it is written as JSON, for eval --calibration"
        raise UsageError(text, hint="-o FILE.json")
    log.warn_all(findings_before([model], sets, options))

    # The OOD scores of which one is taken. A constant one would be stored for nothing, and without its threshold.
    scores = row_scores(model, options)
    if all(says_nothing(score, model.members) for score in scores):
        names = ",".join(scores)
        raise InputError(
            f"--ood-score {names} is constant for {model.name}, a single model, and tells no samples apart",
            hint="choose another score, such as --ood-score energy",
        )

    # A dry run reads the samples to compare them, and runs no model.
    if values["dry_run"]:
        log.warn_all(findings_of_samples([model], sets))
        check_outputs([path], force=options.force)
        samples = {dataset.name: len(dataset) for dataset in sets}
        planned_model = CalibratedModelRecord.partly(name=model.name)
        files = [str(path)]
        return Outcome(
            CalibrateAnswer.planned(model=planned_model, samples=samples, files_=files, warnings=log.warnings)
        )

    with ExitStack() as stack:
        output = stack.enter_context(Output(path, force=options.force))

        # Run the model on the sets and choose; then free its memory.
        try:
            fitted = fit(model, sets, options, scores, partial(read_logits, model, None, log))
        finally:
            model.release()
        log.warn_all(findings_of_samples([model], sets))
        log.warn_all(warnings_of_fit(model, fitted))

        # Write the checkpoint. It gets an OOD score only if one was asked for, or if it had one before.
        score = None
        if options.scores or model.stored.ood_score:
            score = fitted.score
        if checkpoint is not None:
            left_out = write_calibrated(checkpoint, fitted, score, sets, values["note"], output)
            if left_out:
                names = " and ".join(left_out)
                flags = " and ".join(f"--{key}" for key in left_out)
                why = f"it was chosen with another calibration or OOD score; to choose anew: {flags}"
                log.warn(f"{model.name}: the stored {names} is left out: {why}")

        # Make the answer. "seen" are the samples that something was fitted to, which later commands refuse to test on.
        report_skipped_samples(sets, log)
        answer = CalibrateAnswer(
            model=calibrated_model(model),
            calibration=fitted.calibration,
            threshold=fitted.threshold,
            flagged=fitted.flagged or None,
            conformal=fitted.conformal,
            ood_score=score,
            compared=fitted.compared or None,
            near_ties=list(fitted.near_ties) or None,
            **records_of_sets(sets),
            note=values["note"],
            warnings=log.warnings,
        )
        if checkpoint is None:
            seen = fitted_entries(sets, "calibrate")
            write_json(output, answer.model_copy(update={"seen": seen or None}).to_dict())
    return Outcome(answer, files=[path])
