"""Records: frozen models of JSON objects, each field declared once; results are the records that verbs return.

The metric or the engine that knows a fact makes its record; Python programs get it, files hold it as JSON, and tables
read its fields. The published schemas come from the same declarations (``docs/make_schemas.py``).

A field is one of four kinds::

    name: str                                                # needed; its description is a docstring below it
    size: Number = None                                      # written as null if it is None; described likewise
    note: str | None = optional("What to know of it.")       # left out if it is None
    seen: Mapping[str, Count] = sparse("How many.", {})      # left out if it is empty

Records that share fields inherit them. Keys that no field names are ignored, but for classes with ``extra="allow"``.

This module imports pydantic, which is slow; no module that help texts need may import it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, cast, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, WrapValidator
from pydantic_core import ErrorDetails, PydanticCustomError

from hydractl.errors import InputError, UsageError, install_hint
from hydractl.jsonio import read_json_file, shown

if TYPE_CHECKING:
    import pandas

# --- kinds of fields --------------------------------------------------------------------------------------------------


def optional(text: str, default: Any = None) -> Any:
    """Return a field that may be missing; it is left out if it is None.

    Args:
        text: a sentence that describes the field.
        default: the value of a missing field.
    """
    return Field(default, description=text, exclude_if=_is_none)


def sparse(text: str, default: Any) -> Any:
    """Return a field for a list or an object that is left out if it is empty."""
    return Field(default, description=text, exclude_if=_is_empty)


def _key(name: str) -> str:
    """Return the key of a field in JSON: its name without the underscore after a name that Python or pydantic uses."""
    return name.removesuffix("_")


def _is_none(value: object) -> bool:
    return value is None


def _is_empty(value: Any) -> bool:
    return len(value) == 0


# --- types of fields --------------------------------------------------------------------------------------------------

Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
"""A whole number that is not negative."""

Number = float | None
"""A measured number; null if there is none."""

Interval = Annotated[Sequence[Number], Field(min_length=2, max_length=2)]
"""The lower and the upper end of an interval; null if there is none."""

KnownInterval = Annotated[Sequence[float], Field(min_length=2, max_length=2)]
"""The lower and the upper end of an interval, both of which are known."""


def _measured(value: Any, check: Callable[[Any], Any]) -> Any:
    """Check the value of a metric, with one message for numbers alone and numbers by name."""
    try:
        return check(value)
    except ValidationError:
        raise PydanticCustomError("float_type", "Input should be a number, or numbers by name") from None


MetricValue = Annotated[float | Mapping[str, Number] | None, WrapValidator(_measured)]
"""The value of one metric; numbers by name if the metric has several parts; null without samples."""

Metrics = Mapping[str, MetricValue]
"""Values of metrics by key. Other packages may declare metrics, so no record can name them all."""


def _rising(edges: Sequence[float]) -> Sequence[float]:
    """Return edges, each of which must be above the one before."""
    for low, high in pairwise(edges):
        if low >= high:
            raise ValueError("does not rise")
    return edges


Edges = Annotated[Sequence[float], Field(min_length=2), AfterValidator(_rising)]
"""The edges of bins: each above the one before."""


# --- records ----------------------------------------------------------------------------------------------------------

_MOST_PROBLEMS = 10


class Record(BaseModel):
    """Base of all records: values have exactly their declared types, and numbers are finite."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        ser_json_inf_nan="constants",  # a number that is not finite is an error when JSON is written, and not null
        extra="ignore",
        alias_generator=_key,
        validate_by_alias=True,
        validate_by_name=True,
        serialize_by_alias=True,
    )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object, with the keys in the order of the fields; it shares nothing with the record."""
        return self.model_dump(mode="json")

    def at(self, key: str) -> object:
        """Return the JSON value of a dotted key, such as ``ood_avg.auroc``; see :func:`value_at`."""
        return value_at(self.to_dict(), key)

    @classmethod
    def partly(cls, **known: Any) -> Self:
        """Return a record of which only some fields are known, as in a dry run; the others are not written."""
        return cast(Self, cls.model_construct(**known))

    @classmethod
    def checked(cls, document: Any, message: str, hint: str | None = None) -> Self:
        """Return the record of a JSON value from a file, after checking it; nothing in it is converted.

        Raises:
            InputError: ``message``, with a line for each of the first problems: where it is, what is there, what is
                needed.
        """
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            first_problems = error.errors(include_url=False)[:_MOST_PROBLEMS]
            raise InputError(message, hint, [_problem_line(problem) for problem in first_problems]) from None


class Result(Record):
    """Base of the records that are documents: their first key, ``schema``, names their form and its version."""

    schema_: str = ""
    """Name and version of this form, such as ``hydractl.eval/2``; every result has its own."""
    dry_run: bool | None = optional("True of a dry run, which leaves out what is not known.")
    warnings: Sequence[str] = sparse("What makes the result less than it seems, in sentences.", [])

    rows_in: ClassVar[str | None] = None
    """The field of the records that are the rows of a data frame."""
    _text: ClassVar[Callable[[Result], str]] = repr
    _html: ClassVar[Callable[[Result], str]] = repr

    @classmethod
    def shown_by(cls, text: Callable[[Result], str], html: Callable[[Result], str]) -> None:
        """Set the functions that draw the tables of results, which are above this module."""
        cls._text = text
        cls._html = html

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.schema_}>"

    def __str__(self) -> str:
        return Result._text(self)

    def _repr_html_(self) -> str:
        return Result._html(self)

    def to_pandas(self) -> pandas.DataFrame:
        """Return the rows as a data frame; keys within keys become columns such as ``id.accuracy``.

        Raises:
            UsageError: pandas is not installed.
        """
        try:
            import pandas
        except ModuleNotFoundError:
            raise UsageError("the package pandas is not installed", hint=install_hint("pandas")) from None
        return pandas.json_normalize(list(self._rows_of_table()))

    def _rows_of_table(self) -> Sequence[Mapping[str, Any]]:
        """Return the rows of the data frame; a result without rows is its own single row."""
        if self.rows_in is None:
            return [self.to_dict()]
        return [row.to_dict() for row in getattr(self, self.rows_in)]

    def with_outcome(self, outcome: Any) -> Self:
        """Return this result, which from now on knows the outcome of the command that made it."""
        self.__dict__["_outcome"] = outcome  # beside the fields, where equality and JSON do not look
        return self

    @property
    def outcome(self) -> Any:
        """What the command line prints of it; None of a result that was read."""
        return self.__dict__.get("_outcome")

    @property
    def files(self) -> list[Path]:
        """The files that were written, in the order a person should read them."""
        if self.outcome is None:
            return []
        return list(self.outcome.files)

    @property
    def schema(self) -> str:  # type: ignore[override]
        """The kind of document and its version, such as ``hydractl.eval/2``."""
        return self.schema_

    @classmethod
    def planned(cls, **known: Any) -> Self:
        """Return the result of a dry run, which leaves out what is not known."""
        return cls.partly(**known, dry_run=True)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object, its schema first, its warnings last; that of a dry run has only what is known."""
        document = self.model_dump(mode="json", exclude_unset=bool(self.dry_run))
        warnings = document.pop("warnings", None)
        if warnings:
            document["warnings"] = warnings
        return {"schema": self.schema_, **document}

    @classmethod
    def form(cls) -> str:
        """Return the kind of document and its version that every document of this class has."""
        (name,) = get_args(cls.model_fields["schema_"].annotation)
        return str(name)

    @classmethod
    def read(cls, path: str) -> Self:
        """Return the results that a verb wrote to a file, after checking them; ``-`` is standard input.

        Raises:
            InputError: the file is another document, the answer of a dry run, or does not have the form.
        """
        origin = "standard input" if path == "-" else path
        return cls.of(read_json_file(path), origin)

    @classmethod
    def of(cls, document: Any, origin: str) -> Self:
        """Return the results that a document holds, after checking them.

        Args:
            document: the document, as read.
            origin: where it was read from, for messages.

        Raises:
            InputError: it is another document, the answer of a dry run, or does not have the form.
        """
        # The schema names the verb, e.g. "hydractl.eval/1"; check it first, for a clear message.
        expected_schema = cls.form()
        verb = expected_schema.removeprefix("hydractl.").partition("/")[0]
        schema_in_file = shown(document.get("schema")) if isinstance(document, dict) else "none"
        if schema_in_file != shown(expected_schema):
            raise InputError(f"{origin} is not the JSON of {verb} (schema {schema_in_file})")
        if document.get("dry_run"):
            raise InputError(f"{origin} holds no results", hint="a dry run measures nothing")
        return cls.checked(document, f"{origin} is no document that {verb} writes")


MISSING = object()
"""The value of a key that a record does not have; None would be a value."""


def value_at(document: Mapping[str, object], key: str) -> object:
    """Return the value of a dotted key in a document, such as ``ood_avg.auroc``.

    Names may contain dots themselves. So the key is cut at every dot, from the last to the first: the part before the
    cut is looked up as the name of a group, and the rest in that group. For ``ood.set.v2.auroc`` the groups are
    ``ood.set.v2``, ``ood.set`` and ``ood``, in this order. Entries of lists are looked up by their index.

    Returns:
        The value; None if a group on the way is null; ``MISSING`` if the document has no such key.
    """
    if key in document:
        return document[key]
    parts = key.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        group_name = ".".join(parts[:cut])
        rest = ".".join(parts[cut:])
        group = document.get(group_name, MISSING)
        if isinstance(group, list):
            group = {str(index): entry for index, entry in enumerate(group)}
        if isinstance(group, Mapping):
            value = value_at(group, rest)
            if value is not MISSING:
                return value
        elif group is None:  # a group may be null, e.g. an average over no data sets
            return None
    return MISSING


# --- problems ---------------------------------------------------------------------------------------------------------


def _problem_line(problem: ErrorDetails) -> str:
    """Return a problem that pydantic found as one line: where it is, what is there, and what should be.

    E.g. ``models[0].id.n is 0.5: Input should be a valid integer``, or ``models[0].name is missing``. Control
    characters in keys, which may come from an untrusted file, are escaped.
    """
    # The way to the value: "[0]" for an index, ".name" for a key, which repr escapes and puts into quotes.
    way = [f"[{key}]" if isinstance(key, int) else f".{repr(key)[1:-1]}" for key in problem["loc"]]
    place = "".join(way).removeprefix(".") or "it"
    if problem["type"] == "missing":
        return f"{place} is missing"
    if problem["type"] == "value_error":  # one of our own validators has raised its message
        return f"{place} {problem['ctx']['error']}" if way else str(problem["ctx"]["error"])
    return f"{place} is {shown(problem['input'])}: {problem['msg']}"
