"""The options of an ensemble method: its arguments, and the hooks by which ``finetune`` uses it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from hydractl.criteria.arguments import Argument

if TYPE_CHECKING:
    from torch import Tensor

    from hydractl.training.adapters import Adapter
    from hydractl.training.course import CourseMaker
    from hydractl.training.members import MemberMaker


def argument(
    metavar: str,
    type: type[int] | type[float] | type[Fraction],
    default: Any = dataclasses.MISSING,
    **range_: Any,
) -> Any:
    """Declare an argument as a field of a method's options.

    Args:
        metavar, type, range_: the attributes of :class:`hydractl.criteria.arguments.Argument`.
        default: the value if the argument is left out; without a default, the argument must be given.
    """
    declared = Argument(type=type, metavar=metavar, **range_)
    return dataclasses.field(default=default, metadata={"argument": declared})


def fields_in_order(options: type[MethodOptions]) -> list[dataclasses.Field[Any]]:
    """Return the fields of a method's arguments in the order in which they are written, keyword-only fields last."""
    return sorted(dataclasses.fields(options), key=lambda field: field.kw_only is True)


def _computed_by(place: str, options: MethodOptions) -> Any:
    """Return an object of the class ``MODULE:CLASS``, made with these options; its module may import torch."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)(options)


# --- methods ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FinetuneRequest:
    """The options of ``finetune`` that a method may look at.

    Attributes:
        val: the SPEC of the validation data, or None.
        loss: ``cross-entropy`` or ``contrastive``.
        schedule: ``cosine``, ``linear`` or ``constant``.
        freeze: the parts of the model that are not trained.
        compile: whether the model is compiled.
        where: returns where an option was given, as `` (source)`` for a message; empty if there is nothing to say.
        has_default: returns whether an option has its default value because nobody has set it.
    """

    val: str | None
    loss: str
    schedule: str
    freeze: list[str]
    compile: bool
    where: Callable[[str], str]
    has_default: Callable[[str], bool]


@dataclass(frozen=True)
class MethodOptions:
    """The options of one method. A subclass has the arguments as fields and overrides the hooks that it needs.

    Attributes:
        kind: the text before the colon of ``--ensemble``.
        summary: one sentence for the help about what the method does; it names the arguments by their metavars.
        example: example values of the arguments, as text.
        trains: whether a model is trained; False for ``laplace``, which is fitted.

    Raises:
        ValueError: an argument is out of range. The caller puts the kind before the message.
    """

    kind: ClassVar[str]
    summary: ClassVar[str]
    example: ClassVar[str] = ""
    trains: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the arguments."""
        for name, declared in self.arguments().items():
            value = getattr(self, name)
            if value is not None:
                declared.check(declared.metavar, value)

    def __str__(self) -> str:
        """Return the text after ``--ensemble``: the kind and its arguments, e.g. ``packed:3,2``.

        Arguments at the end that have their defaults are left out.
        """
        fields = fields_in_order(type(self))

        # Drop arguments from the end as long as they have their defaults; one before another value must stay, as
        # arguments are read by their order.
        while fields:
            last = fields[-1]
            if getattr(self, last.name) != last.default:
                break
            fields.pop()

        if not fields:
            return self.kind

        # Write whole numbers without ".0".
        texts = []
        for field in fields:
            text = str(getattr(self, field.name))
            texts.append(text.removesuffix(".0"))
        return f"{self.kind}:{','.join(texts)}"

    @classmethod
    def arguments(cls) -> dict[str, Argument]:
        """Return the declared arguments by the names of their fields."""
        arguments = {}
        for field in fields_in_order(cls):
            arguments[field.name] = field.metadata["argument"]
        return arguments

    def to_json(self) -> dict[str, object] | None:
        """Return the method and its arguments for the provenance of a checkpoint; None for an ordinary training."""
        record: dict[str, object] = {"kind": self.kind}
        for name, declared in self.arguments().items():
            # Write equal values in the same way, however they were given: 1 as 1.0, and fractions as text, e.g. "9/4".
            value = getattr(self, name)
            if declared.type is float and value is not None:
                record[name] = float(value)
            elif declared.type is Fraction:
                fraction = Fraction(str(value))
                record[name] = str(fraction)
            else:
                record[name] = value
        return record

    # --- hooks --------------------------------------------------------------------------------------------------------

    @property
    def trainings(self) -> int:
        """The number of trainings; they use ``--seed`` and the seeds after it."""
        return 1

    def of_one_training(self) -> MethodOptions:
        """Return the options of a single training, if these options ask for several."""
        return self

    def models(self) -> int | None:
        """Return the number of models that one training writes; None for a single model named exactly ``--output``."""
        return None

    def conflicts(self, request: FinetuneRequest) -> list[str]:
        """Return a sentence for each option that conflicts with this method."""
        return []

    def sets_aside(self, request: FinetuneRequest) -> list[str]:
        """Return the names of the options that have no effect with this method, so that the user can be told."""
        return []

    def adapter(self) -> Adapter | None:
        """Return the adapter that is trained instead of the weights; None to train the weights."""
        return None

    def class_weights(self, seed: int) -> Callable[[int], Tensor] | None:
        """Return a function from the number of classes to their weights ``[C]`` in the loss; None for equal weights.

        Args:
            seed: the seed of the training, for weights that are drawn.
        """
        return None

    def together(self) -> MemberMaker | None:
        """Return the object that makes the members if one training trains several; None for one member."""
        return None

    def course(self) -> CourseMaker | None:
        """Return what makes the course of a training: its learning rate, and collected weights; None for the usual."""
        return None


@dataclass(frozen=True)
class SeededOptions(MethodOptions):
    """Options of a method that trains its members one by one, each with its own seed.

    Attributes:
        adapted_by: ``MODULE:CLASS`` of the adapter, which takes these options.
        members: the number of members. In text it comes after the arguments of a subclass; in Python it is a keyword.
    """

    adapted_by: ClassVar[str]

    _: KW_ONLY
    members: int = argument("M", int, 1, at_least=1, at_most=1000)

    @property
    def trainings(self) -> int:
        """The number of trainings: one for each member."""
        return self.members

    def adapter(self) -> Adapter:
        """Return the adapter that is trained instead of the weights."""
        adapter: Adapter = _computed_by(self.adapted_by, self)
        return adapter

    def of_one_training(self) -> MethodOptions:
        """Return the same options for one member."""
        return dataclasses.replace(self, members=1)


@dataclass(frozen=True)
class TogetherOptions(MethodOptions):
    """Options of a method that trains several members together.

    Attributes:
        members: the number of members, the first argument.
        made_by: ``MODULE:CLASS`` of what makes the members, which takes these options.
        can_be_sped_up: whether the method allows ``--compile``.
    """

    made_by: ClassVar[str]
    can_be_sped_up: ClassVar[bool] = False

    members: int = argument("M", int, at_least=2, at_most=100)

    def models(self) -> int:
        """Return the number of models that one training writes: one for each member."""
        return self.members

    def together(self) -> MemberMaker:
        """Return the object that makes the members."""
        maker: MemberMaker = _computed_by(self.made_by, self)
        return maker

    def conflicts(self, request: FinetuneRequest) -> list[str]:
        """Return a sentence for each option of ``finetune`` that conflicts with training members together.

        Empty if nothing does. The sentence says where ``--ensemble`` was set, if not on the command line.
        """
        option = f"--ensemble {self.kind}{request.where('ensemble')}"
        problems = []
        if request.loss == "contrastive":
            problems.append(f"{option} is for models with a classifier, not --loss contrastive")
        if request.compile and not self.can_be_sped_up:
            problems.append(f"{option} does not go with --compile")
        if "head" in request.freeze:
            problems.append(f"{option} trains classifiers: without --freeze head")
        return problems


# --- reading ----------------------------------------------------------------------------------------------------------


def shape_of(options: type[MethodOptions]) -> str:
    """Return the kind and its arguments as the help shows them: ``packed:M,ALPHA[,GAMMA]``.

    Arguments with defaults stand in brackets, each inside the brackets of the one before: ``kind[:A[,B]]``.
    """
    shape = options.kind
    separator = ":"
    brackets = 0
    for field in fields_in_order(options):
        # An argument with a default opens a bracket; all brackets are closed at the end.
        if field.default is not dataclasses.MISSING:
            shape += "["
            brackets += 1
        metavar = field.metadata["argument"].metavar
        shape += f"{separator}{metavar}"
        separator = ","
    return shape + "]" * brackets


def read_arguments(options: type[MethodOptions], text: str) -> MethodOptions:
    """Return the options that the text after ``KIND:`` stands for, e.g. ``3,2`` for ``packed``.

    Raises:
        ValueError: there are too few or too many arguments, or one of them is wrong. The message has an example.
    """
    example = _with_arguments(options, options.example)
    declared = options.arguments()
    texts = text.split(",") if text else []

    # Check the number of arguments; those with defaults, which come last, may be left out from the end.
    needed = sum(field.default is dataclasses.MISSING for field in fields_in_order(options))
    if not needed <= len(texts) <= len(declared):
        wrong = _with_arguments(options, text)
        raise ValueError(f"must be {shape_of(options)}, such as {example}, not {wrong!r}")

    # Read each argument; creating the options checks the ranges.
    try:
        values = {}
        for (name, argument), argument_text in zip(declared.items(), texts, strict=False):  # stops after the last text
            values[name] = argument.read(argument.metavar, argument_text.strip())
        return options(**values)
    except ValueError as error:
        raise ValueError(f"{options.kind}: {error}; such as {example}") from None


def _with_arguments(options: type[MethodOptions], arguments: str) -> str:
    """Return ``KIND:ARGS``, or only ``KIND`` if there are no arguments."""
    if not arguments:
        return options.kind
    return f"{options.kind}:{arguments}"
