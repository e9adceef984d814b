"""The result that a verb returns to its caller: the answer as a JSON document, and the files that were written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Outcome:
    """The result of one verb.

    Attributes:
        document: the answer, ready for JSON: text keys, finite numbers, its own ``schema``.
        files: the files written, in the order a person should read them; empty after ``--dry-run``.
        unmet: the ``--require`` expressions that did not hold, each with the value found.
        print_document: the artefact itself goes to standard output (``-o -``), so ``document`` is what to print.
        silent: another process gives the answer.
        lines: rows that are computed while they are read, one for each sample; whoever gets the outcome reads them
            all, and only then are ``document``, ``files`` and ``unmet`` complete. None where there are none.
    """

    document: dict[str, object]
    files: list[Path] = field(default_factory=list)
    unmet: list[str] = field(default_factory=list)
    print_document: bool = False
    silent: bool = False
    lines: Iterator[dict[str, object]] | None = None
