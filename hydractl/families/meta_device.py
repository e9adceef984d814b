"""The meta device, on which tensors have shapes and no numbers, without importing sympy.

torch computes the shapes of many operators in Python: of ``stack``, of ``cat``, of ``erfinv_`` in timm's initialisers.
These functions ask sympy whether a size is a symbol, as sizes are while a model is compiled. The import of sympy alone
takes a third as long as ``import torch``. Here all sizes are plain numbers, so the answer is known without it.
"""

from __future__ import annotations

import contextlib
import importlib
import operator
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch

_SYMPY = "sympy"
_SYMBOLIC_SHAPES = "torch.fx.experimental.symbolic_shapes"
_CONFIG = "torch.fx.experimental._config"

_standing_in = threading.RLock()
"""Held while stand-ins are among the modules."""


@contextlib.contextmanager
def on_meta_device() -> Iterator[None]:
    """Make new tensors on the meta device."""
    with plain_sizes(), torch.device("meta"):
        yield


@contextlib.contextmanager
def plain_sizes() -> Iterator[None]:
    """Keep torch from importing sympy while it computes shapes inside.

    Stand-ins for sympy and for torch's module of symbolic sizes answer for plain numbers. Asked for anything else, they
    import the real modules and pass the question on. Nothing happens where sympy has been imported already.
    """
    if _SYMPY in sys.modules or _SYMBOLIC_SHAPES in sys.modules:
        yield
        return
    importlib.import_module(_CONFIG)  # which the real module of symbolic sizes brings along
    with _standing_in:
        sympy = _Sympy(_SYMPY)
        symbolic_shapes = _SymbolicShapes(_SYMBOLIC_SHAPES)
        sys.modules[_SYMPY] = sympy
        sys.modules[_SYMBOLIC_SHAPES] = symbolic_shapes
        try:
            yield
        finally:
            _remove_stand_ins()


def _remove_stand_ins() -> None:
    """Take the stand-ins from the modules; a real module that has taken their place stays."""
    for name in (_SYMPY, _SYMBOLIC_SHAPES):
        if isinstance(sys.modules.get(name), _StandIn):
            del sys.modules[name]


class _StandIn(ModuleType):
    """Stands for a module that takes long to import, and passes on every question that it cannot answer."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} is not imported yet")
        return getattr(_real_module(self.__name__), name)


def _real_module(name: str) -> ModuleType:
    """Import a module for which there may be a stand-in."""
    _remove_stand_ins()
    return importlib.import_module(name)


class _Sympy(_StandIn):
    """Stands for sympy."""

    class Basic:
        """The class of all expressions: torch asks whether a size is one of them."""


class _SymbolicShapes(_StandIn):
    """Stands for ``torch.fx.experimental.symbolic_shapes``."""

    def __getattr__(self, name: str) -> Any:
        if name not in _ANSWERS:
            return super().__getattr__(name)

        def answer(*values: Any) -> Any:
            if _is_plain(values):
                return _ANSWERS[name](*values)
            ask = getattr(_real_module(_SYMBOLIC_SHAPES), name)
            return ask(*values)

        return answer


def _is_plain(value: Any) -> bool:
    """Return whether a size, a condition, or a tuple of them holds no symbol."""
    if isinstance(value, (tuple, list)):
        return all(_is_plain(element) for element in value)
    return type(value) in (bool, int)


_ANSWERS: dict[str, Callable[..., Any]] = {
    # These differ in what they do about symbols; of plain values each says whether the condition holds.
    "expect_true": bool,
    "guard_or_false": bool,
    "guard_or_true": bool,
    "guard_size_oblivious": bool,
    "statically_known_true": bool,
    "guard_int": int,
    "guarding_hint_or_throw": lambda value: value,
    "has_guarding_hint": lambda value: True,
    "is_nested_int": lambda size: False,
    "sym_and": lambda *conditions: all(conditions),
    "sym_eq": operator.eq,
    "sym_or": lambda *conditions: any(conditions),
}
"""What functions of that module return for plain sizes and conditions."""
