"""What a way of getting members declares, and the hooks by which ``finetune`` uses it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from hydractl.methods.study_rows import StudyRow

if TYPE_CHECKING:
    from hydractl.training.adapters import Adapter
    from hydractl.training.course import CourseOptions
    from hydractl.training.members import MemberMaker

OptionValues = Mapping[str, Any]
"""The values of a method's own options, by name; None where an option was not given."""

LENGTH = "Length"
WEIGHTS = "What is trained"
"""Headings of the help of ``finetune`` that options of methods stand under."""


@dataclass(frozen=True)
class MethodOption:
    """An option of ``finetune`` that belongs to one method. Without it the method is not used.

    Attributes:
        name: as in Python and YAML; the flag has dashes for underscores.
        value_type: ``int``, ``float`` or ``str``, or ``bool`` for a switch.
        help: what it is, one sentence, and behind it ``[unit; default: in words]``.
        heading: of the help text that it stands under, :data:`LENGTH` or :data:`WEIGHTS`.
        metavar: the placeholder of the value in the help text.
        pattern: a regular expression for a whole text, of which ``example`` is one.
        example: of such a text.
        at_least, at_most: the range of a number.
    """

    name: str
    value_type: type
    help: str
    heading: str = WEIGHTS
    metavar: str | None = None
    pattern: str | None = None
    example: str = ""
    at_least: float | None = None
    at_most: float | None = None


class FinetuneRequest(Protocol):
    """What somebody asks of ``finetune``, as far as a method looks at it.

    Attributes:
        members: number of trainings.
        loss: ``cross-entropy`` or ``contrastive``.
        lr: the learning rates that are tried.
        schedule: ``cosine``, ``linear`` or ``constant``.
        freeze: parts that are not trained.
        compile: whether the model is compiled.
        shard: whether weights are divided among processes.
    """

    members: int
    loss: str
    lr: list[float]
    schedule: str
    freeze: list[str]
    compile: bool
    shard: bool

    def called(self, name: str) -> str:
        """Return the name of an option in messages: its flag."""
        ...

    def where(self, name: str) -> str:
        """Return `` (source)`` of an option, empty where there is nothing to say."""
        ...

    def given(self, name: str) -> bool:
        """Return whether an option has a value."""
        ...

    def has_default(self, name: str) -> bool:
        """Return whether nobody has given an option."""
        ...

    def goes_with(self, name: str, other: str) -> list[str]:
        """Return a problem if the first option was given without the second."""
        ...


class Method:
    """A way of getting members: what it declares, and hooks of which it fills in those that it needs.

    Attributes:
        name: of its file or folder.
        options: its own options of ``finetune``; the first one asks for the method.
        rows: of ``study``.
        role: what it takes the place of. Of one role at most one method can be asked for.
        needs_cosine: whether its learning rate is a cosine, so that ``--schedule`` must leave it at that.
    """

    name: str
    options: tuple[MethodOption, ...] = ()
    rows: tuple[StudyRow, ...] = ()
    role: str = ""
    needs_cosine: bool = False

    def conflicts(self, request: FinetuneRequest) -> list[str]:
        """List the options that do not go with this method, which was asked for; each a sentence."""
        return []

    def sets_aside(self, request: FinetuneRequest) -> dict[str, str]:
        """Return the options that mean nothing beside this method, each with the option that makes it so."""
        return {}

    def models(self, values: OptionValues) -> int | None:
        """Return how many models one training writes; None for one that is called as ``--output`` says."""
        return None

    def adapter(self, values: OptionValues) -> Adapter | None:
        """Return what is trained in the place of the weights."""
        return None

    def together(self, values: OptionValues) -> MemberMaker | None:
        """Return what makes several members of one training."""
        return None

    def course(self, values: OptionValues) -> CourseOptions | None:
        """Return how the learning rate goes and which weights are left, where no epoch is chosen."""
        return None


class AdapterMethod(Method):
    """A method that trains something in the place of the weights."""

    role = "weights"


class CourseMethod(Method):
    """A method that leaves other weights of a training than those of one epoch."""

    role = "models"

    def conflicts(self, request: FinetuneRequest) -> list[str]:
        """List what cannot be chosen: of several learning rates the best epoch decides."""
        if len(request.lr) == 1:
            return []
        name = self.options[0].name
        return [f"{request.called(name)} takes one value of --lr, not {len(request.lr)}{request.where('lr')}"]

    def sets_aside(self, request: FinetuneRequest) -> dict[str, str]:
        """Return the options by which an epoch is chosen."""
        return dict.fromkeys(("patience", "min_delta"), self.options[0].name)


class TogetherMethod(Method):
    """A method by which one training makes several members; the number of them begins the value of its option.

    Attributes:
        can_be_sped_up: whether ``--compile`` and ``--shard`` go with it.
    """

    role = "models"
    can_be_sped_up: bool = False

    def models(self, values: OptionValues) -> int:
        """Return the number of members."""
        value = values[self.options[0].name]
        return int(str(value).partition(",")[0])

    def conflicts(self, request: FinetuneRequest) -> list[str]:
        """List the options that do not go with making several members by one training."""
        name = self.options[0].name
        told = f"{request.called(name)}{request.where(name)}"
        problems = []
        if request.members > 1:
            problems.append(f"{told} makes several members already: without --members")
        if request.loss == "contrastive":
            problems.append(f"{told} is for models with a classifier, not --loss contrastive")
        if request.compile and not self.can_be_sped_up:
            problems.append(f"{told} does not go with --compile")
        if request.shard and not self.can_be_sped_up:
            problems.append(f"{told} does not go with --shard")
        if "head" in request.freeze:
            problems.append(f"{told} trains classifiers: without --freeze head")
        return problems
