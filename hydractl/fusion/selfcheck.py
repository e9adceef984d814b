"""A fused model proves itself: member by member against the models it was made of, before it is written."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from hydractl.checkpoint import TensorInfo, TensorSource
from hydractl.errors import HydraError
from hydractl.fusion.plan import FusionPlan
from hydractl.fusion.runtime import HydraModel, move, pooled_log_probs
from hydractl.log import Log
from hydractl.models import Source, check_finite, resolve_device

if TYPE_CHECKING:
    from hydractl.settings import FuseSettings

BATCH = 4
TOLERANCE = 1e-5
"""Largest allowed difference of logits, times max(1, largest logit), in float32."""


class _WithAveraged:
    """A member's own tensors, except that what was averaged is the average: what the fused member m must equal."""

    def __init__(self, source: TensorSource, fused: TensorSource, averaged: Sequence[str]) -> None:
        self.source, self.fused, self.averaged = source, fused, set(averaged)

    def names(self) -> list[str]:
        return self.source.names()

    def info(self, name: str) -> TensorInfo:
        return self.source.info(name)

    def read(self, name: str) -> torch.Tensor:
        return self.fused.read(name) if name in self.averaged else self.source.read(name)


@torch.inference_mode()
def self_check(plan: FusionPlan, sources: Sequence[Source], settings: FuseSettings, log: Log) -> Mapping[str, Any]:
    """Compare the fused model with its members on random inputs.

    Two comparisons: every fused member against that member run alone with the averaged weights in place (the runtime
    must be exact), and against the member as it was (what averaging changed, zero where nothing was averaged).

    Returns:
        ``member_max_abs`` (runtime error), ``merge_max_abs`` (effect of averaging), ``pool_max_abs`` (averaged
        prediction against the mean of softmaxes), each per member or overall, and the tolerance. Rounding errors are
        given as the power of ten they stay below, the rest to three digits, so that the file does not depend on how
        a machine orders its sums.

    Raises:
        HydraError: when the runtime is not exact to the tolerance.
        NonFiniteError: when weights of a member are not finite.
    """
    device = resolve_device(settings.device)
    for source in sources:
        check_finite(source.name, source.tensors)
    fused = HydraModel(plan.description, plan.tensors, device).with_classes()
    inputs = fused.example_inputs(BATCH, seed=settings.seed)
    together = fused.member_logits(inputs).double()
    runtime_error, merge_effect, alone = [], [], []
    with log.progress("self-check", len(sources), "members") as progress:
        for member, source in enumerate(sources):
            swapped = _WithAveraged(source.tensors, plan.tensors, plan.averaged)
            logits = _alike(source, swapped, fused, device).member_logits(inputs)[0].double()
            alone.append(logits)
            runtime_error.append(float((together[member] - logits).abs().max()))
            if plan.averaged:
                before = _alike(source, source.tensors, fused, device)
                before_logits = before.member_logits(move(inputs, device, torch.float32))[0].double()
                merge_effect.append(float((together[member] - before_logits).abs().max()))
            progress.advance()
    scale = max(1.0, float(together.abs().max()))
    mean_of_softmax = torch.stack(alone).softmax(-1).mean(0)
    pooled = pooled_log_probs(fused.member_logits(inputs)).double().exp()
    result = {
        "inputs": f"{BATCH} random inputs, seed {settings.seed}",
        "max_abs_logit": _three_digits(float(together.abs().max())),
        "member_max_abs": [_at_most(e) for e in runtime_error],
        "merge_max_abs": [_three_digits(e) for e in merge_effect] if plan.averaged else [0.0] * len(sources),
        "pool_max_abs": _at_most(float((pooled - mean_of_softmax).abs().max())),
        "tolerance": _three_digits(TOLERANCE * scale),
    }
    if max(runtime_error) > TOLERANCE * scale:
        raise HydraError(
            f"self-check failed: a fused member differs from the member alone by {max(runtime_error):.2e} "
            f"(allowed {TOLERANCE * scale:.2e})",
            hint="this is a defect of hydractl or of the machine's arithmetic: nothing was written",
        )
    log.info(f"self-check: fused members equal their models run alone to {max(runtime_error):.1e}")
    return result


def _alike(source: Source, tensors: TensorSource, fused: HydraModel, device: torch.device) -> HydraModel:
    """A member alone, asked for the same classes as the fused model where these are given by name."""
    model = HydraModel(source.description, tensors, device)
    return model if fused.prompted is None else model.zero_shot(fused.prompted.labels, fused.prompted.templates)


def _at_most(error: float) -> float:
    """The smallest power of ten that is not below a rounding error; everything under 1e-6 is 1e-6."""
    return float(f"1e{max(-6, math.ceil(math.log10(error)))}") if error > 0 else 1e-6


def _three_digits(value: float) -> float:
    return float(f"{value:.3g}")
