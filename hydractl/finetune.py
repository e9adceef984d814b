"""``hydractl finetune``: train a dense or pruned model on labelled data and write it as it came, with new weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hydractl.errors import InputError, UsageError
from hydractl.log import Log
from hydractl.matching import asked_classes, check_labels, known, named_by_data, only_one, sites_of
from hydractl.outcome import Outcome

if TYPE_CHECKING:
    from hydractl.fusion.runtime import HydraModel
    from hydractl.models import Source
    from hydractl.settings import FinetuneSettings
    from hydractl.training.loop import TrainingData

CACHE_BYTES = 1 << 30
"""Preprocessed training inputs up to this size stay in memory instead of being made anew each epoch."""


def run(settings: FinetuneSettings, log: Log) -> Outcome:
    """Train one model."""
    from hydractl.atomic import Output, check_outputs, file_path, write_with
    from hydractl.checkpoint import DictTensors, write_tensors
    from hydractl.cost import cost_of
    from hydractl.data.text_cut import report_cut
    from hydractl.models import ModelOptions, build_model, open_sources
    from hydractl.provenance import provenance
    from hydractl.training.loop import train
    from hydractl.weights import check_finite

    opened = open_sources(settings.model, ModelOptions.of(settings))
    source = only_one(opened, "finetune")
    sites_of(source, settings.tower)
    assert settings.data is not None  # settings.check() holds it
    source = named_by_data(source, settings.data, settings.limit)
    if settings.dtype not in ("float32", "float64"):
        raise UsageError(f"finetune trains in float32, not {settings.dtype}")
    path = file_path(settings.output or f"{source.name}.tuned.st")
    train_set, val_set, labels = _open_data(source, settings)
    steps = settings.steps or (settings.epochs or 0) * -(-len(train_set) // settings.batch_size)
    cost = cost_of(source.description, source.tensors)
    plan = {"output": str(path), "model": source.name, "samples": len(train_set), "steps": steps, "cost": cost}
    # A step costs about three forward passes: one forward, two for the gradients of inputs and weights.
    work = 3 * cost["macs"] * steps * settings.batch_size
    log.info(f"{steps} steps of {settings.batch_size} samples, about {work:.2g} mult-adds")
    if settings.dry_run:
        check_outputs([path], force=settings.force)
        return Outcome({"schema": "hydractl.finetune/1", "dry_run": True, **plan})
    with Output(path, force=settings.force) as output:
        model = build_model(source, settings.device, settings.dtype)
        for dataset in (train_set, val_set):
            if dataset is not None:
                report_cut(dataset, model.preprocess, log)
        history = train(model, _training_data(model, train_set, val_set, settings), settings, log)
        details = {
            **{key: getattr(settings, key) for key in _DECISIVE},
            "max_length": source.description.preprocess.get("max_length"),
            **asked_classes(source, settings.tower),
            "data": train_set.fingerprint(),
            "val": None if val_set is None else val_set.fingerprint(),
            "history": history.epochs,
            "kept_epoch": history.kept_epoch,
            "parent": dict(source.description.provenance),
        }
        description = replace(
            source.description,
            labels=labels,
            layout="sliced",
            family_version=source.family.version,
            extra={},
            provenance=provenance("finetune", settings, [source.sha256], details),
        )
        tensors = DictTensors(_stored(model, source))
        check_finite(f"{source.name} after training", tensors)
        digests: list[str] = []
        file = write_with(output, lambda h: digests.append(write_tensors(h, tensors, description.to_json())))
    document = {
        "schema": "hydractl.finetune/1",
        **plan,
        "epochs": history.epochs,
        "kept_epoch": history.kept_epoch,
        "stopped_early": history.stopped_early,
        "sha256": digests[0],
    }
    return Outcome(document, files=[file])


_DECISIVE = (
    "epochs",
    "steps",
    "lr",
    "optimizer",
    "weight_decay",
    "momentum",
    "warmup",
    "schedule",
    "label_smoothing",
    "clip",
    "train_last",
    "patience",
    "min_delta",
    "batch_size",
    "dtype",
)


def _stored(model: HydraModel, source: Source) -> dict[str, Any]:
    """Trained weights in the dtype each tensor had."""
    from hydractl.checkpoint import torch_dtype

    return {name: t.to(torch_dtype(source.tensors.info(name))) for name, t in model.stock_tensors().items()}


def _open_data(source: Source, settings: FinetuneSettings) -> tuple[Any, Any, list[str] | None]:
    """Training and validation sets, and the class names the tuned model will carry."""
    from hydractl.data import open_data
    from hydractl.fusion.plan import label_differences

    names, reads = source.description.labels, {source.name: source.description.reads}
    assert settings.data is not None  # settings.check() holds it
    train_set = open_data(settings.data, limit=settings.limit, labels=names, need_labels=True, reads=reads)
    check_labels(train_set, source)
    classes = source.classes
    # A model from scratch takes its class names from the data it learns.
    labels = names if names is not None else train_set.label_names
    if labels is not None and len(labels) != classes:
        raise InputError(
            f"{settings.data} has {len(labels)} classes, {source.name} has {classes}",
            hint=f"start from a model with num_classes={len(labels)}",
        )
    val_set = None
    if settings.val is not None:
        val_set = open_data(
            settings.val, option="--val", limit=settings.limit, labels=labels, need_labels=True, reads=reads
        )
        check_labels(val_set, source)
        differences = label_differences(labels, val_set.label_names)
        if differences:
            raise InputError(f"--val against the training set: {'; '.join(differences)}")
        if val_set.sample_fingerprints() == train_set.sample_fingerprints():
            raise InputError("--data and --val are the same samples", hint="give a validation set of its own")
    return train_set, val_set, None if labels is None else list(labels)


def _training_data(model: HydraModel, train_set: Any, val_set: Any, settings: FinetuneSettings) -> TrainingData:
    import torch

    from hydractl.data import batches
    from hydractl.fusion.runtime import move
    from hydractl.training.loop import TrainingData

    parameter = next(model.parameters())

    def from_set(dataset: Any, indices: list[int] | None) -> Iterator[tuple[Any, Any]]:
        for batch in batches(dataset, model.preprocess, settings.batch_size, workers=settings.workers, indices=indices):
            yield move(batch.inputs, parameter.device, parameter.dtype), known(batch.labels).to(parameter.device)

    def cached(dataset: Any) -> Any:
        """All inputs and labels as two tensors, when they are tensors of one size and fit."""
        one = model.preprocess([dataset[0]])
        if not isinstance(one, torch.Tensor) or one.nbytes * len(dataset) > CACHE_BYTES:
            return None
        order = range(len(dataset))  # rows are looked up by index
        parts = list(batches(dataset, model.preprocess, 256, workers=settings.workers, indices=order))
        return torch.cat([b.inputs for b in parts]), torch.cat([known(b.labels) for b in parts])

    def reader(dataset: Any) -> Any:
        memory = cached(dataset)

        def read(indices: list[int] | None) -> Iterator[tuple[Any, Any]]:
            if memory is None:
                yield from from_set(dataset, indices)
                return
            order = torch.arange(len(dataset)) if indices is None else torch.tensor(indices)
            for chunk in order.split(settings.batch_size):
                yield move(memory[0][chunk], parameter.device, parameter.dtype), memory[1][chunk].to(parameter.device)

        return read

    train_batches = reader(train_set)
    val_batches = None if val_set is None else reader(val_set)
    validation = None if val_batches is None else (lambda: val_batches(None))
    return TrainingData(len(train_set), train_batches, validation)
