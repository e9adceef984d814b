"""The HTTP server: a socket, a server with time limits, and an end that drops no answer."""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from hydractl.errors import OutputError, UsageError
from hydractl.serving.application import application
from hydractl.serving.service import ModelService

MOST_CONNECTIONS = 512
"""The largest number of connections at the same time; a further connection is closed at once."""

_SECONDS_TO_END = 1
"""When it ends, the server waits for the last requests as long as a request may take, and this many seconds longer."""


class HttpServer:
    """Serves one model at one address.

    Creating it opens the socket; :meth:`run` answers.

    Attributes:
        url: the URL of the service.

    Args:
        service: the model.
        host: the address to listen at.
        port: the port; 0 for any free port.

    Raises:
        OutputError: another process uses the port.
        UsageError: this machine does not have the address, or does not allow the port.
    """

    def __init__(self, service: ModelService, host: str, port: int) -> None:
        self._service = service
        self._socket = _listening_socket(host, port)

        # The real port, and an address of IPv6 in brackets.
        port_here = self._socket.getsockname()[1]
        host_in_url = host
        if ":" in host:
            host_in_url = f"[{host}]"
        self.url = f"http://{host_in_url}:{port_here}"

        seconds = service.limits.max_seconds
        config = uvicorn.Config(
            application(service),
            http=_limited_protocol(seconds),
            ws="none",
            lifespan="on",
            loop="asyncio",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=math.ceil(seconds) + _SECONDS_TO_END,
        )
        # These two loggers would quote requests. What is wrong with a request is in its answer.
        for name in ("uvicorn.error", "python_multipart"):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        self._server = uvicorn.Server(config)

    def run(self) -> None:
        """Serve until SIGINT, SIGTERM or :meth:`stop`; requests that have begun still get their answers.

        Raises:
            KeyboardInterrupt: after the last answer, for SIGINT, and for SIGTERM if its handler raises it.
        """
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()

    def stop(self) -> None:
        """Let :meth:`run` end; may be called in any thread."""
        self._server.should_exit = True


def _listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address.

    Raises:
        OutputError: another process uses the port.
        UsageError: this machine does not have the address, or does not allow the port.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = addresses[0]
        return socket.create_server(address, family=family, backlog=128)
    except (socket.gaierror, UnicodeError):
        raise UsageError(f"--host {host}: there is no such address") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            hint = "choose another one with --port; 0 is a free one"
            raise OutputError(f"port {port} of {host} is in use", hint=hint) from None
        raise UsageError(f"--host {host} --port {port}: {error.strerror}") from None


def _limited_protocol(seconds: float) -> type[H11Protocol]:
    """Return uvicorn's HTTP protocol with time limits that it does not have itself.

    Args:
        seconds: the limit for three things: from the opening of a connection to the first whole head of a request; from
            an answer to the next whole head; and for the client to take an answer.
    """

    class LimitedProtocol(H11Protocol):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            # Timers that abort the connection when they run out.
            self._limit: asyncio.TimerHandle | None = None  # until the client has sent the next head
            self._unread: asyncio.TimerHandle | None = None  # until the client has taken its answer

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > MOST_CONNECTIONS:
                transport.abort()
                return
            self._limit_idleness()

        def connection_lost(self, exc: Exception | None) -> None:
            self._lift_limit()
            super().connection_lost(exc)  # calls resume_writing(), which stops the other timer

        def pause_writing(self) -> None:
            """Start the timer for an answer that the client does not take; sending pauses meanwhile."""
            super().pause_writing()
            self._unread = self.loop.call_later(seconds, self.transport.abort)

        def resume_writing(self) -> None:
            """Stop the timer, since the client has taken enough of the answer."""
            super().resume_writing()
            if self._unread is not None:
                self._unread.cancel()
                self._unread = None

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._limit_idleness()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._limit_idleness()

        def _limit_idleness(self) -> None:
            """Start the timer for the next head, unless a request is being answered, which has a limit of its own."""
            is_answering = self.cycle is not None and not self.cycle.response_complete
            if is_answering:
                self._lift_limit()
            elif self._limit is None:
                # abort(), because close() would wait for a client that does not read.
                self._limit = self.loop.call_later(seconds, self.transport.abort)

        def _lift_limit(self) -> None:
            if self._limit is not None:
                self._limit.cancel()
                self._limit = None

    return LimitedProtocol
