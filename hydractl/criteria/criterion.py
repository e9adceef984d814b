"""Importance criteria: how one is declared, its arguments and its result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from hydractl.criteria.arguments import Argument, Number
from hydractl.errors import did_you_mean
from hydractl.heads.mask import Site
from hydractl.log import Log

if TYPE_CHECKING:
    from torch import Tensor

    from hydractl.heads.weights import HeadWeights


def argument(default: Any, help: str, *, at_least: float | None = None, at_most: float | None = None) -> Any:
    """Declare an argument as a field of a criterion, which is a frozen dataclass.

    Args:
        default: an ``int`` or a ``float``; the argument is of its type.
        help, at_least, at_most: the attributes of :class:`Argument`.
    """
    declared = Argument(type=type(default), help=help, at_least=at_least, at_most=at_most)
    return field(default=default, metadata={"argument": declared})


@dataclass(frozen=True)
class AnyCriterion:
    """A criterion of heads or of single weights, with its arguments: fields that are declared by :func:`argument`.

    Attributes:
        name: the value of ``--method``.
        needs_data: whether it measures on samples. If not, the model is never built.

    Raises:
        ValueError: an argument is out of range.
    """

    name: ClassVar[str]
    needs_data: ClassVar[bool]

    def __post_init__(self) -> None:
        """Check the arguments."""
        for name, declared in self.arguments().items():
            declared.check(name, getattr(self, name))

    def __str__(self) -> str:
        """Return the text after ``--method``, e.g. ``cahp:degree=2``; arguments with their defaults are left out."""
        changed = []
        for argument_field in fields(self):
            value = getattr(self, argument_field.name)
            if value != argument_field.default:
                changed.append(f"{argument_field.name}={value}")
        arguments = ",".join(changed)
        return f"{self.name}:{arguments}" if changed else self.name

    @classmethod
    def arguments(cls) -> dict[str, Argument]:
        """Return the declared arguments by name."""
        return {argument_field.name: argument_field.metadata["argument"] for argument_field in fields(cls)}

    def with_arguments(self, text: str) -> Self:
        """Return this criterion with the arguments in a text, such as ``degree=2``; several are separated by commas.

        Raises:
            ValueError: a name is no argument of this criterion or comes twice, or a value is wrong.
        """
        declared = self.arguments()
        values: dict[str, Number] = {}
        for part in text.split(","):
            name, _, value = part.partition("=")
            name = name.strip()
            if name not in declared:
                known = ", ".join(declared) or "no argument"
                raise ValueError(f"takes {known}, not {name!r}{did_you_mean(name, declared)}")
            if name in values:
                raise ValueError(f"has {name} twice")
            values[name] = declared[name].read(name, value.strip())
        return replace(self, **values)


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


@contextmanager
def gradients_of(model: Any, chosen: Iterable[Any]) -> Iterator[None]:
    """Turn on the gradients of the chosen parameters of a torch module alone, inside this context.

    The graphs of the other parameters would keep more activations in memory. Afterwards all are as before.
    """
    before = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        model.requires_grad_(False)
        for parameter in chosen:
            parameter.requires_grad_(True)
        yield
    finally:
        for parameter, required_gradients in before:
            parameter.requires_grad_(required_gradients)


@dataclass
class Calibration:
    """A labelled sample to measure importance on.

    Attributes:
        batches: returns an iterator over (inputs, labels ``[B]``) on the model's device; the same samples each time.
        size: the number of samples in all.
        seed: the seed of the draw, and of criteria that are random themselves.
        log: receives the progress.
    """

    batches: Callable[[], Iterator[tuple[Any, Tensor]]]
    size: int
    seed: int
    log: Log

    def losses(self, model: ScoredModel) -> Iterator[tuple[Tensor, int]]:
        """Yield the summed cross-entropy and the size of each batch; the total over :attr:`size` is the mean loss."""
        from torch.nn import functional as F

        for inputs, labels in self.batches():
            logits = model.member_logits(inputs)[0]  # [B, classes]
            loss = F.cross_entropy(logits.float(), labels, reduction="sum")
            yield loss, len(labels)


class Criterion(AnyCriterion, ABC):
    """Importance of heads: higher means keep.

    Attributes:
        name: the name of its file, and the value of ``--method``.
        compares_towers: whether scores of heads in two towers can be compared.
    """

    compares_towers: ClassVar[bool] = False

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
