"""``fuse --cascade``: run a fused model on validation data, and fit when its first member is enough."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hydractl.data import batches
from hydractl.data.base import Dataset
from hydractl.errors import InputError
from hydractl.files.checkpoint import TensorSource
from hydractl.files.description import Description
from hydractl.fusion.averaging import MembersRunOptions
from hydractl.log import Log
from hydractl.metrics.cascade import fit_cheapest_cascade
from hydractl.model.cost import staged_macs
from hydractl.model.loading import resolve_device, resolve_dtype
from hydractl.model.runtime import HydraModel, move


@dataclass(frozen=True)
class CascadeOptions:
    """What a cascade may lose, ``cascade_loss``, and the OOD score that decides, ``cascade_score``."""

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
) -> dict[str, Any]:
    """Fit the cascade of a fused model, and return it as its file holds it.

    Args:
        description, tensors: of the model.
        dataset, outside: labelled ID validation data, and OOD validation data by name.
        options: what it may lose.
        run, log: how members run, and who hears of it.

    Returns:
        A :class:`hydractl.metrics.cascade.Cascade`; the ``loss`` that was allowed, and the ``losses`` on the data;
        their ``share`` that goes on, and the mult-adds: their mean, of the first member, and of the others.

    Raises:
        InputError: too few samples, or none may stop.
    """
    model = HydraModel(description, tensors, resolve_device(run.device), resolve_dtype(run.dtype))
    model.cascade = None
    logits, rows = _member_logits(model, "ID", dataset, run, log)
    logits_outside = {}
    for name, data in outside.items():
        logits_outside[name], _ = _member_logits(model, name, data, run, log)
    labels = np.asarray(dataset.labels)[rows]
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
    first_macs, rest_macs = costs[fitted.cascade.member]
    losses = {name: {"value": loss.value, "upper": loss.upper} for name, loss in fitted.losses.items()}
    return {
        "member": fitted.cascade.member,
        "score": fitted.cascade.score,
        "value": fitted.cascade.value,
        "loss": options.cascade_loss,
        "losses": losses,
        "share": fitted.share,
        "macs": first_macs + fitted.share * rest_macs,
        "first_macs": first_macs,
        "rest_macs": rest_macs,
        "fitted_on": _about(dataset),
        "fitted_on_ood": {name: _about(data) for name, data in outside.items()},
    }


def _about(data: Dataset) -> dict[str, Any]:
    """Return what a document says of the data that something was fitted to."""
    return {"spec": data.spec, "n": len(data), "fingerprint": data.fingerprint()}


@torch.no_grad()
def _member_logits(
    model: HydraModel, name: str, data: Dataset, run: MembersRunOptions, log: Log
) -> tuple[np.ndarray, list[int]]:
    """Return the logits ``[M, N, C]``, float32 or float64, and which samples they are of."""
    parameter = next(model.parameters())
    wide = torch.float64 if run.dtype == "float64" else torch.float32
    rows: list[int] = []
    logits = []
    with log.progress(f"cascade on {name}", len(data), "samples") as progress:
        for batch in batches(data, model.preprocess, run.batch_size, workers=run.workers):
            inputs = move(batch.inputs, parameter.device, parameter.dtype)
            logits.append(model.member_logits(inputs).to("cpu", wide).numpy())
            rows += batch.indices
            progress.advance(len(batch.indices))
    return np.concatenate(logits, axis=1), rows
