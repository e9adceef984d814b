"""The effect of averaging on members: how far their weights lie from the mean, and how their answers change.

Weights that were trained from one start lie close together, and their mean is a model like them. Weights that were
drawn independently do not, and their mean is no useful model. Answers on random inputs alone do not tell the two apart:
such inputs are unlike any data, so averaging may change few answers on them and be fatal on data, or change many and
do no harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hydractl.families.base import MERGEABLE
from hydractl.files.fuse_answer import AveragingLimits, AveragingRecord, SelfCheckRecord
from hydractl.fusion.plan import FusionPlan, pieces_of, plan_fusion
from hydractl.fusion.selfcheck import self_check, to_three_digits
from hydractl.log import Log
from hydractl.model.cost import parameters
from hydractl.model.source import Source

AUTO = ["auto"]

APART = 0.4
"""The largest relative distance from the mean at which members still count as coming from one base.

Members that were drawn independently have 0.7 or more.
"""

MOVED = 1.0
"""The largest mean shift of log p, in nats, at which a member's answers count as unchanged."""


@dataclass(frozen=True)
class CheckedFusion:
    """A fusion that is planned and checked.

    Attributes:
        plan: the plan of the fusion.
        check: the self-check of the fused model.
        averaging: the effect of averaging, even if ``auto`` decided against it; None if it was not asked for.
    """

    plan: FusionPlan
    check: SelfCheckRecord
    averaging: AveragingRecord | None


def plan_checked(
    sources: Sequence[Source], merge: Sequence[str], device: torch.device, seed: int, log: Log
) -> CheckedFusion:
    """Return the plan of a fusion with its checks, and the measured effect of averaging if anything is averaged.

    With ``auto``, averaging is tried first, and everything is kept whole if that is harmful. Parts that are named are
    averaged even then; the record says so.

    Args:
        sources: the members.
        merge: the parts to average, any of ``mlp``, ``norm`` and ``embed``; or :data:`AUTO`.
        device: the device to compute on.
        seed: draws the inputs of the check.
        log: receives warnings and the check.

    Raises:
        HydraError: a member inside the fused model does not give the same answers as the member run alone.
    """
    # Plan to average the parts that were asked for; with ``auto`` all parts, at first. The check runs the members.
    is_auto = merge == AUTO
    parts = MERGEABLE if is_auto else merge
    plan = plan_fusion(sources, parts)
    log.warn_all(plan.warnings)
    check = self_check(plan, sources, device, seed, log)
    if not plan.averaged:
        return CheckedFusion(plan, check, None)

    # Measure the effect. It is harmful if members lie too far apart, or if their answers change too much.
    member_distances = distances(plan, sources)
    shifts_of_log_p: Sequence[float] = [0.0] if check.merge_log_p is None else check.merge_log_p  # None: no classes
    is_harmful = max(member_distances) > APART or max(shifts_of_log_p) > MOVED
    kept_whole = is_auto and is_harmful

    # The record for the file, whether the average is used or not.
    averaging = AveragingRecord(
        asked="auto" if is_auto else list(merge),
        parts=list(plan.description.merge or ()),
        done=not kept_whole,
        harmful=is_harmful,
        distance=member_distances,
        limits=AveragingLimits(distance=APART, log_p=MOVED),
        merge_max_abs=check.merge_max_abs,
        merge_agreement=check.merge_agreement,
        merge_log_p=check.merge_log_p,
        parameters=parameters(plan.tensors),
    )

    # If ``auto`` finds it harmful, average nothing: another plan, with a check of its own.
    if kept_whole:
        plan_without_averages = plan_fusion(sources, [])
        check_without_averages = self_check(plan_without_averages, sources, device, seed, log)
        return CheckedFusion(plan_without_averages, check_without_averages, averaging)
    return CheckedFusion(plan, check, averaging)


def distances(plan: FusionPlan, sources: Sequence[Source]) -> list[float]:
    """Return how far the averaged weights of each member lie from their mean, relative to their own size, ``[M]``.

    This is the root mean square, over elements, of ``|w - mean| / |w|`` of each tensor: a tensor with a ratio of 0.3
    and one of the same size that is equal in all members give ``sqrt((0.3^2 + 0) / 2) = 0.21``. One norm over all
    tensors would be dominated by the ones in layer norms, which even independent models have in common.
    """
    squares = np.zeros(len(sources))  # of each member, the squared ratio of each tensor times its number of elements
    elements = 0

    # A tensor that is equal in all members adds elements alone.
    for name in plan.averaged:
        count = plan.tensors.info(name).numel
        elements += count
        if name not in plan.tensors.equal:
            squared_distances = np.zeros(len(sources))  # |w - mean|^2 of each member
            squared_sizes = np.zeros(len(sources))  # |w|^2

            for pieces in pieces_of([source.tensors for source in sources], name):
                weights = torch.stack(pieces).double()  # [M, elements]
                squared_sizes += weights.square().sum(1).numpy()

                # Equal weights have distance 0; computed, it might not be 0, as their mean is rounded.
                if any(not torch.equal(pieces[0], other) for other in pieces[1:]):
                    from_mean = weights - weights.mean(0)
                    squared_distances += from_mean.square().sum(1).numpy()

            # If a member's weights are all zero, its distance is 1 from a mean that is not zero, and 0 otherwise.
            relative = (squared_distances > 0).astype(float)
            has_size = squared_sizes > 0
            squares += count * np.divide(squared_distances, squared_sizes, out=relative, where=has_size)
    root_mean_squares = np.sqrt(squares / max(1, elements))
    return [to_three_digits(value) for value in root_mean_squares.tolist()]
