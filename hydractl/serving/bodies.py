"""The body of a request: read within a size and a time, and taken apart as data."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from hydractl.errors import InputError
from hydractl.jsonio import parse_json
from hydractl.serving.limits import Disconnected, RequestRefused

_MOST_DISCARDED = 4
"""How many times the largest body is read of a larger one and thrown away, so that its client hears the answer."""

_NO_JSON = 'the body is no JSON object like {"texts": ["a text", ["a text", "its pair"]]}'
_NO_MULTIPART = "the body is not multipart/form-data, or it is cut off"

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
"""The messages of one request, as ASGI has them."""


class Body:
    """The body of one request, which is read once.

    Args:
        receive: gives the messages of the request.
        waits_for_leave: whether the client sends its body only when it is asked to (``Expect: 100-continue``).
    """

    def __init__(self, receive: Receive, *, waits_for_leave: bool) -> None:
        self._receive = receive
        self._waits_for_leave = waits_for_leave
        self._asked = False
        self.complete = False

    async def read(self, most: int, declared: int | None) -> bytes:
        """Return the whole body.

        Args:
            most: bytes that it may have.
            declared: how many it has by its head; None where it does not say.

        Raises:
            RequestRefused: it has more, or its head says so.
            Disconnected: the client went away.
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
        """Throw away what has not been read, up to a few times the largest body.

        A client that is still sending does not listen: an answer and a closed connection would be an error to it.

        Raises:
            Disconnected: the client went away.
        """
        if self._waits_for_leave and not self._asked:
            return
        size = 0
        while not self.complete and size <= _MOST_DISCARDED * most:
            chunk = await self._next_chunk()
            size += len(chunk)

    async def disconnected(self) -> None:
        """Return when the client has gone away; to be asked behind the end of the body."""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return

    async def _next_chunk(self) -> bytes:
        """Return the next part of the body, and note whether it is the last.

        Raises:
            Disconnected: the client went away.
        """
        self._asked = True
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        self.complete = not message.get("more_body", False)
        chunk: bytes = message.get("body", b"")
        return chunk


def form_parts(body: bytes, content_type: str, most: int) -> list[bytes]:
    """Return the contents of the parts of a ``multipart/form-data`` body, whatever their names are.

    Args:
        body: all of it.
        content_type: as the head of the request says it, with the boundary.
        most: parts that it may have.

    Raises:
        RequestRefused: it has more, or is no such body.
    """
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if not boundary:
        raise RequestRefused(400, _NO_MULTIPART)
    parts: list[bytearray] = []
    has_end = False

    # The parser calls these as it meets the beginning of a part, some of its bytes, and the last boundary.
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
        most_inputs: texts and pairs that it may have.
        most_bytes: of all texts together, in UTF-8.

    Raises:
        RequestRefused: it is no such body, or has more.
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
    """Return the list that a body holds under ``texts``, its only key.

    Raises:
        RequestRefused: it is no such body.
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
    """Return one entry of ``texts``.

    Raises:
        RequestRefused: it is neither a text nor a pair of texts.
    """
    if isinstance(entry, str):
        return entry
    if isinstance(entry, list) and len(entry) == 2:
        first, second = entry
        if isinstance(first, str) and isinstance(second, str):
            return first, second
    raise RequestRefused(400, f"input {position} is neither a text nor a pair of texts", position)


def size_of_text(text: str | tuple[str, str]) -> int:
    """Return the bytes of a text, or of a pair of texts, in UTF-8."""
    if isinstance(text, str):
        return len(text.encode("utf-8"))
    first, second = text
    return len(first.encode("utf-8")) + len(second.encode("utf-8"))
