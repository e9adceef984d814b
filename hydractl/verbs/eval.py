"""``hydractl eval``: accuracy, calibration, OOD detection and diversity of one or more models, one row each."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydractl.data.base import report_classes, report_skipped
from hydractl.data.suites import FoundSuite, find_suite
from hydractl.data.text import report_cut
from hydractl.errors import Interrupted, OutputError, UsageError, did_you_mean
from hydractl.evaluation.options import DataOptions, EvalOptions, FitOptions, RunOptions, ScoreOptions
from hydractl.evaluation.predictions.reading import is_predictions
from hydractl.expressions.score_choice import ALL_SCORES
from hydractl.files.atomic import Output, check_outputs, file_path, named_apart, write_json
from hydractl.files.eval_answer import EvalAnswer
from hydractl.jsonio import read_json_file
from hydractl.log import Log
from hydractl.metrics.ood_scores import ON_FEATURES, SCORES
from hydractl.metrics.rows import little_diversity
from hydractl.model.machine import slow_format
from hydractl.report.eval_files import ReportOptions, claimed_reports, write_reports
from hydractl.report.eval_runs import means
from hydractl.settings.evaluating import EvalSettings
from hydractl.verbs.outcome import Outcome
from hydractl.verbs.requirements import check_known, unmet_in

if TYPE_CHECKING:
    from hydractl.evaluation.models import Model
    from hydractl.evaluation.sets import EvalSet, Seen

SCHEMA = "hydractl.eval/1"


def run(settings: EvalSettings, log: Log) -> Outcome:
    """Evaluate every MODEL on the same data, or show again what was measured (``--from``)."""
    if settings.from_file:
        return _again(settings, log)
    plan = plan_of(settings, log)
    names = [model.name for model in plan.models]
    if settings.dry_run:
        for file in plan.files(settings):
            check_outputs([file], force=plan.replaceable(file, settings))
        kept = [file for file in plan.features.values() if not file.exists()]
        check_outputs(kept, force=False)
        with claimed_reports(settings.fill(ReportOptions), names) as reports:
            files = [*plan.files(settings), *kept, *reports.planned()]
        for doubt in plan.doubts:
            log.warn(doubt)
        sizes = {dataset.name: len(dataset) for dataset in plan.sets}
        document = {"schema": SCHEMA, "dry_run": True, "models": names, "samples": sizes}
        return Outcome({**document, "files": [str(file) for file in files]})
    try:
        return _measure(plan, settings, log)
    except KeyboardInterrupt:
        if settings.predictions is None or not settings.predictions.endswith(".st"):
            raise
        raise Interrupted(hint="add --resume to the same command to go on") from None


def _again(settings: EvalSettings, log: Log) -> Outcome:
    """Return the document of an earlier eval, or the means of several: its table, reports, and requirements."""
    from hydractl.report.eval_document import read_eval

    answers = {path: read_eval(path) for path in settings.from_file}
    if settings.over is None:
        answer = answers[settings.from_file[0]]
    else:
        answer = means(answers, settings.over)
        for warning in answer.warnings or ():
            log.warn(warning)
    document = answer.to_json()
    rows = [(row.name, row.to_json()) for row in answer.models]
    unmet = unmet_in(rows, settings.requirements(), skip_first=False)
    with ExitStack() as stack:
        path = None if settings.to_stdout or settings.output is None else file_path(settings.output)
        output = path and stack.enter_context(Output(path, force=settings.force))
        names = [name for name, _ in rows]
        reports = stack.enter_context(claimed_reports(settings.fill(ReportOptions), names))
        files = [write_json(output, document)] if output and not settings.dry_run else []
        files += [] if settings.dry_run else write_reports(answer, reports)
    return Outcome(document, files=files, unmet=unmet, print_document=settings.output == "-")


def options_of(settings: EvalSettings, suite: FoundSuite | None) -> EvalOptions:
    """Return the options of an evaluation from the settings; the OOD sets of a suite come behind those of ``--ood``."""
    data = settings.fill(
        DataOptions,
        ood=[*settings.ood_sets(), *([] if suite is None else suite.sets)],
        val_ood=settings.val_ood_sets(),
        corruptions=settings.corruption_names(),
    )
    return settings.fill(
        EvalOptions,
        run=settings.fill(RunOptions, passes=settings.passes()),
        data=data,
        fit=settings.fill(
            FitOptions,
            scores=_scores_of(settings),
            temperature=settings.temperature_of_all(),
            temperatures=settings.temperatures_of_rows(),
        ),
        keep_logits=(settings.predictions or "").endswith(".st"),
    )


def _scores_of(settings: EvalSettings) -> ScoreOptions:
    choices = settings.scores()
    names = [name for choice in choices if choice.row is None for name in choice.names]
    of_rows = {choice.row: choice.names[0] for choice in choices if choice.row is not None}
    every = names == [ALL_SCORES]
    return ScoreOptions([*SCORES, *ON_FEATURES] if every else names, of_rows, every)


def plan_of(settings: EvalSettings, log: Log) -> Plan:
    """Find and check everything that can be, before any work."""
    from hydractl.evaluation.answer import known_keys
    from hydractl.evaluation.doubts import data_doubts
    from hydractl.evaluation.rows import check_scores, check_writable, find_rows
    from hydractl.evaluation.sets import open_sets, seen_samples
    from hydractl.model.loading import resolve_device
    from hydractl.verbs.opening import model_options

    resolve_device(settings.device)
    suite = _suite(settings, log)
    options = options_of(settings, suite)
    models = find_rows(settings.model, model_options(settings), options, log)
    check_writable(models, options.keep_logits, settings.calibrated is not None)
    names = [model.name for model in models]
    of_rows = {"--ood-score": options.fit.scores.of_rows, "--temperature": options.fit.temperatures}
    for flag, rows in of_rows.items():
        for name in rows:
            if name not in names:
                hint = f"the rows are {', '.join(names)}"
                raise UsageError(f"{flag} {name}=...: no row has this name{did_you_mean(name, names)}", hint=hint)
    predictions = _paths_by_row(settings.predictions, names)
    features = _paths_by_row(settings.features, [model.name for model in models if model.reads is not None])
    opened = open_sets(options.data, models)
    sets = opened.sets
    check_scores(models, sets, options)
    for model in models:
        model.check_sets(sets)
    check_known(settings.requirements(), names, known_keys(options, sets, models), skip_first=False)
    path = None if settings.to_stdout else file_path(settings.output or _default_name(names[0], settings))
    seen = seen_samples(models, sets, allow=options.data.allow_seen)
    for note in opened.notes:
        log.info(note)
    doubts = [*opened.warnings, *data_doubts(models, sets, options)]
    plan = Plan(models, sets, options, path, predictions, features, seen, suite, doubts)
    shown = (settings.report, settings.card, settings.openood_csv)
    _check_distinct([*plan.files(settings), *features.values(), *(Path(one) for one in shown if one)])
    return plan


def _default_name(first: str, settings: EvalSettings) -> str:
    """Name the answer after the first row, and another seed where it decides."""
    drawn = settings.bootstrap or settings.mc_dropout is not None
    return f"{first}{settings.seed_mark if drawn else ''}.eval.json"


def _suite(settings: EvalSettings, log: Log) -> FoundSuite | None:
    """Find the sets of ``--ood-suite`` below ``--ood-root``."""
    choice = settings.suite()
    if choice is None:
        return None
    suite = find_suite(choice, str(settings.ood_root), taken=[one.name for one in settings.ood_sets()])
    for note in suite.notes:
        log.warn(f"--ood-suite {suite.name}: {note}")
    return suite


def _check_distinct(files: Sequence[Path]) -> None:
    """Refuse two outputs of one name."""
    targets = [os.path.realpath(file) for file in files]
    for file, target in zip(files, targets, strict=True):
        if targets.count(target) > 1:
            raise UsageError(f"two outputs are named {file}", hint="give every output a name of its own")


@dataclass(frozen=True)
class Plan:
    """The measurements and outputs of one command.

    Attributes:
        models: the rows.
        sets: all data sets.
        options: of the evaluation.
        path: of the answer, None where it goes to standard output.
        predictions: where the predictions of each row go, by name.
        features: where its features of the training data are kept, by name.
        seen: which test samples have been seen, where that is allowed.
        suite: the suite of OOD sets, if one was asked for.
        doubts: what is odd about the data.
    """

    models: Sequence[Model]
    sets: Sequence[EvalSet]
    options: EvalOptions
    path: Path | None
    predictions: Mapping[str, Path]
    features: Mapping[str, Path]
    seen: Seen
    suite: FoundSuite | None
    doubts: Sequence[str] = ()

    def files(self, settings: EvalSettings) -> list[Path]:
        """Return every file that is written, the answer first."""
        own = [] if settings.calibrated is None else [Path(settings.calibrated)]
        return [*([self.path] if self.path else []), *self.predictions.values(), *own]

    def replaceable(self, file: Path, settings: EvalSettings) -> bool:
        """Return whether an existing file may be claimed: with ``--resume`` predictions, and their answer."""
        finished = [value for value in self.predictions.values() if is_predictions(value)]
        answered = file == self.path and len(finished) == len(self.predictions)
        return settings.force or (settings.resume and (file in finished or answered))


def _measure(plan: Plan, settings: EvalSettings, log: Log) -> Outcome:
    from hydractl.evaluation.fitting import unused_sets
    from hydractl.evaluation.measuring import Measuring
    from hydractl.evaluation.sets import option_of
    from hydractl.model.loading import resolve_device, resolve_dtype

    with ExitStack() as stack:
        # Every output is claimed before anything is computed. What --resume finds finished is read instead.
        outputs: dict[Path, Output] = {}
        for file in plan.files(settings):
            outputs[file] = stack.enter_context(Output(file, force=plan.replaceable(file, settings)))
        reports = stack.enter_context(
            claimed_reports(settings.fill(ReportOptions), [model.name for model in plan.models])
        )
        features: dict[str, Path | Output] = {**plan.features}
        for name, path in plan.features.items():
            if not path.exists():  # else it is read
                features[name] = stack.enter_context(Output(path))
        slow = slow_format(resolve_dtype(settings.dtype), resolve_device(settings.device))
        if slow is not None:
            log.warn(slow)
        _report_cut(plan, log)
        _report_labels(plan, settings, log)
        for dataset in unused_sets(plan.sets, plan.options):
            log.info(f"{option_of(dataset)} is not run: nothing is chosen on it, and no predictions are kept")
        for doubt in plan.doubts:
            log.warn(doubt)
        measuring = Measuring(plan.sets, plan.options, log)
        rows, files = [], []
        for model in plan.models:
            target = plan.predictions.get(model.name)
            output = None if target is None else outputs[target]
            rows.append(measuring.row(model, output, plan.seen.get(model.name, {}), features.get(model.name)))
            files += [target] if target is not None else []
        if settings.calibrated is not None:
            files.append(measuring.write_calibrated(plan.models[0], outputs[Path(settings.calibrated)]))
        document = _document(plan, rows, [*plan.doubts, *measuring.warnings], settings)
        for warning in document.get("warnings", [])[len(plan.doubts) :]:  # of the data all has been said
            log.warn(warning)
        _report_skipped(plan, log)
        named = [(row["name"], row) for row in rows]
        unmet = unmet_in(named, settings.requirements(), skip_first=False)
        if plan.path is not None:
            files.insert(0, _write_answer(outputs[plan.path], document, settings))
        files += write_reports(EvalAnswer.from_json(document), reports)
    return Outcome(document, files=files, unmet=unmet, print_document=plan.path is None)


def _write_answer(output: Output, document: dict[str, Any], settings: EvalSettings) -> Path:
    """Write the answer; with ``--resume``, leave the one of the same command that is there."""
    if settings.resume and not settings.force and output.path.exists():
        if read_json_file(output.path) != document:
            raise OutputError(f"{output.path} holds another answer", hint="give another -o, or add --force")
        return output.path
    return write_json(output, document)


def _document(
    plan: Plan, rows: Sequence[dict[str, Any]], warnings: Sequence[str], settings: EvalSettings
) -> dict[str, Any]:
    from hydractl.evaluation.answer import conventions
    from hydractl.evaluation.sets import tested

    document: dict[str, Any] = {
        "schema": SCHEMA,
        "models": list(rows),
        "data": {dataset.name: dataset.to_json() for dataset in tested(plan.sets)},
        "conventions": conventions(rows, plan.models),
    }
    if settings.note is not None:
        document["note"] = settings.note
    if plan.suite is not None:
        document["suite"] = plan.suite.document()
    little = [(row["name"], little_diversity(row["diversity"]["id"], plan.sets[0].spec)) for row in rows]
    warnings = [*warnings, *(f"{name}: {words}" for name, words in little if words is not None)]
    if warnings:
        document["warnings"] = warnings
    if settings.bootstrap:
        document["bootstrap"] = {"rounds": settings.bootstrap, "level": 0.95, "seed": settings.seed}
    return document


def _report_skipped(plan: Plan, log: Log) -> None:
    """Say what could not be read (``--on-bad skip``)."""
    from hydractl.evaluation.sets import CORRUPTION

    for dataset in plan.sets:
        if dataset.dataset is not None and dataset.role != CORRUPTION:  # what is left out of --data is told once
            report_skipped(dataset.dataset, log)


def _report_labels(plan: Plan, settings: EvalSettings, log: Log) -> None:
    """Say where labels are missing, or tell little: of predictions of new data that is no surprise."""
    for one in plan.sets:
        if one.dataset is not None and one.role in ("id", "val"):
            report_classes(one.dataset, log)
    if plan.sets[0].labels is None and settings.predictions is None:
        hint = getattr(plan.sets[0].dataset, "label_hint", None)
        text = f"{plan.sets[0].spec} has no labels: accuracy and calibration are not measured"
        log.warn(text + (f" ({hint})" if hint else ""))


def _report_cut(plan: Plan, log: Log) -> None:
    """Say how many texts of each set are cut, once for all models that cut alike."""
    from hydractl.evaluation.models import RunningModel

    told: list[Any] = []
    for model in plan.models:
        if not isinstance(model, RunningModel) or model.reads != "text":
            continue
        source = model.argument.sources[0]
        preprocess = source.description.preprocess
        if preprocess not in told:
            told.append(preprocess)
            for dataset in plan.sets:
                assert dataset.dataset is not None  # a model that runs needs --data
                report_cut(dataset.dataset, source.family.collate(preprocess), log)


def _paths_by_row(text: str | None, names: list[str]) -> dict[str, Path]:
    """Where a file of each model goes: as named for one model, with its name put in for several."""
    if text is None:
        return {}
    path = file_path(text)
    return {name: named_apart(path, name) if len(names) > 1 else path for name in names}
