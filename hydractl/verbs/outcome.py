"""What a command returns to its caller: its result, and the files that were written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydractl.errors import RequirementError

if TYPE_CHECKING:
    from hydractl.files.results import Result


@dataclass(eq=False)  # a result that is compared with another one holds its outcome, and the outcome the result
class Outcome:
    """The outcome of one command.

    Attributes:
        result: the result; of it nothing is known if another process gives it, or as long as ``lines`` are not read.
        files: the files that were written, in the order a person should read them; empty after ``--dry-run``.
        unmet: the ``--require`` expressions that are not met, each with the value found.
        silent: whether nothing is printed because another process gives the answer.
        lines: rows, one for each sample, that are computed while the caller reads them. The caller must read them
            all; only then are ``result``, ``files`` and ``unmet`` complete. None if there are no rows.
    """

    result: Result
    files: list[Path] = field(default_factory=list)
    unmet: list[str] = field(default_factory=list)
    silent: bool = False
    lines: Iterator[dict[str, object]] | None = None

    def refuse_unmet(self) -> None:
        """Raise RequirementError if a ``--require`` is not met, after the result was printed or written."""
        if len(self.unmet) == 1:
            raise RequirementError(f"requirement not met: {self.unmet[0]}")
        if self.unmet:
            raise RequirementError(f"{len(self.unmet)} requirements not met", problems=self.unmet)

    def returned(self) -> Any:
        """Return the result, in which a Python program finds the files."""
        return self.result.with_outcome(self)
