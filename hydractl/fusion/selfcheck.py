"""Self-check of a fused model before it is written: each member against the model it was made from."""

from __future__ import annotations

import gc
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.errors import HydraError, NonFiniteError
from hydractl.files.checkpoint import LentTensors, TensorSource
from hydractl.files.description import Description
from hydractl.files.header import torch_dtype
from hydractl.fusion.plan import FusionPlan
from hydractl.log import Log
from hydractl.metrics.rows import diversity_block
from hydractl.metrics.samples import samples_of
from hydractl.model.runtime import HydraModel, log_mean_softmax, move
from hydractl.model.source import Source
from hydractl.model.stored import check_finite_weights

BATCH = 4
TOLERANCE = 1e-5
"""Largest allowed difference of logits, times max(1, largest logit), in float32."""

EFFECT = ("merge_max_abs", "merge_agreement", "merge_log_p")
"""The measures of the effect of averaging on each member."""

_OF_ANSWERS = (*EFFECT[1:], "pool_max_abs", "mi", "disagreement")
_SIXTEEN_BITS = (torch.float16, torch.bfloat16)

Classes = tuple[Sequence[str], Sequence[str]]


class _Averages:
    """The averaged tensors of a plan, on a device and in the dtype that they have there."""

    def __init__(self, plan: FusionPlan, device: torch.device) -> None:
        self.names = sorted(plan.averaged)
        self.device = device
        self.dtype = storage_dtype(plan.tensors)
        self._tensors = plan.tensors
        self._held: dict[str, Tensor] = {}

    def in_place(self, tensors: TensorSource) -> LentTensors:
        """Return tensors on the device, with the averages in the places of those that are averaged.

        A member's own tensors with these are what the fused member must equal.
        """
        averaged = set(self.names)

        def read(name: str) -> Tensor:
            if name in averaged:
                return self.read(name)
            return self.on_device(tensors.read(name))

        return LentTensors({name: tensors.info(name) for name in tensors.names()}, read)

    def read(self, name: str) -> Tensor:
        """Read one average. It stays in memory for all models made of it, unless its weights are in 16 bits."""
        if name not in self._held:
            tensor = self.on_device(self._tensors.read(name))
            if self.dtype in _SIXTEEN_BITS:
                return tensor
            self._held[name] = tensor
        return self._held[name]

    def drop(self) -> None:
        """Average nothing any more, and free the averages."""
        self._held.clear()
        self.names.clear()

    def on_device(self, tensor: Tensor) -> Tensor:
        """Move a tensor to the device; floating point numbers also to the dtype."""
        dtype = self.dtype if tensor.is_floating_point() else None
        return tensor.to(self.device, dtype)

    def same_in(self, source: Source) -> bool:
        """Return whether averaging has left all weights of this member as they were."""
        for name in self.names:
            weight = self.on_device(source.tensors.read(name))
            if not torch.equal(weight, self.read(name)):
                return False
        return True


@torch.no_grad()
def self_check(
    plan: FusionPlan, sources: Sequence[Source], device: torch.device, seed: int, log: Log
) -> dict[str, Any]:
    """Compare the fused model with its members on random inputs.

    Two comparisons: every fused member against that member run alone with the averaged weights in place (the runtime
    must be exact), and against the member as it was (what averaging changed, zero where nothing was averaged).

    Returns:
        ``member_max_abs`` (runtime error), what :func:`moved_answers` says of averaging, ``pool_max_abs`` (averaged
        prediction against the mean of softmaxes), each per member or overall, the tolerance, and how much the fused
        members differ (``mi``, ``disagreement``). Of bodies, whose features are no answers, only what compares numbers.
        Rounding errors are given as the power of ten they stay below, the rest to three digits, so that the file does
        not depend on how a machine orders its sums.

    Raises:
        HydraError: when the runtime is not exact to the tolerance.
        NonFiniteError: when weights of a member are not finite.
    """
    for source in sources:
        check_finite_weights(source.name, source.tensors)
    averages = _Averages(plan, device)
    inputs, classes, logits = _run_fused(plan, averages, seed)
    together = logits.double()
    alone: list[Tensor] = []
    runtime_errors: list[float] = []
    with log.progress("self-check", len(sources), "members") as progress:
        for member, source in enumerate(sources):
            member_alone = _run_alone(source, averages, inputs, classes)
            if not member_alone.isfinite().all():
                raise NonFiniteError(f"{source.name} gives logits that are NaN or infinite")
            alone.append(member_alone)
            runtime_errors.append(float((together[member] - member_alone).abs().max()))
            progress.advance()
        gc.collect()  # of the last member
        unchanged = [averages.same_in(source) for source in sources]
        averages.drop()
    before = []
    for member, source in enumerate(sources):
        # Where nothing was averaged or averaging changed nothing, the member as it was is the one that has just run.
        before.append(together[member] if unchanged[member] else _run_alone(source, averages, inputs, classes))
    max_abs_logit = float(together.abs().max())
    tolerance = TOLERANCE * max(1.0, max_abs_logit)
    mean_of_softmax = torch.stack(alone).softmax(-1).mean(0)
    pooled = log_mean_softmax(logits).double().exp()
    if not all(error <= tolerance for error in runtime_errors):  # NaN, which max() may pass over, neither
        raise HydraError(
            f"self-check failed: a fused member differs from the member alone by {max(runtime_errors):.2e} "
            f"(allowed {tolerance:.2e})",
            hint="this is a defect of hydractl or of the machine's arithmetic: nothing was written",
        )
    result: dict[str, Any] = {
        "inputs": f"{BATCH} random inputs, seed {seed}",
        "max_abs_logit": to_three_digits(max_abs_logit),
        "member_max_abs": [_at_most(error) for error in runtime_errors],
    }
    result.update(moved_answers(torch.stack(before), together, tolerance))
    pool_error = float((pooled - mean_of_softmax).abs().max())
    result["pool_max_abs"] = _at_most(pool_error)
    result["tolerance"] = to_three_digits(tolerance)
    for key, value in diversity_block(samples_of(together.cpu().numpy())).items():
        result[key] = None if value is None else round(value, 6)
    if sources[0].classes == 0:
        for key in _OF_ANSWERS:
            result.pop(key, None)
    log.info(f"self-check: fused members equal their models run alone to {max(runtime_errors):.1e}")
    return result


def moved_answers(before: Tensor, after: Tensor, tolerance: float) -> dict[str, list[float]]:
    """Measure the effect of averaging on each member's answers, from logits ``[M, B, classes]`` before and after it.

    Returns:
        For each member ``merge_max_abs``: the largest change of a logit; ``merge_agreement``: the share of inputs whose
        most probable class stays so, but for ties to the tolerance; ``merge_log_p``: the mean change of log p, in nats.
    """
    # After averaging, the logit of the class that was most probable before: [M, B].
    logit_of_answer = after.gather(-1, before.argmax(-1, keepdim=True)).squeeze(-1)
    same_answer = after.amax(-1) - logit_of_answer <= tolerance
    shift_of_log_p = after.log_softmax(-1) - before.log_softmax(-1)
    effect = {  # [M] each
        "merge_max_abs": (after - before).abs().amax((1, 2)),
        "merge_agreement": same_answer.double().mean(1),
        "merge_log_p": shift_of_log_p.abs().mean((1, 2)),
    }
    return {key: [to_three_digits(value) for value in of_members.tolist()] for key, of_members in effect.items()}


def _run_fused(plan: FusionPlan, averages: _Averages, seed: int) -> tuple[Any, Classes | None, Tensor]:
    """Return the inputs of a check, class names and templates, and the fused model's logits ``[M, B, classes]``.

    Class names and templates are those of the prompts, for a model whose classes are given by name; else None.
    """
    device = averages.device
    tensors = averages.in_place(plan.tensors)
    fused = float32_model(plan.description, tensors, device, averages.dtype).with_classes()
    examples = fused.family.example_inputs(plan.description.preprocess, BATCH, seed)
    inputs = move(examples, device, torch.float32)
    classes: Classes | None = None
    if fused.prompted is not None:
        classes = (fused.prompted.labels, fused.prompted.templates)
    return inputs, classes, fused.member_logits(inputs)


def _run_alone(source: Source, averages: _Averages, inputs: Any, classes: Classes | None) -> Tensor:
    """Compute the logits ``[B, classes]`` in float64 of a member alone, with the averages that are held in place."""
    gc.collect()  # models refer to themselves, so the one before would stay in memory beside this one
    tensors = averages.in_place(source.tensors)
    model = float32_model(source.description, tensors, averages.device, averages.dtype)
    if classes is not None:
        labels, templates = classes
        model = model.zero_shot(labels, templates)
    return model.member_logits(inputs)[0].double()


def _at_most(error: float) -> float:
    """Return the smallest power of ten that is not below a rounding error; everything under 1e-6 is 1e-6."""
    if error <= 0:
        return 1e-6
    exponent = max(-6, math.ceil(math.log10(error)))
    return float(f"1e{exponent}")


def to_three_digits(value: float) -> float:
    """Round a measured number to three digits, as files hold it: what lies beyond is rounding of the machine."""
    return float(f"{value:.3g}")


# --- weights of 16 bits: blocks read theirs when they run, and compute in float32 -------------------------------------


def storage_dtype(tensors: TensorSource) -> torch.dtype:
    """Return the dtype to keep weights in that compute in float32: the 16-bit one that all have, else float32."""
    dtypes = {torch_dtype(tensors.info(name)) for name in tensors.names()}
    floating = [dtype for dtype in dtypes if dtype.is_floating_point]
    if len(floating) == 1 and floating[0] in _SIXTEEN_BITS:
        return floating[0]
    return torch.float32


def float32_model(
    description: Description, tensors: TensorSource, device: torch.device, dtype: torch.dtype
) -> HydraModel:
    """Build a model that computes in float32, for inference only; weights of 16 bits take little memory.

    Of a model in 16 bits,

    * each block reads its weights from the file when it runs, as float32;
    * tables of embeddings stay in 16 bits, and the rows that are looked up become float32;
    * everything else is small, and becomes float32 here.
    """
    streamed = dtype in _SIXTEEN_BITS
    model = HydraModel(description, tensors, device, dtype, streamed=streamed)
    if not streamed:
        return model
    model.batched = False  # stacked weights would be read past their modules
    for module in model.modules():
        if type(module) is nn.Embedding:
            module.register_forward_hook(lambda _module, _inputs, rows: rows.float())
            continue
        for weight in module.parameters(recurse=False):
            weight.data = weight.data.float()  # those of blocks are empty places of float32 already, and stay so
    return model
