"""The data of a search: ID and OOD samples in batches that stay the same from the first step to the last."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hydractl.circuit.counting import margins, one_member, values_of
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
        tasks: the tasks it belongs to.
        columns: from which to which the classes of those tasks are among the model's.
    """

    read: Callable[[], Any]
    labels: np.ndarray | None
    size: int
    tasks: Sequence[int] = (0,)
    columns: ClassRange = ALL_CLASSES


class SampleSet:
    """One data set in an order, in batches.

    Args:
        order: the indices of its samples.
        labelled: whether it is an ID set.
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
        tasks: Sequence[int] = (0,),
        columns: ClassRange = ALL_CLASSES,
    ) -> None:
        self._dataset = dataset
        self._model = model
        self._batch_size = batch_size
        self._workers = workers
        self._labels = dataset.labels if labelled else None
        self._tasks = tasks
        self._columns = columns
        self._order = [int(index) for index in order]
        self.batches = []
        for start in range(0, len(order), batch_size):
            indices = self._order[start : start + batch_size]
            self.batches.append(self._batch(indices))

    def _batch(self, indices: list[int]) -> SearchBatch:
        """Return the batch of some samples, whose inputs are read when they are asked for."""
        labels = None
        if self._labels is not None:
            labels = np.asarray(self._labels)[indices]

        def read() -> Any:
            return next(self._inputs(indices, workers=0))

        return SearchBatch(read, labels, len(indices), self._tasks, self._columns)

    def stream(self) -> Iterator[Any]:
        """Return the inputs of all batches in turn, read ahead by worker processes where there are any."""
        return self._inputs(self._order, self._workers)

    def _inputs(self, indices: list[int], workers: int) -> Iterator[Any]:
        """Yield the inputs of some samples in batches, on the model's device."""
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
    Any order gives the same result; this one lets a losing candidate stop early. Where lengths matter, samples of about
    the same hazard are sorted by length, so that little is padded.

    Args:
        inside, outside: what the model says of the ID and the OOD samples.
        objectives: what is searched for.
        lengths: of the samples of ``id`` and ``ood`` in tokens; None where they do not matter.
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
    ranks[order] = np.arange(len(values))
    return ranks / max(1, len(values) - 1)


def _by_hazard(hazards: Floats, lengths: Sequence[int] | None) -> list[int]:
    """Return the indices of samples, the highest hazard first; where lengths matter, by length within each part."""
    order: list[int] = np.argsort(-hazards, kind="stable").tolist()
    if lengths is None:
        return order
    by_length: list[int] = []
    for stratum in np.array_split(order, _STRATA):
        by_length += sorted(stratum.tolist(), key=lambda index: -lengths[index])
    return by_length


def measure_certainty(
    dataset: Dataset,
    model: HydraModel,
    batch_size: int,
    workers: int,
    ood_score: str,
    labelled: bool,
    advance: Callable[[int], None] = lambda samples: None,
    columns: ClassRange = ALL_CLASSES,
) -> Certainty:
    """Run the whole model once over one set; ``advance`` is called with the number of samples of each batch."""
    classes = slice(*columns)
    logits = logits_of(dataset, model, batch_size, workers, advance)[:, classes]
    all_labels = np.asarray(dataset.labels) if labelled else None
    scores = []
    margins_of_batches = []
    losses = []
    for start in range(0, len(logits), batch_size):
        samples = slice(start, start + batch_size)
        labels = None if all_labels is None else all_labels[samples]
        scores.append(values_of(logits[samples], labels, ood_score).scores)
        if labels is not None:
            log_p = pooled_log_probs(one_member(logits[samples]))  # [B, classes]
            margins_of_batches.append(margins(log_p, labels))
            losses.append(-log_p[np.arange(len(labels)), labels])
    if not labelled:
        return Certainty(np.concatenate(scores))
    return Certainty(np.concatenate(scores), np.concatenate(margins_of_batches), np.concatenate(losses))


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
    in_order_of_set = np.argsort(indices)
    return torch.cat(parts)[in_order_of_set]
