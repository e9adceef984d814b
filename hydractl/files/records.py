"""Records: dataclasses that stand for JSON objects, each field described once.

A verb builds a record and writes it; tables and pages read its fields. From the same declaration,
:mod:`hydractl.files.documents` makes the form that checks a file, and its published schema. This module does not import
pydantic, so records do not slow down a command line.
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
    """A check of one value, which may look at the fields before it; it returns the problem, or None."""

    problem: Callable[[Any, Mapping[str, object]], str | None]


Count = Annotated[int, Within(least=0, most=2**63 - 1)]
"""A whole number that is not negative."""

Number = float | None
"""A measured number; null if there is none."""

MetricValue = float | Mapping[str, Number] | None
"""The value of one metric; numbers by name if the metric has several parts; null without samples."""

Metrics = Mapping[str, MetricValue]
"""Values of metrics by key. Other packages may declare metrics, so no record can name them all."""

Interval = Annotated[Sequence[Number], Sized(2, 2)]
"""The lower and the upper end of an interval; null if there is none."""


def _rising(edges: Sequence[float], _: Mapping[str, object]) -> str | None:
    """Return the problem if edges do not rise; None if each edge is above the one before."""
    for low, high in pairwise(edges):
        if low >= high:
            return "does not rise"
    return None


Edges = Annotated[Sequence[float], Sized(2), Checked(_rising)]
"""The edges of bins: each above the one before."""


SCHEMA_TEXT = "Name and version of this form."
"""The description of the key ``schema`` of a document."""


# --- fields -----------------------------------------------------------------------------------------------------------


class FieldFacts(NamedTuple):
    """The declaration of a field, apart from its name, type and default.

    Attributes:
        text: one sentence that describes the field.
        key: its key in JSON; None: the same as its name.
        needed: whether every document has the field.
        null: whether None is written as null; otherwise the key is left out.
        sparse: whether the key is left out of a new document if the value is empty.
        inline: whether the keys of its value are written beside the other fields, without a key of its own.
        metrics: the kind of metrics that the field holds by key; empty for other fields.
        by_severity: whether the field holds only the metrics that are measured for each corruption and severity.
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
    """Return a field that may be missing, or null, in a document.

    Args:
        text, key, null: see :class:`FieldFacts`.
        default: the value if the field is missing or null.
        empty: makes the default instead, for lists and objects.
    """
    metadata = _metadata(FieldFacts(text, key=key, null=null))
    if empty is not None:
        return dataclasses.field(default_factory=empty, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def sparse(text: str, empty: Callable[[], Any]) -> Any:
    """Return a field for a list or an object that is written only if it is not empty.

    Args:
        text: see :class:`FieldFacts`.
        empty: makes the default, e.g. ``list``.
    """
    metadata = _metadata(FieldFacts(text, sparse=True))
    return dataclasses.field(default_factory=empty, metadata=metadata)


def needed(text: str, default: Any = dataclasses.MISSING, *, key: str | None = None) -> Any:
    """Return a field that every document has.

    Args:
        text, key: see :class:`FieldFacts`.
        default: the value in a record that is built without it; without a default, it must be given.
    """
    metadata = _metadata(FieldFacts(text, key=key, needed=True, null=True))
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def inline(empty: Callable[[], Any] = dict) -> Any:
    """Return a field whose keys are written beside the other fields: an inner record, or values by name.

    Args:
        empty: makes the default.
    """
    metadata = _metadata(FieldFacts(inline=True))
    return dataclasses.field(default_factory=empty, metadata=metadata)


def metrics_of(kind: str, *, by_severity: bool = False) -> Any:
    """Return a field for the metrics of a kind, whose keys are written beside the other fields."""
    facts = FieldFacts(inline=True, metrics=kind, by_severity=by_severity)
    metadata = _metadata(facts)
    return dataclasses.field(default_factory=dict, metadata=metadata)


def _metadata(facts: FieldFacts) -> dict[str, FieldFacts]:
    """Return the metadata of a dataclass field that hold the declaration; see :func:`facts_of`."""
    return {"facts": facts}


def facts_of(field: dataclasses.Field[Any]) -> FieldFacts:
    """Return the declaration of a field."""
    facts: FieldFacts = field.metadata["facts"]
    return facts


class JsonField(NamedTuple):
    """A field of a record, and how it is read from JSON.

    Attributes:
        name: the name of the attribute.
        key: the key in JSON.
        facts: the declaration of the field.
        read: converts the JSON value to the value of the attribute.
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
        """Note the name of the form, by default that of the class."""
        super().__init_subclass__(**options)
        cls.form = form or cls.__name__

    @classmethod
    def problem(cls, values: Mapping[str, object]) -> str | None:
        """Return the problem of values that are each right but do not fit together; None if there is none.

        Args:
            values: the values by the names of their fields, and values that belong to no field by their keys.
        """
        return None

    @classmethod
    def from_json(cls, document: Mapping[str, object]) -> Self:
        """Return the record of a JSON object that has its form.

        A field whose key is missing or null gets its default. A field that every document has is None for null. The
        object is kept, so that :meth:`to_json` returns it unchanged.
        """
        values: dict[str, object] = {}
        known = json_fields(cls)
        for field in known:
            # An inline field is read from all entries that belong to no other field.
            if field.facts.inline:
                other_entries = _entries_without_field(document, known)
                values[field.name] = field.read(other_entries)
                continue
            # Leave a missing value out, so that the field gets its default.
            value = document.get(field.key)
            if value is not None:
                values[field.name] = field.read(value)
            elif field.facts.needed and field.key in document:
                values[field.name] = None
        record = cls(**values)

        # Stored outside of the fields of the frozen dataclass, so that dataclasses.replace() forgets it.
        object.__setattr__(record, "_origin", document)
        return record

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object: exactly as it was read, or with the keys in the order of the fields."""
        if self._origin is not None:
            return dict(self._origin)

        # Inline fields have no key of their own: their entries stand beside the others. Sparse fields are left out if
        # they are empty, other fields if they are None, unless null has a meaning there.
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
    """Return the entries of an object whose keys belong to no field: those of its inline fields."""
    keys = {field.key for field in known if not field.facts.inline}
    others = {}
    for key, value in document.items():
        if key not in keys:
            others[key] = value
    return others


def _as_json(value: Any) -> Any:
    """Return a value with every record inside it converted to an object."""
    if isinstance(value, Record):
        return value.to_json()
    if isinstance(value, Mapping):
        return {key: _as_json(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(inner) for inner in value]
    return value


_FIELDS: dict[type[Record], tuple[JsonField, ...]] = {}


def json_fields(record: type[Record]) -> tuple[JsonField, ...]:
    """Return the fields of a record in order; they are computed once and kept."""
    if record not in _FIELDS:
        _FIELDS[record] = _fields_of(record)
    return _FIELDS[record]


def _fields_of(record: type[Record]) -> tuple[JsonField, ...]:
    """Return the fields of a record in order, each with its JSON key and the function that reads its value."""
    hints = get_type_hints(record)
    fields = []
    for field in dataclasses.fields(record):  # type: ignore[arg-type]
        facts = facts_of(field)
        key = facts.key or field.name
        read = _reader(hints[field.name])
        fields.append(JsonField(field.name, key, facts, read))
    return tuple(fields)


def _reader(hint: Any) -> Callable[[Any], Any]:
    """Return the function that reads a JSON value of this type: it makes records of objects where the type has records.

    If the type has no records, the returned function is :func:`_as_it_is`.

    Args:
        hint: the type of a field, e.g. ``Sequence[EpochRecord] | None``.
    """
    if isinstance(hint, type) and issubclass(hint, Record):
        return hint.from_json

    # X | None
    origin = get_origin(hint)
    arguments = get_args(hint)
    if origin in (Union, types.UnionType):
        return _reader_of_union(arguments)

    # A plain type, such as int
    is_container = isinstance(origin, type) and bool(arguments)
    if not is_container:
        return _as_it_is

    # A list or a mapping: the last type in the brackets is that of its entries or values.
    read = _reader(arguments[-1])
    if read is _as_it_is:
        return _as_it_is
    read_or_none = _or_none(read)
    if issubclass(origin, Mapping):
        return lambda values: {key: read_or_none(value) for key, value in values.items()}
    return lambda values: [read_or_none(value) for value in values]


def _reader_of_union(arguments: Sequence[Any]) -> Callable[[Any], Any]:
    """Return the function that reads ``X | None``, the only kind of union that may hold records."""
    inner = [argument for argument in arguments if argument is not type(None)]
    if len(inner) != 1:
        return _as_it_is
    read = _reader(inner[0])
    if read is _as_it_is:
        return _as_it_is
    return _or_none(read)


def _or_none(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that reads every value but null, which becomes None."""

    def read_unless_null(value: Any) -> Any:
        if value is None:
            return None
        return read(value)

    return read_unless_null


def _as_it_is(value: Any) -> Any:
    """Return a value unchanged."""
    return value
