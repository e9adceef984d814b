"""The body of a request: read within limits of size and time, and parsed as data."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from hydractl.errors import InputError
from hydractl.jsonio import parse_json
from hydractl.serving.limits import Disconnected, RequestRefused

_MOST_DISCARDED = 4
"""Of a body that is too large, this many times the limit is read and dropped, so that its client reads the answer."""

_NO_JSON = 'the body is no JSON object like {"texts": ["a text", ["a text", "its pair"]]}'
_NO_MULTIPART = "the body is not multipart/form-data, or it is cut off"

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
"""Returns the next ASGI message of one request."""


class Body:
    """The body of one request, which can be read once.

    Args:
        receive: returns the next message of the request.
        waits_for_leave: whether the client sends its body only after it is asked for it (``Expect: 100-continue``).

    Attributes:
        complete: whether the whole body has been read.
    """

    def __init__(self, receive: Receive, *, waits_for_leave: bool) -> None:
        self._receive = receive
        self._waits_for_leave = waits_for_leave
        self._asked = False
        self.complete = False

    async def read(self, most: int, declared: int | None) -> bytes:
        """Return the whole body.

        Args:
            most: the largest allowed number of bytes.
            declared: the number of bytes that the head of the request declares; None if it declares none.

        Raises:
            RequestRefused: the body is larger, or is declared to be larger.
            Disconnected: the client has gone away.
        """
        too_large = RequestRefused(413, f"the body has more than {most:,} bytes")
        if declared is not None and declared > most:
            raise too_large
        chunks = []
        size = 0
        while not self.complete:
            chunk = await self._next_chunk()
            size += len(chunk)
            if size > most:
                raise too_large
            chunks.append(chunk)
        return b"".join(chunks)

    async def discard(self, most: int) -> None:
        """Read and drop the rest of the body, up to a few times the largest body.

        A client that is still sending does not read. To such a client an answer and a closed connection would be an
        error.

        Args:
            most: the largest allowed number of bytes of a body.

        Raises:
            Disconnected: the client has gone away.
        """
        if self._waits_for_leave and not self._asked:
            return
        size = 0
        while not self.complete and size <= _MOST_DISCARDED * most:
            chunk = await self._next_chunk()
            size += len(chunk)

    async def disconnected(self) -> None:
        """Return when the client has gone away; call it only after the whole body has been read."""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return

    async def _next_chunk(self) -> bytes:
        """Return the next part of the body; set ``complete`` if it is the last.

        Raises:
            Disconnected: the client has gone away.
        """
        self._asked = True
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        self.complete = not message.get("more_body", False)
        chunk: bytes = message.get("body", b"")
        return chunk


def form_parts(body: bytes, content_type: str, most: int) -> list[bytes]:
    """Return the contents of the parts of a ``multipart/form-data`` body; their names are ignored.

    Args:
        body: the whole body.
        content_type: the value of ``Content-Type``, with the boundary.
        most: the largest allowed number of parts.

    Raises:
        RequestRefused: there are more parts, or the body is not of this type, or it is cut off.
    """
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if not boundary:
        raise RequestRefused(400, _NO_MULTIPART)
    parts: list[bytearray] = []
    has_end = False

    # The parser calls these at the beginning of a part, for some bytes of it, and at the last boundary.
    def on_part_begin() -> None:
        if len(parts) == most:
            raise RequestRefused(413, f"a request has at most {most} inputs")
        parts.append(bytearray())

    def on_part_data(data: bytes, start: int, end: int) -> None:
        parts[-1].extend(data[start:end])

    def on_end() -> None:
        nonlocal has_end
        has_end = True

    try:
        parser = MultipartParser(
            boundary, {"on_part_begin": on_part_begin, "on_part_data": on_part_data, "on_end": on_end}
        )
        parser.write(body)
        parser.finalize()
    except (FormParserError, ValueError):
        raise RequestRefused(400, _NO_MULTIPART) from None
    if not has_end:
        raise RequestRefused(400, _NO_MULTIPART)
    return [bytes(part) for part in parts]


def texts_of(body: bytes, most_inputs: int, most_bytes: int) -> list[str | tuple[str, str]]:
    """Return the texts, and pairs of texts, of a JSON body.

    Args:
        body: ``{"texts": [...]}`` in UTF-8.
        most_inputs: the largest allowed number of texts and pairs.
        most_bytes: the largest allowed number of bytes of all texts together, in UTF-8.

    Raises:
        RequestRefused: the body does not have this form, or exceeds a limit.
    """
    entries = _entries_of(body)
    if len(entries) > most_inputs:
        raise RequestRefused(413, f"a request has at most {most_inputs} inputs")
    texts: list[str | tuple[str, str]] = []
    size = 0
    for position, entry in enumerate(entries):
        text = _text_of(entry, position)
        texts.append(text)
        size += size_of_text(text)
    if size > most_bytes:
        raise RequestRefused(413, f"a request has at most {most_bytes:,} bytes of text")
    return texts


def _entries_of(body: bytes) -> list[object]:
    """Return the list under ``texts``, which must be the only key of the body.

    Raises:
        RequestRefused: the body does not have this form.
    """
    try:
        document = parse_json(body, "the body")
    except InputError:
        raise RequestRefused(400, _NO_JSON) from None
    if not isinstance(document, dict) or document.keys() != {"texts"}:
        raise RequestRefused(400, _NO_JSON)
    entries = document["texts"]
    if not isinstance(entries, list):
        raise RequestRefused(400, _NO_JSON)
    return entries


def _text_of(entry: object, position: int) -> str | tuple[str, str]:
    """Return one entry of ``texts`` as a text or a pair of texts.

    Raises:
        RequestRefused: it is neither.
    """
    if isinstance(entry, str):
        return entry
    if isinstance(entry, list) and len(entry) == 2:
        first, second = entry
        if isinstance(first, str) and isinstance(second, str):
            return first, second
    raise RequestRefused(400, f"input {position} is neither a text nor a pair of texts", position)


def size_of_text(text: str | tuple[str, str]) -> int:
    """Return the number of bytes of a text, or of a pair of texts, in UTF-8."""
    if isinstance(text, str):
        return len(text.encode("utf-8"))
    first, second = text
    return len(first.encode("utf-8")) + len(second.encode("utf-8"))
