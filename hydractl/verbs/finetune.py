"""``hydractl finetune``: train a dense or pruned model on labelled data and write it as it came, with new weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from hydractl.data.base import report_classes
from hydractl.data.overlap import Validation
from hydractl.distributed import Processes, alone, local_device, processes, restarted
from hydractl.errors import InputError, UsageError
from hydractl.files.atomic import Output, check_outputs
from hydractl.files.checkpoint import sha256_file
from hydractl.files.model_records import EpochRecord
from hydractl.files.verb_answers import FinetuneAnswer, LearningRateTrial, PlannedTraining, TrainedFile, TrainingPlan
from hydractl.files.version import __version__
from hydractl.log import Log, SayOnce
from hydractl.model.cost import cost_of
from hydractl.model.loading import build_model, resolve_device
from hydractl.model.matching import asked_classes, label_differences, only_one, sites_of
from hydractl.model.runtime import HydraModel
from hydractl.model.source import Source, open_sources
from hydractl.settings.finetuning import FinetuneSettings, recipe_options
from hydractl.training.checkpointing import Checkpointing, StateFile
from hydractl.training.course import ScheduleOptions
from hydractl.training.data import TrainingData, report_all_cut, training_data
from hydractl.training.distribution import shard
from hydractl.training.doubts import course_doubts, data_doubts
from hydractl.training.grid import Trained, train_each
from hydractl.training.loop import TrainingContext
from hydractl.training.members import AnyModel
from hydractl.training.options import (
    DataOptions,
    LossOptions,
    OptimizerOptions,
    TrainOptions,
    WeightOptions,
)
from hydractl.training.outputs import RunFiles, finished, write_all
from hydractl.training.run_log import RunLog
from hydractl.training.start import Opened, adapt, open_all, speed_up, with_dropout
from hydractl.training.trackers import check_installed
from hydractl.verbs.finetune_members import check_files, on_first_device, recipe_in_effect, train_members
from hydractl.verbs.opening import announce_reading, model_options, renaming_doubts, start_options
from hydractl.verbs.outcome import Outcome

SCHEMA = "hydractl.finetune/1"

_SPEED = ("compile", "checkpoint_blocks")  # the result is the same, to rounding
_RESOLVED = ("max_length", "tower")  # the provenance has their values once the model is known
DECISIVE = tuple(o.name for o in recipe_options() if o.name not in (*_SPEED, *_RESOLVED))
"""The settings that decide the weights that come out, beside model, data and seed: what a recipe may say."""


@dataclass(frozen=True)
class Prepared:
    """Everything that is known and checked before a training begins."""

    settings: FinetuneSettings
    options: TrainOptions
    opened: Opened
    files: RunFiles
    plan: TrainingPlan

    @cached_property
    def decisive(self) -> dict[str, Any]:
        """The settings and data that decide the result, for the provenance; reads all data."""
        source = self.opened.source
        settings = self.settings
        decisive = {key: getattr(settings, key) for key in DECISIVE}
        decisive["ensemble"] = None if settings.ensemble is None else settings.ensemble.to_json()
        if len(settings.lr) == 1:
            decisive["lr"] = settings.lr[0]
        val_set = self.opened.val_set
        return {
            **decisive,
            "max_length": source.description.preprocess.get("max_length"),
            "drawn": list(self.opened.drawn) or None,
            "labels": list(self.options.weights.labels or ()) or None,
            **asked_classes(source, settings.tower),
            "train": self.opened.train_set.fingerprint(),
            "val": None if val_set is None else val_set.fingerprint(),
        }

    @property
    def fingerprint(self) -> dict[str, Any]:
        """The record that tells one unfinished run, or one output, from another; hashes the model."""
        return {"model": self.opened.source.sha256, "seed": self.options.seed, **self.decisive}


def run(settings: FinetuneSettings, log: Log) -> Outcome:
    """Train one model, or several, each in a process of its own."""
    if settings.several or settings.slurm:
        return train_members(settings, SayOnce(log), _check, _finished)  # of data that they share
    if settings.devices:
        settings = on_first_device(settings)
    if restarted():
        settings = replace(settings, resume=True)
    if settings.shard and alone():
        raise UsageError("--shard needs several processes", hint="torchrun --nproc-per-node N -m hydractl finetune ...")
    if settings.device.startswith("cuda:") and not alone():
        hint = "--device cuda gives each process its own"
        raise UsageError(f"--device {settings.device} is one GPU for all processes", hint=hint)
    with processes(settings.timeout, nccl=True) as team:
        return _run(settings, team.quieted(log), team)


def _run(settings: FinetuneSettings, log: Log, team: Processes) -> Outcome:
    prepared = _prepared(settings, log)
    files = prepared.files
    plan = prepared.plan
    of_data = data_doubts(prepared.opened, in_passing=settings.dry_run)
    for doubt in of_data:  # those of names are told when the model is read
        log.warn(doubt)
    doubts = [*renaming_doubts([prepared.opened.source]), *of_data]
    plan = replace(plan, warnings=doubts)
    if settings.dry_run:
        if team.rank:
            return Outcome({}, silent=True)
        check_outputs(files.paths, force=settings.force or settings.resume, folder=files.folder)
        return Outcome(PlannedTraining(schema=SCHEMA, plan=plan, recipe=recipe_in_effect(settings)).to_json())
    if not settings.resume and not team.rank:
        check_files(files, settings)
    announce_reading([prepared.opened.source], log)
    state = StateFile(files.state, prepared.fingerprint, _environment(settings, team))
    if settings.resume and not state.exists():
        made_by = finished(files, prepared.fingerprint, force=settings.force)
        if made_by is not None:
            log.info(f"the training of {' '.join(map(str, files.paths))} is finished: nothing to do")
            answer = _finished(files, made_by, plan)
            return Outcome(answer.to_json(), files=list(files.paths), silent=bool(team.rank))
    return _train_and_write(replace(prepared, plan=plan), state, log, team)


def _prepared(settings: FinetuneSettings, log: Log) -> Prepared:
    source = only_one(open_sources(settings.model, start_options(settings)), "finetune")
    sites_of(source, settings.tower)
    if settings.dtype not in ("float32", "float64"):
        hint = "computing in bfloat16 is --autocast bfloat16"
        raise UsageError(f"finetune trains in float32, not {settings.dtype}", hint=hint)
    output = settings.output or f"{source.name}.tuned{settings.seed_mark}.st"
    files = RunFiles.of(output, settings.log, settings.outputs, settings.trackers())
    check_installed(list(settings.trackers()))
    for note in settings.passed_over:
        log.info(note)
    options = train_options(settings)
    opened = open_all(source, options)
    if opened.drawn:
        log.info(f"{source.name} has no classifier; drawn by --seed {options.seed}: {', '.join(opened.drawn)}")
    val_names = None
    report_classes(opened.train_set, log)
    if opened.val_set is not None:
        report_classes(opened.val_set, log)
        val_names = opened.val_set.label_names
    differences = label_differences(opened.train_set.label_names, val_names)
    if differences:
        raise InputError(f"--val against the training set: {'; '.join(differences)}")
    if opened.val_set is not None and opened.left_out:
        log.info(Validation(opened.val_set, opened.left_out).words("--val", "--train"))
    plan = _plan(opened, options, files, log)
    return Prepared(settings, options, opened, files, plan)


def _plan(opened: Opened, options: TrainOptions, files: RunFiles, log: Log) -> TrainingPlan:
    source = opened.source
    samples = len(opened.train_set)
    steps = options.total_steps(samples)
    cost = cost_of(source.description, source.tensors)
    plan = TrainingPlan(
        output=str(files.paths[-1]),
        model=source.name,
        samples=samples,
        steps=steps,
        cost=cost,
        snapshots=_planned_files(files, _planned_models(options, samples)),
        val_left_out=opened.left_out or None,
    )
    if options.loss.name == "contrastive":
        log.info(f"{steps} steps of {options.per_step} pairs")  # captions vary, and their mult-adds
        return plan
    # A step costs about three forward passes: one forward, two for the gradients of inputs and weights.
    passes = len(options.lr)
    if options.together is not None:
        passes *= options.together.passes
    work = 3 * cost["macs"] * steps * options.per_step * passes
    log.info(f"{steps} steps of {options.per_step} samples, about {work:.2g} mult-adds")
    return plan


def _planned_files(files: RunFiles, written: Sequence[Mapping[str, int]]) -> list[TrainedFile] | None:
    """Return the files of several models that a training will leave; None of one model."""
    if not written:
        return None
    planned = []
    for path, facts in zip(files.paths, written, strict=True):
        planned.append(TrainedFile.from_json({"output": str(path), **facts}))
    return planned


def _planned_models(options: TrainOptions, samples: int) -> list[dict[str, int]]:
    """Return what is known of each of several models that a training will leave; empty for one model."""
    course = options.begin_course(samples)  # refuses too few steps
    if options.together is None:
        return course.planned()
    return [{"member": number} for number in range(1, options.together.members + 1)]


def _check(settings: FinetuneSettings, log: Log) -> tuple[TrainingPlan, Callable[[], dict[str, Any]]]:
    """Check one of several trainings before they begin: its plan, and what computes its fingerprint."""
    prepared = _prepared(settings, log)
    return prepared.plan, lambda: prepared.fingerprint


def _train_and_write(prepared: Prepared, state: StateFile, log: Log, team: Processes) -> Outcome:
    opened = prepared.opened
    files = prepared.files
    plan = prepared.plan
    settings = prepared.settings
    resumed = settings.resume and state.exists()
    with ExitStack() as stack:
        outputs: list[Output] = []
        saved = None
        if team.rank == 0:
            # A run that is resumed replaces what an earlier end of it wrote.
            force = settings.force or resumed
            outputs = [stack.enter_context(Output(p, force=force, folder=files.folder)) for p in files.paths]
            saved = state.begin(log, resume=settings.resume, force=settings.force)
        elif resumed:
            saved = state.load(Log())
        team.gather(None)  # nobody saves before all have read
        run_log = RunLog() if team.rank else files.open_log(saved, _about(plan, settings), log)
        stack.callback(run_log.close)
        first = _model(prepared)
        report_all_cut(first, (opened.train_set, opened.val_set), log)
        context = TrainingContext(log, run_log, Checkpointing(state, settings.save_every), team)
        with team.exchanging():
            trained = train_each(_maker(first, prepared, team), prepared.options, context, saved)
            if settings.shard:
                trained.run.unshard()
        run_log.event("end", lr=trained.lr, kept_epoch=trained.outcome["kept_epoch"])
        if team.rank:
            return Outcome({}, silent=True)
        digests = write_all(outputs, opened, prepared.decisive, trained)
        state.remove()
    doubts = course_doubts(trained.outcome, opened.val_set, _classes_of_loss(prepared))
    for doubt in doubts:
        log.warn(doubt)
    plan = replace(plan, warnings=[*plan.warnings, *doubts])
    return Outcome(_answer(trained, plan, digests).to_json(), files=list(files.paths))


# --- options ----------------------------------------------------------------------------------------------------------


def train_options(settings: FinetuneSettings) -> TrainOptions:
    """Return the options of the verb as those of a training."""
    ensemble = settings.ensemble
    weights = settings.fill(
        WeightOptions,
        labels=tuple(model_options(settings).labels or ()) or None if settings.new_head else None,
        freeze=tuple(settings.freeze),
        lenient="freeze" in settings.from_recipe,
        adapter=None if ensemble is None else ensemble.adapter(),
    )
    return settings.fill(
        TrainOptions,
        data=settings.fill(DataOptions, train=settings.train, augment=tuple(settings.augment)),
        lr=tuple(settings.lr),
        epochs=settings.epochs or 0,
        weights=weights,
        optimizer=settings.fill(OptimizerOptions, name=settings.optimizer, betas=tuple(settings.betas)),
        schedule=ScheduleOptions(shape=settings.schedule, warmup=settings.warmup, floor=settings.lr_floor),
        course=None if ensemble is None else ensemble.course(),
        loss=settings.fill(LossOptions, name=settings.loss),
        together=None if ensemble is None else ensemble.together(),
    )


# --- the model --------------------------------------------------------------------------------------------------------


def _model(prepared: Prepared) -> AnyModel:
    """Return the model that is trained, or the members that are trained together."""
    opened = prepared.opened
    options = prepared.options
    models = [_one_model(prepared, source) for source in opened.members or (opened.source,)]
    if options.together is None:
        return models[0]
    return options.together.model(models, opened.source, options.seed)


def _one_model(prepared: Prepared, source: Source) -> HydraModel:
    settings, options = prepared.settings, prepared.options
    source = with_dropout(source, settings.dropout)
    device = resolve_device(local_device(settings.device))
    model = build_model(source, "cpu" if settings.shard else str(device), settings.dtype)
    adapt(model, options.weights, options.seed)
    speed_up(model, checkpoint_blocks=settings.checkpoint_blocks, compile=settings.compile)
    if settings.shard:
        shard(model, device)
    return model


def _maker(first: AnyModel, prepared: Prepared, team: Processes) -> Callable[[], tuple[AnyModel, TrainingData]]:
    """Return a function that gives the model to start from, again and again, and the data of the first one."""
    data = training_data(first, prepared.opened.train_set, prepared.opened.val_set, prepared.options, team)
    waiting = [first]

    def make() -> tuple[AnyModel, TrainingData]:
        return waiting.pop() if waiting else _model(prepared), data

    return make


# --- the run ----------------------------------------------------------------------------------------------------------


def _environment(settings: FinetuneSettings, team: Processes) -> dict[str, Any]:
    """Return surroundings that may change the rounding, and so the weights by a little."""
    return {
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "hydractl": __version__,
        "device": resolve_device(local_device(settings.device)).type,
        "processes": team.size,
        "compile": settings.compile,
        "shard": settings.shard,
    }


def _about(plan: TrainingPlan, settings: FinetuneSettings) -> dict[str, Any]:
    """Return what a log of the training begins with."""
    values = {name: setting.value for name, setting in recipe_in_effect(settings).items()}
    return {
        "model": plan.model,
        "samples": plan.samples,
        "steps": plan.steps,
        "seed": settings.seed,
        "settings": values,
    }


def _classes_of_loss(prepared: Prepared) -> int | None:
    """Return the number of classes where the loss is the cross-entropy of one model; None where it is another."""
    options = prepared.options
    if options.loss.name == "contrastive" or options.together is not None:
        return None
    return prepared.opened.source.classes


# --- the answer -------------------------------------------------------------------------------------------------------


def _answer(trained: Trained, plan: TrainingPlan, digests: Sequence[str]) -> FinetuneAnswer:
    """Return the answer of a training that has just ended."""
    outcome = trained.outcome
    return FinetuneAnswer(
        schema=SCHEMA,
        plan=_with_digests(plan, digests),
        epochs=[EpochRecord.from_json(epoch) for epoch in outcome["epochs"]],
        kept_epoch=outcome["kept_epoch"],
        stopped_early=outcome["stopped_early"],
        lr=trained.lr,
        trained_params=sum(parameter.numel() for parameter in trained.run.parameters.values()),
        grid=_trials(trained.grid),
        loss_curve=outcome["loss_curve"],
        sha256=digests[-1],
    )


def _finished(files: RunFiles, made_by: dict[str, Any], plan: TrainingPlan) -> FinetuneAnswer:
    """Return the answer for a training that was finished before."""
    settings = made_by["settings"]
    digests = [sha256_file(path) for path in files.weights()]
    return FinetuneAnswer(
        schema=SCHEMA,
        plan=_with_digests(plan, digests),
        epochs=[EpochRecord.from_json(epoch) for epoch in settings["history"]],
        kept_epoch=settings.get("kept_epoch"),
        stopped_early=settings.get("stopped_early"),
        lr=settings["lr"],
        grid=_trials(settings.get("grid", ())),
        sha256=digests[-1],
    )


def _with_digests(plan: TrainingPlan, digests: Sequence[str]) -> TrainingPlan:
    """Return a plan with the digests of its files, where it has several."""
    if plan.snapshots is None:
        return plan
    written = []
    for file, digest in zip(plan.snapshots, digests, strict=True):
        written.append(replace(file, sha256=digest))
    return replace(plan, snapshots=written)


def _trials(grid: Sequence[Mapping[str, Any]]) -> list[LearningRateTrial] | None:
    """Return what several learning rates reached; None where there is one."""
    if not grid:
        return None
    return [LearningRateTrial.from_json(trial) for trial in grid]
