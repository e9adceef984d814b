"""``hydractl eval``: accuracy, calibration, OOD detection and diversity of one or more models, one row each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from hydractl.errors import Interrupted, UsageError
from hydractl.evaluation.answer import conventions, known_keys, records_of_sets
from hydractl.evaluation.leaks import Seen, seen_samples
from hydractl.evaluation.measuring import Measuring
from hydractl.evaluation.options import EvalOptions
from hydractl.evaluation.plausibility import findings_before, findings_of_samples, report_skipped_samples
from hydractl.evaluation.predictions.reading import Predictions, is_predictions
from hydractl.evaluation.providers.interface import LogitsProvider
from hydractl.evaluation.rows import open_rows_and_sets
from hydractl.evaluation.sets import EvalSet
from hydractl.expressions.data_sets import corruptions_asked_for
from hydractl.files.atomic import Output, check_outputs, file_path, json_path, named_apart, write_json
from hydractl.files.eval_answer import BootstrapOptions, EvalAnswer, EvalRow
from hydractl.files.model_records import DropoutRecord
from hydractl.log import Log
from hydractl.metrics.requested import PASSES
from hydractl.options.call import Call, filled
from hydractl.verbs.opening import opening_options
from hydractl.verbs.outcome import Outcome
from hydractl.verbs.requirements import check_known, unmet_in


def run(call: Call) -> Outcome:
    """Return the metrics of every MODEL on the same data: accuracy, calibration, OOD detection and cost.

    A dry run compares the samples of the data sets, and returns how many there are; it runs no model.
    """
    # The options, and the models and data sets that they name.
    values, log = call.values, call.log
    dropout = None
    if values["mc_dropout"] is not None:
        dropout = DropoutRecord(p=values["mc_dropout"], passes=values["passes"] or PASSES, seed=values["seed"])
    corruptions = corruptions_asked_for(values["corruptions"])
    options = filled(EvalOptions, values, dropout=dropout, corruptions=corruptions)
    models, sets = open_rows_and_sets(values["model"], opening_options(values), options, log)

    # Everything else that can be checked before any work.
    path = json_path(options.output)
    predictions = _prediction_files(models, options)
    files = [*predictions.values()] if path is None else [path, *predictions.values()]
    names = [model.name for model in models]
    check_known(options.require, names, known_keys(options, sets))
    log.warn_all(findings_before(models, sets, options))

    # An existing file may be replaced with --force. With --resume, finished predictions are read, and the answer may be
    # there if those of all rows are finished, as it is then the same.
    finished = [file for file in predictions.values() if options.resume and is_predictions(file)]
    replaceable = {file: options.force or file in finished for file in predictions.values()}
    if path is not None:
        replaceable[path] = options.force or (options.resume and len(finished) == len(predictions))

    # A dry run: what would be measured, and whether it could be written.
    if values["dry_run"]:
        _compare(models, sets, options, log)
        for file in files:
            check_outputs([file], force=replaceable[file])
        samples = {dataset.name: len(dataset) for dataset in sets}
        rows = [EvalRow.partly(name=name) for name in names]
        files_ = [str(file) for file in files]
        return Outcome(EvalAnswer.planned(models=rows, samples=samples, files_=files_, warnings=log.warnings))

    # Measure. Only stored predictions can be resumed.
    try:
        with ExitStack() as stack:
            # Claim every output before anything is computed.
            outputs = {}
            for file in files:
                outputs[file] = stack.enter_context(Output(file, force=options.force, resumed=replaceable[file]))
            stored_in = {name: outputs[file] for name, file in predictions.items()}
            answer = _measured(models, sets, options, stored_in, log)
            if path is not None:
                write_json(outputs[path], answer.to_dict())
    except KeyboardInterrupt:
        if options.predictions is None:
            raise
        raise Interrupted(hint="add --resume to the same command to go on") from None
    unmet = unmet_in([(row.name, row.to_dict()) for row in answer.models], options.require)
    return Outcome(answer, files=files, unmet=unmet)


def _prediction_files(models: Sequence[LogitsProvider], options: EvalOptions) -> dict[str, Path]:
    """Return the path of the predictions file of each row, by the name of the row (a model); empty if none are written.

    Without ``--predictions`` none are. One row has the file of the option; of several rows, each has a file with the
    name of the row in its name.

    Raises:
        UsageError: a row is a predictions file, whose logits need not be written again.
    """
    if options.predictions is None:
        return {}
    for model in models:
        if isinstance(model, Predictions):
            raise UsageError(f"{model.name} is a predictions file already", hint="leave --predictions out")
    path = file_path(options.predictions)
    if len(models) == 1:
        return {models[0].name: path}
    return {model.name: named_apart(path, model.name) for model in models}


def _measured(
    models: Sequence[LogitsProvider],
    sets: Sequence[EvalSet],
    options: EvalOptions,
    stored_in: Mapping[str, Output],
    log: Log,
) -> EvalAnswer:
    """Return the answer with the metrics of every row (a model); their predictions are written to files on the way.

    Args:
        models: the rows.
        sets: all data sets of the command.
        options: the options of the command.
        stored_in: the file for the predictions of each row, by the name of the row; empty if none are written.
        log: receives messages, warnings and progress.
    """
    # How many test samples each model has seen (was trained or fitted on) is found by reading all samples. A file of
    # predictions begins with these numbers, so with files they are found first. Without files they are found after
    # measuring, when the samples have been read anyway.
    writes_files = bool(stored_in)
    seen: Seen = {}  # by the names of the model and of the data set
    if writes_files:
        seen = _compare(models, sets, options, log)
    measuring = Measuring(sets, options, log)
    rows = [measuring.row(model, stored_in.get(model.name), seen.get(model.name, {})) for model in models]
    report_skipped_samples(sets, log)
    if not writes_files:
        seen = _compare(models, sets, options, log)
    rows = [row.model_copy(update={"seen": seen.get(row.name, {})}) for row in rows]

    intervals = None
    if options.bootstrap:
        intervals = BootstrapOptions(rounds=options.bootstrap, level=0.95, seed=options.seed)
    return EvalAnswer(
        models=rows,
        **records_of_sets(sets),
        conventions=conventions(rows, models),
        warnings=log.warnings,
        bootstrap=intervals,
    )


def _compare(models: Sequence[LogitsProvider], sets: Sequence[EvalSet], options: EvalOptions, log: Log) -> Seen:
    """Compare all samples of the command with each other and with what its models have seen, and warn of what is odd.

    Returns:
        By row name, the test samples that the model has seen, if ``--allow-seen`` allows such samples.

    Raises:
        InputError: sets that must be apart share samples, or there are seen samples that are not allowed.
    """
    log.warn_all(findings_of_samples(models, sets))
    return seen_samples(models, sets, allow=options.allow_seen)
