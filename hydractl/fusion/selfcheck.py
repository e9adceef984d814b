"""Self-check of a fused model before it is written: each member is compared with the model it was made from."""

from __future__ import annotations

import gc
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.errors import HydraError, NonFiniteError
from hydractl.files.checkpoint import LentTensors, TensorSource
from hydractl.files.description import Description
from hydractl.files.fuse_answer import SelfCheckRecord
from hydractl.files.header import torch_dtype
from hydractl.fusion.plan import FusionPlan
from hydractl.log import Log
from hydractl.metrics.rows import diversity_values
from hydractl.metrics.samples import samples_of
from hydractl.model.attention import HeadAttention
from hydractl.model.cost import macs
from hydractl.model.runtime import HydraModel, log_mean_softmax, move
from hydractl.model.source import Source
from hydractl.model.stored import check_finite_weights

INPUTS = 4
"""The number of random inputs."""
INPUTS_OF_A_BIG_MODEL = 2
"""The same where nothing hangs on them but that the fused model equals its members; a single one would hide samples
that are mixed up."""
TOKENS_OF_A_BIG_TEXT = 16
"""The number of tokens in a random text there."""
BIG = 10e9
"""From so many mult-adds of one sample on, a fused model is big; a ViT-B/16 is."""
TOLERANCE = 1e-5
"""The largest allowed difference of logits in float32, times max(1, largest logit)."""

# Measures of answers. A body has none of them: its outputs are features, not answers.
_KEYS_OF_ANSWERS = ("merge_agreement", "merge_log_p", "pool_max_abs", "mi", "disagreement")
_SIXTEEN_BITS = (torch.float16, torch.bfloat16)


class _Trial:
    """What all models of a check run with: random inputs, and averages in the place of their own tensors.

    Attributes:
        changes_weights: whether a weight of any member differs from its average.
    """

    def __init__(self, plan: FusionPlan, sources: Sequence[Source], device: torch.device, seed: int) -> None:
        """Compute the averages, which all models use in place, and draw the inputs."""
        self._fused = plan.description
        self._device = device
        self._dtype = storage_dtype(plan.tensors)
        self._averages = {name: self._on_device(plan.tensors.read(name)) for name in plan.averaged}
        self.changes_weights = not plan.tensors.equal.issuperset(plan.averaged)

        # A check of a big model takes long. With few and short inputs it is enough where no weight is changed by
        # averaging: otherwise these inputs decide whether weights may be averaged.
        is_short = not self.changes_weights and macs(plan.description, plan.tensors) >= BIG
        count = INPUTS_OF_A_BIG_MODEL if is_short else INPUTS
        inputs = sources[0].family.example_inputs(plan.description.preprocess, count, seed)
        if is_short and plan.description.reads == "text":
            inputs = {name: tokens[:, :TOKENS_OF_A_BIG_TEXT] for name, tokens in inputs.items()}
        self._inputs = move(inputs, device, torch.float32)

    def logits_of(self, description: Description, tensors: TensorSource) -> Tensor:
        """Return the logits of the members of a model, ``[M, B, classes]``, with the classes of the fused model."""
        gc.collect()  # frees the model before, which refers to itself and would stay in memory

        def read(name: str) -> Tensor:
            return self._averages[name] if name in self._averages else self._on_device(tensors.read(name))

        lent = LentTensors({name: tensors.info(name) for name in tensors.names()}, read)
        named = replace(description, labels=self._fused.labels, prompt=self._fused.prompt)
        return float32_model(named, lent, self._device, self._dtype).with_classes().member_logits(self._inputs)

    def logits_of_each(self, sources: Sequence[Source], log: Log) -> Tensor:
        """Run each member alone, and return its logits in float64, ``[M, B, classes]``.

        Raises:
            NonFiniteError: logits of a member are not finite.
        """
        logits_of_members: list[Tensor] = []
        with log.progress("self-check", len(sources), "members") as progress:
            for source in sources:
                logits = self.logits_of(source.description, source.tensors)[0].double()
                if not logits.isfinite().all():
                    raise NonFiniteError(f"{source.name} gives logits that are NaN or infinite")
                logits_of_members.append(logits)
                progress.advance()
        return torch.stack(logits_of_members)

    def drop_averages(self) -> None:
        """Free the averages: from now on models run with their own tensors."""
        self._averages.clear()

    def _on_device(self, tensor: Tensor) -> Tensor:
        """Return a tensor on the device; floating point numbers are also converted to the dtype."""
        if not tensor.is_floating_point():
            return tensor.to(self._device)
        return tensor.to(self._device, self._dtype)


@torch.no_grad()
def self_check(
    plan: FusionPlan, sources: Sequence[Source], device: torch.device, seed: int, log: Log
) -> SelfCheckRecord:
    """Return how the fused model compares with its members on random inputs; an error if it computes another answer.

    Every fused member is compared twice. Against the same member run alone with the averaged weights, it must be equal
    but for rounding. Against the member before averaging, the difference is the effect of averaging.

    Args:
        plan: the plan of the fusion.
        sources: the members.
        device: the device to compute on.
        seed: draws the random inputs.
        log: receives the progress and the result.

    Returns:
        The record for the fused file. For bodies, whose features are not answers, the measures of answers are left out.
        Rounding errors are given as the power of ten that they stay below, other numbers to three digits, so that the
        file does not depend on how a machine orders its sums.

    Raises:
        HydraError: a fused member differs from the member alone by more than the tolerance.
        NonFiniteError: weights or logits of a member are not finite.
    """
    for source in sources:
        check_finite_weights(source.name, source.tensors)

    # Run all members together, and each alone with the averages.
    trial = _Trial(plan, sources, device, seed)
    logits = trial.logits_of(plan.description, plan.tensors)
    together = logits.double()  # [M, B, classes]
    alone = trial.logits_of_each(sources, log)

    # Where averaging changes weights, also run each as it was before.
    before = together
    if trial.changes_weights:
        trial.drop_averages()  # from here on the trial runs members with their own weights
        before = trial.logits_of_each(sources, log)

    # The fused members must equal the members run alone.
    runtime_errors = (together - alone).abs().amax((1, 2))  # [M]
    largest_error = float(runtime_errors.max())  # NaN if any is
    max_abs_logit = float(together.abs().max())
    tolerance = TOLERANCE * max(1.0, max_abs_logit)
    if not largest_error <= tolerance:
        raise HydraError(
            f"self-check failed: a fused member differs from the member alone by {largest_error:.2e} "
            f"(allowed {tolerance:.2e})",
            hint="this is a defect of hydractl or of the machine's arithmetic: nothing was written",
        )

    # Compare the pooled answer of the fused model with that of the members run alone.
    mean_of_softmax = alone.softmax(-1).mean(0)  # [B, classes]
    pooled = log_mean_softmax(logits).double().exp()
    pool_error = float((pooled - mean_of_softmax).abs().max())

    log.info(f"self-check: fused members equal their models run alone to {largest_error:.1e}")
    diversity = diversity_values(samples_of(together.cpu().numpy()))
    check = SelfCheckRecord(
        inputs=f"{together.shape[1]} random inputs, seed {seed}",
        max_abs_logit=to_three_digits(max_abs_logit),
        member_max_abs=[_next_power_of_ten(error) for error in runtime_errors.tolist()],
        **moved_answers(before, together, tolerance),
        pool_max_abs=_next_power_of_ten(pool_error),
        tolerance=to_three_digits(tolerance),
        mi=round(diversity["mi"], 6),
        disagreement=None if len(sources) == 1 else round(diversity["disagreement"], 6),
    )
    if sources[0].classes == 0:  # bodies give no answers
        return check.model_copy(update=dict.fromkeys(_KEYS_OF_ANSWERS))
    return check


def moved_answers(before: Tensor, after: Tensor, tolerance: float) -> dict[str, list[float]]:
    """Return how much averaging changes the answers of each member, to three digits, in lists over members.

    * ``merge_max_abs``: the largest change of a logit;
    * ``merge_agreement``: the share of inputs whose most probable class stays the same; a tie counts as the same;
    * ``merge_log_p``: the mean change of log p over inputs and classes, in nats.

    Args:
        before, after: the logits of all members before and after averaging, ``[M, B, classes]`` each.
        tolerance: a difference of logits up to this counts as a tie.
    """
    change = after - before
    shift_of_log_p = after.log_softmax(-1) - before.log_softmax(-1)

    # An answer does not change if the class with the highest logit before averaging has the highest (or a tied) logit
    # after it.
    answer_before = before.argmax(-1, keepdim=True)  # [M, B, 1]
    logit_of_answer = after.gather(-1, answer_before).squeeze(-1)  # [M, B]
    highest_logit = after.amax(-1)
    stays = highest_logit - logit_of_answer <= tolerance  # [M, B]
    effect = {  # [M] each
        "merge_max_abs": change.abs().amax((1, 2)),
        "merge_agreement": stays.double().mean(1),
        "merge_log_p": shift_of_log_p.abs().mean((1, 2)),
    }

    # To three digits, so that the file does not depend on the machine.
    rounded = {}
    for key, values in effect.items():
        rounded[key] = [to_three_digits(value) for value in values.tolist()]
    return rounded


def _next_power_of_ten(error: float) -> float:
    """Return the smallest power of ten that is not below a rounding error, at least 1e-6: of 3e-5 it is 1e-4."""
    if error <= 0:
        return 1e-6
    exponent = max(-6, math.ceil(math.log10(error)))
    return float(f"1e{exponent}")


def to_three_digits(value: float) -> float:
    """Return a measured number rounded to three digits, as files hold it; further digits may differ by machine."""
    return float(f"{value:.3g}")


# --- weights of 16 bits, of which each block makes float32 while it runs ----------------------------------------------


def storage_dtype(tensors: TensorSource) -> torch.dtype:
    """Return the dtype in which to keep weights that are computed with in float32.

    It is the 16-bit dtype of the floating point tensors if all of them have the same; otherwise float32.
    """
    dtypes = {torch_dtype(tensors.info(name)) for name in tensors.names()}
    floating_dtypes = {dtype for dtype in dtypes if dtype.is_floating_point}
    for dtype in _SIXTEEN_BITS:
        if floating_dtypes == {dtype}:
            return dtype
    return torch.float32


def float32_model(
    description: Description, tensors: TensorSource, device: torch.device, dtype: torch.dtype
) -> HydraModel:
    """Return a model that computes in float32, for inference only, even if its weights stay in 16 bits in memory.

    If they do,

    * the weights of each layer in a block are float32 while it runs;
    * tables of embeddings stay in 16 bits, and the rows that are looked up become float32;
    * everything else is small, and becomes float32 here.

    Args:
        description, tensors: the description and the tensors of the model.
        device: the device to run on.
        dtype: the dtype of the weights in memory: float32, or the 16-bit dtype in which all of them are stored.
    """
    model = HydraModel(description, tensors, device, dtype)
    if dtype not in _SIXTEEN_BITS:
        return model
    model.batched = False  # a stack would keep the weights of all members
    modules_of_blocks: set[nn.Module] = set()
    for path in model.block_paths:  # the blocks of the first network run for all members
        modules_of_blocks.update(model.networks[0].get_submodule(path).modules())

    # By kind of module: tables of embeddings, layers of blocks, and everything else.
    for module in model.modules():
        if type(module) is nn.Embedding:
            module.register_forward_hook(lambda _module, _inputs, rows: rows.float())
            continue
        # An attention calls none of the modules that hold its weights, so their weights count as its own.
        weights = list(module.parameters(recurse=isinstance(module, HeadAttention)))
        if module in modules_of_blocks or isinstance(module, nn.Embedding):
            _widen_while_it_runs(module, weights)
        else:
            for weight in weights:
                weight.data = weight.data.float()
    return model


def _widen_while_it_runs(module: nn.Module, weights: Sequence[nn.Parameter]) -> None:
    """Register hooks on a module that make its weights float32 while it runs, and put back what they are now after it.

    Weights of 16 bits take half the memory.
    """
    narrow = [weight.data for weight in weights]

    def widen(*_: Any) -> None:
        for weight in weights:
            weight.data = weight.data.float()

    def make_narrow_again(*_: Any) -> None:
        for weight, data in zip(weights, narrow, strict=True):
            weight.data = data

    module.register_forward_pre_hook(widen)
    module.register_forward_hook(make_narrow_again)
