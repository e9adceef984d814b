"""Write docs/schemas/ from the records of documents. A test holds that the files are current."""

from __future__ import annotations

import ast
import inspect
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from hydractl.files.bench_answer import BenchAnswer
from hydractl.files.calibrate_answer import CalibrateAnswer
from hydractl.files.circuit_answer import CircuitAnswer, MaskRecord, ScoresAnswer
from hydractl.files.eval_answer import EvalAnswer, MetricBlock
from hydractl.files.export_answer import ExportAnswer
from hydractl.files.fuse_answer import FuseAnswer
from hydractl.files.predict_answer import PredictAnswer
from hydractl.files.predictions_header import PredictionsRecord
from hydractl.files.results import Record, Result
from hydractl.files.study_answer import StudyAnswer
from hydractl.metrics.declaration import metrics

FOLDER = Path(__file__).with_name("schemas")

RESULTS: tuple[type[Result], ...] = (
    BenchAnswer,
    CalibrateAnswer,
    CircuitAnswer,
    EvalAnswer,
    ExportAnswer,
    FuseAnswer,
    MaskRecord,
    PredictAnswer,
    PredictionsRecord,
    ScoresAnswer,
    StudyAnswer,
)


NUMBER = {"type": ["number", "null"]}


class Generator(GenerateJsonSchema):
    """Without the title of each field, which repeats its name, and without its default; with the declared metrics."""

    def model_schema(self, schema: Any) -> dict[str, Any]:
        generated = super().model_schema(schema)
        record = schema["cls"]
        for key, text in descriptions(record).items():
            generated["properties"][key]["description"] = text
        if issubclass(record, Result):
            generated["properties"]["schema"]["description"] = "Name and version of this form."
        if issubclass(record, MetricBlock):
            generated["properties"] = {**generated.get("properties", {}), **metric_properties(record)}
        return generated

    def field_is_required(self, field: Any, total: bool) -> bool:
        """The name of a form is always there, although records need not be given it."""
        is_name_of_form = field.get("validation_alias") == "schema"
        return is_name_of_form or super().field_is_required(field, total)

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def default_schema(self, schema: Any) -> dict[str, Any]:
        return self.generate_inner(schema["schema"])

    def nullable_schema(self, schema: Any) -> dict[str, Any]:
        """``["number", "null"]`` is shorter than two alternatives."""
        inner = self.generate_inner(schema["schema"])
        plain = "type" in inner and "enum" not in inner
        return {**inner, "type": [inner["type"], "null"]} if plain else super().nullable_schema(schema)


def descriptions(record: type[Record]) -> dict[str, str]:
    """The text that stands below a field of a record, by its key; pydantic would read it at every start."""
    texts: dict[str, str] = {}
    for base in reversed(record.__mro__):
        if not issubclass(base, Record):
            continue
        (declaration,) = ast.parse(inspect.getsource(base)).body
        assert isinstance(declaration, ast.ClassDef)
        for field, below in pairwise([*declaration.body, ast.Pass()]):
            if not isinstance(field, ast.AnnAssign) or ast.unparse(field.target) not in record.model_fields:
                continue
            key = ast.unparse(field.target).removesuffix("_")
            texts.pop(key, None)
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                texts[key] = " ".join(str(below.value.value).split())
    return texts


def metric_properties(record: type[MetricBlock]) -> dict[str, Any]:
    """The schema of each metric that a record may hold, by key."""
    properties: dict[str, Any] = {}
    for metric in metrics(record.kind):
        if record.by_severity and not metric.by_severity:
            continue
        value: dict[str, Any] = NUMBER
        if metric.parts:
            value = {"type": ["object", "null"], "additionalProperties": NUMBER}
        properties[metric.key] = {**value, "description": metric.convention}
    return properties


def schemas() -> dict[str, dict[str, Any]]:
    """The JSON Schema of each kind of document, by file name."""
    found = {}
    for result in RESULTS:
        name = result.form()
        schema = result.model_json_schema(schema_generator=Generator)
        own = {"$schema": Generator.schema_dialect, "$id": name, "title": name}
        found[f"{name.removeprefix('hydractl.').replace('/', '-')}.json"] = {**schema, **own}
    return found


def text(schema: dict[str, Any]) -> str:
    """The file of a schema."""
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, schema in schemas().items():
        (FOLDER / name).write_text(text(schema), encoding="utf-8")
