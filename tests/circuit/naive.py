"""Algorithm 1 written naively on the libraries' own models: the reference of every search.

It refuses data that leave to rounding what is compared: another machine, or our own search, may round the other way.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch

from tests.pico import HF, PAIRS, images, logits, zero_columns

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
        pad = 1 if "pad_token_id" in HF[variant][2] else 0
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
def score(model: Any, objective: str, found: Data) -> Score:
    """S of the paper, D.1.2, with pairs counted one by one; or minus the sum of a loss.

    Raises:
        RestsOnRounding: an ID sample may be right or wrong, or an ID and an OOD sample in either order.
    """
    all_logits = [logits(model, x).double() for x in found.inside]
    labelled = list(zip(all_logits, found.labels, strict=True))
    if objective in ("acc", "avg"):
        refuse_close_classes(torch.cat(all_logits), torch.cat(found.labels))
    if objective == "nll":
        return -float(sum(torch.nn.functional.cross_entropy(z, y, reduction="sum") for z, y in labelled))
    if objective == "brier":
        hot = [torch.nn.functional.one_hot(y, z.shape[1]) for z, y in labelled]
        return -float(sum(((z.softmax(-1) - h) ** 2).sum() for (z, _), h in zip(labelled, hot, strict=True)))
    correct = sum(int((z.argmax(-1) == y).sum()) for z, y in labelled)
    confident = [float(c) for z in all_logits for c in z.softmax(-1).amax(-1)]
    accuracy = Fraction(correct, len(confident))
    if objective == "acc":
        return accuracy
    ood_logits = [logits(model, x).double() for x in found.outside]
    refuse_close_confidences(torch.cat(all_logits), torch.cat(ood_logits))
    strange = [float(c) for z in ood_logits for c in z.softmax(-1).amax(-1)]
    pairs = sum(Fraction(1) if o < i else Fraction(1, 2) if o == i else Fraction(0) for o in strange for i in confident)
    auroc = Fraction(pairs) / (len(confident) * len(strange))
    return auroc if objective == "ood" else (accuracy + auroc) / 2


def refuse_close_classes(z: torch.Tensor, labels: torch.Tensor) -> None:
    """Refuse logits ``[N, classes]`` whose label is neither clearly the highest nor clearly not."""
    own = z.gather(1, labels[:, None])
    others = z.scatter(1, labels[:, None], -torch.inf).amax(-1, keepdim=True)
    _refuse_below(ROUNDING * max(1.0, float(z.abs().max())), own - others, "the label's logit and the highest other")


def refuse_close_confidences(inside: torch.Tensor, outside: torch.Tensor) -> None:
    """Refuse logits of ID and of OOD samples of which two have nearly the same maximum probability.

    Its log-odds are compared: a probability near 1 moves less than the logits that it is made of.
    """
    odds = [log_odds(z) for z in (inside, outside)]
    scale = max(1.0, float(inside.abs().max()), float(outside.abs().max()))
    _refuse_below(ROUNDING * scale, odds[0][:, None] - odds[1][None], "the confidences of an ID and an OOD sample")


def log_odds(z: torch.Tensor) -> torch.Tensor:
    """Log-odds of the maximum softmax probability of logits ``[N, classes]``."""
    top = z.argmax(-1, keepdim=True)
    return z.gather(1, top)[:, 0] - z.scatter(1, top, -torch.inf).logsumexp(-1)


def refuse_close_losses(scores: Sequence[Score]) -> None:
    """Refuse losses of which two are nearly the same. Equal ones are of heads that do nothing; counts are exact."""
    ordered = sorted(scores)
    for less, more in itertools.pairwise(ordered):
        if isinstance(more, float) and less != more:
            _refuse_below(ROUNDING * max(1.0, abs(more)), torch.tensor(more - less), "two losses")


def _refuse_below(rounding: float, differences: torch.Tensor, of: str) -> None:
    smallest = float(differences.abs().min())
    if smallest <= rounding:
        raise RestsOnRounding(
            f"{of} differ by {smallest:.1e}, and rounding is {rounding:.1e}: the test needs other data"
        )


def ranking(
    model: Any, measure: Measure, budget: int, paths: Sequence[str], start: Sequence[Head] = (), heads: int = 3
) -> list[tuple[str, int, Score]]:
    """Ablate each remaining head alone, remove the one with the highest score, first one wins a tie."""
    removed = list(start)
    steps = []
    for _ in range(budget):
        left = [(path, head) for path in paths for head in range(heads) if (path, head) not in removed]
        scores = [measure(zero_columns(model, [*removed, one])) for one in left]
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
