"""``hydractl eval``: accuracy, calibration, OOD detection and diversity of one or more models, one row each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydractl.data.base import report_classes, report_skipped
from hydractl.data.suites import FoundSuite, find_suite
from hydractl.data.text import report_cut
from hydractl.errors import Interrupted, OutputError, UsageError, did_you_mean
from hydractl.evaluation.options import DataOptions, EvalOptions, EvalRunOptions, FitOptions, ScoreOptions
from hydractl.evaluation.predictions.reading import is_predictions
from hydractl.expressions.score_choice import ALL_SCORES
from hydractl.files.atomic import Output, check_outputs, file_path, named_apart, write_json
from hydractl.files.collecting import importing
from hydractl.files.eval_answer import BootstrapOptions, EvalAnswer, EvalRow, OodSuite
from hydractl.jsonio import read_json_file
from hydractl.log import Log
from hydractl.metrics.ood_scores import ON_FEATURES, SCORES
from hydractl.metrics.rows import little_diversity
from hydractl.model.machine import slow_format
from hydractl.settings.evaluating import EvalSettings
from hydractl.verbs.outcome import Outcome
from hydractl.verbs.requirements import check_known, unmet_in

if TYPE_CHECKING:
    from hydractl.evaluation.providers.interface import LogitsProvider
    from hydractl.evaluation.sets import EvalSet, Seen


def run(settings: EvalSettings, log: Log) -> Outcome:
    """Evaluate every MODEL on the same data."""
    plan = plan_of(settings, log)
    if settings.dry_run:
        return _dry_run(plan, settings, log)
    try:
        return _measure(plan, settings, log)
    except KeyboardInterrupt:
        if not _keeps_logits(settings):
            raise
        raise Interrupted(hint="add --resume to the same command to go on") from None


def _dry_run(plan: Plan, settings: EvalSettings, log: Log) -> Outcome:
    """Return what would be measured and written, after a check that the files can be written."""
    files = plan.files()
    for file in files:
        check_outputs([file], force=plan.replaceable(file, settings))
    new_features = [file for file in plan.features.values() if not file.exists()]
    check_outputs(new_features, force=False)
    files += new_features
    for doubt in plan.doubts:
        log.warn(doubt)
    samples = {dataset.name: len(dataset) for dataset in plan.sets}
    rows = [EvalRow.partly(name=model.name) for model in plan.models]
    names = [str(file) for file in files]
    return Outcome(EvalAnswer.planned(models=rows, samples=samples, files_=names))


def eval_options_of(settings: EvalSettings, suite: FoundSuite | None) -> EvalOptions:
    """Return the options of an evaluation from the settings.

    Args:
        settings: the options of the command.
        suite: a suite of OOD sets, which are added after those of ``--ood``; None for no suite.
    """
    ood = settings.ood_sets()
    if suite is not None:
        ood += suite.sets
    data = settings.fill(DataOptions, ood=ood, ood_val=settings.ood_val_sets(), corruptions=settings.corruption_names())
    fit = settings.fill(
        FitOptions,
        scores=_score_options(settings),
        temperature=settings.temperature_of_all(),
        temperatures=settings.temperatures_of_rows(),
        knn_bank=None,
    )
    return settings.fill(
        EvalOptions,
        run=settings.fill(EvalRunOptions, dropout=settings.dropout()),
        data=data,
        fit=fit,
        keep_logits=_keeps_logits(settings),
    )


def _keeps_logits(settings: EvalSettings) -> bool:
    """Return whether predictions are stored in the file format that ``--resume`` and ``--reuse`` can read."""
    if settings.predictions is None:
        return False
    return settings.predictions.endswith(".st")


def _score_options(settings: EvalSettings) -> ScoreOptions:
    """Return the OOD scores that are asked for: names for all rows, and by row name the one score of a single row.

    The last value of the result says whether ``all`` was asked for: then a row leaves out scores that it cannot have.
    """
    scores_of_all: list[str] = []
    score_by_row: dict[str, str] = {}
    for choice in settings.scores():
        if choice.row is None:
            scores_of_all += choice.names
        else:
            score_by_row[choice.row] = choice.names[0]
    if scores_of_all == [ALL_SCORES]:
        every_score = [*SCORES, *ON_FEATURES]
        return ScoreOptions(every_score, score_by_row, True)
    return ScoreOptions(scores_of_all, score_by_row, False)


def plan_of(settings: EvalSettings, log: Log) -> Plan:
    """Find the models and the data, and check everything that can be checked before any work.

    Notes on the data are logged here; the doubts go into the plan and are logged before measuring.

    Raises:
        HydraError: models, data sets, options or output paths do not fit together.
    """
    with importing():
        from hydractl.evaluation.answer import known_keys
        from hydractl.evaluation.doubts import eval_data_doubts
        from hydractl.evaluation.rows import check_scores, check_writable, find_rows
        from hydractl.evaluation.sets import open_sets, seen_samples
        from hydractl.model.loading import resolve_device
        from hydractl.verbs.opening import model_options

    # The rows (one for each model), and the files that each row writes or reads.
    resolve_device(settings.device)
    suite = _find_suite(settings, log)
    options = eval_options_of(settings, suite)
    models = find_rows(settings.model, model_options(settings), options, log)
    if options.keep_logits:
        check_writable(models)
    names = [model.name for model in models]
    _check_row_names("--ood-score", options.fit.scores.of_rows, names)
    _check_row_names("--temperature", options.fit.temperatures, names)
    # Rows of stored predictions read no inputs, so they have no features.
    names_that_run = [model.name for model in models if model.reads is not None]
    predictions = _paths_by_row(settings.predictions, names)
    features = _paths_by_row(settings.features, names_that_run)

    # The data sets, and whether the scores and requirements that were asked for can be measured on them.
    opened = open_sets(options.data, models)
    sets = opened.sets
    check_scores(models, sets, options)
    for model in models:
        model.check_sets(sets)
    keys = known_keys(options, sets, models)
    check_known(settings.requirements(), names, keys, skip_first=False)
    path = None
    if not settings.to_stdout:
        path = file_path(settings.output or _default_name(names[0], settings))
    seen = seen_samples(models, sets, allow=options.data.allow_seen)
    for note in opened.notes:
        log.info(note)
    doubts = [*opened.warnings, *eval_data_doubts(models, sets, options)]

    plan = Plan(models, sets, options, path, predictions, features, seen, suite, doubts)
    _check_distinct([*plan.files(), *features.values()])
    return plan


def _check_row_names(flag: str, named: Iterable[str], rows: Sequence[str]) -> None:
    """Raise UsageError if an option names a row that does not exist.

    Args:
        flag: the option, e.g. ``--temperature``.
        named: the row names that were given with the option.
        rows: the names of all rows.
    """
    for name in named:
        if name not in rows:
            guess = did_you_mean(name, rows)
            hint = f"the rows are {', '.join(rows)}"
            raise UsageError(f"{flag} {name}=...: no row has this name{guess}", hint=hint)


def _default_name(first: str, settings: EvalSettings) -> str:
    """Return the file name of the answer: the name of the first row, and the seed if it changes the figures."""
    seed_decides = settings.bootstrap or settings.mc_dropout is not None
    if seed_decides:
        return f"{first}{settings.seed_mark}.eval.json"
    return f"{first}.eval.json"


def _find_suite(settings: EvalSettings, log: Log) -> FoundSuite | None:
    """Find the data sets of ``--ood-suite`` under ``--ood-root``; return None without the option."""
    choice = settings.suite()
    if choice is None:
        return None
    taken = [ood_set.name for ood_set in settings.ood_sets()]
    suite = find_suite(choice, str(settings.ood_root), taken=taken)
    for note in suite.notes:
        log.warn(f"--ood-suite {suite.name}: {note}")
    return suite


def _check_distinct(files: Sequence[Path]) -> None:
    """Raise UsageError if two outputs are the same file; links are followed."""
    real_paths = [os.path.realpath(file) for file in files]
    for file, real_path in zip(files, real_paths, strict=True):
        if real_paths.count(real_path) > 1:
            raise UsageError(f"two outputs are named {file}", hint="give every output a name of its own")


@dataclass(frozen=True)
class Plan:
    """What one command measures and writes.

    Attributes:
        models: the rows.
        sets: all data sets.
        options: the options of the evaluation.
        path: the file of the answer; None if the answer goes to standard output.
        predictions: by row name, the file that its predictions are written to.
        features: by row name, the file that keeps its features of the training data; an existing file is read.
        seen: by row name, the test samples that the model was trained on, if ``--allow-seen`` allows such samples.
        suite: the suite of OOD sets; None if no suite was asked for.
        doubts: sentences on what is odd about the data.
    """

    models: Sequence[LogitsProvider]
    sets: Sequence[EvalSet]
    options: EvalOptions
    path: Path | None
    predictions: Mapping[str, Path]
    features: Mapping[str, Path]
    seen: Seen
    suite: FoundSuite | None
    doubts: Sequence[str] = ()

    def files(self) -> list[Path]:
        """Return every file that is written, the answer first. Files of features are not among them."""
        files = list(self.predictions.values())
        if self.path is not None:
            files.insert(0, self.path)
        return files

    def replaceable(self, file: Path, settings: EvalSettings) -> bool:
        """Return whether an existing output file may be replaced or used again.

        ``--force`` allows it for every file. ``--resume`` allows it for files of finished predictions, and for the
        answer if the predictions of all rows are finished.
        """
        if settings.force:
            return True
        if not settings.resume:
            return False
        finished = [path for path in self.predictions.values() if is_predictions(path)]
        if file == self.path and len(finished) == len(self.predictions):
            return True
        return file in finished


def _measure(plan: Plan, settings: EvalSettings, log: Log) -> Outcome:
    """Measure every row, write everything, and check the requirements against the answer.

    Returns:
        The answer, the files that were written, with the answer first, and the requirements that are not met.
    """
    from hydractl.evaluation.measuring import Measuring

    with ExitStack() as stack:
        # Claim every output before anything is computed. With --resume, finished predictions are read instead of made.
        outputs: dict[Path, Output] = {}
        for file in plan.files():
            may_replace = plan.replaceable(file, settings)
            outputs[file] = stack.enter_context(Output(file, force=may_replace))
        features_by_row: dict[str, Path | Output] = dict(plan.features)
        for name, path in plan.features.items():
            if not path.exists():  # an existing file is read
                features_by_row[name] = stack.enter_context(Output(path))
        _report_before(plan, settings, log)

        # Measure row after row.
        measuring = Measuring(plan.sets, plan.options, log)
        rows: list[EvalRow] = []
        files: list[Path] = []
        for model in plan.models:
            predictions_file = plan.predictions.get(model.name)
            predictions_output = None
            if predictions_file is not None:
                predictions_output = outputs[predictions_file]
                files.append(predictions_file)
            seen = plan.seen.get(model.name, {})
            row = measuring.row(model, predictions_output, seen, features_by_row.get(model.name))
            rows.append(row)

        # Warn of what is odd about the figures.
        doubts = [*plan.doubts, *measuring.warnings]
        answer = _make_answer(plan, rows, doubts, settings)
        all_warnings = list(answer.warnings or ())
        new_warnings = all_warnings[len(plan.doubts) :]  # the doubts of the plan come first, and were logged before
        for warning in new_warnings:
            log.warn(warning)
        _report_skipped(plan, log)

        # Write the answer.
        named_rows = [(row.name, row.to_dict()) for row in rows]
        unmet = unmet_in(named_rows, settings.requirements(), skip_first=False)
        if plan.path is not None:
            answer_file = _write_answer(outputs[plan.path], answer.to_dict(), settings)
            files.insert(0, answer_file)
    return Outcome(answer, files=files, unmet=unmet, print_document=plan.path is None)


def _report_before(plan: Plan, settings: EvalSettings, log: Log) -> None:
    """Log what is known about models and data before anything is measured."""
    from hydractl.evaluation.fitting import unused_sets
    from hydractl.evaluation.sets import option_of
    from hydractl.model.loading import resolve_device, resolve_dtype

    dtype = resolve_dtype(settings.dtype)
    device = resolve_device(settings.device)
    warning_of_speed = slow_format(dtype, device)
    if warning_of_speed is not None:
        log.warn(warning_of_speed)
    _report_cut(plan, log)
    _report_labels(plan, settings, log)
    for dataset in unused_sets(plan.sets, plan.options):
        log.info(f"{option_of(dataset)} is not run: nothing is chosen on it, and no predictions are kept")
    for doubt in plan.doubts:
        log.warn(doubt)


def _write_answer(output: Output, document: dict[str, object], settings: EvalSettings) -> Path:
    """Write the answer. With ``--resume``, leave a file that already holds the same answer as it is.

    Raises:
        OutputError: with ``--resume``, the file holds another answer.
    """
    leaves_answer = settings.resume and not settings.force
    if not leaves_answer or not output.path.exists():
        return write_json(output, document)
    if read_json_file(output.path) != document:
        raise OutputError(f"{output.path} holds another answer", hint="give another -o, or add --force")
    return output.path


def _make_answer(plan: Plan, rows: Sequence[EvalRow], doubts: Sequence[str], settings: EvalSettings) -> EvalAnswer:
    """Return the answer: the rows, the data sets they were measured on, and all warnings.

    The warnings are ``doubts``, followed by one for each row whose members hardly differ.
    """
    from hydractl.evaluation.answer import conventions, records_of_sets

    records = records_of_sets(plan.sets, plan.options)
    warnings = list(doubts)
    for row in rows:
        warning = little_diversity(row.diversity["id"].metrics, plan.sets[0].option_and_spec())
        if warning is not None:
            warnings.append(f"{row.name}: {warning}")
    suite = None
    if plan.suite is not None:
        suite = OodSuite.model_validate(plan.suite.document())
    intervals = None
    if settings.bootstrap:
        intervals = BootstrapOptions(rounds=settings.bootstrap, level=0.95, seed=settings.seed)
    return EvalAnswer(
        models=rows,
        test=records.test,
        val=records.val,
        ood_val=records.ood_val or None,
        train=records.train,
        conventions=conventions(rows, plan.models),
        suite=suite,
        warnings=warnings or None,
        bootstrap=intervals,
    )


def _report_skipped(plan: Plan, log: Log) -> None:
    """Log which samples could not be read (with ``--on-bad skip``)."""
    from hydractl.evaluation.sets import CORRUPTION

    for eval_set in plan.sets:
        if eval_set.role == CORRUPTION:  # it has the samples of --test, which are reported already
            continue
        if eval_set.dataset is not None:
            report_skipped(eval_set.dataset, log)


def _report_labels(plan: Plan, settings: EvalSettings, log: Log) -> None:
    """Warn of data sets whose labels are all of one class, and of a test set without labels.

    If predictions are stored, missing labels are expected, and there is no warning.
    """
    for eval_set in plan.sets:
        should_have_labels = eval_set.role in ("id", "val")
        if should_have_labels and eval_set.dataset is not None:
            report_classes(eval_set.dataset, log)
    # The ID test set is always the first.
    test_set = plan.sets[0]
    if test_set.labels is None and settings.predictions is None:
        warning = f"{test_set.option_and_spec()} has no labels: accuracy and calibration are not measured"
        hint = getattr(test_set.dataset, "label_hint", None)
        if hint:
            warning += f" ({hint})"
        log.warn(warning)


def _report_cut(plan: Plan, log: Log) -> None:
    """Log how many texts of each set are cut, once for all models that cut texts in the same way."""
    from hydractl.evaluation.providers.running import RunningModel

    ways_reported: list[Any] = []  # the ways of preparing texts that were reported
    for model in plan.models:
        if not isinstance(model, RunningModel) or model.reads != "text":
            continue
        source = model.argument.sources[0]
        preprocess = source.description.preprocess
        if preprocess in ways_reported:
            continue
        ways_reported.append(preprocess)
        for eval_set in plan.sets:
            assert eval_set.dataset is not None  # a model that runs needs --test
            report_cut(eval_set.dataset, source.family.collate(preprocess), log)


def _paths_by_row(text: str | None, names: list[str]) -> dict[str, Path]:
    """Return the file of each row for an option such as ``--predictions``.

    A single row gets the file itself. Several rows each get a file with the name of the row in it.

    Args:
        text: the value of the option; None if it was not given, which returns no files.
        names: the names of the rows.
    """
    if text is None:
        return {}
    path = file_path(text)
    if len(names) == 1:
        (name,) = names
        return {name: path}
    return {name: named_apart(path, name) for name in names}
