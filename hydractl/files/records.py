"""Records: dataclasses that stand for JSON objects, each field described once.

A verb builds a record and writes it, tables and pages read its fields, and :mod:`hydractl.files.documents` makes of the
same declaration the form that a file is checked by and its published schema. This module imports no pydantic, so that
records cost a command line nothing.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, ClassVar, NamedTuple, Self, Union, get_args, get_origin, get_type_hints

# --- types of fields --------------------------------------------------------------------------------------------------


class Within(NamedTuple):
    """The numbers that a field may hold."""

    least: float | None = None
    most: float | None = None
    above: float | None = None


class Sized(NamedTuple):
    """The number of entries that a list may have."""

    least: int = 0
    most: int | None = None


class Checked(NamedTuple):
    """A check of one value beside those of the fields before it: it returns what is wrong, None where nothing is."""

    problem: Callable[[Any, Mapping[str, object]], str | None]


Count = Annotated[int, Within(least=0, most=2**63 - 1)]
"""A whole number that is not negative."""

Number = float | None
"""A measured number, null where there is none."""

MetricValue = float | Mapping[str, Number] | None
"""The value of one metric; one number for each part where it has several; null without samples."""

Metrics = Mapping[str, MetricValue]
"""Values of metrics by key: other packages may declare some, so no record can name them all."""

Interval = Annotated[Sequence[Number], Sized(2, 2)]
"""The lower and the upper end of an interval; null where there is none."""


def _rising(edges: Sequence[float], _: Mapping[str, object]) -> str | None:
    """Return that edges do not rise, None where each is above the one before."""
    for low, high in pairwise(edges):
        if low >= high:
            return "does not rise"
    return None


Edges = Annotated[Sequence[float], Sized(2), Checked(_rising)]
"""The edges of bins: each above the one before."""


SCHEMA_TEXT = "Name and version of this form."
"""What the key ``schema`` of a document holds."""


# --- fields -----------------------------------------------------------------------------------------------------------


class FieldFacts(NamedTuple):
    """What the declaration of a field says, beside its name, its type and its default.

    Attributes:
        text: one sentence on what it holds.
        key: its key in JSON; None: its name.
        needed: whether every document has it.
        null: whether None is written as null; else the key is left out.
        sparse: whether the key is left out of a new document where the value is empty.
        inline: whether its own keys stand beside those of the other fields.
        metrics: of which kind the metrics are that it holds by key; empty for other fields.
        by_severity: whether they are those alone that are taken of each corruption at each severity.
    """

    text: str = ""
    key: str | None = None
    needed: bool = False
    null: bool = False
    sparse: bool = False
    inline: bool = False
    metrics: str = ""
    by_severity: bool = False


def described(
    text: str,
    default: Any = None,
    *,
    key: str | None = None,
    empty: Callable[[], Any] | None = None,
    null: bool = False,
) -> Any:
    """Return a field that may be left out, or null, in a document.

    Args:
        text, key, null: as of :class:`FieldFacts`.
        default: what it is where it is left out or null.
        empty: makes the default, for lists and objects.
    """
    metadata = _metadata(FieldFacts(text, key=key, null=null))
    if empty is not None:
        return dataclasses.field(default_factory=empty, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def sparse(text: str, empty: Callable[[], Any]) -> Any:
    """Return a field of a list or an object that stands in a document only where there is something in it.

    Args:
        text: as of :class:`FieldFacts`.
        empty: makes the default.
    """
    metadata = _metadata(FieldFacts(text, sparse=True))
    return dataclasses.field(default_factory=empty, metadata=metadata)


def needed(text: str, default: Any = dataclasses.MISSING, *, key: str | None = None) -> Any:
    """Return a field that every document has.

    Args:
        text, key: as of :class:`FieldFacts`.
        default: what it is in a record that is built without it.
    """
    metadata = _metadata(FieldFacts(text, key=key, needed=True, null=True))
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def inline(empty: Callable[[], Any] = dict) -> Any:
    """Return a field whose own keys stand beside those of the other fields: an inner record, or values by name.

    Args:
        empty: makes the default.
    """
    metadata = _metadata(FieldFacts(inline=True))
    return dataclasses.field(default_factory=empty, metadata=metadata)


def metrics_of(kind: str, *, by_severity: bool = False) -> Any:
    """Return a field of the metrics of a kind, whose keys stand beside those of the other fields."""
    facts = FieldFacts(inline=True, metrics=kind, by_severity=by_severity)
    metadata = _metadata(facts)
    return dataclasses.field(default_factory=dict, metadata=metadata)


def _metadata(facts: FieldFacts) -> dict[str, FieldFacts]:
    return {"facts": facts}


def facts_of(field: dataclasses.Field[Any]) -> FieldFacts:
    """Return what the declaration of a field says."""
    facts: FieldFacts = field.metadata["facts"]
    return facts


class JsonField(NamedTuple):
    """A field of a record as JSON has it.

    Attributes:
        name: of the attribute.
        key: in JSON.
        facts: what its declaration says.
        read: makes the attribute of a JSON value.
    """

    name: str
    key: str
    facts: FieldFacts
    read: Callable[[Any], Any]


# --- records ----------------------------------------------------------------------------------------------------------


class Record:
    """Base of all records, which are frozen dataclasses.

    One that was read is written as it was read, whatever else its object held. One that ``dataclasses.replace`` made of
    it is written from its fields.

    Attributes:
        form: the name of its definition in published schemas.
    """

    form: ClassVar[str]
    _origin: Mapping[str, object] | None = None

    def __init_subclass__(cls, form: str = "", **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.form = form or cls.__name__

    @classmethod
    def problem(cls, values: Mapping[str, object]) -> str | None:
        """Return what is wrong with values that are each right, None where nothing is.

        Args:
            values: by the name of their field, and by key those that no field has.
        """
        return None

    @classmethod
    def from_json(cls, document: Mapping[str, object]) -> Self:
        """Return the record of an object that has its form.

        A field whose key is left out, or null, has its default; one that every document has is None for null.
        """
        values: dict[str, object] = {}
        known = json_fields(cls)
        for field in known:
            if field.facts.inline:
                other_entries = _entries_without_field(document, known)
                values[field.name] = field.read(other_entries)
                continue
            value = document.get(field.key)
            if value is not None:
                values[field.name] = field.read(value)
            elif field.facts.needed and field.key in document:
                values[field.name] = None
        record = cls(**values)
        object.__setattr__(record, "_origin", document)  # no field of the frozen dataclass, so replace() forgets it
        return record

    def to_json(self) -> dict[str, Any]:
        """Return the object: as it was read, else with its keys in the order of the fields."""
        if self._origin is not None:
            return dict(self._origin)
        document: dict[str, object] = {}
        for field in json_fields(type(self)):
            value = getattr(self, field.name)
            facts = field.facts
            if facts.inline:
                document.update(_as_json(value))
            elif facts.sparse and not value:
                continue
            elif value is not None or facts.null:
                document[field.key] = _as_json(value)
        return document


def _entries_without_field(document: Mapping[str, object], known: Sequence[JsonField]) -> dict[str, object]:
    """Return the entries of an object that no field has by its own key: those of its inline fields."""
    keys = {field.key for field in known if not field.facts.inline}
    others = {}
    for key, value in document.items():
        if key not in keys:
            others[key] = value
    return others


def _as_json(value: Any) -> Any:
    """Return a value with every record in it as an object."""
    if isinstance(value, Record):
        return value.to_json()
    if isinstance(value, Mapping):
        return {key: _as_json(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(inner) for inner in value]
    return value


_FIELDS: dict[type[Record], tuple[JsonField, ...]] = {}


def json_fields(record: type[Record]) -> tuple[JsonField, ...]:
    """Return the fields of a record in order, which are worked out once."""
    if record not in _FIELDS:
        _FIELDS[record] = _fields_of(record)
    return _FIELDS[record]


def _fields_of(record: type[Record]) -> tuple[JsonField, ...]:
    """Return the fields of a record in order, each with the key and the reader that its declaration asks for."""
    hints = get_type_hints(record)
    fields = []
    for field in dataclasses.fields(record):  # type: ignore[arg-type]
        facts = facts_of(field)
        key = facts.key or field.name
        read = _reader(hints[field.name])
        fields.append(JsonField(field.name, key, facts, read))
    return tuple(fields)


def _reader(hint: Any) -> Callable[[Any], Any]:
    """Return what makes a value of this type of JSON: records of objects, wherever the type has records in it."""
    if isinstance(hint, type) and issubclass(hint, Record):
        return hint.from_json
    origin = get_origin(hint)
    arguments = get_args(hint)
    if origin in (Union, types.UnionType):
        return _reader_of_union(arguments)
    is_container = isinstance(origin, type) and bool(arguments)
    if not is_container:
        return _as_it_is
    # The entries of a list, or the values of a mapping, are of the last type in the brackets.
    read = _reader(arguments[-1])
    if read is _as_it_is:
        return _as_it_is
    read_or_none = _or_none(read)
    if issubclass(origin, Mapping):
        return lambda values: {key: read_or_none(value) for key, value in values.items()}
    return lambda values: [read_or_none(value) for value in values]


def _reader_of_union(arguments: Sequence[Any]) -> Callable[[Any], Any]:
    """Return the reader of ``X | None``, which is the only union that may hold records."""
    inner = [argument for argument in arguments if argument is not type(None)]
    if len(inner) != 1:
        return _as_it_is
    read = _reader(inner[0])
    if read is _as_it_is:
        return _as_it_is
    return _or_none(read)


def _or_none(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the reader that leaves null alone: a set without any sample has no curve."""

    def read_unless_null(value: Any) -> Any:
        if value is None:
            return None
        return read(value)

    return read_unless_null


def _as_it_is(value: Any) -> Any:
    return value
