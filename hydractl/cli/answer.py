"""Standard output: the result of the command, and nothing else."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

from hydractl.cli.console import clean, clean_document, debugging, is_terminal, send_nowhere
from hydractl.errors import NonFiniteError, StorageError

_WIDTH_IN_A_FILE = 160
# What JSON may leave as it is, but a terminal obeys.
_UNSAFE_IN_JSON = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


class Answer:
    """Writes the answer of one command to standard output.

    A reader that has gone away (``| head``) ends the writing silently; a full disk is an error.

    Args:
        stream: standard output as it was when the command started, None if it is closed.
        warn: where to say that a table could not be drawn.
    """

    def __init__(self, stream: TextIO | None, warn: Callable[[str], None]) -> None:
        self._stream = stream
        self._warn = warn

    @property
    def to_terminal(self) -> bool:
        """Whether standard output is a terminal."""
        return is_terminal(self._stream)

    def text(self, text: str) -> None:
        """Print text of hydractl's own, such as help."""
        self._write(text.rstrip("\n") + "\n")

    def document(self, document: Any) -> None:
        """Print one JSON document, as its file would hold it.

        Raises:
            NonFiniteError: if it holds a NaN or an infinity.
        """
        try:
            text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
        except ValueError:
            raise NonFiniteError("the answer holds a number that is not finite, which JSON cannot say") from None
        if self.to_terminal:
            text = _UNSAFE_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
        # A file name that is not UTF-8 holds lone surrogates: they become \udcNN, which is JSON for the same.
        self._write(text + "\n", encoding="utf-8")

    def paths(self, paths: Sequence[Path]) -> None:
        """Print the paths written, one a line, for a script."""
        self._write("".join(f"{path}\n" for path in paths), encoding="utf-8", errors="surrogateescape")

    def table(self, document: dict[str, Any]) -> None:
        """Print a document for a person: its table, or its keys and values where it has none."""
        safe = clean_document(document)
        try:
            text = self._draw(safe)
        except Exception as error:  # a table is never worth the loss of an answer
            if debugging():
                raise
            self._warn(f"the table could not be drawn ({type(error).__name__}: {error})")
            text = None
        self._write(text if text is not None else "\n".join(plain_lines(safe)) + "\n")

    def _draw(self, document: dict[str, Any]) -> str | None:
        from rich.console import Console

        from hydractl.report.terminal import render

        width = shutil.get_terminal_size((_WIDTH_IN_A_FILE, 24)).columns if self.to_terminal else _WIDTH_IN_A_FILE
        renderable = render(document, width)
        if renderable is None:
            return None
        plain: dict[str, Any] = {"force_jupyter": False, "markup": False, "highlight": False, "emoji": False}
        console = Console(file=self._stream, width=width, force_terminal=self.to_terminal, **plain)
        with console.capture() as page:
            console.print(renderable)
        return "\n".join(line.rstrip() for line in page.get().splitlines()) + "\n"

    def _write(self, text: str, encoding: str | None = None, errors: str = "backslashreplace") -> None:
        stream = self._stream
        if stream is None or stream.closed:
            return
        try:
            buffer = getattr(stream, "buffer", None)
            if buffer is None:
                stream.write(text)
            else:
                stream.flush()
                buffer.write(text.encode(encoding or stream.encoding or "utf-8", errors))
            stream.flush()
        except BrokenPipeError:
            self._give_up()
        except OSError as error:
            self._give_up()
            raise StorageError(f"cannot write to standard output: {error.strerror}") from None

    def _give_up(self) -> None:
        """Write no more, and let the interpreter's own flush at its exit succeed."""
        send_nowhere(self._stream)
        self._stream = None


def plain_lines(value: Any, key: str = "", indent: int = 0) -> list[str]:
    """A JSON value as indented ``key: value`` lines, for documents without a table."""
    space = "  " * indent
    nested = isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value)
    if nested or (isinstance(value, dict) and value):
        head = [f"{space}{key}:"] if key else []
        below = indent + 1 if key else indent
        items = enumerate(value) if nested else value.items()
        return head + [line for name, item in items for line in plain_lines(item, str(name), below)]
    if isinstance(value, list):
        value = ", ".join(_scalar(item) for item in value) or "none"
    return [f"{space}{key}: {_scalar(value)}" if key else f"{space}{_scalar(value)}"]


def _scalar(value: Any) -> str:
    if value is None or value == {}:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return clean(str(value))
