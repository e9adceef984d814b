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
from hydractl.fusion.averaging import RunOptions
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
    run: RunOptions,
    log: Log,
) -> dict[str, Any]:
    """The cascade of a fused model, as its file holds it.

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
    inside = _member_logits(model, "ID", dataset, run, log)
    apart = {name: _member_logits(model, name, data, run, log)[0] for name, data in outside.items()}
    labels = np.asarray(dataset.labels)[inside[1]]
    costs = staged_macs(description, tensors)
    score, allowed = options.cascade_score, options.cascade_loss
    found = fit_cheapest_cascade(inside[0], labels, apart, score, allowed, costs)
    if found is None:
        raise InputError(
            f"--cascade: no sample may stop at the first member for a loss of {options.cascade_loss:g}",
            hint="allow more (--cascade-loss), let another score decide (--cascade-score), or give more samples",
        )
    first, rest = costs[found.cascade.member]
    return {
        "member": found.cascade.member,
        "score": found.cascade.score,
        "value": found.cascade.value,
        "loss": options.cascade_loss,
        "losses": {name: {"value": loss.value, "upper": loss.upper} for name, loss in found.losses.items()},
        "share": found.share,
        "macs": first + found.share * rest,
        "first_macs": first,
        "rest_macs": rest,
        "fitted_on": _about(dataset),
        "fitted_on_ood": {name: _about(data) for name, data in outside.items()},
    }


def _about(data: Dataset) -> dict[str, Any]:
    return {"spec": data.spec, "n": len(data), "fingerprint": data.fingerprint()}


@torch.no_grad()
def _member_logits(
    model: HydraModel, name: str, data: Dataset, run: RunOptions, log: Log
) -> tuple[np.ndarray, list[int]]:
    """Logits ``[M, N, C]``, float32 or float64, and which samples they are of."""
    parameter, wide = next(model.parameters()), torch.float64 if run.dtype == "float64" else torch.float32
    rows: list[int] = []
    found = []
    with log.progress(f"cascade on {name}", len(data), "samples") as progress:
        for batch in batches(data, model.preprocess, run.batch_size, workers=run.workers):
            inputs = move(batch.inputs, parameter.device, parameter.dtype)
            found.append(model.member_logits(inputs).to("cpu", wide).numpy())
            rows += batch.indices
            progress.advance(len(batch.indices))
    return np.concatenate(found, axis=1), rows
