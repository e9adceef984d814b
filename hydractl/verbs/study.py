"""``hydractl study``: does any of this help a model? From MODEL and data to a verdict, by literal commands."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

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
from hydractl.metrics.ood_scores import ON_FEATURES
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
from hydractl.studies.sets import StudySets, fit_spec, study_sets
from hydractl.studies.steps import Step, Value, in_order, script
from hydractl.training.checkpointing import Interruptions
from hydractl.verbs import bench, calibrate, eval, extract_circuit, finetune, fuse, laplace, prune, report
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

_BACKWARD = 4
"""Times the forward pass that a step of a training takes, about."""

_NEIGHBOURS = 50
"""The default of ``eval --knn-k``, for a thousand samples or more."""
_SAMPLES_A_NEIGHBOUR = 20
"""Of fewer samples the distance to one neighbour in so many is taken."""
_KEPT_BYTES = 1 << 30
"""Memory for data as models read them, so that rows that run in this process share what was decoded."""
_DECIDE = (
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
    """Run what is missing of a study and give its verdict."""
    check_places(settings.places, settings.slurm)
    source = only_one(open_sources(settings.model, model_options(settings)), "study")
    folder = Path(settings.output or f"{source.name}.study")
    sets = study_sets(settings, source)
    sets.tell(log)
    log = SayOnce(log, sets.warnings)
    if settings.dry_run:
        return _dry_run(sets, source, folder, log)
    announce_reading([source], log)
    try:
        plan = _claimed(settings, sets, source, folder, log)
        settings = sets.settings
        with keeping_batches(_KEPT_BYTES):
            return _carry_out(plan, settings, source, log)
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

    def predictions(self, row: Row, purpose: str) -> Path:
        """Return the predictions of a row, on the data to ``choose`` by or to ``test`` on."""
        return self.shop.folder / purpose / f"{row.name}.pred.st"

    def _eval(self, row: Row, purpose: str, data_options: Mapping[str, Value]) -> Step:
        options: dict[str, Value] = {
            **data_options,
            **self._fitted_for(row),
            **row.options,
            "predictions": str(self.predictions(row, purpose)),
            "resume": True,
        }
        document = f"{purpose}/{row.name}.json"
        outputs = [f"{purpose}/{row.name}.pred.st", document]
        return self.shop.step("eval", [f"{row.name}={row.model}"], options, outputs, row.steps, document)

    def _fitted_for(self, row: Row) -> dict[str, Value]:
        """Return options for OOD scores on features, whose passes over training data are made once for all commands."""
        if not self.fitted or not row.stored:
            return {}
        return {**self.fitted, "features": str(self.shop.folder / "choose" / f"{row.name}.features.st")}

    def choosing(self, row: Row) -> Step:
        """Return the step that stores the logits of a row on the second halves.

        What the model was trained with is no secret there: nothing is reported.
        """
        ood = [f"{ood_set.name}={_part(ood_set.spec, 2)}" for ood_set in self.settings.choosing_sets()]
        data_options: dict[str, Value] = {
            "test": _part(str(self.settings.val), 2),
            "ood": ood,
            "allow_seen": True,
        }
        return self._eval(row, "choose", data_options)

    def testing(self, row: Row) -> Step:
        """Return the step that stores the logits of a row on the test data."""
        return self._eval(row, "test", {"test": str(self.settings.test), "ood": list(self.settings.ood)})

    def best(self, row: Row, score: str, note: str) -> Step:
        """Return the step that makes the row to use one file with its temperature, threshold and score."""
        options = self._chosen_for(row, score)
        options["reuse"] = [str(self.predictions(row, "choose"))]
        options["force"] = True
        if note:
            options["note"] = note
        return self.shop.step("calibrate", [f"best={row.model}"], options, ["best.st"], [self.choosing(row)])

    def best_figures(self, row: Row, score: str) -> Step:
        """Return the step that measures the row to use as ``best.st`` holds it, from the predictions of the row."""
        options: dict[str, Value] = {
            "test": str(self.settings.test),
            "ood": list(self.settings.ood),
            **self._chosen_for(row, score),
            "bootstrap": str(self.settings.bootstrap),
            "reuse": [str(self.predictions(row, "choose")), str(self.predictions(row, "test"))],
            "force": True,
        }
        needs = [self.choosing(row), self.testing(row)]
        return self.shop.step("eval", [f"best={row.model}"], options, ["best.json"], needs)

    def _chosen_for(self, row: Row, score: str) -> dict[str, Value]:
        """Return options that choose temperature and threshold of a row on the second half of the validation data."""
        options: dict[str, Value] = {
            "val": _part(str(self.settings.val), 2),
            "temperature": "fit",
            "threshold": self.settings.threshold,
            "ood_score": score,
        }
        if score in ON_FEATURES:
            fitted = self._fitted_for(row)
            fitted.pop("ood_score", None)
            options |= fitted
        return options

    def card(self, row: Row, score: str, note: str) -> Step:
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
            needs=(self.best_figures(row, score),),
            has_output=False,
        )

    def together(self, study: Study | None = None) -> Step:
        """Return the step that puts all rows into one table, each with its temperature, from their predictions.

        All are under the score of the single model, where they have it, and their own scores stand beside.
        """
        options: dict[str, Value] = {"bootstrap": str(self.settings.bootstrap), "force": True}
        if study is not None:
            options |= study.options_of_table()
        if self.settings.seed:
            options["seed"] = str(self.settings.seed)
        return Step(
            verb="eval",
            models=tuple(f"{row.name}={self.predictions(row, 'test')}" for row in self.rows),
            options=options,
            outputs=(self.shop.folder / "test.json",),
            needs=tuple(map(self.testing, self.rows)),
        )

    def timing(self, row: Row, score: str, note: str) -> list[Step]:
        """Return the step that times ``best.st``; none where it is the single model."""
        if row.name == "single" or not self.settings.timed:
            return []
        models = [f"single={self.shop.model}", f"best={self.shop.folder / 'best.st'}"]
        return [self.shop.step("bench", models, {"force": True}, ["bench.json"], [self.best(row, score, note)])]

    def measuring(self) -> list[Step]:
        """Return the commands whose predictions decide."""
        return in_order([*map(self.choosing, self.rows), *map(self.testing, self.rows)])

    def ends(self, study: Study) -> list[Step]:
        """Return the steps that are left to do when the verdict is there."""
        row = study.row(study.used.row)
        return [self.together(study), *self._of_best(row, study.used.score, study.note)]

    def outline(self) -> list[Step]:
        """Return the commands as far as they are known before anything is chosen."""
        ends = [self.together(), *self._of_best(self.rows[-1], "SCORE", note="")]
        return in_order([*self.measuring(), *ends])

    def _of_best(self, row: Row, score: str, note: str) -> list[Step]:
        """Return the steps that make the row to use ``best.st``, measure it, write its card and time it."""
        return [
            self.best(row, score, note),
            self.best_figures(row, score),
            self.card(row, score, note),
            *self.timing(row, score, note),
        ]


def _asked(settings: StudySettings) -> Scale:
    """Return how much is asked for.

    Raises:
        UsageError: for rows that need training data where there are none.
    """
    names = ["single"]
    for name in settings.rows:
        names += _expanded(name, settings)
    if settings.train is None:
        for name in names:
            if name in NEED_TRAIN:
                raise UsageError(f"--rows {name} needs --train, labelled training data")
    rows = [name for name in MAKERS if name in names]
    return Scale(rows, settings.approx, settings.search_samples or settings.limit)


def _plan(settings: StudySettings, source: Source, folder: Path, scale: Scale) -> StudyPlan:
    """Return the commands.

    Raises:
        UsageError: for rows that the model cannot have.
    """
    _check_rows(settings, source, scale)
    search: dict[str, Value] = {}
    if scale.approx is not None:
        search["approx"] = scale.approx
    if scale.samples is not None:
        search["limit"] = str(scale.samples)
    common = {verb: settings.common(SETTINGS[verb], options) for verb, options in _COMMON.items()}
    common["prune --circuit"] = settings.common(SETTINGS["prune"], _MODEL)
    sites = sites_of(source, settings.tower)
    heads = {}
    for site in sites:
        heads[source.sites.index(site)] = len(source.description.mask.kept[site.path])
    shop = Workshop(
        model=settings.model[0],
        heads=heads,
        late=[source.sites.index(site) for site in _late(sites)],
        train=settings.train,
        val=_part(str(settings.val), 1),
        ood_val=_part(settings.ood_val_sets()[0].spec, 1),
        folder=folder,
        search=search,
        common=common,
        training={"epochs": str(settings.epochs), "lr": repr(settings.lr)},
        objectives=THREE if NEED_THREE & set(scale.rows) else ("avg",),
        max_drop=settings.max_drop,
    )
    rows: list[Row] = []
    for name in scale.rows:
        rows += MAKERS[name](shop)
    return StudyPlan(settings, shop, rows, _fitted(settings))


def _check_rows(settings: StudySettings, source: Source, scale: Scale) -> None:
    """Refuse rows that the model cannot have, or a training is too short for."""
    of_classifiers = [name for name in scale.rows if name in NEED_CLASSIFIER]
    if of_classifiers and source.family.classes(source.description.config) is None:
        raise UsageError(
            f"--rows {','.join(of_classifiers)}: only a model with a classifier of its own has these",
            hint="for BayesVLM: hydractl laplace CLIP.st --train captions:PAIRS",
        )
    long = [name for name in scale.rows if name in NEED_STEPS]
    if not long:
        return
    steps = _training_steps(settings)
    least = max(NEED_STEPS[name] for name in long)
    if steps < least:
        raise UsageError(
            f"--rows {','.join(long)}: a training of {least} steps or more is needed, and this one has {steps}",
            hint="more --epochs, or a smaller --batch-size",
        )


def _late(sites: Sequence[Site]) -> list[Site]:
    """Return the sites in the last third of each tower."""
    by_tower: dict[str, list[Site]] = {}
    for site in sites:
        by_tower.setdefault(site.tower, []).append(site)
    late = []
    for sites_of_tower in by_tower.values():
        third = max(1, round(len(sites_of_tower) / 3))
        late += sites_of_tower[-third:]
    return late


def _training_steps(settings: StudySettings) -> int:
    """Return the number of steps of a row that is trained."""
    return settings.epochs * math.ceil(_samples(str(settings.train)) / settings.batch_size)


def _fitted(settings: StudySettings) -> dict[str, Value]:
    """Options of ``eval`` for OOD scores on features.

    They are fitted to training data, or without any to the half of the validation data that the search has; never to
    the half that rows and scores are chosen by.
    """
    samples = fit_spec(settings)
    if samples is None:
        return {}
    options: dict[str, Value] = {"train": samples.spec, "ood_score": ["all"]}
    neighbours = min(_NEIGHBOURS, max(1, samples.count // _SAMPLES_A_NEIGHBOUR))
    if neighbours != _NEIGHBOURS:
        options["knn_k"] = str(neighbours)
    return options


def _expanded(name: str, settings: StudySettings) -> list[str]:
    """Expand ``default`` to the rows it stands for, those that need training data only where there are some."""
    if name != "default":
        return [name]
    if settings.train is not None:
        return list(DEFAULT)
    return [row for row in DEFAULT if row not in NEED_TRAIN]


def _part(spec: str, number: int) -> str:
    """Return one half of a data set."""
    return with_setting(spec, f"part={number}/2")


# --- the folder -------------------------------------------------------------------------------------------------------


def _claimed(asked: StudySettings, sets: StudySets, source: Source, folder: Path, log: Log) -> StudyPlan:
    """Make the folder, or go on in the one of the same study.

    Args:
        asked: the settings of the command.
        sets: its data, with the settings that come of them.
        source: the model.
        folder: of the study.
        log: hears how long it takes.

    Raises:
        OutputError: it holds something else, or a study of other settings or data, whose differences are listed.
    """
    path = folder / "plan.json"
    decided = {"model": source.sha256, **{name: getattr(asked, name) for name in _DECIDE}}
    _make_folder(folder, path)
    if path.exists():
        scale = _scale_of_before(path, decided, sets)
    else:
        scale = _begun(path, decided, sets, source, folder, log)
    return replace(_plan(sets.settings, source, folder, scale), warnings=sets.warnings)


def _make_folder(folder: Path, plan: Path) -> None:
    """Make the folder of a study; one that holds other things than a study is refused."""
    with storing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if plan.exists():
            return
        for path in folder.iterdir():
            # What is hidden a killed run of this one may have left.
            if not path.name.startswith("."):
                raise OutputError(f"the folder of the study is not empty: {folder}", hint="name another one with -o")


def _scale_of_before(path: Path, decided: Mapping[str, Any], sets: StudySets) -> Scale:
    """Return the scale of a study that was begun, which must be the one that is asked for now.

    Args:
        path: of its plan.
        decided: what decides what a study finds, as it is now.
        sets: the data, as they are now.
    """
    document = read_json_file(str(path))
    if not isinstance(document, dict):
        document = {}
    decided_before = document.get("settings")
    if not isinstance(decided_before, dict) or document.get("schema") != PLAN:
        raise InputError(f"{path} is no plan of a study", hint="name another folder with -o")
    problems = differences(decided_before, decided, "in the folder")
    if problems:
        hint = "give the settings it was begun with, or name another folder with -o"
        raise OutputError(f"{path.parent} holds a study of other settings", hint=hint, problems=problems)
    changes = sets.changes(document.get("data"))
    if changes:
        hint = "give the data it was begun with, or name another folder with -o"
        raise OutputError(f"{path.parent} holds a study of other data", hint=hint, problems=changes)
    scale_before = canonical_json(document.get("scale"))
    for scale in smaller(_asked(sets.settings)):
        if canonical_json(asdict(scale)) == scale_before:
            return scale
    raise InputError(f"{path}: its scale is none that these settings lead to", hint="name another folder with -o")


def _begun(path: Path, decided: Mapping[str, Any], sets: StudySets, source: Source, folder: Path, log: Log) -> Scale:
    """Decide the scale of a new study, say how long it takes and write its plan."""
    settings = sets.settings
    scale, seconds = _fitting(settings, source, folder, log)
    one_by_one = ", one command after another on this machine" if settings.devices or settings.slurm else ""
    log.info(f"the study takes about {duration_text(seconds)}{one_by_one}")
    for text in scale.cut:
        log.info(f"to stay within --time {settings.time}, {text}")
    data = dict(sets.fingerprints)
    with Output(path) as output:
        write_json(output, {"schema": PLAN, "settings": dict(decided), "data": data, "scale": asdict(scale)})
    return scale


# --- how long it takes ------------------------------------------------------------------------------------------------


def _dry_run(sets: StudySets, source: Source, folder: Path, log: Log) -> Outcome:
    """Return the commands, where the first row is chosen, and an estimate of the time."""
    settings = sets.settings
    scale, seconds = _fitting(settings, source, folder, log)
    plan = _plan(settings, source, folder, scale)
    steps = [step.argv() for step in plan.outline()]
    document = {"schema": SCHEMA, "dry_run": True, "steps": steps, "cut": scale.cut, "seconds": seconds}
    if sets.warnings:
        document["warnings"] = list(sets.warnings)
    return Outcome(document)


def _fitting(settings: StudySettings, source: Source, folder: Path, log: Log) -> tuple[Scale, float]:
    """Return the largest scale that keeps to ``--time``, else the smallest, and about how long it takes [s]."""
    most_seconds = settings.seconds()
    for scale in smaller(_asked(settings)):
        seconds = _estimate(_plan(settings, source, folder, scale), len(source.sites))
        if most_seconds is None or seconds <= most_seconds:
            return scale, seconds
    log.warn(f"the smallest study takes longer than --time {settings.time}, about {duration_text(seconds)}")
    return scale, seconds


def _estimate(plan: StudyPlan, blocks: int) -> float:
    """Estimate how long searches, trainings and evaluations take [s], judged by one batch of each search."""
    settings = plan.settings
    device = "auto" if settings.slurm else settings.places[0]  # of this machine
    steps = in_order(map(plan.choosing, plan.rows))
    searches = [step for step in steps if step.verb == "extract-circuit"]
    searching = 0.0
    if searches:
        probes = [_probe(step, device) for step in searches]
        searching = sum(probe.seconds for probe in probes)
        probe = probes[0]
    else:
        # Without a search, one is probed for the time of a block.
        probe = _probe(plan.shop.circuits, device)
    seconds_a_block = probe.seconds / probe.sample_blocks

    samples = _samples_of_a_row(plan)
    forward = 0
    for row in plan.rows:
        # A row takes about twice the single model's time.
        passes = 10 if "mc_dropout" in row.options else 2
        forward += passes * samples
    for step in steps:
        if step.verb == "finetune":
            forward += _trained(step)
    return searching + forward * blocks * seconds_a_block


def _samples_of_a_row(plan: StudyPlan) -> int:
    """Count the samples that a row is evaluated on or fitted to."""
    settings = plan.settings
    specs = [str(settings.val), str(settings.test)]
    for ood_set in [*map(parse_ood_set, settings.ood), *settings.ood_val_sets()]:
        specs.append(ood_set.spec)
    if plan.fitted:
        specs.append(str(plan.fitted["train"]))
    return sum(_samples(spec, settings.limit) for spec in specs)


def _samples(spec: str, limit: int | None = None) -> int:
    return len(open_data(spec, limit=limit, ignore_labels=True))


def _trained(step: Step) -> int:
    """Return how many samples pass forward in the time of a training, whose steps go backward and update too."""
    each_epoch = _BACKWARD * _samples(str(step.options["train"])) + _samples(str(step.options["val"]))
    return int(str(step.options["epochs"])) * each_epoch


def _probe(step: Step, device: str) -> SearchPlan:
    settings = _settings_of(replace(step, options={**step.options, "device": device}))
    assert isinstance(settings, CircuitSettings)
    source = open_sources(settings.model, model_options(settings))[0]
    options = settings.fill(SearchOptions)
    with processes(settings.timeout) as team:
        return Session(scope_of(source, options, Log()), options, Log(), team).probe()


# --- carrying it out --------------------------------------------------------------------------------------------------


class _StepLog(PassedOn):
    """The log of one command: its warnings and its progress; the rest are details."""

    def info(self, message: str) -> None:
        self._log.detail(message)


def _run_steps(steps: Sequence[Step], all_steps: int, begun: int, plan: StudyPlan, log: Log) -> None:
    """Run the commands whose outputs are not there, one after another or some at a time."""
    if plan.settings.devices or plan.settings.slurm:
        _run_at_once(steps, plan, log)
        return
    for number, step in enumerate(steps, begun + 1):
        line = f"step {number} of {all_steps}: hydractl {shlex.join(step.argv())}"
        if step.done:
            log.detail(f"{line}: done before")
            continue
        log.info(line)
        _RUNS[step.verb](_settings_of(step), _StepLog(log))  # type: ignore[operator]


def _run_at_once(steps: Sequence[Step], plan: StudyPlan, log: Log) -> None:
    """Run those of the commands that wait for no other one, then those that waited for them, and so on.

    Raises:
        HydraError: that of the first command that failed.
    """
    settings = plan.settings
    left = [step for step in steps if not step.done]
    with Interruptions() as signals:
        while left:
            ready = [step for step in left if not _waits(step, left)]
            # A timing has the machine to itself.
            untimed = [step for step in ready if step.verb != "bench"]
            if untimed:
                ready = untimed
                devices = settings.places
            else:
                devices = settings.places[:1]
            commands = {str(step.outputs[-1]): _command(step) for step in ready}
            ended = run_side_by_side(commands, devices, settings.slurm, plan.shop.folder, log, signals)
            if signals.requested:
                raise KeyboardInterrupt
            for name, child in ended.items():
                if child.code:
                    failure = HydraError(f"{name}: {child.message or 'it said nothing'}", child.hint, child.problems)
                    failure.exit_code = child.code
                    raise failure
            left = [step for step in left if str(step.outputs[-1]) not in ended]


def _waits(step: Step, left: Sequence[Step]) -> bool:
    """Return whether a command needs one that is left to do."""
    return any(needed in left for needed in step.needs)


def _command(step: Step) -> Callable[[str], list[str]]:
    """Return the command line of a step on a device; a step that computes nothing, such as a report, names none."""
    computes = any(option.name == "device" for option in options_of_verb(step.verb))

    def on_device(device: str) -> list[str]:
        words = step.argv()
        if computes:
            words.append(f"--device={device}")
        return [*words, "--config=/dev/null", "-q"]

    return on_device


def _settings_of(step: Step) -> Common:
    """Return the settings of a step, whose every option is given: neither variables nor hydra.yaml count."""
    return merge(SETTINGS[step.verb], step.given, {"HYDRACTL_CONFIG": os.devnull}, Path())


def _carry_out(plan: StudyPlan, settings: StudySettings, source: Source, log: Log) -> Outcome:
    """Run the commands, choose, test and write the answer."""
    folder = plan.shop.folder
    for name in ("choose", "test"):  # when the plan is there
        with storing(folder / name):
            (folder / name).mkdir(exist_ok=True)
    choosing = in_order(map(plan.choosing, plan.rows))
    measuring = plan.measuring()
    expected = len(plan.outline())
    study = Study(plan.rows, settings.max_drop, settings.bootstrap, settings.seed, log)

    _run_steps(choosing, expected, 0, plan, log)
    study.choose({row.name: plan.predictions(row, "choose") for row in plan.rows})
    with Output(folder / "choice.json", force=True) as output:  # before any test sample is read
        write_json(output, study.choice_document())

    testing = [step for step in measuring if step not in choosing]
    _run_steps(testing, expected, len(choosing), plan, log)
    study.test({row.name: plan.predictions(row, "test") for row in plan.rows})

    steps = in_order([*measuring, *plan.ends(study)])
    ends = [step for step in steps if step not in measuring]
    _run_steps(ends, len(steps), len(measuring), plan, log)
    stored_threshold = open_sources([str(folder / "best.st")])[0].description.extra.get("threshold")
    threshold = None
    if stored_threshold is not None:
        threshold = ThresholdRecord.from_json(stored_threshold)
    commands = [step.argv() for step in steps]
    return _write(plan, study.answer(source.name, source.sha256, commands, threshold), steps)


def _write(plan: StudyPlan, answer: StudyAnswer, steps: Sequence[Step]) -> Outcome:
    """Write the report, the script and the answer."""
    folder = plan.shop.folder
    if plan.warnings:
        answer = replace(answer, warnings=list(plan.warnings))
    of_best = [step for step in steps if folder / "best.st" in step.outputs or folder / "best.json" in step.outputs]
    commands = script(of_best, steps, folder, Path.cwd())
    page = render(read_eval(str(folder / "test.json")), study=answer)
    with Output(folder / "report.html", force=True) as output:
        write_with(output, lambda handle: handle.write(page))
    with Output(folder / "study.sh", force=True) as output:
        write_with(output, lambda handle: handle.write(commands.encode("utf-8", "surrogateescape")))
    with Output(folder / "study.json", force=True) as output:
        write_json(output, answer.to_json())
    document = answer.to_json()
    names = ("best.st", "best.md", "report.html", "study.json", "study.sh")
    if any(step.verb == "bench" for step in steps):
        # For the terminal: times are in no other file than bench.json.
        document["latency"] = _latency(folder / "bench.json")
    return Outcome(document, files=[folder / name for name in names])


def _latency(path: Path) -> list[dict[str, Any]]:
    """Return the measured ratios of the row to use, one for each size of batch."""
    ratios = []
    for row in read_json_file(str(path))["results"]:
        if row["model"] == "best":
            ratios.append({key: row[key] for key in ("batch_size", "ratio", "ratio_ci")})
    return ratios
