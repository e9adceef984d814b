"""The form of an eval, made of the metrics there are: a document that has it can be reported on.

This imports pydantic: import it where an eval is read.
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
    """Return a field for each metric of a kind, those that other packages declare too.

    Args:
        facts: of the field of a record that holds metrics: which kind, and whether only those by severity.
    """
    fields: dict[str, FormField] = {}
    kind = _metric_kind(facts)
    for place, metric in enumerate(metrics(kind)):
        if facts.by_severity and not metric.by_severity:
            continue
        value: Any = Number
        if metric.parts:
            value = dict[str, Number]
        # By its alias a key may be anything, the names of pydantic's own methods too.
        described = Field(None, alias=metric.key, description=metric.convention)
        fields[f"metric_{place}"] = (value | None, described)
    return fields


def _metric_kind(facts: FieldFacts) -> MetricKind:
    """Return the kind of metrics that a field holds, which a record names in plain text.

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
    """Return the answer of an eval; ``-`` is standard input.

    Raises:
        InputError: for anything else, listing what is wrong with it.
    """
    document = read_document(path, Eval)
    return EvalAnswer.from_json(document)


def eval_of(document: Any, origin: str) -> EvalAnswer:
    """Return the answer of an eval from its document.

    Raises:
        InputError: for anything else, listing what is wrong with what was read from ``origin``.
    """
    check_document(document, origin, Eval)
    return EvalAnswer.from_json(document)
