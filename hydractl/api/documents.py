"""What a verb answers: its JSON document, as the command line prints it with ``--json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class Document(dict[str, Any]):
    """A JSON document: text keys, finite numbers, its own ``schema`` (see the page on files).

    Attributes:
        files: what was written, in the order a person should read it.
    """

    def __init__(self, document: Mapping[str, Any], files: Sequence[Path] = ()) -> None:
        super().__init__(document)
        self.files = list(files)
