"""Forms of the JSON documents that hydractl writes, and the check of documents that it reads again.

A form says what a reader needs: other keys are allowed, and a field with a default may be missing or null. Forms are
made from the records (:mod:`hydractl.files.records`), in which each field is described by one sentence;
``docs/make_schemas.py`` publishes them as JSON Schemas. The form of an eval depends on the available metrics, see
:mod:`hydractl.report.eval_document`. Masks, scores and circuits are read by :mod:`hydractl.heads.mask`, which checks
them against the sites of a model.

This module imports pydantic, which is slow; verbs that read such documents only sometimes import it when they do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    create_model,
    model_validator,
)
from pydantic_core import ErrorDetails

from hydractl.errors import InputError
from hydractl.files.bench_answer import BenchAnswer
from hydractl.files.model_records import FittedOnRecord
from hydractl.files.predictions_header import PredictionsRecord
from hydractl.files.records import Checked, FieldFacts, Record, Sized, Within, facts_of
from hydractl.jsonio import read_json_file, shown

_MOST_PROBLEMS = 10

_NEEDED = {
    "bool_type": "true or false",
    "dict_type": "an object",
    "finite_number": "a number",
    "float_type": "a number",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "a count",
    "int_type": "a count",
    "less_than_equal": "a count of at most {le}",
    "list_type": "a list",
    "literal_error": "{expected}",
    "model_type": "an object",
    "string_type": "a text",
    "too_long": "a list of {max_length} at most",
    "too_short": "a list of {min_length} or more",
}
"""Words for what is needed, by pydantic's type of an error."""


class Form(BaseModel):
    """Base of all forms: values must have exactly their declared types, and numbers must be finite."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


def check(document: Any, form: type[Form], message: str, hint: str | None = None) -> None:
    """Check that a document has a form; nothing in it is converted.

    Raises:
        InputError: ``message``, with a line for each of the first problems: where it is, what is there, what is needed.
    """
    try:
        form.model_validate(document)
    except ValidationError as error:
        first_problems = error.errors(include_url=False)[:_MOST_PROBLEMS]
        raise InputError(message, hint, [_problem_line(problem) for problem in first_problems]) from None


def schema_of(form: type[Form]) -> str:
    """Return the name and version of the documents of a form: the value of their key ``schema``."""
    field = form.model_fields["schema_"]
    (name,) = get_args(field.annotation)
    return str(name)


def read_document(path: str, form: type[Form]) -> dict[str, Any]:
    """Return the results that a verb wrote to a file, after checking them; ``-`` is standard input.

    Raises:
        InputError: the file is another document, the answer of a dry run, or does not have the form.
    """
    document: dict[str, Any] = read_json_file(path)
    origin = path
    if path == "-":
        origin = "standard input"
    check_document(document, origin, form)
    return document


def check_document(document: Any, origin: str, form: type[Form]) -> None:
    """Check that a document holds results of the verb whose form this is.

    Args:
        document: the document, as read.
        origin: where it was read from, for messages.
        form: the form of the verb's results.

    Raises:
        InputError: it is another document, the answer of a dry run, or does not have the form.
    """
    # The schema names the verb, e.g. "hydractl.eval/1"; check it first, for a clear message.
    expected_schema = schema_of(form)
    verb = expected_schema.removeprefix("hydractl.").partition("/")[0]
    schema = None
    if isinstance(document, dict):
        schema = document.get("schema")
    if schema != expected_schema:
        schema_in_file = "none"
        if isinstance(document, dict):
            schema_in_file = shown(schema)
        raise InputError(f"{origin} is not the JSON of {verb} (schema {schema_in_file})")
    if document.get("dry_run"):
        raise InputError(f"{origin} holds no results", hint="a dry run measures nothing")
    check(document, form, f"{origin} is no document that {verb} writes")


def _problem_line(problem: ErrorDetails) -> str:
    """Return a problem that pydantic found as one line: where it is, what is there, and what is needed."""
    kind = problem["type"]
    keys = problem["loc"]
    value = problem["input"]
    context = problem.get("ctx", {})
    path_of_value = _place_words(keys)

    # Case 1: one of our own validators has raised its message.
    if kind == "value_error":
        if keys:
            return f"{path_of_value} {context['error']}"
        return str(context["error"])

    # Case 2: something is missing. A field that is null counts as missing; a null entry of a list does not.
    is_null_field = value is None and keys and isinstance(keys[-1], str)
    if kind == "missing" or is_null_field:
        outer = _place_words(keys[:-1])
        key = _place_words(keys[-1:])
        return f"{outer} has no {key}"

    # Case 3: an entry of a list is null.
    if value is None:
        return f"{path_of_value} is null"

    # Case 4: the value has another type, or is out of range.
    if kind in _NEEDED:
        wanted = _NEEDED[kind].format(**context)
    else:
        wanted = f"what it should be: {problem['msg']}"
    return f"{path_of_value} is {shown(value)}, not {wanted}"


def _place_words(keys: Iterable[str | int]) -> str:
    """Return the path of a value in a document, e.g. ``models[0].id.n``; ``it`` for the whole document.

    Control characters in keys, which may come from an untrusted file, are escaped.
    """
    place = ""
    for key in keys:
        if isinstance(key, int):
            place += f"[{key}]"
        else:
            escaped = repr(key)[1:-1]  # without the quotes
            place += f".{escaped}"
    return place.removeprefix(".") or "it"


# --- from records to forms --------------------------------------------------------------------------------------------

FormField = tuple[Any, Any]
"""The type of a field and its pydantic ``Field``, as ``create_model`` takes them."""


class _CountsByName(Form):
    """A form whose other keys hold lists of counts."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, list[Annotated[int, Field(ge=0, le=2**63 - 1)]]]


class FormMaker:
    """Makes the forms of records; asking again for a record returns the same form.

    Args:
        metric_fields: returns the form fields of the metrics that a field of a record holds by key.
    """

    def __init__(self, metric_fields: Callable[[FieldFacts], Mapping[str, FormField]] | None = None) -> None:
        self._metric_fields = metric_fields
        self._forms: dict[type[Record], type[Form]] = {}

    def form_of(self, record: type[Record]) -> type[Form]:
        """Return the form of a record; always the same object for the same record."""
        form = self._forms.get(record)
        if form is None:
            form = self._make_form(record)
            self._forms[record] = form
        return form

    def _make_form(self, record: type[Record]) -> type[Form]:
        """Return a new form of a record, with a check that its values fit together if the record has one."""
        validators: dict[str, Any] = {}
        has_own_check = record.problem.__func__ is not Record.problem.__func__  # type: ignore[attr-defined]
        if has_own_check:
            validators["is_consistent"] = model_validator(mode="after")(_consistency_check(record))
        form: type[Form] = create_model(
            record.form,
            __base__=_base_of(record),
            __doc__=record.__doc__,
            __validators__=validators,
            **self._fields(record),
        )
        return form

    def _fields(self, record: type[Record]) -> dict[str, Any]:
        """Return the fields of a form by the names of their attributes.

        The fields of an inline record, and those of metrics, are added beside the others. An inline mapping, which may
        have any keys, adds no field: the base of the form accepts its keys (:func:`_base_of`).
        """
        hints = get_type_hints(record, include_extras=True)
        fields: dict[str, Any] = {}
        for field in dataclasses.fields(record):  # type: ignore[arg-type]
            facts = facts_of(field)
            hint = hints[field.name]
            # Metrics, an inline record, or an ordinary field with its own key.
            if facts.metrics and self._metric_fields is not None:
                fields.update(self._metric_fields(facts))
            elif facts.inline and _is_record(hint):
                fields.update(self._fields(hint))
            elif not facts.inline:
                key = facts.key or field.name
                fields[_attribute_name(field.name)] = self._field(hint, facts, key)
        return fields

    def _field(self, hint: Any, facts: FieldFacts, key: str) -> FormField:
        """Return the field of a form; unless the field is needed, it may be missing or null.

        Args:
            hint: the type of the field in the record.
            facts: the declaration of the field in the record.
            key: the key in JSON.
        """
        kind = self.type_of(hint)
        if facts.needed:
            return kind, Field(alias=key, description=facts.text)
        if kind is not Any:
            kind = kind | None
        return kind, Field(None, alias=key, description=facts.text)

    def type_of(self, hint: Any) -> Any:
        """Return the type that pydantic checks for the type of a record's field.

        Records become their forms, sequences lists, and mappings objects with string keys. Our own markers of ranges,
        sizes and checks become those of pydantic. All other types stay.

        Args:
            hint: the type in the record, e.g. ``Sequence[EpochRecord] | None``.
        """
        if _is_record(hint):
            return self.form_of(hint)

        # Annotated[X, marker, ...]: X with the markers of pydantic.
        origin = get_origin(hint)
        arguments = get_args(hint)
        if origin is Annotated:
            inner, *markers = arguments
            checked = self.type_of(inner)
            for marker in markers:
                checked = Annotated[checked, _pydantic_marker(marker)]
            return checked

        # Containers and unions: the same with the types inside converted.
        if origin in (Union, UnionType):
            kinds = tuple(self.type_of(argument) for argument in arguments)
            return Union[kinds]  # noqa: UP007 - of a tuple
        if origin is Sequence:
            (entry,) = arguments
            return list[self.type_of(entry)]  # type: ignore[misc]
        if origin is Mapping:
            _, value = arguments
            return dict[str, self.type_of(value)]  # type: ignore[misc]
        return hint


def _is_record(hint: Any) -> bool:
    """Return whether the type of a field is a record."""
    return isinstance(hint, type) and issubclass(hint, Record)


def _attribute_name(name: str) -> str:
    """Return the attribute name of a form field; an underscore is added if pydantic uses the name itself."""
    if hasattr(BaseModel, name):
        return f"{name}_"
    return name


def _base_of(record: type[Record]) -> type[Form]:
    """Return the base class of a form: one that accepts counts under any key if the record has an inline mapping."""
    hints = get_type_hints(record)
    for field in dataclasses.fields(record):  # type: ignore[arg-type]
        facts = facts_of(field)
        if facts.inline and not facts.metrics and not _is_record(hints[field.name]):
            return _CountsByName
    return Form


def _consistency_check(record: type[Record]) -> Callable[[Form], Form]:
    """Return the pydantic validator that checks whether the values of a form fit together."""

    def check_consistency(form: Form) -> Form:
        problem = record.problem(dict(form))
        if problem is not None:
            raise ValueError(problem)
        return form

    return check_consistency


def _pydantic_marker(marker: Within | Sized | Checked) -> Any:
    """Return the pydantic equivalent of one of our own markers."""
    if isinstance(marker, Within):
        return Field(ge=marker.least, le=marker.most, gt=marker.above)
    if isinstance(marker, Sized):
        return Field(min_length=marker.least, max_length=marker.most)
    return AfterValidator(_value_check(marker))


def _value_check(marker: Checked) -> Callable[[Any, ValidationInfo], Any]:
    """Return the pydantic validator of one value, which also sees the values of the fields before it."""

    def check_value(value: Any, info: ValidationInfo) -> Any:
        problem = marker.problem(value, info.data)
        if problem is not None:
            raise ValueError(problem)
        return value

    return check_value


# --- forms that need no metrics ---------------------------------------------------------------------------------------

_FORMS = FormMaker()

Bench = _FORMS.form_of(BenchAnswer)
PredictionsHeader = _FORMS.form_of(PredictionsRecord)
FittedOn = _FORMS.form_of(FittedOnRecord)
