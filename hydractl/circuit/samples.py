"""The data of a search: ID and OOD samples in batches that stay the same from the first step to the last."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hydractl.circuit.objective import margins, values_of
from hydractl.data import batches
from hydractl.data.base import Dataset
from hydractl.metrics.probabilities import Floats, pooled_log_probs
from hydractl.model.runtime import HydraModel, move

_STRATA = 4
"""Into how many parts texts are cut by how undecided they are, before each part is sorted by length."""

Columns = tuple[int, int | None]
"""Classes of a model: from the first number to before the second."""

EVERY: Columns = (0, None)


@dataclass(frozen=True)
class Sample:
    """One batch of the search data.

    Attributes:
        read: its inputs, on the model's device.
        labels: int64 ``[B]``; None for OOD samples.
        size: number of samples.
        beside: float64 ``[M - 1, B, classes]``, the logits of the members that the circuit is to join, if any.
        tasks: the tasks it belongs to.
        columns: from which to which the classes of those tasks are among the model's.
    """

    read: Callable[[], Any]
    labels: np.ndarray | None
    size: int
    beside: Floats | None = None
    tasks: Sequence[int] = (0,)
    columns: Columns = EVERY


class SampleSet:
    """One data set in an order, in batches.

    Args:
        order: the indices of its samples.
        labelled: whether it is an ID set.
        beside: as of :class:`Sample`, for all samples in the order of the data set and all classes of the model.
        tasks, columns: as of :class:`Sample`.
    """

    def __init__(
        self,
        dataset: Dataset,
        order: Sequence[int],
        model: HydraModel,
        batch_size: int,
        workers: int,
        labelled: bool,
        beside: Floats | None = None,
        tasks: Sequence[int] = (0,),
        columns: Columns = EVERY,
    ) -> None:
        self._dataset, self._model, self._workers, self._beside = dataset, model, workers, beside
        self._tasks, self._columns = tasks, columns
        self._order, self._batch_size = [int(i) for i in order], batch_size
        starts = range(0, len(order), batch_size)
        self.batches = [self._batch(self._order[i : i + batch_size], labelled) for i in starts]

    def _batch(self, indices: list[int], labelled: bool) -> Sample:
        labels = self._dataset.labels if labelled else None
        own = None if labels is None else np.asarray(labels)[indices]
        beside = None if self._beside is None else self._beside[:, indices, slice(*self._columns)]
        size = len(indices)
        return Sample(lambda: next(self._inputs(indices, 0)), own, size, beside, self._tasks, self._columns)

    def stream(self) -> Iterator[Any]:
        """The inputs of all batches in turn, read ahead by worker processes where there are any."""
        return self._inputs(self._order, self._workers)

    def _inputs(self, indices: list[int], workers: int) -> Iterator[Any]:
        parameter = next(self._model.parameters())
        model, size = self._model, self._batch_size
        for batch in batches(self._dataset, model.preprocess, size, workers=workers, indices=indices):
            yield move(batch.inputs, parameter.device, parameter.dtype)


@dataclass(frozen=True)
class Certainty:
    """What the model says of every sample of one set before anything is removed, in the order of the data set.

    Attributes:
        scores: the OOD scores.
        margin: log p of the label minus the highest log p of another class; None for OOD samples.
        loss: -log p of the label; None for OOD samples.
    """

    scores: Floats
    margin: Floats | None = None
    loss: Floats | None = None


def undecided_first(
    inside: Certainty, outside: Certainty | None, objectives: Sequence[str], lengths: Mapping[str, Sequence[int] | None]
) -> dict[str, list[int]]:
    """An order that shows early what a candidate loses: of each set the indices of those samples first that decide.

    ID samples that are wrong, nearly wrong, or look like OOD ones come first, and OOD samples that look like ID ones.
    Any order is right; this one lets a losing candidate stop early. Where lengths matter, samples of about the same
    hazard are sorted by length, so that little is padded.
    """
    assert inside.margin is not None and inside.loss is not None
    hazards = np.zeros(len(inside.scores))
    if any(objective in ("acc", "avg") for objective in objectives):
        hazards += _rank(-inside.margin)
    if any(objective in ("nll", "brier") for objective in objectives):
        hazards += _rank(inside.loss)
    if outside is not None and any(objective in ("ood", "avg") for objective in objectives):
        hazards += _rank(inside.scores)
    order = {"id": _by_hazard(hazards, lengths["id"])}
    if outside is not None:
        order["ood"] = _by_hazard(_rank(-outside.scores), lengths["ood"])
    return order


def _rank(values: Floats) -> Floats:
    """The position of each value among them, from 0 to 1."""
    order = np.argsort(values, kind="stable")
    ranks = np.empty(len(values))
    ranks[order] = np.arange(len(values)) / max(1, len(values) - 1)
    return ranks


def _by_hazard(hazards: Floats, lengths: Sequence[int] | None) -> list[int]:
    order = np.argsort(-hazards, kind="stable")
    if lengths is None:
        return [int(i) for i in order]
    return [int(i) for part in np.array_split(order, _STRATA) for i in sorted(part, key=lambda i: -lengths[i])]


def measure_certainty(
    dataset: Dataset,
    model: HydraModel,
    batch_size: int,
    workers: int,
    ood_score: str,
    labelled: bool,
    beside: Floats | None = None,
    advance: Callable[[int], None] = lambda samples: None,
    columns: Columns = EVERY,
) -> Certainty:
    """Run the whole model once over one set; ``advance`` is called with the number of samples of each batch."""
    parts: list[Floats] = []
    logits = logits_of(dataset, model, batch_size, workers, advance)[:, slice(*columns)]
    known = dataset.labels if labelled else None
    for start in range(0, len(logits), batch_size):
        rows = slice(start, start + batch_size)
        own, others = logits[rows], None if beside is None else beside[:, rows, slice(*columns)]
        labels = None if known is None else np.asarray(known)[rows]
        parts.append(np.stack(_certainty(own, labels, ood_score, others)))
    return Certainty(*np.concatenate(parts, axis=1))


def _certainty(logits: Tensor, labels: np.ndarray | None, ood_score: str, beside: Floats | None) -> list[Floats]:
    """The rows of :class:`Certainty` of some samples."""
    scores = values_of(logits, labels, ood_score, beside).scores
    if labels is None:
        return [scores]
    own = logits.double().numpy()[None]
    log_p = pooled_log_probs(own if beside is None else np.concatenate([beside, own]))
    return [scores, margins(log_p, labels), -log_p[np.arange(len(labels)), labels]]


def logits_of(
    dataset: Dataset,
    model: HydraModel,
    batch_size: int,
    workers: int,
    advance: Callable[[int], None] = lambda samples: None,
) -> Tensor:
    """Logits ``[N, classes]`` of a model with one member, in the order of the data set, on the CPU."""
    parameter = next(model.parameters())
    indices: list[int] = []
    parts: list[Tensor] = []
    with torch.inference_mode():
        for batch in batches(dataset, model.preprocess, batch_size, workers=workers):
            parts.append(model.member_logits(move(batch.inputs, parameter.device, parameter.dtype))[0].cpu())
            indices += batch.indices
            advance(len(batch.indices))
    return torch.cat(parts)[np.argsort(indices)]
