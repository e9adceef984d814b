"""How a model fares as heads are removed in one order: nested masks of one ranking (paper B.3, Figure 5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from hydractl.criteria.cahp.head_choice import Batches
from hydractl.errors import InputError
from hydractl.files.head_documents import ranking_from_json, scores_from_json
from hydractl.heads.mask import Head, all_heads
from hydractl.heads.selection import lowest
from hydractl.log import Log
from hydractl.metrics.ood import OOD_SCORES
from hydractl.metrics.rows import group_averages, id_metrics, ood_metrics
from hydractl.model.runtime import HydraModel


def removal_order(document: Any, model: HydraModel, origin: str) -> list[Head]:
    """Heads from the first to be removed to the last.

    Args:
        document: of ``hydractl score`` (every head with a score, the lowest first) or of ``hydractl extract-circuit``.
        model: whose heads they are.
        origin: for messages.

    Raises:
        InputError: for a document that is neither, or of another model.
    """
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema == "hydractl.circuit/2":
        return list(ranking_from_json(document, model.sites, origin).removed)
    if schema == "hydractl.scores/1":
        scores = scores_from_json(document, model.sites, origin)
        return lowest(scores, [head for head in all_heads(model.sites) if head[0] in scores.scores])
    raise InputError(f"{origin} holds neither scores nor a circuit")


@contextmanager
def without_heads(model: HydraModel, removed: Iterable[Head]) -> Iterator[None]:
    """Inside, a dense model of one member runs as if it had been pruned of these heads."""
    gone = set(removed)
    parameter = next(model.parameters())
    try:
        for site, attention in zip(model.sites, model.attentions, strict=True):
            kept = [float((site.path, head) not in gone) for head in range(site.heads)]
            attention.head_gate = torch.tensor([kept], device=parameter.device, dtype=parameter.dtype)
        yield
    finally:
        for attention in model.attentions:
            attention.head_gate = None


@torch.inference_mode()
def logits_of(model: HydraModel, batches: Batches) -> np.ndarray:
    """Member logits ``[M, N, C]`` in float64, in the order of the batches."""
    parts = [model.member_logits(inputs).double().cpu().numpy() for inputs, _ in batches]
    return np.concatenate(parts, axis=1)


def removal_curve(
    model: HydraModel,
    order: Sequence[Head],
    counts: Sequence[int],
    inside: Batches,
    outside: Mapping[str, Batches],
    log: Log,
    *,
    title: str = "heads removed",
    ood_score: Callable[[np.ndarray], np.ndarray] = OOD_SCORES["msp"],
) -> list[dict[str, Any]]:
    """The metrics of a dense model without the first n heads of an order, for several n.

    Args:
        model: one member, all its heads.
        order: heads, the first to be removed first.
        counts: how many to remove, none above the length of the order.
        inside: labelled.
        outside: OOD sets by name; labels do not count.
        log: where progress is shown.
        title: of the task.
        ood_score: higher means more OOD.

    Returns:
        For each count ``{"removed", "id": {...}, "ood": {NAME: {...}}, "ood_avg": {...}}``, as ``hydractl eval`` has
        them.

    Raises:
        InputError: where the order is too short.
    """
    if max(counts, default=0) > len(order):
        raise InputError(f"{title}: the order has {len(order)} heads, {max(counts)} are to be removed")
    labels = np.concatenate([known.cpu().numpy() for _, known in inside])
    rows = []
    with log.progress(title, len(counts), "numbers of heads") as progress:
        for count in counts:
            with without_heads(model, order[:count]):
                known = logits_of(model, inside)
                strange = {name: logits_of(model, batches) for name, batches in outside.items()}
            scores = ood_score(known)
            sets = {name: ood_metrics(scores, ood_score(one)).to_dict() for name, one in strange.items()}
            row = {"id": id_metrics(known, labels).to_dict(), "ood": sets, "ood_avg": group_averages(sets)["ood_avg"]}
            rows.append({"removed": count, **row})
            progress.advance()
    return rows
