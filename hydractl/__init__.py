"""Hydra ensembles from one checkpoint: prune attention heads, fuse the members, evaluate and time the result.

Everything of the command line is here as a function (see ``hydractl.api``), and ``hydractl.errors`` has what they
raise. Nothing heavy is imported before it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hydractl import errors
from hydractl.files.version import __version__

if TYPE_CHECKING:
    from hydractl.api.documents import Document
    from hydractl.api.models import HydraModel, Model, load, open, save
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
    "Document",
    "HydraModel",
    "Model",
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
_HOMES = {"Document": "documents"} | dict.fromkeys(["HydraModel", "Model", "load", "open", "save"], "models")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Torch is imported with it, which takes seconds: `hydractl --help` must not wait for it.
    from importlib import import_module

    return getattr(import_module(f"hydractl.api.{_HOMES.get(name, 'verbs')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
