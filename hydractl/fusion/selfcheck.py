"""Self-check of a fused model before it is written: each member is compared with the model it was made from."""

from __future__ import annotations

import gc
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.errors import HydraError, NonFiniteError
from hydractl.families.base import ModelFamily
from hydractl.files.checkpoint import LentTensors, TensorSource
from hydractl.files.collecting import collecting_new_objects_only
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
TOKENS_OF_A_BIG_IMAGE = 32
"""The number of tokens that the blocks get there of an image: more than a model has beside those of the patches."""
BIG = 10e9
"""From so many mult-adds of one sample on, a fused model is big; a ViT-B/16 is."""
TOLERANCE = 1e-5
"""The largest allowed difference of logits in float32, times max(1, largest logit)."""

# Measures of answers. A body has none of them: its outputs are features, not answers.
_KEYS_OF_ANSWERS = ("merge_agreement", "merge_log_p", "pool_max_abs", "mi", "disagreement")
_SIXTEEN_BITS = (torch.float16, torch.bfloat16)

Classes = tuple[Sequence[str], Sequence[str]]
"""The class names and the templates of prompts."""


@dataclass(frozen=True)
class _Trial:
    """What all models of a check run with.

    Attributes:
        inputs: a batch of random inputs.
        classes: the class names and templates of the prompts if the classes of the models are given by name, else None.
        shortened: whether blocks get only the first tokens of an image.
    """

    inputs: Any
    classes: Classes | None
    shortened: bool

    def logits_of(self, model: HydraModel) -> Tensor:
        """Run a model that has its classes, and return the logits of its members, ``[M, B, classes]``."""
        if self.shortened and not _knows_places(model):
            model.chain_of_samples.keep_first_tokens(TOKENS_OF_A_BIG_IMAGE)
        return model.member_logits(self.inputs)


def _knows_places(model: HydraModel) -> bool:
    """Return whether blocks know where in the image a token is: by windows, or by numbers for each distance."""
    if model.chain_of_samples.spans:
        return True
    for site in model.sites:
        layout = model.family.layout(site)
        if layout.table or layout.positions:
            return True
    return False


class _AveragedTensors:
    """The averaged tensors of a plan, on a device and in the dtype in which weights are kept there.

    Attributes:
        change_weights: whether a weight of any member differs from its average.
    """

    def __init__(self, plan: FusionPlan, device: torch.device) -> None:
        self.names = sorted(plan.averaged)
        self.change_weights = not plan.tensors.equal.issuperset(plan.averaged)
        self.device = device
        self.dtype = storage_dtype(plan.tensors)
        self._tensors = plan.tensors
        self._held: dict[str, Tensor] = {}

    def in_place(self, tensors: TensorSource) -> LentTensors:
        """Return the tensors of a model on the device, with averages instead of its own tensors where there are any.

        With the tensors of a member, this is the model that the fused member must equal.
        """
        averaged = set(self.names)

        def read(name: str) -> Tensor:
            if name in averaged:
                return self.read(name)
            return self.on_device(tensors.read(name))

        infos = {name: tensors.info(name) for name in tensors.names()}
        return LentTensors(infos, read)

    def read(self, name: str) -> Tensor:
        """Return one average. It stays in memory for all models that use it, unless weights are kept in 16 bits."""
        if name in self._held:
            return self._held[name]
        tensor = self.on_device(self._tensors.read(name))
        if self.dtype not in _SIXTEEN_BITS:
            self._held[name] = tensor
        return tensor

    def drop(self) -> None:
        """Free the averages; from now on, :meth:`in_place` returns a model's own tensors."""
        self._held.clear()
        self.names.clear()

    def on_device(self, tensor: Tensor) -> Tensor:
        """Return a tensor on the device; floating point numbers are also converted to the dtype."""
        if not tensor.is_floating_point():
            return tensor.to(self.device)
        return tensor.to(self.device, self.dtype)


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

    # Run all members together, each alone with the averages, and each as it was before.
    averages = _AveragedTensors(plan, device)
    with collecting_new_objects_only():
        trial, logits = _run_fused_model(plan, averages, seed)
        together = logits.double()  # [M, B, classes]
        alone = _run_members_alone(sources, averages, trial, log)
        before = _run_members_as_they_were(sources, averages, trial, together)

    # The fused members must equal the members run alone.
    runtime_errors = [float((fused - member).abs().max()) for fused, member in zip(together, alone, strict=True)]
    max_abs_logit = float(together.abs().max())
    tolerance = TOLERANCE * max(1.0, max_abs_logit)
    within_tolerance = [error <= tolerance for error in runtime_errors]  # False for NaN, which max() might miss
    if not all(within_tolerance):
        raise HydraError(
            f"self-check failed: a fused member differs from the member alone by {max(runtime_errors):.2e} "
            f"(allowed {tolerance:.2e})",
            hint="this is a defect of hydractl or of the machine's arithmetic: nothing was written",
        )

    # Compare the pooled answer of the fused model with that of the members run alone.
    mean_of_softmax = torch.stack(alone).softmax(-1).mean(0)  # [B, classes]
    pooled = log_mean_softmax(logits).double().exp()
    pool_error = float((pooled - mean_of_softmax).abs().max())

    log.info(f"self-check: fused members equal their models run alone to {max(runtime_errors):.1e}")
    diversity = diversity_values(samples_of(together.cpu().numpy()))
    check = SelfCheckRecord(
        inputs=f"{together.shape[1]} random inputs, seed {seed}",
        max_abs_logit=to_three_digits(max_abs_logit),
        member_max_abs=[_next_power_of_ten(error) for error in runtime_errors],
        **moved_answers(torch.stack(before), together, tolerance),
        pool_max_abs=_next_power_of_ten(pool_error),
        tolerance=to_three_digits(tolerance),
        mi=round(diversity["mi"], 6),
        disagreement=None if len(sources) == 1 else round(diversity["disagreement"], 6),
    )
    if sources[0].classes == 0:  # bodies give no answers
        return check.model_copy(update=dict.fromkeys(_KEYS_OF_ANSWERS))
    return check


def _run_members_alone(sources: Sequence[Source], averages: _AveragedTensors, trial: _Trial, log: Log) -> list[Tensor]:
    """Run each member alone with the averages in place, and return its logits, float64 ``[B, classes]``.

    Raises:
        NonFiniteError: logits of a member are not finite.
    """
    logits_of_members: list[Tensor] = []
    with log.progress("self-check", len(sources), "members") as progress:
        for source in sources:
            logits = _run_member_alone(source, averages, trial)
            if not logits.isfinite().all():
                raise NonFiniteError(f"{source.name} gives logits that are NaN or infinite")
            logits_of_members.append(logits)
            progress.advance()
        gc.collect()  # frees the last member
    return logits_of_members


def _run_members_as_they_were(
    sources: Sequence[Source], averages: _AveragedTensors, trial: _Trial, together: Tensor
) -> list[Tensor]:
    """Run each member with the weights that it had before averaging, and return its logits, float64 ``[B, classes]``.

    Where averaging has changed no weight they are not run: their logits in the fused model are returned. Else the
    averages are dropped from memory.

    Args:
        sources: the members.
        averages: the averaged tensors.
        trial: what the fused model ran with.
        together: the logits of the fused model, ``[M, B, classes]``.
    """
    if not averages.change_weights:
        return list(together)
    averages.drop()
    return [_run_member_alone(source, averages, trial) for source in sources]


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


def _run_fused_model(plan: FusionPlan, averages: _AveragedTensors, seed: int) -> tuple[_Trial, Tensor]:
    """Return what the fused model ran with (random inputs and classes), and its logits, ``[M, B, classes]``.

    Each member is later run alone on the same inputs and classes, and must give the same logits.
    """
    device = averages.device
    fused = float32_model(plan.description, averages.in_place(plan.tensors), device, averages.dtype).with_classes()
    classes: Classes | None = None  # the members run alone need the same classes
    if fused.prompted is not None:
        classes = (fused.prompted.labels, fused.prompted.templates)

    # A check of a big model takes long. With few and short inputs it is enough where no weight is changed by averaging:
    # otherwise these inputs decide whether weights may be averaged.
    shortened = not averages.change_weights and macs(plan.description, plan.tensors) >= BIG
    inputs = _random_inputs(plan, fused.family, seed, shortened)
    trial = _Trial(move(inputs, device, torch.float32), classes, shortened)
    return trial, trial.logits_of(fused)


def _random_inputs(plan: FusionPlan, family: ModelFamily, seed: int, shortened: bool) -> Any:
    """Draw the inputs on which to compare; in a shortened check fewer ones, and texts of few tokens."""
    preprocess = plan.description.preprocess
    if not shortened:
        return family.example_inputs(preprocess, INPUTS, seed)
    inputs = family.example_inputs(preprocess, INPUTS_OF_A_BIG_MODEL, seed)
    if preprocess.get("kind") != "text":
        return inputs
    return {name: tokens[:, :TOKENS_OF_A_BIG_TEXT] for name, tokens in inputs.items()}


def _run_member_alone(source: Source, averages: _AveragedTensors, trial: _Trial) -> Tensor:
    """Return the logits ``[B, classes]``, in float64, of a member run alone with the averages in place."""
    gc.collect()  # frees the model before, which refers to itself and would stay in memory
    tensors = averages.in_place(source.tensors)
    model = float32_model(source.description, tensors, averages.device, averages.dtype)
    if trial.classes is not None:
        labels, templates = trial.classes
        model = model.zero_shot(labels, templates)
    return trial.logits_of(model)[0].double()


def _next_power_of_ten(error: float) -> float:
    """Return the smallest power of ten that is not below a rounding error; at least 1e-6."""
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
    for module in model.modules():
        if type(module) is nn.Embedding:
            module.register_forward_hook(lambda _module, _inputs, rows: rows.float())
            continue
        # An attention calls none of the modules that hold its weights.
        weights = list(module.parameters(recurse=isinstance(module, HeadAttention)))
        if module in modules_of_blocks or isinstance(module, nn.Embedding):
            _widen_while_it_runs(module, weights)
        else:
            for weight in weights:
                weight.data = weight.data.float()
    return model


def _widen_while_it_runs(module: nn.Module, weights: Sequence[nn.Parameter]) -> None:
    """Let weights be float32 while a module runs, and what they are now at all other times."""
    narrow = [weight.data for weight in weights]

    def widen(*_: Any) -> None:
        for weight in weights:
            weight.data = weight.data.float()

    def make_narrow_again(*_: Any) -> None:
        for weight, data in zip(weights, narrow, strict=True):
            weight.data = data

    module.register_forward_pre_hook(widen)
    module.register_forward_hook(make_narrow_again)
