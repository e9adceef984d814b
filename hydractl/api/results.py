"""The results that functions return to a Python program, under their public names."""

from __future__ import annotations

from hydractl.cli.answer import table_html, table_text
from hydractl.files.bench_answer import BenchAnswer as Benchmark
from hydractl.files.circuit_answer import CircuitAnswer as Circuit
from hydractl.files.circuit_answer import CircuitsAnswer as Circuits
from hydractl.files.circuit_answer import ScoresAnswer as Scores
from hydractl.files.eval_answer import EvalAnswer as Evaluation
from hydractl.files.export_answer import ExportAnswer as Exports
from hydractl.files.predict_answer import PredictAnswer as Predictions
from hydractl.files.results import Result
from hydractl.files.study_answer import StudyAnswer as Study

__all__ = [
    "Benchmark",
    "Circuit",
    "Circuits",
    "Evaluation",
    "Exports",
    "Predictions",
    "Result",
    "Scores",
    "Study",
]

Result.shown_by(table_text, table_html)
