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
"""The operators that torchvision's Python code needs while it is imported, and that its compiled library declares."""


@functools.cache
def declare_operators() -> None:
    """Declare torchvision's two non-maximum-suppression operators, if its compiled library cannot.

    torchvision's wheel for Linux is linked against torch's CUDA libraries. With a CPU build of torch the library cannot
    be loaded. torchvision accepts this, but then describes the operators ``torchvision::nms`` and ``torchvision::qnms``
    to torch, and ``import torchvision`` fails with "operator torchvision::nms does not exist". timm, open_clip and the
    image side of transformers then fail too, although none of them uses these operators. A declaration without an
    implementation is enough for the import; ``torchvision.ops.nms`` itself still reports that its compiled operators
    are missing.

    Call this before the first import of torchvision or of anything that imports it. Nothing is declared if torchvision
    is not installed, is already imported, or can load its library. Only the first call has an effect.
    """
    if "torchvision" in sys.modules or _loads_its_library():
        return
    for name in _NAMES:
        operators.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def _loads_its_library() -> bool:
    """Return whether torchvision can load its compiled library; True if torchvision is not installed.

    The library is loaded directly, without importing torchvision, because a failed import would leave half of
    torchvision in ``sys.modules``. A library that the dynamic loader refuses runs no code. If it does load, torchvision
    loads it again later, which changes nothing.
    """
    spec = importlib.util.find_spec("torchvision")  # finds a top-level package without running it
    if spec is None or spec.origin is None:
        return True
    if sys.platform == "win32":
        return True  # wheels for Windows are CPU builds, and finding their library needs torchvision's own search path
    folder = Path(spec.origin).parent
    for name in ("_C", "_C_stable"):  # torchvision 0.29 and later use the second name
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            path = folder / f"{name}{suffix}"
            if path.is_file():
                try:
                    torch.ops.load_library(str(path))
                except OSError:
                    return False
                return True
    return False
