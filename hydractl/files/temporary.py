"""Temporary folders that live as long as what is made of their files."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path


class Folder:
    """A temporary folder, removed when nothing refers to it any more."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="hydractl-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
