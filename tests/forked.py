"""Commands in processes of their own, forked from one that has imported the libraries already.

Starting Python and importing torch takes longer than anything the tests' small models do.
"""

from __future__ import annotations

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

from hydractl.cli.app import main

ROOT = Path(__file__).resolve().parents[1]

_SERVER = """
import gc, json, os, signal, socket, sys
from hydractl.cli.app import main
import hydractl.evaluation.measuring, hydractl.families.timm
import hydractl.verbs.bench, hydractl.verbs.eval, hydractl.verbs.extract_circuit, hydractl.verbs.finetune
import hydractl.verbs.fuse, hydractl.verbs.prune
import open_clip, transformers.models.bert.modeling_bert

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
gc.freeze()
door = socket.socket(socket.AF_UNIX)
door.bind(sys.argv[1])
door.listen()
print("ready", flush=True)
while True:
    asked, _ = door.accept()
    if os.fork():
        asked.close()
        continue
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    words, streams, _, _ = socket.recv_fds(asked, 1 << 16, 3)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    folder, *words = json.loads(words)
    os.chdir(folder)
    code = main(words)
    sys.stdout.flush()
    sys.stderr.flush()
    asked.sendall(str(code).encode())
    os._exit(code)
"""

_CLIENT = """
import json, os, socket, sys
asked = socket.socket(socket.AF_UNIX)
asked.connect(sys.argv[1])
socket.send_fds(asked, [json.dumps([os.getcwd(), *sys.argv[2:]]).encode()], [0, 1, 2])
sys.exit(int(asked.makefile().read() or 1))
"""


class Forked:
    """A command that runs in a copy of this process; used as a ``subprocess.Popen`` in text mode."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._out, self._err = (tempfile.TemporaryFile("w+", errors="surrogateescape") for _ in range(2))  # noqa: SIM115
        self.returncode: int | None = None
        self.pid = os.fork()
        if not self.pid:
            code = 1
            try:
                os.environ.update(environment or {})
                os.dup2(self._out.fileno(), 1)
                os.dup2(self._err.fileno(), 2)
                sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
                code = main(arguments)
                sys.stdout.flush()
                sys.stderr.flush()
            finally:  # nothing of the test runner may run in the copy
                os._exit(code)

    def poll(self) -> int | None:
        """The exit code, None while it runs."""
        if self.returncode is None:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def communicate(self, timeout: float = 200) -> tuple[str, str]:
        """Wait for its end; what it wrote to both streams."""
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            assert time.monotonic() < deadline, "the process did not end"
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
    binary = Path(tempfile.mkdtemp(prefix="hydractl"))  # short, as the path of a socket has to be
    client, door = binary / "client.py", binary / "door"
    client.write_text(_CLIENT)
    script = binary / "hydractl"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E {client} {door} "$@"\n')
    script.chmod(0o755)
    path = os.pathsep.join([str(binary), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER, str(door)], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None and server.stdout.readline() == "ready\n"
        yield environment
    finally:
        server.kill()
        server.communicate()
        shutil.rmtree(binary)
