"""The effect of averaging on members: how far their weights lie from the mean, and how their answers change.

Weights that were trained from one start lie close together, and their mean is a model like them. Weights that were
drawn independently do not, and their mean is no useful model. Answers on random inputs alone do not tell the two apart:
such inputs are unlike any data, so averaging may change few answers on them and be fatal on data, or change many and
do no harm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hydractl.data import batches
from hydractl.data.base import Dataset, left_out_warnings, orientation_warnings
from hydractl.data.text import cut_warning
from hydractl.families.base import MERGEABLE
from hydractl.files.checkpoint import read_piece
from hydractl.files.fuse_answer import AnswersRecord, AveragingLimits, AveragingRecord, OnDataRecord, SelfCheckRecord
from hydractl.fusion.plan import PIECE, FusionPlan, plan_fusion
from hydractl.fusion.selfcheck import self_check, to_three_digits
from hydractl.log import Log
from hydractl.metrics.samples import samples_of
from hydractl.model.cost import parameters
from hydractl.model.loading import ModelArgument, Runnable, resolve_device, resolve_dtype
from hydractl.model.matching import known
from hydractl.model.runtime import HydraModel, move
from hydractl.model.source import Source

AUTO = ["auto"]

APART = 0.4
"""The largest relative distance from the mean at which members still count as coming from one base.

Members that were drawn independently have 0.7 or more.
"""

MOVED = 1.0
"""The largest mean shift of log p, in nats, at which a member's answers count as unchanged."""

_FIGURES_OF_ENSEMBLE = 3
"""How many figures of the ensemble follow those of the members: accuracy, mutual information and differing pairs."""


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
    """Plan a fusion and check it; with ``auto``, decide whether members are averaged or kept whole.

    Args:
        sources: the members.
        merge: the parts to average, any of ``mlp``, ``norm`` and ``embed``; or :data:`AUTO`.
        device: the device to compute on.
        seed: draws the inputs of the check.
        log: receives warnings and the check.

    Raises:
        HydraError: a member inside the fused model does not give the same answers as the member run alone.
    """
    # Average the parts that were asked for; with ``auto`` all parts, at first.
    is_auto = merge == AUTO
    parts = MERGEABLE if is_auto else merge
    plan = plan_fusion(sources, parts)
    log.warn_all(plan.warnings)
    check = self_check(plan, sources, device, seed, log)
    if not plan.averaged:
        return CheckedFusion(plan, check, None)

    # Measure the effect. It is harmful if members lie too far apart, or if their answers change too much.
    member_distances = distances(plan, sources)
    shifts_of_log_p: Sequence[float] = [0.0] if check.merge_log_p is None else check.merge_log_p
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

    # If ``auto`` finds it harmful, average nothing.
    if kept_whole:
        plan = plan_fusion(sources, [])
        check = self_check(plan, sources, device, seed, log)
    return CheckedFusion(plan, check, averaging)


def distances(plan: FusionPlan, sources: Sequence[Source]) -> list[float]:
    """Return how far the averaged weights of each member lie from their mean, relative to their own size, ``[M]``.

    This is the root mean square, over elements, of ``|w - mean| / |w|`` of each tensor. One norm over all tensors would
    be dominated by the ones in layer norms, which even independent models have in common.
    """
    squares = np.zeros(len(sources))
    elements = 0

    # Each tensor counts by its number of elements. If it is equal in all members, none lies apart.
    for name in plan.averaged:
        count = plan.tensors.info(name).numel
        elements += count
        if name not in plan.tensors.equal:
            squares += count * _relative_squares(name, count, sources)
    root_mean_squares = np.sqrt(squares / max(1, elements))
    return [to_three_digits(value) for value in root_mean_squares.tolist()]


def _relative_squares(name: str, count: int, sources: Sequence[Source]) -> np.ndarray:
    """Return ``|w - mean|^2 / |w|^2`` of one tensor for each member, ``[M]``; 0 if the members are equal.

    Args:
        name: the stock name of the tensor.
        count: the number of its elements.
        sources: the members.
    """
    squared_distances = np.zeros(len(sources))
    squared_sizes = np.zeros(len(sources))

    # Add up in pieces, to read only a piece of each member at a time.
    for start in range(0, count, PIECE):
        stop = min(start + PIECE, count)
        pieces = [read_piece(source.tensors, name, start, stop).double() for source in sources]
        weights = torch.stack(pieces)  # [M, elements]
        squared_sizes += weights.square().sum(1).numpy()

        # Equal weights have distance 0; computed, it might not be 0, as their mean is rounded.
        first = pieces[0]
        are_equal = all(torch.equal(first, other) for other in pieces[1:])
        if not are_equal:
            from_mean = weights - weights.mean(0)
            squared_distances += from_mean.square().sum(1).numpy()

    # If a member's weights are all zero, its distance is 1 from a mean that is not zero, and 0 otherwise.
    relative = (squared_distances > 0).astype(float)
    has_size = squared_sizes > 0
    return np.divide(squared_distances, squared_sizes, out=relative, where=has_size)


@torch.no_grad()
def measure_on(
    dataset: Dataset,
    plan: FusionPlan,
    members: Sequence[Source],
    *,
    device: str,
    dtype: str,
    batch_size: int,
    workers: int | None,
    log: Log,
) -> OnDataRecord:
    """Measure the effect of averaging on accuracy, on labelled data.

    Args:
        dataset: the labelled data.
        plan: the plan of the fusion.
        members: the models that are fused.
        device, dtype: the values of ``--device`` and ``--dtype``.
        batch_size: the number of samples that run together.
        workers: the number of processes that read data; None leaves it to the device and the data.
        log: receives the progress.

    Returns:
        The accuracy and diversity of the members before averaging, and of the fused model.
    """
    fused = HydraModel(plan.description, plan.tensors, resolve_device(device), resolve_dtype(dtype))
    first = members[0].description

    # A zero-shot model gets class names and prompt from the first member.
    if fused.classes is None and first.labels is not None:
        templates = list(first.prompt) if first.prompt else None
        fused = fused.zero_shot(first.labels, templates)

    # If nothing was averaged, the fused model gives the members' own answers, as its self-check has found.
    before_averaging: Runnable | None = None
    if plan.averaged:
        before_averaging = ModelArgument("members", members).build(device, dtype)

    log.warn_all(left_out_warnings(dataset))
    log.warn_all([cut_warning(dataset, fused.preprocess)])
    # Sum the figures of each sample over all batches.
    totals_before = np.zeros(len(members) + _FIGURES_OF_ENSEMBLE)
    totals_after = np.zeros(len(members) + _FIGURES_OF_ENSEMBLE)
    parameter = next(fused.parameters())
    with log.progress("members on data", len(dataset), "samples") as progress:
        for batch in batches(dataset, fused.preprocess, batch_size, workers=workers):
            inputs = move(batch.inputs, parameter.device, parameter.dtype)
            labels = known(batch.labels).numpy()
            if before_averaging is not None:
                totals_before += _sums_over_batch(before_averaging.member_logits(inputs), labels)
            totals_after += _sums_over_batch(fused.member_logits(inputs), labels)
            progress.advance(len(labels))
    log.warn_all(orientation_warnings(dataset))
    if before_averaging is None:
        totals_before = totals_after

    # Divide the sums by the number of samples.
    n = len(dataset)
    return OnDataRecord(
        data=dataset.fingerprint(),
        n=n,
        before=_record_of_means(totals_before / n),
        after=_record_of_means(totals_after / n),
    )


def _record_of_means(means: np.ndarray) -> AnswersRecord:
    """Return the figures of a document from means over samples.

    Args:
        means: the means of the figures that :func:`_sums_over_batch` adds up, in their order, ``[M + 3]``.
    """
    accuracies = means[:-_FIGURES_OF_ENSEMBLE]
    ensemble_accuracy, mutual_information, differing_pairs = means[-_FIGURES_OF_ENSEMBLE:]
    pairs = max(1, math.comb(len(accuracies), 2))
    return AnswersRecord(
        members=accuracies.tolist(),
        ensemble=ensemble_accuracy,
        mi=round(mutual_information, 6),
        disagreement=differing_pairs / pairs,
    )


def _sums_over_batch(logits: torch.Tensor, labels: np.ndarray) -> list[float]:
    """Return the figures of each sample, summed over a batch, ``[M + 3]``.

    First come the right answers of each member, then the figures of the ensemble: its right answers, the mutual
    information in nats, and the pairs of members that vote for different classes.

    Args:
        logits: ``[M, B, classes]``.
        labels: ``[B]``.
    """
    samples = samples_of(logits.float().cpu().numpy(), labels, pairs=False)
    is_correct = samples.votes == labels  # [M, B]
    mutual_information = samples.mean("mi") * len(labels)
    return [
        *is_correct.sum(1).tolist(),
        samples.total("correct"),
        mutual_information,
        samples.total("differing_pairs"),
    ]
