"""Asks ``tests/forked_server.py`` for a command; as a script it is the command, and starts as fast as bare Python."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence

LIMIT = 300
"""Seconds after which a process that has not ended has failed."""


class Asked:
    """A command that the server has forked.

    Args:
        door: the server's socket.
        streams: three file descriptors, its standard streams.
        before: Python that runs before the command.
    """

    def __init__(
        self,
        door: str,
        streams: Sequence[int],
        words: Sequence[str],
        environment: Mapping[str, str],
        before: str = "",
    ) -> None:
        umask = os.umask(0)
        os.umask(umask)
        request = {
            "folder": os.getcwd(),
            "umask": umask,
            "environment": dict(environment),
            "words": list(words),
            "before": before,
        }
        text = json.dumps(request).encode()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(LIMIT)
        self._socket.connect(door)
        socket.send_fds(self._socket, [f"{len(text):8}".encode()], streams)
        self._socket.sendall(text)
        self.pid = self._answer()

    def _answer(self) -> int:
        text = b""
        while not text.endswith(b"\n"):
            part = self._socket.recv(1)  # no further: the next answer may be there already
            if not part:
                raise EOFError("the server of tests/forked_server.py has ended")
            text += part
        return int(text)

    def has_ended(self) -> bool:
        """Return whether :meth:`code` need not wait."""
        self._socket.setblocking(False)
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False
        finally:
            self._socket.settimeout(LIMIT)

    def code(self) -> int:
        """Wait for its end and return its exit code, negative for the signal that ended it."""
        code = self._answer()
        self._socket.close()
        return code


if __name__ == "__main__":
    ended_with = Asked(sys.argv[1], [0, 1, 2], sys.argv[2:], os.environ).code()
    if ended_with < 0:
        signal.signal(-ended_with, signal.SIG_DFL)
        os.kill(os.getpid(), -ended_with)
    sys.exit(ended_with)
