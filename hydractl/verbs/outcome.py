"""The result that a verb returns to its caller: the answer as a JSON document, and the files that were written."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Outcome:
    """The result of one verb.

    Attributes:
        document: the answer, ready for JSON: text keys, finite numbers, its own ``schema``.
        files: the files written, in the order a person should read them; empty after ``--dry-run``.
        unmet: the ``--require`` expressions that did not hold, each with the value found.
        print_document: the artefact itself goes to standard output (``-o -``), so ``document`` is what to print.
        silent: another process gives the answer.
    """

    document: dict[str, Any]
    files: list[Path] = field(default_factory=list)
    unmet: list[str] = field(default_factory=list)
    print_document: bool = False
    silent: bool = False
