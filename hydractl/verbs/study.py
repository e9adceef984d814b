"""``hydractl study``: does any of this help a model? It goes from MODEL and data to a verdict, by calls of verbs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from hydractl.data.opening import keeping_fingerprints
from hydractl.errors import InputError, Interrupted, OutputError, refuse_options
from hydractl.evaluation.inputs import keeping_batches
from hydractl.expressions.data_sets import AUTO, OodSet
from hydractl.files.atomic import Output, storing, write_bytes, write_json
from hydractl.files.bench_answer import BenchAnswer
from hydractl.files.eval_answer import EvalAnswer
from hydractl.files.fingerprints import incomparable
from hydractl.files.study_answer import StudyAnswer
from hydractl.heads.mask import Site
from hydractl.jsonio import differences, read_json_file, shown
from hydractl.log import Log, PassedOn, Progress, SayOnce
from hydractl.metrics.ood_scores import LAYERS, OF_STUDY, OF_ZERO_SHOT
from hydractl.model.matching import of_one_member, sites_of
from hydractl.model.source import Source, open_source
from hydractl.options.call import Call, filled
from hydractl.report.eval_html import render
from hydractl.report.texts import duration_text
from hydractl.studies.choice import choose, validated, validated_in_words
from hydractl.studies.measured_rows import MeasuredRow
from hydractl.studies.plan import SHARED, Plan
from hydractl.studies.request import StudyRequest, decisive_settings, ood_val_of_study
from hydractl.studies.rows import KINDS, asked_for
from hydractl.studies.scale import Scale, smaller
from hydractl.studies.sets import StudySets, study_sets
from hydractl.studies.steps import Step, script
from hydractl.studies.tested import test_rows
from hydractl.verbs.opening import announce_reading, opening_options
from hydractl.verbs.outcome import Outcome
from hydractl.verbs.study_time import StepSeconds, in_all, step_seconds

PLAN = "hydractl.study-plan/8"

_DEFAULT_NEIGHBOURS = 50
"""The default of ``eval --knn-k``, used with a thousand training samples or more."""
_SAMPLES_A_NEIGHBOUR = 20
"""With fewer training samples, k is the number of samples divided by this."""
_KEPT_BYTES = 1 << 30
"""Bytes of memory for decoded data, which all rows that run in this process share."""


@keeping_fingerprints()
def run(call: Call) -> Outcome:
    """Return the answer of a study: which of several models made from one detects OOD samples best, and at what cost.

    Its steps are commands that make, measure and compare these models (the rows); steps that are done already are not
    repeated. A dry run returns the commands, and about how long they take.

    Raises:
        Interrupted: a signal has come; the same command goes on.
        OutputError: the folder holds other files, or a study with other settings or data.
    """
    values, log = call.values, call.log
    # Without OOD data some are made of the ID data, and the score is chosen blind.
    made_of_test = values["test"].with_setting(f"ood={AUTO}").under(f"--ood {AUTO}")
    request = filled(
        StudyRequest,
        values,
        model=values["model"][0],
        ood_val=values["ood_val"] or [ood_val_of_study("--ood-val", AUTO)],
        ood=values["ood"] or [OodSet(f"{AUTO}={made_of_test}", AUTO, None, made_of_test)],
        has_ood_val=bool(values["ood_val"]),
        has_ood=bool(values["ood"]),
        given={name: values[name] for name in SHARED if call.rank(name)},
    )

    # Open the model and all data, and compare the data sets with each other.
    source = of_one_member(open_source(values["model"][0], opening_options(values)), "study")
    folder = Path(values["output"] or f"{source.name}.study")
    sets = study_sets(request, source, log)

    # What was said about the data here is not repeated by each step.
    log_once = SayOnce(log, sets.warnings)
    if values["dry_run"]:
        plan, seconds = _plan_within_time(sets, source, folder, log_once)
        # The commands, with the last row in place of the best one.
        commands = [step.words() for step in plan.outline()]
        time = in_all(seconds)
        return Outcome(StudyAnswer.planned(steps=commands, cut=plan.scale.cut, seconds=time, warnings=sets.warnings))

    # Begin the folder, or go on in it, and run the steps. Data that were decoded are kept for the steps in memory.
    samples = {f"samples of {given_set.option}": given_set.dataset.fingerprint() for given_set in sets.every}
    decisive = {"model": source.sha256, **decisive_settings(values), **samples}
    announce_reading([source], log_once)
    try:
        plan, seconds = _claim_folder(decisive, sets, source, folder, log_once)
        with keeping_batches(_KEPT_BYTES):
            return _carry_out(plan, seconds, source, sets.warnings, log_once)
    except KeyboardInterrupt:
        raise Interrupted(hint="give the same command to go on") from None


# --- the plan ---------------------------------------------------------------------------------------------------------


def _asked_scale(request: StudyRequest, source: Source) -> Scale:
    """Return the scale (which rows, and how large a search) that the settings ask for.

    Without training data, ``default`` leaves out the rows (models to compare) that need them. A row that was named
    itself is refused.

    Raises:
        UsageError: a row needs training data, and there are none, or the model cannot have it.
    """
    rows = []
    lacking = []
    for name, kind in asked_for(request.rows).items():
        lacks_data = kind.needs_training_data and request.train is None
        if lacks_data and name in request.rows:
            lacking.append(f"--rows {name} needs --train, labelled training data")
        if kind.needs_images and source.description.reads == "text":
            lacking.append(f"--rows {name} needs a model that reads images")
        if kind.needs_classifier and not _has_classifier(source):
            lacking.append(f"--rows {name} needs a model with a classifier of its own")
        if not lacks_data:
            rows.append(name)
    refuse_options(lacking, "rows", hint="leave these rows out, or give what they need")
    return Scale(rows, request.approx, request.search_samples or request.limit)


def _plan_study(sets: StudySets, source: Source, folder: Path, scale: Scale) -> tuple[Plan, StepSeconds]:
    """Return the plan of a study of this scale, and the estimated seconds of each of its steps.

    The plan has the rows (models to compare), and the steps that make and measure them. Nothing runs here but one batch
    of each search, which is timed.
    """
    request = sets.request

    # For each site (attention module), by its index in the model: how many heads it has. They may all be removed.
    sites = sites_of(source, request.tower)
    kept = source.description.mask.kept
    plan = Plan(
        request=request,
        scale=scale,
        folder=folder,
        heads={source.sites.index(site): len(kept[site.path]) for site in sites},
        late=[source.sites.index(site) for site in _late_sites(sites)],
        has_classifier=_has_classifier(source),
        fitted=_options_of_feature_scores(sets, source),
        allow_seen=incomparable(source.description.seen) is not None,
    )
    for name in scale.rows:
        KINDS[name].make(plan)
    return plan, step_seconds(plan, sets)


def _has_classifier(source: Source) -> bool:
    """Return whether a model has a classifier of its own; a zero-shot model has none."""
    return source.family.classes(source.description.config) is not None


def _late_sites(sites: Sequence[Site]) -> list[Site]:
    """Return the sites (attention modules) in the last third of each tower (the encoder of images or of texts)."""
    late_sites = []
    for tower in dict.fromkeys(site.tower for site in sites):
        of_tower = [site for site in sites if site.tower == tower]
        count = max(1, round(len(of_tower) / 3))  # of 12 sites the last 4
        late_sites += of_tower[-count:]
    return late_sites


def _options_of_feature_scores(sets: StudySets, source: Source) -> dict[str, object]:
    """Return the options of ``eval`` for OOD scores on features; empty if there are no samples to fit them to.

    They are fitted to ``sets.fit``: the training data or, without any, the half of the validation data that rows are
    not chosen by.
    """
    samples = sets.fit
    if samples is None:
        return {}
    left_out = set() if sets.layers_fit else {LAYERS}
    if _has_classifier(source):
        left_out.update(OF_ZERO_SHOT)
    # Scores on logits need not be named (except one): they are computed later from the stored logits.
    names = ["msp", *(name for name in OF_STUDY if name not in left_out)]
    options: dict[str, object] = {"ood_score": names, "train": samples.spec}
    # With few samples, the default number of neighbours (k) would be too large.
    neighbours = max(1, samples.count // _SAMPLES_A_NEIGHBOUR)
    if neighbours < _DEFAULT_NEIGHBOURS:
        options["knn_k"] = neighbours
    return options


# --- the folder -------------------------------------------------------------------------------------------------------


def _claim_folder(
    decisive: Mapping[str, object], sets: StudySets, source: Source, folder: Path, log: Log
) -> tuple[Plan, StepSeconds]:
    """Return the plan of a study and the estimated seconds of each of its steps; the folder is created if it is new.

    ===========================  ==========================================================
    the folder has a plan file   the same study must be asked for; it goes on with that plan
    it has other files           an error
    it is new or empty           a plan is made, and its file written
    ===========================  ==========================================================

    The plan file has what was cut, from which the scale follows: which rows (models to compare) there are, and how
    large the search is.

    Args:
        decisive: the model, the settings and the fingerprints of the samples that decide the findings.
        sets: the data of the study, with the request as it follows from them.
        source: the model.
        folder: the folder of the study; it is created if it does not exist.
        log: receives how long a new study takes, and what was cut to stay within ``--time``.

    Raises:
        OutputError: the folder holds other files, or a study with other settings or data; it lists the differences.
    """
    plan_file = folder / "plan.json"
    with storing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        # Hidden files may be left over from a study that was killed before it wrote its plan.
        holds_files = any(not path.name.startswith(".") for path in folder.iterdir())
    if plan_file.exists():
        return _plan_study(sets, source, folder, _read_scale(plan_file, decisive, sets.request, source))
    if holds_files:
        raise OutputError(f"the folder of the study is not empty: {folder}", hint="name another one with -o")

    plan, seconds = _plan_within_time(sets, source, folder, log)
    log.info(f"the study takes about {duration_text(in_all(seconds))} of processor time")
    for text in plan.scale.cut:
        log.info(f"to stay within --time {sets.request.time}, {text}")
    with Output(plan_file) as output:
        write_json(output, {"schema": PLAN, "settings": decisive, "cut": plan.scale.cut})
    return plan, seconds


def _read_scale(path: Path, decisive: Mapping[str, object], request: StudyRequest, source: Source) -> Scale:
    """Return the scale of a study that was begun before, after a check that the same study is asked for now.

    The scale says which rows a study has and how large its search is; ``--time`` may have made it smaller.

    Args:
        path: the plan file of the study.
        decisive: the model, the settings and the fingerprints of the samples, as they are now.
        request: what is asked of the study.
        source: the model.

    Raises:
        InputError: the file is not a plan of a study, or these settings cannot lead to its scale.
        OutputError: the study was begun with other settings or data; it lists the differences.
    """
    document = read_json_file(str(path))
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != PLAN or not isinstance(document.get("settings"), dict):
        raise InputError(
            f"{path.parent} holds a study that another version of hydractl began ({shown(schema)}, not {PLAN})",
            hint="go on with that version, or name another folder with -o",
        )

    changes = differences(document["settings"], decisive, "in the folder")
    if changes:
        hint = "give those it was begun with, or name another folder with -o"
        raise OutputError(f"{path.parent} holds a study of other settings or data", hint=hint, problems=changes)

    # The scale is one of those that the settings allow: each says by itself what was cut.
    for scale in smaller(_asked_scale(request, source)):
        if list(scale.cut) == document.get("cut"):
            return scale
    raise InputError(f"{path}: what it cut is none of what these settings lead to", hint="name another folder with -o")


# --- how long it takes ------------------------------------------------------------------------------------------------


def _plan_within_time(sets: StudySets, source: Source, folder: Path, log: Log) -> tuple[Plan, StepSeconds]:
    """Return the plan of the largest study that keeps to ``--time``, and the seconds of each step by its files.

    The scale says which rows (models to compare) there are, and how large the search is. It is made smaller until the
    estimate keeps to the time. If none does, the smallest is returned, with a warning: evaluations are not cut.
    """
    request = sets.request
    most_seconds = request.seconds()
    for scale in smaller(_asked_scale(request, source)):
        plan, seconds = _plan_study(sets, source, folder, scale)
        if most_seconds is None or in_all(seconds) <= most_seconds:
            return plan, seconds
    # The last scale that was tried is the smallest.
    log.warn(
        f"the smallest study takes longer than --time {request.time}, about {duration_text(in_all(seconds))}: "
        "evaluations are not cut, which --limit, --fit-samples and --bootstrap make smaller"
    )
    return plan, seconds


# --- carrying it out --------------------------------------------------------------------------------------------------


class _Course(Progress):
    """How far a study is: one bar in percent of the estimated time, whatever its steps do.

    As a progress it is that of the long task of the step that runs.

    Args:
        bar: the bar.
        seconds: the estimated seconds of each step.
    """

    def __init__(self, bar: Progress, seconds: StepSeconds) -> None:
        self._bar = bar
        self._seconds = seconds
        self._total = sum(seconds.values())
        self._done = dict.fromkeys(seconds, 0.0)  # the share of each step
        self._shown = 0
        bar.expect(self._total)
        for files in seconds:
            if all(map(Path.exists, files)):  # what was done before takes no time
                self.move(files)

    def begin(self, step: Step, units: int) -> None:
        """Take the long task of a step, of so many units, as what moves on."""
        self._files = step.outputs
        self._units = units
        self._units_done = 0

    def set_total(self, total: int) -> None:
        self._units = total

    def advance(self, amount: int = 1, note: str = "") -> None:
        self._units_done += amount
        self.move(self._files, min(1.0, self._units_done / max(1, self._units)))

    def move(self, files: tuple[Path, ...], share: float = 1.0) -> None:
        """Show that this share of the step that writes these files is done, by default all of it."""
        self._done[files] = share
        done = sum(of_step * self._done[files_of_step] for files_of_step, of_step in self._seconds.items())
        percent = int(100 * done / self._total + 1e-6)  # sums of seconds are rounded
        if percent > self._shown:
            self._bar.advance(percent - self._shown)
            self._shown = percent

    def end(self) -> None:
        """Show that all is done: what was expected and not needed, too."""
        for files in self._seconds:
            self.move(files)


class _StepLog(PassedOn):
    """The log of one command in a study: warnings are passed on, other lines become details.

    Searches and trainings, the tasks that take long, move the bar of the study; other tasks show nothing.
    """

    def __init__(self, log: Log, course: _Course, step: Step) -> None:
        super().__init__(log)
        self._course = course
        self._step = step

    def info(self, message: str) -> None:
        self._log.detail(message)

    @contextmanager
    def progress(self, description: str, total: int | None, unit: str) -> Iterator[Progress]:
        if total and unit in ("evaluations", "steps"):
            self._course.begin(self._step, total)
            yield self._course
        else:
            yield Progress()


def _run_step(step: Step, plan: Plan, course: _Course, log: Log) -> bool:
    """Run the command of a step if its outputs do not exist yet, and note it in ``study.log``; return whether it ran.

    Args:
        step: the step.
        plan: the plan of the study.
        course: shows how far the study is.
        log: receives the command as a detail.
    """
    line = shlex.join(["hydractl", *step.words()])
    _note(plan.folder / "study.log", line)
    runs = not step.done
    log.detail(line if runs else f"{line}: done before")
    if runs:
        step.run(_StepLog(log, course, step))
    course.move(step.outputs)
    return runs


def _validated_rows(plan: Plan, course: _Course, log: Log) -> dict[str, MeasuredRow]:
    """Run the steps up to the choice, and return the rows (models to compare) by name, measured on the validation data.

    After the last command of a row a line says what it reaches there; a row that was done before has none.
    """
    rows_by_file = {plan.calibration_file(row): row for row in plan.rows}  # by what the last step of a row writes
    rows: dict[str, MeasuredRow] = {}
    for step in plan.steps:
        ran = _run_step(step, plan, course, log)
        row = rows_by_file.get(step.outputs[-1])
        if row is None:
            continue
        rows[row.name] = validated(plan, row)
        if ran:
            log.info(validated_in_words(row.name, rows))
    return rows


def _note(path: Path, line: str) -> None:
    """Add a line to a file, unless it is there: a study that goes on gives the same file."""
    with storing(path), path.open("a+", encoding="utf-8", errors="surrogateescape") as file:
        file.seek(0)
        if line not in file.read().splitlines():
            file.write(f"{line}\n")


def _carry_out(plan: Plan, seconds: StepSeconds, source: Source, warnings: Sequence[str], log: Log) -> Outcome:
    """Return the answer of a study: run its steps, choose a row (a model) on the validation data, and test the rows.

    Args:
        plan: the plan of the study; steps whose outputs exist are not run again.
        seconds: the estimated seconds of each step.
        source: the model.
        warnings: sentences on what is odd about the data.
        log: receives the progress.
    """
    folder = plan.folder
    for purpose in ("choose", "test"):
        with storing(folder / purpose):
            (folder / purpose).mkdir(exist_ok=True)
    with log.progress("study", 100, "percent") as progress:
        course = _Course(progress, seconds)

        # Choose on the validation data, and store the choice before any test sample is read.
        chosen = choose(plan, _validated_rows(plan, course, log))
        with Output(folder / "choice.json", force=True) as output:
            write_json(output, chosen.document())

        # Test the rows that the validation data do not rule out.
        testing_steps = plan.testing_steps(chosen.tested_rows)
        # The bar counted a step for every row; those that do not run are done.
        for step in plan.testing_steps(plan.rows):
            if step in testing_steps:
                _run_step(step, plan, course, log)
            else:
                course.move(step.outputs)
        tested = test_rows(chosen)

        # Write the best row as best.st, and measure it.
        used = tested.used
        (row,) = (row for row in plan.rows if row.name == used.row)
        last_steps = plan.last_steps(row, used.score, tested.note, tested.score_of_table(), chosen.tested_rows)
        for step in last_steps:
            _run_step(step, plan, course, log)
        course.end()

    # Make the answer, with what was stored in the best row.
    steps = [*plan.steps, *testing_steps, *last_steps]
    of_best = EvalAnswer.read(str(folder / "best.json"))
    threshold = of_best.models[0].threshold
    answer = tested.answer(source, [step.words() for step in steps], threshold, warnings)
    for line in answer.verdict.lines:
        log.detail(line)
    return _write(plan, answer, steps, of_best)


def _write(plan: Plan, answer: StudyAnswer, steps: Sequence[Step], of_best: EvalAnswer) -> Outcome:
    """Write the report, the script and the answer into the folder of a study.

    Args:
        plan: the plan.
        answer: the answer.
        steps: all steps.
        of_best: what ``eval`` measured of the best row.

    Returns:
        The answer, with the times of the best row if they were measured, and the files that a person wants.
    """
    folder = plan.folder
    table = EvalAnswer.read(str(folder / "test.json"))
    # It was measured from stored predictions, which hold no SPECs; that of the best row on the same data names them.
    table = table.model_copy(update={"test": of_best.test})
    commands = script(steps, folder, Path.cwd(), plan.request.in_memory())
    with Output(folder / "study.sh", force=True) as output:
        write_bytes(output, commands.encode("utf-8", "surrogateescape"))
    with Output(folder / "study.json", force=True) as output:
        write_json(output, answer.to_dict())

    timing = [step.outputs[0] for step in steps if step.verb == "bench"]
    if timing:
        # Times are added only for people: study.json can be reproduced.
        answer = answer.model_copy(update={"timed": BenchAnswer.read(str(timing[0])).results})
    with Output(folder / "report.html", force=True) as output:
        write_bytes(output, render(table, study=answer))
    names = ("best.st", "report.html", "study.json", "study.sh")
    return Outcome(answer, files=[folder / name for name in names])
