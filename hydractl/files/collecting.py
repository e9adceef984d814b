"""When Python looks for garbage: not among the objects that belong to modules, because they stay.

torch and timm define some hundred thousand objects. Looking at them again and again, while they are imported, while a
verb runs and once more at the end of the process, takes up to half as long as ``import torch``. A process that runs one
command sets objects apart at its start (``gc.freeze``), and imports add theirs.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def importing(*, before_models: bool = False) -> Iterator[None]:
    """Look for no garbage inside, where modules are imported.

    If collections of garbage pass over some objects already, they pass over all that exist afterwards, unless models
    may be among them: those would never be freed.

    Args:
        before_models: whether there is no model in memory yet. There is none either as long as torch is not imported.
    """
    if not gc.isenabled():
        yield
        return
    has_no_models = before_models or "torch" not in sys.modules
    extends = has_no_models and gc.get_freeze_count() > 0
    if extends:
        gc.collect()  # what is garbage already must not be set apart
    gc.disable()
    try:
        yield
    finally:
        if extends:
            gc.freeze()
        gc.enable()
