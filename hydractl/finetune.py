"""``hydractl finetune``: train a dense or pruned model on labelled data and write it as it came, with new weights."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hydractl.errors import InputError, UsageError
from hydractl.log import Log
from hydractl.matching import asked_classes, only_one, sites_of
from hydractl.outcome import Outcome
from hydractl.seen import entry, merged

if TYPE_CHECKING:
    from hydractl.atomic import Output
    from hydractl.fusion.runtime import HydraModel
    from hydractl.processes import Processes
    from hydractl.settings import FinetuneSettings
    from hydractl.training.course import TrainingData
    from hydractl.training.grid import Trained
    from hydractl.training.opening import Opened
    from hydractl.training.run_files import RunFiles

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
    "label_smoothing",
    "clip",
    "accumulate",
    "train_last",
    "freeze",
    "init",
    "reset_head",
    "dropout",
    "lora",
    "augment",
    "autocast",
    "patience",
    "min_delta",
    "batch_size",
    "dtype",
)
"""The settings that decide the weights that come out, beside model, data and seed."""


def run(settings: FinetuneSettings, log: Log) -> Outcome:
    """Train one model."""
    from hydractl.processes import processes

    with processes(settings.timeout) as team:
        return _run(settings, team.quieted(log), team)


def _run(settings: FinetuneSettings, log: Log, team: Processes) -> Outcome:
    from hydractl.atomic import check_outputs
    from hydractl.cost import cost_of
    from hydractl.fusion.plan import label_differences
    from hydractl.models import ModelOptions, open_sources
    from hydractl.training.opening import open_all
    from hydractl.training.run_files import RunFiles

    source = only_one(open_sources(settings.model, ModelOptions.of(settings)), "finetune")
    sites_of(source, settings.tower)
    if settings.dtype not in ("float32", "float64"):
        hint = "computing in bfloat16 is --autocast bfloat16"
        raise UsageError(f"finetune trains in float32, not {settings.dtype}", hint=hint)
    files = RunFiles.of(settings.output or f"{source.name}.tuned.st", settings.log)
    opened = open_all(source, settings)
    differences = label_differences(
        opened.train_set.label_names, opened.val_set.label_names if opened.val_set else None
    )
    if differences:
        raise InputError(f"--val against the training set: {'; '.join(differences)}")
    source, samples = opened.source, len(opened.train_set)
    per_step = settings.batch_size * settings.accumulate
    steps = settings.steps or (settings.epochs or 0) * -(-samples // per_step)
    cost = cost_of(source.description, source.tensors)
    plan = {"output": str(files.path), "model": source.name, "samples": samples, "steps": steps, "cost": cost}
    # A step costs about three forward passes: one forward, two for the gradients of inputs and weights.
    work = 3 * cost["macs"] * steps * per_step * len(settings.lr)
    log.info(f"{steps} steps of {per_step} samples, about {work:.2g} mult-adds")
    if settings.dry_run:
        if team.rank:
            return Outcome({}, silent=True)
        check_outputs([files.path], force=settings.force or settings.resume, folder=files.folder)
        return Outcome({"schema": SCHEMA, "dry_run": True, **plan, "recipe": settings.effective()})
    return _train_and_write(opened, settings, files, plan, log, team)


def _train_and_write(
    opened: Opened, settings: FinetuneSettings, files: RunFiles, plan: dict[str, Any], log: Log, team: Processes
) -> Outcome:
    from hydractl.atomic import Output
    from hydractl.data.text_cut import report_cut
    from hydractl.training.course import Around
    from hydractl.training.grid import train_each
    from hydractl.training.keeping import Keeper
    from hydractl.training.run_files import begin, finished
    from hydractl.training.run_log import RunLog
    from hydractl.training.state import StateFile

    details = _decisive(opened, settings)
    fingerprint = {"model": opened.source.sha256, "seed": settings.seed, **details}
    state = StateFile(files.state, fingerprint, _environment(settings, team))
    going_on = settings.resume and state.exists()
    if settings.resume and not going_on:
        made = finished(files, fingerprint, force=settings.force)
        if made is not None:
            log.info(f"the training of {files.path} is finished: nothing to do")
            return _finished(files, made, plan, silent=bool(team.rank))
    with ExitStack() as stack:
        output = None
        saved = None
        if team.rank == 0:
            # A run that is resumed replaces what an earlier end of it wrote.
            output = stack.enter_context(Output(files.path, force=settings.force or going_on, folder=files.folder))
            saved = begin(files, state, settings, log)
        elif going_on:
            saved = state.load(Log())
        team.gather(None)  # nobody saves before all have read
        run_log = RunLog() if team.rank else files.open_log(saved, _about(plan, settings), log)
        stack.callback(run_log.close)
        first = _model(opened, settings)
        for dataset in (opened.train_set, opened.val_set):
            if dataset is not None:
                report_cut(dataset, first.preprocess, log)
        around = Around(log, run_log, Keeper(state, settings.save_every), team)
        trained = train_each(_maker(first, opened, settings, team), settings, around, saved)
        run_log.event("end", lr=trained.lr, kept_epoch=trained.history.kept_epoch)
        if output is None:
            return Outcome({}, silent=True)
        document = _write(output, opened, settings, details, trained, plan)
        state.remove()
    return Outcome(document, files=[files.path])


# --- the model --------------------------------------------------------------------------------------------------------


def _model(opened: Opened, settings: FinetuneSettings) -> HydraModel:
    from hydractl.models import build_model
    from hydractl.processes import local_device
    from hydractl.training.lora import add_lora
    from hydractl.training.speed import hasten
    from hydractl.training.start import with_dropout

    model = build_model(with_dropout(opened.source, settings.dropout), local_device(settings.device), settings.dtype)
    if settings.lora is not None:
        rank, alpha = settings.lora.split(",")
        add_lora(model, int(rank), float(alpha), settings.seed)
    hasten(model, checkpoint_blocks=settings.checkpoint_blocks, compile=settings.compile)
    return model


def _maker(first: HydraModel, opened: Opened, settings: FinetuneSettings, team: Processes) -> Any:
    """Gives the model to start from, again and again, and the data of the first one, which suit all."""
    from hydractl.training.reading import training_data

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
    from hydractl.models import resolve_device
    from hydractl.processes import local_device

    return {
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "hydractl": hydractl.__version__,
        "device": resolve_device(local_device(settings.device)).type,
        "processes": team.size,
        "compile": settings.compile,
    }


def _seen(opened: Opened) -> list[dict[str, Any]]:
    """The samples that the weights, or the choice of an epoch, come from: no test data for them any more."""
    sets = (("train", opened.train_set), ("val", opened.val_set))
    return [entry("finetune", role, dataset) for role, dataset in sets if dataset is not None]


def _about(plan: dict[str, Any], settings: FinetuneSettings) -> dict[str, Any]:
    values = {name: entry["value"] for name, entry in settings.effective().items()}
    return {key: plan[key] for key in ("model", "samples", "steps")} | {"seed": settings.seed, "settings": values}


# --- writing ----------------------------------------------------------------------------------------------------------


def _write(
    output: Output,
    opened: Opened,
    settings: FinetuneSettings,
    details: dict[str, Any],
    trained: Trained,
    plan: dict[str, Any],
) -> dict[str, Any]:
    from hydractl.atomic import write_with
    from hydractl.checkpoint import DictTensors, TensorSource, torch_dtype, write_tensors
    from hydractl.provenance import provenance
    from hydractl.slicing import zeroed
    from hydractl.weights import check_finite

    source, history = opened.source, trained.history
    results = {
        "history": history.epochs,
        "kept_epoch": history.kept_epoch,
        "stopped_early": history.stopped_early,
        "grid": [{k: v for k, v in entry.items() if k != "loss_curve"} for entry in trained.grid] or None,
    }
    made = {**details, **results, "lr": trained.lr, "parent": dict(source.description.provenance)}
    description = replace(
        source.description,
        layout="zeroed" if output.is_folder else "sliced",
        family_version=source.family.version,
        extra={},
        provenance=provenance("finetune", settings, [source.sha256], made),
        seen=tuple(merged(source.description.seen, _seen(opened))),
    )
    # Trained weights in the dtype each tensor had.
    stock = trained.model.stock_tensors()
    tensors: TensorSource = DictTensors({n: t.to(torch_dtype(source.tensors.info(n))) for n, t in stock.items()})
    check_finite(f"{source.name} after training", tensors)
    if output.is_folder:
        mask = description.mask
        tensors = zeroed(tensors, source.family, source.sites, mask, mask)
        family = source.family
        weights = family.export_folder(output.temporary, description.config, description.preprocess, description.labels)
        with open(output.temporary / weights, "wb") as handle:
            digest = write_tensors(handle, tensors, description.to_json())
        output.commit()
    else:
        digests: list[str] = []
        write_with(output, lambda h: digests.append(write_tensors(h, tensors, description.to_json())))
        digest = digests[0]
    return {
        "schema": SCHEMA,
        **plan,
        "epochs": history.epochs,
        "kept_epoch": history.kept_epoch,
        "stopped_early": history.stopped_early,
        "lr": trained.lr,
        **({"grid": trained.grid} if trained.grid else {}),
        "loss_curve": history.loss_curve(),
        "sha256": digest,
    }


def _finished(files: RunFiles, made: dict[str, Any], plan: dict[str, Any], *, silent: bool) -> Outcome:
    """The answer for a training that was finished before."""
    from hydractl.checkpoint import sha256_file

    path, settings = files.weights(), made["settings"]
    assert path is not None  # finished() has read it
    document = {
        "schema": SCHEMA,
        **plan,
        "epochs": settings["history"],
        "kept_epoch": settings["kept_epoch"],
        "stopped_early": settings["stopped_early"],
        "lr": settings["lr"],
        **({"grid": settings["grid"]} if "grid" in settings else {}),
        "sha256": sha256_file(path),
    }
    return Outcome(document, files=[files.path], silent=silent)
