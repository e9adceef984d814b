"""Results from plain documents: of the class that their schema names, or of one that takes any keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hydractl.files.bench_answer import BenchAnswer
from hydractl.files.calibrate_answer import CalibrateAnswer
from hydractl.files.circuit_answer import CircuitAnswer, CircuitsAnswer, ScoresAnswer
from hydractl.files.eval_answer import EvalAnswer
from hydractl.files.export_answer import ExportAnswer
from hydractl.files.fuse_answer import FuseAnswer
from hydractl.files.predict_answer import PredictAnswer
from hydractl.files.results import Result
from hydractl.files.study_answer import StudyAnswer
from hydractl.files.verb_answers import FinetuneAnswer, FinetunesAnswer, InfoAnswer, PruneAnswer

KINDS: tuple[type[Result], ...] = (
    *(BenchAnswer, CalibrateAnswer, CircuitAnswer, CircuitsAnswer, EvalAnswer, ExportAnswer, FinetuneAnswer),
    *(FinetunesAnswer, FuseAnswer, InfoAnswer, PredictAnswer, PruneAnswer, ScoresAnswer, StudyAnswer),
)


class AnyAnswer(Result, extra="allow"):
    """A result with any keys."""

    def to_dict(self) -> dict[str, Any]:
        return self.model_dump(exclude_unset=True)


def result_of(document: Mapping[str, Any]) -> Result:
    """The result that a document stands for."""
    for kind in KINDS:
        if document.get("schema") == kind.form():
            return kind.model_validate(document)
    return AnyAnswer.model_validate(document)
