"""torch's compiler is imported when something is compiled, not by every verb.

``import torch._dynamo`` takes about as long as ``import torch``, and nearly every verb would do it without compiling
anything: torchvision asks for it while it is imported, timm too, and torch itself when shapes are computed without
numbers. Almost all that they ask is to keep a function out of what is compiled.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

_COMPILER = "torch._dynamo"
_UTILS = "torch._dynamo.utils"
_KEPT_BY_TORCH = "__dynamo_disable"
"""The attribute of a function in which ``torch._compile`` keeps what the compiler made of it."""


def import_compiler_on_demand() -> None:
    """Let ``torch._dynamo`` be imported when it is needed, in this process, from now on.

    A stand-in answers what can be answered while nothing is compiled. Asked for anything else, it imports the real one,
    which takes its place, and passes the question on. Where the compiler is there already, nothing happens.
    """
    if _COMPILER in sys.modules:
        return
    sys.modules[_COMPILER] = _Compiler(_COMPILER)
    sys.modules[_UTILS] = _CompilerUtils(_UTILS)


class _StandIn(ModuleType):
    """Stands for a module of the compiler, and passes on every question that it cannot answer."""

    is_package = False

    def __getattr__(self, name: str) -> Any:
        # Whoever looks through all modules asks for their files; whoever imports a part of a package, for its path.
        imports_a_part = name == "__path__" and self.is_package
        if name.startswith("__") and not imports_a_part:
            raise AttributeError(f"module {self.__name__!r} is not imported yet")
        real = _real_module(self.__name__)
        return getattr(real, name)


class _Compiler(_StandIn):
    """Stands for ``torch._dynamo``."""

    is_package = True

    @staticmethod
    def graph_break(msg: str = "") -> None:
        """End a graph that is being compiled: there is none. torch's optimisers ask for it in every step."""

    def disable(
        self, fn: Callable[..., Any] | None = None, recursive: bool = True, **settings: Any
    ) -> Callable[..., Any]:
        """Keep a function out of what is compiled, as ``torch._dynamo.disable``: which is asked once it is there."""
        if fn is None:
            return functools.partial(self.disable, recursive=recursive, **settings)
        function = fn

        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            if _is_put_off():
                return function(*arguments, **options)
            real: Any = sys.modules[_COMPILER]
            return real.disable(function, recursive, **settings)(*arguments, **options)

        if hasattr(function, "__dict__"):
            _asked_about.append(function)
        return call


class _CompilerUtils(_StandIn):
    """Stands for ``torch._dynamo.utils``."""

    @staticmethod
    def is_compile_supported(device_type: str) -> bool:
        """Return whether torch can compile for a type of device, for which the compiler is imported."""
        supported: bool = _real_module(_UTILS).is_compile_supported(device_type)
        return supported


_asked_about: list[Callable[..., Any]] = []
"""The functions that were to be kept out of what is compiled before there was a compiler."""

_importing = threading.RLock()
"""Held while the compiler takes the place of its stand-in; the same thread asks again while it imports."""


def _is_put_off() -> bool:
    return isinstance(sys.modules.get(_COMPILER), _StandIn)


def _real_module(name: str) -> Any:
    """Return a module of the compiler itself, which is imported where a stand-in is in its place."""
    with _importing:
        for stand_in in (_COMPILER, _UTILS):
            if isinstance(sys.modules.get(stand_in), _StandIn):
                del sys.modules[stand_in]
        importlib.import_module(_COMPILER)
        # torch keeps what it was given for these functions: it has to ask the compiler itself.
        while _asked_about:
            vars(_asked_about.pop()).pop(_KEPT_BY_TORCH, None)
        return importlib.import_module(name)
