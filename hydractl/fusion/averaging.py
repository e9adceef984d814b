"""Whether averaging leaves members what they are: how far their weights lie from the mean, and what becomes of answers.

Weights that were trained from one start lie close together, and their mean is a model like them; weights drawn
independently do not, and their mean is no model at all. Inputs alone do not tell: random ones are unlike any data, so
averaging may change few answers on them that is fatal on data, and many where it harms none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hydractl.data import batches
from hydractl.data.base import Dataset
from hydractl.families.base import MERGEABLE
from hydractl.files.checkpoint import read_piece
from hydractl.fusion.plan import PIECE, FusionPlan, plan_fusion
from hydractl.fusion.selfcheck import EFFECT, self_check, to_three_digits
from hydractl.log import Log
from hydractl.metrics.samples import samples_of
from hydractl.model.cost import parameters
from hydractl.model.loading import ModelArgument, Runnable, resolve_device, resolve_dtype
from hydractl.model.matching import known
from hydractl.model.runtime import HydraModel, move
from hydractl.model.source import Source

AUTO = ["auto"]

APART = 0.4
"""Largest relative distance from the mean of members that come from one base: 0.7 and more where they do not."""

MOVED = 1.0
"""Largest mean shift of log p, in nats, that leaves a member's answers what they were."""


@dataclass(frozen=True)
class MembersRunOptions:
    """Options of running the members on data, under the names of the command line."""

    device: str
    dtype: str
    batch_size: int
    workers: int


@dataclass(frozen=True)
class CheckedFusion:
    """A fusion that is decided and checked.

    Attributes:
        plan: of the fused model.
        check: its self-check.
        averaging: what averaging does, whether or not it is done; None where nobody asked for it.
    """

    plan: FusionPlan
    check: dict[str, Any]
    averaging: dict[str, Any] | None


def plan_checked(
    sources: Sequence[Source], merge: Sequence[str], device: torch.device, seed: int, log: Log
) -> CheckedFusion:
    """Plan a fusion and check it; with ``auto``, decide whether members are averaged or kept whole.

    Args:
        sources: the members.
        merge: as of :func:`hydractl.fusion.plan.plan_fusion`, or :data:`AUTO`.
        device: where to compute.
        seed: draws the inputs of the check.
        log: receives warnings and the check.

    Raises:
        HydraError: as :func:`hydractl.fusion.selfcheck.self_check` does.
    """
    is_auto = merge == AUTO
    plan = plan_fusion(sources, MERGEABLE if is_auto else merge)
    for warning in plan.warnings:
        log.warn(warning)
    check = self_check(plan, sources, device, seed, log)
    if not plan.averaged:
        return CheckedFusion(plan, check, None)
    distance = distances(plan, sources)
    shifts_of_log_p = check.get("merge_log_p", [0.0])
    is_harmful = max(distance) > APART or max(shifts_of_log_p) > MOVED
    kept_whole = is_auto and is_harmful
    averaging: dict[str, Any] = {
        "asked": "auto" if is_auto else list(merge),
        "parts": list(plan.description.merge or ()),
        "done": not kept_whole,
        "harmful": is_harmful,
        "distance": distance,
        "limits": {"distance": APART, "log_p": MOVED},
    }
    for key in EFFECT:
        if key in check:
            averaging[key] = check[key]
    averaging["parameters"] = parameters(plan.tensors)
    if kept_whole:
        plan = plan_fusion(sources, [])
        check = self_check(plan, sources, device, seed, log)
    return CheckedFusion(plan, check, averaging)


def distances(plan: FusionPlan, sources: Sequence[Source]) -> list[float]:
    """Return how far the averaged weights of each member lie from their mean, relative to their own size.

    The root mean square, over elements, of ``|w - mean| / |w|`` of each tensor: in one norm over all of them the ones
    of layer norms, which independent models have in common, would hide the rest.
    """
    squares = np.zeros(len(sources))
    elements = 0
    for name in plan.averaged:
        count = plan.tensors.info(name).numel
        squares += count * _relative_squares(name, count, sources)
        elements += count
    distance = np.sqrt(squares / max(1, elements))
    return [to_three_digits(value) for value in distance.tolist()]


def _relative_squares(name: str, count: int, sources: Sequence[Source]) -> np.ndarray:
    """Compute ``|w - mean|^2 / |w|^2`` of one tensor in each member, ``[M]``; 0 where nothing differs."""
    apart = np.zeros(len(sources))
    size = np.zeros(len(sources))
    for start in range(0, count, PIECE):
        stop = min(start + PIECE, count)
        pieces = [read_piece(source.tensors, name, start, stop).double() for source in sources]
        weights = torch.stack(pieces)  # [M, elements]
        size += weights.square().sum(1).numpy()
        all_equal = all(torch.equal(pieces[0], other) for other in pieces[1:])
        if not all_equal:  # rounding of the mean would move equal ones apart
            from_mean = weights - weights.mean(0)
            apart += from_mean.square().sum(1).numpy()
    of_zeros = (apart > 0).astype(float)  # a member whose weights are all zero is wholly apart, or not at all
    return np.divide(apart, size, out=of_zeros, where=size > 0)


@torch.no_grad()
def measure_on(
    dataset: Dataset, plan: FusionPlan, members: Sequence[Source], run: MembersRunOptions, log: Log
) -> dict[str, Any]:
    """Measure what averaging does to accuracy on labelled data.

    Returns:
        ``data`` (fingerprint) and ``n``; ``before`` and ``after`` averaging, each with the accuracy of the ``members``
        and of the ``ensemble``, whose prediction is the mean of their softmaxes, ``mi`` and ``disagreement``.
    """
    fused = HydraModel(plan.description, plan.tensors, resolve_device(run.device), resolve_dtype(run.dtype))
    first = members[0].description
    if fused.classes is None and first.labels is not None:
        templates = list(first.prompt) if first.prompt else None
        fused = fused.zero_shot(first.labels, templates)
    # Where nothing was averaged, the members are those of the fused model, as its self-check has found.
    before_averaging: Runnable = fused
    if plan.averaged:
        before_averaging = ModelArgument("members", members).build(run.device, run.dtype)
    totals_before = np.zeros(len(members) + 3)
    totals_after = np.zeros(len(members) + 3)
    parameter = next(fused.parameters())
    with log.progress("members on data", len(dataset), "samples") as progress:
        for batch in batches(dataset, fused.preprocess, run.batch_size, workers=run.workers):
            inputs = move(batch.inputs, parameter.device, parameter.dtype)
            labels = known(batch.labels).numpy()
            if plan.averaged:
                totals_before += _sums(before_averaging.member_logits(inputs), labels)
            totals_after += _sums(fused.member_logits(inputs), labels)
            progress.advance(len(labels))
    if not plan.averaged:
        totals_before = totals_after
    n = len(dataset)
    pairs = max(1, len(members) * (len(members) - 1) // 2)
    before = _measured(totals_before / n, pairs)
    after = _measured(totals_after / n, pairs)
    return {"data": dataset.fingerprint(), "n": n, "before": before, "after": after}


def _measured(means: np.ndarray, pairs: int) -> dict[str, Any]:
    """Name the means over samples of what :func:`_sums` adds up, of members that are so many pairs."""
    return {
        "members": means[:-3].tolist(),
        "ensemble": means[-3],
        "mi": round(means[-2], 6),
        "disagreement": means[-1] / pairs,
    }


def _sums(logits: torch.Tensor, labels: np.ndarray) -> list[float]:
    """Sum over a batch: right answers of each member and of their mean, mutual information, pairs that disagree.

    Args:
        logits: ``[M, B, classes]``.
        labels: ``[B]``.
    """
    samples = samples_of(logits.float().cpu().numpy(), labels, pairs=False)
    correct_of_members = (samples.votes == labels).sum(1).tolist()
    correct_together = samples.total("correct")
    mutual_information = samples.mean("mi") * len(labels)
    return [*correct_of_members, correct_together, mutual_information, samples.total("differing_pairs")]
