"""Algorithm 1 that asks again only for heads whose forecast may still win (``--approx lazy:N``).

Every head has an estimate of the score without it. The head with the best one is evaluated on all the data, and its
score takes the place of its estimate, until what is in front has been evaluated: lazy evaluations (Minoux 1978), with
estimates in place of upper bounds, as no objective here is submodular.

An estimate is a forecast from a gradient, and how far the forecast of that head was off when it was last evaluated. A
forecast is made for every sample and counted as the real thing would be. The objectives are counts, and at a trained
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
from hydractl.circuit.objective import OBJECTIVES, Doubt, Measured, Tally, Values
from hydractl.circuit.race import Step
from hydractl.circuit.search import GreedySearch, counts_of, measured_of, step_of
from hydractl.circuit.tower import Candidate
from hydractl.distributed import Processes
from hydractl.errors import NonFiniteError
from hydractl.metrics.ood import auroc, curve_of

EVERY = 6
"""Slopes are taken anew once in so many steps."""

ASKED = 2
"""About how many candidates a step evaluates, where it may evaluate more (1.4 to 1.7 on the models it was tried on)."""


class Lazy(GreedySearch):
    """At each step the candidate with the best estimate is evaluated until none that was not has a better one.

    Slopes are of heads of the tower that reads samples. What a head of the tower of the labels does to each sample
    takes no single pass backward: its forecast is that nothing changes, and the first step evaluates all of them.

    Evaluated is the model without the head itself, whose states the next step goes on with if the head goes. Several
    processes share the batches. Objectives that have removed the same heads choose among all that was evaluated.

    Args:
        evaluator: one that keeps states beside those of the model as it is.
        size: how many candidates are evaluated at most, for each objective.
        every: as :data:`EVERY`; in between, forecasts add the slopes to what the samples are now.
        others: as in :class:`hydractl.circuit.search.GreedySearch`; ``bounds`` and ``at_once`` say nothing here.
    """

    def __init__(
        self, evaluator: Evaluator, heads: Sequence[Candidate], *, size: int, every: int = EVERY, **others: Any
    ) -> None:
        super().__init__(evaluator, heads, **others)
        self.size, self.every = size, every
        self._slopes: dict[tuple[Candidate, ...], tuple[list[Candidate], Quantities]] = {}
        self._taken_at = 0
        # By objective and head the step of the last evaluation, and by how much the score was above the forecast.
        self._off: dict[tuple[str, Candidate], tuple[int, float]] = {}

    def to_come(self, number: int, budget: int) -> int:
        """Return how many evaluations there may be from a step on; more where objectives ask for different heads."""
        labels = sum(self._of_labels(head) for head in self.heads) if number == 1 else 0
        return labels + sum(min(self.size, len(self.heads) - step + 1) for step in range(number, budget + 1))

    def _expect(self, evaluations: int) -> None:
        self.progress.set_total(self.evaluations + evaluations)  # every process has a part in each

    def choose(self, group: list[str], number: int, left: list[Candidate]) -> dict[str, Step]:
        """Return the best of the candidates that were evaluated."""
        forecasts = self._forecasts(group, number, left)
        known = self._records(group, number)
        counted: dict[Candidate, Measured] = {}
        tried: list[Candidate] = []

        def count(head: Candidate) -> None:
            if head not in known:
                known[head] = self._evaluate(group, number, head, {o: forecasts[o][head] for o in group})
                tried.append(head)
            counted[head] = measured_of(known[head])

        def value(objective: str, head: Candidate) -> float:
            if head in counted:
                return counted[head].score(objective)
            return forecasts[objective][head] + self._correction(objective, head)

        for head in left:
            if self._of_labels(head) and (group[0], head) not in self._off:
                count(head)
        for objective in group if left else ():
            for _ in range(self.size):
                first = max(left, key=lambda head: (value(objective, head), -head[0], -head[1]))
                if first in counted:
                    break
                count(first)
        self._learn(group, number, known)
        steps = [Step(head, measured) for head, measured in counted.items()]
        best = self._together(dict.fromkeys(group, [] if self.processes.rank else steps))
        if any(step.candidate in tried[-1:] for step in best.values()):
            self.evaluator.keep_tried()
        return best

    def _evaluate(
        self, group: list[str], number: int, head: Candidate, forecasts: Mapping[str, float]
    ) -> dict[str, Any]:
        """Count everything without one more head, and keep by how much each score is above its forecast."""
        self.evaluator.begin([*self.found[group[0]].removed, head], aside=True)
        values = _of_batches(self.evaluator, lambda batch: _to_json(self.evaluator.current(batch)), self.processes)
        tally = Tally(self.evaluator.shares)
        for batch in sorted(values):
            tally.add(batch, _from_json(values[batch]))
        measured = tally.measured()
        off = {objective: measured.score(objective) - forecast for objective, forecast in forecasts.items()}
        record = {"of": group[0], "step": number, "head": list(head), "given_up": [], "off": off, **counts_of(measured)}
        self._keep(record)
        self.evaluations += 1
        self.progress.advance()
        return record

    # --- estimates ----------------------------------------------------------------------------------------------------

    def _forecasts(self, group: list[str], number: int, left: Sequence[Candidate]) -> dict[str, dict[Candidate, float]]:
        columns, slopes = self._slopes_for(group, number)
        change = slopes.of([columns.index(head) if head in columns else -1 for head in left])
        now = current_quantities(self.evaluator, needed(group), self.processes)
        weights = self.evaluator.weights
        rows = [rows_of(self.evaluator, task) for task in range(len(weights))]
        found = {}
        for objective in group:
            tasks = [forecast(objective, now.at(own), change.at(own)) for own in rows]
            found[objective] = dict(zip(left, np.average(tasks, axis=0, weights=weights).tolist(), strict=True))
        return found

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

    def _correction(self, objective: str, head: Candidate) -> float:
        """Return by how much the forecast of a head was off when it was last evaluated, or 0.

        It is 0 if slopes have been taken anew since, except for heads of the tower of the labels, which have none.
        """
        step, off = self._off.get((objective, head), (0, 0.0))
        return off if step >= self._taken_at or self._of_labels(head) else 0.0

    def _of_labels(self, head: Candidate) -> bool:
        return self.evaluator.labels is not None and head[0] in self.evaluator.labels.sites

    # --- memory -------------------------------------------------------------------------------------------------------

    def _records(self, group: list[str], number: int) -> dict[Candidate, dict[str, Any]]:
        """Return the evaluations of a step that a journal has."""
        found = [r for r in self.journal.records if r.get("of") == group[0] and r.get("step") == number]
        return {step_of(record).candidate: record for record in found}

    def _learn(self, group: list[str], number: int, records: Mapping[Candidate, Mapping[str, Any]]) -> None:
        for head, record in records.items():
            self._off.update({(objective, head): (number, record["off"][objective]) for objective in group})

    def _remembered(self, group: list[str], number: int) -> dict[str, Step] | None:
        steps = super()._remembered(group, number)
        if steps:
            self._learn(group, number, self._records(group, number))
        return steps


def _to_json(values: Values) -> dict[str, Any]:
    return {**vars(values), "scores": values.scores.tolist(), "near": np.asarray(values.near).tolist()}


def _from_json(record: Mapping[str, Any]) -> Values:
    arrays = {name: np.array(record[name]) for name in ("scores", "near")}
    return Values(**{**record, **arrays, "doubt": Doubt(*record["doubt"])})


def _of_batches(evaluator: Evaluator, of_batch: Callable[[int], Any], processes: Processes) -> dict[int, Any]:
    """Call a function on every batch, shared out among the processes; its results are JSON values.

    Returns:
        The results by batch, those of all processes.
    """
    own = {}
    for chunk in evaluator.chunks:
        own.update({batch: of_batch(batch) for batch in chunk if batch % processes.size == processes.rank})
        evaluator.forget(chunk)
    return {int(batch): found for part in processes.gather(own) for batch, found in part.items()}


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
"""The quantities that the forecast of an objective reads."""

_SPREAD = "spread"
"""The spread of the probability of the wrong classes: the sum of their squares over the square of their sum."""

_TINY = 1e-300

_DOUBT = 0.5
"""The assumed standard error of a forecast change, as a share of that change. With it, samples near the decision
boundary count in part, which tells heads apart that leave equally many samples right."""


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
        """Return those of some ID and some OOD samples."""
        inside, outside = rows
        return Quantities(
            {name: values[inside] for name, values in self.inside.items()},
            {name: values[outside] for name, values in self.outside.items()},
        )

    def of(self, columns: Sequence[int]) -> Quantities:
        """Return the slopes by some of the heads."""
        index = torch.tensor(list(columns), dtype=torch.long)
        return Quantities(
            {name: values[:, index].double() for name, values in self.inside.items()},
            {name: values[:, index].double() for name, values in self.outside.items()},
        )


def rows_of(evaluator: Evaluator, task: int) -> tuple[Tensor, Tensor]:
    """Return which ID and which OOD samples belong to a task, bool ``[N]`` each."""
    sides: tuple[list[bool], list[bool]] = ([], [])
    for batch in evaluator.batches:
        sides[batch.labels is None].extend([task in batch.tasks] * batch.size)
    return torch.tensor(sides[0], dtype=torch.bool), torch.tensor(sides[1], dtype=torch.bool)


def needed(objectives: Sequence[str]) -> list[str]:
    """Return the quantities that the forecasts of some objectives read."""
    return [name for name in (MARGIN, LABEL, OOD_SCORE) if any(name in NEEDS[objective] for objective in objectives)]


def quantity(name: str, members: Tensor, labels: Tensor | None, ood_score: str) -> Tensor:
    """Compute one quantity of one batch ``[B]`` from float64 logits ``[M, B, classes]``, differentiably."""
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
"""For each OOD score, a function that orders samples as it does and is more nearly linear."""


def current_quantities(evaluator: Evaluator, names: Sequence[str], processes: Processes) -> Quantities:
    """Compute the quantities of all samples under the model as it is."""

    def of_batch(batch: int) -> dict[str, list[float]]:
        members = _members(evaluator, batch, evaluator.current_logits(batch))
        wanted, labels = _wanted(evaluator, batch, names)
        wanted += [_SPREAD] if LABEL in wanted else []
        return {name: quantity(name, members, labels, evaluator.ood_score).tolist() for name in wanted}

    found = _of_batches(evaluator, of_batch, processes)
    return _joined(evaluator, {b: {n: torch.tensor(v).double() for n, v in one.items()} for b, one in found.items()})


def slopes(evaluator: Evaluator, names: Sequence[str]) -> tuple[list[Candidate], Quantities]:
    """Take the slope of each quantity by a gate on each head of the tower of samples.

    That takes one forward pass and one backward pass for each quantity.

    Returns:
        The heads, and the slopes of all samples by them and by nothing (zeros), float32.

    Raises:
        NonFiniteError: where a slope is NaN or infinite.
    """
    tower = evaluator.samples
    heads = [(site, head) for site, kept in zip(tower.sites, tower.kept, strict=True) for head in kept]
    with torch.inference_mode(False), torch.enable_grad(), _frozen(evaluator.model):
        batches = range(len(evaluator.batches))
        found = _joined(evaluator, {batch: _slopes_of_batch(evaluator, batch, names) for batch in batches})
    if not all(bool(values.isfinite().all()) for values in (*found.inside.values(), *found.outside.values())):
        raise NonFiniteError("a gradient is NaN or infinite during the search", hint="try a wider --dtype")
    return heads, found


def _slopes_of_batch(evaluator: Evaluator, batch: int, names: Sequence[str]) -> dict[str, Tensor]:
    wanted, labels = _wanted(evaluator, batch, names)
    if not wanted:
        return {}
    parameter = next(evaluator.model.parameters())
    size = evaluator.batches[batch].size
    gates = [
        torch.ones(size, len(kept), device=parameter.device, dtype=parameter.dtype, requires_grad=bool(kept))
        for kept in evaluator.samples.kept
    ]
    moving = [gate for gate in gates if gate.requires_grad]
    members = _members(evaluator, batch, evaluator.gated_logits(batch, gates))
    found = {}
    for name in wanted:
        parts: Sequence[Tensor] = ()
        if moving:
            # Each sample has gates of its own, so the gradients of the sum are those of the samples.
            total = quantity(name, members, labels, evaluator.ood_score).sum()
            parts = torch.autograd.grad(total, moving, retain_graph=True)
            evaluator.count_backward(batch)
        found[name] = torch.cat([*parts, parameter.new_zeros(size, 1)], dim=1).float().cpu()  # [B, heads + 1]
    return found


def _members(evaluator: Evaluator, batch: int, logits: Tensor) -> Tensor:
    """Logits ``[M, B, classes]`` of the ensemble from those of the circuit, which is its last member."""
    own, beside = logits.double()[None], evaluator.batches[batch].beside
    return own if beside is None else torch.cat([torch.from_numpy(beside).to(own.device), own])


def _wanted(evaluator: Evaluator, batch: int, names: Sequence[str]) -> tuple[list[str], Tensor | None]:
    """Return the quantities that can be read off a batch, and its labels on the model's device.

    An OOD batch has no labels (None), and no quantity but the OOD score.
    """
    known = evaluator.batches[batch].labels
    if known is None:
        return [name for name in names if name == OOD_SCORE], None
    return list(names), torch.from_numpy(known).to(next(evaluator.model.parameters()).device)


def _joined(evaluator: Evaluator, found: Mapping[int, Mapping[str, Tensor]]) -> Quantities:
    """The quantities of all batches."""
    sides: tuple[dict[str, list[Tensor]], dict[str, list[Tensor]]] = ({}, {})
    for batch in sorted(found):
        for name, tensor in found[batch].items():
            sides[evaluator.batches[batch].labels is None].setdefault(name, []).append(tensor)
    inside, outside = ({name: torch.cat(parts) for name, parts in side.items()} for side in sides)
    return Quantities(inside, outside)


@contextlib.contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """Turn off gradients of weights inside this context: their graphs would keep more activations."""
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
    """Forecast the objective without each head, as if all quantities were linear: ``[heads]``.

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
