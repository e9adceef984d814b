"""Forks commands of hydractl for ``tests/forked.py``, at the end of a socket; ends with its standard input.

It has imported the libraries and run no operator, so that a copy of it may start threads of its own.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import logging
import os
import select
import signal
import socket
import sys
import traceback
from typing import Any

import torch

from hydractl.cli.app import main

# In this order: hydractl declares what open_clip needs of torchvision.
PRELOADED = (
    *("hydractl.evaluation.measuring", "hydractl.families.timm", "hydractl.verbs.bench", "hydractl.verbs.eval"),
    *("hydractl.verbs.extract_circuit", "hydractl.verbs.finetune", "hydractl.verbs.fuse", "hydractl.verbs.prune"),
    *("hydractl.verbs.info", "hydractl.verbs.score", "hydractl.families.hf", "hydractl.report.pictures"),
    *("open_clip", "transformers.models.bert.modeling_bert", "matplotlib.backends.backend_agg"),
    *("matplotlib.backends.backend_svg", "PIL.ImageFile", "pydantic.type_adapter", "rich.table"),
)


def run(request: dict[str, Any], streams: list[int]) -> int:
    """Run one command as if this process had started with it."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin = os.fdopen(0, "r", closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    os.chdir(request["folder"])
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["environment"])
    threads = os.environ.get("OMP_NUM_THREADS")
    if threads:
        torch.set_num_threads(int(threads))
    exec(request["before"], {})
    code = main(request["words"])
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def take(door: socket.socket) -> tuple[socket.socket, dict[str, Any], list[int]]:
    """Return who asks, for what, and its three standard streams."""
    asking, _ = door.accept()
    length, streams, _, _ = socket.recv_fds(asking, 8, 3)
    with asking.makefile("rb") as text:
        request = json.loads(text.read(int(length)))
    return asking, request, streams


def tell(asking: socket.socket, number: int) -> None:
    """Answer with one number."""
    with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
        asking.sendall(f"{number}\n".encode())


def serve(door: socket.socket) -> None:
    """Fork a copy for every request at the door, and answer with its id, and with its exit code when it has ended."""
    os.fsync = os.fstat  # type: ignore[assignment]  # as in conftest.py
    ended, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, socket.socket] = {}
    for name in PRELOADED:
        importlib.import_module(name)
    # A library's handler keeps the stream that it was made with, which no command could look after.
    logging.getLogger("transformers").handlers.clear()
    logging.getLogger("transformers").propagate = True
    gc.freeze()
    while True:
        ready, _, _ = select.select([door, ended, sys.stdin], [], [])
        if sys.stdin in ready:
            return
        if ended in ready:
            os.read(ended, 1 << 10)
            while running:
                child, status = os.waitpid(-1, os.WNOHANG)
                if not child:
                    break
                with running.pop(child) as asking:
                    tell(asking, os.waitstatus_to_exitcode(status))
        if door in ready:
            asking, request, streams = take(door)
            child = os.fork()
            if not child:
                code = 1
                try:
                    code = run(request, streams)
                except BaseException:
                    traceback.print_exc()
                finally:  # nothing of the server may run in the copy
                    os._exit(code)
            for stream in streams:
                os.close(stream)
            running[child] = asking
            tell(asking, child)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
