"""``hydractl eval``: accuracy, calibration, OOD detection and diversity of one or more models, one row each."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from hydractl.errors import Interrupted, UsageError
from hydractl.evaluation.answer import conventions, known_keys, records_of_sets
from hydractl.evaluation.fitting import unused_sets
from hydractl.evaluation.measuring import Measuring
from hydractl.evaluation.options import EvalOptions
from hydractl.evaluation.plausibility import findings_before, findings_of_samples, report_skipped_samples
from hydractl.evaluation.predictions.reading import is_predictions
from hydractl.evaluation.providers.interface import LogitsProvider
from hydractl.evaluation.rows import check_writable, open_rows_and_sets
from hydractl.evaluation.sets import EvalSet, Seen, option_of, seen_samples
from hydractl.expressions.data_sets import corruptions_asked_for
from hydractl.expressions.models import ModelRef
from hydractl.files.atomic import Output, check_outputs, file_path, json_path, named_apart, write_json
from hydractl.files.eval_answer import BootstrapOptions, EvalAnswer, EvalRow
from hydractl.files.model_records import DropoutRecord
from hydractl.log import Log
from hydractl.metrics.requested import PASSES
from hydractl.model.source import ModelOptions
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
    plan = plan_of(values["model"], opening_options(values), options, log)

    # A dry run: what would be measured, and whether it could be written.
    if values["dry_run"]:
        _compare(plan, log)
        files = plan.files()
        for file in files:
            check_outputs([file], force=plan.replaceable(file))
        samples = {dataset.name: len(dataset) for dataset in plan.sets}
        rows = [EvalRow.partly(name=model.name) for model in plan.models]
        names = [str(file) for file in files]
        return Outcome(EvalAnswer.planned(models=rows, samples=samples, files_=names, warnings=log.warnings))

    # Measure. Only stored predictions can be resumed.
    try:
        return _measure(plan, log)
    except KeyboardInterrupt:
        if plan.options.predictions is None:
            raise
        raise Interrupted(hint="add --resume to the same command to go on") from None


def plan_of(models: Sequence[ModelRef], opening: ModelOptions, options: EvalOptions, log: Log) -> Plan:
    """Return the opened models and data of an evaluation, after everything was checked that can be before any work.

    Notes on the data, and what is odd about them, are logged here.

    Raises:
        HydraError: models, data sets, options or output paths do not fit together.
    """
    rows, sets = open_rows_and_sets(models, opening, options, log)
    names = [row.name for row in rows]

    # The files of predictions. A single row gets the file itself; several rows each get one with their name in it.
    prediction_files = {}
    if options.predictions is not None:
        check_writable(rows)
        file_of_predictions = file_path(options.predictions)
        for name in names:
            is_alone = len(names) == 1
            prediction_files[name] = file_of_predictions if is_alone else named_apart(file_of_predictions, name)
    check_known(options.require, names, known_keys(options, sets, rows))
    path = json_path(options.output)
    log.warn_all(findings_before(rows, sets, options))

    plan = Plan(
        models=rows,
        sets=sets,
        options=options,
        path=path,
        predictions=prediction_files,
    )

    # No two outputs may be one file, by whatever path.
    files = plan.files()
    real_paths = [os.path.realpath(file) for file in files]
    for file, real_path in zip(files, real_paths, strict=True):
        if real_paths.count(real_path) > 1:
            raise UsageError(f"two outputs are named {file}", hint="give every output a name of its own")
    return plan


@dataclass(frozen=True)
class Plan:
    """What one command measures and writes.

    Attributes:
        models: the rows.
        sets: all data sets.
        options: the options of the evaluation.
        path: the file of the answer; None for no file.
        predictions: by row name, the file that its predictions are written to.
    """

    models: Sequence[LogitsProvider]
    sets: Sequence[EvalSet]
    options: EvalOptions
    path: Path | None
    predictions: Mapping[str, Path]

    def files(self) -> list[Path]:
        """Return every file that is written, the answer first."""
        files = list(self.predictions.values())
        if self.path is not None:
            files.insert(0, self.path)
        return files

    def replaceable(self, file: Path) -> bool:
        """Return whether an existing output file may be replaced or used again.

        ``--force`` allows it for every file. ``--resume`` allows it for finished predictions, which are then read, and
        for the answer if the predictions of all rows are finished, as it is then the same.
        """
        if self.options.force:
            return True
        if not self.options.resume:
            return False
        finished = [path for path in self.predictions.values() if is_predictions(path)]
        if file == self.path and len(finished) == len(self.predictions):
            return True
        return file in finished


def _measure(plan: Plan, log: Log) -> Outcome:
    """Return the answer with the metrics of every row (a model), after it and all predictions were written.

    With it come the files that were written, the answer first, and the requirements that are not met.
    """
    with ExitStack() as stack:
        # Claim every output before anything is computed. With --resume, finished predictions are read instead of made.
        outputs: dict[Path, Output] = {}
        for file in plan.files():
            may_be_there = plan.replaceable(file)
            outputs[file] = stack.enter_context(Output(file, force=plan.options.force, resumed=may_be_there))
        for dataset in unused_sets(plan.sets, plan.options):
            log.info(f"{option_of(dataset)} is not run: nothing is chosen on it, and no predictions are kept")

        # Which test samples a model has seen is found by reading all of them. A file of predictions begins with that,
        # so it must be known first. Otherwise it is found after measuring, when they have been read anyway.
        seen: Seen = {}
        if plan.predictions:
            seen = _compare(plan, log)

        # Measure row after row.
        measuring = Measuring(plan.sets, plan.options, log)
        rows: list[EvalRow] = []
        for model in plan.models:
            predictions_output = None
            if model.name in plan.predictions:
                predictions_output = outputs[plan.predictions[model.name]]
            rows.append(measuring.row(model, predictions_output, seen.get(model.name, {})))

        # What could not be read, and the seen samples if they are not known yet.
        report_skipped_samples(plan.sets, log)
        if not plan.predictions:
            seen = _compare(plan, log)
            rows = [row.model_copy(update={"seen": seen.get(row.name, {})}) for row in rows]

        # Write the answer.
        intervals = None
        if plan.options.bootstrap:
            intervals = BootstrapOptions(rounds=plan.options.bootstrap, level=0.95, seed=plan.options.seed)
        answer = EvalAnswer(
            models=rows,
            **records_of_sets(plan.sets, plan.options),
            conventions=conventions(rows, plan.models),
            warnings=log.warnings,
            bootstrap=intervals,
        )
        named_rows = [(row.name, row.to_dict()) for row in rows]
        unmet = unmet_in(named_rows, plan.options.require)
        if plan.path is not None:
            write_json(outputs[plan.path], answer.to_dict())
    return Outcome(answer, files=plan.files(), unmet=unmet)


def _compare(plan: Plan, log: Log) -> Seen:
    """Compare all samples of the command with each other and with what its models have seen, and warn of what is odd.

    Returns:
        By row name, the test samples that the model has seen, if ``--allow-seen`` allows such samples.

    Raises:
        InputError: sets that must be apart share samples, or there are seen samples that are not allowed.
    """
    log.warn_all(findings_of_samples(plan.models, plan.sets, plan.options))
    return seen_samples(plan.models, plan.sets, allow=plan.options.allow_seen)
