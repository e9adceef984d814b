"""The model with some heads removed: the counts of each batch, for the model as it is and for each candidate."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

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


class _LabelReads(NamedTuple):
    """The features that the tower of the labels reads out without each of some candidates.

    Attributes:
        candidates: heads of one site.
        classes: for each of them ``[classes, D]``.
    """

    candidates: list[CandidateHead]
    classes: list[Tensor]


class Evaluator:
    """The towers of one model, the batches, and those of their states that are kept in memory.

    Args:
        model: with one member; it must not be used otherwise until :meth:`close`.
        batches: ID and OOD batches.
        stream: the inputs of all batches in turn, where that is faster than reading each.
        ood_score: the name of the OOD score, one of :data:`hydractl.metrics.ood.OOD_SCORES`.
        memory_bytes: how much the kept states may take.
        lanes: how many models with different heads removed are searched in turn.
        aside: whether models are tried beside them, whose states need as much memory again.
        weights: the weight of each task in the mean over tasks.

    Attributes:
        sample_tower: the tower that reads samples.
        label_tower: the tower that reads the texts of the labels; None for a model without one.
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
        self.sample_tower = SearchedTower(model, model.chain_of_samples)
        self.label_tower = None
        if model.prompted is not None:
            self.label_tower = SearchedTower(model, model.chain_of_labels)

        # With several tasks, the samples of each count so often that all weigh what they should.
        task_sizes = [_samples_of_task(self.batches, task) for task in range(len(weights))]
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
        # By batch the traces (the states of all blocks) of the models that are searched in turn, and the trace of the
        # model that is tried beside them.
        self._traces: dict[int, list[Trace]] = {}
        self._tried: dict[int, Trace] = {}
        self._is_aside = False
        # The traces of the tower of the labels, what it reads out, and what it read out for the last candidates.
        self._label_traces: list[Trace] = []
        self._label_reads: Tensor | None = None
        self._last_label_reads: _LabelReads | None = None

        self._lanes = lanes
        self._models_at_a_time = 2 if aside else 1
        self._shapes: list[BatchShape] = []
        if stream is None:
            stream = (batch.read() for batch in self.batches)
        self.chunks = self._read_all_and_plan_memory(stream, memory_bytes)

    def close(self) -> None:
        """Give the model its heads back and drop what was kept."""
        self._remove_from_towers([])
        self._traces.clear()
        self._tried.clear()
        self._stems.clear()

    # --- what it costs ------------------------------------------------------------------------------------------------

    @property
    def work(self) -> float:
        """Sample-block evaluations so far, in fractions of a block (:attr:`SearchedTower.work`)."""
        if self.label_tower is None:
            return self.sample_tower.work
        return self.sample_tower.work + self.label_tower.work

    @property
    def largest_batch_tokens(self) -> int:
        """The number of samples times tokens of the largest batch."""
        tokens_of_batches = [shape.samples * shape.tokens for shape in self._shapes]
        return max(tokens_of_batches)

    def naive_work(self, samples: int, sites: Iterable[int]) -> int:
        """Return the sample-block evaluations of one evaluation of so many samples by the whole model.

        The tower of the labels counts where heads of it are among the candidates, whose ``sites`` are given.
        """
        work = samples * len(self.sample_tower.sites)
        if self.label_tower is None:
            return work
        label_sites = set(self.label_tower.sites).intersection(sites)
        if label_sites:
            prompts = sum(len(stem.hidden) for stem in self._label_stems)
            work += prompts * len(self.label_tower.sites)
        return work

    def price(self, site: int | None, samples: int, share: float | None = None) -> float:
        """Return the cost of evaluating one candidate, a head of a site, in sample-block evaluations.

        Args:
            site: the index of the site; None: the cost of the model itself.
            samples: on how many samples; each is taken to cost the mean of those of this evaluator.
            share: the share of the heads that is present at each site; None: as many as now.
        """
        label_tower = self.label_tower
        if label_tower is None or site not in label_tower.sites:
            return samples * _mean_price(self.sample_tower, self._shapes, site, share)

        # The tower of the labels runs all prompts, whatever the samples are.
        shapes = []
        for stem in self._label_stems:
            prompts_of_batch = len(stem.hidden)
            shapes.append(_shape_in_tower(label_tower, stem, prompts_of_batch))
        prompts = sum(shape.samples for shape in shapes)
        return prompts * _mean_price(label_tower, shapes, site, share)

    def count_backward(self, batch: int) -> None:
        """Count the work of one backward pass to the gates of one batch."""
        shape = self._shapes[batch]
        self.sample_tower.count_backward(shape.samples, shape.tokens, shape.queries)

    # --- the model with heads removed ---------------------------------------------------------------------------------

    @torch.inference_mode()
    def go_to_model_without(self, removed: Sequence[CandidateHead], *, aside: bool = False) -> None:
        """Go to the model without these heads: what is asked for afterwards is of this model.

        Args:
            removed: all heads that it lacks, not only those that it lacks beside the model before.
            aside: whether the model is only tried: the states of the one before are then kept as well.
        """
        self._remove_from_towers(removed)
        self._is_aside = aside
        self._last_label_reads = None
        if self.label_tower is None:
            return

        # The texts of the labels run now, as they depend on no batch; blocks up to the first that differs from the
        # model before are not run again.
        known_traces: Sequence[Trace | None] = self._label_traces
        if not known_traces:
            known_traces = [None] * len(self._label_stems)
        traces = []
        for stem, known in zip(self._label_stems, known_traces, strict=True):
            traces.append(self.label_tower.trace(stem, known))
        self._label_traces = traces
        self._label_reads = torch.cat([trace.read for trace in traces])  # [classes, D]

    @torch.inference_mode()
    def go_on_with_tried(self) -> None:
        """Go on with the model that was tried last: its traces take their places among those that are kept."""
        self._is_aside = False
        for batch in list(self._tried):
            self._trace_of_current_model(batch)  # moves the trace of the batch

    @torch.inference_mode()
    def current_values(self, batch: int) -> Values:
        """Return the counts of one batch under the model without the removed heads."""
        trace = self._trace_of_current_model(batch)
        return self._values_from_reads(batch, trace.read, self._label_reads)

    @torch.inference_mode()
    def values_without_each(self, batch: int, site: int, heads: Sequence[int]) -> list[Values]:
        """Return the counts of one batch with each of some heads of one site removed as well.

        Args:
            batch: the number of the batch.
            site: the index of the site.
            heads: the positions of the heads at the site.

        Returns:
            The counts without each head, in the order of ``heads``.
        """
        trace = self._trace_of_current_model(batch)
        if site in self.sample_tower.sites:
            reads = self.sample_tower.without_each(trace, site, heads)  # [heads, B, ...]
            return [self._values_from_reads(batch, read, self._label_reads) for read in reads]
        # What the tower of the labels reads out depends on no sample: one pass serves all batches.
        classes_without_each = self._label_reads_without(site, heads)
        return [self._values_from_reads(batch, trace.read, classes) for classes in classes_without_each]

    def _label_reads_without(self, site: int, heads: Sequence[int]) -> list[Tensor]:
        """Return what the tower of the labels reads out with each of some heads of one site removed.

        The last answer is kept, since the same one is needed for every batch.

        Returns:
            For each head ``[classes, D]``.
        """
        assert self.label_tower is not None
        candidates = [CandidateHead(site, head) for head in heads]
        last = self._last_label_reads
        if last is not None and last.candidates == candidates:
            return last.classes
        parts = [self.label_tower.without_each(trace, site, heads) for trace in self._label_traces]
        classes_by_head = torch.cat(parts, dim=1)  # [heads, classes, D]
        classes = list(classes_by_head)
        self._last_label_reads = _LabelReads(candidates, classes)
        return classes

    @torch.inference_mode()
    def current_logits(self, batch: int) -> Tensor:
        """Return the logits ``[B, classes]`` of one batch under the model without the removed heads."""
        trace = self._trace_of_current_model(batch)
        return self._logits_from_reads(batch, trace.read, self._label_reads)

    def gated_logits(self, batch: int, gates: Sequence[Tensor]) -> Tensor:
        """Return the logits ``[B, classes]`` of one batch as a function of a gate on each head of the tower of samples.

        To be called outside inference mode. The tower of the labels stays as it is.

        Args:
            batch: the number of the batch.
            gates: for each site ``[B, heads]``, by which the output of each head is multiplied.
        """
        stem = self._stem_of(batch)
        # Kept tensors were made in inference mode, and only copies of them may be part of a graph of gradients.
        context = {}
        for name, value in stem.context.items():
            if isinstance(value, Tensor):
                value = value.clone()
            context[name] = value
        copied_stem = State(stem.hidden.clone(), context)
        read = self.sample_tower.gated(copied_stem, gates)
        classes = self._label_reads
        if classes is not None:
            classes = classes.clone()
        return self._logits_from_reads(batch, read, classes)

    def _values_from_reads(self, batch: int, read: Tensor, classes: Tensor | None) -> Values:
        """Return the counts of one batch from what the towers read out.

        Args:
            batch: the number of the batch.
            read: what the tower of samples reads out of it, ``[B, ...]``.
            classes: what the tower of the labels reads out, ``[classes, D]``; None where there is none.
        """
        logits = self._logits_from_reads(batch, read, classes)
        search_batch = self.batches[batch]
        values = values_of(logits, search_batch.labels, self.ood_score)
        return replace(values, tasks=search_batch.tasks)

    def _logits_from_reads(self, batch: int, read: Tensor, classes: Tensor | None) -> Tensor:
        """Return the logits ``[B, classes]`` of one batch, of the classes of its tasks."""
        # One member's outputs, in the order of the towers: samples first, as the families list them.
        outputs = [read[None]]
        if classes is not None:
            outputs.append(classes[None])
        logits = self.model.logits(outputs)  # [1, B, all classes]
        only_member = logits[0]
        first, end = self.batches[batch].columns
        return only_member[:, first:end]

    def _remove_from_towers(self, removed: Sequence[CandidateHead]) -> None:
        """Slice exactly these heads away from the towers."""
        self.sample_tower.remove(removed)
        if self.label_tower is not None:
            self.label_tower.remove(removed)

    # --- what is kept -------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _read_all_and_plan_memory(self, stream: Iterable[Any], memory_bytes: int) -> list[list[int]]:
        """Read all batches once, and decide how the memory is used.

        Notes the shape of each batch, how many traces of a batch are kept, and the stems (the states before the first
        block) where they are kept.

        Returns:
            The numbers of the batches, in chunks whose traces fit into the memory together.
        """
        stem_bytes = self._read_stems(stream, most_bytes=memory_bytes // 4)
        self._stem_bytes = 0
        if self.keeps_data:
            self._stem_bytes = sum(stem_bytes)
        left_bytes = memory_bytes - self._stem_bytes

        # For each block a state, its joined heads and its output, and once the whole state before the last block.
        states_of_trace = 3 * len(self.sample_tower.sites) + 1
        trace_bytes = [self._models_at_a_time * size * states_of_trace for size in stem_bytes]
        self._trace_bytes = sum(trace_bytes)
        traces_that_fit = left_bytes // self._trace_bytes
        self._kept_traces = max(1, min(self._lanes, traces_that_fit))
        return _chunks_within(left_bytes, trace_bytes)

    def _read_stems(self, stream: Iterable[Any], most_bytes: int) -> list[int]:
        """Read all batches, and keep their stems if all of them together take no more than so many bytes.

        The first batch that goes beyond drops those that were kept so far, and unsets :attr:`keeps_data`.

        Returns:
            The bytes of the stem of each batch.
        """
        stem_bytes = []
        for batch, inputs in enumerate(stream):
            stem = self.sample_tower.chain.stem(inputs)
            stem_bytes.append(stem.hidden.nbytes)
            shape = _shape_in_tower(self.sample_tower, stem, self.batches[batch].size)
            self._shapes.append(shape)
            if sum(stem_bytes) > most_bytes:
                self.keeps_data = False
                self._stems.clear()
            elif self.keeps_data:
                self._stems[batch] = stem
        return stem_bytes

    @property
    def memory_bytes(self) -> int:
        """The approximate number of bytes that are kept at a time."""
        largest_chunk = max(len(chunk) for chunk in self.chunks)
        bytes_of_chunk = self._trace_bytes * largest_chunk / len(self.batches)
        all_bytes = self._stem_bytes + self._kept_traces * bytes_of_chunk
        return int(all_bytes)

    def _stem_of(self, batch: int) -> State:
        """Return the state of a batch before the first block; read it anew where it is not kept."""
        if self.keeps_data:
            return self._stems[batch]
        inputs = self.batches[batch].read()
        return self.sample_tower.chain.stem(inputs)

    @cached_property
    def _label_stems(self) -> list[State]:
        """The states of the texts of the labels before the first block, of each batch of them one."""
        prompted = self.model.prompted
        assert self.label_tower is not None
        assert prompted is not None
        stems = []
        with torch.inference_mode():
            for inputs in prompted.inputs(PROMPTS_AT_ONCE):
                stems.append(self.label_tower.chain.stem(inputs))
        return stems

    def _trace_of_current_model(self, batch: int) -> Trace:
        """Return the trace of one batch under the model as it is, and keep it.

        A known trace of the same model is returned. Otherwise the batch runs, from the first block at which its model
        differs from that of the most similar known trace.
        """
        tower = self.sample_tower
        kept_traces = self._traces.setdefault(batch, [])
        tried = self._tried.pop(batch, None)
        known = list(kept_traces)
        if tried is not None:
            known.append(tried)

        def leading_blocks_in_common(trace: Trace) -> int:
            return agreeing(trace.kept, tower.kept)

        nearest = max(known, key=leading_blocks_in_common, default=None)
        if nearest is not None and nearest.kept == tower.kept:
            trace = nearest
        else:
            trace = tower.trace(self._stem_of(batch), nearest)

        # The trace of a model that is only tried stands beside the others, until the next one is tried.
        if self._is_aside:
            self._tried[batch] = trace
            return trace
        is_kept = any(other is trace for other in kept_traces)
        if not is_kept:
            self._keep_trace(trace, kept_traces)
        return trace

    def _keep_trace(self, trace: Trace, kept_traces: list[Trace]) -> None:
        """Add a trace to those of its batch, in the place of one that is no longer needed.

        Args:
            trace: of the model as it is.
            kept_traces: those that are kept of the batch, the oldest first; changed in place.
        """

        def leading_blocks_in_common(other: Trace) -> int:
            return agreeing(other.kept, trace.kept)

        nearest = max(kept_traces, key=leading_blocks_in_common, default=None)
        # A model with more heads removed takes the place of the one it comes from; others are kept beside it.
        if nearest is not None and _has_only_heads_of(trace, nearest):
            kept_traces.remove(nearest)
        # Where the memory does not suffice for one more, the oldest go.
        while kept_traces and len(kept_traces) >= self._kept_traces:
            kept_traces.pop(0)
        kept_traces.append(trace)

    def drop_traces(self, batches: Sequence[int]) -> None:
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
        evaluator.drop_traces(chunk)

    answers = {}
    for answers_of_process in processes.gather(answers_here):
        for batch, answer in answers_of_process.items():
            answers[int(batch)] = answer  # JSON has texts for keys
    return answers


def _chunks_within(most_bytes: int, trace_bytes: Sequence[int]) -> list[list[int]]:
    """Cut the numbers of the batches into chunks whose traces take no more than so many bytes, or of one batch.

    Args:
        most_bytes: what the traces of a chunk may take.
        trace_bytes: what the trace of each batch takes.
    """
    chunks: list[list[int]] = []
    chunk_bytes = 0
    for batch, size in enumerate(trace_bytes):
        is_full = chunk_bytes + size > most_bytes
        if is_full or not chunks:
            chunks.append([])
            chunk_bytes = 0
        chunks[-1].append(batch)
        chunk_bytes += size
    return chunks


def _mean_price(tower: SearchedTower, shapes: Sequence[BatchShape], site: int | None, share: float | None) -> float:
    """Return the mean cost of a sample for one candidate of a site, in block evaluations of a tower.

    Args:
        tower: the tower of the site.
        shapes: the batches whose samples are averaged.
        site: the index of the site; None: the cost of the model itself.
        share: the share of the heads that is present at each site; None: as many as now.
    """
    prices = []
    for shape in shapes:
        price_of_sample = tower.price(site, shape.tokens, shape.queries, share)
        prices.append(shape.samples * price_of_sample)
    samples = sum(shape.samples for shape in shapes)
    return sum(prices) / samples


def _samples_of_task(batches: Sequence[SearchBatch], task: int) -> tuple[int, int]:
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


def _shape_in_tower(tower: SearchedTower, stem: State, samples: int) -> BatchShape:
    """Return the size of a batch in a tower, from its state before the first block."""
    tokens = stem.hidden.shape[1]
    read_out = tower.chain.query_tokens(stem)
    queries = read_out.hidden.shape[1]
    return BatchShape(samples, tokens, queries)
