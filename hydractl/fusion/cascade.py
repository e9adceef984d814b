"""``fuse --cascade``: run a fused model on validation data, and fit for which samples its first member is enough."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from hydractl.data import batches
from hydractl.data.base import Dataset
from hydractl.errors import InputError
from hydractl.files.checkpoint import TensorSource
from hydractl.files.description import Description
from hydractl.files.fuse_answer import FittedCascadeRecord
from hydractl.fusion.averaging import MembersRunOptions
from hydractl.log import Log
from hydractl.metrics.cascade import fit_cheapest_cascade
from hydractl.model.cost import staged_macs
from hydractl.model.loading import resolve_device, resolve_dtype
from hydractl.model.runtime import HydraModel, move


@dataclass(frozen=True)
class CascadeOptions:
    """Options of the fit, named like on the command line.

    Attributes:
        cascade_loss: how much any figure may lose, at most.
        cascade_score: the name of the OOD score that decides.
    """

    cascade_loss: float
    cascade_score: str


def fit_cascade(
    description: Description,
    tensors: TensorSource,
    dataset: Dataset,
    outside: Mapping[str, Dataset],
    options: CascadeOptions,
    run: MembersRunOptions,
    log: Log,
) -> FittedCascadeRecord:
    """Fit the cascade of a fused model, and return the record for its file.

    In a cascade, one member runs first. Samples with a low OOD score stop there; the others run all members.

    Args:
        description, tensors: the description and the tensors of the fused model.
        dataset: labelled ID validation data.
        outside: OOD validation data by name.
        options: the options of the fit.
        run: how to run the members.
        log: receives the progress.

    Raises:
        InputError: there are too few samples, or no sample may stop at the first member.
    """
    device = resolve_device(run.device)
    dtype = resolve_dtype(run.dtype)
    model = HydraModel(description, tensors, device, dtype)
    model.cascade = None  # switch off an existing cascade, so that all members run

    # Run all members on all data.
    logits, samples = _run_members(model, "ID", dataset, run, log)
    all_labels = np.asarray(dataset.labels)
    labels = all_labels[samples]  # in the order in which the samples were read
    logits_outside = {}
    for name, data in outside.items():
        logits_of_set, _ = _run_members(model, name, data, run, log)
        logits_outside[name] = logits_of_set

    # Choose the member to run first and the threshold: the cheapest cascade whose losses are small enough.
    costs = staged_macs(description, tensors)
    fitted = fit_cheapest_cascade(
        logits,
        labels,
        logits_outside,
        options.cascade_score,
        options.cascade_loss,
        costs,
    )
    if fitted is None:
        raise InputError(
            f"--cascade: no sample may stop at the first member for a loss of {options.cascade_loss:g}",
            hint="allow more (--cascade-loss), let another score decide (--cascade-score), or give more samples",
        )

    # The costs, losses and data of the chosen cascade.
    first_macs, rest_macs = costs[fitted.cascade.member]
    losses = {}
    for name, loss in fitted.losses.items():
        losses[name] = {"value": loss.value, "upper": loss.upper}
    fitted_on_ood = {}
    for name, data in outside.items():
        fitted_on_ood[name] = _data_entry(data)

    # From an object, so that the file has its keys in this order, not in that of the record's fields.
    return FittedCascadeRecord.from_json(
        {
            "member": fitted.cascade.member,
            "score": fitted.cascade.score,
            "value": fitted.cascade.value,
            "loss": options.cascade_loss,
            "losses": losses,
            "share": fitted.share,
            "macs": first_macs + fitted.share * rest_macs,
            "first_macs": first_macs,
            "rest_macs": rest_macs,
            "fitted_on": _data_entry(dataset),
            "fitted_on_ood": fitted_on_ood,
        }
    )


def _data_entry(data: Dataset) -> dict[str, str | int]:
    """Return the entry of a document for data that something was fitted to."""
    return {
        "spec": data.spec,
        "n": len(data),
        "fingerprint": data.fingerprint(),
    }


@torch.no_grad()
def _run_members(
    model: HydraModel, name: str, data: Dataset, run: MembersRunOptions, log: Log
) -> tuple[np.ndarray, list[int]]:
    """Run all members on a data set.

    Args:
        model: the fused model.
        name: the name of the data in the progress.
        data: the data set.
        run: how to run the members.
        log: receives the progress.

    Returns:
        The logits ``[M, N, C]``, float32 or float64, and the indices of their samples in the data set, ``[N]``, since
        batches may come in another order.
    """
    parameter = next(model.parameters())
    logits_dtype = torch.float32  # not narrower, whatever the model computes in
    if run.dtype == "float64":
        logits_dtype = torch.float64
    samples: list[int] = []
    logits_of_batches = []
    with log.progress(f"cascade on {name}", len(data), "samples") as progress:
        for batch in batches(data, model.preprocess, run.batch_size, workers=run.workers):
            inputs = move(batch.inputs, parameter.device, parameter.dtype)
            logits = model.member_logits(inputs)  # [M, B, C]
            on_cpu = logits.to("cpu", logits_dtype)
            logits_of_batches.append(on_cpu.numpy())
            samples += batch.indices
            progress.advance(len(batch.indices))
    all_logits = np.concatenate(logits_of_batches, axis=1)
    return all_logits, samples
