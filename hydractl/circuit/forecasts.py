"""Forecasts of scores from gradients: the score without each head, as if each sample depended on it linearly.

A forecast is made for every sample, and the forecasts are counted like real results. The objectives themselves are
counts, and at a trained model the slope of any smoothed count is of little use: what a head does for some samples and
against others cancels in the sum, while a removal moves each sample by a large step. Therefore the slope is computed
for each sample, of a quantity that is nearly linear in the outputs of the heads (a difference of logits).

The slope by a gate on a head is the importance of Michel et al. 2019 (arXiv 1905.10650, equation 2) before its absolute
value and mean. A gate that goes from one to zero removes the head, so the forecast is the quantity minus the slope.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from hydractl.circuit.evaluator import Evaluator, over_batches
from hydractl.circuit.objective import OBJECTIVE_BY_NAME
from hydractl.circuit.winners import CandidateHead
from hydractl.criteria.criterion import gradients_of
from hydractl.distributed import Processes
from hydractl.errors import NonFiniteError
from hydractl.metrics.ood import auroc, curve_of

# --- quantities of samples --------------------------------------------------------------------------------------------

MARGIN = "margin"
"""The logit of the label minus the highest other one."""
LABEL = "label"
"""The log-odds of the label."""
ID_SCORE = "id_score"
"""A monotone function of the OOD score, of an ID sample."""
OOD_SCORE = "ood_score"
"""The same function, of an OOD sample, which has no other quantity."""

QUANTITIES_OF: dict[str, tuple[str, ...]] = {
    "acc": (MARGIN,),
    "ood": (ID_SCORE, OOD_SCORE),
    "avg": (MARGIN, ID_SCORE, OOD_SCORE),
    "nll": (LABEL,),
}
"""The names of the quantities that the forecast of each objective reads."""

_TINY = 1e-300
"""Replaces zero in a divisor and in a logarithm."""

_DOUBT = 0.5
"""The assumed standard error of a forecast change, as a share of that change.

With it, samples near the decision boundary count in part. This tells apart heads that leave equally many samples right.
"""


Quantities = Mapping[str, Tensor]
"""Numbers of samples by the name of the quantity, ``[N]`` each, or their slopes, ``[N, heads]``."""

QuantitiesOfBatches = Mapping[int, Quantities]
"""The quantities of each batch, by its index; those of an OOD batch are only :data:`OOD_SCORE`."""


@dataclass(frozen=True)
class Slopes:
    """The slopes of the quantities of all samples by a gate on each head.

    Attributes:
        heads: the heads of the sample tower that are present.
        names: the names of the quantities.
        of_batches: for each batch float32 ``[B, len(heads) + 1]``; the last column is zero, and is used for heads that
            have no slopes.
    """

    heads: list[CandidateHead]
    names: Sequence[str]
    of_batches: QuantitiesOfBatches

    def columns_of(self, heads: Sequence[CandidateHead]) -> Tensor:
        """Return the column of each of these heads; of heads of the label tower that of zeros."""
        column_of_head = {head: column for column, head in enumerate(self.heads)}
        column_of_zeros = -1  # the last column
        return torch.tensor([column_of_head.get(head, column_of_zeros) for head in heads], dtype=torch.long)


def of_task(evaluator: Evaluator, task: int, of_batches: QuantitiesOfBatches) -> dict[str, Tensor]:
    """Return the quantities of all samples of one task by name, concatenated in the order of the batches.

    Args:
        evaluator: has the batches, and knows to which tasks (ID sets with their OOD sets) each belongs.
        task: the index of the task.
        of_batches: for each batch its quantities, ``[B, ...]`` each, which become ``[N, ...]``.
    """
    parts_by_name: dict[str, list[Tensor]] = {}
    for batch in sorted(of_batches):
        if task not in evaluator.batches[batch].tasks:
            continue
        for name, values in of_batches[batch].items():
            parts_by_name.setdefault(name, []).append(values)
    return {name: torch.cat(parts) for name, parts in parts_by_name.items()}


def quantities_needed(objectives: Sequence[str]) -> list[str]:
    """Return the quantities that the forecasts of some objectives read, always in the same order."""
    needed: set[str] = set()
    for objective in objectives:
        needed.update(QUANTITIES_OF[objective])
    in_order = (MARGIN, LABEL, ID_SCORE, OOD_SCORE)
    return [name for name in in_order if name in needed]


def quantity(name: str, logits: Tensor, labels: Tensor | None, ood_score: str) -> Tensor:
    """Return one quantity of each sample of a batch, ``[B]``, differentiable by the logits.

    With z the logits, y the label and j over the other classes, the quantities are:

    * ``id_score``, ``ood_score``: a function that sorts samples as the OOD score does, and is nearly linear;
    * ``margin``: z_y - max z_j, above 0 if the sample is right;
    * ``label``: z_y - log sum exp z_j, the log-odds log(p_y / (1 - p_y)).

    Args:
        name: one of these names.
        logits: float64 ``[B, classes]``.
        labels: ``[B]``; None for OOD samples, which have only the OOD score.
        ood_score: a name of :data:`hydractl.metrics.ood.OOD_SCORES`.
    """
    if name in (ID_SCORE, OOD_SCORE):
        nearly_linear_score = _NEARLY_LINEAR[ood_score]
        return nearly_linear_score(logits)

    # The other quantities compare the logit of the label with those of the other classes.
    assert labels is not None
    label_column = labels[:, None]  # [B, 1]
    others = logits.scatter(1, label_column, -torch.inf)  # [B, classes], -inf at the label, which then never counts
    logit_of_label = logits.gather(1, label_column)[:, 0]  # [B, classes] -> [B]
    if name == MARGIN:
        return logit_of_label - others.amax(dim=1)
    assert name == LABEL
    return logit_of_label - others.logsumexp(dim=1)


def _odds_against(logits: Tensor) -> Tensor:
    """Return the negative log-odds of the highest p, ``[B]``: sorts as -p does, but does not flatten near p = 1."""
    top = logits.argmax(dim=1, keepdim=True)  # [B, 1]
    others = logits.scatter(1, top, -torch.inf)
    top_logit = logits.gather(1, top)[:, 0]  # [B, classes] -> [B]
    return others.logsumexp(dim=1) - top_logit


def _log_entropy(logits: Tensor) -> Tensor:
    """Return the logarithm of the entropy of the softmax, ``[B]``."""
    log_p = logits.log_softmax(dim=1)
    entropy = -(log_p.exp() * log_p).sum(dim=1)
    return entropy.clamp_min(_TINY).log()


_NEARLY_LINEAR: dict[str, Callable[[Tensor], Tensor]] = {
    "msp": _odds_against,
    "entropy": _log_entropy,
    "energy": lambda logits: -logits.logsumexp(dim=1),
    "maxlogit": lambda logits: -logits.amax(dim=1),
}
"""For each OOD score, a function that orders samples as it does and is more nearly linear."""


def current_quantities(evaluator: Evaluator, names: Sequence[str], processes: Processes) -> QuantitiesOfBatches:
    """Return the quantities of each batch under the current model, e.g. the margins of its samples, float64 ``[B]``.

    With several processes, each computes some batches, and all get the results.
    """

    def lists_of_batch(batch: int) -> dict[str, list[float]]:
        """Return the quantities of one batch as lists, which processes can exchange."""
        logits = evaluator.current_logits(batch).double()
        readable, labels = _quantities_and_labels(evaluator, batch, names)
        return {name: quantity(name, logits, labels, evaluator.ood_score).tolist() for name in readable}

    # Each process computes some batches; afterwards all processes have all of them.
    lists_by_batch = over_batches(evaluator, lists_of_batch, processes)
    of_batches = {}
    for batch, lists in lists_by_batch.items():
        of_batches[batch] = {name: torch.tensor(values).double() for name, values in lists.items()}
    return of_batches


# --- slopes -----------------------------------------------------------------------------------------------------------


def slopes(evaluator: Evaluator, names: Sequence[str]) -> Slopes:
    """Return the slopes of all samples: how much each head adds to each quantity, e.g. to the margin of a sample.

    A gate is a factor on the output of a head. It is 1 now, and removing the head means 0. So the slope, the derivative
    of the quantity by the gate, forecasts the change as if the quantity were linear in the heads. Each batch takes one
    forward pass, and one backward pass for each quantity.

    Args:
        evaluator: its current model is the one whose slopes are computed.
        names: the names of the quantities.

    Returns:
        The slopes of all samples, float32; removing a head changes a quantity by minus its slope.

    Raises:
        NonFiniteError: a slope is NaN or infinite.
    """
    # The heads, in the order of the columns.
    tower = evaluator.sample_tower
    heads: list[CandidateHead] = []
    for site, kept in zip(tower.sites, tower.kept, strict=True):
        heads += [CandidateHead(site, head) for head in kept]

    # The slopes of each batch. `gradients_of` turns off gradients of all parameters: only gates need some.
    of_batches = {}
    with torch.inference_mode(False), torch.enable_grad(), gradients_of(evaluator.model, ()):
        for batch in range(len(evaluator.batches)):
            of_batches[batch] = _slopes_of_batch(evaluator, batch, names)
            is_finite = all(bool(values.isfinite().all()) for values in of_batches[batch].values())
            if not is_finite:
                raise NonFiniteError("a gradient is NaN or infinite during the search", hint="try a wider --dtype")
    return Slopes(heads, names, of_batches)


def _slopes_of_batch(evaluator: Evaluator, batch: int, names: Sequence[str]) -> dict[str, Tensor]:
    """Return the slopes of one batch by the name of the quantity, float32 ``[B, heads + 1]`` each.

    A quantity is a number of each sample, such as its margin. A slope is its derivative by a gate, a factor on the
    output of a head that is 1 now. The last column is zero, for heads that have no gate. Empty if the batch has none of
    the quantities, e.g. OOD samples no margin.
    """
    readable, labels = _quantities_and_labels(evaluator, batch, names)
    if not readable:
        return {}

    # Each sample has its own gates of 1, [B, heads] at each site, so one gradient of the sum over samples holds the
    # slopes of each sample. The gate of a site without heads has no gradient.
    parameter = next(evaluator.model.parameters())
    size = evaluator.batches[batch].size
    gates = []
    for kept in evaluator.sample_tower.kept:
        gate = torch.ones(size, len(kept), device=parameter.device, dtype=parameter.dtype)
        gates.append(gate.requires_grad_(bool(kept)))
    gates_of_heads = [gate for gate in gates if gate.requires_grad]

    # The forward pass, and what it cost (in evaluations of one block on one sample).
    work_before = evaluator.sample_tower.work
    logits = evaluator.gated_logits(batch, gates).double()
    work_of_pass = evaluator.sample_tower.work - work_before

    # A backward pass for each quantity. The column of zeros stands for heads without slopes.
    column_of_zeros = parameter.new_zeros(size, 1)
    slopes_by_name = {}
    for name in readable:
        gradients: Sequence[Tensor] = ()
        if gates_of_heads:
            values = quantity(name, logits, labels, evaluator.ood_score)
            # For each site [B, heads]. The graph is kept for the next quantity.
            gradients = torch.autograd.grad(values.sum(), gates_of_heads, retain_graph=True)
            evaluator.sample_tower.work += work_of_pass  # a backward pass counts as much as a forward pass
        by_head = torch.cat([*gradients, column_of_zeros], dim=1)  # [B, heads + 1]
        slopes_by_name[name] = by_head.float().cpu()
    return slopes_by_name


def _quantities_and_labels(evaluator: Evaluator, batch: int, names: Sequence[str]) -> tuple[list[str], Tensor | None]:
    """Return which of the named quantities (numbers of each sample) a batch has, and its labels on the model's device.

    An OOD batch has no labels (None), and only the quantity :data:`OOD_SCORE`; an ID batch has all others.
    """
    labels = evaluator.batches[batch].labels
    if labels is None:
        return [name for name in names if name == OOD_SCORE], None
    parameter = next(evaluator.model.parameters())
    labels_on_device = torch.from_numpy(labels).to(parameter.device)
    return [name for name in names if name != OOD_SCORE], labels_on_device


# --- forecasts --------------------------------------------------------------------------------------------------------


def forecast(objective: str, now: Quantities, change: Quantities) -> np.ndarray:
    """Return a forecast of the objective without each head, ``[heads]``.

    The objective follows from a few numbers of each sample (its quantities), e.g. from its margin for "acc". Each is
    taken as linear in the heads: without a head, it is the number now minus its slope by this head.

    Args:
        objective: the objective to forecast, e.g. "acc".
        now: the quantities under the current model, ``[N]`` each.
        change: the slopes by the heads, float64 ``[N, heads]`` each.

    Returns:
        The scores as the search counts them: higher is better, the NLL is negative.
    """
    # Objectives that read OOD samples: the AUROC, and its average with the accuracy.
    if objective == "avg":
        accuracy = forecast("acc", now, change)
        auroc_of_heads = forecast("ood", now, change)
        return (accuracy + auroc_of_heads) / 2
    if OBJECTIVE_BY_NAME[objective].needs_ood:
        id_after = _scores_after(now[ID_SCORE], change[ID_SCORE])  # [heads, N]
        ood_after = _scores_after(now[OOD_SCORE], change[OOD_SCORE])
        pairs = zip(id_after, ood_after, strict=True)
        return np.array([auroc(curve_of(id_scores, ood_scores)) for id_scores, ood_scores in pairs])

    # All others read one quantity of ID samples: the margin for "acc", the log-odds of the label for "nll".
    (name,) = QUANTITIES_OF[objective]
    slope = change[name]
    after = now[name][:, None] - slope  # [N, heads]
    if objective == "acc":
        # A sample is right if its margin is above 0. The forecast margin is taken as normally distributed, with a
        # standard error in proportion to the forecast change. So a sample near 0 counts in part: 0.5 at 0, almost 1 far
        # above it.
        standard_error = (_DOUBT * slope.abs()).clamp_min(_TINY)
        p_right = torch.special.ndtr(after / standard_error)
        return p_right.mean(dim=0).numpy()
    # With log-odds z the label has the probability 1 / (1 + exp(-z)), so its NLL is log(1 + exp(-z)).
    assert objective == "nll"
    nll = nn.functional.softplus(-after)
    return -nll.mean(dim=0).numpy()


def _scores_after(now: Tensor, change: Tensor) -> np.ndarray:
    """Return the forecast OOD scores of the samples of one side, ID or OOD, without each head: ``[heads, N]``."""
    scores_after = now[:, None] - change  # [N, heads]
    return scores_after.numpy().T
