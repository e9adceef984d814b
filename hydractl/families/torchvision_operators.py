"""Workaround for ``import torchvision`` with a build of torch that its compiled library was not made for."""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import sys
from pathlib import Path

import torch
from torch import library as operators

_NAMES = ("nms", "qnms")
"""What torchvision's library would have declared and torchvision's Python code asks for while it is imported."""


@functools.cache
def declare_operators() -> None:
    """Declare torchvision's two non-maximum-suppression operators, if its compiled library cannot.

    torchvision's wheel for Linux is linked against torch's CUDA libraries. Beside a CPU build of torch the library does
    not load, which torchvision accepts; but a moment later it describes the operators ``torchvision::nms`` and
    ``torchvision::qnms`` to torch, and ``import torchvision`` ends in "operator torchvision::nms does not exist". With
    it fall timm, open_clip and the image side of transformers, though none of them suppresses a box. A declaration
    without an implementation is enough for the import; ``torchvision.ops.nms`` itself still says that its compiled
    operators are missing.

    Call this before the first import of torchvision or of anything that imports it. Where torchvision is absent,
    imported already, or able to load its library, nothing is declared; further calls do nothing.
    """
    if "torchvision" in sys.modules or _loads_its_library():
        return
    for name in _NAMES:
        operators.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def _loads_its_library() -> bool:
    """Return whether torchvision has its operators, or will have them; True too where no torchvision is installed.

    The compiled library is loaded as torchvision would load it, without importing torchvision: a failed import leaves
    half of it in ``sys.modules``, whereas a library that the dynamic loader refuses has run no code. When torchvision
    loads it a second time later, nothing changes.
    """
    spec = importlib.util.find_spec("torchvision")  # finds a top-level package without running it
    if spec is None or spec.origin is None:
        return True
    if sys.platform == "win32":
        return True  # the wheels there are CPU builds, and finding their library needs torchvision's own search path
    folder = Path(spec.origin).parent
    for name in ("_C", "_C_stable"):  # the second as of torchvision 0.29
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            path = folder / f"{name}{suffix}"
            if path.is_file():
                return _loads(path)
    return False


def _loads(path: Path) -> bool:
    """Return whether the dynamic loader takes a library of operators."""
    try:
        torch.ops.load_library(str(path))
    except OSError:
        return False
    return True
