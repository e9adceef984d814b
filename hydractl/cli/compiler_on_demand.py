"""Import torch's compiler only when something is compiled, and not for every verb.

``import torch._dynamo`` takes about as long as ``import torch``, and nearly every verb would do it without compiling
anything: torchvision and timm ask for it while they are imported, and torch itself when shapes are computed without
numbers. Nearly always they only ask to exclude a function from compilation.
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
"""The attribute of a function in which ``torch._compile`` stores the compiler's wrapper of it."""


def import_compiler_on_demand() -> None:
    """Let ``torch._dynamo`` be imported only when it is needed, in this process, from now on.

    A stand-in is put into ``sys.modules``. It answers requests that need no compiler. For any other request it imports
    the real module, which takes its place, and passes the request on. If the compiler is imported already, nothing
    happens.
    """
    if _COMPILER in sys.modules:
        return
    sys.modules[_COMPILER] = _Compiler(_COMPILER)
    sys.modules[_UTILS] = _CompilerUtils(_UTILS)


class _StandIn(ModuleType):
    """Takes the place of a module of the compiler, and imports the module when an attribute is asked for."""

    is_package = False

    def __getattr__(self, name: str) -> Any:
        # Code that goes through all modules asks for names such as __file__; that must not import the compiler. The
        # import of a submodule asks for __path__; that must.
        imports_a_part = name == "__path__" and self.is_package
        if name.startswith("__") and not imports_a_part:
            raise AttributeError(f"module {self.__name__!r} is not imported yet")
        real = _real_module(self.__name__)
        return getattr(real, name)


class _Compiler(_StandIn):
    """Takes the place of ``torch._dynamo``."""

    is_package = True

    @staticmethod
    def graph_break(msg: str = "") -> None:
        """Do nothing: without a compiler there is no graph to end. torch's optimisers call this in every step."""

    def disable(
        self, fn: Callable[..., Any] | None = None, recursive: bool = True, **settings: Any
    ) -> Callable[..., Any]:
        """Exclude a function from compilation, as ``torch._dynamo.disable`` does, without importing the compiler.

        Nothing is compiled before the compiler is imported, so until then there is nothing to exclude.

        Returns:
            A function that calls ``fn`` directly while the compiler is not imported. Afterwards each call lets the real
            ``torch._dynamo.disable`` wrap ``fn``. Without ``fn``, a decorator.
        """
        # Used as a decorator with arguments, ``@disable(recursive=False)``: the function comes later.
        if fn is None:
            return functools.partial(self.disable, recursive=recursive, **settings)
        function = fn

        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            # This is asked anew in each call, because the compiler may have been imported since the last one.
            if _is_put_off():
                return function(*arguments, **options)
            real: Any = sys.modules[_COMPILER]
            excluded = real.disable(function, recursive, **settings)
            return excluded(*arguments, **options)

        # torch stores ``call`` as an attribute of the function and would use it for ever. Remember the function, so
        # that _real_module() can remove the attribute when the compiler is imported; torch then asks the real compiler.
        if hasattr(function, "__dict__"):
            _asked_about.append(function)
        return call


class _CompilerUtils(_StandIn):
    """Takes the place of ``torch._dynamo.utils``."""

    @staticmethod
    def is_compile_supported(device_type: str) -> bool:
        """Return whether torch can compile for a type of device; this imports the compiler."""
        return _real_module(_UTILS).is_compile_supported(device_type)


_asked_about: list[Callable[..., Any]] = []
"""The functions that were excluded from compilation before the compiler was imported."""

_importing = threading.RLock()
"""Held while the compiler replaces its stand-in; reentrant, since the import asks for the compiler again."""


def _is_put_off() -> bool:
    """Return whether the compiler is not imported yet: the stand-in is still in its place."""
    return isinstance(sys.modules.get(_COMPILER), _StandIn)


def _real_module(name: str) -> Any:
    """Return a real module of the compiler, by removing the stand-ins and importing it."""
    with _importing:
        for stand_in in (_COMPILER, _UTILS):
            if isinstance(sys.modules.get(stand_in), _StandIn):
                del sys.modules[stand_in]
        importlib.import_module(_COMPILER)
        # torch has stored our wrappers in these functions: remove them, so that it asks the real compiler.
        while _asked_about:
            vars(_asked_about.pop()).pop(_KEPT_BY_TORCH, None)
        return importlib.import_module(name)
