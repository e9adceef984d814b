"""A verb as one typed function, from whose signature its options come: flags, help, variables, keys of YAML files."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Annotated, Any, Literal, get_args, get_origin

from hydractl.options.option import MODEL_KINDS, Option


def opt(help: str, *, group: str, default: Any = None, **facts: Any) -> Any:
    """Return what a signature tells of one option, to stand in place of a default: ``keep: int = opt(..., default=8)``.

    An option that several verbs share stands in a type instead, as ``Annotated[int, opt(...)]``. The name and the type
    come from the parameter. ``partial(opt, group="Search")`` declares the options under one heading.

    Args:
        help: one sentence, then ``[unit; default: in words]``; both parts may be missing.
        group: the heading of the help text under which it stands.
        default: the default; None means "not given".
        facts: further attributes of :class:`Option`.
    """
    sentence, notes = help, ""
    if help.endswith("]"):
        sentence, _, notes = help[:-1].rpartition(" [")
    return Option(group, default, sentence, notes=notes, **facts)


OF_A_TERMINAL: Mapping[str, Option] = {
    "json": opt("Print the result as one JSON document", group="Input and output", default=False),
    "quiet": opt("Print only warnings and errors", group="General", default=False, short="-q"),
    "verbose": opt("Print more: every option with its source, and details", group="General", default=False, short="-v"),
}
"""Options that every verb has on the command line, and that have no meaning for a Python program."""


@dataclass(frozen=True)
class Declared:
    """A verb as its function declares it.

    Attributes:
        verb: its name on the command line.
        function: the function, whose body checks the options together and then works.
        alternatives: groups of options that replace each other: a flag sets aside an alternative that a file gives.
        writes: what ``output`` names: ``json``, ``weights``, ``export``, or a ``folder``.
        or_json: whether a verb that writes weights writes JSON instead where ``output`` ends in ``.json``.
        before: is called with the values before alternatives replace each other; it may change them, as a recipe does.
        further_help: returns what the help adds below the options of a heading, as rows of two columns, by heading.
    """

    verb: str
    function: Callable[..., Any]
    alternatives: Sequence[Sequence[str]] = ()
    writes: Literal["json", "weights", "export", "folder"] = "json"
    or_json: bool = False
    before: Callable[[Any], None] | None = None
    further_help: Callable[[], dict[str, list[tuple[str, str]]]] = dict

    @cached_property
    def signature(self) -> inspect.Signature:
        """The signature of the function, with the types that its annotations name."""
        signature = inspect.signature(self.function)
        parameters = []
        for parameter in signature.parameters.values():
            annotation = eval(parameter.annotation, self.function.__globals__)
            parameters.append(parameter.replace(annotation=annotation))
        return signature.replace(parameters=parameters)

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """The options of the verb: those of the function's parameters in their order, and those of a terminal."""
        options = []
        for name, parameter in self.signature.parameters.items():
            # The option is declared as the default, ``keep: int = opt(...)``, or in the type, ``Annotated[int, opt()]``
            # with a plain default. A parameter without any is an argument for Python alone.
            types = _parts_of(parameter.annotation)
            declared = parameter.default
            if not isinstance(declared, Option):
                declared = next((part for part in types if isinstance(part, Option)), None)
                if declared is None:
                    continue
                declared = replace(declared, default=parameter.default)
            options.append(_completed(declared, name, types))
        of_a_terminal = [_completed(option, name, [bool]) for name, option in OF_A_TERMINAL.items()]
        return (*options, *of_a_terminal)

    @cached_property
    def by_name(self) -> dict[str, Option]:
        """The options by their names."""
        return {option.name: option for option in self.options}

    def plain_signature(self) -> inspect.Signature:
        """Return the signature of the function as ``help()`` and editors show it, with plain types and defaults.

        ``keep: int = opt(default=8)`` and ``keep: Annotated[int, opt()] = 8`` both become ``keep: int = 8``.
        """
        parameters = []
        for parameter in self.signature.parameters.values():
            annotation = parameter.annotation
            if get_origin(annotation) is Annotated:
                annotation = get_args(annotation)[0]
            default = parameter.default
            if isinstance(default, Option):
                default = default.default
            parameters.append(parameter.replace(annotation=annotation, default=default))
        return self.signature.replace(parameters=parameters)

    @property
    def model(self) -> Option:
        """The option of the MODEL or MODELs: the first one, named ``model`` whatever the function calls it."""
        return self.options[0]

    @property
    def model_parameter(self) -> str:
        """The name of the parameter of the MODEL or MODELs, e.g. ``models``."""
        return next(iter(self.signature.parameters))


def _completed(declared: Option, name: str, types: Sequence[Any]) -> Option:
    """Return an option completed by what its parameter tells: the name, the flag, the type, whether it is a list.

    Args:
        declared: the option as ``opt(...)`` declares it.
        name: the name of the parameter.
        types: the parts of its annotation, e.g. ``[Sequence, "acc", "ood"]``.
    """
    # What the annotation says: a list or not, allowed words, and the type of a value.
    default = declared.default
    if default is inspect.Parameter.empty:
        default = None
    many = Sequence in types
    literals = [part for part in types if isinstance(part, str)]
    choices = declared.choices or list(dict.fromkeys(literals))
    named_types = [part for part in types if part in (bool, int, float, str)]
    kind = declared.type
    if kind is str and declared.reads is None and named_types:
        kind = named_types[0]
    if declared.kind in MODEL_KINDS:  # the command line has a list of words there, whatever the function calls it
        many = True
        name = "model"

    # The flag, and how a text becomes a value. A type such as DataSpec has its own method for that.
    flag = declared.flag or "--" + name.replace("_", "-")
    reads = declared.reads
    own_type = next((part for part in types if hasattr(part, "of_option")), None)
    if own_type is not None:  # messages about it begin with the flag
        kind = own_type
        reads = partial(reads or own_type.of_option, flag)
    if reads is not None and isinstance(default, str):
        default = reads(default)
    if many:
        default = list(default or ())
    return replace(declared, name=name, flag=flag, default=default, type=kind, reads=reads, many=many, choices=choices)


def _parts_of(annotation: Any) -> list[Any]:
    """Return the types and the literal values that an annotation consists of, at any depth.

    ``Sequence[Literal["acc", "ood"]] | None`` gives ``[Sequence, "acc", "ood", NoneType]``; of ``Annotated[int, x]``
    both ``int`` and ``x`` are parts.
    """
    origin = get_origin(annotation)
    if origin is None:
        return [getattr(annotation, "__supertype__", annotation)]
    parts: list[Any] = []
    if isinstance(origin, type) and issubclass(origin, Sequence):
        parts.append(Sequence)
    for argument in get_args(annotation):
        parts += _parts_of(argument)
    return parts
