"""Evaluation of a model with heads removed: the counts of each batch for the current model and for each candidate."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from hydractl.circuit.counting import Values, values_of
from hydractl.circuit.objective import shares_of
from hydractl.circuit.samples import SearchBatch
from hydractl.circuit.tower import Kept, SearchedTower, Trace, agreeing
from hydractl.circuit.winners import CandidateHead
from hydractl.distributed import Processes
from hydractl.families.base import State
from hydractl.model.prompted import PROMPTS_AT_ONCE
from hydractl.model.runtime import HydraModel

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class MemoryPlan:
    """How the memory of a search is used.

    Attributes:
        keeps_stems: whether the stems (the states before the first block) of all batches are kept, or none.
        traces: how many traces (the states of all blocks) of a batch are kept.
        chunks: the indices of all batches; each inner list holds batches whose traces fit into memory together.
        bytes: about how many bytes are kept at a time.
    """

    keeps_stems: bool
    traces: int
    chunks: list[list[int]]
    bytes: int


def plan_memory(stem_bytes: Sequence[int], blocks: int, *, limit: int, lanes: int, aside: bool) -> MemoryPlan:
    """Return which states are kept in memory, and how the batches are cut into chunks whose states fit together.

    A stem is the state of a batch before the first block, a trace the states of all blocks. Stems are kept if those of
    all batches fit into a quarter of the memory; traces take the rest.

    Args:
        stem_bytes: the size of the stem of each batch.
        blocks: how many blocks the tower has that reads samples.
        limit: how many bytes the kept states may take.
        lanes: how many models with different heads removed are searched in turn; each has traces of its own.
        aside: whether each of these is kept together with a model that is only tried.
    """
    keeps_stems = sum(stem_bytes) <= limit // 4
    bytes_of_stems = sum(stem_bytes) if keeps_stems else 0
    bytes_for_traces = limit - bytes_of_stems

    # A trace holds for each block a state, its joined heads and its output, and once more the whole state before the
    # last block. Each of these is about as large as the stem.
    models_at_a_time = 2 if aside else 1
    states_of_trace = 3 * blocks + 1
    trace_bytes = [models_at_a_time * size * states_of_trace for size in stem_bytes]
    traces_that_fit = bytes_for_traces // sum(trace_bytes)  # how many models can have the traces of all batches
    traces = max(1, min(lanes, traces_that_fit))

    # Cut the batches into chunks whose traces fit into these bytes; one batch alone may exceed them.
    chunks: list[list[int]] = []
    chunk_bytes: list[int] = []
    for batch, size in enumerate(trace_bytes):
        if not chunks or chunk_bytes[-1] + size > bytes_for_traces:
            chunks.append([])
            chunk_bytes.append(0)
        chunks[-1].append(batch)
        chunk_bytes[-1] += size
    return MemoryPlan(keeps_stems, traces, chunks, bytes_of_stems + traces * max(chunk_bytes))


class Evaluator:
    """The towers of one model, the batches, and the states of batches that are kept in memory.

    Args:
        model: a model with one member; nobody else may use it until :meth:`close`.
        batches: ID and OOD batches.
        stream: the inputs of all batches in turn, if that is faster than reading each batch by itself.
        ood_score: the name of the OOD score, one of :data:`hydractl.metrics.ood.OOD_SCORES`.
        memory_bytes: how many bytes the kept states may take.
        lanes: how many models with different heads removed are searched in turn.
        aside: whether further models are tried besides these; their states need as much memory again.
        tasks: how many tasks the batches belong to.

    Attributes:
        sample_tower: the tower that reads samples.
        label_tower: the tower that reads the texts of the labels; None if the model has none.
        shares: for each task, how often each of its samples and pairs is counted.
        n_id, n_ood: the number of ID and OOD samples of all tasks, each sample counted as often as ``shares`` says.
        memory: how the memory is used.
        stem_bytes: the size of the state of each batch before the first block.
        largest_batch_tokens: the number of tokens of the largest batch: its samples times the tokens of each.
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
        tasks: int = 1,
    ) -> None:
        """Build the towers, read all batches once, and decide how the memory is used."""
        self.model = model
        self.batches = list(batches)
        self.ood_score = ood_score
        self.tasks = tasks
        self.sample_tower = SearchedTower(model, model.chain_of_samples)
        self.label_tower = None
        if model.prompted is not None:
            self.label_tower = SearchedTower(model, model.chain_of_labels)

        # A task is an ID set (inside) with an OOD set (outside). With several tasks, repeat the samples of each task in
        # the counts so that all are equally large.
        task_sizes = [_samples_of_task(self.batches, task) for task in range(tasks)]
        self.shares = shares_of(task_sizes)
        self.n_id = 0
        self.n_ood = 0
        for share, (n_id, n_ood) in zip(self.shares, task_sizes, strict=True):
            self.n_id += share.inside * n_id
            self.n_ood += share.outside * n_ood

        # The state of each batch before the first block; empty if not all of them fit into memory.
        self._stems: dict[int, State] = {}

        # Traces (the states of all blocks of one batch), by batch: those of the models that are searched in turn, and
        # the trace of a model that is only tried ("aside") besides them.
        self._traces: dict[int, list[Trace]] = {}
        self._tried: dict[int, Trace] = {}
        self._is_aside = False

        # The traces of the label tower, what it reads out, and what it read out for the last candidates.
        self._label_traces: list[Trace] = []
        self._label_reads: Tensor | None = None
        self._last_label_reads: dict[tuple[int, ...], list[Tensor]] = {}  # by their site and positions; at most one

        # Fill the lists above by reading all batches once. A lane is a model that is searched in turn with others: one
        # for each objective, as objectives remove different heads.
        self.largest_batch_tokens = 0
        if stream is None:
            stream = (batch.read() for batch in self.batches)
        self.stem_bytes = self._read_all(stream, memory_bytes // 4)
        blocks = len(self.sample_tower.sites)
        self.memory = plan_memory(self.stem_bytes, blocks, limit=memory_bytes, lanes=lanes, aside=aside)

    def close(self) -> None:
        """Give the model its heads back and drop all kept states."""
        self._remove_from_towers([])
        self._traces.clear()
        self._tried.clear()
        self._stems.clear()

    # --- costs --------------------------------------------------------------------------------------------------------

    @property
    def work(self) -> float:
        """The work so far, in evaluations of one block on one sample; see :attr:`SearchedTower.work`."""
        if self.label_tower is None:
            return self.sample_tower.work
        return self.sample_tower.work + self.label_tower.work

    def naive_work(self, samples: int, sites: Iterable[int]) -> int:
        """Return the cost of one run of the whole model, in evaluations of one block on one sample.

        A model has a tower of blocks that reads samples, and perhaps one that reads the texts of the labels (prompts).

        Args:
            samples: how many samples run.
            sites: the sites of the candidates. The label tower is included only if it has one of these sites.
        """
        work = samples * len(self.sample_tower.sites)
        if self.label_tower is None:
            return work
        label_sites = set(self.label_tower.sites).intersection(sites)
        if label_sites:
            prompts = sum(len(stem.hidden) for stem in self.label_stems)  # texts, over all batches of texts
            work += prompts * len(self.label_tower.sites)
        return work

    def reads_labels(self, site: int) -> bool:
        """Return whether a site is in the tower that reads the texts of the labels; False if the model has none."""
        return self.label_tower is not None and site in self.label_tower.sites

    # --- the model with heads removed ---------------------------------------------------------------------------------

    @torch.inference_mode()
    def go_to_model_without(self, removed: Sequence[CandidateHead], *, aside: bool = False) -> None:
        """Make the model without these heads the current one, which later calls evaluate.

        If the model has a tower for the texts of the labels, the texts run now. Batches of samples run later, when they
        are asked for. The states of all blocks in a run (its trace) are stored, so that a similar model need only run
        from the first block that differs.

        Args:
            removed: all heads that the model lacks, not only those removed since the previous model.
            aside: whether the model is only tried: the states of the previous model are then kept as well.
        """
        self._remove_from_towers(removed)
        self._is_aside = aside
        self._last_label_reads = {}
        if self.label_tower is None:
            return

        # The label texts depend on no batch, so they run now. Blocks before the first site that differs from the
        # previous model are not run again.
        known_traces: Sequence[Trace | None] = self._label_traces
        if not known_traces:
            known_traces = [None] * len(self.label_stems)
        traces = []
        for stem, known in zip(self.label_stems, known_traces, strict=True):
            traces.append(self.label_tower.trace(stem, known))
        self._label_traces = traces
        self._label_reads = torch.cat([trace.read for trace in traces])  # [classes, D]

    @torch.inference_mode()
    def go_on_with_tried(self) -> None:
        """Make the model that was tried last the one that is searched: move its traces to the kept traces."""
        self._is_aside = False
        for batch in list(self._tried):
            self._trace_of_current_model(batch)  # moves the trace of the batch from `_tried` to `_traces`

    @torch.inference_mode()
    def current_values(self, batch: int) -> Values:
        """Return the counts of one batch under the current model."""
        trace = self._trace_of_current_model(batch)
        return self._values_from_reads(batch, trace.read, self._label_reads)

    @torch.inference_mode()
    def values_without_each(self, batch: int, site: int, heads: Sequence[int]) -> list[Values]:
        """Return the counts of one batch when one more head is removed from the current model, for each of some heads.

        The site (attention block) of the heads is in the tower that reads samples or in the one that reads labels.

        Args:
            batch: the index of the batch.
            site: the index of the site (attention block).
            heads: the positions of the heads at the site.

        Returns:
            The counts without each head, in the order of ``heads``.
        """
        trace = self._trace_of_current_model(batch)  # the states of all blocks
        if site in self.sample_tower.sites:
            reads = self.sample_tower.without_each(trace, site, heads)  # [heads, B, ...]
            return [self._values_from_reads(batch, read, self._label_reads) for read in reads]

        # The site is in the label tower, whose features depend on no sample: one pass serves all batches.
        classes_without_each = self._label_reads_without(site, heads)
        return [self._values_from_reads(batch, trace.read, classes) for classes in classes_without_each]

    def _label_reads_without(self, site: int, heads: Sequence[int]) -> list[Tensor]:
        """Return the class features without each of these heads of one site, ``[classes, D]`` for each head.

        The label tower encodes the texts of the classes. Its last answer is stored, since every batch of samples asks
        for the same one.
        """
        assert self.label_tower is not None
        candidates = (site, *heads)
        if candidates not in self._last_label_reads:
            # For each batch of texts [heads, texts, D]; together the texts are the classes.
            of_text_batches = [self.label_tower.without_each(trace, site, heads) for trace in self._label_traces]
            classes_by_head = torch.cat(of_text_batches, dim=1)  # [heads, classes, D]
            self._last_label_reads = {candidates: list(classes_by_head)}
        return self._last_label_reads[candidates]

    @torch.inference_mode()
    def current_logits(self, batch: int) -> Tensor:
        """Return the logits ``[B, classes]`` of one batch under the current model."""
        trace = self._trace_of_current_model(batch)
        return self._logits_from_reads(batch, trace.read, self._label_reads)

    def gated_logits(self, batch: int, gates: Sequence[Tensor]) -> Tensor:
        """Return the logits ``[B, classes]`` of one batch as a differentiable function of gates on the heads.

        A gate is a factor on the output of a head. Only heads of the tower that reads samples have gates; the tower
        that reads the labels stays as it is. Must be called outside inference mode.

        Args:
            batch: the index of the batch.
            gates: for each site ``[B, heads]``, factors for the output of each head.
        """
        stem = self.stem_of(batch)

        # The kept tensors were created in inference mode: autograd accepts only copies of them.
        context = {}
        for name, value in stem.context.items():
            if isinstance(value, Tensor):
                value = value.clone()
            context[name] = value
        copied_stem = State(stem.hidden.clone(), context)

        # Run the blocks with the gates, and compare what is read out with the labels (if the model has any to read).
        read = self.sample_tower.gated(copied_stem, gates)
        classes = self._label_reads
        if classes is not None:
            classes = classes.clone()
        return self._logits_from_reads(batch, read, classes)

    def _values_from_reads(self, batch: int, read: Tensor, classes: Tensor | None) -> Values:
        """Return the counts of one batch from what the towers read out.

        Args:
            batch: the index of the batch.
            read: what the sample tower reads out of the batch, ``[B, ...]``.
            classes: what the label tower reads out, ``[classes, D]``; None if there is no label tower.
        """
        logits = self._logits_from_reads(batch, read, classes)
        search_batch = self.batches[batch]
        return values_of(logits, search_batch.labels, self.ood_score, search_batch.tasks)

    def _logits_from_reads(self, batch: int, read: Tensor, classes: Tensor | None) -> Tensor:
        """Return the logits ``[B, classes]`` of one batch, only the columns of the classes of its tasks."""
        # The outputs of the only member, [1, ...] each, in the order of the towers: samples first, then labels.
        outputs = [read[None]]
        if classes is not None:
            outputs.append(classes[None])
        logits = self.model.logits(outputs)  # [1, B, all classes]
        only_member = logits[0]
        first, end = self.batches[batch].columns  # the classes of the batch's tasks; an end of None: all
        return only_member[:, first:end]

    def _remove_from_towers(self, removed: Sequence[CandidateHead]) -> None:
        """Slice exactly these heads away from the towers; heads removed earlier that are not named come back."""
        self.sample_tower.remove(removed)
        if self.label_tower is not None:
            self.label_tower.remove(removed)

    # --- kept states -------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _read_all(self, stream: Iterable[Any], most_bytes: int) -> list[int]:
        """Read all batches once, and store their stems (states before the first block) if they fit.

        Args:
            stream: the inputs of all batches in turn.
            most_bytes: how many bytes the stems may take together; if they take more, none is kept.

        Returns:
            The size of the stem of each batch in bytes.
        """
        stem_bytes: list[int] = []
        for batch, inputs in enumerate(stream):
            stem = self.sample_tower.chain.stem(inputs)
            stem_bytes.append(stem.hidden.nbytes)
            samples, tokens = stem.hidden.shape[:2]
            self.largest_batch_tokens = max(self.largest_batch_tokens, samples * tokens)

            # The first batch that exceeds the limit drops those before it.
            if sum(stem_bytes) <= most_bytes:
                self._stems[batch] = stem
            else:
                self._stems.clear()
        return stem_bytes

    def stem_of(self, batch: int) -> State:
        """Return the state of a batch before the first block; read the batch again if its stem is not kept."""
        if self.memory.keeps_stems:
            return self._stems[batch]
        inputs = self.batches[batch].read()
        return self.sample_tower.chain.stem(inputs)

    @cached_property
    def label_stems(self) -> list[State]:
        """The states of the label texts before the first block, one for each batch of texts."""
        prompted = self.model.prompted
        assert self.label_tower is not None
        assert prompted is not None
        stems = []
        with torch.inference_mode():
            for inputs in prompted.inputs(PROMPTS_AT_ONCE):
                stems.append(self.label_tower.chain.stem(inputs))
        return stems

    def _trace_of_current_model(self, batch: int) -> Trace:
        """Return the trace of one batch (the states of all blocks) under the current model, and store it.

        The batch runs from the first block where the current model differs from the most similar stored trace; it does
        not run if they are equal. There are two stores:

        * ``_traces``, several per batch: models that a search has reached by removals;
        * ``_tried``, one per batch: a model that is only tried (``_is_aside``), and may be discarded.
        """
        heads = self.sample_tower.kept
        searched_traces = self._traces.setdefault(batch, [])
        stored_traces = list(searched_traces)

        # The tried trace is either of the current model, and is stored again below, or of a model tried before, which
        # is no longer needed after this call.
        tried_trace = self._tried.pop(batch, None)
        if tried_trace is not None:
            stored_traces.append(tried_trace)

        # Reuse the stored trace that agrees with the current model at the most leading sites.
        trace = _most_similar(stored_traces, heads)
        if trace is None or trace.kept != heads:
            trace = self.sample_tower.trace(self.stem_of(batch), known=trace)

        # Store it with the kind of model it belongs to.
        if self._is_aside:
            self._tried[batch] = trace
            return trace
        is_stored = any(searched is trace for searched in searched_traces)
        if not is_stored:
            nearest = _most_similar(searched_traces, trace.kept)

            # If the new model has the heads of the nearest one or fewer, the search went on from there: replace that
            # trace. Otherwise it belongs to another model that is searched in turn: store it beside the others.
            if nearest is not None and _has_only_heads_of(trace, nearest):
                searched_traces.remove(nearest)

            # If the memory is full, the oldest traces go.
            while searched_traces and len(searched_traces) >= self.memory.traces:
                searched_traces.pop(0)
            searched_traces.append(trace)
        return trace

    def drop_traces(self, batches: Sequence[int]) -> None:
        """Drop the traces of some batches, unless all chunks fit into memory, i.e. there is only one."""
        if len(self.memory.chunks) == 1:
            return
        for batch in batches:
            self._traces.pop(batch, None)
            self._tried.pop(batch, None)


def over_batches(evaluator: Evaluator, of_batch: Callable[[int], _Answer], processes: Processes) -> dict[int, _Answer]:
    """Return what a function answers for every batch; the processes share the calls, and all get all answers.

    With 2 processes, the first calls it on the batches 0, 2, 4 and so on, the second on the others.

    Args:
        evaluator: the evaluator that has the batches.
        of_batch: the function, called with the index of a batch; its answer must survive a round trip through JSON.
        processes: the processes that share the batches.

    Returns:
        The answers of all processes, by the index of the batch.
    """
    # Batches come in chunks whose states fit into memory together; those of a finished chunk are dropped.
    answers_here = {}
    for chunk in evaluator.memory.chunks:
        for batch in chunk:
            is_of_this_process = batch % processes.size == processes.rank
            if is_of_this_process:
                answers_here[batch] = of_batch(batch)
        evaluator.drop_traces(chunk)

    # Exchange the answers.
    answers = {}
    for answers_of_process in processes.gather(answers_here):
        for batch, answer in answers_of_process.items():
            answers[int(batch)] = answer  # JSON turns the keys into strings
    return answers


def _samples_of_task(batches: Sequence[SearchBatch], task: int) -> tuple[int, int]:
    """Return the number of ID samples and of OOD samples of a task; batches without labels are OOD."""
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


def _most_similar(traces: Sequence[Trace], heads: Kept) -> Trace | None:
    """Return the trace whose model has the same heads as ``heads`` at the most leading sites; None if there are none.

    Of equally similar traces the first is returned.
    """

    def leading_sites_in_common(trace: Trace) -> int:
        return agreeing(trace.kept, heads)

    return max(traces, key=leading_sites_in_common, default=None)


def _has_only_heads_of(trace: Trace, other: Trace) -> bool:
    """Return whether every head that was present in a trace was also present in another trace."""
    pairs = zip(trace.kept, other.kept, strict=True)
    return all(set(heads) <= set(other_heads) for heads, other_heads in pairs)
