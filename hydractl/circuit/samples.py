"""The data of a search: ID and OOD samples in batches that stay the same from the first step to the last."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hydractl.circuit.objective import margins, values_of
from hydractl.data import batches
from hydractl.data.base import Dataset
from hydractl.metrics.probabilities import Floats, log_softmax
from hydractl.model.runtime import HydraModel, move

_STRATA = 4
"""Into how many parts texts are cut by how undecided they are, before each part is sorted by length."""


@dataclass(frozen=True)
class Sample:
    """One batch of the search data.

    Attributes:
        read: its inputs, on the model's device.
        labels: int64 ``[B]``; None for OOD samples.
        size: number of samples.
    """

    read: Callable[[], Any]
    labels: np.ndarray | None
    size: int


class SampleSet:
    """One data set in an order, in batches.

    Args:
        order: the indices of its samples.
        labelled: whether it is the ID set.
    """

    def __init__(
        self, dataset: Dataset, order: Sequence[int], model: HydraModel, batch_size: int, workers: int, labelled: bool
    ) -> None:
        self._dataset, self._model, self._workers = dataset, model, workers
        self._order, self._batch_size = [int(i) for i in order], batch_size
        starts = range(0, len(order), batch_size)
        self.batches = [self._batch(self._order[i : i + batch_size], labelled) for i in starts]

    def _batch(self, indices: list[int], labelled: bool) -> Sample:
        labels = self._dataset.labels if labelled else None
        own = None if labels is None else np.asarray(labels)[indices]
        return Sample(lambda: next(self._inputs(indices, 0)), own, len(indices))

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
    advance: Callable[[int], None] = lambda samples: None,
) -> Certainty:
    """Run the whole model once over one set; ``advance`` is called with the number of samples of each batch."""
    parameter = next(model.parameters())
    indices: list[int] = []
    parts: list[Floats] = []
    with torch.inference_mode():
        for batch in batches(dataset, model.preprocess, batch_size, workers=workers):
            logits = model.member_logits(move(batch.inputs, parameter.device, parameter.dtype))[0]
            labels = batch.labels.numpy() if labelled and batch.labels is not None else None
            rows = [values_of(logits, labels, ood_score).scores]
            if labels is not None:
                log_p = log_softmax(logits.double().cpu().numpy()[None])[0]
                rows += [margins(log_p, labels), -log_p[np.arange(len(labels)), labels]]
            parts.append(np.stack(rows))
            indices += batch.indices
            advance(len(batch.indices))
    return Certainty(*np.concatenate(parts, axis=1)[:, np.argsort(indices)])
