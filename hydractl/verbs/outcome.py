"""The result that a command returns to its caller: the answer as a JSON document, and the files that were written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Outcome:
    """The result of one command.

    Attributes:
        document: the answer, ready for JSON: keys are texts, numbers are finite, and ``schema`` names its form.
        files: the files that were written, in the order a person should read them; empty after ``--dry-run``.
        unmet: the ``--require`` expressions that are not met, each with the value found.
        print_document: whether ``document`` is printed because standard output is the output file (``-o -``).
        silent: whether nothing is printed because another process gives the answer.
        lines: rows, one for each sample, that are computed while the caller reads them. The caller must read them
            all; only then are ``document``, ``files`` and ``unmet`` complete. None if there are no rows.
    """

    document: dict[str, object]
    files: list[Path] = field(default_factory=list)
    unmet: list[str] = field(default_factory=list)
    print_document: bool = False
    silent: bool = False
    lines: Iterator[dict[str, object]] | None = None
