"""What a criterion is given and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from torch import Tensor
from torch.nn import functional as F

from hydractl.heads.mask import Site
from hydractl.log import Log
from hydractl.model.runtime import HydraModel


@dataclass
class Calibration:
    """A labelled sample to measure importance on.

    Attributes:
        batches: iterates (inputs, labels ``[B]``) on the model's device, the same each time.
        size: number of samples in all.
        seed: of the draw, and of criteria that are random themselves.
        log: where progress goes.
        options: what the command says for this criterion alone, see :attr:`Decider.options`.
    """

    batches: Callable[[], Iterator[tuple[Any, Tensor]]]
    size: int
    seed: int
    log: Log
    options: Mapping[str, Any] = field(default_factory=dict)

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


@dataclass(frozen=True)
class Decision:
    """What a criterion found that decides by itself how many heads are kept.

    Attributes:
        scores: as :meth:`Criterion.score` returns them.
        kept: for each of those sites the heads to keep, as positions among those present, ascending.
        info: how it came to that, as JSON; the scores file has it under the name of the criterion.
    """

    scores: dict[int, list[float]]
    kept: dict[int, list[int]]
    info: dict[str, Any]


@runtime_checkable
class Decider(Criterion, Protocol):
    """A criterion that decides by itself how many heads are kept, over all sites at once.

    Attributes:
        options: the options of ``score`` and ``prune`` that are for this criterion alone, by their names in the
            settings.
    """

    options: tuple[str, ...]

    def check(self, sites: Sequence[Site]) -> None:
        """Everything that can be known before the model is loaded.

        Raises:
            UsageError: for heads that it cannot compare, or a package that is not installed.
        """
        ...

    def decide(self, model: HydraModel, calibration: Calibration, sites: Sequence[int]) -> Decision:
        """Scores and the heads to keep, at the given sites."""
        ...
