"""``hydractl study``: does any of this help a model? From MODEL and data to a verdict, by literal commands."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from hydractl.circuit.plan import SearchPlan
from hydractl.circuit.scope import SearchOptions, scope_of
from hydractl.circuit.session import Session
from hydractl.data import open_data
from hydractl.distributed import processes
from hydractl.errors import HydraError, InputError, Interrupted, OutputError, UsageError
from hydractl.evaluation.inputs import keeping_batches
from hydractl.expressions.data_sets import parse_ood_set, with_setting
from hydractl.files.atomic import Output, storing, write_json, write_with
from hydractl.files.model_records import ThresholdRecord
from hydractl.files.study_answer import StudyAnswer
from hydractl.heads.mask import Site
from hydractl.jsonio import canonical_json, differences, read_json_file
from hydractl.log import Log, PassedOn, SayOnce
from hydractl.metrics.ood_scores import OF_STUDY, OF_ZERO_SHOT, ON_FEATURES, needs_training_data
from hydractl.model.matching import only_one, sites_of
from hydractl.model.source import Source, open_sources
from hydractl.report.eval_document import read_eval
from hydractl.report.eval_html import render
from hydractl.report.texts import duration_text
from hydractl.settings.common import Common
from hydractl.settings.pruning import CircuitSettings
from hydractl.settings.sources import merge
from hydractl.settings.studying import StudySettings
from hydractl.settings.verbs import SETTINGS, options_of_verb
from hydractl.studies.answer import SCHEMA, Study
from hydractl.studies.next_commands import next_commands
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
from hydractl.training.checkpointing import Interruptions
from hydractl.verbs import bench, calibrate, eval, extract_circuit, finetune, fuse, laplace, prune, report
from hydractl.verbs.children import Ended
from hydractl.verbs.jobs import check_places, run_side_by_side
from hydractl.verbs.opening import announce_reading, model_options
from hydractl.verbs.outcome import Outcome

PLAN = "hydractl.study-plan/2"

_RUNS = {
    "extract-circuit": extract_circuit.run,
    "prune": prune.run,
    "finetune": finetune.run,
    "laplace": laplace.run,
    "fuse": fuse.run,
    "eval": eval.run,
    "calibrate": calibrate.run,
    "bench": bench.run,
    "report": report.run,
}
_MODEL = ("device", "labels", "prompt", "arch", "seed")
_BATCHES = (*_MODEL, "batch_size", "dtype", "workers", "max_length")
_COMMON = {
    "extract-circuit": (*_BATCHES, "tower"),
    "prune": (*_BATCHES, "tower"),
    "finetune": _BATCHES,
    "laplace": _BATCHES,
    "fuse": _MODEL,
    "eval": (*_BATCHES, "limit"),
    "calibrate": (*_BATCHES, "limit"),
    "bench": (*_MODEL, "max_length"),
}
"""The options of a study that its commands are given too, by verb."""

_TRAINING_PASSES = 4
"""How many forward passes take about as long as one training step: forward, backward and the update."""

_DEFAULT_NEIGHBOURS = 50
"""The default of ``eval --knn-k``, used with a thousand training samples or more."""
_SAMPLES_A_NEIGHBOUR = 20
"""With fewer samples, k is the number of samples divided by this."""
_KEPT_BYTES = 1 << 30
"""Memory for decoded data, which the rows that run in this process share."""
_DECISIVE = (
    "train",
    "val",
    "ood_val",
    "test",
    "ood",
    "rows",
    "max_drop",
    "time",
    "search_samples",
    "approx",
    "fit_samples",
    "ood_score",
    "negative_words",
    "epochs",
    "lr",
    "threshold",
    "bootstrap",
    "limit",
    "max_length",
    "labels",
    "prompt",
    "tower",
    "arch",
    "seed",
    "dtype",
)
"""The options that decide what a study finds."""


def run(settings: StudySettings, log: Log) -> Outcome:
    """Run the steps of a study that are not done yet, and return its verdict.

    Raises:
        Interrupted: by a signal; the same command goes on.
        OutputError: the folder holds something else, or a study of other settings or data.
    """
    check_places(settings.places, settings.slurm)
    sources = open_sources(settings.model, model_options(settings))
    source = only_one(sources, "study")
    folder = Path(settings.output or f"{source.name}.study")
    sets = study_sets(settings, source)
    sets.tell(log)

    # What was said of the data here is not said again by each step.
    log_once = SayOnce(log, sets.warnings)
    if settings.dry_run:
        return _dry_run(sets, source, folder, log_once)
    announce_reading([source], log_once)
    try:
        plan = _claim_folder(settings, sets, source, folder, log_once)
        with keeping_batches(_KEPT_BYTES):
            return _carry_out(plan, sets.settings, source, log_once)
    except KeyboardInterrupt:
        raise Interrupted(hint="give the same command to go on") from None


# --- the plan ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StudyPlan:
    """The rows and commands of one study.

    Attributes:
        settings: of the study.
        shop: what rows are made of.
        rows: the single model first.
        fitted: options of ``eval`` for OOD scores on features; none without training data.
        warnings: what is odd about the data.
    """

    settings: StudySettings
    shop: Workshop
    rows: Sequence[Row]
    fitted: Mapping[str, Value]
    warnings: Sequence[str] = ()

    def predictions_by_row(self, purpose: str) -> dict[str, Path]:
        """Return :meth:`predictions` of all rows, by the name of the row."""
        paths = {}
        for row in self.rows:
            paths[row.name] = self.predictions(row, purpose)
        return paths

    def predictions(self, row: Row, purpose: str) -> Path:
        """Return the file that holds the predictions of a row.

        Args:
            row: the row.
            purpose: ``choose`` for the data that rows are chosen by, ``test`` for the test data.
        """
        file_name = f"{row.name}.pred.st"
        return self.shop.folder / purpose / file_name

    def _eval_step(self, row: Row, purpose: str, data_options: Mapping[str, Value]) -> Step:
        """Return the step that evaluates a row on the data of one purpose and stores its predictions."""
        predictions = f"{purpose}/{row.name}.pred.st"
        document = f"{purpose}/{row.name}.json"
        options: dict[str, Value] = dict(data_options)
        options.update(self._feature_options(row))
        options.update(row.options)
        options["predictions"] = str(self.predictions(row, purpose))
        options["resume"] = True
        return self.shop.step(
            "eval",
            [f"{row.name}={row.model}"],
            options,
            outputs=[predictions, document],
            needs=row.steps,
            output=document,
        )

    def _feature_options(self, row: Row) -> dict[str, Value]:
        """Return the options of ``eval`` for OOD scores on features; empty where the row has none.

        All commands on a row name one file of features, so the row runs over the training data once.
        """
        if not self.fitted or not row.stored:
            return {}
        features = self.shop.folder / "choose" / f"{row.name}.features.st"
        options = dict(self.fitted)
        if "train" in options:
            options["features"] = str(features)
        return options

    def choosing_step(self, row: Row) -> Step:
        """Return the step that stores the logits of a row on the second halves of the validation data.

        Samples that the model was trained on are allowed, because no figure on these data is reported.
        """
        ood: list[str] = []
        for ood_set in self.settings.choosing_sets():
            second_half = _half(ood_set.spec, 2)
            ood.append(f"{ood_set.name}={second_half}")
        data_options: dict[str, Value] = {
            "test": _half(str(self.settings.val), 2),
            "ood": ood,
            "allow_seen": True,
        }
        return self._eval_step(row, "choose", data_options)

    def testing_step(self, row: Row) -> Step:
        """Return the step that stores the logits of a row on the test data."""
        data_options: dict[str, Value] = {
            "test": str(self.settings.test),
            "ood": list(self.settings.ood),
        }
        return self._eval_step(row, "test", data_options)

    def step_of_best(self, row: Row, score: str, note: str) -> Step:
        """Return the step that writes the row to use as ``best.st``, with its temperature, threshold and score.

        Nothing is fitted to the test data, so they are the reference that ``predict`` compares inputs with.

        Args:
            row: the row to use.
            score: its OOD score.
            note: kept in the file; empty for none.
        """
        predictions_to_choose_by = self.predictions(row, "choose")
        predictions_to_test_on = self.predictions(row, "test")
        options = self._calibration_options(row, score)
        options["reference"] = str(self.settings.test)
        options["reuse"] = [str(predictions_to_choose_by), str(predictions_to_test_on)]
        options["force"] = True
        if note:
            options["note"] = note
        return self.shop.step(
            "calibrate",
            [f"best={row.model}"],
            options,
            outputs=["best.st"],
            needs=[self.choosing_step(row), self.testing_step(row)],
        )

    def step_of_best_figures(self, row: Row, score: str) -> Step:
        """Return the step that measures the row to use as ``best.st`` holds it, from the predictions of the row."""
        predictions_to_choose_by = self.predictions(row, "choose")
        predictions_to_test_on = self.predictions(row, "test")
        options: dict[str, Value] = {
            "test": str(self.settings.test),
            "ood": list(self.settings.ood),
        }
        options.update(self._calibration_options(row, score))
        options["bootstrap"] = str(self.settings.bootstrap)
        options["reuse"] = [str(predictions_to_choose_by), str(predictions_to_test_on)]
        options["force"] = True
        return self.shop.step(
            "eval",
            [f"best={row.model}"],
            options,
            outputs=["best.json"],
            needs=[self.choosing_step(row), self.testing_step(row)],
        )

    def _calibration_options(self, row: Row, score: str) -> dict[str, Value]:
        """Return options that choose temperature and threshold of a row on the second half of the validation data."""
        options: dict[str, Value] = {
            "val": _half(str(self.settings.val), 2),
            "temperature": "fit",
            "threshold": self.settings.threshold,
            "ood_score": score,
        }
        if score in ON_FEATURES:
            feature_options = self._feature_options(row)
            feature_options.pop("ood_score", None)  # it asks for all scores, and here one is chosen
            if ON_FEATURES[score] != "words":
                feature_options.pop("negative_words", None)
            options.update(feature_options)
        return options

    def recalibration_options(self, row: Row, score: str) -> dict[str, Value]:
        """Return the options that calibrate ``best.st`` anew, in the way that the row it comes from was calibrated."""
        options = self._calibration_options(row, score)
        options.pop("features", None)  # they are of the row, and best.st is another file
        options["reference"] = str(self.settings.test)
        return options

    def card_step(self, row: Row, score: str, note: str) -> Step:
        """Return the step that writes the card of the row to use."""
        path = self.shop.folder / "best.md"
        options: dict[str, Value] = {"card": str(path), "force": True}
        if note:
            options["note"] = note
        return Step(
            verb="report",
            models=(str(self.shop.folder / "best.json"),),
            options=options,
            outputs=(path,),
            needs=(self.step_of_best_figures(row, score),),
            has_output=False,
        )

    def table_step(self, study: Study | None = None) -> Step:
        """Return the step that puts the stored predictions of all rows into one table.

        Each row has its own temperature. All rows have the score of the single model where they can compute it, and
        their own score beside it.

        Args:
            study: what was chosen; None before anything is.
        """
        options: dict[str, Value] = {"bootstrap": str(self.settings.bootstrap), "force": True}
        if study is not None:
            options.update(study.options_of_table())
        if self.settings.seed:
            options["seed"] = str(self.settings.seed)
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
            outputs=(self.shop.folder / "test.json",),
            needs=tuple(needs),
        )

    def timing_steps(self, row: Row, score: str, note: str) -> list[Step]:
        """Return the step that times ``best.st``; none where it is the single model, or no times are asked for."""
        if row.name == "single" or not self.settings.timed:
            return []
        best_file = self.shop.folder / "best.st"
        step = self.shop.step(
            "bench",
            [f"single={self.shop.model}", f"best={best_file}"],
            {"force": True},
            outputs=["bench.json"],
            needs=[self.step_of_best(row, score, note)],
        )
        return [step]

    def measuring_steps(self) -> list[Step]:
        """Return the steps that store predictions, those to choose by before those on the test data."""
        choosing_steps = map(self.choosing_step, self.rows)
        testing_steps = map(self.testing_step, self.rows)
        return in_order([*choosing_steps, *testing_steps])

    def last_steps(self, study: Study) -> list[Step]:
        """Return the steps that remain when the row to use is known."""
        used = study.used
        row = study.row(used.row)
        steps = [self.table_step(study)]
        steps += self._steps_of_best(row, used.score, study.note)
        return steps

    def outlined_steps(self) -> list[Step]:
        """Return all steps as far as they are known before anything is chosen; the last row stands for the best."""
        steps = self.measuring_steps()
        steps.append(self.table_step())
        steps += self._steps_of_best(self.rows[-1], "SCORE", note="")
        return in_order(steps)

    def _steps_of_best(self, row: Row, score: str, note: str) -> list[Step]:
        """Return the steps that write the row to use as ``best.st``, measure it, write its card and time it."""
        return [
            self.step_of_best(row, score, note),
            self.step_of_best_figures(row, score),
            self.card_step(row, score, note),
            *self.timing_steps(row, score, note),
        ]


def _asked_scale(settings: StudySettings) -> Scale:
    """Return the rows and the size of the search that the settings ask for.

    Raises:
        UsageError: for rows that need training data where there are none.
    """
    names_asked = ["single"]
    for name in settings.rows:
        names_asked += _rows_meant(name, settings)
    if settings.train is None:
        for name in names_asked:
            if name in NEED_TRAIN:
                raise UsageError(f"--rows {name} needs --train, labelled training data")
    rows = [name for name in MAKERS if name in names_asked]  # in the order of MAKERS, each once
    samples = settings.search_samples or settings.limit
    return Scale(rows, settings.approx, samples)


def _plan_study(settings: StudySettings, source: Source, folder: Path, scale: Scale) -> StudyPlan:
    """Return the rows of a study of this scale, with the commands that make and measure them.

    Raises:
        UsageError: for rows that the model cannot have.
    """
    _check_rows(settings, source, scale)
    shop = _workshop(settings, source, folder, scale)
    rows: list[Row] = []
    for row_name in scale.rows:
        make_rows = MAKERS[row_name]
        rows += make_rows(shop)
    return StudyPlan(settings, shop, rows, _options_of_feature_scores(settings, source))


def _workshop(settings: StudySettings, source: Source, folder: Path, scale: Scale) -> Workshop:
    """Return what the rows are made of: the model's heads, the data of the search, and options of the commands.

    Args:
        settings: of the study.
        source: the model.
        folder: of the study.
        scale: which rows there are, and how large the search is.
    """
    # Options of the commands.
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
        common[verb] = settings.common(SETTINGS[verb], option_names)
    common["prune --circuit"] = settings.common(SETTINGS["prune"], _MODEL)

    # How many heads may be removed, by the number of their site (attention module) in the model.
    sites = sites_of(source, settings.tower)
    heads_by_site = {}
    for site in sites:
        site_number = source.sites.index(site)
        heads_by_site[site_number] = len(source.description.mask.kept[site.path])
    late_site_numbers = [source.sites.index(site) for site in _late_sites(sites)]
    return Workshop(
        model=settings.model[0],
        heads=heads_by_site,
        late=late_site_numbers,
        train=settings.train,
        val=_half(str(settings.val), 1),
        ood_val=_half(settings.ood_val_sets()[0].spec, 1),
        folder=folder,
        search=search_options,
        common=common,
        training={"epochs": str(settings.epochs), "lr": repr(settings.lr)},
        objectives=objectives,
        max_drop=settings.max_drop,
        seed=settings.seed,
        has_classifier=_has_classifier(source),
    )


def _has_classifier(source: Source) -> bool:
    """Return whether a model has a classifier of its own, which a zero-shot model has not."""
    return source.family.classes(source.description.config) is not None


def _check_rows(settings: StudySettings, source: Source, scale: Scale) -> None:
    """Refuse rows that the model cannot have or whose training would be too short.

    Raises:
        UsageError: naming these rows.
    """
    has_classifier = _has_classifier(source)
    rows_of_classifiers = [name for name in scale.rows if name in NEED_CLASSIFIER]
    if rows_of_classifiers and not has_classifier:
        raise UsageError(
            f"--rows {','.join(rows_of_classifiers)}: only a model with a classifier of its own has these",
            hint="for BayesVLM: hydractl laplace CLIP.st --train captions:PAIRS",
        )
    rows_that_need_steps = [name for name in scale.rows if name in NEED_STEPS]
    if not rows_that_need_steps:
        return
    steps = _training_steps(settings)
    least = max(NEED_STEPS[name] for name in rows_that_need_steps)
    if steps < least:
        names = ",".join(rows_that_need_steps)
        raise UsageError(
            f"--rows {names}: a training of {least} steps or more is needed, and this one has {steps}",
            hint="more --epochs, or a smaller --batch-size",
        )


def _late_sites(sites: Sequence[Site]) -> list[Site]:
    """Return the sites (attention modules) in the last third of each tower (the image or the text encoder)."""
    sites_by_tower: dict[str, list[Site]] = {}
    for site in sites:
        sites_by_tower.setdefault(site.tower, []).append(site)
    late_sites = []
    for sites_of_tower in sites_by_tower.values():
        third = max(1, round(len(sites_of_tower) / 3))
        late_sites += sites_of_tower[-third:]
    return late_sites


def _training_steps(settings: StudySettings) -> int:
    """Return the number of optimizer steps of a row that is trained."""
    samples = _count_samples(str(settings.train))
    steps_an_epoch = math.ceil(samples / settings.batch_size)
    return settings.epochs * steps_an_epoch


def _options_of_feature_scores(settings: StudySettings, source: Source) -> dict[str, Value]:
    """Return the options of ``eval`` for OOD scores on features; empty where there are none.

    The scores are fitted to the training data or, without any, to the half of the validation data that the search uses;
    never to the half that rows and scores are chosen by. Without data to fit them to, only those that were asked for
    and need none are taken.

    Raises:
        UsageError: a score of class texts is asked for, and the model has a classifier of its own.
    """
    samples = samples_to_fit_to(settings)
    is_zero_shot = not _has_classifier(source)
    names = [name for name in OF_STUDY if is_zero_shot or name not in OF_ZERO_SHOT]
    for name in settings.ood_score:
        if name in OF_ZERO_SHOT and not is_zero_shot:
            raise UsageError(f"--ood-score {name} is of class texts, and {source.name} is not zero-shot")
        names.append(name)
    if samples is None:
        names = [name for name in settings.ood_score if not needs_training_data(name)]
    if not names:
        return {}

    # Scores on logits are computed from the logits that are kept, without being named.
    options: dict[str, Value] = {"ood_score": [",".join(["msp", *names])]}
    if settings.negative_words is not None:
        options["negative_words"] = settings.negative_words
    if samples is None:
        return options
    options["train"] = samples.spec
    neighbours = max(1, samples.count // _SAMPLES_A_NEIGHBOUR)
    if neighbours < _DEFAULT_NEIGHBOURS:
        options["knn_k"] = str(neighbours)
    return options


def _rows_meant(name: str, settings: StudySettings) -> list[str]:
    """Return the rows that a name stands for: ``default`` for several, any other for itself.

    Without training data, ``default`` leaves out the rows that need them.
    """
    if name != "default":
        return [name]
    if settings.train is not None:
        return list(DEFAULT)
    return [row for row in DEFAULT if row not in NEED_TRAIN]


def _half(spec: str, number: int) -> str:
    """Return the spec of the first (``number`` 1) or second (2) half of a data set."""
    return with_setting(spec, f"part={number}/2")


# --- the folder -------------------------------------------------------------------------------------------------------


def _claim_folder(asked: StudySettings, sets: StudySets, source: Source, folder: Path, log: Log) -> StudyPlan:
    """Make the folder of a study, or go on in the one that the same command has begun; return the plan of the study.

    Args:
        asked: the settings of the command.
        sets: its data, with the settings that follow from them.
        source: the model.
        folder: of the study; it is made where it is missing.
        log: hears how long a new study takes.

    Raises:
        OutputError: the folder holds something else, or a study of other settings or data; lists the differences.
    """
    plan_file = folder / "plan.json"
    decisive: dict[str, object] = {"model": source.sha256}
    for name in _DECISIVE:
        decisive[name] = getattr(asked, name)
    _make_folder(folder, plan_file)
    if plan_file.exists():
        scale = _read_scale(plan_file, decisive, sets)
    else:
        scale = _decide_scale_and_write_plan(plan_file, decisive, sets, source, folder, log)
    plan = _plan_study(sets.settings, source, folder, scale)
    return replace(plan, warnings=sets.warnings)


def _make_folder(folder: Path, plan: Path) -> None:
    """Make the folder of a study.

    Args:
        folder: of the study.
        plan: the file in it that shows that it is a study's.

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
    """Return the scale of a study that was begun before, after a check that it is the study asked for now.

    The scale is which rows a study has and how large its search is; ``--time`` may have made it smaller.

    Args:
        path: of its plan.
        decisive: the model and the settings that decide what a study finds, as they are now.
        sets: the data, as they are now.

    Raises:
        InputError: the file is no plan of a study, or its scale cannot come of these settings.
        OutputError: it was begun with other settings or data; lists the differences.
    """
    document = read_json_file(str(path))
    is_plan = isinstance(document, dict) and document.get("schema") == PLAN
    if not is_plan or not isinstance(document.get("settings"), dict):
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

    scale_in_file = canonical_json(document.get("scale"))
    for scale in smaller(_asked_scale(sets.settings)):
        if canonical_json(asdict(scale)) == scale_in_file:
            return scale
    raise InputError(f"{path}: its scale is none that these settings lead to", hint="name another folder with -o")


def _decide_scale_and_write_plan(
    path: Path, decisive: Mapping[str, object], sets: StudySets, source: Source, folder: Path, log: Log
) -> Scale:
    """Begin a new study: decide its scale (which rows it has and how large its search is), and write its plan.

    Args:
        path: the file of the plan, by which a study that was stopped goes on.
        decisive: the model and the settings that decide what the study finds.
        sets: its data.
        source: the studied model.
        folder: of the study.
        log: hears how long it takes, and what was cut to stay within ``--time``.
    """
    settings = sets.settings
    scale, seconds = _scale_within_time(settings, source, folder, log)
    condition = ""
    if settings.devices or settings.slurm:
        condition = ", one command after another on this machine"
    log.info(f"the study takes about {duration_text(seconds)}{condition}")
    for text in scale.cut:
        log.info(f"to stay within --time {settings.time}, {text}")
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
    """Return the commands, with the last row in place of the best one, and an estimate of the time."""
    settings = sets.settings
    scale, seconds = _scale_within_time(settings, source, folder, log)
    plan = _plan_study(settings, source, folder, scale)
    document = {
        "schema": SCHEMA,
        "dry_run": True,
        "steps": [step.argv() for step in plan.outlined_steps()],
        "cut": scale.cut,
        "seconds": seconds,
    }
    if sets.warnings:
        document["warnings"] = list(sets.warnings)
    return Outcome(document)


def _scale_within_time(settings: StudySettings, source: Source, folder: Path, log: Log) -> tuple[Scale, float]:
    """Return the largest scale that keeps to ``--time``, and about how long it takes [s].

    Where no scale does, the smallest is returned, with a warning.
    """
    most_seconds = settings.seconds()
    for scale in smaller(_asked_scale(settings)):
        plan = _plan_study(settings, source, folder, scale)
        seconds = _estimate(plan, len(source.sites))
        if most_seconds is None or seconds <= most_seconds:
            return scale, seconds
    # The last scale that was tried is the smallest.
    log.warn(f"the smallest study takes longer than --time {settings.time}, about {duration_text(seconds)}")
    return scale, seconds


def _estimate(plan: StudyPlan, blocks: int) -> float:
    """Return an estimate of how long searches, trainings and evaluations take [s].

    One batch of each search is timed; from that follows the time that a sample takes in a block of the model, and from
    that the time of all that trains or evaluates.

    Args:
        plan: of the study.
        blocks: how many blocks the model has.
    """
    settings = plan.settings
    if settings.slurm:
        device = "auto"  # the probe runs on this machine, which may lack the devices of the cluster
    else:
        device = settings.places[0]
    steps = in_order(map(plan.choosing_step, plan.rows))

    # The searches.
    searches = [_probe_search(step, device) for step in steps if step.verb == "extract-circuit"]
    search_seconds = sum(search.seconds for search in searches)
    if searches:
        timed_search = searches[0]
    else:
        # It is not run, only timed for a batch.
        timed_search = _probe_search(plan.shop.search_of_circuits, device)
    seconds_a_block = timed_search.seconds / timed_search.sample_blocks

    # Everything else, counted as samples that pass forward through the whole model.
    samples = _samples_of_a_row(plan)
    forward_passes = 0
    for row in plan.rows:
        if "mc_dropout" in row.options:
            passes_a_sample = 10
        else:
            passes_a_sample = 2  # a row takes about twice the single model's time
        forward_passes += passes_a_sample * samples
    for step in steps:
        if step.verb == "finetune":
            forward_passes += _passes_of_training(step)
    return search_seconds + forward_passes * blocks * seconds_a_block


def _samples_of_a_row(plan: StudyPlan) -> int:
    """Return how many samples each row is evaluated on or fitted to: validation, test, OOD and training data."""
    settings = plan.settings
    specs = [str(settings.val), str(settings.test)]
    for text in settings.ood:
        specs.append(parse_ood_set(text).spec)
    for ood_set in settings.ood_val_sets():
        specs.append(ood_set.spec)
    if "train" in plan.fitted:
        specs.append(str(plan.fitted["train"]))
    return sum(_count_samples(spec, settings.limit) for spec in specs)


def _count_samples(spec: str, limit: int | None = None) -> int:
    """Return how many samples a data set has, at most ``limit``."""
    dataset = open_data(spec, limit=limit, ignore_labels=True)
    return len(dataset)


def _passes_of_training(step: Step) -> int:
    """Return how many samples could pass forward through the model in the time of a training."""
    options = step.options
    epochs = int(str(options["epochs"]))
    train_samples = _count_samples(str(options["train"]))
    val_samples = _count_samples(str(options["val"]))
    return epochs * (_TRAINING_PASSES * train_samples + val_samples)


def _probe_search(step: Step, device: str) -> SearchPlan:
    """Return the plan of the search that a step runs, with its time measured on one batch on a device."""
    options_on_device = {**step.options, "device": device}
    settings = _settings_of(replace(step, options=options_on_device))
    assert isinstance(settings, CircuitSettings)
    source = open_sources(settings.model, model_options(settings))[0]
    options = settings.fill(SearchOptions)
    with processes(settings.timeout) as team:
        scope = scope_of(source, options, Log())
        session = Session(scope, options, Log(), team)
        return session.probe()


# --- carrying it out --------------------------------------------------------------------------------------------------


class _StepLog(PassedOn):
    """The log of one command: its warnings and its progress; the rest are details."""

    def info(self, message: str) -> None:
        self._log.detail(message)


def _run_steps(steps: Sequence[Step], all_steps: int, begun: int, plan: StudyPlan, log: Log) -> None:
    """Run the commands whose outputs are not there, one after another or some at a time.

    Args:
        steps: the commands.
        all_steps: how many commands the study has, for the log.
        begun: how many of them come before these.
        plan: of the study.
        log: hears which step runs.
    """
    if plan.settings.devices or plan.settings.slurm:
        _run_side_by_side(steps, plan, log)
        return
    for number, step in enumerate(steps, begun + 1):
        line = f"step {number} of {all_steps}: hydractl {shlex.join(step.argv())}"
        if step.done:
            log.detail(f"{line}: done before")
            continue
        log.info(line)
        run_verb = _RUNS[step.verb]
        run_verb(_settings_of(step), _StepLog(log))  # type: ignore[operator]


def _run_side_by_side(steps: Sequence[Step], plan: StudyPlan, log: Log) -> None:
    """Run those of the commands that wait for no other one, then those that waited for them, and so on.

    Those that measure time, of ``bench``, run by themselves, when no other command is ready.

    Raises:
        KeyboardInterrupt: a signal came.
        HydraError: that of the first command that failed.
    """
    settings = plan.settings
    left = [step for step in steps if not step.done]
    with Interruptions() as signals:
        while left:
            ready = [step for step in left if not _waits_for_another(step, left)]
            untimed = [step for step in ready if step.verb != "bench"]
            if untimed:
                steps_now = untimed
                devices = settings.places
            else:
                steps_now = ready
                devices = settings.places[:1]  # timings run alone, one after another
            commands = {_command_name(step): _command_for_device(step) for step in steps_now}
            ended = run_side_by_side(commands, devices, settings.slurm, plan.shop.folder, log, signals)
            if signals.requested:
                raise KeyboardInterrupt
            _raise_first_failure(ended)
            left = [step for step in left if _command_name(step) not in ended]


def _raise_first_failure(ended: Mapping[str, Ended]) -> None:
    """Raise the error of the first command that failed, with its exit code; return where none did.

    Args:
        ended: how each command ended, by its name.
    """
    for name, command in ended.items():
        if command.code == 0:
            continue
        message = command.message or "it said nothing"
        failure = HydraError(f"{name}: {message}", command.hint, command.problems)
        failure.exit_code = command.code
        raise failure


def _command_name(step: Step) -> str:
    """Return the last output of a step, which no other step writes: the name of its command among others."""
    last_output = step.outputs[-1]
    return str(last_output)


def _waits_for_another(step: Step, left: Sequence[Step]) -> bool:
    """Return whether a command needs one that is left to do."""
    return any(needed in left for needed in step.needs)


def _command_for_device(step: Step) -> Callable[[str], list[str]]:
    """Return a function that takes a device and returns the words of the command of a step on it.

    The command reads no hydra.yaml and is quiet. One that computes nothing, such as a report, names no device.
    """
    option_names = [option.name for option in options_of_verb(step.verb)]
    computes = "device" in option_names

    def command_on(device: str) -> list[str]:
        words = step.argv()
        if computes:
            words.append(f"--device={device}")
        return [*words, "--config=/dev/null", "-q"]

    return command_on


def _settings_of(step: Step) -> Common:
    """Return the settings of a step.

    A step gives every option that it needs, so neither variables of the environment nor hydra.yaml count.
    """
    environment = {"HYDRACTL_CONFIG": os.devnull}
    settings_type = SETTINGS[step.verb]
    return merge(settings_type, step.given, environment, Path())


def _carry_out(plan: StudyPlan, settings: StudySettings, source: Source, log: Log) -> Outcome:
    """Run the commands that are left to do, choose a row on the validation data, test all rows, write the answer.

    Args:
        plan: of the study; commands whose outputs are there are not run again.
        settings: of the study, with those that follow from its data.
        source: the model.
        log: hears which step runs.
    """
    folder = plan.shop.folder
    for purpose in ("choose", "test"):
        subfolder = folder / purpose
        with storing(subfolder):
            subfolder.mkdir(exist_ok=True)
    choosing_steps = in_order(map(plan.choosing_step, plan.rows))
    measuring_steps = plan.measuring_steps()
    steps_expected = len(plan.outlined_steps())
    study = Study(plan.rows, settings.max_drop, settings.bootstrap, settings.seed, log)

    # Choose on the validation data, and write down what was chosen before any test sample is read.
    _run_steps(choosing_steps, steps_expected, 0, plan, log)
    study.choose(plan.predictions_by_row("choose"))
    with Output(folder / "choice.json", force=True) as output:
        write_json(output, study.choice_document())

    # Test every row.
    testing_steps = [step for step in measuring_steps if step not in choosing_steps]
    _run_steps(testing_steps, steps_expected, len(choosing_steps), plan, log)
    study.test(plan.predictions_by_row("test"))

    # Write the row to use, and what is said of it.
    steps = in_order([*measuring_steps, *plan.last_steps(study)])
    last_steps = [step for step in steps if step not in measuring_steps]
    _run_steps(last_steps, len(steps), len(measuring_steps), plan, log)
    stored_in_best = _stored_results(folder / "best.st")
    stored_threshold = stored_in_best.get("threshold")
    threshold = None
    if isinstance(stored_threshold, Mapping):
        threshold = ThresholdRecord.from_json(stored_threshold)
    has_reference = stored_in_best.get("reference") is not None
    if not has_reference:
        log.info(
            "best.st holds no reference to compare inputs with; hydractl calibrate best.st --reference SPEC adds it"
        )
    commands = [step.argv() for step in steps]
    answer = study.answer(source.name, source.sha256, commands, threshold)
    row_used = study.row(study.used.row)
    calibration = plan.recalibration_options(row_used, study.used.score)
    commands_to_go_on = next_commands(settings, folder, calibration, watched=has_reference)
    answer = replace(answer, next=commands_to_go_on)
    return _write(plan, answer, steps)


def _stored_results(model: Path) -> Mapping[str, object]:
    """Return what is stored with a checkpoint beside its weights, by key: ``threshold``, ``reference`` and so on."""
    (source,) = open_sources([str(model)])
    return source.description.extra


def _write(plan: StudyPlan, answer: StudyAnswer, steps: Sequence[Step]) -> Outcome:
    """Write the report, the script and the answer into the folder of a study.

    Returns:
        The answer, with the times of the row to use where they were measured, and the files that a person wants.
    """
    folder = plan.shop.folder
    if plan.warnings:
        answer = replace(answer, warnings=list(plan.warnings))
    table = read_eval(str(folder / "test.json"))
    page = render(table, study=answer)
    commands = script(_steps_to_best(steps, folder), steps, folder, Path.cwd())
    script_bytes = commands.encode("utf-8", "surrogateescape")
    _write_bytes(folder / "report.html", page)
    _write_bytes(folder / "study.sh", script_bytes)
    with Output(folder / "study.json", force=True) as output:
        write_json(output, answer.to_json())

    document = answer.to_json()
    is_timed = any(step.verb == "bench" for step in steps)
    if is_timed:
        # For the terminal only: of the files, bench.json alone holds times.
        document["latency"] = _latency(folder / "bench.json")
    names = ("best.st", "best.md", "report.html", "study.json", "study.sh")
    return Outcome(document, files=[folder / name for name in names])


def _write_bytes(path: Path, content: bytes) -> None:
    """Write a file at once, in place of one that is there."""
    with Output(path, force=True) as output:
        write_with(output, lambda handle: handle.write(content))


def _steps_to_best(steps: Sequence[Step], folder: Path) -> list[Step]:
    """Return the steps that write ``best.st`` or its figures."""
    files_of_best = {folder / "best.st", folder / "best.json"}
    steps_to_best = []
    for step in steps:
        if not files_of_best.isdisjoint(step.outputs):
            steps_to_best.append(step)
    return steps_to_best


def _latency(path: Path) -> list[dict[str, object]]:
    """Return the time of the row to use as ratios to the single model's, one for each batch size.

    Args:
        path: the answer of the bench of both.

    Returns:
        For each batch size its ``ratio``, and the interval ``ratio_ci`` of that.
    """
    document = read_json_file(str(path))
    ratios = []
    for row in document["results"]:
        if row["model"] == "best":
            ratio = {key: row[key] for key in ("batch_size", "ratio", "ratio_ci")}
            ratios.append(ratio)
    return ratios
