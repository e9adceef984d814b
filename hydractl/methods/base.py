"""What a way of getting members declares: its arguments, and the hooks by which ``finetune`` uses it."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from hydractl.training.adapters import Adapter
    from hydractl.training.course import CourseOptions
    from hydractl.training.members import MemberMaker

Number: TypeAlias = int | float | Fraction

# --- arguments --------------------------------------------------------------------------------------------------------


class _Notation(NamedTuple):
    """How numbers of a type are written, what messages call them, and how they are read."""

    pattern: str
    words: str
    read: Callable[[str], Number]


_NOTATIONS = {
    int: _Notation(r"[0-9]{1,9}", "a whole number", int),
    float: _Notation(r"([0-9]{1,9}(\.[0-9]{0,9})?|\.[0-9]{1,9})(e-?[0-9]{1,2})?", "a number", float),
    Fraction: _Notation(r"[0-9]{1,3}(\.[0-9]{1,3}|/[1-9][0-9]?)?", "a number or a fraction such as 9/4", Fraction),
}


@dataclass(frozen=True)
class Argument:
    """One argument of a method: a number behind ``--ensemble KIND:``.

    Attributes:
        metavar: its name in help texts and messages.
        type: ``int``, ``float``, or ``Fraction`` for a number that may also be written as ``9/4``.
        at_least, at_most, above, below: its range.
    """

    metavar: str
    type: type[int] | type[float] | type[Fraction]
    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    below: float | None = None

    def read(self, text: str) -> Number:
        """Return the number that a text stands for.

        Raises:
            ValueError: it stands for none of the type.
        """
        notation = _NOTATIONS[self.type]
        if not re.fullmatch(notation.pattern, text):
            raise ValueError(f"{self.metavar} must be {notation.words}, not {text!r}")
        return notation.read(text)

    def check(self, value: object) -> None:
        """Check the value that somebody gave.

        Raises:
            ValueError: it is no number of the type, or out of range.
        """
        accepted = int if self.type is int else (int, float, Fraction)
        if isinstance(value, bool) or not isinstance(value, accepted) or not math.isfinite(value):
            raise ValueError(f"{self.metavar} must be {_NOTATIONS[self.type].words}, not {value!r}")
        if self.at_least is not None and value < self.at_least:
            raise ValueError(f"{self.metavar} must be at least {self.at_least}, not {value}")
        if self.at_most is not None and value > self.at_most:
            raise ValueError(f"{self.metavar} must be at most {self.at_most}, not {value}")
        if self.above is not None and value <= self.above:
            raise ValueError(f"{self.metavar} must be greater than {self.above}, not {value}")
        if self.below is not None and value >= self.below:
            raise ValueError(f"{self.metavar} must be less than {self.below}, not {value}")


def argument(
    metavar: str,
    type: type[int] | type[float] | type[Fraction],
    default: Any = dataclasses.MISSING,
    **range_: float,
) -> Any:
    """Declare an argument as a field of the options of a method.

    Args:
        metavar, type, range_: as of :class:`Argument`.
        default: its value where it is left out; an argument without one is needed.
    """
    declared = Argument(metavar, type, **range_)
    return dataclasses.field(default=default, metadata={"argument": declared})


def fields_in_order(options: type[MethodOptions]) -> list[dataclasses.Field[Any]]:
    """Return the fields of the arguments of a method in the order in which they are written."""
    return sorted(dataclasses.fields(options), key=lambda field: field.kw_only is True)


# --- methods ----------------------------------------------------------------------------------------------------------


class FinetuneRequest(Protocol):
    """What somebody asks of ``finetune``, as far as a method looks at it.

    Attributes:
        loss: ``cross-entropy`` or ``contrastive``.
        lr: the learning rates that are tried.
        schedule: ``cosine``, ``linear`` or ``constant``.
        freeze: parts that are not trained.
        compile: whether the model is compiled.
        shard: whether weights are divided among processes.
    """

    loss: str
    lr: list[float]
    schedule: str
    freeze: list[str]
    compile: bool
    shard: bool

    def where(self, name: str) -> str:
        """Return `` (source)`` of an option, empty where there is nothing to say."""
        ...

    def has_default(self, name: str) -> bool:
        """Return whether nobody has given an option."""
        ...


@dataclass(frozen=True)
class MethodOptions:
    """What is asked of one method; a subclass has its arguments as fields and fills in the hooks that it needs.

    Attributes:
        kind: what stands before the colon of ``--ensemble``.
        summary: what the method does, one sentence for the help, which speaks of its arguments by their metavars.
        example: arguments as one would give them.
        needs_cosine: whether its learning rate is a cosine, so that ``--schedule`` must leave it at that.

    Raises:
        ValueError: an argument is out of range; the rest of a sentence that starts with the kind.
    """

    kind: ClassVar[str]
    summary: ClassVar[str]
    example: ClassVar[str] = ""
    needs_cosine: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check the arguments."""
        for name, declared in self.arguments().items():
            value = getattr(self, name)
            if value is not None:
                declared.check(value)

    def __str__(self) -> str:
        """Return it as it is written after ``--ensemble``, without the defaults at its end."""
        fields = fields_in_order(type(self))
        while fields and getattr(self, fields[-1].name) == fields[-1].default:
            fields.pop()
        if not fields:
            return self.kind
        texts = []
        for field in fields:
            value = getattr(self, field.name)
            texts.append(str(value).removesuffix(".0"))
        return f"{self.kind}:{','.join(texts)}"

    @classmethod
    def arguments(cls) -> dict[str, Argument]:
        """Return the declared arguments by the names of their fields."""
        return {field.name: field.metadata["argument"] for field in fields_in_order(cls)}

    def to_json(self) -> dict[str, Any] | None:
        """Return what the provenance of a checkpoint says; None where it is that of an ordinary training."""
        record: dict[str, Any] = {"kind": self.kind}
        for name, declared in self.arguments().items():
            value = getattr(self, name)
            if value is not None and declared.type is float:
                value = float(value)
            elif declared.type is Fraction:
                value = str(Fraction(str(value)))
            record[name] = value
        return record

    # --- hooks --------------------------------------------------------------------------------------------------------

    @property
    def trainings(self) -> int:
        """How many trainings there are, by ``--seed`` and the seeds after it."""
        return 1

    def of_one_training(self) -> MethodOptions:
        """Return what is asked of each of several trainings."""
        return self

    def models(self) -> int | None:
        """Return how many models one training writes; None for one that is called as ``--output`` says."""
        return None

    def conflicts(self, request: FinetuneRequest) -> list[str]:
        """List the options that do not go with this method, each as a sentence."""
        return []

    def sets_aside(self, request: FinetuneRequest) -> list[str]:
        """Return the names of the options that mean nothing beside this method."""
        return []

    def adapter(self) -> Adapter | None:
        """Return what is trained in the place of the weights."""
        return None

    def together(self) -> MemberMaker | None:
        """Return what makes several members of one training."""
        return None

    def course(self) -> CourseOptions | None:
        """Return how the learning rate goes and which weights are left, where no epoch is chosen."""
        return None


@dataclass(frozen=True)
class SeededOptions(MethodOptions):
    """Options of a method whose members are trained one by one, each by a seed of its own.

    Attributes:
        members: how many; written behind the arguments of a subclass, and in Python given by its name.
    """

    _: KW_ONLY
    members: int = argument("M", int, 1, at_least=1, at_most=1000)

    @property
    def trainings(self) -> int:
        """One for each member."""
        return self.members

    def of_one_training(self) -> MethodOptions:
        """Return the same for one member."""
        return dataclasses.replace(self, members=1)


@dataclass(frozen=True)
class CourseMethodOptions(MethodOptions):
    """Options of a method that leaves other weights of a training than those of one epoch."""

    def conflicts(self, request: FinetuneRequest) -> list[str]:
        """List what cannot be chosen: of several learning rates the best epoch decides."""
        if len(request.lr) == 1:
            return []
        return [f"--ensemble {self.kind} takes one value of --lr, not {len(request.lr)}{request.where('lr')}"]

    def sets_aside(self, request: FinetuneRequest) -> list[str]:
        """Return the options by which an epoch is chosen."""
        return ["patience", "min_delta"]


@dataclass(frozen=True)
class TogetherOptions(MethodOptions):
    """Options of a method by which one training makes several members.

    Attributes:
        members: how many; the first argument.
        can_be_sped_up: whether ``--compile`` and ``--shard`` go with it.
    """

    can_be_sped_up: ClassVar[bool] = False

    members: int = argument("M", int, at_least=2, at_most=100)

    def models(self) -> int:
        """Return the number of members."""
        return self.members

    def conflicts(self, request: FinetuneRequest) -> list[str]:
        """List the options that do not go with making several members by one training."""
        told = f"--ensemble {self.kind}{request.where('ensemble')}"
        problems = []
        if request.loss == "contrastive":
            problems.append(f"{told} is for models with a classifier, not --loss contrastive")
        if request.compile and not self.can_be_sped_up:
            problems.append(f"{told} does not go with --compile")
        if request.shard and not self.can_be_sped_up:
            problems.append(f"{told} does not go with --shard")
        if "head" in request.freeze:
            problems.append(f"{told} trains classifiers: without --freeze head")
        return problems


# --- reading ----------------------------------------------------------------------------------------------------------


def shape_of(options: type[MethodOptions]) -> str:
    """Return the arguments of a method as its help shows them: ``packed:M,ALPHA[,GAMMA]``."""
    shape = ""
    closing = ""
    for field in fields_in_order(options):
        comma = "," if shape else ""
        metavar = field.metadata["argument"].metavar
        if field.default is dataclasses.MISSING:
            shape += f"{comma}{metavar}"
        else:
            shape += f"[{comma}{metavar}"
            closing += "]"
    if not shape:
        return options.kind
    if shape.startswith("["):
        return f"{options.kind}[:{shape[1:]}{closing}"
    return f"{options.kind}:{shape}{closing}"


def read_arguments(options: type[MethodOptions], text: str) -> MethodOptions:
    """Return the options that the text behind ``KIND:`` stands for.

    Raises:
        ValueError: there are too few or too many arguments, or one of them is wrong; with an example.
    """
    example = f"{options.kind}:{options.example}" if options.example else options.kind
    declared = options.arguments()
    texts = text.split(",") if text else []
    needed = [field for field in fields_in_order(options) if field.default is dataclasses.MISSING]
    if not len(needed) <= len(texts) <= len(declared):
        given = f"{options.kind}:{text}" if text else options.kind
        raise ValueError(f"must be {shape_of(options)}, such as {example}, not {given!r}")
    try:
        values = {}
        for (name, item), part in zip(declared.items(), texts, strict=False):
            values[name] = item.read(part.strip())
        return options(**values)
    except ValueError as error:
        raise ValueError(f"{options.kind}: {error}; such as {example}") from None
