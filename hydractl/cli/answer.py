"""Standard output: the result of the command, and nothing else."""

from __future__ import annotations

import html
import io
import json
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from hydractl.cli.console import clean_document, debugging, is_terminal, say, send_nowhere
from hydractl.errors import NonFiniteError, StorageError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from hydractl.files.results import Result

_WIDTH_IN_A_FILE = 160
_HTML = '<pre style="white-space:pre;overflow-x:auto;line-height:normal"><code>{code}</code></pre>'
# Characters that JSON need not escape, but that a terminal would obey.
_UNSAFE_IN_JSON = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


class Answer:
    """Writes the answer of one command to standard output.

    If the reader has gone away (``| head``), writing ends silently; a full disk is an error.

    Args:
        stream: standard output as it was when the command started; None if it is closed.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    @property
    def to_terminal(self) -> bool:
        """Whether standard output is a terminal."""
        return is_terminal(self._stream)

    def text(self, text: str) -> None:
        """Print a text of hydractl itself, such as help, with one line end."""
        one_line_end = text.rstrip("\n") + "\n"
        self._write(one_line_end)

    def document(self, document: Any) -> None:
        """Print one JSON document as its file would hold it.

        Raises:
            NonFiniteError: the document holds NaN or infinity.
        """
        try:
            self._json(document, indent=2)
        except ValueError:
            raise NonFiniteError("the answer holds a number that is not finite, which JSON cannot say") from None

    def lines(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Print each row as one line of JSON as soon as it comes; stop if the reader has gone away."""
        for row in rows:
            self._json(row)
            if self._stream is None:
                return

    def _json(self, value: Any, indent: int | None = None) -> None:
        """Print a JSON value; ValueError if it holds NaN or infinity."""
        text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
        if self.to_terminal:
            text = _UNSAFE_IN_JSON.sub(lambda unsafe: f"\\u{ord(unsafe[0]):04x}", text)
        # A file name that is not UTF-8 holds lone surrogates: _write() spells them \udcNN, which is valid JSON.
        self._write(text + "\n", encoding="utf-8")

    def paths(self, paths: Sequence[Path]) -> None:
        """Print the paths that were written, one a line, for a script."""
        self._write("".join(f"{path}\n" for path in paths), encoding="utf-8", errors="surrogateescape")

    def table(self, result: Result) -> None:
        """Print a result for a person: its table, or its keys and values if it has no table."""
        # A table that cannot be drawn becomes a warning, and the keys and values are printed.
        try:
            width = _WIDTH_IN_A_FILE  # characters
            if self.to_terminal:
                width = shutil.get_terminal_size((_WIDTH_IN_A_FILE, 24)).columns
            text = drawn_table(result, width, self._stream, to_terminal=self.to_terminal)
        except Exception as error:  # the answer matters more than its table
            if debugging():
                raise
            say(f"warning: the table could not be drawn ({type(error).__name__}: {error})")
            text = None
        self._write(text or _plain_text(result))

    def _write(self, text: str, encoding: str | None = None, errors: str = "backslashreplace") -> None:
        """Write a text to standard output; do nothing if it is closed or its reader has gone away (``| head``).

        Args:
            text: the text, which ends with a line end.
            encoding: the encoding; None for the encoding of the stream.
            errors: what to do with characters that the encoding does not have.

        Raises:
            StorageError: the text cannot be written, for example because a disk is full.
        """
        stream = self._stream
        if stream is None or stream.closed:
            return
        try:
            # Bytes go to the buffer below the text stream, so that the encoding is ours; what the stream holds is
            # flushed first, to keep the order. A stream in memory, as in tests, has no buffer of bytes.
            buffer = getattr(stream, "buffer", None)
            if buffer is None:
                stream.write(text)
            else:
                stream.flush()
                buffer.write(text.encode(encoding or stream.encoding or "utf-8", errors))
            stream.flush()
        except BrokenPipeError:  # the reader has gone away, which is no error; nothing more is written
            self._give_up()
        except OSError as error:
            self._give_up()
            raise StorageError(f"cannot write to standard output: {error.strerror}") from None

    def _give_up(self) -> None:
        """Write no more, and send what is buffered to /dev/null, so that the interpreter's flush at exit succeeds."""
        send_nowhere(self._stream)
        self._stream = None


def drawn_table(result: Result, width: int, stream: TextIO | None, *, to_terminal: bool) -> str | None:
    """Return the table of a result as text, with colours for a terminal; None if it has no table."""
    renderable = _rendered(result, width)
    if renderable is None:
        return None
    console = _plain_console(stream, width, to_terminal=to_terminal)
    with console.capture() as page:
        console.print(renderable)
    lines = [line.rstrip() for line in page.get().splitlines()]
    return "\n".join(lines) + "\n"


def _plain_console(
    stream: TextIO | None, width: int, *, to_terminal: bool | None = None, record: bool = False
) -> Console:
    """Return a rich console that prints text unchanged, without markup, highlighting or emoji."""
    from rich.console import Console

    return Console(
        file=stream,
        width=width,
        force_terminal=to_terminal,
        record=record,
        force_jupyter=False,
        markup=False,
        highlight=False,
        emoji=False,
    )


def table_text(result: Result) -> str:
    """Return what the command line prints into a file for a result: its table, or its keys and values."""
    return drawn_table(result, _WIDTH_IN_A_FILE, io.StringIO(), to_terminal=False) or _plain_text(result)


def table_html(result: Result) -> str:
    """Return a result as HTML: its table with the colours of a terminal, or its keys and values."""
    renderable = _rendered(result, _WIDTH_IN_A_FILE)
    if renderable is None:
        escaped = html.escape(table_text(result))
        return f"<pre>{escaped}</pre>"
    console = _plain_console(io.StringIO(), _WIDTH_IN_A_FILE, record=True)
    console.print(renderable)
    return console.export_html(inline_styles=True, code_format=_HTML)


def _rendered(result: Result, width: int) -> RenderableType | None:
    # Imported only here, because rich and the tables take time to import, and most answers need no table.
    from hydractl.report.terminal import render

    return render(clean_document(result), width)


def _plain_text(result: Result) -> str:
    """Return the keys and values of a result as YAML."""
    import yaml

    document = clean_document(result.to_dict())
    return yaml.safe_dump(
        document, sort_keys=False, allow_unicode=True, default_flow_style=False, width=_WIDTH_IN_A_FILE
    )
