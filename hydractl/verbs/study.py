"""``hydractl study``: does any of this help a model? From MODEL and data to a verdict, by literal commands."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hydractl.circuit.plan import Plan as SearchPlan
from hydractl.circuit.scope import SearchOptions, scope_of
from hydractl.circuit.session import Session
from hydractl.data import open_data
from hydractl.distributed import processes
from hydractl.errors import HydraError, InputError, Interrupted, OutputError, UsageError
from hydractl.evaluation.inputs import keeping_batches
from hydractl.expressions.data_sets import parse_ood_set, with_setting
from hydractl.files.atomic import Output, storing, write_json, write_with
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
from hydractl.settings.verbs import SETTINGS
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
from hydractl.verbs import bench, eval, extract_circuit, finetune, fuse, laplace, prune
from hydractl.verbs.jobs import check_places, run_side_by_side
from hydractl.verbs.opening import announce_reading, model_options
from hydractl.verbs.outcome import Outcome

PLAN = "hydractl.study-plan/1"

_RUNS = {
    "extract-circuit": extract_circuit.run,
    "prune": prune.run,
    "finetune": finetune.run,
    "laplace": laplace.run,
    "fuse": fuse.run,
    "eval": eval.run,
    "bench": bench.run,
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
    *("data", "val", "ood_val", "test", "ood", "rows", "max_drop", "budget", "search_samples", "approx"),
    *("fit_samples", "epochs", "lr", "threshold", "bootstrap", "limit", "max_length", "labels", "prompt"),
    *("tower", "arch", "seed", "dtype"),
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
class Plan:
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

    def predictions(self, row: Row, of: str) -> Path:
        """The predictions of a row, on the data to ``choose`` by or to ``test`` on."""
        return self.shop.folder / of / f"{row.name}.pred.st"

    def _eval(self, row: Row, of: str, more: Mapping[str, Any]) -> Step:
        options: dict[str, Value] = {
            **more,
            **self._fitted_for(row),
            **row.options,
            "predictions": str(self.predictions(row, of)),
            "resume": True,
        }
        outputs = [f"{of}/{row.name}.pred.st", f"{of}/{row.name}.json"]
        return self.shop.step("eval", [f"{row.name}={row.model}"], options, outputs, row.steps, outputs[-1])

    def _fitted_for(self, row: Row) -> dict[str, Value]:
        """Options for OOD scores on features, whose passes over the training data are made once for all commands."""
        if not self.fitted or not row.stored:
            return {}
        return {**self.fitted, "features": str(self.shop.folder / "choose" / f"{row.name}.features.st")}

    def choosing(self, row: Row) -> Step:
        """Its logits on the second halves. What the model was trained with is no secret there: nothing is reported."""
        settings = self.settings
        ood = [f"{one.name}={_part(one.spec, 2)}" for one in settings.choosing_sets()]
        return self._eval(row, "choose", {"data": _part(str(settings.val), 2), "ood": ood, "allow_seen": True})

    def testing(self, row: Row) -> Step:
        """Its logits on the test data."""
        return self._eval(row, "test", {"data": str(self.settings.test), "ood": list(self.settings.ood)})

    def best(self, row: Row, score: str, note: str = "") -> Step:
        """The row to use with its temperature and threshold, as one file with a card."""
        settings, folder = self.settings, self.shop.folder
        options: dict[str, Value] = {
            "data": str(settings.test),
            "ood": list(settings.ood),
            "val": _part(str(settings.val), 2),
            "temperature": "fit",
            "threshold": settings.threshold,
            "ood_score": score,
            "calibrated": str(folder / "best.st"),
            "card": str(folder / "best.md"),
            "bootstrap": str(settings.bootstrap),
            "reuse": [str(self.predictions(row, of)) for of in ("choose", "test")],
            "force": True,
        }
        if note:
            options["note"] = note
        if score in ON_FEATURES:
            options |= {name: value for name, value in self._fitted_for(row).items() if name != "ood_score"}
        outputs = ["best.json", "best.md", "best.st"]
        needs = [self.choosing(row), self.testing(row)]
        return self.shop.step("eval", [f"best={row.model}"], options, outputs, needs, "best.json")

    def together(self, study: Study | None = None) -> Step:
        """All rows in one table, each with its temperature, from their predictions.

        All are under the score of the single model, where they have it, and their own scores stand beside.
        """
        models = [f"{row.name}={self.predictions(row, 'test')}" for row in self.rows]
        options: dict[str, Value] = {"bootstrap": str(self.settings.bootstrap), "force": True}
        if study is not None:
            options |= study.options_of_table()
        seed = {"seed": str(self.settings.seed)} if self.settings.seed else {}
        tests = tuple(self.testing(row) for row in self.rows)
        return Step("eval", tuple(models), {**options, **seed}, (self.shop.folder / "test.json",), tests)

    def timing(self, row: Row, score: str) -> list[Step]:
        """The latency of ``best.st``, where it is another model than the single one."""
        if row.name == "single" or not self.settings.timed:
            return []
        models = [f"single={self.shop.model}", f"best={self.shop.folder / 'best.st'}"]
        return [self.shop.step("bench", models, {"force": True}, ["bench.json"], [self.best(row, score)])]

    def measuring(self) -> list[Step]:
        """The commands whose predictions decide."""
        return in_order([*map(self.choosing, self.rows), *map(self.testing, self.rows)])

    def ends(self, study: Study) -> list[Step]:
        """Return the steps that are left to do when the verdict is there."""
        row, score = study.row(study.used.row), study.used.score
        return [self.together(study), self.best(row, score, study.note), *self.timing(row, score)]

    def outline(self) -> list[Step]:
        """The commands as far as they are known before anything is chosen."""
        row = self.rows[-1]
        ends = [self.together(), self.best(row, "SCORE"), *self.timing(row, "SCORE")]
        return in_order([*self.measuring(), *ends])


def _asked(settings: StudySettings) -> Scale:
    """How much is asked for.

    Raises:
        UsageError: for rows that need training data where there are none.
    """
    names = list(dict.fromkeys(["single", *(one for name in settings.rows for one in _expanded(name, settings))]))
    lacking = [name for name in names if name in NEED_TRAIN] if settings.data is None else []
    if lacking:
        raise UsageError(f"--rows {lacking[0]} needs --data, labelled training data")
    rows = [name for name in MAKERS if name in names]
    return Scale(rows, settings.approx, settings.search_samples or settings.limit)


def _plan(settings: StudySettings, source: Source, folder: Path, scale: Scale) -> Plan:
    """The commands.

    Raises:
        UsageError: for rows that the model cannot have.
    """
    foreign = [name for name in scale.rows if name in NEED_CLASSIFIER]
    if foreign and source.family.classes(source.description.config) is None:
        raise UsageError(
            f"--rows {','.join(foreign)}: only a model with a classifier of its own has these",
            hint="for BayesVLM: hydractl laplace CLIP.st --data captions:PAIRS",
        )
    long = [name for name in scale.rows if name in NEED_STEPS]
    if long and (steps := _training_steps(settings)) < (least := max(NEED_STEPS[name] for name in long)):
        raise UsageError(
            f"--rows {','.join(long)}: a training of {least} steps or more is needed, and this one has {steps}",
            hint="more --epochs, or a smaller --batch-size",
        )
    search: dict[str, Any] = {} if scale.approx is None else {"approx": scale.approx}
    if scale.samples is not None:
        search["limit"] = str(scale.samples)
    sites = sites_of(source, settings.tower)
    towers = [[site for site in sites if site.tower == tower] for tower in dict.fromkeys(site.tower for site in sites)]
    late = [site for tower in towers for site in tower[-max(1, round(len(tower) / 3)) :]]
    common: dict[str, dict[str, Any]] = {
        verb: settings.common(SETTINGS[verb], options) for verb, options in _COMMON.items()
    }
    common["prune --circuit"] = settings.common(SETTINGS["prune"], _MODEL)
    shop = Workshop(
        model=settings.model[0],
        heads={source.sites.index(site): len(source.description.mask.kept[site.path]) for site in sites},
        late=[source.sites.index(site) for site in late],
        train=settings.data,
        val=_part(str(settings.val), 1),
        ood_val=_part(settings.ood_val_sets()[0].spec, 1),
        folder=folder,
        search=search,
        common=common,
        training={"epochs": str(settings.epochs), "lr": repr(settings.lr)},
        objectives=THREE if NEED_THREE & set(scale.rows) else ("avg",),
        max_drop=settings.max_drop,
    )
    return Plan(settings, shop, [row for name in scale.rows for row in MAKERS[name](shop)], _fitted(settings))


def _training_steps(settings: StudySettings) -> int:
    """Return the number of steps of a row that is trained."""
    return settings.epochs * -(-_samples(str(settings.data)) // settings.batch_size)


def _fitted(settings: StudySettings) -> dict[str, Value]:
    """Options of ``eval`` for OOD scores on features.

    They are fitted to training data, or without any to the half of the validation data that the search has; never to
    the half that rows and scores are chosen by.
    """
    found = fit_spec(settings)
    if found is None:
        return {}
    spec, count = found
    options: dict[str, Value] = {"fit": spec, "ood_score": ["all"]}
    neighbours = min(_NEIGHBOURS, max(1, count // _SAMPLES_A_NEIGHBOUR))
    if neighbours != _NEIGHBOURS:
        options["knn_k"] = str(neighbours)
    return options


def _expanded(name: str, settings: StudySettings) -> list[str]:
    """``default`` as the rows it stands for, those that need training data only where there are some."""
    if name != "default":
        return [name]
    return [one for one in DEFAULT if settings.data is not None or one not in NEED_TRAIN]


def _part(spec: str, number: int) -> str:
    """One half of a data set."""
    return with_setting(spec, f"part={number}/2")


# --- the folder -------------------------------------------------------------------------------------------------------


def _claimed(given: StudySettings, sets: StudySets, source: Source, folder: Path, log: Log) -> Plan:
    """Make the folder, or go on in the one of the same study.

    Args:
        given: the settings of the command.
        sets: its data, with the settings that come of them.
        source: the model.
        folder: of the study.
        log: hears how long it takes.

    Raises:
        OutputError: it holds something else, or a study of other settings or data, whose differences are listed.
    """
    settings = sets.settings
    path = folder / "plan.json"
    decided = {"model": source.sha256, **{name: getattr(given, name) for name in _DECIDE}}
    with storing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        # What is hidden a killed run of this one may have left.
        if not path.exists() and not all(one.name.startswith(".") for one in folder.iterdir()):
            raise OutputError(f"the folder of the study is not empty: {folder}", hint="name another one with -o")
    if path.exists():
        document = read_json_file(str(path))
        document = document if isinstance(document, dict) else {}
        there, kept = document.get("settings"), document.get("scale")
        if not isinstance(there, dict) or document.get("schema") != PLAN:
            raise InputError(f"{path} is no plan of a study", hint="name another folder with -o")
        problems = differences(there, decided, "in the folder")
        if problems:
            hint = "give the settings it was begun with, or name another folder with -o"
            raise OutputError(f"{folder} holds a study of other settings", hint=hint, problems=problems)
        changes = sets.changes(document.get("data"))
        if changes:
            hint = "give the data it was begun with, or name another folder with -o"
            raise OutputError(f"{folder} holds a study of other data", hint=hint, problems=changes)
        for scale in smaller(_asked(settings)):
            if canonical_json(asdict(scale)) == canonical_json(kept):
                return replace(_plan(settings, source, folder, scale), warnings=sets.warnings)
        raise InputError(f"{path}: its scale is none that these settings lead to", hint="name another folder with -o")
    scale, seconds = _fitting(settings, source, folder, log)
    parallel = ", one command after another on this machine" if settings.devices or settings.slurm else ""
    log.info(f"the study takes about {duration_text(seconds)}{parallel}")
    for text in scale.cut:
        log.info(f"to stay within --budget {settings.budget}, {text}")
    with Output(path) as output:
        data = dict(sets.fingerprints)
        write_json(output, {"schema": PLAN, "settings": decided, "data": data, "scale": asdict(scale)})
    return replace(_plan(settings, source, folder, scale), warnings=sets.warnings)


# --- how long it takes ------------------------------------------------------------------------------------------------


def _dry_run(sets: StudySets, source: Source, folder: Path, log: Log) -> Outcome:
    """The commands, where the first row is chosen, and an estimate of the time."""
    settings = sets.settings
    scale, seconds = _fitting(settings, source, folder, log)
    plan = _plan(settings, source, folder, scale)
    steps = [step.argv() for step in plan.outline()]
    document = {"schema": SCHEMA, "dry_run": True, "steps": steps, "cut": scale.cut, "seconds": seconds}
    if sets.warnings:
        document["warnings"] = list(sets.warnings)
    return Outcome(document)


def _fitting(settings: StudySettings, source: Source, folder: Path, log: Log) -> tuple[Scale, float]:
    """The largest scale that stays within the budget, else the smallest, and about how long it takes [s]."""
    budget = settings.seconds()
    for scale in smaller(_asked(settings)):
        seconds = _estimate(_plan(settings, source, folder, scale), len(source.sites))
        if budget is None or seconds <= budget:
            return scale, seconds
    log.warn(f"the smallest study takes longer than --budget {settings.budget}, about {duration_text(seconds)}")
    return scale, seconds


def _estimate(plan: Plan, blocks: int) -> float:
    """About how long searches, trainings and evaluations take [s], judged by one batch of each search."""
    steps = in_order(map(plan.choosing, plan.rows))
    searches = [step for step in steps if step.verb == "extract-circuit"]
    settings = plan.settings
    device = "auto" if settings.slurm else settings.places[0]  # of this machine
    probes = [_probe(step, device) for step in searches or [plan.shop.circuits]]
    per_block = probes[0].seconds / probes[0].sample_blocks
    specs = [str(settings.val), str(settings.test), *(parse_ood_set(text).spec for text in settings.ood)]
    specs += [one.spec for one in settings.ood_val_sets()]
    specs += [str(plan.fitted["fit"])] if plan.fitted else []
    samples = sum(_samples(spec, settings.limit) for spec in specs)
    # A row takes about twice the single model's time.
    forward = sum(10 if "mc_dropout" in row.options else 2 for row in plan.rows) * samples
    forward += sum(_trained(step) for step in steps if step.verb == "finetune")
    # Without a search, one is probed for the time of a block.
    searching = sum(probe.seconds for probe in probes[: len(searches)])
    return searching + forward * blocks * per_block


def _samples(spec: str, limit: int | None = None) -> int:
    return len(open_data(spec, limit=limit, ignore_labels=True))


def _trained(step: Step) -> int:
    """How many samples pass forward for as long as a training takes, whose steps go backward and update too."""
    each = _BACKWARD * _samples(str(step.options["data"])) + _samples(str(step.options["val"]))
    return int(str(step.options["epochs"])) * each


def _probe(step: Step, device: str) -> SearchPlan:
    settings = _settings_of(replace(step, options={**step.options, "device": device}))
    assert isinstance(settings, CircuitSettings)
    source, options = open_sources(settings.model, model_options(settings))[0], settings.fill(SearchOptions)
    with processes(settings.timeout) as team:
        return Session(scope_of(source, options, Log()), options, Log(), team).probe()


# --- carrying it out --------------------------------------------------------------------------------------------------


class _StepLog(PassedOn):
    """The log of one command: its warnings and its progress; the rest are details."""

    def info(self, message: str) -> None:
        self._log.detail(message)


def _run_steps(steps: Sequence[Step], all_steps: int, begun: int, plan: Plan, log: Log) -> None:
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


def _run_at_once(steps: Sequence[Step], plan: Plan, log: Log) -> None:
    """Run those of the commands that wait for no other one, then those that waited for them, and so on.

    Raises:
        HydraError: that of the first command that failed.
    """
    settings, left = plan.settings, [step for step in steps if not step.done]
    with Interruptions() as signals:
        while left:
            ready = [step for step in left if not any(one in left for one in step.needs)]
            untimed = [step for step in ready if step.verb != "bench"]
            devices = settings.places if untimed else settings.places[:1]  # a timing has the machine to itself
            commands = {str(step.outputs[-1]): _command(step) for step in untimed or ready}
            ended = run_side_by_side(commands, devices, settings.slurm, plan.shop.folder, log, signals)
            if signals.requested:
                raise KeyboardInterrupt
            for name, child in ended.items():
                if child.code:
                    failure = HydraError(f"{name}: {child.message or 'it said nothing'}", child.hint, child.problems)
                    failure.exit_code = child.code
                    raise failure
            left = [step for step in left if str(step.outputs[-1]) not in ended]


def _command(step: Step) -> Callable[[str], list[str]]:
    return lambda device: [*step.argv(), f"--device={device}", "--config=/dev/null", "-q"]


def _settings_of(step: Step) -> Common:
    """Every option is given: neither variables nor hydra.yaml count."""
    return merge(SETTINGS[step.verb], step.given, {"HYDRACTL_CONFIG": os.devnull}, Path())


def _carry_out(plan: Plan, settings: StudySettings, source: Source, log: Log) -> Outcome:
    folder = plan.shop.folder
    for name in ("choose", "test"):  # when the plan is there
        with storing(folder / name):
            (folder / name).mkdir(exist_ok=True)
    first = in_order(map(plan.choosing, plan.rows))
    measuring, expected = plan.measuring(), len(plan.outline())
    _run_steps(first, expected, 0, plan, log)
    study = Study(plan.rows, settings.max_drop, settings.bootstrap, settings.seed, log)
    study.choose({row.name: plan.predictions(row, "choose") for row in plan.rows})
    with Output(folder / "choice.json", force=True) as output:  # before any test sample is read
        write_json(output, study.choice_document())
    _run_steps([step for step in measuring if step not in first], expected, len(first), plan, log)
    study.test({row.name: plan.predictions(row, "test") for row in plan.rows})
    steps = in_order([*measuring, *plan.ends(study)])
    _run_steps([step for step in steps if step not in measuring], len(steps), len(measuring), plan, log)
    threshold = open_sources([str(folder / "best.st")])[0].description.extra.get("threshold")
    document = study.document(source.name, source.sha256, [step.argv() for step in steps], threshold)
    return _write(plan, document, steps, log)


def _write(plan: Plan, document: dict[str, Any], steps: Sequence[Step], log: Log) -> Outcome:
    """The report, the script and the answer."""
    folder = plan.shop.folder
    if plan.warnings:
        document = {**document, "warnings": list(plan.warnings)}
    (best,) = (step for step in steps if folder / "best.st" in step.outputs)
    text = script([best], steps, folder, Path.cwd())
    page = render(read_eval(str(folder / "test.json")), study=document)
    with Output(folder / "report.html", force=True) as output:
        write_with(output, lambda handle: handle.write(page))
    with Output(folder / "study.sh", force=True) as output:
        write_with(output, lambda handle: handle.write(text.encode("utf-8", "surrogateescape")))
    with Output(folder / "study.json", force=True) as output:
        write_json(output, document)
    names = ("best.st", "best.md", "report.html", "study.json", "study.sh")
    timed = [step for step in steps if step.verb == "bench"]
    return Outcome({**document, **_latency(folder / "bench.json", timed)}, files=[folder / name for name in names])


def _latency(path: Path, timed: Sequence[Step]) -> dict[str, Any]:
    """The measured ratios, for the terminal: times are in no other file than ``bench.json``."""
    if not timed:
        return {}
    rows = [row for row in read_json_file(str(path))["results"] if row["model"] == "best"]
    return {"latency": [{key: row[key] for key in ("batch_size", "ratio", "ratio_ci")} for row in rows]}
