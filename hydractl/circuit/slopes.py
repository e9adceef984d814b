"""What a gradient says of removing a head: a forecast for every sample, counted as the real thing would be.

The objectives are counts, and at a trained model the slope of any smoothed count is of little use: what a head does for
some samples and against others cancels in the sum, while a removal moves each sample by a large step. So the slope is
taken for each sample, of a quantity that is nearly linear in the outputs of the heads (a difference of logits), and the
forecast quantities of all samples are then counted.

The slope by a gate on a head is the importance of Michel et al. 2019 (arXiv 1905.10650, equation 2) before its absolute
value and mean; a gate that goes from one to zero removes the head, so the forecast is the quantity minus the slope.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from hydractl.circuit.evaluator import Evaluator
from hydractl.circuit.objective import OBJECTIVES
from hydractl.circuit.tower import Candidate
from hydractl.errors import NonFiniteError
from hydractl.metrics.ood import auroc, curve_of

MARGIN, LABEL, OOD_SCORE = "margin", "label", "ood_score"
"""The quantities: the logit of the label minus the highest other one; log-odds of the label; a monotone function of the
OOD score."""

NEEDS: dict[str, tuple[str, ...]] = {
    "acc": (MARGIN,),
    "ood": (OOD_SCORE,),
    "avg": (MARGIN, OOD_SCORE),
    "nll": (LABEL,),
    "brier": (LABEL,),
}
"""Which quantities the forecast of an objective reads."""

_SPREAD = "spread"
"""How the probability of the wrong classes is spread: the sum of their squares over the square of their sum."""

_TINY = 1e-300

_DOUBT = 0.5
"""How far off a forecast change is taken to be, as a share of it. It lets samples at the border count in part, and so
tells heads apart of which as many samples are right."""


@dataclass(frozen=True)
class Quantities:
    """Numbers of all samples by the names of the quantities, in the order of the batches.

    Attributes:
        inside: of ID samples ``[N]``, or their slopes ``[N, heads]``.
        outside: of OOD samples, where any objective reads them.
    """

    inside: dict[str, Tensor]
    outside: dict[str, Tensor]

    def of(self, columns: Sequence[int]) -> Quantities:
        """The slopes by some of the heads."""
        index = torch.tensor(list(columns), dtype=torch.long)
        return Quantities(
            {name: values[:, index].double() for name, values in self.inside.items()},
            {name: values[:, index].double() for name, values in self.outside.items()},
        )


def needed(objectives: Sequence[str]) -> list[str]:
    """The quantities that the forecasts of some objectives read."""
    return [name for name in (MARGIN, LABEL, OOD_SCORE) if any(name in NEEDS[objective] for objective in objectives)]


# --- quantities -------------------------------------------------------------------------------------------------------


def quantity(name: str, logits: Tensor, labels: Tensor | None, ood_score: str) -> Tensor:
    """One quantity of one batch ``[B]`` from float64 logits ``[B, classes]``, differentiable."""
    if name == OOD_SCORE:
        return _OOD_SCORE[ood_score](logits)
    assert labels is not None
    own = logits.gather(1, labels[:, None])
    others = logits.scatter(1, labels[:, None], -torch.inf)
    highest = others.amax(dim=1) if name == MARGIN else others.logsumexp(dim=1)
    return own[:, 0] - highest


def _odds_against(logits: Tensor) -> Tensor:
    """Minus the log-odds of the highest p: minus p itself on a scale that no certainty flattens."""
    top = logits.argmax(dim=1, keepdim=True)
    return logits.scatter(1, top, -torch.inf).logsumexp(dim=1) - logits.gather(1, top)[:, 0]


def _log_entropy(logits: Tensor) -> Tensor:
    log_p = logits.log_softmax(dim=1)
    return (-(log_p.exp() * log_p).sum(dim=1)).clamp_min(_TINY).log()


_OOD_SCORE: dict[str, Callable[[Tensor], Tensor]] = {
    "msp": _odds_against,
    "entropy": _log_entropy,
    "energy": lambda logits: -logits.logsumexp(dim=1),
    "maxlogit": lambda logits: -logits.amax(dim=1),
}
"""By the name of an OOD score, what orders samples as it does and is more nearly linear."""


def current_quantities(evaluator: Evaluator, names: Sequence[str]) -> Quantities:
    """Of all samples under the model as it is."""
    found: list[dict[str, Tensor]] = [{} for _ in evaluator.batches]
    for chunk in evaluator.chunks:
        for batch in chunk:
            wanted, labels = _wanted(evaluator, batch, names)
            if wanted:
                logits = evaluator.current_logits(batch).double()
                found[batch] = {n: quantity(n, logits, labels, evaluator.ood_score).cpu() for n in wanted}
                if LABEL in wanted and labels is not None:
                    found[batch][_SPREAD] = _spread(logits, labels).cpu()
        evaluator.forget(chunk)
    return _together(evaluator, found)


def _spread(logits: Tensor, labels: Tensor) -> Tensor:
    others = logits.scatter(1, labels[:, None], -torch.inf).softmax(dim=1)
    return (others * others).sum(dim=1)


def slopes(evaluator: Evaluator, names: Sequence[str]) -> tuple[list[Candidate], Quantities]:
    """By a gate on each head of the tower of samples, in one pass forward and one backward for each quantity.

    Returns:
        The heads, and the slopes of all samples by them, float32.

    Raises:
        NonFiniteError: where a slope is NaN or infinite.
    """
    tower = evaluator.samples
    heads = [(site, head) for site, kept in zip(tower.sites, tower.kept, strict=True) for head in kept]
    found: list[dict[str, Tensor]] = []
    with torch.inference_mode(False), torch.enable_grad(), _frozen(evaluator.model):
        for batch in range(len(evaluator.batches)):
            wanted, labels = _wanted(evaluator, batch, names)
            found.append(_slopes_of_batch(evaluator, batch, wanted, labels) if wanted and heads else {})
    together = _together(evaluator, found)
    if not all(
        bool(values.isfinite().all()) for part in (together.inside, together.outside) for values in part.values()
    ):
        raise NonFiniteError("a gradient is NaN or infinite during the search", hint="try a wider --dtype")
    return heads, together


def _slopes_of_batch(
    evaluator: Evaluator, batch: int, wanted: Sequence[str], labels: Tensor | None
) -> dict[str, Tensor]:
    parameter = next(evaluator.model.parameters())
    size = evaluator.batches[batch].size
    gates = [
        torch.ones(size, len(kept), device=parameter.device, dtype=parameter.dtype, requires_grad=bool(kept))
        for kept in evaluator.samples.kept
    ]
    logits = evaluator.gated_logits(batch, gates).double()
    found = {}
    for name in wanted:
        # Each sample has gates of its own, so the gradients of the sum are those of the samples.
        total = quantity(name, logits, labels, evaluator.ood_score).sum()
        parts = torch.autograd.grad(total, [gate for gate in gates if gate.requires_grad], retain_graph=True)
        evaluator.went_back(batch)
        found[name] = torch.cat(parts, dim=1).float().cpu()
    return found


def _wanted(evaluator: Evaluator, batch: int, names: Sequence[str]) -> tuple[list[str], Tensor | None]:
    """The quantities of one batch, and its labels on the model's device."""
    known = evaluator.batches[batch].labels
    if known is None:
        return [name for name in names if name == OOD_SCORE], None
    return list(names), torch.from_numpy(known).to(next(evaluator.model.parameters()).device)


def _together(evaluator: Evaluator, found: Sequence[dict[str, Tensor]]) -> Quantities:
    sides: tuple[dict[str, list[Tensor]], dict[str, list[Tensor]]] = ({}, {})
    for sample, values in zip(evaluator.batches, found, strict=True):
        for name, tensor in values.items():
            sides[sample.labels is None].setdefault(name, []).append(tensor)
    inside, outside = ({name: torch.cat(parts) for name, parts in side.items()} for side in sides)
    return Quantities(inside, outside)


@contextlib.contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """Without gradients of weights, whose graphs would keep more activations."""
    moving = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        for parameter in moving:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in moving:
            parameter.requires_grad_(True)


# --- forecasts --------------------------------------------------------------------------------------------------------


def forecast(objective: str, now: Quantities, change: Quantities) -> np.ndarray:
    """What the objective would be without each head, if all quantities were linear: ``[heads]``.

    Args:
        now: the quantities under the model as it is.
        change: the slopes by the heads, float64.
    """
    if objective == "avg":
        return (forecast("acc", now, change) + forecast("ood", now, change)) / 2
    if OBJECTIVES[objective].needs_ood:
        inside = (now.inside[OOD_SCORE][:, None] - change.inside[OOD_SCORE]).numpy()
        outside = (now.outside[OOD_SCORE][:, None] - change.outside[OOD_SCORE]).numpy()
        return np.array(
            [auroc(curve_of(one, other)) for one, other in zip(inside.T, outside.T, strict=True)], dtype=float
        )
    name = NEEDS[objective][0]
    slope = change.inside[name]
    after = now.inside[name][:, None] - slope
    if objective == "acc":
        right = torch.special.ndtr(after / (_DOUBT * slope.abs()).clamp_min(_TINY))
        return right.mean(dim=0).numpy()
    if objective == "nll":
        return -nn.functional.softplus(-after).mean(dim=0).numpy()
    wrong = torch.sigmoid(-after)
    return -(wrong * wrong * (1 + now.inside[_SPREAD][:, None])).mean(dim=0).numpy()
