"""``hydractl finetune``: train a dense or pruned model on labelled data and write it as it came, with new weights."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from hydractl.distributed import Processes, local_device, processes
from hydractl.errors import InputError, UsageError
from hydractl.files.atomic import Output, check_outputs
from hydractl.files.checkpoint import sha256_file
from hydractl.log import Log
from hydractl.model.agreement import label_differences
from hydractl.model.cost import cost_of
from hydractl.model.loading import build_model, resolve_device
from hydractl.model.matching import asked_classes, only_one, sites_of
from hydractl.model.runtime import HydraModel
from hydractl.model.source import ModelOptions, open_sources
from hydractl.settings import FinetuneSettings
from hydractl.settings.finetuning import ADAPTERS
from hydractl.training.checkpointing import Keeper, StateFile
from hydractl.training.context import Around, TrainingData
from hydractl.training.data import report_all_cut, training_data
from hydractl.training.grid import Trained, train_each
from hydractl.training.losses import steps_per_epoch
from hydractl.training.outputs import RunFiles, begin, finished, write_all
from hydractl.training.prepare import adapt, hasten
from hydractl.training.run_log import RunLog, check_tensorboard
from hydractl.training.schedule import Cycles
from hydractl.training.start import Opened, open_all, with_dropout
from hydractl.verbs.finetune_members import on_first_device, train_members
from hydractl.verbs.outcome import Outcome

SCHEMA = "hydractl.finetune/1"

DECISIVE = (
    "epochs",
    "steps",
    "lr",
    "optimizer",
    "weight_decay",
    "momentum",
    "betas",
    "eps",
    "warmup",
    "schedule",
    "lr_floor",
    "loss",
    "label_smoothing",
    "clip",
    "accumulate",
    "train_last",
    "freeze",
    "init",
    "reset_head",
    "dropout",
    *ADAPTERS,
    "augment",
    "autocast",
    "snapshots",
    "patience",
    "min_delta",
    "batch_size",
    "dtype",
)
"""The settings that decide the weights that come out, beside model, data and seed."""


def run(settings: FinetuneSettings, log: Log) -> Outcome:
    """Train one model, or several, each in a process of its own."""
    if settings.several:
        return train_members(settings, log, _check, _finished)
    if settings.devices:
        settings = on_first_device(settings)
    with processes(settings.timeout) as team:
        return _run(settings, team.quieted(log), team)


def _run(settings: FinetuneSettings, log: Log, team: Processes) -> Outcome:
    opened, files, plan = _prepared(settings, log)
    if settings.dry_run:
        if team.rank:
            return Outcome({}, silent=True)
        check_outputs(files.paths, force=settings.force or settings.resume, folder=files.folder)
        return Outcome({"schema": SCHEMA, "dry_run": True, **plan, "recipe": settings.effective()})
    return _train_and_write(opened, settings, files, plan, log, team)


def _prepared(settings: FinetuneSettings, log: Log) -> tuple[Opened, RunFiles, dict[str, Any]]:
    """Everything that is known and checked before a training begins; the plan is for its answer."""
    source = only_one(open_sources(settings.model, ModelOptions.of(settings)), "finetune")
    sites_of(source, settings.tower)
    if settings.dtype not in ("float32", "float64"):
        hint = "computing in bfloat16 is --autocast bfloat16"
        raise UsageError(f"finetune trains in float32, not {settings.dtype}", hint=hint)
    output = settings.output or f"{source.name}.tuned.st"
    files = RunFiles.of(output, settings.log, settings.snapshots, settings.tensorboard)
    if settings.tensorboard is not None:
        check_tensorboard()
    for note in settings.passed_over:
        log.info(note)
    opened = open_all(source, settings)
    differences = label_differences(
        opened.train_set.label_names, opened.val_set.label_names if opened.val_set else None
    )
    if differences:
        raise InputError(f"--val against the training set: {'; '.join(differences)}")
    source, samples = opened.source, len(opened.train_set)
    per_step = settings.batch_size * settings.accumulate
    steps = settings.steps or (settings.epochs or 0) * steps_per_epoch(samples, settings)
    cost = cost_of(source.description, source.tensors)
    plan = {"output": str(files.paths[-1]), "model": source.name, "samples": samples, "steps": steps, "cost": cost}
    if settings.snapshots is not None:
        ends = enumerate(zip(files.paths, Cycles(steps, settings.snapshots).ends, strict=True), start=1)
        plan["snapshots"] = [{"output": str(path), "cycle": number, "steps": end} for number, (path, end) in ends]
    # A step costs about three forward passes: one forward, two for the gradients of inputs and weights. Captions vary.
    work = f", about {3 * cost['macs'] * steps * per_step * len(settings.lr):.2g} mult-adds"
    log.info(f"{steps} steps of {per_step} {'pairs' if settings.loss == 'contrastive' else f'samples{work}'}")
    return opened, files, plan


def _check(settings: FinetuneSettings, log: Log) -> tuple[dict[str, Any], dict[str, Any]]:
    """One of several trainings before they begin: its plan, and what decides its result."""
    opened, _, plan = _prepared(settings, log)
    return plan, {"model": opened.source.sha256, "seed": settings.seed, **_decisive(opened, settings)}


def _train_and_write(
    opened: Opened, settings: FinetuneSettings, files: RunFiles, plan: dict[str, Any], log: Log, team: Processes
) -> Outcome:
    details = _decisive(opened, settings)
    fingerprint = {"model": opened.source.sha256, "seed": settings.seed, **details}
    state = StateFile(files.state, fingerprint, _environment(settings, team))
    going_on = settings.resume and state.exists()
    if settings.resume and not going_on:
        made = finished(files, fingerprint, force=settings.force)
        if made is not None:
            log.info(f"the training of {' '.join(map(str, files.paths))} is finished: nothing to do")
            return Outcome(_finished(files, made, plan), files=list(files.paths), silent=bool(team.rank))
    with ExitStack() as stack:
        outputs: list[Output] = []
        saved = None
        if team.rank == 0:
            # A run that is resumed replaces what an earlier end of it wrote.
            force = settings.force or going_on
            outputs = [stack.enter_context(Output(p, force=force, folder=files.folder)) for p in files.paths]
            saved = begin(files, state, settings, log)
        elif going_on:
            saved = state.load(Log())
        team.gather(None)  # nobody saves before all have read
        run_log = RunLog() if team.rank else files.open_log(saved, _about(plan, settings), log)
        stack.callback(run_log.close)
        first = _model(opened, settings)
        report_all_cut(first, (opened.train_set, opened.val_set), log)
        around = Around(log, run_log, Keeper(state, settings.save_every), team)
        trained = train_each(_maker(first, opened, settings, team), settings, around, saved)
        run_log.event("end", lr=trained.lr, kept_epoch=trained.history.kept_epoch)
        if team.rank:
            return Outcome({}, silent=True)
        digests = write_all(outputs, opened, settings, details, trained)
        state.remove()
    return Outcome(_answer(trained, plan, digests), files=list(files.paths))


# --- the model --------------------------------------------------------------------------------------------------------


def _model(opened: Opened, settings: FinetuneSettings) -> HydraModel:
    model = build_model(with_dropout(opened.source, settings.dropout), local_device(settings.device), settings.dtype)
    adapt(model, settings)
    hasten(model, checkpoint_blocks=settings.checkpoint_blocks, compile=settings.compile)
    return model


def _maker(first: HydraModel, opened: Opened, settings: FinetuneSettings, team: Processes) -> Any:
    """Gives the model to start from, again and again, and the data of the first one, which suit all."""
    data = training_data(first, opened.train_set, opened.val_set, settings, team)
    waiting = [first]

    def make() -> tuple[HydraModel, TrainingData]:
        return waiting.pop() if waiting else _model(opened, settings), data

    return make


# --- what decided the result ------------------------------------------------------------------------------------------


def _decisive(opened: Opened, settings: FinetuneSettings) -> dict[str, Any]:
    """What the provenance says of settings and data; it also tells one unfinished run from another."""
    source = opened.source
    decisive = {key: getattr(settings, key) for key in DECISIVE}
    if len(settings.lr) == 1:
        decisive["lr"] = settings.lr[0]
    return {
        **decisive,
        "max_length": source.description.preprocess.get("max_length"),
        **asked_classes(source, settings.tower),
        "data": opened.train_set.fingerprint(),
        "val": None if opened.val_set is None else opened.val_set.fingerprint(),
    }


def _environment(settings: FinetuneSettings, team: Processes) -> dict[str, Any]:
    """What may change the rounding, and so the weights by a little."""
    import torch

    import hydractl

    return {
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "hydractl": hydractl.__version__,
        "device": resolve_device(local_device(settings.device)).type,
        "processes": team.size,
        "compile": settings.compile,
    }


def _about(plan: dict[str, Any], settings: FinetuneSettings) -> dict[str, Any]:
    values = {name: entry["value"] for name, entry in settings.effective().items()}
    return {key: plan[key] for key in ("model", "samples", "steps")} | {"seed": settings.seed, "settings": values}


# --- the answer -------------------------------------------------------------------------------------------------------


def _answer(trained: Trained, plan: dict[str, Any], digests: list[str]) -> dict[str, Any]:
    history = trained.history
    return {
        "schema": SCHEMA,
        **_with_digests(plan, digests),
        "epochs": history.epochs,
        "kept_epoch": history.kept_epoch,
        "stopped_early": history.stopped_early,
        "lr": trained.lr,
        "trained_params": sum(p.numel() for p in trained.run.parameters.values()),
        **({"grid": trained.grid} if trained.grid else {}),
        "loss_curve": history.loss_curve(),
        "sha256": digests[-1],
    }


def _with_digests(plan: dict[str, Any], digests: list[str]) -> dict[str, Any]:
    """The plan, with the SHA-256 of each snapshot where there are some."""
    if "snapshots" not in plan:
        return plan
    each = [{**one, "sha256": digest} for one, digest in zip(plan["snapshots"], digests, strict=True)]
    return {**plan, "snapshots": each}


def _finished(files: RunFiles, made: dict[str, Any], plan: dict[str, Any]) -> dict[str, Any]:
    """The answer for a training that was finished before."""
    digests, settings = [sha256_file(path) for path in files.weights()], made["settings"]
    return {
        "schema": SCHEMA,
        **_with_digests(plan, digests),
        "epochs": settings["history"],
        "kept_epoch": settings.get("kept_epoch"),
        "stopped_early": settings["stopped_early"],
        "lr": settings["lr"],
        **({"grid": settings["grid"]} if "grid" in settings else {}),
        "sha256": digests[-1],
    }
