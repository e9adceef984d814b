"""``hydractl predict``: what a model predicts for inputs without labels, and which inputs it was not trained for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
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
from hydractl.data.joined import open_inputs
from hydractl.data.text import warning_of_cut
from hydractl.distributed import alone
from hydractl.errors import InputError, Interrupted, UsageError
from hydractl.evaluation.options import PredictOptions
from hydractl.evaluation.predicting import (
    PredictionRow,
    PredictionTally,
    Window,
    predicted_windows,
)
from hydractl.evaluation.predictions.lines import CUT, FIELDS, FLAG, write_rows
from hydractl.evaluation.predictions.reading import is_predictions
from hydractl.evaluation.predictions.unfinished import UnfinishedPredictions, windows_in
from hydractl.evaluation.providers.running import RunningModel
from hydractl.expressions.data_sets import DataSpec
from hydractl.expressions.models import ModelRef
from hydractl.files.atomic import Output, check_outputs, file_path, write_json
from hydractl.files.predict_answer import (
    REQUIRABLE,
    PredictAnswer,
    PredictingModelRecord,
)
from hydractl.jsonio import canonical_json, json_list
from hydractl.log import Log
from hydractl.model.loading import ModelArgument, find_models, resolve_device
from hydractl.model.source import ModelOptions, Source
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

    @property
    def source(self) -> Source:
        """The file of the model."""
        return self.model.argument.sources[0]

    @property
    def fields(self) -> list[str]:
        """The names of the fields of every line, in order."""
        further = {
            FLAG: self.model.stored.threshold is not None,
            CUT: self.dataset.kind == "text",
            "set": self.model.stored.conformal is not None,
            "top": self.options.top > 0,
            "members": self.options.members,
        }
        return [*FIELDS, *(name for name, is_there in further.items() if is_there)]

    @property
    def paths(self) -> list[Path]:
        """The paths of the files that are written."""
        return [path for path in (self.lines, self.report) if path is not None]

    def claim(self, path: Path, stack: ExitStack) -> Output:
        """Claim a file before predicting; the stack frees it after an error."""
        return stack.enter_context(Output(path, force=self.options.force, resumed=self.options.resume))


def run(call: Call) -> Outcome:
    """Return the summary of the predictions of one model for every input, which are written to a file.

    Without an output file nothing is predicted yet: the ``lines`` of the outcome predict while they are taken, and fill
    in the summary after the last one. A dry run returns how many inputs there are.
    """
    if not alone():
        hint = "give each process a part of its own: hydractl predict MODEL 'SPEC?part=1/4' -o 1.jsonl"
        raise UsageError("predict is one process, and torchrun has started several", hint=hint)
    values, log = call.values, call.log

    # The first argument is the model; the others are inputs. Without any, --data names them.
    model, *inputs = values["model"]
    options = filled(PredictOptions, values, output=None if values["output"] == "-" else values["output"])
    texts = [item.text for item in inputs]
    plan = _plan(model, texts or [values["data"]], opening_options(values), options, log)
    if values["dry_run"]:
        check_outputs(plan.paths, force=options.force)
        names = [str(path) for path in plan.paths]
        record = PredictingModelRecord.partly(name=plan.model.name)
        return Outcome(PredictAnswer.planned(model=record, n=len(plan.dataset), files_=names))

    # Without a file: lines, which predict when they are taken.
    announce_reading([plan.source], log)
    if plan.lines is None:
        outcome = Outcome(PredictAnswer.partly())
        outcome.lines = _predict_line_by_line(plan, outcome, log)
        return outcome
    try:
        return _predict_into_file(plan, plan.lines, log)
    except KeyboardInterrupt:
        raise Interrupted(hint="add --resume to the same command to go on") from None


# --- what is asked for ------------------------------------------------------------------------------------------------


def _plan(
    ref: ModelRef,
    inputs: Sequence[str | DataSpec],
    opening: ModelOptions,
    options: PredictOptions,
    log: Log,
) -> _Plan:
    """Return the opened model and inputs, after everything was checked that can be before any work.

    Raises:
        OutputError: a path of an output names a folder.
        UsageError: the device is not there, MODEL is not a single model or its classes have no names, or a
            requirement is on a figure that these predictions will not have.
        InputError: the model or an input cannot be read, or is broken.
    """
    resolve_device(options.device)
    lines = None if options.output is None else file_path(options.output)
    report = None if options.report is None else file_path(options.report)

    # The model: a single one that is no predictions file, and whose classes have names.
    _, members = ref.split()
    if len(members) > 1:
        raise UsageError(f"predict runs one model, and {ref} is several", hint="fuse them: hydractl fuse")
    if is_predictions(members[0].text):
        raise UsageError(f"{ref} is a predictions file", hint="give the model")
    (argument,) = find_models([ref], opening)
    source = replace(argument.sources[0], name=argument.name)
    name = source.name
    is_zero_shot = not source.classes
    if is_zero_shot and not source.description.labels:
        raise UsageError(f"{name} is zero-shot, and its classes have no names", hint="name them: --labels FILE")
    model = RunningModel(ModelArgument(name, [source]), options, log)

    # The inputs.
    dataset = open_inputs(
        inputs,
        reads={name: source.description.reads},
        labels=source.description.labels or [],
        limit=options.limit,
        seed=opening.seed,
        on_bad=options.on_bad,
    )

    # Requirements, and what they and --flagged need: a threshold, above which an input is flagged as OOD.
    check_known(options.require, [name], REQUIRABLE)
    if model.stored.threshold is None:
        for requirement in options.require:
            if requirement.key == "ood_share":
                message = f"--require {requirement.text} needs a threshold, and {name} holds none"
                raise UsageError(message, hint=_THRESHOLD_HINT)
        if options.flagged:
            raise UsageError(f"--flagged needs a threshold, and {name} holds none", hint=_THRESHOLD_HINT)
        log.info(f"{name} holds no threshold, so no input is flagged; {_THRESHOLD_HINT}")
    log.warn_all(left_out_warnings(dataset))
    return _Plan(model, dataset, options, lines, report)


# --- predicting -------------------------------------------------------------------------------------------------------


def _predict_windows(plan: _Plan, start: int, log: Log) -> Iterator[Window]:
    """Yield the predictions for the samples from index ``start`` on, a few batches at a time, with progress.

    The weights are read when the first window is asked for, and not at all if no sample is left.
    """
    samples = range(start, len(plan.dataset))
    if not samples:
        return
    options = plan.options
    windows = predicted_windows(plan.model, plan.dataset, samples, top=options.top, members=options.members)
    with log.progress(f"{plan.model.name} predicts", len(samples), "samples") as progress:
        for window in windows:
            yield window
            progress.advance(len(window.rows) + len(window.skipped))


def _predict_line_by_line(plan: _Plan, outcome: Outcome, log: Log) -> Iterator[PredictionRow]:
    """Yield a row for each sample as it is predicted; with ``--flagged``, only for those that are flagged as OOD.

    After the last row the summary is filled in, in ``outcome``.

    Raises:
        InputError: none of the inputs can be read.
    """
    with ExitStack() as stack:
        report_output = None if plan.report is None else plan.claim(plan.report, stack)
        tally = PredictionTally()
        for row in tally.counted(_predict_windows(plan, 0, log)):
            if not plan.options.flagged or row[FLAG]:
                yield row
        if len(plan.dataset) and not tally.predicted:
            raise _nothing_readable(plan)
        _sum_up(plan, tally, report_output, outcome, log)


def _predict_into_file(plan: _Plan, path: Path, log: Log) -> Outcome:
    """Return the summary of the predictions, after they were written to a file.

    They go to an unfinished file beside it first (``NAME.part``). A run that is stopped leaves it, and one with
    ``--resume`` goes on after its last sample.

    Raises:
        InputError: none of the inputs can be read, or the unfinished file is of another run.
    """
    resume = plan.options.resume
    with ExitStack() as stack:
        # A stopped run may already have written the outputs, and left its unfinished file because it was not at its
        # end. Resumed, it finds them the same; outputs that say something else are replaced with --force alone.
        output = plan.claim(path, stack)
        unfinished_path = output.target.with_name(f"{output.target.name}.part")
        exists = unfinished_path.exists()
        report_output = None if plan.report is None else plan.claim(plan.report, stack)

        # Predict; a resumed run goes on after the last sample in its unfinished file.
        if resume and not exists:
            begun = "compared with what is predicted anew" if path.exists() else "begun"
            log.info(f"nothing to resume: {path} is {begun}")
        elif exists and not resume:
            log.info(f"an unfinished {unfinished_path} is begun anew; --resume would have gone on with it")
        unfinished = UnfinishedPredictions(unfinished_path, _fingerprint(plan), resume=resume)
        stack.callback(unfinished.close)
        start = unfinished.stop or 0  # the index after the last sample that was predicted
        if start:
            left = len(plan.dataset) - start
            log.info(f"{unfinished_path} is resumed: {left:,} of {len(plan.dataset):,} are left")

        # An input that cannot be read may stop it (--on-bad error). Without any predictions there is nothing to resume.
        try:
            for window in _predict_windows(plan, start, log):
                unfinished.append(window)
        except UnreadableSample as error:
            if unfinished.predicted:
                error.hint = f"{error.hint}; --resume goes on once it is replaced"
            else:
                unfinished_path.unlink(missing_ok=True)
            raise
        unfinished.close()
        if len(plan.dataset) and not unfinished.predicted:
            unfinished_path.unlink(missing_ok=True)
            raise _nothing_readable(plan)

        # Write the output, and the summary.
        tally = PredictionTally()
        write_rows(output, tally.counted(windows_in(unfinished_path)), plan.fields)
        outcome = Outcome(PredictAnswer.partly())
        _sum_up(plan, tally, report_output, outcome, log)
        unfinished_path.unlink(missing_ok=True)
    return outcome


def _nothing_readable(plan: _Plan) -> InputError:
    """Return the error for inputs of which none can be read, with the first ten reasons."""
    skipped = plan.dataset.skipped or {}
    reasons = [skipped[row] for row in sorted(skipped)]
    return InputError(f"not one of the {len(plan.dataset)} inputs can be read", problems=reasons[:10])


def _fingerprint(plan: _Plan) -> dict[str, Any]:
    """Return, by key, everything that decides the predictions: the model, the inputs and the options, as JSON values.

    An unfinished file with other values cannot be resumed.
    """
    # The inputs by their names and number, not by their content, so that they need not be read.
    description = plan.source.description
    options = plan.options
    digest_of_ids = _sha256("\n".join(plan.dataset.ids))
    digest_of_inputs = _sha256(canonical_json([plan.dataset.spec, len(plan.dataset), digest_of_ids]))
    return {
        "model": plan.source.sha256,
        "inputs": digest_of_inputs,
        "batch_size": options.batch_size,
        "on_bad": options.on_bad,
        "top": options.top,
        "members": options.members,
        "dtype": options.dtype,
        "device": resolve_device(options.device).type,
        "whole_last_block": options.whole_last_block,
        "max_length": description.preprocess.get("max_length"),
        "labels": json_list(description.labels),
        "prompt": json_list(description.prompt),
    }


def _sha256(text: str) -> str:
    """Return the SHA-256 of a text, which may contain file names that are not valid UTF-8."""
    encoded = text.encode("utf-8", "surrogateescape")
    return hashlib.sha256(encoded).hexdigest()


# --- the summary ------------------------------------------------------------------------------------------------------


def _sum_up(plan: _Plan, tally: PredictionTally, report: Output | None, outcome: Outcome, log: Log) -> None:
    """Fill in ``outcome``: the summary of all predictions, the files, and the requirements that are not met.

    The summary is also logged, and written to the file of ``--report``.

    Args:
        plan: what was predicted.
        tally: the counts over all windows.
        report: the file of the summary; None for no file.
        outcome: is filled in.
        log: receives how many inputs were flagged, which could not be read, and how many texts were cut.
    """
    # What is said of the model: its score, threshold, temperature and prediction sets, None for what it does not hold.
    source = plan.source
    chosen = plan.model.stored
    record = PredictingModelRecord(
        name=source.name,
        sha256=source.sha256,
        members=plan.model.members,
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
    if answer.cut is not None:
        log.warn(warning_of_cut(plan.dataset, answer.cut, answer.n, source.description.preprocess["max_length"]))
    answer = answer.model_copy(update={"warnings": log.warnings})

    # A line for the log, e.g. "200 inputs, 9 flagged as OOD: 4.50% (95 % interval 2.39% to 8.33%)".
    words = f"{answer.n:,} inputs"
    flagged = answer.ood
    if flagged is not None and flagged.share is not None and flagged.ci is not None:
        low, high = flagged.ci
        assert low is not None and high is not None  # they are None only if there are no samples
        interval = f"95 % interval {low:.2%} to {high:.2%}"
        words += f", {flagged.n:,} flagged as OOD: {flagged.share:.2%} ({interval})"
    if answer.skipped is not None:
        words += f", {answer.skipped.n:,} more could not be read"
    log.info(words)

    # The file of --report, and the outcome.
    if report is not None:
        write_json(report, answer.to_dict())
    outcome.result = answer
    outcome.files = plan.paths
    outcome.unmet = unmet_in([(answer.model.name, answer.requirable())], plan.options.require)
