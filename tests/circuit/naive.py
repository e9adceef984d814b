"""Algorithm 1 written naively on the libraries' own models: the reference of every search.

It refuses data that leave to rounding what is compared: another machine, or our own search, may round the other way.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import torch

from tests.pico import HF, PAIRS, images, logits, without_heads

Head = tuple[str, int]


@dataclass
class Data:
    """ID batches with their labels and OOD batches; small numbers make ties the rule."""

    inside: list[Any]
    labels: list[torch.Tensor]
    outside: list[Any]


def is_text(variant: str) -> bool:
    return variant in HF and "vocab_size" in HF[variant][2]


def data(variant: str = "class-token", inside: int = 11, outside: int = 7, size: int = 4, draw: int = 0) -> Data:
    """Another ``draw`` is for a test whose data leave something to rounding."""
    first, second, third = (seed + 10 * draw for seed in (5, 6, 7))
    labels = torch.randint(0, 5, (inside,), generator=torch.Generator().manual_seed(third))
    if is_text(variant):
        texts = (_texts(variant, count, seed, size) for count, seed in ((inside, first), (outside, second)))
        return Data(next(texts), list(labels.split(size)), next(texts))
    found, strange = images(inside, seed=first), images(outside, seed=second) * 1.5
    return Data(list(found.split(size)), list(labels.split(size)), list(strange.split(size)))


def _texts(variant: str, count: int, seed: int, size: int) -> list[dict[str, torch.Tensor]]:
    """Padded batches of unequal length."""
    draw = torch.Generator().manual_seed(seed)
    batches = []
    for start in range(0, count, size):
        rows = min(size, count - start)
        lengths = torch.randint(2, 9, (rows,), generator=draw)
        tokens = int(lengths.max())
        mask = (torch.arange(tokens)[None] < lengths[:, None]).long()
        ids = torch.randint(5, 40, (rows, tokens), generator=draw)
        pad = HF[variant][2].get("pad_token_id", 0)
        batch = {"input_ids": torch.where(mask == 1, ids, pad), "attention_mask": mask}
        if variant in PAIRS:
            batch["token_type_ids"] = torch.zeros_like(ids)
        batches.append(batch)
    return batches


Score = Fraction | float
Measure = Callable[[Any], Score]

ROUNDING = 1e-5
"""Two logits that differ by less may come in the other order elsewhere: the tolerance of every identity."""


class RestsOnRounding(AssertionError):
    """A test wants to compare what rounding decides: it needs other data."""


@torch.no_grad()
def bounds(model: Any, objective: str, found: Data) -> tuple[Score, Score]:
    """S of the paper, D.1.2, with what rounding may decide counted against the model and for it, sample by sample and
    pair by pair; or minus the sum of a loss, less and more a unit of 2^-20 for each sample."""
    inside, labels = torch.cat([logits(model, x).double() for x in found.inside]), torch.cat(found.labels)
    if objective in ("nll", "brier"):
        loss, rounding = float(_losses(objective, inside, labels).sum()), len(labels) * 2.0**-20
        return -loss - rounding, -loss + rounding
    own = inside.gather(1, labels[:, None])
    accuracy = _shares_above(own - inside.scatter(1, labels[:, None], -torch.inf).amax(1, keepdim=True), inside)
    if objective == "acc":
        return accuracy
    outside = torch.cat([logits(model, x).double() for x in found.outside])
    gaps = _log_odds(inside)[:, None] - _log_odds(outside)[None]
    auroc = _shares_above(gaps, torch.cat([inside, outside]))
    return auroc if objective == "ood" else ((accuracy[0] + auroc[0]) / 2, (accuracy[1] + auroc[1]) / 2)


def _losses(objective: str, z: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if objective == "nll":
        return torch.nn.functional.cross_entropy(z, labels, reduction="none")
    return (z.softmax(-1) - torch.nn.functional.one_hot(labels, z.shape[1])).square().sum(1)


def _log_odds(z: torch.Tensor) -> torch.Tensor:
    """Log-odds of the maximum softmax probability: they move as much as the logits do, however near to 1 it is."""
    top = z.argmax(1, keepdim=True)
    return z.gather(1, top)[:, 0] - z.scatter(1, top, -torch.inf).logsumexp(1)


def _shares_above(differences: torch.Tensor, z: torch.Tensor) -> tuple[Fraction, Fraction]:
    """How many of the differences of logits ``z`` are positive, surely and perhaps."""
    rounding = ROUNDING * max(1.0, float(z.abs().max()))
    surely, perhaps = (int((differences > bar).sum()) for bar in (rounding, -rounding))
    return Fraction(surely, differences.numel()), Fraction(perhaps, differences.numel())


def score(model: Any, objective: str, found: Data) -> Score:
    """S of the paper; or minus the sum of a loss.

    Raises:
        RestsOnRounding: an ID sample may be right or wrong, or an ID and an OOD sample in either order.
    """
    least, most = bounds(model, objective, found)
    if isinstance(least, Fraction) and least != most:
        raise RestsOnRounding(f"{objective} may be {least} or {most}, as rounding has it: the test needs other data")
    return (least + most) / 2


def ranking(
    model: Any, measure: Measure, budget: int, paths: Sequence[str], start: Sequence[Head] = (), heads: int = 3
) -> list[tuple[str, int, Score]]:
    """Ablate each remaining head alone, remove the one with the highest score, first one wins a tie."""

    def without(removed: Sequence[Head]) -> Score:
        with without_heads(model, removed):
            return measure(model)

    return _ranking(without, budget, [(path, head) for path in paths for head in range(heads)], start)


def rankings(
    model: Any, found: Data, objectives: Sequence[str], budget: int, paths: Sequence[str], others: Sequence[Any] = ()
) -> dict[str, list[tuple[str, int, Score]]]:
    """The rankings of several objectives, of the ensemble with ``others`` where there are any; what the model says
    without the same heads is computed once."""
    known: dict[frozenset[Head], list[torch.Tensor]] = {}
    batches = [*found.inside, *found.outside]
    numbers = Data([*range(len(found.inside))], found.labels, [*range(len(found.inside), len(batches))])

    @torch.no_grad()
    def without(removed: Sequence[Head], objective: str) -> Score:
        key = frozenset(removed)
        if key not in known:
            with without_heads(model, removed):
                known[key] = [log_mean([*others, model], x) if others else logits(model, x) for x in batches]
        return score(known[key].__getitem__, objective, numbers)

    heads = [(path, head) for path in paths for head in range(3)]
    return {o: _ranking(partial(without, objective=o), budget, heads, ()) for o in objectives}


def log_mean(models: Sequence[Any], batch: Any) -> torch.Tensor:
    """Logarithm of the mean of the models' softmaxes."""
    return torch.stack([logits(model, batch).double().softmax(-1) for model in models]).mean(0).log()


def constrained(
    model: Any, found: Data, objective: str, constraints: Sequence[tuple[str, Fraction, bool]], paths: Sequence[str]
) -> list[Head]:
    """The same, of those heads alone without which each score is at least a number, or at most that below the base."""
    keys = [key for key, _, _ in constraints]

    def scores(removed: Sequence[Head]) -> dict[str, Score]:
        with without_heads(model, removed):
            return {key: score(model, key, found) for key in {objective, *keys}}

    base = scores([])
    least = {key: base[key] - number if below else number for key, number, below in constraints}
    removed: list[Head] = []
    while len(left := [(p, h) for p in paths for h in range(3) if (p, h) not in removed]) > 1:
        found_scores = {head: scores([*removed, head]) for head in left}
        kept = [head for head in left if all(found_scores[head][key] >= least[key] for key in keys)]
        if not kept:
            break
        removed.append(kept[first_highest([found_scores[head][objective] for head in kept])])
    return removed


def _ranking(
    score_without: Callable[[Sequence[Head]], Score], budget: int, heads: Sequence[Head], start: Sequence[Head]
) -> list[tuple[str, int, Score]]:
    removed = list(start)
    steps = []
    for _ in range(budget):
        left = [head for head in heads if head not in removed]
        scores = [score_without([*removed, one]) for one in left]
        best = first_highest(scores)
        removed.append(left[best])
        steps.append((*left[best], scores[best]))
    return steps


def first_highest(scores: Sequence[Score]) -> int:
    """Index of the highest score, of equal ones the first.

    Raises:
        RestsOnRounding: two losses are the lowest, but for rounding.
    """
    refuse_close_losses(sorted(scores)[-2:])
    return max(range(len(scores)), key=lambda i: (scores[i], -i))


def refuse_close_losses(scores: Sequence[Score]) -> None:
    """Refuse losses of which two are nearly the same. Equal ones are of heads that do nothing; counts are exact."""
    for less, more in itertools.pairwise(sorted(scores)):
        if isinstance(more, float) and 0 < more - less <= ROUNDING * max(1.0, abs(more)):
            raise RestsOnRounding(f"two losses differ by {more - less:.1e}: the test needs other data")


def surely_highest(scores: Sequence[tuple[Score, Score]]) -> int:
    """Index of the score that is the highest wherever in its bounds each may be, of equal ones the first.

    Raises:
        RestsOnRounding: there is none.
    """
    best = max(range(len(scores)), key=lambda i: (scores[i][0], -i))
    least = scores[best][0]
    for i, (_, most) in enumerate(scores):
        if i != best and (most, -i) > (least, -best):
            raise RestsOnRounding(f"a score of {least} or more may not be the highest: another is up to {most}")
    return best
