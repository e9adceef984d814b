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
    seed_inside = 5 + 10 * draw
    seed_outside = 6 + 10 * draw
    seed_of_labels = 7 + 10 * draw
    labels = torch.randint(0, 5, (inside,), generator=torch.Generator().manual_seed(seed_of_labels))
    label_batches = list(labels.split(size))
    if is_text(variant):
        return Data(
            inside=_texts(variant, inside, seed_inside, size),
            labels=label_batches,
            outside=_texts(variant, outside, seed_outside, size),
        )
    id_images = images(inside, seed=seed_inside)
    ood_images = images(outside, seed=seed_outside) * 1.5
    return Data(list(id_images.split(size)), label_batches, list(ood_images.split(size)))


def _texts(variant: str, count: int, seed: int, size: int) -> list[dict[str, torch.Tensor]]:
    """Draw padded batches of unequal length."""
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
def bounds(model: Any, objective: str, samples: Data) -> tuple[Score, Score]:
    """Return S of the paper, D.1.2, with what rounding may decide counted against the model, and counted for it.

    Samples and pairs are decided one by one. Of a loss, return minus the sum, less and more a unit of 2^-20 for each
    sample.
    """
    inside = torch.cat([logits(model, batch).double() for batch in samples.inside])
    labels = torch.cat(samples.labels)
    if objective == "nll":
        loss = float(torch.nn.functional.cross_entropy(inside, labels, reduction="sum"))
        rounding = len(labels) * 2.0**-20
        return -loss - rounding, -loss + rounding
    logit_of_label = inside.gather(1, labels[:, None])
    highest_other = inside.scatter(1, labels[:, None], -torch.inf).amax(1, keepdim=True)
    accuracy = _shares_above(logit_of_label - highest_other, inside)
    if objective == "acc":
        return accuracy
    outside = torch.cat([logits(model, batch).double() for batch in samples.outside])
    gaps = _log_odds(inside)[:, None] - _log_odds(outside)[None]  # [ID, OOD]
    auroc = _shares_above(gaps, torch.cat([inside, outside]))
    if objective == "ood":
        return auroc
    return (accuracy[0] + auroc[0]) / 2, (accuracy[1] + auroc[1]) / 2


def _log_odds(z: torch.Tensor) -> torch.Tensor:
    """Return log-odds of the highest probability: they move as much as the logits do, however near to 1 it is."""
    top = z.argmax(1, keepdim=True)
    others = z.scatter(1, top, -torch.inf)
    return z.gather(1, top)[:, 0] - others.logsumexp(1)


def _shares_above(differences: torch.Tensor, z: torch.Tensor) -> tuple[Fraction, Fraction]:
    """Return which share of the differences of logits ``z`` is positive, surely and perhaps."""
    rounding = ROUNDING * max(1.0, float(z.abs().max()))
    surely = int((differences > rounding).sum())
    perhaps = int((differences > -rounding).sum())
    return Fraction(surely, differences.numel()), Fraction(perhaps, differences.numel())


def score(model: Any, objective: str, samples: Data) -> Score:
    """Return S of the paper; or minus the sum of a loss.

    Raises:
        RestsOnRounding: an ID sample may be right or wrong, or an ID and an OOD sample in either order.
    """
    least, most = bounds(model, objective, samples)
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

    return _ranking(without, budget, all_heads(paths, heads), start)


def all_heads(paths: Sequence[str], heads: int = 3) -> list[Head]:
    """Return all heads of some sites that have as many each, in model order."""
    return [(path, head) for path in paths for head in range(heads)]


def rankings(
    model: Any, samples: Data, objectives: Sequence[str], budget: int, paths: Sequence[str]
) -> dict[str, list[tuple[str, int, Score]]]:
    """Return the rankings of several objectives; the model without the same heads runs once."""
    logits_without: dict[frozenset[Head], list[torch.Tensor]] = {}
    batches = [*samples.inside, *samples.outside]
    # The number of each batch stands in for it.
    inside = list(range(len(samples.inside)))
    outside = list(range(len(samples.inside), len(batches)))
    numbers = Data(inside, samples.labels, outside)

    @torch.no_grad()
    def without(removed: Sequence[Head], objective: str) -> Score:
        key = frozenset(removed)
        if key not in logits_without:
            with without_heads(model, removed):
                logits_without[key] = [logits(model, batch) for batch in batches]
        return score(logits_without[key].__getitem__, objective, numbers)

    rankings_by_objective = {}
    for objective in objectives:
        score_without = partial(without, objective=objective)
        rankings_by_objective[objective] = _ranking(score_without, budget, all_heads(paths), ())
    return rankings_by_objective


def _ranking(
    score_without: Callable[[Sequence[Head]], Score], budget: int, heads: Sequence[Head], start: Sequence[Head]
) -> list[tuple[str, int, Score]]:
    removed = list(start)
    steps = []
    for _ in range(budget):
        left = [head for head in heads if head not in removed]
        scores = [score_without([*removed, head]) for head in left]
        best = first_highest(scores)
        path, head = left[best]
        removed.append((path, head))
        steps.append((path, head, scores[best]))
    return steps


def first_highest(scores: Sequence[Score]) -> int:
    """Return the index of the highest score, of equal ones the first.

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
