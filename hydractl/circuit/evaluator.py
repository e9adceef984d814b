"""What the model gives with some heads removed: the counts of each batch, for the model as it is and each candidate."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from hydractl.circuit.counting import Values, values_of
from hydractl.circuit.objective import shares_of
from hydractl.circuit.samples import SearchBatch
from hydractl.circuit.tower import SearchedTower, Trace, agreeing
from hydractl.circuit.winners import CandidateHead
from hydractl.distributed import Processes
from hydractl.families.base import State
from hydractl.model.prompted import PROMPTS_AT_ONCE
from hydractl.model.runtime import HydraModel

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class BatchShape:
    """The size of one batch in a tower.

    Attributes:
        samples: of the batch.
        tokens: of each sample.
        queries: those of them that are read out.
    """

    samples: int
    tokens: int
    queries: int


class Evaluator:
    """The towers of one model, the batches, and what of them is kept in memory.

    Args:
        model: with one member; it must not be used otherwise until :meth:`close`.
        batches: ID and OOD batches.
        stream: the inputs of all batches in turn, where that is faster than reading each.
        ood_score: see :data:`hydractl.metrics.ood.OOD_SCORES`.
        memory_bytes: how much the kept states may take.
        lanes: how many models with different heads removed are searched in turn.
        aside: whether models are tried beside them (see :meth:`begin`), whose states need as much memory again.
        weights: of the tasks, in their order.

    Attributes:
        shares: of the tasks.
        n_id, n_ood: the ID and OOD samples of all of them, as often as they count.
        size: samples of all batches.
        keeps_data: whether the samples stay in memory, as they are before the first block.
        chunks: batches whose states fit into the memory together.
    """

    def __init__(
        self,
        model: HydraModel,
        batches: Sequence[SearchBatch],
        *,
        stream: Iterable[Any] | None = None,
        ood_score: str = "msp",
        memory_bytes: int = sys.maxsize,
        lanes: int = 1,
        aside: bool = False,
        weights: Sequence[int] = (1,),
    ) -> None:
        self.model = model
        self.batches = list(batches)
        self.ood_score = ood_score
        self.weights = list(weights)
        self.samples = SearchedTower(model, model.chain_of_samples)
        self.labels = None if model.prompted is None else SearchedTower(model, model.chain_of_labels)

        task_sizes = [_size_of_task(self.batches, task) for task in range(len(weights))]
        self.shares = shares_of(task_sizes, weights)
        self.n_id = 0
        self.n_ood = 0
        for share, (n_id, n_ood) in zip(self.shares, task_sizes, strict=True):
            self.n_id += share.inside * n_id
            self.n_ood += share.outside * n_ood
        self.size = sum(batch.size for batch in self.batches)

        # The state of each batch before the first block, where all of them fit.
        self._stems: dict[int, State] = {}
        self.keeps_data = True
        # By batch the traces of the models that are searched in turn, and the trace of the model that is tried.
        self._traces: dict[int, list[Trace]] = {}
        self._tried: dict[int, Trace] = {}
        self._is_aside = False
        # The traces of the tower of the labels, what it reads out, and what it read out for the last candidates.
        self._label_traces: list[Trace] = []
        self._classes: Tensor | None = None
        self._last_classes_without: tuple[tuple[CandidateHead, ...], list[Tensor]] | None = None

        self._lanes = lanes
        self._copies = 2 if aside else 1
        self._shapes: list[BatchShape] = []
        if stream is None:
            stream = (batch.read() for batch in self.batches)
        self.chunks = self._lay_out(stream, memory_bytes)

    def close(self) -> None:
        """Give the model its heads back and drop what was kept."""
        self._remove([])
        self._traces.clear()
        self._tried.clear()
        self._stems.clear()

    # --- what it costs ------------------------------------------------------------------------------------------------

    @property
    def work(self) -> float:
        """Sample-block evaluations so far, in fractions of a block (:attr:`SearchedTower.work`)."""
        if self.labels is None:
            return self.samples.work
        return self.samples.work + self.labels.work

    @property
    def largest_batch_tokens(self) -> int:
        """Samples times tokens of the largest batch."""
        return max(shape.samples * shape.tokens for shape in self._shapes)

    def naive_work(self, samples: int, sites: Iterable[int]) -> int:
        """Return the sample-block evaluations of one evaluation of so many samples by the whole model.

        The tower of the labels counts where heads of it are among the candidates, whose ``sites`` are given.
        """
        work = samples * len(self.samples.sites)
        if self.labels is not None and any(site in self.labels.sites for site in sites):
            prompts = sum(len(stem.hidden) for stem in self._label_stems)
            work += prompts * len(self.labels.sites)
        return work

    def price(self, site: int | None, samples: int, share: float | None = None) -> float:
        """Return the cost of a candidate of a site in sample-block evaluations; with None, that of the model itself.

        Args:
            site: its index.
            samples: on how many samples, each like the mean of those that are here.
            share: the share of the heads that is present at each site; None: as many as now.
        """
        tower = self.samples
        shapes = self._shapes
        if self.labels is not None and site in self.labels.sites:
            tower = self.labels
            shapes = [_shape_in(tower, stem, len(stem.hidden)) for stem in self._label_stems]
            samples = sum(shape.samples for shape in shapes)  # all prompts run, whatever the samples are
        prices = []
        for shape in shapes:
            price_of_sample = tower.price(site, shape.tokens, shape.queries, share)
            prices.append(shape.samples * price_of_sample)
        samples_here = sum(shape.samples for shape in shapes)
        return samples * (sum(prices) / samples_here)

    def count_backward(self, batch: int) -> None:
        """Count the work of one backward pass to the gates of one batch."""
        shape = self._shapes[batch]
        self.samples.count_backward(shape.samples, shape.tokens, shape.queries)

    # --- the model with heads removed ---------------------------------------------------------------------------------

    @torch.inference_mode()
    def begin(self, removed: Sequence[CandidateHead], *, aside: bool = False) -> None:
        """Go to the model without these heads.

        Args:
            removed: the heads.
            aside: whether the model is only tried: the states of the one before are then kept as well.
        """
        self._remove(removed)
        self._is_aside = aside
        self._last_classes_without = None
        if self.labels is None:
            return
        known_traces: Sequence[Trace | None] = self._label_traces or [None] * len(self._label_stems)
        traces = []
        for stem, known in zip(self._label_stems, known_traces, strict=True):
            traces.append(self.labels.trace(stem, known))
        self._label_traces = traces
        self._classes = torch.cat([trace.read for trace in traces])

    @torch.inference_mode()
    def keep_tried(self) -> None:
        """Go on with the model that was tried last."""
        self._is_aside = False
        for batch in list(self._tried):
            self._trace(batch)

    @torch.inference_mode()
    def current(self, batch: int) -> Values:
        """Return the counts of one batch under the model without the removed heads."""
        return self._values(batch, self._trace(batch).read, self._classes)

    @torch.inference_mode()
    def without_each(self, batch: int, site: int, heads: Sequence[int]) -> list[Values]:
        """Return the counts of one batch with each of some heads of one site removed as well."""
        trace = self._trace(batch)
        if site in self.samples.sites:
            reads = self.samples.without_each(trace, site, heads)
            return [self._values(batch, read, self._classes) for read in reads]
        # What the tower of the labels reads out depends on no sample: one pass serves all batches.
        classes_without_each = self._classes_without(site, heads)
        return [self._values(batch, trace.read, classes) for classes in classes_without_each]

    def _classes_without(self, site: int, heads: Sequence[int]) -> list[Tensor]:
        """Return what the tower of the labels reads out with each of some heads of one site removed."""
        assert self.labels is not None
        candidates = tuple(CandidateHead(site, head) for head in heads)
        if self._last_classes_without is not None:
            last_candidates, last_classes = self._last_classes_without
            if last_candidates == candidates:
                return last_classes
        parts = [self.labels.without_each(trace, site, heads) for trace in self._label_traces]
        classes = list(torch.cat(parts, dim=1))  # of each head [classes, D]
        self._last_classes_without = (candidates, classes)
        return classes

    @torch.inference_mode()
    def current_logits(self, batch: int) -> Tensor:
        """Return the logits ``[B, classes]`` of one batch under the model without the removed heads."""
        return self._logits(batch, self._trace(batch).read, self._classes)

    def gated_logits(self, batch: int, gates: Sequence[Tensor]) -> Tensor:
        """Return the logits of one batch as a function of a gate on each head of the tower of samples.

        See :meth:`SearchedTower.gated`. To be called outside inference mode. The tower of the labels stays as it is.
        """
        stem = self._stem(batch)
        # What is kept was made in inference mode, and only a copy of it may be part of a graph of gradients.
        context = {}
        for name, value in stem.context.items():
            context[name] = value.clone() if isinstance(value, Tensor) else value
        read = self.samples.gated(State(stem.hidden.clone(), context), gates)
        classes = self._classes
        if classes is not None:
            classes = classes.clone()
        return self._logits(batch, read, classes)

    def _values(self, batch: int, read: Tensor, classes: Tensor | None) -> Values:
        """Return the counts of one batch from what its towers read out."""
        samples = self.batches[batch]
        values = values_of(self._logits(batch, read, classes), samples.labels, self.ood_score)
        return replace(values, tasks=samples.tasks)

    def _logits(self, batch: int, read: Tensor, classes: Tensor | None) -> Tensor:
        """Return the logits ``[B, classes]`` of one batch, of the classes of its tasks."""
        # One member's outputs, in the order of the towers: samples first, as the families list them.
        outputs = [read[None]]
        if classes is not None:
            outputs.append(classes[None])
        logits_of_member = self.model.logits(outputs)[0]
        first, last = self.batches[batch].columns
        return logits_of_member[:, first:last]

    def _remove(self, removed: Sequence[CandidateHead]) -> None:
        self.samples.remove(removed)
        if self.labels is not None:
            self.labels.remove(removed)

    # --- what is kept -------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _lay_out(self, stream: Iterable[Any], memory_bytes: int) -> list[list[int]]:
        """Return the batches in chunks whose traces fit into the memory together; decide what else is kept."""
        stem_bytes = []
        for batch, inputs in enumerate(stream):
            stem = self.samples.chain.stem(inputs)
            stem_bytes.append(stem.hidden.nbytes)
            self._shapes.append(_shape_in(self.samples, stem, self.batches[batch].size))
            if sum(stem_bytes) > memory_bytes // 4:
                self.keeps_data = False
                self._stems.clear()
            elif self.keeps_data:
                self._stems[batch] = stem

        # For each block a state, its joined heads and its output, and once the whole state before the last block.
        states = 3 * len(self.samples.sites) + 1
        trace_bytes = [self._copies * size * states for size in stem_bytes]
        self._stem_bytes = sum(stem_bytes) if self.keeps_data else 0
        self._trace_bytes = sum(trace_bytes)
        left_bytes = memory_bytes - self._stem_bytes
        self._kept_traces = max(1, min(self._lanes, left_bytes // self._trace_bytes))

        chunks: list[list[int]] = []
        chunk_bytes = 0
        for batch, size in enumerate(trace_bytes):
            if not chunks or chunk_bytes + size > left_bytes:
                chunks.append([])
                chunk_bytes = 0
            chunks[-1].append(batch)
            chunk_bytes += size
        return chunks

    @property
    def memory_bytes(self) -> int:
        """About how many bytes are kept at a time."""
        largest_chunk = max(len(chunk) for chunk in self.chunks)
        share = self._trace_bytes * largest_chunk / len(self.batches)
        return int(self._stem_bytes + self._kept_traces * share)

    def _stem(self, batch: int) -> State:
        """Return the state before the first block."""
        if self.keeps_data:
            return self._stems[batch]
        return self.samples.chain.stem(self.batches[batch].read())

    @cached_property
    def _label_stems(self) -> list[State]:
        prompted = self.model.prompted
        assert self.labels is not None and prompted is not None
        with torch.inference_mode():
            return [self.labels.chain.stem(inputs) for inputs in prompted.inputs(PROMPTS_AT_ONCE)]

    def _trace(self, batch: int) -> Trace:
        """Return the trace of the model as it is, made from the nearest one there is."""
        tower = self.samples
        kept_traces = self._traces.setdefault(batch, [])
        tried = self._tried.pop(batch, None)
        known = list(kept_traces)
        if tried is not None:
            known.append(tried)

        def agreement(trace: Trace) -> int:
            return agreeing(trace.kept, tower.kept)

        trace = max(known, key=agreement, default=None)
        if trace is None or trace.kept != tower.kept:
            trace = tower.trace(self._stem(batch), trace)
        if self._is_aside:
            self._tried[batch] = trace
        elif not any(other is trace for other in kept_traces):
            self._keep(trace, kept_traces)
        return trace

    def _keep(self, trace: Trace, kept_traces: list[Trace]) -> None:
        """Keep a trace among those of its batch, in the place of one that is no longer needed."""
        nearest = max(kept_traces, key=lambda other: agreeing(other.kept, trace.kept), default=None)
        # A model with more heads removed takes the place of the one it comes from; others are kept beside it.
        if nearest is not None and _has_only_heads_of(trace, nearest):
            kept_traces.remove(nearest)
        while kept_traces and len(kept_traces) >= self._kept_traces:
            kept_traces.pop(0)
        kept_traces.append(trace)

    def forget(self, batches: Sequence[int]) -> None:
        """Drop the traces of a chunk, where not all of them fit into memory."""
        if len(self.chunks) == 1:
            return
        for batch in batches:
            self._traces.pop(batch, None)
            self._tried.pop(batch, None)


def over_batches(evaluator: Evaluator, of_batch: Callable[[int], _Answer], processes: Processes) -> dict[int, _Answer]:
    """Call a function on every batch, shared out among the processes.

    Args:
        evaluator: whose batches they are.
        of_batch: what to call; its answer must come back from JSON as it was.
        processes: who shares the batches.

    Returns:
        The answers by batch, those of all processes.
    """
    answers_here = {}
    for chunk in evaluator.chunks:
        for batch in chunk:
            if batch % processes.size == processes.rank:
                answers_here[batch] = of_batch(batch)
        evaluator.forget(chunk)
    answers = {}
    for answers_of_process in processes.gather(answers_here):
        for batch, answer in answers_of_process.items():
            answers[int(batch)] = answer  # JSON has texts for keys
    return answers


def _size_of_task(batches: Sequence[SearchBatch], task: int) -> tuple[int, int]:
    """Return how many ID and OOD samples a task has."""
    n_id = 0
    n_ood = 0
    for batch in batches:
        if task not in batch.tasks:
            continue
        if batch.labels is None:
            n_ood += batch.size
        else:
            n_id += batch.size
    return n_id, n_ood


def _has_only_heads_of(trace: Trace, other: Trace) -> bool:
    """Return whether a trace was made with no head that another one was made without."""
    pairs = zip(trace.kept, other.kept, strict=True)
    return all(set(heads) <= set(other_heads) for heads, other_heads in pairs)


def _shape_in(tower: SearchedTower, stem: State, samples: int) -> BatchShape:
    """Return the size of a batch in a tower, from its state before the first block."""
    tokens = stem.hidden.shape[1]
    queries = tower.chain.query_tokens(stem).hidden.shape[1]
    return BatchShape(samples, tokens, queries)
