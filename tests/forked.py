"""Commands in processes of their own, forked from a server that has imported the libraries and computed nothing.

Starting Python and importing torch takes longer than anything the tests' small models do. A copy of the test's own
process would not do: once an operator has run on several threads, a copy waits for ever for those it lacks.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.forked_client import LIMIT, Asked

ROOT = Path(__file__).resolve().parents[1]
SERVER_OF_ALL = "TESTS_FORKED"
"""The variable with the socket of the server that ``conftest.py`` has started."""


def start_server() -> str:
    """Start a server that ends with this process, and return the path of its socket.

    Who connects before it has imported the libraries waits.
    """
    folder = tempfile.mkdtemp(prefix="hydractl")  # short, as the path of a socket has to be
    path = f"{folder}/door"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(path)
        door.listen(64)
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.forked_server", str(door.fileno())],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            pass_fds=[door.fileno()],
        )

    @atexit.register
    def stop() -> None:
        process.kill()
        process.communicate()
        shutil.rmtree(folder)

    return path


@functools.cache
def server() -> str:
    """Return the socket of the server of all processes among which the tests are divided, or of this one."""
    return os.environ.get(SERVER_OF_ALL) or start_server()


class Forked:
    """A command that runs in a copy of the server; used as a ``subprocess.Popen`` in text mode.

    Args:
        environment: what it has besides the variables of this process.
        before: Python that runs before the command.
    """

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str] | None = None, *, before: str = ""
    ) -> None:
        self._out, self._err = (tempfile.TemporaryFile("w+", errors="surrogateescape") for _ in range(2))  # noqa: SIM115
        whole_environment = {**os.environ, **(environment or {})}
        with open(os.devnull) as nothing:
            streams = [nothing.fileno(), self._out.fileno(), self._err.fileno()]
            self._asked = Asked(server(), streams, arguments, whole_environment, before)
        self.pid = self._asked.pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, None while it runs."""
        if self.returncode is None and self._asked.has_ended():
            self.returncode = self._asked.code()
        return self.returncode

    def wait(self) -> int:
        """Wait for its end; the exit code."""
        if self.returncode is None:
            self.returncode = self._asked.code()
        return self.returncode

    def communicate(self, timeout: float = LIMIT) -> tuple[str, str]:
        """Wait for its end; what it wrote to both streams."""
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"the process did not end within {timeout} s")
            time.sleep(0.005)
        said = []
        for stream in (self._out, self._err):
            stream.seek(0)
            said.append(stream.read())
        return said[0], said[1]

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)


def team(size: int, arguments: Sequence[str]) -> list[Forked]:
    """A command in several processes, with the variables that torchrun sets."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [Forked(arguments, {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(size)]


@contextmanager
def hydractl_on_the_path() -> Iterator[dict[str, str]]:
    """An environment for a shell in which ``hydractl`` is such a command."""
    client = Path(__file__).with_name("forked_client.py")
    with tempfile.TemporaryDirectory(prefix="hydractl") as folder:
        script = Path(folder, "hydractl")
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "{client}" {server()} "$@"\n')
        script.chmod(0o755)
        path = os.pathsep.join([folder, os.environ["PATH"]])
        yield {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
