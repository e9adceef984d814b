"""Algorithm 1 among the few candidates that a forecast from a gradient puts first (``--approx shortlist:N``).

A forecast is made for every sample and counted as the real thing would be. The objectives are counts, and at a trained
model the slope of any smoothed count is of little use: what a head does for some samples and against others cancels in
the sum, while a removal moves each sample by a large step. So the slope is taken for each sample, of a quantity that is
nearly linear in the outputs of the heads (a difference of logits), and the forecast quantities of all samples are then
counted.

The slope by a gate on a head is the importance of Michel et al. 2019 (arXiv 1905.10650, equation 2) before its absolute
value and mean; a gate that goes from one to zero removes the head, so the forecast is the quantity minus the slope.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hydractl.circuit.evaluator import Evaluator
from hydractl.circuit.objective import OBJECTIVES, Measured
from hydractl.circuit.race import Runner, Step
from hydractl.circuit.search import GreedySearch
from hydractl.circuit.tower import Candidate
from hydractl.errors import NonFiniteError
from hydractl.metrics.ood import auroc, curve_of


class Shortlist(GreedySearch):
    """At each step the race is only among the candidates that are forecast to be best; it is exact among them.

    Forecasts are of heads of the tower that reads samples. What a head of the tower of the labels does to each sample
    takes no single pass backward, so those heads are listed by what their removal gained when it was last measured; the
    first step measures all of them.

    Objectives that have removed the same heads race on their lists together, so each may find more than it would alone.

    Args:
        size: how many candidates are listed for each objective and tower.
        every: slopes are taken anew once in so many steps; in between, forecasts add them to what the samples are now.
        others: as in :class:`hydractl.circuit.search.GreedySearch`.
    """

    def __init__(
        self, evaluator: Evaluator, heads: Sequence[Candidate], *, size: int, every: int = 3, **others: Any
    ) -> None:
        super().__init__(evaluator, heads, **others)
        self.size, self.every = size, every
        self._bounded = self.bounds
        self._slopes: dict[tuple[Candidate, ...], tuple[list[Candidate], Quantities]] = {}
        self._taken_at = 0
        self._counted: dict[Candidate, Measured] = {}
        self._gains: dict[tuple[str, Candidate], int] = {}

    def to_come(self, number: int, budget: int) -> int:
        """As many as are listed, more where objectives race together or all heads of the labels are measured."""
        labels = sum(self._of_labels(head) for head in self.heads)
        towers = len({self._of_labels(head) for head in self.heads})
        listed = sum(min(self.size * towers, len(self.heads) - step + 1) for step in range(number, budget + 1))
        return listed + (max(0, labels - self.size) if number == 1 else 0)

    def choose(self, group: list[str], number: int, left: list[Candidate]) -> dict[str, Step]:
        """The best of those listed."""
        listed = self._listed(group, number) or self._list(group, number, left)
        labels = [head for head in listed if self._of_labels(head)]
        self._counted = {head: measured for head, (measured, _) in self._evaluated(group, number).items()}
        # Only complete counts say what a removal gains; of a head of the labels they cost little more than a part.
        self.bounds = self._bounded and not labels
        steps = super().choose(group, number, [head for head in left if head in listed])
        if labels:
            self._learn(group, self._shared({head: self._counted[head] for head in labels if head in self._counted}))
        return steps

    def _finished(self, runner: Runner, group: list[str], number: int) -> None:
        super()._finished(runner, group, number)
        self._counted[runner.candidate] = runner.measured

    # --- the list -----------------------------------------------------------------------------------------------------

    def _listed(self, group: list[str], number: int) -> list[Candidate]:
        """The list as a journal has it."""
        for record in self.journal.records:
            if record.get("listed") == group and record["step"] == number:
                return [(site, head) for site, head in record["heads"]]
        return []

    def _list(self, group: list[str], number: int, left: Sequence[Candidate]) -> list[Candidate]:
        """Make a list, the same in all processes."""
        listed: set[Candidate] = set()
        for of_labels in (False, True):
            heads = [head for head in left if self._of_labels(head) == of_labels]
            if len(heads) <= self.size:
                listed.update(heads)
            elif of_labels:
                listed |= self._by_gains(group, heads)
            else:
                listed |= self._by_forecasts(group, number, heads)
        # Those of the first process: machines of different make round differently.
        heads = [(site, head) for site, head in self.processes.gather(sorted(listed))[0]]
        self._keep({"listed": group, "step": number, "heads": heads})
        return heads

    def _by_forecasts(self, group: list[str], number: int, heads: Sequence[Candidate]) -> set[Candidate]:
        columns, all_slopes = self._slopes_for(group, number)
        change = all_slopes.of([columns.index(head) for head in heads])
        now = current_quantities(self.evaluator, needed(group))
        rows = [rows_of(self.evaluator, task) for task in range(len(self.evaluator.weights))]
        listed: set[Candidate] = set()
        for objective in group:
            tasks = [forecast(objective, now.at(own), change.at(own)) for own in rows]
            values = dict(zip(heads, np.average(tasks, axis=0, weights=self.evaluator.weights), strict=True))
            listed.update(sorted(heads, key=lambda head: (-values[head], head))[: self.size])
        return listed

    def _slopes_for(self, group: list[str], number: int) -> tuple[list[Candidate], Quantities]:
        """The slopes at the latest step that takes them, measured now where that has not been done."""
        step = number - (number - 1) % self.every
        if step != self._taken_at:
            self._slopes.clear()
            self._taken_at = step
        removed = self.found[group[0]].removed
        then, names = removed[: step - 1], needed(group)
        key = tuple(sorted(then))
        if key not in self._slopes or not set(names) <= set(self._slopes[key][1].inside):
            if then != removed:
                self.evaluator.begin(then)
            self._slopes[key] = slopes(self.evaluator, names)
            if then != removed:
                self.evaluator.begin(removed)
        return self._slopes[key]

    # --- heads of the labels ------------------------------------------------------------------------------------------

    def _of_labels(self, head: Candidate) -> bool:
        return self.evaluator.labels is not None and head[0] in self.evaluator.labels.sites

    def _by_gains(self, group: list[str], heads: Sequence[Candidate]) -> set[Candidate]:
        listed: set[Candidate] = set()
        for objective in group:
            if any((objective, head) not in self._gains for head in heads):
                return set(heads)
            listed.update(sorted(heads, key=lambda head: (-self._gains[objective, head], head))[: self.size])
        return listed

    def _learn(self, group: list[str], counted: Mapping[Candidate, Measured]) -> None:
        for objective in group:
            found = self.found[objective]
            key = (found.steps[-1].measured if found.steps else found.base).key(objective)
            for head, measured in counted.items():
                if self._of_labels(head):
                    self._gains[objective, head] = measured.key(objective) - key

    def _remembered(self, group: list[str], number: int) -> dict[str, Step] | None:
        steps = super()._remembered(group, number)
        if steps:
            self._learn(group, {head: measured for head, (measured, _) in self._evaluated(group, number).items()})
        return steps


# --- quantities of samples --------------------------------------------------------------------------------------------

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

    def at(self, rows: tuple[Tensor, Tensor]) -> Quantities:
        """Those of some ID and some OOD samples."""
        inside, outside = rows
        return Quantities(
            {name: values[inside] for name, values in self.inside.items()},
            {name: values[outside] for name, values in self.outside.items()},
        )

    def of(self, columns: Sequence[int]) -> Quantities:
        """The slopes by some of the heads."""
        index = torch.tensor(list(columns), dtype=torch.long)
        return Quantities(
            {name: values[:, index].double() for name, values in self.inside.items()},
            {name: values[:, index].double() for name, values in self.outside.items()},
        )


def rows_of(evaluator: Evaluator, task: int) -> tuple[Tensor, Tensor]:
    """Which ID and which OOD samples belong to a task, bool ``[N]`` each."""
    sides: tuple[list[bool], list[bool]] = ([], [])
    for batch in evaluator.batches:
        sides[batch.labels is None].extend([task in batch.tasks] * batch.size)
    return torch.tensor(sides[0], dtype=torch.bool), torch.tensor(sides[1], dtype=torch.bool)


def needed(objectives: Sequence[str]) -> list[str]:
    """The quantities that the forecasts of some objectives read."""
    return [name for name in (MARGIN, LABEL, OOD_SCORE) if any(name in NEEDS[objective] for objective in objectives)]


def quantity(name: str, members: Tensor, labels: Tensor | None, ood_score: str) -> Tensor:
    """One quantity of one batch ``[B]`` from float64 logits ``[M, B, classes]``, differentiable."""
    if name == OOD_SCORE:
        return _OOD_SCORE[ood_score](members)
    assert labels is not None
    logits = _pooled(members)
    own = logits.gather(1, labels[:, None])
    others = logits.scatter(1, labels[:, None], -torch.inf)
    if name == _SPREAD:
        return others.softmax(dim=1).square().sum(dim=1)
    highest = others.amax(dim=1) if name == MARGIN else others.logsumexp(dim=1)
    return own[:, 0] - highest


def _pooled(members: Tensor) -> Tensor:
    """Logits of the mean of the softmaxes: those of a single member as they are, else log p up to a constant."""
    return members[0] if members.shape[0] == 1 else members.log_softmax(dim=2).logsumexp(dim=0)


def _odds_against(members: Tensor) -> Tensor:
    """Minus the log-odds of the highest p: minus p itself on a scale that no certainty flattens."""
    logits = _pooled(members)
    top = logits.argmax(dim=1, keepdim=True)
    return logits.scatter(1, top, -torch.inf).logsumexp(dim=1) - logits.gather(1, top)[:, 0]


def _log_entropy(members: Tensor) -> Tensor:
    log_p = _pooled(members).log_softmax(dim=1)
    return (-(log_p.exp() * log_p).sum(dim=1)).clamp_min(_TINY).log()


_OOD_SCORE: dict[str, Callable[[Tensor], Tensor]] = {
    "msp": _odds_against,
    "entropy": _log_entropy,
    "energy": lambda members: -members.logsumexp(dim=2).mean(dim=0),
    "maxlogit": lambda members: -members.amax(dim=2).mean(dim=0),
}
"""By the name of an OOD score, what orders samples as it does and is more nearly linear."""


def current_quantities(evaluator: Evaluator, names: Sequence[str]) -> Quantities:
    """Of all samples under the model as it is."""

    def of_batch(batch: int, wanted: list[str], labels: Tensor | None) -> dict[str, Tensor]:
        members = _members(evaluator, batch, evaluator.current_logits(batch))
        wanted += [_SPREAD] if LABEL in wanted else []
        return {name: quantity(name, members, labels, evaluator.ood_score).cpu() for name in wanted}

    return _of_all(evaluator, names, of_batch)


def slopes(evaluator: Evaluator, names: Sequence[str]) -> tuple[list[Candidate], Quantities]:
    """By a gate on each head of the tower of samples, in one pass forward and one backward for each quantity.

    Returns:
        The heads, and the slopes of all samples by them, float32.

    Raises:
        NonFiniteError: where a slope is NaN or infinite.
    """
    tower = evaluator.samples
    heads = [(site, head) for site, kept in zip(tower.sites, tower.kept, strict=True) for head in kept]

    def of_batch(batch: int, wanted: list[str], labels: Tensor | None) -> dict[str, Tensor]:
        return _slopes_of_batch(evaluator, batch, wanted, labels) if heads else {}

    with torch.inference_mode(False), torch.enable_grad(), _frozen(evaluator.model):
        found = _of_all(evaluator, names, of_batch)
    if not all(bool(values.isfinite().all()) for values in (*found.inside.values(), *found.outside.values())):
        raise NonFiniteError("a gradient is NaN or infinite during the search", hint="try a wider --dtype")
    return heads, found


def _slopes_of_batch(
    evaluator: Evaluator, batch: int, wanted: Sequence[str], labels: Tensor | None
) -> dict[str, Tensor]:
    parameter = next(evaluator.model.parameters())
    size = evaluator.batches[batch].size
    gates = [
        torch.ones(size, len(kept), device=parameter.device, dtype=parameter.dtype, requires_grad=bool(kept))
        for kept in evaluator.samples.kept
    ]
    members = _members(evaluator, batch, evaluator.gated_logits(batch, gates))
    found = {}
    for name in wanted:
        # Each sample has gates of its own, so the gradients of the sum are those of the samples.
        total = quantity(name, members, labels, evaluator.ood_score).sum()
        parts = torch.autograd.grad(total, [gate for gate in gates if gate.requires_grad], retain_graph=True)
        evaluator.count_backward(batch)
        found[name] = torch.cat(parts, dim=1).float().cpu()
    return found


def _members(evaluator: Evaluator, batch: int, logits: Tensor) -> Tensor:
    """Logits ``[M, B, classes]`` of the ensemble from those of the circuit, which is its last member."""
    own, beside = logits.double()[None], evaluator.batches[batch].beside
    return own if beside is None else torch.cat([torch.from_numpy(beside).to(own.device), own])


def _of_all(
    evaluator: Evaluator,
    names: Sequence[str],
    of_batch: Callable[[int, list[str], Tensor | None], dict[str, Tensor]],
) -> Quantities:
    """The quantities of all batches, from those that are wanted of each and its labels on the model's device."""
    device = next(evaluator.model.parameters()).device
    sides: tuple[dict[str, list[Tensor]], dict[str, list[Tensor]]] = ({}, {})
    for chunk in evaluator.chunks:
        for batch in chunk:
            known = evaluator.batches[batch].labels
            wanted = [name for name in names if known is not None or name == OOD_SCORE]
            labels = None if known is None else torch.from_numpy(known).to(device)
            for name, tensor in (of_batch(batch, wanted, labels) if wanted else {}).items():
                sides[known is None].setdefault(name, []).append(tensor)
        evaluator.forget(chunk)
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
        return np.array([auroc(curve_of(own, other)) for own, other in zip(inside.T, outside.T, strict=True)])
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
