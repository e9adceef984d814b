"""Importance criteria: how one is declared, its arguments and its result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from hydractl.heads.mask import Site
from hydractl.log import Log

if TYPE_CHECKING:
    from torch import Tensor

    from hydractl.heads.weights import HeadWeights


@dataclass(frozen=True)
class CriterionOption:
    """An option of ``score`` and ``prune`` that belongs to one criterion; its type is that of its default.

    Attributes:
        name: the name in Python and YAML; the flag has dashes for underscores.
        default: a ``str``, ``int``, ``float`` or ``bool``.
        help: one sentence that describes the option, without its default.
        unit: the unit of a number.
        choices: the allowed texts.
        at_least, at_most: the range of a number.
    """

    name: str
    default: Any
    help: str
    unit: str | None = None
    choices: tuple[str, ...] = ()
    at_least: float | None = None
    at_most: float | None = None


class ScoredModel(Protocol):
    """The model as a criterion sees it: a :class:`hydractl.model.runtime.HydraModel` with one member.

    A criterion that needs no data gets a model with only the first two attributes and :meth:`head_weights`.

    Attributes:
        sites: all attention blocks.
        description: the description of the model; ``description.mask.kept`` has the heads that are present, by the path
            of the site.
        attentions: one for each site, with ``head_gate`` (``[1 or B, heads]``, None for ones) and ``head_counts``.
        labels, classes: the names and the number of the classes.
        chain_of_samples: the tower that reads samples, block by block.
        family, networks: the family, and the library's own networks.
    """

    sites: Sequence[Site]
    description: Any
    attentions: Sequence[Any]
    labels: Sequence[str] | None
    classes: int | None
    chain_of_samples: Any
    family: Any
    networks: Any

    def head_weights(self, site_index: int) -> HeadWeights:
        """Return the weights of the heads that are present at one site."""
        ...

    def member_logits(self, inputs: Any) -> Tensor:
        """Return logits ``[1, B, classes]``."""
        ...

    def parameters(self) -> Iterator[Any]:
        """Iterate over the parameters, like any torch module."""
        ...

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        """Turn gradients of the parameters on or off, like any torch module."""
        ...


@contextmanager
def gates_kept(model: ScoredModel) -> Iterator[list[Any]]:
    """Yield the gates of heads at each site, and restore them on leaving the context, whatever is set inside."""
    before = [attention.head_gate for attention in model.attentions]
    try:
        yield before
    finally:
        for attention, gate in zip(model.attentions, before, strict=True):
            attention.head_gate = gate


@dataclass
class Calibration:
    """A labelled sample to measure importance on.

    Attributes:
        batches: returns an iterator over (inputs, labels ``[B]``) on the model's device; the same samples each time.
        size: the number of samples in all.
        seed: the seed of the draw, and of criteria that are random themselves.
        log: receives the progress.
        options: the values of the criterion's own :attr:`Criterion.options`.
    """

    batches: Callable[[], Iterator[tuple[Any, Tensor]]]
    size: int
    seed: int
    log: Log
    options: Mapping[str, str | int | float | bool] = field(default_factory=dict)

    def losses(self, model: ScoredModel) -> Iterator[tuple[Tensor, int]]:
        """Yield the summed cross-entropy and the size of each batch; the total over :attr:`size` is the mean loss."""
        from torch.nn import functional as F

        for inputs, labels in self.batches():
            logits = model.member_logits(inputs)[0]  # [B, classes]
            loss = F.cross_entropy(logits.float(), labels, reduction="sum")
            yield loss, len(labels)


class Criterion(ABC):
    """Importance of heads: higher means keep.

    Attributes:
        name: the name of its file, and the value of ``--method``.
        needs_data: whether it measures on samples. If not, the model is never built.
        options: the options of ``score`` and ``prune`` that belong to this criterion.
        compares_towers: whether scores of heads in two towers can be compared.
    """

    name: str
    needs_data: bool
    options: tuple[CriterionOption, ...] = ()
    compares_towers: bool = False

    def check(self, sites: Sequence[Site]) -> None:
        """Check everything that can be known before the model is loaded.

        Raises:
            UsageError: the heads cannot be compared, or a package is not installed.
        """
        return

    @abstractmethod
    def score(self, model: ScoredModel, calibration: Calibration, sites: Sequence[int]) -> dict[int, list[float]]:
        """Score every head that is present at some sites.

        A head whose ``head_gate`` is zero counts as pruned: it must not influence the scores of other heads.

        Args:
            model: the model with these heads.
            calibration: the sample.
            sites: indices into ``model.sites``.

        Returns:
            The scores of the heads present at each site, in their order, by the index of the site.
        """


@dataclass(frozen=True)
class Decision:
    """The result of a criterion that decides by itself how many heads are kept.

    Attributes:
        scores: the scores, in the form that :meth:`Criterion.score` returns.
        kept: for each of these sites the heads to keep, as positions among the heads present, ascending.
        info: how the decision was made, as JSON; the scores file has it under the name of the criterion.
    """

    scores: dict[int, list[float]]
    kept: dict[int, list[int]]
    info: Mapping[str, object]


class Decider(Criterion):
    """A criterion that decides by itself how many heads are kept, over all sites at once."""

    compares_towers = True

    @abstractmethod
    def decide(self, model: ScoredModel, calibration: Calibration, sites: Sequence[int]) -> Decision:
        """Return the scores and the heads to keep, at the given sites."""

    def score(self, model: ScoredModel, calibration: Calibration, sites: Sequence[int]) -> dict[int, list[float]]:
        """Return only the scores of :meth:`decide`."""
        decision = self.decide(model, calibration, sites)
        return decision.scores
