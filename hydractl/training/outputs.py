"""What a training leaves: ordinary checkpoints or published folders, with how they came to be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hydractl.files.atomic import Output, write_with
from hydractl.files.checkpoint import DictTensors, TensorSource, write_tensors
from hydractl.files.fingerprints import entry, merged
from hydractl.files.header import torch_dtype
from hydractl.files.provenance import provenance
from hydractl.model.checks import check_finite
from hydractl.model.runtime import HydraModel
from hydractl.model.slicing import zeroed
from hydractl.settings import FinetuneSettings
from hydractl.training.grid import Trained
from hydractl.training.opening import Opened


def write_all(
    outputs: Sequence[Output],
    opened: Opened,
    settings: FinetuneSettings,
    details: Mapping[str, Any],
    trained: Trained,
) -> list[str]:
    """Write the weights that are kept, or those at the end of each cycle.

    Args:
        outputs: claimed: one, or one for each cycle.
        opened: what the training started from.
        settings: of the verb.
        details: what decided the result.
        trained: what came out.

    Returns:
        The SHA-256 of each.

    Raises:
        NonFiniteError: of weights that are not finite; nothing more is written.
        OutputError, StorageError: it cannot be written.
    """
    history, run = trained.history, trained.run
    details = {**details, "lr": trained.lr, "parent": dict(opened.source.description.provenance)}
    if settings.snapshots is None:
        results = {
            "history": history.epochs,
            "kept_epoch": history.kept_epoch,
            "stopped_early": history.stopped_early,
            "grid": [{k: v for k, v in entry.items() if k != "loss_curve"} for entry in trained.grid] or None,
        }
        return [_write(outputs[0], opened, settings, run.model, {**details, **results})]
    digests = []
    for number, (output, end) in enumerate(zip(outputs, run.cycles.ends, strict=True), start=1):
        run.put(run.snapshots[number - 1])
        results = {
            "history": [epoch for epoch in history.epochs if epoch["steps"] <= end],
            "stopped_early": False,
            "cycle": number,
            "cycle_end": end,
        }
        digests.append(_write(output, opened, settings, run.model, {**details, **results}))
    return digests


def _write(
    output: Output, opened: Opened, settings: FinetuneSettings, model: HydraModel, made: Mapping[str, Any]
) -> str:
    """One output, committed. Returns its SHA-256."""
    source, family = opened.source, opened.source.family
    description = replace(
        source.description,
        layout="zeroed" if output.is_folder else "sliced",
        family_version=family.version,
        extra={},
        provenance=provenance("finetune", settings, [source.sha256], made),
        seen=tuple(merged(source.description.seen, _seen(opened))),
    )
    # Trained weights in the dtype each tensor had.
    stock = model.stock_tensors()
    tensors: TensorSource = DictTensors({n: t.to(torch_dtype(source.tensors.info(n))) for n, t in stock.items()})
    check_finite(f"{source.name} after training", tensors)
    if output.is_folder:
        mask = description.mask
        tensors = zeroed(tensors, family, source.sites, mask, mask)
        weights = family.export_folder(output.temporary, description.config, description.preprocess, description.labels)
        with open(output.temporary / weights, "wb") as handle:
            digest = write_tensors(handle, tensors, description.to_json())
        output.commit()
        return digest
    digests: list[str] = []
    write_with(output, lambda h: digests.append(write_tensors(h, tensors, description.to_json())))
    return digests[0]


def _seen(opened: Opened) -> list[dict[str, Any]]:
    """The samples that the weights, or the choice of an epoch, come from: no test data for them any more."""
    sets = (("train", opened.train_set), ("val", opened.val_set))
    return [entry("finetune", role, dataset) for role, dataset in sets if dataset is not None]
