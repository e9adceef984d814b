"""The data of a search: ID and OOD samples in batches that stay the same from the first step to the last."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hydractl.circuit.counting import as_one_member
from hydractl.data import batches
from hydractl.data.base import Dataset
from hydractl.metrics.ood import OOD_SCORES
from hydractl.metrics.probabilities import Floats, pooled_log_probs
from hydractl.model.runtime import HydraModel, move

_STRATA = 4
"""The number of groups that texts are divided into, the most undecided first; each group is then sorted by length."""

ClassRange = tuple[int, int | None]
"""A range of a model's classes: the first class, and the class after the last; None: to the end."""

ALL_CLASSES: ClassRange = (0, None)


@dataclass(frozen=True)
class SearchBatch:
    """One batch of the search data.

    Attributes:
        read: returns the inputs of the batch, on the model's device.
        labels: int64 ``[B]``; None for OOD samples.
        size: the number of samples, B.
        tasks: the indices of the tasks that the batch belongs to.
        columns: the range of these tasks' classes among the classes of the model.
    """

    read: Callable[[], Any]
    labels: np.ndarray | None
    size: int
    tasks: Sequence[int] = (0,)
    columns: ClassRange = ALL_CLASSES


class SampleSet:
    """One data set in a given order, cut into batches.

    Args:
        dataset: the set.
        order: the indices of its samples, perhaps only some of them.
        model: the model, whose preprocessing, device and dtype the inputs get.
        batch_size: how many samples a batch has.
        workers: how many processes read ahead in :meth:`stream`.
        labelled: whether it is an ID set.
        tasks: the indices of the tasks that read the set.
        columns: the range of these tasks' classes among the classes of the model.

    Attributes:
        batches: the batches; their inputs are read when they are asked for.
    """

    def __init__(
        self,
        dataset: Dataset,
        order: Sequence[int],
        model: HydraModel,
        batch_size: int,
        workers: int | None,
        labelled: bool,
        tasks: Sequence[int] = (0,),
        columns: ClassRange = ALL_CLASSES,
    ) -> None:
        """Cut the samples, in the given order, into batches; no inputs are read yet.

        Samples of an OOD set (not ``labelled``) get no labels, even if its files have some.
        """
        self._dataset = dataset
        self._model = model
        self._batch_size = batch_size
        self._workers = workers
        self._labels = dataset.labels if labelled else None
        self._tasks = tasks
        self._columns = columns

        # Cut the order into batches, which read their samples when they are asked for.
        self._order = [int(index) for index in order]
        self.batches = []
        for start in range(0, len(order), batch_size):
            end = start + batch_size
            batch = self._batch(self._order[start:end])
            self.batches.append(batch)

    def _batch(self, indices: list[int]) -> SearchBatch:
        """Return the batch of some samples; its inputs are read when they are asked for."""
        labels = None  # of an OOD set
        if self._labels is not None:
            labels_of_set = np.asarray(self._labels)
            labels = labels_of_set[indices]

        def read() -> Any:
            """Return the inputs of these samples, which are read now and make up one batch."""
            return next(self._inputs_in_batches(indices, workers=0))

        return SearchBatch(read, labels, len(indices), self._tasks, self._columns)

    def stream(self) -> Iterator[Any]:
        """Return an iterator over the inputs of all batches, read ahead by worker processes if there are any."""
        return self._inputs_in_batches(self._order, self._workers)

    def _inputs_in_batches(self, indices: list[int], workers: int | None) -> Iterator[Any]:
        """Yield the inputs of some samples in batches, on the model's device and in its dtype.

        Args:
            indices: the samples, in the order in which they are read.
            workers: how many processes read ahead; 0 for none, None for the usual number.
        """
        model = self._model
        parameter = next(model.parameters())
        for batch in batches(self._dataset, model.preprocess, self._batch_size, workers=workers, indices=indices):
            yield move(batch.inputs, parameter.device, parameter.dtype)


# --- an order in which a losing candidate is seen early ---------------------------------------------------------------


def undecided_first(
    dataset: Dataset,
    model: HydraModel,
    objectives: Sequence[str],
    batch_size: int,
    workers: int | None,
    ood_score: str,
    labelled: bool,
    advance: Callable[[int], None] = lambda samples: None,
    columns: ClassRange = ALL_CLASSES,
) -> list[int]:
    """Return the indices of the samples of one set, those first that tell the candidates of a search apart.

    Every order gives the same result; this one shows early which candidates lose, so that they are given up. The hazard
    of a sample is how likely it shows this: an ID sample that is wrong, nearly wrong, or looks like an OOD sample, and
    an OOD sample that looks like an ID sample. The whole model runs once over the set to tell. If lengths matter,
    samples of similar hazard are sorted by length, so that little is padded.

    Args:
        dataset: the set.
        model: a model with one member.
        objectives: the objectives of the search.
        batch_size, workers: how many samples are read at a time, and by how many processes.
        ood_score: the name of the OOD score, one of :data:`hydractl.metrics.ood.OOD_SCORES`.
        labelled: whether it is an ID set.
        advance: called with the number of samples of each batch.
        columns: the range of the set's classes among the classes of the model.
    """
    parameter = next(model.parameters())
    first, end = columns
    indices: list[int] = []
    scores_of_batches = []
    margins_of_batches = []  # log p of the label minus the highest log p of another class, [B] each
    losses_of_batches = []  # -log p of the label, [B] each
    with torch.inference_mode():
        for batch in batches(dataset, model.preprocess, batch_size, workers=workers):
            inputs = move(batch.inputs, parameter.device, parameter.dtype)
            logits = model.member_logits(inputs)[0][:, first:end]  # [B, classes]
            members = as_one_member(logits)
            scores_of_batches.append(OOD_SCORES[ood_score](members))
            if labelled:
                labels = np.asarray(batch.labels)
                log_p = pooled_log_probs(members)  # [B, classes]
                margins_of_batches.append(_margins(log_p, labels))
                losses_of_batches.append(-log_p[np.arange(len(labels)), labels])
            indices += batch.indices
            advance(len(batch.indices))

    # Batches may have come in another order, e.g. sorted by the lengths of texts: go back to the order of the set.
    order_of_set = np.argsort(indices)
    scores = np.concatenate(scores_of_batches)[order_of_set]
    if not labelled:
        return _most_hazardous_first(_relative_rank(-scores), dataset.lengths())

    # The hazard of an ID sample is the sum of its relative ranks (each 0 to 1) in what the objectives read.
    hazards = np.zeros(len(scores))
    if "acc" in objectives or "avg" in objectives:
        hazards += _relative_rank(-np.concatenate(margins_of_batches)[order_of_set])
    if "nll" in objectives:
        hazards += _relative_rank(np.concatenate(losses_of_batches)[order_of_set])
    if "ood" in objectives or "avg" in objectives:
        hazards += _relative_rank(scores)
    return _most_hazardous_first(hazards, dataset.lengths())


def _margins(log_p: Floats, labels: np.ndarray) -> Floats:
    """Return log p of the label minus the highest log p of another class, ``[B]``; above 0 if the sample is right.

    Args:
        log_p: ``[B, classes]``.
        labels: ``[B]``.
    """
    samples = np.arange(len(labels))
    log_p_of_label = log_p[samples, labels]
    others = log_p.copy()
    others[samples, labels] = -np.inf  # so the label is never the highest
    highest_other = others.max(axis=1)
    return np.asarray(log_p_of_label - highest_other)


def _relative_rank(values: Floats) -> Floats:
    """Return the rank of each value among all values, from 0 for the lowest to 1 for the highest, ``[N]``."""
    count = len(values)
    order = np.argsort(values, kind="stable")
    ranks = np.empty(count)
    ranks[order] = np.arange(count)  # the value at order[i] has rank i
    last_rank = max(1, count - 1)
    return ranks / last_rank


def _most_hazardous_first(hazards: Floats, lengths: Sequence[int] | None) -> list[int]:
    """Return the indices of samples, the highest hazard first.

    If lengths matter (texts), the result is cut into 4 groups of similar hazard, and each group has its longest samples
    first, so that batches hold samples of similar length.

    Args:
        hazards: ``[N]``; the higher, the more likely the sample is to show that a candidate loses.
        lengths: the length of each sample; None if lengths do not matter.
    """
    highest_first = np.argsort(-hazards, kind="stable")
    order: list[int] = highest_first.tolist()
    if lengths is None:
        return order

    def minus_length(index: int) -> int:
        return -lengths[index]

    # Cut into _STRATA groups of nearly equal size, still the highest hazards first, and sort each group by length.
    order_by_length: list[int] = []
    for stratum in np.array_split(order, _STRATA):
        longest_first = sorted(stratum.tolist(), key=minus_length)
        order_by_length += longest_first
    return order_by_length
