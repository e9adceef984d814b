"""The data of a search: ID and OOD samples in batches that stay the same from the first step to the last."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hydractl.circuit.counting import margins, values_of, with_others
from hydractl.data import batches
from hydractl.data.base import Dataset
from hydractl.metrics.probabilities import Floats, pooled_log_probs
from hydractl.model.runtime import HydraModel, move

_STRATA = 4
"""Into how many parts texts are cut by how undecided they are, before each part is sorted by length."""

ClassRange = tuple[int, int | None]
"""Classes of a model: from the first number to before the second."""

ALL_CLASSES: ClassRange = (0, None)


@dataclass(frozen=True)
class SearchBatch:
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
    columns: ClassRange = ALL_CLASSES


class SampleSet:
    """One data set in an order, in batches.

    Args:
        order: the indices of its samples.
        labelled: whether it is an ID set.
        beside: as of :class:`SearchBatch`, for all samples in the order of the data set and all classes of the model.
        tasks, columns: as of :class:`SearchBatch`.
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
        columns: ClassRange = ALL_CLASSES,
    ) -> None:
        self._dataset = dataset
        self._model = model
        self._batch_size = batch_size
        self._workers = workers
        self._labels = dataset.labels if labelled else None
        self._beside = beside
        self._tasks = tasks
        self._columns = columns
        self._order = [int(index) for index in order]
        starts = range(0, len(order), batch_size)
        self.batches = [self._batch(self._order[start : start + batch_size]) for start in starts]

    def _batch(self, indices: list[int]) -> SearchBatch:
        labels = None
        if self._labels is not None:
            labels = np.asarray(self._labels)[indices]
        beside = None
        if self._beside is not None:
            beside = self._beside[:, indices, slice(*self._columns)]

        def read() -> Any:
            return next(self._inputs(indices, workers=0))

        return SearchBatch(read, labels, len(indices), beside, self._tasks, self._columns)

    def stream(self) -> Iterator[Any]:
        """Return the inputs of all batches in turn, read ahead by worker processes where there are any."""
        return self._inputs(self._order, self._workers)

    def _inputs(self, indices: list[int], workers: int) -> Iterator[Any]:
        parameter = next(self._model.parameters())
        read = batches(self._dataset, self._model.preprocess, self._batch_size, workers=workers, indices=indices)
        for batch in read:
            yield move(batch.inputs, parameter.device, parameter.dtype)


# --- an order that shows early what a candidate loses -----------------------------------------------------------------


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
    """Return an order that shows early what a candidate loses: the indices of each set, those that decide first.

    ID samples that are wrong, nearly wrong, or look like OOD ones come first, and OOD samples that look like ID ones.
    Any order is right; this one lets a losing candidate stop early. Where lengths matter, samples of about the same
    hazard are sorted by length, so that little is padded.
    """
    assert inside.margin is not None and inside.loss is not None
    hazards = np.zeros(len(inside.scores))
    if "acc" in objectives or "avg" in objectives:
        hazards += _relative_rank(-inside.margin)
    if "nll" in objectives or "brier" in objectives:
        hazards += _relative_rank(inside.loss)
    if outside is not None and ("ood" in objectives or "avg" in objectives):
        hazards += _relative_rank(inside.scores)
    order = {"id": _by_hazard(hazards, lengths["id"])}
    if outside is not None:
        order["ood"] = _by_hazard(_relative_rank(-outside.scores), lengths["ood"])
    return order


def _relative_rank(values: Floats) -> Floats:
    """Return the position of each value among them, from 0 to 1."""
    order = np.argsort(values, kind="stable")
    ranks = np.empty(len(values))
    ranks[order] = np.arange(len(values)) / max(1, len(values) - 1)
    return ranks


def _by_hazard(hazards: Floats, lengths: Sequence[int] | None) -> list[int]:
    order = np.argsort(-hazards, kind="stable")
    if lengths is None:
        return [int(index) for index in order]
    by_length: list[int] = []
    for stratum in np.array_split(order, _STRATA):
        longest_first = sorted(stratum, key=lambda index: -lengths[index])
        by_length += [int(index) for index in longest_first]
    return by_length


def measure_certainty(
    dataset: Dataset,
    model: HydraModel,
    batch_size: int,
    workers: int,
    ood_score: str,
    labelled: bool,
    beside: Floats | None = None,
    advance: Callable[[int], None] = lambda samples: None,
    columns: ClassRange = ALL_CLASSES,
) -> Certainty:
    """Run the whole model once over one set; ``advance`` is called with the number of samples of each batch."""
    classes = slice(*columns)
    logits = logits_of(dataset, model, batch_size, workers, advance)[:, classes]
    all_labels = dataset.labels if labelled else None
    parts: list[Floats] = []
    for start in range(0, len(logits), batch_size):
        rows = slice(start, start + batch_size)
        labels = None if all_labels is None else np.asarray(all_labels)[rows]
        others = None if beside is None else beside[:, rows, classes]
        parts.append(np.stack(_certainty(logits[rows], labels, ood_score, others)))
    return Certainty(*np.concatenate(parts, axis=1))


def _certainty(logits: Tensor, labels: np.ndarray | None, ood_score: str, beside: Floats | None) -> list[Floats]:
    """Return the rows of :class:`Certainty` of some samples."""
    scores = values_of(logits, labels, ood_score, beside).scores
    if labels is None:
        return [scores]
    log_p = pooled_log_probs(with_others(logits, beside))
    loss = -log_p[np.arange(len(labels)), labels]
    return [scores, margins(log_p, labels), loss]


def logits_of(
    dataset: Dataset,
    model: HydraModel,
    batch_size: int,
    workers: int,
    advance: Callable[[int], None] = lambda samples: None,
) -> Tensor:
    """Return the logits ``[N, classes]`` of a model with one member, in the order of the data set, on the CPU."""
    parameter = next(model.parameters())
    indices: list[int] = []
    parts: list[Tensor] = []
    with torch.inference_mode():
        for batch in batches(dataset, model.preprocess, batch_size, workers=workers):
            inputs = move(batch.inputs, parameter.device, parameter.dtype)
            parts.append(model.member_logits(inputs)[0].cpu())
            indices += batch.indices
            advance(len(batch.indices))
    return torch.cat(parts)[np.argsort(indices)]
