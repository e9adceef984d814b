"""``hydractl predict``: what a model predicts for inputs without labels, and which inputs it was not trained for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydractl.data import Dataset
from hydractl.data.base import (
    UnreadableSample,
    left_out_warnings,
    orientation_warnings,
    reasons_of_skipped,
    warning_of_skipped,
)
from hydractl.data.predict_inputs import open_inputs
from hydractl.data.text import warning_of_cut
from hydractl.distributed import alone
from hydractl.errors import InputError, Interrupted, UsageError
from hydractl.evaluation.options import PredictOptions
from hydractl.evaluation.predicting import (
    FLAG,
    PredictionRow,
    PredictionTally,
    Window,
    predicted_windows,
)
from hydractl.evaluation.predictions.lines import continued, log_what_resumes, write_rows
from hydractl.evaluation.providers.running import RunningModel
from hydractl.files.atomic import Output, check_outputs, json_path, write_json
from hydractl.files.predict_answer import (
    REQUIRABLE,
    PredictAnswer,
    PredictingModelRecord,
)
from hydractl.files.predictions_header import DecisiveRecord
from hydractl.model.loading import find_models, resolve_device
from hydractl.options.call import Call, filled
from hydractl.verbs.opening import announce_reading, opening_options
from hydractl.verbs.outcome import Outcome
from hydractl.verbs.requirements import check_known, unmet_in

_THRESHOLD_HINT = "hydractl calibrate MODEL --val SPEC --threshold id:0.05 writes one"


@dataclass(frozen=True)
class _Plan:
    """What is predicted, and how it is written.

    Attributes:
        model: the checkpoint that predicts; its weights are not read yet.
        dataset: all inputs.
        options: the options of the command.
        lines: the file of the predictions; None: they are printed.
        report: the file of the summary; None for no file.
    """

    model: RunningModel
    dataset: Dataset
    options: PredictOptions
    lines: Path | None
    report: Path | None

    def windows(self, start: int) -> Iterator[Window]:
        """Yield the predictions for the samples from index ``start`` on, a few batches at a time."""
        return predicted_windows(self.model, self.dataset, start, top=self.options.top)

    @property
    def paths(self) -> list[Path]:
        """The paths of the files that are written."""
        return [path for path in (self.lines, self.report) if path is not None]


def run(call: Call) -> Outcome:
    """Return the summary of the predictions of one model for every input, which are written to a file.

    Without an output file nothing is predicted yet: the ``lines`` of the outcome predict while they are taken, with
    ``--flagged`` only those of flagged samples, and fill in the summary after the last one. A dry run returns how many
    inputs there are.
    """
    if not alone():
        hint = "give each process a part of its own: hydractl predict MODEL 'SPEC?part=1/4' -o 1.jsonl"
        raise UsageError("predict is one process, and torchrun has started several", hint=hint)
    plan = _plan(call)
    if call.values["dry_run"]:
        check_outputs(plan.paths, force=plan.options.force)
        names = [str(path) for path in plan.paths]
        record = PredictingModelRecord.partly(name=plan.model.name)
        return Outcome(PredictAnswer.planned(model=record, n=len(plan.dataset), files_=names))

    # Without a file: lines, which predict when they are taken.
    announce_reading(plan.model.argument.sources, call.log)
    outcome = Outcome(PredictAnswer.partly())
    if plan.lines is None:
        rows = _rows(plan, plan.windows(0), outcome)
        outcome.lines = (row for row in rows if row[FLAG]) if plan.options.flagged else rows
        return outcome
    try:
        _predict_into_file(plan, plan.lines, outcome)
    except KeyboardInterrupt:
        raise Interrupted(hint="add --resume to the same command to go on") from None
    return outcome


# --- what is asked for ------------------------------------------------------------------------------------------------


def _plan(call: Call) -> _Plan:
    """Return the opened model and inputs, after everything was checked that can be before any work.

    Raises:
        OutputError: a path of an output names a folder.
        UsageError: the device is not there, MODEL is not a single model or its classes have no names, or a
            requirement is on a figure that these predictions will not have.
        InputError: the model or an input cannot be read, or is broken.
    """
    values, log = call.values, call.log
    options = filled(PredictOptions, values)
    opening = opening_options(values)
    resolve_device(options.device)
    lines = json_path(values["output"])
    report = json_path(values["report"])

    # The model: a single one, whose classes have names.
    ref, *inputs = values["model"]
    _, members = ref.split()
    if len(members) > 1:
        raise UsageError(f"predict runs one model, and {ref} is several", hint="fuse them: hydractl fuse")
    (argument,) = find_models([ref], opening)
    (source,) = argument.sources
    name = argument.name
    is_zero_shot = not source.classes
    if is_zero_shot and not source.description.labels:
        raise UsageError(f"{name} is zero-shot, and its classes have no names", hint="name them: --labels FILE")
    model = RunningModel(argument, options, log)

    # The inputs: those that follow the model, else those of --data.
    dataset = open_inputs(
        [item.text for item in inputs] or [values["data"]],
        reads={name: source.description.reads},
        labels=source.description.labels or [],
        limit=options.limit,
        seed=opening.seed,
        on_bad=options.on_bad,
    )

    # Requirements, and what they and --flagged need: a threshold, above which an input is flagged as OOD.
    check_known(options.require, [name], REQUIRABLE)
    if model.stored.threshold is None:
        needing = [f"--require {asked.text}" for asked in options.require if asked.key == "ood_share"]
        if options.flagged:
            needing.append("--flagged")
        if needing:
            raise UsageError(f"{needing[0]} needs a threshold, and {name} holds none", hint=_THRESHOLD_HINT)
        log.info(f"{name} holds no threshold, so no input is flagged; {_THRESHOLD_HINT}")
    log.warn_all(left_out_warnings(dataset))
    return _Plan(model, dataset, options, lines, report)


# --- predicting -------------------------------------------------------------------------------------------------------


def _rows(plan: _Plan, windows: Iterator[Window], outcome: Outcome) -> Iterator[PredictionRow]:
    """Yield the row of each sample in windows; after the last one fill in ``outcome``, and write the summary.

    Raises:
        InputError: none of the inputs can be read.
    """
    options = plan.options
    with ExitStack() as stack:
        report = None
        if plan.report is not None:
            report = stack.enter_context(Output(plan.report, force=options.force, resumed=options.resume))
        tally = PredictionTally()
        yield from tally.counted(windows)
        if not tally.predicted:
            skipped = plan.dataset.skipped or {}
            reasons = [skipped[row] for row in sorted(skipped)]
            raise InputError(f"not one of the {len(plan.dataset)} inputs can be read", problems=reasons[:10])
        _sum_up(plan, tally, report, outcome)


def _predict_into_file(plan: _Plan, path: Path, outcome: Outcome) -> None:
    """Write the predictions to a file, and fill in ``outcome``.

    They are in an unfinished file beside it, too (``NAME.part``). A run that is stopped leaves it, and one with
    ``--resume`` goes on after its last sample.

    Raises:
        InputError: none of the inputs can be read, or the unfinished file is of another run.
    """
    # A stopped run may already have written the outputs, and left its unfinished file because it was not at its end.
    # Resumed, it finds them the same; outputs that say something else are replaced with --force alone.
    resume, log = plan.options.resume, plan.model.log
    with Output(path, force=plan.options.force, resumed=resume) as output:
        log_what_resumes(output, log, resume=resume)

        def predict(start: int) -> Iterator[Window]:
            if start:
                total = len(plan.dataset)
                log.info(f"{output.unfinished} is resumed: {total - start:,} of {total:,} are left")
            return plan.windows(start)

        windows = continued(output.unfinished, _fingerprint(plan), predict, resume=resume)
        try:
            write_rows(output, _rows(plan, windows, outcome))
        except UnreadableSample as error:  # by --on-bad error; without any predictions there is nothing to resume
            if output.unfinished.exists():
                error.hint = f"{error.hint}; --resume goes on once it is replaced"
            raise
        output.unfinished.unlink(missing_ok=True)


def _fingerprint(plan: _Plan) -> dict[str, Any]:
    """Return, by key, everything that decides the predictions: the model, the inputs and the options, as JSON values.

    An unfinished file with other values cannot be resumed.
    """
    # The inputs by their names, not by their content, so that they need not be read. They may contain file names that
    # are not valid UTF-8.
    options = plan.options
    names_of_inputs = "\n".join([plan.dataset.spec, *plan.dataset.ids])
    digest_of_inputs = hashlib.sha256(names_of_inputs.encode("utf-8", "surrogateescape")).hexdigest()
    decisive = {"labels", *DecisiveRecord.model_fields}
    return {
        "model": plan.model.sha256,
        "inputs": digest_of_inputs,
        "on_bad": options.on_bad,
        "top": options.top,
        **plan.model.record.model_dump(mode="json", include=decisive),
    }


# --- the summary ------------------------------------------------------------------------------------------------------


def _sum_up(plan: _Plan, tally: PredictionTally, report: Output | None, outcome: Outcome) -> None:
    """Fill in ``outcome``: the summary of all predictions, the files, and the requirements that are not met.

    The summary is also written to the file of ``--report``, and logged: how many inputs were flagged, which could not
    be read, and how many texts were cut.

    Args:
        plan: what was predicted.
        tally: the counts over all windows.
        report: the file of the summary; None for no file.
        outcome: is filled in.
    """
    # What is said of the model: its score, threshold, temperature and prediction sets, None for what it does not hold.
    model, log = plan.model, plan.model.log
    chosen = model.stored
    (source,) = model.argument.sources
    record = PredictingModelRecord(
        name=model.name,
        sha256=source.sha256,
        members=model.members,
        ood_score=chosen.score,
        threshold=None if chosen.threshold is None else chosen.threshold.value,
        temperature=None if chosen.calibration is None else chosen.calibration.temperature,
        conformal=None if chosen.conformal is None else chosen.conformal.alpha,
    )
    answer = tally.answer(record, None if plan.lines is None else str(plan.lines))

    # Warnings on the inputs. Samples that a stopped run skipped are in the tally, and not in the data set.
    reasons_of_skipped(plan.dataset, log)
    if answer.skipped is not None:
        log.warn(warning_of_skipped(plan.dataset, answer.skipped.n, answer.skipped.ids))
    log.warn_all(orientation_warnings(plan.dataset))
    max_length = model.record.max_length
    if answer.cut is not None and max_length is not None:
        log.warn(warning_of_cut(plan.dataset, answer.cut, answer.n, max_length))
    answer = answer.model_copy(update={"warnings": log.warnings})

    # A line for the log, e.g. "200 inputs, 9 flagged as OOD: 4.50% (95 % interval 2.39% to 8.33%)".
    words = "1 input" if answer.n == 1 else f"{answer.n:,} inputs"
    if answer.ood is not None:
        words += f", {answer.ood.n:,} flagged as OOD: {answer.ood.in_percent()}"
    if answer.skipped is not None:
        words += f", {answer.skipped.n:,} more could not be read"
    log.info(words)

    # The file of --report, and the outcome.
    if report is not None:
        write_json(report, answer.to_dict())
    outcome.result = answer
    outcome.files = plan.paths
    outcome.unmet = unmet_in([(answer.model.name, answer.requirable())], plan.options.require)
