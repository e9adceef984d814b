"""Hydra ensembles from one checkpoint: prune attention heads, fuse the members, evaluate and time the result.

``hydractl.load`` gives a checkpoint as a torch module. Nothing heavy is imported before it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hydractl.files.version import __version__

if TYPE_CHECKING:
    from hydractl.model.loading import load

__all__ = ["__version__", "load"]


def __getattr__(name: str) -> Any:
    # Torch is imported with it, which takes seconds: `hydractl --help` must not wait for it.
    if name == "load":
        from hydractl.model.loading import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
