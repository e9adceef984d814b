"""What the model gives with some heads removed: the counts of each batch, for the model as it is and each candidate."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from hydractl.circuit.objective import Values, shares_of, values_of
from hydractl.circuit.samples import Sample
from hydractl.circuit.tower import Candidate, Tower, Trace, agreeing
from hydractl.families.base import State
from hydractl.model.prompted import PROMPTS_AT_ONCE
from hydractl.model.runtime import HydraModel


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
        batches: Sequence[Sample],
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
        own = [[batch for batch in batches if task in batch.tasks] for task in range(len(weights))]
        sizes = [
            (sum(b.size for b in of if b.labels is not None), sum(b.size for b in of if b.labels is None)) for of in own
        ]
        self.weights, self.shares = list(weights), shares_of(sizes, weights)
        self.n_id = sum(share.inside * n_id for share, (n_id, _) in zip(self.shares, sizes, strict=True))
        self.n_ood = sum(share.outside * n_ood for share, (_, n_ood) in zip(self.shares, sizes, strict=True))
        self.size = sum(batch.size for batch in batches)
        self.samples = Tower(model, model.chain_of_samples)
        self.labels = None if model.prompted is None else Tower(model, model.chain_of_labels)
        self._stems: dict[int, State] = {}
        self.keeps_data = True
        self._traces: dict[int, list[Trace]] = {}
        self._tried: dict[int, Trace] = {}
        self._copies, self._aside = 1 + aside, False
        self._label_traces: list[Trace] = []
        self._classes: Tensor | None = None
        self._of_text: tuple[tuple[Candidate, ...], list[Tensor]] | None = None
        self._lanes = lanes
        self._shapes: list[tuple[int, int, int]] = []
        self.chunks = self._plan(stream or (batch.read() for batch in batches), memory_bytes)

    def close(self) -> None:
        """Give the model its heads back and let go of what was kept."""
        self._install([])
        self._traces.clear()
        self._tried.clear()
        self._stems.clear()

    @property
    def work(self) -> float:
        """Sample-block evaluations so far, in fractions of a block; see :class:`hydractl.circuit.tower.Tower`."""
        return self.samples.work + (self.labels.work if self.labels else 0.0)

    @property
    def largest_batch_tokens(self) -> int:
        """Samples times tokens of the largest batch."""
        return max(size * tokens for size, tokens, _ in self._shapes)

    def naive_work(self, samples: int, sites: Iterable[int]) -> int:
        """Sample-block evaluations of one evaluation of so many samples by the whole model.

        The tower of the labels counts where heads of it are among the candidates, whose ``sites`` are given.
        """
        work = samples * len(self.samples.sites)
        if self.labels is not None and any(site in self.labels.sites for site in sites):
            work += sum(len(stem.hidden) for stem in self._label_stems) * len(self.labels.sites)
        return work

    def price(self, site: int | None, samples: int, share: float | None = None) -> float:
        """Return the cost of a candidate of a site in sample-block evaluations; with None, that of the model itself.

        Args:
            site: its index.
            samples: on how many samples, each like the mean of those that are here.
            share: the share of the heads that is present at each site; None: as many as now.
        """
        tower, shapes = self.samples, self._shapes
        if self.labels is not None and site in self.labels.sites:
            tower = self.labels
            shapes = [_shape(tower, stem, len(stem.hidden)) for stem in self._label_stems]
            samples = sum(size for size, _, _ in shapes)
        total = sum(size * tower.price(site, tokens, queries, share) for size, tokens, queries in shapes)
        return samples * (total / sum(size for size, _, _ in shapes))

    # --- the model with heads removed ---------------------------------------------------------------------------------

    @torch.inference_mode()
    def begin(self, removed: Sequence[Candidate], *, aside: bool = False) -> None:
        """Go to the model without these heads; ``aside``, to try it, which leaves the states of the one before."""
        self._install(removed)
        self._aside = aside
        self._of_text = None
        if self.labels is None:
            return
        known: Sequence[Trace | None] = self._label_traces or [None] * len(self._label_stems)
        pairs = zip(self._label_stems, known, strict=True)
        self._label_traces = [self.labels.trace(stem, trace) for stem, trace in pairs]
        self._classes = torch.cat([trace.read for trace in self._label_traces])

    @torch.inference_mode()
    def keep_tried(self) -> None:
        """Go on with the model that was tried last."""
        self._aside = False
        for batch in list(self._tried):
            self._trace(batch)

    @torch.inference_mode()
    def current(self, batch: int) -> Values:
        """The counts of one batch under the model without the removed heads."""
        return self._values(batch, self._trace(batch).read, self._classes)

    @torch.inference_mode()
    def without_each(self, batch: int, site: int, heads: Sequence[int]) -> list[Values]:
        """The counts of one batch with each of some heads of one site removed as well."""
        trace = self._trace(batch)
        if site in self.samples.sites:
            reads = self.samples.without_each(trace, site, heads)
            return [self._values(batch, read, self._classes) for read in reads]
        # What the tower of the labels reads out depends on no sample: one pass serves all batches.
        return [self._values(batch, trace.read, classes) for classes in self._classes_without(site, heads)]

    def _classes_without(self, site: int, heads: Sequence[int]) -> list[Tensor]:
        assert self.labels is not None
        key = tuple((site, head) for head in heads)
        if self._of_text is None or self._of_text[0] != key:
            parts = [self.labels.without_each(trace, site, heads) for trace in self._label_traces]
            self._of_text = key, list(torch.cat(parts, dim=1))
        return self._of_text[1]

    @torch.inference_mode()
    def current_logits(self, batch: int) -> Tensor:
        """Return the logits ``[B, classes]`` of one batch under the model without the removed heads."""
        return self._logits(batch, self._trace(batch).read, self._classes)

    def gated_logits(self, batch: int, gates: Sequence[Tensor]) -> Tensor:
        """Return the logits of one batch as a function of a gate on each head of the tower of samples.

        See :meth:`Tower.gated`. To be called outside inference mode. The tower of the labels stays as it is.
        """
        stem = self._stem(batch)
        # What is kept was made in inference mode, and only a copy of it may be part of a graph of gradients.
        context = {name: v.clone() if isinstance(v, Tensor) else v for name, v in stem.context.items()}
        read = self.samples.gated(State(stem.hidden.clone(), context), gates)
        return self._logits(batch, read, None if self._classes is None else self._classes.clone())

    def count_backward(self, batch: int) -> None:
        """Count the work of one backward pass to the gates of one batch."""
        self.samples.count_backward(*self._shapes[batch])

    def _values(self, batch: int, read: Tensor, classes: Tensor | None) -> Values:
        sample = self.batches[batch]
        values = values_of(self._logits(batch, read, classes), sample.labels, self.ood_score, sample.beside)
        return replace(values, tasks=sample.tasks)

    def _logits(self, batch: int, read: Tensor, classes: Tensor | None) -> Tensor:
        outputs = [read] if classes is None else [read, classes]
        # One member's outputs, in the order of the towers: samples first, as the families list them.
        return self.model.logits([output[None] for output in outputs])[0][:, slice(*self.batches[batch].columns)]

    def _install(self, removed: Sequence[Candidate]) -> None:
        for tower in (self.samples, self.labels):
            if tower is not None:
                tower.remove(removed)

    # --- what is kept -------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _plan(self, stream: Iterable[Any], memory_bytes: int) -> list[list[int]]:
        """Batches in chunks whose traces fit into the memory together; decides what else is kept."""
        sizes = []
        for batch, inputs in enumerate(stream):
            stem = self.samples.chain.stem(inputs)
            sizes.append(stem.hidden.nbytes)
            self._shapes.append(_shape(self.samples, stem, self.batches[batch].size))
            if sum(sizes) > memory_bytes // 4:
                self.keeps_data = False
                self._stems.clear()
            elif self.keeps_data:
                self._stems[batch] = stem
        # A state, joined heads and an output per block, and the state before the last.
        traces = [self._copies * size * (3 * len(self.samples.sites) + 1) for size in sizes]
        self._stem_bytes = sum(sizes) if self.keeps_data else 0
        self._trace_bytes = sum(traces)
        left = memory_bytes - self._stem_bytes
        self._kept_traces = max(1, min(self._lanes, left // self._trace_bytes))
        chunks: list[list[int]] = []
        filled = 0
        for batch, size in enumerate(traces):
            if not chunks or filled + size > left:
                chunks.append([])
                filled = 0
            chunks[-1].append(batch)
            filled += size
        return chunks

    @property
    def memory_bytes(self) -> int:
        """About how many bytes are kept at a time."""
        most = max(len(chunk) for chunk in self.chunks)
        share = self._trace_bytes * most / len(self.batches)
        return int(self._stem_bytes + self._kept_traces * share)

    def _stem(self, batch: int) -> State:
        """The state before the first block."""
        return self._stems[batch] if self.keeps_data else self.samples.chain.stem(self.batches[batch].read())

    @cached_property
    def _label_stems(self) -> list[State]:
        prompted = self.model.prompted
        assert self.labels is not None and prompted is not None
        with torch.inference_mode():
            return [self.labels.chain.stem(inputs) for inputs in prompted.inputs(PROMPTS_AT_ONCE)]

    def _trace(self, batch: int) -> Trace:
        """The trace of the model as it is, made from the nearest one there is."""
        kept = self._traces.setdefault(batch, [])
        tower, tried = self.samples, self._tried.pop(batch, None)

        def agreement(trace: Trace) -> int:
            return agreeing(trace.kept, tower.kept)

        nearest = max([*kept, *([tried] if tried else [])], key=agreement, default=None)
        if nearest is None or nearest.kept != tower.kept:
            nearest = tower.trace(self._stem(batch), nearest)
        if self._aside:
            self._tried[batch] = nearest
        elif not any(trace is nearest for trace in kept):
            # A model with more of the same heads removed follows the one before it; another one stands beside it.
            last = max(kept, key=agreement, default=None)
            if last is not None and all(set(n) <= set(o) for n, o in zip(nearest.kept, last.kept, strict=True)):
                kept.remove(last)
            while kept and len(kept) >= self._kept_traces:
                kept.pop(0)
            kept.append(nearest)
        return nearest

    def forget(self, batches: Sequence[int]) -> None:
        """Let go of the traces of a chunk, where not all of them fit into memory."""
        if len(self.chunks) > 1:
            for batch in batches:
                self._traces.pop(batch, None)
                self._tried.pop(batch, None)


def _shape(tower: Tower, stem: State, size: int) -> tuple[int, int, int]:
    """Samples, tokens, and tokens that are read out."""
    return size, stem.hidden.shape[1], tower.chain.query_tokens(stem).hidden.shape[1]
