"""Algorithm 1 on some of the samples (``--approx subset:N``)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hydractl.circuit.evaluator import Evaluator
from hydractl.circuit.race import Race
from hydractl.circuit.samples import Sample
from hydractl.circuit.search import GreedySearch, Step
from hydractl.circuit.tower import Candidate
from hydractl.families.base import State


class Subset(GreedySearch):
    """The heads are chosen by a part of the samples, drawn once; each winner is then measured on all of them.

    Args:
        samples: how many of each set decide; all of a set that has fewer.
        seed: of the draw.
        others: as in :class:`hydractl.circuit.search.GreedySearch`.
    """

    def __init__(
        self, evaluator: Evaluator, heads: Sequence[Candidate], *, samples: int, seed: int, **others: Any
    ) -> None:
        super().__init__(evaluator, heads, **others)
        self.part = Part(evaluator, drawn(evaluator.batches, samples, seed))

    def choose(self, group: list[str], number: int, left: list[tuple[int, Candidate]]) -> dict[str, Step]:
        """The best on the part, with its counts on everything."""
        self.part.follow()
        race = Race(
            self.part,
            group,
            self._own(left),
            bounds=self.bounds,
            at_once=self.at_once,
            known=self._evaluated(group, number),
            finished=lambda runner: self._finished(runner, group, number),
        )
        winners = self._together(race.run())
        removed = self.found[group[0]].removed
        steps: dict[Candidate, Step] = {}
        for head in dict.fromkeys(winners[objective].candidate for objective in group):
            self.evaluator.begin([*removed, head])
            steps[head] = Step(head, self._measured())
        return {objective: steps[winners[objective].candidate] for objective in group}


def drawn(batches: Sequence[Sample], samples: int, seed: int) -> dict[int, list[int]]:
    """The first samples of each set in an order drawn by ``seed``: the rows of each batch, in their own order.

    A draw of more samples holds that of fewer.
    """
    found: dict[int, list[int]] = {}
    for labelled in (True, False):
        places = [
            (b, row) for b, one in enumerate(batches) if (one.labels is not None) == labelled for row in range(one.size)
        ]
        random.Random(f"{seed} {labelled}").shuffle(places)
        for batch, row in sorted(places[:samples]):
            found.setdefault(batch, []).append(row)
    return found


class Part(Evaluator):
    """Some of the samples of another evaluator, in batches of their own. It goes through the towers of the other one.

    The samples are kept in memory in the state before the first block.

    Args:
        whole: where heads are removed and put back for both.
        rows: the samples, by the batches of ``whole``.
    """

    def __init__(self, whole: Evaluator, rows: Mapping[int, Sequence[int]]) -> None:
        self.whole = whole
        limit = whole.limit_bytes
        super().__init__(
            whole.model,
            _batches(whole, rows),
            ood_score=whole.ood_score,
            memory_bytes=None if limit is None else max(limit - whole.memory_bytes, limit // 4),
            lanes=whole._lanes,
        )
        self.samples, self.labels = whole.samples, whole.labels

    def follow(self) -> None:
        """Take over what the other evaluator has of the tower of the labels, where heads have been removed."""
        self._label_stems, self._label_traces = self.whole._label_stems, self.whole._label_traces
        self._classes, self._of_text = self.whole._classes, None

    def _start(self, inputs: State) -> State:
        return inputs


@torch.inference_mode()
def _batches(whole: Evaluator, rows: Mapping[int, Sequence[int]]) -> list[Sample]:
    """Batches no larger than those of ``whole``, each of samples that are alike in their number of tokens."""
    chain, largest = whole.samples.chain, max(sample.size for sample in whole.batches)
    found: list[tuple[State, np.ndarray | None]] = []
    for batch, chosen in rows.items():
        state, known = whole._stem(batch), whole.batches[batch].labels
        piece = chain.rows(state, torch.tensor(list(chosen), device=state.hidden.device))
        labels = None if known is None else known[list(chosen)]
        if found:
            before, old = found[-1]
            fits = len(before.hidden) + len(chosen) <= largest and chain.alike(before, piece)
            if fits and (old is None) == (labels is None):
                found.pop()
                piece = chain.joined(before, piece)
                labels = None if old is None or labels is None else np.concatenate([old, labels])
        found.append((piece, labels))

    def sample(state: State, labels: np.ndarray | None) -> Sample:
        return Sample(lambda: state, labels, len(state.hidden))

    return [sample(state, labels) for state, labels in found]
