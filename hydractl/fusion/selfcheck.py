"""A fused model proves itself: member by member against the models it was made of, before it is written."""

from __future__ import annotations

import gc
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hydractl.errors import HydraError
from hydractl.files.checkpoint import LentTensors, TensorSource
from hydractl.fusion.narrow import compute_in_float32, storage_dtype
from hydractl.fusion.plan import FusionPlan
from hydractl.log import Log
from hydractl.model.checks import check_finite
from hydractl.model.loading import resolve_device
from hydractl.model.runtime import HydraModel, move, pooled_log_probs
from hydractl.model.source import Source
from hydractl.settings import FuseSettings

BATCH = 4
TOLERANCE = 1e-5
"""Largest allowed difference of logits, times max(1, largest logit), in float32."""


def _held(tensors: TensorSource, averages: _Averages) -> LentTensors:
    """Tensors on the device, of which the averaged ones are read once and stay, for all models made of them.

    The fused model has them from the plan. A member's own tensors with these in their places are what the fused
    member must equal.
    """

    def read(name: str) -> torch.Tensor:
        if name in averages.held:
            return averages.held[name]
        tensor = averages.on_device(tensors.read(name))
        if name in averages.names:
            averages.held[name] = tensor
        return tensor

    return LentTensors({name: tensors.info(name) for name in tensors.names()}, read)


class _Averages:
    """The averaged tensors of a plan, on a device and in the dtype that they are kept in."""

    def __init__(self, plan: FusionPlan, device: torch.device) -> None:
        self.names = set(plan.averaged)
        self.device, self.dtype = device, storage_dtype(plan.tensors)
        self.held: dict[str, torch.Tensor] = {}

    def on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.device, self.dtype if tensor.is_floating_point() else None)

    def same_in(self, source: Source) -> bool:
        """Whether averaging has left all weights of this member as they were."""
        return all(torch.equal(self.on_device(source.tensors.read(name)), held) for name, held in self.held.items())


@dataclass(frozen=True)
class _Asked:
    """What every model of a check is asked.

    Attributes:
        inputs: a batch, on the device.
        classes: class names and templates of the prompts, of a model whose classes are given by name; else None.
    """

    inputs: Any
    classes: tuple[Sequence[str], Sequence[str]] | None


@torch.no_grad()
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
    for source in sources:
        check_finite(source.name, source.tensors)
    averages = _Averages(plan, resolve_device(settings.device))
    asked, logits = _run_fused(plan, averages, settings.seed)
    together = logits.double()
    runtime_error, merge_effect, alone = [], [], []
    with log.progress("self-check", len(sources), "members") as progress:
        for member, source in enumerate(sources):
            alone.append(_run_alone(source, source.tensors, averages, asked))
            runtime_error.append(float((together[member] - alone[member]).abs().max()))
            progress.advance()
        same = [averages.same_in(source) for source in sources]
        averages.held.clear()
        averages.names.clear()
    if plan.averaged:
        for member, source in enumerate(sources):
            if same[member]:
                merge_effect.append(0.0)  # the member as it was is the one that has just been run
                continue
            before = _run_alone(source, source.tensors, averages, asked)
            merge_effect.append(float((together[member] - before).abs().max()))
    scale = max(1.0, float(together.abs().max()))
    mean_of_softmax = torch.stack(alone).softmax(-1).mean(0)
    pooled = pooled_log_probs(logits).double().exp()
    if not all(error <= TOLERANCE * scale for error in runtime_error):  # NaN, which max() may pass over, neither
        raise HydraError(
            f"self-check failed: a fused member differs from the member alone by {max(runtime_error):.2e} "
            f"(allowed {TOLERANCE * scale:.2e})",
            hint="this is a defect of hydractl or of the machine's arithmetic: nothing was written",
        )
    result = {
        "inputs": f"{BATCH} random inputs, seed {settings.seed}",
        "max_abs_logit": _three_digits(float(together.abs().max())),
        "member_max_abs": [_at_most(e) for e in runtime_error],
        "merge_max_abs": [_three_digits(e) for e in merge_effect] if plan.averaged else [0.0] * len(sources),
        "pool_max_abs": _at_most(float((pooled - mean_of_softmax).abs().max())),
        "tolerance": _three_digits(TOLERANCE * scale),
    }
    log.info(f"self-check: fused members equal their models run alone to {max(runtime_error):.1e}")
    return result


def _run_fused(plan: FusionPlan, averages: _Averages, seed: int) -> tuple[_Asked, torch.Tensor]:
    """What to ask, and the logits of the fused model ``[M, B, classes]``; the averages are held from here on."""
    fused = HydraModel(plan.description, _held(plan.tensors, averages), averages.device, averages.dtype).with_classes()
    compute_in_float32(fused)
    inputs = fused.family.example_inputs(plan.description.preprocess, BATCH, seed)
    classes = None if fused.prompted is None else (fused.prompted.labels, fused.prompted.templates)
    asked = _Asked(move(inputs, averages.device, torch.float32), classes)
    return asked, fused.member_logits(asked.inputs)


def _run_alone(source: Source, tensors: TensorSource, averages: _Averages, asked: _Asked) -> torch.Tensor:
    """The logits ``[B, classes]`` in float64 of a member alone, with these tensors."""
    gc.collect()  # models refer to themselves, so the one before would stay in memory beside this one
    model = HydraModel(source.description, _held(tensors, averages), averages.device, averages.dtype)
    if asked.classes is not None:
        model = model.zero_shot(*asked.classes)
    compute_in_float32(model)
    return model.member_logits(asked.inputs)[0].double()


def _at_most(error: float) -> float:
    """The smallest power of ten that is not below a rounding error; everything under 1e-6 is 1e-6."""
    return float(f"1e{max(-6, math.ceil(math.log10(error)))}") if error > 0 else 1e-6


def _three_digits(value: float) -> float:
    return float(f"{value:.3g}")
