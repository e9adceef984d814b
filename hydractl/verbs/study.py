"""``hydractl study``: does any of this help a model? It goes from MODEL and data to a verdict, by running commands."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from hydractl.circuit.plan import SearchPlan
from hydractl.circuit.scope import SearchOptions, scope_of
from hydractl.circuit.session import Session
from hydractl.data import open_data
from hydractl.distributed import processes
from hydractl.errors import InputError, Interrupted, OutputError, UsageError
from hydractl.evaluation.inputs import keeping_batches
from hydractl.expressions.data_sets import DataSpec, with_setting
from hydractl.files.atomic import Output, storing, write_json, write_with
from hydractl.files.bench_answer import BenchAnswer
from hydractl.files.eval_answer import EvalAnswer
from hydractl.files.model_records import ThresholdRecord
from hydractl.files.study_answer import StudyAnswer, TimeRatio
from hydractl.heads.mask import Site
from hydractl.jsonio import canonical_json, differences, read_json_file, shown
from hydractl.log import Log, PassedOn, SayOnce
from hydractl.metrics.ood_scores import OF_STUDY, OF_ZERO_SHOT, ON_FEATURES, needs_training_data
from hydractl.metrics.threshold import stored_score
from hydractl.model.matching import only_one, sites_of
from hydractl.model.source import ModelOptions, Source, open_sources
from hydractl.options.call import gather
from hydractl.options.verbs import declared
from hydractl.report.eval_html import render
from hydractl.report.texts import duration_text
from hydractl.studies.answer import Study
from hydractl.studies.next_commands import next_commands
from hydractl.studies.request import StudyRequest
from hydractl.studies.rows import (
    DEFAULT,
    MAKERS,
    NEED_CLASSIFIER,
    NEED_STEPS,
    NEED_THREE,
    NEED_TRAIN,
    THREE,
    Row,
    Scale,
    Workshop,
    smaller,
)
from hydractl.studies.sets import StudySets, samples_to_fit_to, study_sets
from hydractl.studies.steps import Step, Value, in_order, script
from hydractl.verbs.opening import announce_reading, opening_options
from hydractl.verbs.outcome import Outcome

PLAN = "hydractl.study-plan/3"

_MODEL = ("device", "labels", "prompt", "arch", "seed")
_BATCHES = (*_MODEL, "batch_size", "dtype", "workers", "max_length")
_COMMON = {
    "extract-circuit": (*_BATCHES, "tower"),
    "prune": (*_BATCHES, "tower"),
    "finetune": _BATCHES,
    "fuse": _MODEL,
    "eval": (*_BATCHES, "limit"),
    "calibrate": (*_BATCHES, "limit"),
    "bench": (*_MODEL, "max_length"),
}
"""For each command, the options of a study that are passed on to it."""

_NO_ENVIRONMENT = {"HYDRACTL_CONFIG": os.devnull}

_TRAINING_PASSES = 4
"""Number of forward passes that take about as long as one training step (forward, backward and update)."""

_DEFAULT_NEIGHBOURS = 50
"""The default of ``eval --knn-k``, used with a thousand training samples or more."""
_SAMPLES_A_NEIGHBOUR = 20
"""With fewer training samples, k is the number of samples divided by this."""
_KEPT_BYTES = 1 << 30
"""Bytes of memory for decoded data, which all rows that run in this process share."""


def run(opening: ModelOptions, request: StudyRequest, *, output: str | None, dry_run: bool, log: Log) -> Outcome:
    """Run the steps of a study that are not done yet, and return its verdict.

    Args:
        opening: how the model is opened.
        request: what is asked of the study.
        output: the folder; None to name it after the model.
        dry_run: whether only to plan.
        log: the log.

    Raises:
        Interrupted: a signal has come; the same command goes on.
        OutputError: the folder holds other files, or a study with other settings or data.
    """
    source = only_one(open_sources([request.model], opening), "study")
    folder = Path(output or f"{source.name}.study")
    sets = study_sets(request, source)
    sets.tell(log)

    # What was said about the data here is not repeated by each step.
    log_once = SayOnce(log, sets.warnings)
    if dry_run:
        return _dry_run(sets, source, folder, log_once)
    announce_reading([source], log_once)
    try:
        plan = _claim_folder(request, sets, source, folder, log_once)
        with keeping_batches(_KEPT_BYTES):
            return _carry_out(plan, sets.request, source, log_once)
    except KeyboardInterrupt:
        raise Interrupted(hint="give the same command to go on") from None


# --- the plan ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StudyPlan:
    """The rows and commands of one study. A row is a model or ensemble to compare, e.g. ``single`` or ``circuits``.

    A step is one command of hydractl with its outputs and the steps that it needs. The methods only return steps; they
    run nothing.

    Attributes:
        request: the options of the study.
        workshop: what rows are made from: the model, the data, the folder and options of commands.
        rows: the rows; the single model is the first.
        fitted: options of ``eval`` for OOD scores on features; empty if there are no such scores.
        warnings: sentences on what is odd about the data.
    """

    request: StudyRequest
    workshop: Workshop
    rows: Sequence[Row]
    fitted: Mapping[str, Value]
    warnings: Sequence[str] = ()

    def predictions_by_row(self, purpose: str) -> dict[str, Path]:
        """Return the file of predictions of every row, by the name of the row; see :meth:`predictions`."""
        paths = {}
        for row in self.rows:
            paths[row.name] = self.predictions(row, purpose)
        return paths

    def predictions(self, row: Row, purpose: str) -> Path:
        """Return the file that holds the predictions of a row.

        Args:
            row: the row.
            purpose: ``choose`` for predictions on the data that rows are chosen by, ``test`` for those on the test
                data.
        """
        file_name = f"{row.name}.pred.st"
        return self.workshop.folder / purpose / file_name

    def _eval_step(self, row: Row, purpose: str, data_options: Mapping[str, Value]) -> Step:
        """Return the step that evaluates a row and stores its predictions.

        Args:
            row: the row.
            purpose: ``choose`` or ``test``; names the subfolder of the outputs.
            data_options: the options of ``eval`` that name the data.
        """
        predictions = f"{purpose}/{row.name}.pred.st"
        document = f"{purpose}/{row.name}.json"
        options: dict[str, Value] = dict(data_options)
        options.update(self._feature_options(row))
        options.update(row.options)
        options["predictions"] = str(self.predictions(row, purpose))
        options["resume"] = True
        return self.workshop.step(
            "eval",
            [f"{row.name}={row.model}"],
            options,
            outputs=[predictions, document],
            needs=row.steps,
            output=document,
        )

    def _feature_options(self, row: Row) -> dict[str, Value]:
        """Return the options of ``eval`` for OOD scores on features; empty if the row has none.

        All commands for a row name the same file of features, so the row runs over the training data only once.
        """
        if not self.fitted or not row.stored:
            return {}
        features = self.workshop.folder / "choose" / f"{row.name}.features.st"
        options = dict(self.fitted)
        if "train" in options:
            options["features"] = str(features)
        return options

    def choosing_step(self, row: Row) -> Step:
        """Return the step that stores the logits of a row on the second halves of the validation data.

        The model may have been trained on these samples, because no figure measured on them is reported.
        """
        ood: list[str] = []
        for ood_set in self.request.choosing_sets():
            ood.append(f"{ood_set.name}={_half(ood_set.spec, 2)}")
        data_options: dict[str, Value] = {
            "test": _half(self.request.val, 2),
            "ood": ood,
            "allow_seen": True,
        }
        return self._eval_step(row, "choose", data_options)

    def testing_step(self, row: Row) -> Step:
        """Return the step that stores the logits of a row on the test data."""
        data_options: dict[str, Value] = {
            "test": self.request.test.text,
            "ood": [ood_set.text for ood_set in self.request.ood],
        }
        return self._eval_step(row, "test", data_options)

    def step_of_best(self, row: Row, score: str, note: str) -> Step:
        """Return the step that writes the best row as ``best.st``, with its temperature, threshold and OOD score.

        Args:
            row: the row that the study recommends.
            score: the OOD score of the row.
            note: a text to keep in the file; empty for no note.
        """
        options = self._calibration_options(row, score)
        options["reuse"] = [str(self.predictions(row, "choose"))]
        options["force"] = True
        if note:
            options["note"] = note
        return self.workshop.step(
            "calibrate",
            [f"best={row.model}"],
            options,
            outputs=["best.st"],
            needs=[self.choosing_step(row)],
        )

    def step_of_best_figures(self, row: Row, score: str) -> Step:
        """Return the step that measures the best row with the calibration of ``best.st``.

        It reuses the stored predictions of the row.
        """
        predictions_to_choose_by = self.predictions(row, "choose")
        predictions_to_test_on = self.predictions(row, "test")
        options: dict[str, Value] = {
            "test": self.request.test.text,
            "ood": [ood_set.text for ood_set in self.request.ood],
        }
        options.update(self._calibration_options(row, score))
        options["bootstrap"] = str(self.request.bootstrap)
        options["reuse"] = [str(predictions_to_choose_by), str(predictions_to_test_on)]
        options["force"] = True
        return self.workshop.step(
            "eval",
            [f"best={row.model}"],
            options,
            outputs=["best.json"],
            needs=[self.choosing_step(row), self.testing_step(row)],
        )

    def _calibration_options(self, row: Row, score: str) -> dict[str, Value]:
        """Return the options that fit temperature and threshold of a row on the second half of the validation data."""
        options: dict[str, Value] = {
            "val": _half(self.request.val, 2),
            "temperature": "fit",
            "threshold": self.request.threshold,
            "ood_score": score,
        }
        if score in ON_FEATURES:
            feature_options = self._feature_options(row)
            feature_options.pop("ood_score", None)  # it names all scores; only ``score`` is wanted here
            if ON_FEATURES[score] != "words":
                feature_options.pop("negative_words", None)
            options.update(feature_options)
        return options

    def recalibration_options(self, row: Row, score: str) -> dict[str, Value]:
        """Return the options that calibrate ``best.st`` again in the same way as the row that it was made from.

        Args:
            row: that row.
            score: its OOD score.
        """
        options = self._calibration_options(row, score)
        options.pop("features", None)  # the stored features belong to the file of the row, not to best.st
        return options

    def free_step(self, score: str) -> Step:
        """Return the step that writes the single model with a free score as ``free.st``; no part of the study.

        Args:
            score: the OOD score.
        """
        single = self.rows[0]
        options = self._calibration_options(single, score)
        return self.workshop.step("calibrate", [f"free={single.model}"], options, outputs=["free.st"])

    def card_step(self, row: Row, score: str, note: str) -> Step:
        """Return the step that writes the card (``best.md``) of the best row."""
        path = self.workshop.folder / "best.md"
        options: dict[str, Value] = {"card": str(path), "force": True}
        if note:
            options["note"] = note
        return Step(
            verb="report",
            models=(str(self.workshop.folder / "best.json"),),
            options=options,
            outputs=(path,),
            needs=(self.step_of_best_figures(row, score),),
            has_output=False,
        )

    def table_step(self, study: Study | None = None) -> Step:
        """Return the step that puts the stored test predictions of all rows into one table, ``test.json``.

        Each row has its own temperature. All rows have the OOD score of the single model, if they can compute it, and
        also their own score.

        Args:
            study: what was chosen; None if nothing is chosen yet.
        """
        options: dict[str, Value] = {"bootstrap": str(self.request.bootstrap), "force": True}
        if study is not None:
            options.update(study.options_of_table())
        if self.request.seed:
            options["seed"] = str(self.request.seed)
        models = []
        needs = []
        for row in self.rows:
            predictions = self.predictions(row, "test")
            models.append(f"{row.name}={predictions}")
            needs.append(self.testing_step(row))
        return Step(
            verb="eval",
            models=tuple(models),
            options=options,
            outputs=(self.workshop.folder / "test.json",),
            needs=tuple(needs),
        )

    def timing_steps(self, row: Row, score: str, note: str) -> list[Step]:
        """Return the step that times ``best.st``; empty if it is the single model, or if no times are asked for."""
        if row.name == "single" or not self.request.timed:
            return []
        best_file = self.workshop.folder / "best.st"
        step = self.workshop.step(
            "bench",
            [f"single={self.workshop.model}", f"best={best_file}"],
            {"force": True},
            outputs=["bench.json"],
            needs=[self.step_of_best(row, score, note)],
        )
        return [step]

    def measuring_steps(self) -> list[Step]:
        """Return the steps that store predictions: first those to choose by, then those on the test data."""
        choosing_steps = map(self.choosing_step, self.rows)
        testing_steps = map(self.testing_step, self.rows)
        return in_order([*choosing_steps, *testing_steps])

    def last_steps(self, study: Study) -> list[Step]:
        """Return the steps that remain when the best row is known."""
        used = study.used
        row = study.row(used.row)
        steps = [self.table_step(study)]
        steps += self._steps_of_best(row, used.score, study.note)
        return steps

    def outlined_steps(self) -> list[Step]:
        """Return all steps that are known before anything is chosen, with the last row in place of the best row."""
        steps = self.measuring_steps()
        steps.append(self.table_step())
        steps += self._steps_of_best(self.rows[-1], "SCORE", note="")
        return in_order(steps)

    def _steps_of_best(self, row: Row, score: str, note: str) -> list[Step]:
        """Return the steps that write the best row as ``best.st``, measure it, write its card and time it."""
        return [
            self.step_of_best(row, score, note),
            self.step_of_best_figures(row, score),
            self.card_step(row, score, note),
            *self.timing_steps(row, score, note),
        ]


def _asked_scale(request: StudyRequest) -> Scale:
    """Return the scale (which rows, and how large a search) that the settings ask for.

    Raises:
        UsageError: a row needs training data, and there are none.
    """
    names_asked = ["single"]
    for name in request.rows:
        names_asked += _rows_meant(name, request)
    if request.train is None:
        for name in names_asked:
            if name in NEED_TRAIN:
                raise UsageError(f"--rows {name} needs --train, labelled training data")
    rows = [name for name in MAKERS if name in names_asked]  # in the order of MAKERS, each once
    samples = request.search_samples or request.limit
    return Scale(rows, request.approx, samples)


def _plan_study(request: StudyRequest, source: Source, folder: Path, scale: Scale) -> StudyPlan:
    """Return the rows of a study of this scale, with the commands that make and measure them.

    Raises:
        UsageError: the model cannot have a row, or its training would be too short.
    """
    _check_rows(request, source, scale)
    workshop = _workshop(request, source, folder, scale)
    rows: list[Row] = []
    for row_name in scale.rows:
        make_rows = MAKERS[row_name]
        rows += make_rows(workshop)
    return StudyPlan(request, workshop, rows, _options_of_feature_scores(request, source))


def _workshop(request: StudyRequest, source: Source, folder: Path, scale: Scale) -> Workshop:
    """Return what rows are made from: the model's heads, the data of the search, the folder, and options of commands.

    Args:
        request: the options of the study.
        source: the model.
        folder: the folder of the study.
        scale: which rows there are, and how large the search is.
    """
    # The options of the search, and options that all commands of a kind share.
    search_options: dict[str, Value] = {}
    if scale.approx is not None:
        search_options["approx"] = scale.approx
    if scale.samples is not None:
        search_options["limit"] = str(scale.samples)
    objectives: Sequence[str] = ("avg",)
    if NEED_THREE.intersection(scale.rows):
        objectives = THREE
    common: dict[str, Mapping[str, Value]] = {}
    for verb, option_names in _COMMON.items():
        common[verb] = request.common(option_names)
    common["prune --circuit"] = request.common(_MODEL)

    # For each site (attention module), by its index in the model: how many heads it has. They may all be removed.
    sites = sites_of(source, request.tower)
    heads_by_site = {}
    for site in sites:
        site_index = source.sites.index(site)
        heads_by_site[site_index] = len(source.description.mask.kept[site.path])
    late_site_indices = [source.sites.index(site) for site in _late_sites(sites)]

    # Heads are searched on the first half of the validation data. Rows and scores are chosen on the second half, so
    # that a search cannot favour its own row.
    return Workshop(
        model=request.model,
        heads=heads_by_site,
        late=late_site_indices,
        train=None if request.train is None else request.train.text,
        val=_half(request.val, 1),
        ood_val=_half(request.ood_val_sets()[0].spec, 1),
        folder=folder,
        search=search_options,
        common=common,
        training={"epochs": str(request.epochs), "lr": ",".join(map(repr, request.lr))},
        objectives=objectives,
        max_drop=request.max_drop,
        seed=request.seed,
        has_classifier=_has_classifier(source),
    )


def _has_classifier(source: Source) -> bool:
    """Return whether a model has a classifier of its own; a zero-shot model has none."""
    return source.family.classes(source.description.config) is not None


def _check_rows(request: StudyRequest, source: Source, scale: Scale) -> None:
    """Refuse rows that the model cannot have, or whose training would be too short.

    Raises:
        UsageError: there are such rows; the message names them.
    """
    has_classifier = _has_classifier(source)
    rows_of_classifiers = [name for name in scale.rows if name in NEED_CLASSIFIER]
    if rows_of_classifiers and not has_classifier:
        raise UsageError(
            f"--rows {','.join(rows_of_classifiers)}: only a model with a classifier of its own has these",
            hint="for BayesVLM: hydractl finetune CLIP.st --train captions:PAIRS --ensemble laplace",
        )
    rows_that_need_steps = [name for name in scale.rows if name in NEED_STEPS]
    if not rows_that_need_steps:
        return
    steps = _training_steps(request)
    least = max(NEED_STEPS[name] for name in rows_that_need_steps)
    if steps < least:
        names = ",".join(rows_that_need_steps)
        raise UsageError(
            f"--rows {names}: a training of {least} steps or more is needed, and this one has {steps}",
            hint="more --epochs, or a smaller --batch-size",
        )


def _late_sites(sites: Sequence[Site]) -> list[Site]:
    """Return the sites (attention modules) in the last third of each tower (the encoder of images or of texts)."""
    sites_by_tower: dict[str, list[Site]] = {}
    for site in sites:
        sites_by_tower.setdefault(site.tower, []).append(site)
    late_sites = []
    for sites_of_tower in sites_by_tower.values():
        third = max(1, round(len(sites_of_tower) / 3))
        late_sites += sites_of_tower[-third:]
    return late_sites


def _training_steps(request: StudyRequest) -> int:
    """Return the number of optimizer steps in the training of a row."""
    samples = _count_samples(str(request.train))
    steps_an_epoch = math.ceil(samples / request.batch_size)
    return request.epochs * steps_an_epoch


def _options_of_feature_scores(request: StudyRequest, source: Source) -> dict[str, Value]:
    """Return the options of ``eval`` for OOD scores on features; empty if there are no such scores.

    The scores are fitted to the training data or, without any, to the half of the validation data that the search uses.
    They are never fitted to the half that rows and scores are chosen by. Without data to fit them to, only scores that
    need no data and that the user asked for are used.

    Raises:
        UsageError: the user asks for a score on class texts, and the model is not zero-shot.
    """
    # The names of the scores: the usual ones for this model, and those that the user asked for.
    samples = samples_to_fit_to(request)
    is_zero_shot = not _has_classifier(source)
    names = [name for name in OF_STUDY if is_zero_shot or name not in OF_ZERO_SHOT]
    for name in request.ood_score:
        if name in OF_ZERO_SHOT and not is_zero_shot:
            raise UsageError(f"--ood-score {name} is of class texts, and {source.name} is not zero-shot")
        names.append(name)
    # Without data to fit to, keep only scores that the user asked for and that need none.
    if samples is None:
        names = [name for name in request.ood_score if not needs_training_data(name)]
    if not names:
        return {}

    # The options. Scores on logits need not be named (except one): they are computed later from the stored logits.
    options: dict[str, Value] = {"ood_score": [",".join(["msp", *names])]}
    if request.negative_words is not None:
        options["negative_words"] = request.negative_words
    if samples is None:
        return options
    options["train"] = samples.spec.text
    # With few samples, the default number of neighbours (k) would be too large.
    neighbours = max(1, samples.count // _SAMPLES_A_NEIGHBOUR)
    if neighbours < _DEFAULT_NEIGHBOURS:
        options["knn_k"] = str(neighbours)
    return options


def _rows_meant(name: str, request: StudyRequest) -> list[str]:
    """Return the rows that a name stands for: several for ``default``, itself for any other name.

    Without training data, ``default`` leaves out the rows that need them.
    """
    if name != "default":
        return [name]
    if request.train is not None:
        return list(DEFAULT)
    return [row for row in DEFAULT if row not in NEED_TRAIN]


def _half(spec: DataSpec, number: int) -> str:
    """Return the spec of one half of a data set: the first half for ``number`` 1, the second for 2."""
    return with_setting(spec.text, f"part={number}/2")


# --- the folder -------------------------------------------------------------------------------------------------------


def _claim_folder(asked: StudyRequest, sets: StudySets, source: Source, folder: Path, log: Log) -> StudyPlan:
    """Create the folder of a study, or continue in the folder that the same command began; return the study's plan.

    Args:
        asked: what the command asks of the study.
        sets: the data of the study, with the request as it follows from them.
        source: the model.
        folder: the folder of the study; it is created if it does not exist.
        log: receives how long a new study takes.

    Raises:
        OutputError: the folder holds other files, or a study with other settings or data; it lists the differences.
    """
    plan_file = folder / "plan.json"
    decisive: dict[str, object] = {"model": source.sha256, **asked.decisive()}
    _make_folder(folder, plan_file)
    if plan_file.exists():
        scale = _read_scale(plan_file, decisive, sets)
    else:
        scale = _decide_scale_and_write_plan(plan_file, decisive, sets, source, folder, log)
    plan = _plan_study(sets.request, source, folder, scale)
    return replace(plan, warnings=sets.warnings)


def _make_folder(folder: Path, plan: Path) -> None:
    """Create the folder of a study.

    Args:
        folder: the folder of the study.
        plan: the plan file in it; if it exists, the folder is that of a study.

    Raises:
        OutputError: the folder holds other files.
    """
    with storing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if plan.exists():
            return
        for path in folder.iterdir():
            # Hidden files may be left over from a study that was killed before it wrote its plan.
            if not path.name.startswith("."):
                raise OutputError(f"the folder of the study is not empty: {folder}", hint="name another one with -o")


def _read_scale(path: Path, decisive: Mapping[str, object], sets: StudySets) -> Scale:
    """Return the scale of a study that was begun before, after a check that the same study is asked for now.

    The scale says which rows a study has and how large its search is; ``--time`` may have made it smaller.

    Args:
        path: the plan file of the study.
        decisive: the model and the settings that decide the findings, as they are now.
        sets: the data, as they are now.

    Raises:
        InputError: the file is not a plan of a study, or these settings cannot lead to its scale.
        OutputError: the study was begun with other settings or data; it lists the differences.
    """
    document = read_json_file(str(path))
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != PLAN and str(schema).startswith("hydractl.study-plan/"):
        raise InputError(
            f"{path.parent} holds a study that another version of hydractl began ({shown(schema)}, not {PLAN})",
            hint="go on with that version, or name another folder with -o",
        )
    if schema != PLAN or not isinstance(document.get("settings"), dict):
        raise InputError(f"{path} is no plan of a study", hint="name another folder with -o")
    decisive_before = document["settings"]

    changed_settings = differences(decisive_before, decisive, "in the folder")
    if changed_settings:
        hint = "give the settings it was begun with, or name another folder with -o"
        raise OutputError(f"{path.parent} holds a study of other settings", hint=hint, problems=changed_settings)
    changed_data = sets.changes(document.get("data"))
    if changed_data:
        hint = "give the data it was begun with, or name another folder with -o"
        raise OutputError(f"{path.parent} holds a study of other data", hint=hint, problems=changed_data)

    # Find the scale among those that the settings allow, rather than trust what the file says.
    scale_in_file = canonical_json(document.get("scale"))
    for scale in smaller(_asked_scale(sets.request)):
        if canonical_json(asdict(scale)) == scale_in_file:
            return scale
    raise InputError(f"{path}: its scale is none that these settings lead to", hint="name another folder with -o")


def _decide_scale_and_write_plan(
    path: Path, decisive: Mapping[str, object], sets: StudySets, source: Source, folder: Path, log: Log
) -> Scale:
    """Begin a new study: decide its scale (which rows it has and how large its search is), and write its plan.

    Args:
        path: the plan file, which lets an interrupted study go on.
        decisive: the model and the settings that decide the findings.
        sets: the data of the study.
        source: the studied model.
        folder: the folder of the study.
        log: receives how long the study takes, and what was cut to stay within ``--time``.
    """
    request = sets.request
    scale, seconds = _scale_within_time(request, source, folder, log)
    log.info(f"the study takes about {duration_text(seconds)}")
    for text in scale.cut:
        log.info(f"to stay within --time {request.time}, {text}")
    document = {
        "schema": PLAN,
        "settings": dict(decisive),
        "data": dict(sets.fingerprints),
        "scale": asdict(scale),
    }
    with Output(path) as output:
        write_json(output, document)
    return scale


# --- how long it takes ------------------------------------------------------------------------------------------------


def _dry_run(sets: StudySets, source: Source, folder: Path, log: Log) -> Outcome:
    """Return the commands, with the last row in place of the best one, and an estimate of the time in seconds."""
    request = sets.request
    scale, seconds = _scale_within_time(request, source, folder, log)
    plan = _plan_study(request, source, folder, scale)
    commands = [step.argv() for step in plan.outlined_steps()]
    return Outcome(StudyAnswer.planned(steps=commands, cut=scale.cut, seconds=seconds, warnings=sets.warnings))


def _scale_within_time(request: StudyRequest, source: Source, folder: Path, log: Log) -> tuple[Scale, float]:
    """Return the largest scale that keeps to ``--time``, and about how many seconds it takes.

    If no scale does, the smallest is returned, with a warning.
    """
    most_seconds = request.seconds()
    for scale in smaller(_asked_scale(request)):
        plan = _plan_study(request, source, folder, scale)
        seconds = _estimate(plan, len(source.sites))
        if most_seconds is None or seconds <= most_seconds:
            return scale, seconds
    # The last scale that was tried is the smallest.
    log.warn(f"the smallest study takes longer than --time {request.time}, about {duration_text(seconds)}")
    return scale, seconds


def _estimate(plan: StudyPlan, blocks: int) -> float:
    """Return an estimate of the seconds that searches, trainings and evaluations take.

    One batch of each search is timed. That gives the time for one sample in one block of the model, and from this
    follows the time of everything that trains or evaluates.

    Args:
        plan: the plan of the study.
        blocks: the number of blocks in the model.
    """
    steps = in_order(map(plan.choosing_step, plan.rows))

    # Time one batch of each search.
    searches = [_probe_search(step) for step in steps if step.verb == "extract-circuit"]
    search_seconds = sum(search.seconds for search in searches)
    if searches:
        timed_search = searches[0]
    else:
        # No row needs a search; one is timed only for its speed.
        timed_search = _probe_search(plan.workshop.search_of_circuits)
    # A sample-block is one sample run through one block.
    seconds_per_block = timed_search.seconds / timed_search.sample_blocks

    # Count everything else in forward passes of one sample through the whole model.
    samples_per_row = _samples_of_a_row(plan)
    forward_passes = 0
    for row in plan.rows:
        if "mc_dropout" in row.options:
            passes_per_sample = 10  # each sample runs several times with other dropout
        else:
            passes_per_sample = 2  # a row takes about twice the single model's time
        forward_passes += passes_per_sample * samples_per_row
    for step in steps:
        if step.verb == "finetune" and "epochs" in step.options:  # a posterior takes no more than a pass
            forward_passes += _passes_of_training(step)
    return search_seconds + forward_passes * blocks * seconds_per_block


def _samples_of_a_row(plan: StudyPlan) -> int:
    """Return how many samples each row is evaluated on or fitted to: validation, test, OOD and training data."""
    request = plan.request
    ood_sets = [*request.ood, *request.ood_val_sets()]
    specs: list[str | DataSpec] = [request.val, request.test, *(ood_set.spec for ood_set in ood_sets)]
    if "train" in plan.fitted:
        specs.append(str(plan.fitted["train"]))
    return sum(_count_samples(spec, request.limit) for spec in specs)


def _count_samples(spec: str | DataSpec, limit: int | None = None) -> int:
    """Return how many samples a data set has, at most ``limit``."""
    dataset = open_data(spec, limit=limit, ignore_labels=True)
    return len(dataset)


def _passes_of_training(step: Step) -> int:
    """Return how many forward passes of one sample take as long as the training of a step."""
    options = step.options
    epochs = int(str(options["epochs"]))
    learning_rates = str(options["lr"]).split(",")
    train_samples = _count_samples(str(options["train"]))
    val_samples = _count_samples(str(options["val"]))
    passes_of_epoch = _TRAINING_PASSES * train_samples + val_samples
    return len(learning_rates) * epochs * passes_of_epoch


def _probe_search(step: Step) -> SearchPlan:
    """Return the plan of the search that a step runs, with its time measured on one batch."""
    signature = declared(step.verb)
    assert signature is not None
    values = gather(signature, step.given, _NO_ENVIRONMENT, None).values
    opening = opening_options(**{name: values[name] for name in ("arch", "labels", "max_length", "prompt", "seed")})
    source = open_sources(values["model"], opening)[0]
    options = SearchOptions(**{field.name: values[field.name] for field in fields(SearchOptions)})
    with processes(values["timeout"]) as team:
        scope = scope_of(source, options, Log())
        session = Session(scope, options, Log(), team)
        return session.probe()


# --- carrying it out --------------------------------------------------------------------------------------------------


class _StepLog(PassedOn):
    """The log of one command in a study: warnings and progress are passed on, other lines become details."""

    def info(self, message: str) -> None:
        self._log.detail(message)


def _run_steps(steps: Sequence[Step], all_steps: int, begun: int, log: Log) -> None:
    """Run the commands whose outputs do not exist yet, one after another.

    Args:
        steps: the commands.
        all_steps: how many commands the study has in all, for the log.
        begun: how many commands of the study come before these, for the log.
        log: receives which step runs.
    """
    for number, step in enumerate(steps, begun + 1):
        line = f"step {number} of {all_steps}: hydractl {shlex.join(step.argv())}"
        if step.done:
            log.detail(f"{line}: done before")
            continue
        log.info(line)
        _run_step(step, _StepLog(log))


def _run_step(step: Step, log: Log) -> None:
    """Run one command.

    It has every option that it needs, so environment variables and hydra.yaml are ignored.
    """
    signature = declared(step.verb)
    assert signature is not None
    call = gather(signature, step.given, _NO_ENVIRONMENT, None)
    call.log = log
    call.run()


def _carry_out(plan: StudyPlan, request: StudyRequest, source: Source, log: Log) -> Outcome:
    """Run the commands that are not done yet, choose a row on the validation data, test all rows, and write the answer.

    Args:
        plan: the plan of the study; commands whose outputs exist are not run again.
        request: the options of the study, with those that follow from its data.
        source: the model.
        log: receives which step runs.
    """
    folder = plan.workshop.folder
    for purpose in ("choose", "test"):
        subfolder = folder / purpose
        with storing(subfolder):
            subfolder.mkdir(exist_ok=True)
    choosing_steps = in_order(map(plan.choosing_step, plan.rows))
    measuring_steps = plan.measuring_steps()
    steps_expected = len(plan.outlined_steps())
    given_score = stored_score(source.description.extra)
    study = Study(plan.rows, request.max_drop, request.bootstrap, request.seed, log, given_score)

    # Choose on the validation data, and store the choice before any test sample is read.
    _run_steps(choosing_steps, steps_expected, 0, log)
    study.choose(plan.predictions_by_row("choose"))
    with Output(folder / "choice.json", force=True) as output:
        write_json(output, study.choice_document())

    # Test every row.
    testing_steps = [step for step in measuring_steps if step not in choosing_steps]
    _run_steps(testing_steps, steps_expected, len(choosing_steps), log)
    study.test(plan.predictions_by_row("test"))

    # Write the best row as best.st, measure it, and read back what was stored in it.
    steps = in_order([*measuring_steps, *plan.last_steps(study)])
    last_steps = [step for step in steps if step not in measuring_steps]
    _run_steps(last_steps, len(steps), len(measuring_steps), log)
    best = folder / "best.st"
    stored_in_best = _stored_results(best)
    stored_threshold = stored_in_best.get("threshold")
    threshold = None
    if isinstance(stored_threshold, Mapping):
        threshold = ThresholdRecord.model_validate(stored_threshold)

    # Make the answer.
    commands = [step.argv() for step in steps]
    answer = study.answer(source.name, source.sha256, commands, threshold)
    row_used = study.row(study.used.row)
    calibration = plan.recalibration_options(row_used, study.used.score)
    free_score = study.free_alternative
    free = None
    if free_score is not None:
        free = plan.free_step(free_score)
    commands_to_go_on = next_commands(request, folder, calibration, free=free)
    answer = answer.model_copy(update={"next": commands_to_go_on})
    return _write(plan, answer, steps)


def _stored_results(model: Path) -> Mapping[str, object]:
    """Return what is stored in a checkpoint beside its weights, by key: ``threshold``, ``calibration`` and so on."""
    (source,) = open_sources([str(model)])
    return source.description.extra


def _write(plan: StudyPlan, answer: StudyAnswer, steps: Sequence[Step]) -> Outcome:
    """Write the report, the script and the answer into the folder of a study.

    Returns:
        The answer, with the times of the best row if they were measured, and the files that a person wants.
    """
    folder = plan.workshop.folder
    if plan.warnings:
        answer = answer.model_copy(update={"warnings": list(plan.warnings)})
    table = EvalAnswer.read(str(folder / "test.json"))
    # It was measured from stored predictions, which hold no SPECs; that of the best row on the same data names them.
    table = table.model_copy(update={"test": EvalAnswer.read(str(folder / "best.json")).test})
    page = render(table, study=answer)
    commands = script(_steps_to_best(steps, folder), steps, folder, Path.cwd())
    script_bytes = commands.encode("utf-8", "surrogateescape")
    _write_bytes(folder / "report.html", page)
    _write_bytes(folder / "study.sh", script_bytes)
    with Output(folder / "study.json", force=True) as output:
        write_json(output, answer.to_dict())

    is_timed = any(step.verb == "bench" for step in steps)
    if is_timed:
        # Times are added only for the terminal; in the folder, only bench.json holds them.
        answer = answer.model_copy(update={"latency": _latency(folder / "bench.json")})
    names = ("best.st", "best.md", "report.html", "study.json", "study.sh")
    return Outcome(answer, files=[folder / name for name in names])


def _write_bytes(path: Path, content: bytes) -> None:
    """Write a file in one go; an existing file is replaced."""
    with Output(path, force=True) as output:
        write_with(output, lambda handle: handle.write(content))


def _steps_to_best(steps: Sequence[Step], folder: Path) -> list[Step]:
    """Return the steps that write ``best.st`` or its figures, ``best.json``."""
    files_of_best = {folder / "best.st", folder / "best.json"}
    steps_to_best = []
    for step in steps:
        if not files_of_best.isdisjoint(step.outputs):
            steps_to_best.append(step)
    return steps_to_best


def _latency(path: Path) -> list[TimeRatio]:
    """Return the time of the best row as a ratio to the time of the single model, for each batch size.

    Args:
        path: the answer of the bench of both.

    Returns:
        An entry for each batch size, with its ``ratio`` and the interval ``ratio_ci``.
    """
    ratios = []
    for row in BenchAnswer.read(str(path)).results:
        if row.model == "best":
            ratios.append(TimeRatio(batch_size=row.batch_size, ratio=row.ratio, ratio_ci=row.ratio_ci))
    return ratios
