"""The meta device, on which tensors have shapes but no numbers, without importing sympy.

torch computes the shapes of many operators in Python, e.g. of ``stack``, ``cat``, and ``erfinv_`` in timm's
initialisers. These functions ask sympy whether a size is a symbol, which happens only while a model is compiled.
Importing sympy takes a third as long as ``import torch``. Here all sizes are plain numbers, so the answer is known
without sympy.
"""

from __future__ import annotations

import contextlib
import importlib
import operator
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch import nn

from hydractl.errors import InputError

_SYMPY = "sympy"
_SYMBOLIC_SHAPES = "torch.fx.experimental.symbolic_shapes"
_CONFIG = "torch.fx.experimental._config"

_LARGEST_TABLES = 1 << 29
"""The most bytes that the buffers of a model may take, whatever its weights are."""

_SMALL_TABLES = 1 << 26
"""So many bytes of buffers are no more than any model may have."""

_standing_in = threading.RLock()
"""The lock that is held while stand-ins are in ``sys.modules``."""


@contextlib.contextmanager
def on_meta_device() -> Iterator[None]:
    """Create all new tensors on the meta device inside the block."""
    with plain_sizes(), torch.device("meta"):
        yield


def check_tables(model: nn.Module) -> None:
    """Raise an error if a model on the meta device asks for large buffers, before memory is set aside for them.

    Parameters are compared with the stored weights while both are shapes. Buffers such as tables of positions are not
    stored: they follow from sizes that a configuration claims. Those of a real model are smaller than its weights.

    Args:
        model: the model, whose buffers have no numbers yet.

    Raises:
        InputError: with both sizes.
    """
    weights = _bytes_of(model.parameters())
    tables = _bytes_of(model.buffers())
    # Tables may be as large as the weights. Small ones (64 MiB) always pass, and large ones (above 512 MiB) never.
    most_beside_weights = max(weights, _SMALL_TABLES)
    if tables > min(most_beside_weights, _LARGEST_TABLES):
        raise InputError(
            f"the configuration of this {type(model).__name__} asks for tables of {tables / 2**20:,.0f} MiB, beside "
            f"weights of {weights / 2**20:,.0f} MiB: its sizes cannot be meant"
        )


def _bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Return how much memory tensors take, or would take if they had numbers."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@contextlib.contextmanager
def plain_sizes() -> Iterator[None]:
    """Keep torch from importing sympy while it computes shapes inside the block.

    Stand-ins for sympy and for torch's module of symbolic sizes in ``sys.modules`` answer for plain numbers. For
    anything else they import the real modules and call them. If sympy is already imported, nothing is done.
    """
    if _SYMPY in sys.modules or _SYMBOLIC_SHAPES in sys.modules:
        yield
        return
    importlib.import_module(_CONFIG)  # usually imported by the real module of symbolic sizes
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
    """Remove the stand-ins from ``sys.modules``; real modules that have replaced them stay."""
    for name in (_SYMPY, _SYMBOLIC_SHAPES):
        if isinstance(sys.modules.get(name), _StandIn):
            del sys.modules[name]


class _StandIn(ModuleType):
    """Replaces a module that takes long to import; imports it when an attribute is needed that is not defined here."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} is not imported yet")
        return getattr(_real_module(self.__name__), name)


def _real_module(name: str) -> ModuleType:
    """Import and return the real module, after removing all stand-ins."""
    _remove_stand_ins()
    return importlib.import_module(name)


class _Sympy(_StandIn):
    """Replaces sympy."""

    class Basic:
        """Replaces the class of all expressions; torch checks whether a size is an instance of it."""


class _SymbolicShapes(_StandIn):
    """Replaces ``torch.fx.experimental.symbolic_shapes``."""

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
    """Return whether a value is an int or bool, or a tuple or list with only such values, so without symbols."""
    if isinstance(value, (tuple, list)):
        return all(_is_plain(element) for element in value)
    return type(value) in (bool, int)


_ANSWERS: dict[str, Callable[..., Any]] = {
    # These differ only for symbols. For plain values each returns whether the condition is true.
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
"""The results of functions in that module for plain sizes and conditions."""
