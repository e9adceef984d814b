"""What a criterion is given and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor
from torch.nn import functional as F

from hydractl.fusion.runtime import HydraModel
from hydractl.log import Log


@dataclass
class Calibration:
    """A labelled sample to measure importance on.

    Attributes:
        batches: iterates (inputs, labels ``[B]``) on the model's device, the same each time.
        size: number of samples in all.
        seed: of the draw, and of criteria that are random themselves.
        log: where progress goes.
    """

    batches: Callable[[], Iterator[tuple[Any, Tensor]]]
    size: int
    seed: int
    log: Log

    def losses(self, model: HydraModel) -> Iterator[tuple[Tensor, int]]:
        """The summed cross-entropy of each batch, with its size; their total over :attr:`size` is the mean loss."""
        for inputs, labels in self.batches():
            logits = model.member_logits(inputs)[0]
            yield F.cross_entropy(logits.float(), labels, reduction="sum"), len(labels)


class Criterion(Protocol):
    """Importance of heads: higher means keep."""

    name: str
    needs_data: bool

    def score(self, model: HydraModel, calibration: Calibration, sites: Sequence[int]) -> dict[int, list[float]]:
        """Scores of every head PRESENT at the given sites (indices into ``model.sites``), in their order.

        A head whose ``head_gate`` is zero counts as pruned: it must not influence the scores of others.
        """
        ...
