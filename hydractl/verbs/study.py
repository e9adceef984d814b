"""``hydractl study``: does any of this help a model? From MODEL and data to a verdict, by literal commands."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydractl.errors import InputError, Interrupted, OutputError, UsageError
from hydractl.files.atomic import Output, storing, write_json, write_with
from hydractl.jsonio import differences, read_json_file
from hydractl.log import Log, Progress
from hydractl.model.matching import only_one
from hydractl.model.source import Source, open_sources
from hydractl.report.eval_document import read_eval
from hydractl.report.eval_html import render
from hydractl.settings.sources import merge
from hydractl.settings.studying import StudySettings
from hydractl.settings.verbs import SETTINGS
from hydractl.study.answer import Study
from hydractl.study.rows import DEFAULT, MAKERS, NEED_TRAIN, THREE, Row, Workshop
from hydractl.study.steps import Step, Value, in_order, script
from hydractl.verbs import bench, eval, extract_circuit, finetune, fuse, prune
from hydractl.verbs.opening import announce_reading, model_options
from hydractl.verbs.outcome import Outcome

PLAN = "hydractl.study-plan/1"

_RUNS = {
    "extract-circuit": extract_circuit.run,
    "prune": prune.run,
    "finetune": finetune.run,
    "fuse": fuse.run,
    "eval": eval.run,
    "bench": bench.run,
}
_MODEL = ("device", "labels", "prompt", "arch", "seed")
_BATCHES = (*_MODEL, "batch_size", "dtype", "workers", "max_length")
_COMMON = {
    "extract-circuit": (*_BATCHES, "tower"),
    "prune": (*_BATCHES, "tower"),
    "finetune": (*_BATCHES, "limit"),
    "fuse": _MODEL,
    "eval": (*_BATCHES, "limit"),
    "bench": (*_MODEL, "max_length"),
}
"""The options of a study that its commands are given too, by verb."""

_DECIDE = (
    *("data", "val", "ood_val", "test", "ood", "rows", "max_drop", "budget", "search_samples", "approx", "epochs"),
    *("lr", "threshold", "bootstrap", "limit", "max_length", "labels", "prompt", "tower", "arch", "seed", "dtype"),
)
"""The options that decide what a study finds."""


def run(settings: StudySettings, log: Log) -> Outcome:
    """Run what is missing of a study and give its verdict."""
    source = only_one(open_sources(settings.model, model_options(settings)), "study")
    folder = Path(settings.output or f"{source.name}.study")
    plan = _plan(settings, source, folder)
    if settings.dry_run:
        steps = plan.steps(plan.rows[0], "SCORE")
        return Outcome({"schema": "hydractl.study/1", "dry_run": True, "steps": [step.argv() for step in steps]})
    _claim(folder, _decided(settings, source, log), settings.force)
    try:
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
    """

    settings: StudySettings
    shop: Workshop
    rows: Sequence[Row]

    def predictions(self, row: Row, of: str) -> Path:
        """The predictions of a row, on the data to ``choose`` by or to ``test`` on."""
        return self.shop.folder / of / f"{row.name}.pred.st"

    def _eval(self, row: Row, of: str, more: Mapping[str, Any]) -> Step:
        options: dict[str, Value] = {
            **more,
            **row.options,
            "predictions": str(self.predictions(row, of)),
            "resume": True,
        }
        outputs = [f"{of}/{row.name}.pred.st", f"{of}/{row.name}.json"]
        return self.shop.step("eval", [f"{row.name}={row.model}"], options, outputs, row.steps, outputs[-1])

    def choosing(self, row: Row) -> Step:
        """Its logits on the second halves. What the model was trained with is no secret there: nothing is reported."""
        settings = self.settings
        ood = [f"{one.name}={_part(one.spec, 2)}" for one in settings.ood_val_sets()]
        return self._eval(row, "choose", {"data": _part(str(settings.val), 2), "ood": ood, "allow_seen": True})

    def testing(self, row: Row) -> Step:
        """Its logits on the test data."""
        return self._eval(row, "test", {"data": str(self.settings.test), "ood": list(self.settings.ood)})

    def best(self, row: Row, score: str) -> Step:
        """The chosen row with its temperature and threshold, as one file with a card."""
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
            "force": True,
        }
        outputs = ["best.json", "best.md", "best.st"]
        return self.shop.step("eval", [f"best={row.model}"], options, outputs, row.steps, "best.json")

    def together(self, score: str) -> Step:
        """All rows in one table, from their predictions."""
        models = [f"{row.name}={self.predictions(row, 'test')}" for row in self.rows]
        options: dict[str, Value] = {"ood_score": score, "bootstrap": str(self.settings.bootstrap), "force": True}
        seed = {"seed": str(self.settings.seed)} if self.settings.seed else {}
        tests = tuple(self.testing(row) for row in self.rows)
        return Step("eval", tuple(models), {**options, **seed}, (self.shop.folder / "test.json",), tests)

    def timing(self, row: Row, score: str) -> list[Step]:
        """The latency of ``best.st``, where it is another model than the single one."""
        if row.name == "single" or not self.settings.timed:
            return []
        models = [f"single={self.shop.model}", f"best={self.shop.folder / 'best.st'}"]
        return [self.shop.step("bench", models, {"force": True}, ["bench.json"], [self.best(row, score)])]

    def steps(self, row: Row, score: str) -> list[Step]:
        """Every command, where this row is chosen with this score."""
        ends = [self.together(score), self.best(row, score), *self.timing(row, score)]
        return in_order([*map(self.choosing, self.rows), *ends])


def _plan(settings: StudySettings, source: Source, folder: Path) -> Plan:
    names = list(dict.fromkeys(["single", *(one for name in settings.rows for one in _expanded(name, settings))]))
    lacking = [name for name in names if name in NEED_TRAIN] if settings.data is None else []
    if lacking:
        raise UsageError(f"--rows {lacking[0]} needs --data, labelled training data")
    search: dict[str, Any] = {} if settings.approx is None else {"approx": settings.approx}
    if settings.search_samples or settings.limit:
        search["limit"] = str(settings.search_samples or settings.limit)
    common: dict[str, dict[str, Any]] = {
        verb: settings.common(SETTINGS[verb], options) for verb, options in _COMMON.items()
    }
    common["prune --circuit"] = settings.common(SETTINGS["prune"], _MODEL)
    shop = Workshop(
        model=settings.model[0],
        heads=[site.heads for site in source.sites if settings.tower in (None, "both", site.tower)],
        train=settings.data,
        val=_part(str(settings.val), 1),
        ood_val=_part(settings.ood_val_sets()[0].spec, 1),
        folder=folder,
        search=search,
        common=common,
        training={"epochs": str(settings.epochs), "lr": repr(settings.lr)},
        objectives=THREE if {"whole-three", "circuits", "circuits-tuned"} & set(names) else ("avg",),
    )
    return Plan(settings, shop, [row for name in MAKERS if name in names for row in MAKERS[name](shop)])


def _expanded(name: str, settings: StudySettings) -> list[str]:
    """``default`` as the rows it stands for, those that need training data only where there are some."""
    if name != "default":
        return [name]
    return [one for one in DEFAULT if settings.data is not None or one not in NEED_TRAIN]


def _part(spec: str, number: int) -> str:
    """One half of a data set."""
    return f"{spec}{'&' if '?' in spec else '?'}part={number}/2"


# --- the folder -------------------------------------------------------------------------------------------------------


def _decided(settings: StudySettings, source: Source, log: Log) -> dict[str, Any]:
    announce_reading([source], log)
    return {"model": source.sha256, **{name: getattr(settings, name) for name in _DECIDE}}


def _claim(folder: Path, decided: Mapping[str, Any], force: bool) -> None:
    """Make the folder, or go on in the one of the same study.

    Raises:
        OutputError: it holds something else, or a study of other settings, whose differences are listed.
    """
    path = folder / "plan.json"
    with storing(folder):
        if folder.exists() and not path.exists() and any(folder.iterdir()):
            raise OutputError(f"the folder of the study is not empty: {folder}", hint="name another one with -o")
        for one in (folder, folder / "choose", folder / "test"):
            one.mkdir(parents=True, exist_ok=True)
    if path.exists():
        document = read_json_file(str(path))
        there = document.get("settings") if isinstance(document, dict) else None
        if not isinstance(there, dict) or document.get("schema") != PLAN:
            raise InputError(f"{path} is no plan of a study", hint="name another folder with -o")
        problems = differences(there, decided, "in the folder")
        if problems:
            hint = "give the settings it was begun with, or name another folder with -o"
            raise OutputError(f"{folder} holds a study of other settings", hint=hint, problems=problems)
    else:
        with Output(path) as output:
            write_json(output, {"schema": PLAN, "settings": dict(decided)})


# --- carrying it out --------------------------------------------------------------------------------------------------


class _StepLog(Log):
    """The log of one command: its warnings and its progress; the rest are details."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def info(self, message: str) -> None:
        self._log.detail(message)

    def detail(self, message: str) -> None:
        self._log.detail(message)

    def warn(self, message: str) -> None:
        self._log.warn(message)

    @contextmanager
    def progress(
        self, description: str, total: int | None, unit: str, columns: Sequence[str] = ()
    ) -> Iterator[Progress]:
        with self._log.progress(description, total, unit, columns) as progress:
            yield progress


def _run_steps(steps: Sequence[Step], all_steps: int, begun: int, log: Log) -> None:
    """Run the commands whose outputs are not there."""
    for number, step in enumerate(steps, begun + 1):
        line = f"step {number} of {all_steps}: hydractl {shlex.join(step.argv())}"
        if step.done:
            log.detail(f"{line}: done before")
            continue
        log.info(line)
        # Every option is given: neither variables nor hydra.yaml count.
        settings = merge(SETTINGS[step.verb], step.given, {"HYDRACTL_CONFIG": os.devnull}, Path())
        _RUNS[step.verb](settings, _StepLog(log))  # type: ignore[operator]


def _carry_out(plan: Plan, settings: StudySettings, source: Source, log: Log) -> Outcome:
    folder = plan.shop.folder
    first = in_order(map(plan.choosing, plan.rows))
    expected = len(plan.steps(plan.rows[-1], "SCORE"))
    _run_steps(first, expected, 0, log)
    study = Study(plan.rows, settings.max_drop, settings.bootstrap, settings.seed, log)
    study.choose({row.name: plan.predictions(row, "choose") for row in plan.rows})
    with Output(folder / "choice.json", force=True) as output:  # before any test sample is read
        write_json(output, study.choice_document())
    row, score = study.chosen
    steps = plan.steps(row, score)
    _run_steps([step for step in steps if step not in first], len(steps), len(first), log)
    best = open_sources([str(folder / "best.st")])[0].description.extra
    study.test({row.name: plan.predictions(row, "test") for row in plan.rows}, best.get("threshold"))
    document = study.document(source.name, source.sha256, [step.argv() for step in steps])
    return _write(plan, document, steps, log)


def _write(plan: Plan, document: dict[str, Any], steps: Sequence[Step], log: Log) -> Outcome:
    """The report, the script and the answer."""
    folder = plan.shop.folder
    row = next(row for row in plan.rows if row.name == document["choice"]["row"])
    score = document["choice"]["score"]
    text = script([plan.best(row, score)], steps, folder, Path.cwd())
    page = render({**read_eval(str(folder / "test.json")), "verdict": document["verdict"]["lines"]})
    with Output(folder / "report.html", force=True) as output:
        write_with(output, lambda handle: handle.write(page))
    with Output(folder / "study.sh", force=True) as output:
        write_with(output, lambda handle: handle.write(text.encode("utf-8", "surrogateescape")))
    with Output(folder / "study.json", force=True) as output:
        write_json(output, document)
    names = ("best.st", "best.md", "report.html", "study.json", "study.sh")
    shown = {**document, **_latency(folder / "bench.json", plan.timing(row, score))}
    return Outcome(shown, files=[folder / name for name in names])


def _latency(path: Path, timed: Sequence[Step]) -> dict[str, Any]:
    """The measured ratios, for the terminal: times are in no other file than ``bench.json``."""
    if not timed:
        return {}
    rows = [row for row in read_json_file(str(path))["results"] if row["model"] == "best"]
    return {"latency": [{key: row[key] for key in ("batch_size", "ratio", "ratio_ci")} for row in rows]}
