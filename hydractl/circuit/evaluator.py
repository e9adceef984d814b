"""The model with some heads removed: the counts of each batch, for the model as it is and for each candidate."""

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
        samples: how many samples it has.
        tokens: how many tokens each sample has.
        queries: how many of these tokens are read out.
    """

    samples: int
    tokens: int
    queries: int


class Evaluator:
    """The towers of one model, the batches, and those of their states that are kept in memory.

    Args:
        model: with one member; it must not be used otherwise until :meth:`close`.
        batches: ID and OOD batches.
        stream: the inputs of all batches in turn, where that is faster than reading each.
        ood_score: see :data:`hydractl.metrics.ood.OOD_SCORES`.
        memory_bytes: how much the kept states may take.
        lanes: how many models with different heads removed are searched in turn.
        aside: whether models are tried beside them (see :meth:`begin`), whose states need as much memory again.
        weights: the weight of each task in the mean over tasks.

    Attributes:
        samples: the tower that reads samples.
        labels: the tower that reads the texts of the labels; None for a model without one.
        shares: how often the samples and pairs of each task count.
        n_id, n_ood: the ID and OOD samples of all tasks, as often as they count.
        size: how many samples all batches have together.
        keeps_data: whether the samples stay in memory, as they are before the first block.
        chunks: the numbers of all batches, those whose states fit into the memory together in one list.
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
        self.labels = None
        if model.prompted is not None:
            self.labels = SearchedTower(model, model.chain_of_labels)

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
        """The number of samples times tokens of the largest batch."""
        tokens_of_batches = [shape.samples * shape.tokens for shape in self._shapes]
        return max(tokens_of_batches)

    def naive_work(self, samples: int, sites: Iterable[int]) -> int:
        """Return the sample-block evaluations of one evaluation of so many samples by the whole model.

        The tower of the labels counts where heads of it are among the candidates, whose ``sites`` are given.
        """
        work = samples * len(self.samples.sites)
        if self.labels is None:
            return work
        label_sites = set(self.labels.sites).intersection(sites)
        if label_sites:
            prompts = sum(len(stem.hidden) for stem in self._label_stems)
            work += prompts * len(self.labels.sites)
        return work

    def price(self, site: int | None, samples: int, share: float | None = None) -> float:
        """Return the cost of a candidate of a site in sample-block evaluations; with None, that of the model itself.

        Args:
            site: the index of the site.
            samples: on how many samples; each is taken to cost the mean of those of this evaluator.
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
        mean_price = sum(prices) / samples_here
        return samples * mean_price

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

        # The texts of the labels run at once; what they have in common with the model before is not run again.
        known_traces: Sequence[Trace | None] = self._label_traces
        if not known_traces:
            known_traces = [None] * len(self._label_stems)
        traces = []
        for stem, known in zip(self._label_stems, known_traces, strict=True):
            traces.append(self.labels.trace(stem, known))
        self._label_traces = traces
        self._classes = torch.cat([trace.read for trace in traces])  # [classes, D]

    @torch.inference_mode()
    def keep_tried(self) -> None:
        """Go on with the model that was tried last."""
        self._is_aside = False
        for batch in list(self._tried):
            self._trace(batch)

    @torch.inference_mode()
    def current(self, batch: int) -> Values:
        """Return the counts of one batch under the model without the removed heads."""
        trace = self._trace(batch)
        return self._values(batch, trace.read, self._classes)

    @torch.inference_mode()
    def without_each(self, batch: int, site: int, heads: Sequence[int]) -> list[Values]:
        """Return the counts of one batch with each of some heads of one site removed as well.

        Args:
            batch: the number of the batch.
            site: the index of the site.
            heads: the positions of the heads at the site.

        Returns:
            The counts without each head, in the order of ``heads``.
        """
        trace = self._trace(batch)
        if site in self.samples.sites:
            reads = self.samples.without_each(trace, site, heads)  # [heads, B, ...]
            return [self._values(batch, read, self._classes) for read in reads]
        # What the tower of the labels reads out depends on no sample: one pass serves all batches.
        classes_without_each = self._classes_without(site, heads)
        return [self._values(batch, trace.read, classes) for classes in classes_without_each]

    def _classes_without(self, site: int, heads: Sequence[int]) -> list[Tensor]:
        """Return what the tower of the labels reads out with each of some heads of one site removed.

        Returns:
            For each head ``[classes, D]``. The answer to the last question is kept, as it is asked for every batch.
        """
        assert self.labels is not None
        candidates = tuple(CandidateHead(site, head) for head in heads)
        if self._last_classes_without is not None:
            last_candidates, last_classes = self._last_classes_without
            if last_candidates == candidates:
                return last_classes
        parts = [self.labels.without_each(trace, site, heads) for trace in self._label_traces]
        classes_by_head = torch.cat(parts, dim=1)  # [heads, classes, D]
        classes = list(classes_by_head)
        self._last_classes_without = (candidates, classes)
        return classes

    @torch.inference_mode()
    def current_logits(self, batch: int) -> Tensor:
        """Return the logits ``[B, classes]`` of one batch under the model without the removed heads."""
        trace = self._trace(batch)
        return self._logits(batch, trace.read, self._classes)

    def gated_logits(self, batch: int, gates: Sequence[Tensor]) -> Tensor:
        """Return the logits ``[B, classes]`` of one batch as a function of a gate on each head of the tower of samples.

        See :meth:`SearchedTower.gated`. To be called outside inference mode. The tower of the labels stays as it is.
        """
        stem = self._stem(batch)
        # Kept tensors were made in inference mode, and only copies of them may be part of a graph of gradients.
        context = {}
        for name, value in stem.context.items():
            if isinstance(value, Tensor):
                value = value.clone()
            context[name] = value
        copied_stem = State(stem.hidden.clone(), context)
        read = self.samples.gated(copied_stem, gates)
        classes = self._classes
        if classes is not None:
            classes = classes.clone()
        return self._logits(batch, read, classes)

    def _values(self, batch: int, read: Tensor, classes: Tensor | None) -> Values:
        """Return the counts of one batch from what the towers read out.

        Args:
            batch: the number of the batch.
            read: what the tower of samples reads out of it, ``[B, ...]``.
            classes: what the tower of the labels reads out, ``[classes, D]``; None where there is none.
        """
        logits = self._logits(batch, read, classes)
        search_batch = self.batches[batch]
        values = values_of(logits, search_batch.labels, self.ood_score)
        return replace(values, tasks=search_batch.tasks)

    def _logits(self, batch: int, read: Tensor, classes: Tensor | None) -> Tensor:
        """Return the logits ``[B, classes]`` of one batch, of the classes of its tasks."""
        # One member's outputs, in the order of the towers: samples first, as the families list them.
        outputs = [read[None]]
        if classes is not None:
            outputs.append(classes[None])
        logits = self.model.logits(outputs)  # [1, B, all classes]
        only_member = logits[0]
        first, end = self.batches[batch].columns
        return only_member[:, first:end]

    def _remove(self, removed: Sequence[CandidateHead]) -> None:
        """Slice exactly these heads away from the towers."""
        self.samples.remove(removed)
        if self.labels is not None:
            self.labels.remove(removed)

    # --- what is kept -------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _lay_out(self, stream: Iterable[Any], memory_bytes: int) -> list[list[int]]:
        """Read all batches once, and decide how the memory is used.

        Stems are kept where all of them fit into a quarter of it. Also notes the shape of each batch.

        Returns:
            The numbers of the batches, in chunks whose traces fit into the memory together.
        """
        stem_bytes = []
        for batch, inputs in enumerate(stream):
            stem = self.samples.chain.stem(inputs)
            stem_bytes.append(stem.hidden.nbytes)
            shape = _shape_in(self.samples, stem, self.batches[batch].size)
            self._shapes.append(shape)
            if sum(stem_bytes) > memory_bytes // 4:
                self.keeps_data = False
                self._stems.clear()
            elif self.keeps_data:
                self._stems[batch] = stem

        # For each block a state, its joined heads and its output, and once the whole state before the last block.
        states_of_trace = 3 * len(self.samples.sites) + 1
        trace_bytes = [self._copies * size * states_of_trace for size in stem_bytes]
        self._trace_bytes = sum(trace_bytes)
        self._stem_bytes = 0
        if self.keeps_data:
            self._stem_bytes = sum(stem_bytes)
        left_bytes = memory_bytes - self._stem_bytes
        traces_that_fit = left_bytes // self._trace_bytes
        self._kept_traces = max(1, min(self._lanes, traces_that_fit))

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
        """The approximate number of bytes that are kept at a time."""
        largest_chunk = max(len(chunk) for chunk in self.chunks)
        bytes_of_chunk = self._trace_bytes * largest_chunk / len(self.batches)
        all_bytes = self._stem_bytes + self._kept_traces * bytes_of_chunk
        return int(all_bytes)

    def _stem(self, batch: int) -> State:
        """Return the state of a batch before the first block; read it anew where it is not kept."""
        if self.keeps_data:
            return self._stems[batch]
        inputs = self.batches[batch].read()
        return self.samples.chain.stem(inputs)

    @cached_property
    def _label_stems(self) -> list[State]:
        """The states of the texts of the labels before the first block, of each batch of them one."""
        prompted = self.model.prompted
        assert self.labels is not None
        assert prompted is not None
        stems = []
        with torch.inference_mode():
            for inputs in prompted.inputs(PROMPTS_AT_ONCE):
                stems.append(self.labels.chain.stem(inputs))
        return stems

    def _trace(self, batch: int) -> Trace:
        """Return the trace of one batch under the model as it is, and keep it.

        It is made from the kept trace that agrees with it in the most leading blocks.
        """
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
            return trace
        is_kept = any(other is trace for other in kept_traces)
        if not is_kept:
            self._keep(trace, kept_traces)
        return trace

    def _keep(self, trace: Trace, kept_traces: list[Trace]) -> None:
        """Add a trace to those of its batch, in the place of one that is no longer needed."""

        def agreement(other: Trace) -> int:
            return agreeing(other.kept, trace.kept)

        nearest = max(kept_traces, key=agreement, default=None)
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
        of_batch: the function, called with the number of a batch; its answer must survive a round trip through JSON.
        processes: who shares the batches.

    Returns:
        The answers by batch, those of all processes.
    """
    answers_here = {}
    for chunk in evaluator.chunks:
        for batch in chunk:
            is_of_this_process = batch % processes.size == processes.rank
            if is_of_this_process:
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
    """Return whether every head that a trace was made with is also one of another trace."""
    is_part_of_other = []
    for heads, other_heads in zip(trace.kept, other.kept, strict=True):
        is_part_of_other.append(set(heads) <= set(other_heads))
    return all(is_part_of_other)


def _shape_in(tower: SearchedTower, stem: State, samples: int) -> BatchShape:
    """Return the size of a batch in a tower, from its state before the first block."""
    tokens = stem.hidden.shape[1]
    read_out = tower.chain.query_tokens(stem)
    queries = read_out.hidden.shape[1]
    return BatchShape(samples, tokens, queries)
