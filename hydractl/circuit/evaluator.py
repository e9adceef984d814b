"""Measuring every remaining head at once: one pass over the data, each candidate re-running only what follows it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hydractl.circuit.objective import Measured
from hydractl.errors import NonFiniteError
from hydractl.families.base import State
from hydractl.fusion.chain import Chain
from hydractl.fusion.prompted import PROMPTS_AT_ONCE
from hydractl.fusion.runtime import HydraModel
from hydractl.metrics.ood import two_u

Candidate = tuple[int, int]
"""(index of the site, position of the head among those present in the model)."""


@dataclass
class Sample:
    """One batch of the search data, on the model's device; labels are None for OOD."""

    inputs: Any
    labels: Tensor | None
    size: int


class Evaluator:
    """Counts for the model with some heads gated off.

    A gate of zero on a head's output is the same as a zeroed column block of the output projection.
    """

    def __init__(self, model: HydraModel, batches: Sequence[Sample]) -> None:
        self.model = model
        self.batches = batches
        self.n_id = sum(b.size for b in batches if b.labels is not None)
        self.n_ood = sum(b.size for b in batches if b.labels is None)

    @torch.inference_mode()
    def measure(self, removed: Sequence[Candidate], candidates: Sequence[Candidate]) -> tuple[Measured, list[Measured]]:
        """Counts with ``removed`` gated off, and with each candidate gated off on top of them."""
        gates = self._gates(removed)
        correct = np.zeros(len(candidates) + 1, dtype=np.int64)
        confidence = np.empty((len(candidates) + 1, self.n_id + self.n_ood))
        offsets = {True: 0, False: self.n_id}
        try:
            self._set(gates)
            classes = self._class_features(gates, candidates)
            for batch in self.batches:
                start = offsets[batch.labels is not None]
                columns = slice(start, start + batch.size)
                offsets[batch.labels is not None] += batch.size
                for row, logits in enumerate(self._all_logits(batch, gates, candidates, classes)):
                    right, top = _count(logits, batch.labels)
                    correct[row] += right
                    confidence[row, columns] = top
        finally:
            for attention in self.model.attentions:
                attention.head_gate = None
        rows = [self._measured(int(correct[row]), confidence[row]) for row in range(len(candidates) + 1)]
        return rows[0], rows[1:]

    def _all_logits(
        self, batch: Sample, gates: list[Tensor], candidates: Sequence[Candidate], classes: list[Tensor]
    ) -> Iterator[Tensor]:
        """Logits ``[B, C]`` of the current model, then of each candidate."""
        chain = self.model.chain_of_samples
        outputs = self._with_each(chain, chain.states(batch.inputs), gates, candidates)
        current = outputs[0]
        if not classes:
            yield from (output[0] for output in outputs)
            return
        # A candidate of the one tower leaves what the other tower reads out as it is.
        yield self.model.logits([current, classes[0]])[0]
        of_samples, of_labels = iter(outputs[1:]), iter(classes[1:])
        for site, _ in candidates:
            pair = [next(of_samples), classes[0]] if site in chain.sites else [current, next(of_labels)]
            yield self.model.logits(pair)[0]

    def _class_features(self, gates: list[Tensor], candidates: Sequence[Candidate]) -> list[Tensor]:
        """What the tower of the labels reads out now, then with each candidate of it; empty where there is none.

        It depends on no sample, so one pass serves the whole data.
        """
        prompted = self.model.prompted
        if prompted is None:
            return []
        chain = self.model.chain_of_labels
        parts = [
            self._with_each(chain, chain.states(inputs), gates, candidates)
            for inputs in prompted.inputs(PROMPTS_AT_ONCE)
        ]
        return [torch.cat(pieces, dim=1) for pieces in zip(*parts, strict=True)]

    def _with_each(
        self, chain: Chain, states: list[State], gates: list[Tensor], candidates: Sequence[Candidate]
    ) -> list[Tensor]:
        """What a tower reads out ``[1, B, ...]`` as it is, and with each candidate at its own sites gated off."""
        outputs = [chain.readout(states[-1])]
        for site, head in candidates:
            if site not in chain.sites:
                continue
            gate = gates[site].clone()
            gate[0, head] = 0
            self.model.attentions[site].head_gate = gate
            outputs.append(chain.rest(site, states[site - chain.sites.start]))
            self.model.attentions[site].head_gate = gates[site]
        return outputs

    def _gates(self, removed: Sequence[Candidate]) -> list[Tensor]:
        parameter = next(self.model.parameters())
        gates = [
            torch.ones(1, a.head_counts[0], device=parameter.device, dtype=parameter.dtype)
            for a in self.model.attentions
        ]
        for site, head in removed:
            gates[site][0, head] = 0
        return gates

    def _set(self, gates: list[Tensor]) -> None:
        for attention, gate in zip(self.model.attentions, gates, strict=True):
            attention.head_gate = gate

    def _measured(self, correct: int, confidence: np.ndarray) -> Measured:
        if not self.n_ood:
            return Measured(correct, self.n_id, None, 0)
        # OOD is the positive class and its score is minus the confidence.
        return Measured(correct, self.n_id, two_u(-confidence[: self.n_id], -confidence[self.n_id :]), self.n_ood)


def _count(logits: Tensor, labels: Tensor | None) -> tuple[int, np.ndarray]:
    """Number classified right (0 without labels) and the maximum softmax probability of each sample, in float64."""
    logits = logits.double()
    if not bool(torch.isfinite(logits).all()):
        raise NonFiniteError("a logit is NaN or infinite during the search", hint="try --dtype float32")
    confidence = logits.softmax(-1).amax(-1).cpu().numpy()
    right = 0 if labels is None else int((logits.argmax(-1) == labels).sum())
    return right, confidence
