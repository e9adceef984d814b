"""Hydra ensembles from one checkpoint: prune attention heads, fuse the members, evaluate and time the result.

Every command of the command line is a function here (see ``hydractl.api``), and ``hydractl.errors`` has the errors
that they raise. Nothing heavy is imported before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hydractl import errors
from hydractl.files.version import __version__

if TYPE_CHECKING:
    from hydractl.api.bench import bench
    from hydractl.api.calibrate import calibrate
    from hydractl.api.evaluate import evaluate
    from hydractl.api.export import export
    from hydractl.api.extract_circuit import extract_circuit
    from hydractl.api.finetune import finetune
    from hydractl.api.fuse import fuse
    from hydractl.api.models import Model, load, open, save
    from hydractl.api.predict import predict
    from hydractl.api.progress import show_progress
    from hydractl.api.prune import prune
    from hydractl.api.report import make_report
    from hydractl.api.results import (
        Benchmark,
        Circuit,
        Circuits,
        Evaluation,
        Exports,
        Predictions,
        Result,
        Scores,
        Study,
    )
    from hydractl.api.score import score
    from hydractl.api.study import study
    from hydractl.model.runtime import HydraModel

__all__ = [
    "Benchmark",
    "Circuit",
    "Circuits",
    "Evaluation",
    "Exports",
    "HydraModel",
    "Model",
    "Predictions",
    "Result",
    "Scores",
    "Study",
    "__version__",
    "bench",
    "calibrate",
    "errors",
    "evaluate",
    "export",
    "extract_circuit",
    "finetune",
    "fuse",
    "load",
    "make_report",
    "open",
    "predict",
    "prune",
    "save",
    "score",
    "show_progress",
    "study",
]
_MODELS = ("HydraModel", "Model", "load", "open", "save")


def __getattr__(name: str) -> Any:
    """Return a public name of the package, imported at its first use (PEP 562), e.g. ``hydractl.prune``.

    The cases, in this order: the function of a verb (of a plug-in, too); a name that is not public (AttributeError);
    any other name of ``__all__``.
    """
    from importlib import import_module
    from pkgutil import resolve_name

    registry = import_module("hydractl.options.registry")
    verb = registry.verb_called(name)
    if verb is not None:
        path_of_function = registry.VERBS[verb].signature  # such as "hydractl.api.prune:prune"
        return resolve_name(path_of_function)
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # These modules import torch, which takes seconds, so they are imported only now: `hydractl --help` must not wait.
    module_name = "results"  # of every name that is not among the following
    if name in _MODELS:
        module_name = "models"
    elif name == "show_progress":
        module_name = "progress"
    return getattr(import_module(f"hydractl.api.{module_name}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
