"""Algorithm 1 written naively on the libraries' own models: the reference of every search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch

from tests.pico import CLIP, HF, PAIRS, images, logits, zero_columns

Head = tuple[str, int]


@dataclass
class Data:
    """ID batches with their labels and OOD batches; small numbers make ties the rule."""

    inside: list[Any]
    labels: list[torch.Tensor]
    outside: list[Any]


def is_text(variant: str) -> bool:
    return variant in HF and "vocab_size" in HF[variant][2]


def data(variant: str = "class-token", inside: int = 11, outside: int = 7, size: int = 4) -> Data:
    labels = torch.randint(0, 5, (inside,), generator=torch.Generator().manual_seed(7))
    if is_text(variant):
        return Data(_texts(variant, inside, 5, size), list(labels.split(size)), _texts(variant, outside, 6, size))
    found, strange = images(inside, seed=5), images(outside, seed=6) * 1.5
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


Measure = Callable[[Any], Fraction | float]


@torch.no_grad()
def score(model: Any, objective: str, found: Data) -> Fraction | float:
    """S of the paper, D.1.2, with pairs counted one by one; or minus a mean loss."""
    all_logits = [logits(model, x).double() for x in found.inside]
    labelled = list(zip(all_logits, found.labels, strict=True))
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
    strange = [float(c) for x in found.outside for c in logits(model, x).double().softmax(-1).amax(-1)]
    pairs = sum(Fraction(1) if o < i else Fraction(1, 2) if o == i else Fraction(0) for o in strange for i in confident)
    auroc = Fraction(pairs) / (len(confident) * len(strange))
    return auroc if objective == "ood" else (accuracy + auroc) / 2


def ranking(
    model: Any, measure: Measure, budget: int, paths: Sequence[str], start: Sequence[Head] = (), heads: int = 3
) -> list[tuple[str, int, Fraction | float]]:
    """Ablate each remaining head alone, remove the one with the highest score, first one wins a tie."""
    removed = list(start)
    steps = []
    for _ in range(budget):
        best: tuple[Fraction | float, str, int] | None = None
        for path in paths:
            for head in range(heads):
                if (path, head) in removed:
                    continue
                found = measure(zero_columns(model, [*removed, (path, head)]))
                if best is None or found > best[0]:
                    best = (found, path, head)
        assert best is not None
        removed.append((best[1], best[2]))
        steps.append((best[1], best[2], best[0]))
    return steps


def towers_of(variant: str) -> int:
    return 2 if variant in CLIP else 1
