"""``hydractl predict``: what a model predicts for inputs without labels, and which inputs it was not trained for."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydractl.data import Dataset
from hydractl.data.base import reasons_of_skipped, report_left_out, report_skipped, warning_of_skipped
from hydractl.data.joined import STANDARD_INPUT, open_inputs
from hydractl.data.text import warning_of_cut
from hydractl.distributed import Processes, alone, local_device, processes, restarted
from hydractl.errors import InputError, Interrupted, UsageError, install_hint
from hydractl.evaluation.options import EvalRunOptions, FitOptions
from hydractl.evaluation.predicting import (
    LineForm,
    Part,
    PredictionTally,
    Window,
    predicted_windows,
    predicting_model_record,
    rows_of_part,
    window_size,
)
from hydractl.evaluation.predictions.lines import CUT, FIELDS, FLAG, write_rows
from hydractl.evaluation.predictions.reading import is_predictions
from hydractl.evaluation.predictions.unfinished import (
    UnfinishedPredictions,
    refuse_other_division,
    unfinished_of_rank,
    unfinished_of_team,
    windows_in,
)
from hydractl.evaluation.providers.running import RunningModel
from hydractl.expressions.conditions import Requirement
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
from hydractl.model.prediction import Chosen
from hydractl.model.source import ModelOptions, Source
from hydractl.verbs.opening import announce_reading
from hydractl.verbs.outcome import Outcome
from hydractl.verbs.requirements import check_known, unmet_in

_PATIENCE_S = 86_400.0
"""Seconds that a rank waits for a slower rank; a rank that has died is noticed at once."""
_THRESHOLD_HINT = "hydractl calibrate MODEL --val SPEC --threshold id:0.05 writes one"


@dataclass(frozen=True)
class _Plan:
    """What is predicted, and how it is written.

    Attributes:
        model: the checkpoint that predicts; its weights are not read yet.
        chosen: what ``calibrate`` stored in it, e.g. a temperature and a threshold.
        dataset: all inputs.
        samples: the indices of the inputs that this process predicts.
        on_bad: what happens to a sample that cannot be read: ``error`` or ``skip``.
        how: how the model runs.
        form: what is written about each input.
        requirements: what has to hold of the summary.
    """

    model: Source
    chosen: Chosen
    dataset: Dataset
    samples: range
    on_bad: str
    how: EvalRunOptions
    form: LineForm
    requirements: Sequence[Requirement]

    @property
    def fields(self) -> list[str]:
        """The names of the fields of every line, in order."""
        fields = list(FIELDS)
        if self.chosen.threshold is not None:
            fields.append(FLAG)
        if self.dataset.kind == "text":
            fields.append(CUT)
        if self.chosen.conformal is not None:
            fields.append("set")
        if self.form.top:
            fields.append("top")
        if self.form.members:
            fields.append("members")
        return fields


@dataclass(frozen=True)
class _Files:
    """The files that are written.

    Attributes:
        lines: the file of the predictions; None: they are printed.
        report: the file of the summary; None for no file.
        force: whether they may be replaced.
    """

    lines: Path | None
    report: Path | None
    force: bool

    @property
    def paths(self) -> list[Path]:
        """The paths of the files."""
        return [path for path in (self.lines, self.report) if path is not None]

    def claim_report(self, stack: ExitStack) -> Output | None:
        """Claim the file of the summary before predicting; the stack completes it, or frees it after an error."""
        if self.report is None:
            return None
        return stack.enter_context(Output(self.report, force=self.force))


def run(
    model: ModelRef,
    inputs: Sequence[str | DataSpec],
    opening: ModelOptions,
    how: EvalRunOptions,
    form: LineForm,
    *,
    limit: int | None,
    on_bad: str,
    requirements: Sequence[Requirement],
    output: str | None,
    report: str | None,
    force: bool,
    resume: bool,
    dry_run: bool,
    log: Log,
) -> Outcome:
    """Predict every input: into a file, or line by line as the caller takes the lines of the outcome.

    Under ``torchrun`` all ranks predict into one file, and rank 0 answers.

    Args:
        model: the MODEL.
        inputs: the INPUTs, or a data set.
        opening: how the model is opened.
        how: how it runs.
        form: what is written about each input.
        limit: the most samples to predict; None for all.
        on_bad: what happens to a sample that cannot be read: ``error`` or ``skip``.
        requirements: what has to hold of the summary.
        output: the file of the predictions; None to predict line by line.
        report: the file of the summary; None for no file.
        force: whether files may be replaced.
        resume: whether an unfinished file goes on.
        dry_run: whether only to plan.
        log: receives everything from a single process; of several, most is logged by rank 0 only.

    Returns:
        The summary; on ranks other than 0, a silent outcome. Without an output file nothing is predicted yet: the
        ``lines`` of the outcome predict while they are taken, and fill in the summary after the last one.
    """
    with ExitStack() as while_they_work:
        team = Processes()
        if not alone():
            how = _how_rank_runs(how, inputs, output)
            resume = resume or restarted()  # processes that torchrun starts again after a failure resume
            team = while_they_work.enter_context(processes(_PATIENCE_S))

        resolve_device(how.device)  # raises an error if the device does not exist
        files = _files(output, report, force=force)
        source = _single_source(model, opening)
        dataset = open_inputs(
            inputs,
            reads={source.name: source.description.reads},
            labels=source.description.labels or [],
            limit=limit,
            seed=opening.seed,
            on_bad=on_bad,
        )
        part = Part(team.rank + 1, team.size)
        samples = rows_of_part(len(dataset), window_size(dataset, how.batch_size), part)
        chosen = Chosen.of(source.description.extra)
        plan = _Plan(source, chosen, dataset, samples, on_bad, how, form, requirements)
        log_of_team = team.quieted(log)
        _check_requirements(plan)
        _say_what_is_missing(plan, log_of_team)
        report_left_out(dataset, log_of_team)
        if dry_run:
            if team.rank > 0:
                return Outcome(None, silent=True)
            return _dry_run(plan, files)

        announce_reading([source], log_of_team)
        if files.lines is None:
            outcome = Outcome(None)
            outcome.lines = _predict_line_by_line(plan, files, outcome, log)
            return outcome
        try:
            return _predict_into_file(plan, files.lines, files, resume, log, team)
        except KeyboardInterrupt:
            raise Interrupted(hint="add --resume to the same command to go on") from None


# --- what is asked for ------------------------------------------------------------------------------------------------


def _how_rank_runs(how: EvalRunOptions, inputs: Sequence[str | DataSpec], output: str | None) -> EvalRunOptions:
    """Return how one of several processes that ``torchrun`` started runs the model: on its own device.

    Raises:
        UsageError: an option does not work with several processes.
    """
    if output is None:
        raise UsageError("predict by several processes needs --output", hint="their lines would mix on standard output")
    if STANDARD_INPUT in map(str, inputs):
        raise UsageError("standard input is one process's alone", hint="give the inputs as arguments, or start one")
    if how.device.startswith("cuda:"):
        hint = "--device cuda gives each process its own"
        raise UsageError(f"--device {how.device} is one GPU for all processes", hint=hint)
    return replace(how, device=local_device(how.device))


def _files(output: str | None, report: str | None, *, force: bool) -> _Files:
    """Return the files that are written, by the paths that were given.

    Raises:
        OutputError: one of the paths names a folder.
        UsageError: Parquet cannot be written.
    """
    lines = None if output is None else file_path(output)
    if lines is not None and lines.suffix.lower() == ".parquet" and find_spec("pyarrow") is None:
        raise UsageError("writing Parquet needs pyarrow, which is not installed", hint=install_hint("pyarrow"))
    return _Files(lines, None if report is None else file_path(report), force)


def _single_source(model: ModelRef, opening: ModelOptions) -> Source:
    """Return the checkpoint that MODEL names.

    Raises:
        UsageError: it is not a single model, or its classes have no names.
        InputError: the file cannot be read, or is broken.
    """
    _, members = model.split()
    if len(members) > 1:
        raise UsageError(f"predict runs one model, and {model} is several", hint="fuse them: hydractl fuse")
    if is_predictions(members[0].text):
        raise UsageError(f"{model} is a predictions file", hint="give the model")
    (argument,) = find_models([model], opening)
    source = replace(argument.sources[0], name=argument.name)
    is_zero_shot = not source.classes
    if is_zero_shot and not source.description.labels:
        raise UsageError(f"{source.name} is zero-shot, and its classes have no names", hint="name them: --labels FILE")
    return source


def _dry_run(plan: _Plan, files: _Files) -> Outcome:
    """Return how many samples would be predicted, and which files would be written.

    Raises:
        OutputError: a file exists, and ``--force`` is not given.
    """
    check_outputs(files.paths, force=files.force)
    names = [str(path) for path in files.paths]
    model = PredictingModelRecord.partly(name=plan.model.name)
    return Outcome(PredictAnswer.planned(model=model, n=len(plan.samples), files_=names))


def _check_requirements(plan: _Plan) -> None:
    """Refuse requirements on figures that these predictions will not have.

    Raises:
        UsageError: a requirement names such a figure.
    """
    name = plan.model.name
    has_threshold = plan.chosen.threshold is not None
    check_known(plan.requirements, [name], REQUIRABLE, skip_first=False)
    for requirement in plan.requirements:
        option = f"--require {requirement.text}"
        if requirement.key == "ood_share" and not has_threshold:
            raise UsageError(f"{option} needs a threshold, and {name} holds none", hint=_THRESHOLD_HINT)


def _say_what_is_missing(plan: _Plan, log: Log) -> None:
    """Log, before predicting, what the model lacks for judging its inputs: a threshold."""
    name = plan.model.name
    if plan.chosen.threshold is None:
        log.info(f"{name} holds no threshold, so no input is flagged; {_THRESHOLD_HINT}")


# --- predicting -------------------------------------------------------------------------------------------------------


def _predict_windows(plan: _Plan, start: int, log: Log) -> Iterator[Window]:
    """Yield the predictions for the samples from index ``start`` on, a few batches at a time, with progress.

    The weights are read when the first window is asked for, and not at all if no sample is left.
    """
    samples = range(start, plan.samples.stop)
    if not samples:
        return
    model = RunningModel(ModelArgument(plan.model.name, [plan.model]), plan.how, FitOptions(), log)
    windows = predicted_windows(model, plan.chosen, plan.dataset, samples, plan.form)
    with log.progress(f"{plan.model.name} predicts", len(samples), "samples") as progress:
        for window in windows:
            yield window
            progress.advance(len(window.rows) + len(window.skipped))


def _predict_line_by_line(plan: _Plan, files: _Files, outcome: Outcome, log: Log) -> Iterator[dict[str, Any]]:
    """Yield one row for each sample as it is predicted; fill in ``outcome`` after the last row.

    Raises:
        InputError: none of the inputs can be read.
    """
    with ExitStack() as stack:
        report_output = files.claim_report(stack)
        tally = PredictionTally()
        for window in _predict_windows(plan, plan.samples.start, log):
            tally.add(window)
            yield from window.rows
        if plan.samples and not tally.predicted:
            raise _nothing_readable(plan)
        answer = _sum_up(plan, tally, None, report_output, log)
    complete = _outcome(answer, plan, files)
    outcome.result = complete.result
    outcome.files = complete.files
    outcome.unmet = complete.unmet


def _predict_into_file(plan: _Plan, path: Path, files: _Files, resume: bool, log: Log, team: Processes) -> Outcome:
    """Predict into a file. Each process first writes an unfinished file; rank 0 joins these at the end.

    Returns:
        The summary; on ranks other than 0, a silent outcome.

    Raises:
        InputError: none of the inputs can be read.
        UsageError: the run to resume was started with another number of processes.
    """
    with ExitStack() as stack:
        # Rank 0 claims the outputs before any rank begins.
        target = Path(os.path.realpath(path))
        if resume:
            refuse_other_division(target, team.size)
        output = report_output = None
        if team.rank == 0:
            # A stopped run may already have written them, and left its unfinished file because it was not at its end.
            stopped = unfinished_of_rank(target, 0, team.size)
            files = replace(files, force=files.force or (resume and stopped.exists()))
            output = stack.enter_context(Output(path, force=files.force))
            report_output = files.claim_report(stack)
        team.gather(None)  # wait until rank 0 has claimed the outputs

        # Predict the samples of this process; a resumed process goes on after the last sample in its unfinished file.
        unfinished_path = unfinished_of_rank(target, team.rank, team.size)
        unfinished = _open_unfinished(unfinished_path, path, plan, resume, team.quieted(log))
        stack.callback(unfinished.close)
        start = plan.samples.start
        if unfinished.stop is not None:
            start = unfinished.stop
        for window in _predict_windows(plan, start, team.quieted(log)):
            unfinished.append(window)
        unfinished.close()  # rank 0 reads the complete file below
        predicted_by_all = sum(team.gather(unfinished.predicted))
        if output is None:
            report_skipped(plan.dataset, log)
            return Outcome(None, silent=True)

        # Only rank 0 gets here: it joins the unfinished files of all processes.
        files_of_team = unfinished_of_team(target, team.size)
        if len(plan.dataset) and not predicted_by_all:
            _remove(files_of_team)
            raise _nothing_readable(plan)
        tally = PredictionTally()
        rows = _rows_counted(windows_in(files_of_team), tally.add)
        write_rows(output, rows, plan.fields, named_classes=plan.model.description.labels is not None)
        answer = _sum_up(plan, tally, path, report_output, log)
        _remove(files_of_team)
    return _outcome(answer, plan, files)


def _open_unfinished(unfinished_path: Path, path: Path, plan: _Plan, resume: bool, log: Log) -> UnfinishedPredictions:
    """Return the unfinished file of a process: the existing one with ``--resume``, else an empty one.

    Args:
        unfinished_path: the unfinished file.
        path: the output that it will become, for messages.
        plan: what is predicted.
        resume: whether the existing file goes on.
        log: receives whether the file is resumed, and how many samples are left.
    """
    exists = unfinished_path.exists()
    if resume and not exists:
        log.info(f"nothing to resume: {path} is begun")
    elif exists and not resume:
        log.info(f"an unfinished {unfinished_path} is begun anew; --resume would have gone on with it")
    unfinished = UnfinishedPredictions(unfinished_path, _fingerprint(plan), resume=resume)
    if unfinished.stop is not None:
        left = plan.samples.stop - unfinished.stop
        log.info(f"{unfinished_path} is resumed: {left:,} of {len(plan.samples):,} are left")
    return unfinished


def _remove(files: Iterable[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)


def _nothing_readable(plan: _Plan) -> InputError:
    """Return the error for inputs of which none can be read, with the first ten reasons."""
    skipped = plan.dataset.skipped or {}
    reasons = [skipped[row] for row in sorted(skipped)]
    return InputError(f"not one of the {len(plan.dataset)} inputs can be read", problems=reasons[:10])


def _rows_counted(windows: Iterator[Window], count: Callable[[Window], None]) -> Iterator[dict[str, Any]]:
    """Yield the rows of windows; ``count`` is called with each window before its rows are yielded."""
    for window in windows:
        count(window)
        yield from window.rows


def _fingerprint(plan: _Plan) -> dict[str, Any]:
    """Return by key everything that decides the lines; an unfinished file with other values cannot be resumed."""
    description = plan.model.description
    digest_of_ids = _sha256("\n".join(plan.dataset.ids))
    digest_of_inputs = _sha256(canonical_json([plan.dataset.spec, len(plan.dataset), digest_of_ids]))
    return {
        "model": plan.model.sha256,
        "inputs": digest_of_inputs,
        "samples": [plan.samples.start, plan.samples.stop],
        "batch_size": plan.how.batch_size,
        "on_bad": plan.on_bad,
        "top": plan.form.top,
        "members": plan.form.members,
        "dtype": plan.how.dtype,
        "device": resolve_device(plan.how.device).type,
        "whole_last_block": plan.how.whole_last_block,
        "max_length": description.preprocess.get("max_length"),
        "labels": json_list(description.labels),
        "prompt": json_list(description.prompt),
    }


def _sha256(text: str) -> str:
    """Return the SHA-256 of a text, which may contain file names that are not valid UTF-8."""
    encoded = text.encode("utf-8", "surrogateescape")
    return hashlib.sha256(encoded).hexdigest()


# --- the summary ------------------------------------------------------------------------------------------------------


def _sum_up(plan: _Plan, tally: PredictionTally, path: Path | None, report: Output | None, log: Log) -> PredictAnswer:
    """Return the summary of all predictions; also log it, and write it to the file of ``--report``.

    Args:
        plan: what was predicted.
        tally: the counts over all windows.
        path: the file of the predictions; None if they were printed.
        report: the file of the summary; None for no file.
        log: receives how many inputs were flagged, which could not be read, and how many texts were cut.
    """
    output_name = None
    if path is not None:
        output_name = str(path)
    model = plan.model
    record = predicting_model_record(model.name, model.sha256, len(model.description.masks), plan.chosen)
    answer = tally.answer(record, output_name)
    # Samples that a stopped run or another process skipped are in the tally, and not in the data set.
    reasons_of_skipped(plan.dataset, log)
    if answer.skipped is not None:
        log.warn(warning_of_skipped(plan.dataset, answer.skipped.n, answer.skipped.ids))
    if answer.cut is not None:
        log.warn(warning_of_cut(plan.dataset, answer.cut, answer.n, model.description.preprocess["max_length"]))
    answer = answer.model_copy(update={"warnings": log.warnings})
    log.info(_summary_in_words(answer))
    if report is not None:
        write_json(report, answer.to_dict())
    return answer


def _summary_in_words(answer: PredictAnswer) -> str:
    """Return a line that says how many inputs were predicted, flagged as OOD and left out."""
    words = f"{answer.n:,} inputs"
    flagged = answer.ood
    if flagged is not None and flagged.share is not None and flagged.ci is not None:
        low, high = flagged.ci
        assert low is not None and high is not None  # they are None only if there are no samples
        interval = f"95 % interval {low:.2%} to {high:.2%}"
        words += f", {flagged.n:,} flagged as OOD: {flagged.share:.2%} ({interval})"
    if answer.skipped is not None:
        words += f", {answer.skipped.n:,} more could not be read"
    return words


def _outcome(answer: PredictAnswer, plan: _Plan, files: _Files) -> Outcome:
    """Return the outcome of finished predictions: the summary, the files, and the requirements that are not met."""
    row = (answer.model.name, answer.requirable())
    unmet = unmet_in([row], plan.requirements, skip_first=False)
    return Outcome(answer, files=files.paths, unmet=unmet)
