"""Write docs/schemas/ from the records of documents. A test holds that the files are current."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from hydractl.files.bench_answer import BenchAnswer
from hydractl.files.calibrate_answer import CalibrateAnswer
from hydractl.files.circuit_answer import CircuitAnswer, MaskRecord, ScoresAnswer
from hydractl.files.documents import Form, schema_of
from hydractl.files.eval_answer import EvalAnswer
from hydractl.files.export_answer import ExportAnswer
from hydractl.files.fuse_answer import FuseAnswer
from hydractl.files.predict_answer import PredictAnswer
from hydractl.files.predictions_header import PredictionsRecord
from hydractl.files.records import Record
from hydractl.files.study_answer import StudyAnswer
from hydractl.report.eval_document import FORMS_WITH_METRICS

FOLDER = Path(__file__).with_name("schemas")

RECORDS: tuple[type[Record], ...] = (
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
FORMS: tuple[type[Form], ...] = tuple(map(FORMS_WITH_METRICS.form_of, RECORDS))


class Generator(GenerateJsonSchema):
    """Without the title of each field, which repeats its name, and without its default, which is null."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def default_schema(self, schema: Any) -> dict[str, Any]:
        return self.generate_inner(schema["schema"])

    def nullable_schema(self, schema: Any) -> dict[str, Any]:
        """``["number", "null"]`` is shorter than two alternatives."""
        inner = self.generate_inner(schema["schema"])
        plain = "type" in inner and "enum" not in inner
        return {**inner, "type": [inner["type"], "null"]} if plain else super().nullable_schema(schema)


def schemas() -> dict[str, dict[str, Any]]:
    """The JSON Schema of each form, by file name."""
    found = {}
    for form in FORMS:
        name = schema_of(form)
        schema = form.model_json_schema(schema_generator=Generator)
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
