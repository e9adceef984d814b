"""The form of an eval document, built from the declared metrics; a document of this form can be reported on.

This module imports pydantic, which is slow: import it only where an eval is read.
"""

from __future__ import annotations

from typing import Any, get_args

from pydantic import Field

from hydractl.files.documents import FormField, FormMaker, check_document, read_document
from hydractl.files.eval_answer import EvalAnswer
from hydractl.files.records import FieldFacts, Number
from hydractl.files.study_answer import StudyAnswer
from hydractl.metrics.declaration import MetricKind, metrics


def _metric_fields(facts: FieldFacts) -> dict[str, FormField]:
    """Return a field for each metric of a kind, including metrics of other packages.

    Args:
        facts: the facts of a record's field that holds metrics: their kind, and whether only those by severity count.
    """
    fields: dict[str, FormField] = {}
    kind = _metric_kind(facts)
    for index, metric in enumerate(metrics(kind)):
        if facts.by_severity and not metric.by_severity:
            continue
        value: Any = Number
        if metric.parts:
            value = dict[str, Number]
        # The field has an alias, because a key may be any name, even that of one of pydantic's methods.
        field = Field(None, alias=metric.key, description=metric.convention)
        fields[f"metric_{index}"] = (value | None, field)
    return fields


def _metric_kind(facts: FieldFacts) -> MetricKind:
    """Return the kind of metrics that a field holds; records give it as plain text.

    Raises:
        ValueError: there is no such kind.
    """
    kind: MetricKind
    for kind in get_args(MetricKind):
        if kind == facts.metrics:
            return kind
    raise ValueError(f"no kind of metrics: {facts.metrics}")


FORMS_WITH_METRICS = FormMaker(_metric_fields)

Eval = FORMS_WITH_METRICS.form_of(EvalAnswer)
StudyForm = FORMS_WITH_METRICS.form_of(StudyAnswer)


def read_eval(path: str) -> EvalAnswer:
    """Read the answer of an eval from a file; ``-`` is standard input.

    Raises:
        InputError: the document has another form; it lists what is wrong.
    """
    document = read_document(path, Eval)
    return EvalAnswer.from_json(document)


def eval_of(document: Any, origin: str) -> EvalAnswer:
    """Return the answer of an eval from its document.

    Args:
        document: the document as JSON.
        origin: where it was read, for messages.

    Raises:
        InputError: the document has another form; it lists what is wrong.
    """
    check_document(document, origin, Eval)
    return EvalAnswer.from_json(document)
