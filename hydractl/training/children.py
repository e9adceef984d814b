"""Commands of hydractl in processes of their own, several at a time: what they say, how they end, how they stop."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from hydractl.log import Log
from hydractl.settings.sources import bare_environment
from hydractl.training.checkpointing import Interruptions

# The child imports from where this process does: not from the working directory, which python -m would look in first.
_START = "import sys; sys.path[:] = sys.argv.pop(1).split('\\n'); from hydractl.cli.app import main; sys.exit(main())"
_POLL_S = 0.2
_TAIL = 5


@dataclass
class Command:
    """A command to run.

    Attributes:
        name: what its lines are marked with.
        argv: its command line, given the device it runs on.
    """

    name: str
    argv: Callable[[str], Sequence[str]]


@dataclass
class Ended:
    """End of a command.

    Attributes:
        code: its exit code, 128 + n after signal n.
        answer: what it wrote to standard output.
        message, hint, problems: of its error, as :class:`hydractl.errors.HydraError` has them; message is None where
            there was none.
    """

    code: int = 0
    answer: str = ""
    message: str | None = None
    hint: str | None = None
    problems: list[str] = field(default_factory=list)


class _Child:
    """One running command. Two threads read what it writes, so that it never waits for a full pipe."""

    def __init__(self, command: Command, device: str, environment: Mapping[str, str], heard: queue.Queue[_Heard]):
        self.name, self.device, self.ended = command.name, device, Ended()
        self._rest: list[str] = []
        path = "\n".join(entry or os.getcwd() for entry in sys.path)
        # A session of its own: Ctrl-C reaches it only through this process, once.
        self.process = subprocess.Popen(
            [sys.executable, "-c", _START, path, *command.argv(device)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,
        )
        assert self.process.stdout is not None and self.process.stderr is not None  # they are pipes
        self._threads = [
            threading.Thread(target=self._read_answer, args=(self.process.stdout,), daemon=True),
            threading.Thread(target=self._read_lines, args=(self.process.stderr, heard), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _read_answer(self, pipe: IO[bytes]) -> None:
        with pipe:
            self.ended.answer = pipe.read().decode("utf-8", "replace")

    def _read_lines(self, pipe: IO[bytes], heard: queue.Queue[_Heard]) -> None:
        with pipe:
            for line in pipe:
                heard.put((self, line.decode("utf-8", "replace").rstrip()))
        heard.put((self, None))

    def say(self, line: str, log: Log) -> None:
        """Pass on one line of its log, or keep what belongs to its error."""
        ended = self.ended
        kind, _, rest = line.partition(": ")
        if kind == "error" and ended.message is None:
            ended.message = rest
        elif kind == "hint" and ended.message is not None:
            ended.hint = rest
        elif line.startswith("  - ") and ended.message is not None:
            ended.problems.append(line.removeprefix("  - "))
        elif kind == "warning":
            log.warn(f"{self.name}: {rest}")
        elif line and not line.startswith("wrote "):  # the answer says so
            self._rest = [*self._rest, line][-_TAIL:]
            log.info(f"{self.name}: {line}")

    def finish(self) -> None:
        """It has closed its standard error: wait until it is gone."""
        code = self.process.wait()
        for thread in self._threads:
            thread.join()
        ended = self.ended
        ended.code = 128 - code if code < 0 else code
        if code < 0 and ended.message is None:
            ended.message, ended.problems = f"ended by {_signal_name(-code)}", self._rest

    def stop(self) -> None:
        """Ask it to save and to end."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)


_Heard = tuple[_Child, "str | None"]


def run_commands(
    commands: Sequence[Command], devices: Sequence[str], threads: int | None, log: Log, signals: Interruptions
) -> dict[str, Ended]:
    """Run commands, as many at a time as there are devices; one that fails does not stop the others.

    After SIGINT or SIGTERM those that run are asked once to end and are waited for, and no other one is begun.

    Args:
        commands: with names of their own.
        devices: a command runs on the first of them that is free; one may be there several times.
        threads: OMP_NUM_THREADS of each command; None: as it is.
        log: is told their lines, marked with their names.
        signals: entered by the caller.

    Returns:
        How those ended that were begun, by name, in the order of ``commands``.
    """
    environment = bare_environment(os.environ)
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    waiting, free = list(commands), list(devices)
    running: list[_Child] = []
    ended: dict[str, Ended] = {}
    heard: queue.Queue[_Heard] = queue.Queue()
    asked = False
    with log.progress("members", len(commands), "members") as progress:
        try:
            while running or (waiting and not signals.requested):
                while waiting and free and not signals.requested:
                    command, device = waiting.pop(0), free.pop(0)
                    log.info(f"{command.name}: begun on {device}")
                    running.append(_Child(command, device, environment, heard))
                if signals.requested and not asked:
                    asked = True
                    log.info(f"waiting for {', '.join(child.name for child in running)} to save")
                    for child in running:
                        child.stop()
                try:
                    child, line = heard.get(timeout=_POLL_S)
                except queue.Empty:
                    continue
                if line is not None:
                    child.say(line, log)
                    continue
                child.finish()
                running.remove(child)
                free.append(child.device)
                ended[child.name] = child.ended
                progress.advance(1, child.name)
                _report(child, log, asked=asked)
        finally:  # whatever went wrong here, nobody is left behind
            for child in running:
                child.stop()
    return {command.name: ended[command.name] for command in commands if command.name in ended}


def _report(child: _Child, log: Log, *, asked: bool) -> None:
    ended = child.ended
    if ended.code == 0:
        log.info(f"{child.name}: done")
    elif ended.code == 128 + signal.SIGINT or (asked and ended.code == 128 + signal.SIGTERM):  # before it could listen
        saved = (ended.hint or "").rpartition("; ")[2]  # "add --resume ...; a.st.state has step 5 of 10"
        log.info(f"{child.name}: stopped, {saved or 'nothing was saved'}")
    else:
        log.warn(f"{child.name} failed with exit code {ended.code}: {ended.message or 'it said nothing'}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
