"""Hydra ensembles from one checkpoint: prune attention heads, fuse the members, evaluate and time the result.

Everything of the command line is here as a function (see ``hydractl.api``), and ``hydractl.errors`` has what they
raise. Nothing heavy is imported before it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hydractl import errors
from hydractl.files.version import __version__

if TYPE_CHECKING:
    from hydractl.api.models import HydraModel, Model, load, open, save
    from hydractl.api.results import Benchmark, Circuit, Circuits, Document, Evaluation, Push, Scores, Study
    from hydractl.api.verbs import (
        bench,
        evaluate,
        export,
        extract_circuit,
        finetune,
        fuse,
        laplace,
        prune,
        push,
        score,
        study,
    )

__all__ = [
    "Benchmark",
    "Circuit",
    "Circuits",
    "Document",
    "Evaluation",
    "HydraModel",
    "Model",
    "Push",
    "Scores",
    "Study",
    "__version__",
    "bench",
    "errors",
    "evaluate",
    "export",
    "extract_circuit",
    "finetune",
    "fuse",
    "laplace",
    "load",
    "open",
    "prune",
    "push",
    "save",
    "score",
    "study",
]
_RESULTS = ("Benchmark", "Circuit", "Circuits", "Document", "Evaluation", "Push", "Scores", "Study")
_MODELS = ("HydraModel", "Model", "load", "open", "save")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Torch is imported with it, which takes seconds: `hydractl --help` must not wait for it.
    from importlib import import_module

    home = "verbs"
    if name in _RESULTS:
        home = "results"
    elif name in _MODELS:
        home = "models"
    return getattr(import_module(f"hydractl.api.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
