"""Commands of hydractl in processes of their own, several at a time: what they say, how they end, how they stop."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hydractl.log import Log
from hydractl.settings.sources import bare_environment
from hydractl.training.checkpointing import Interruptions

# The child imports from where this process does: not from the working directory, which python -m would look in first.
# Slurm signals the end of the time to every process of a job; what hears of it for this one sends SIGTERM.
_START = (
    "import signal, sys; signal.signal(signal.SIGUSR2, signal.SIG_IGN); sys.path[:] = sys.argv.pop(1).split('\\n'); "
    "from hydractl.cli.app import main; sys.exit(main())"
)
_POLL_S = 0.2
_TAIL = 5


@dataclass
class Ended:
    """How a command ended.

    Attributes:
        name: of the command.
        code: its exit code, 128 + n after signal n.
        answer: what it wrote to standard output.
        message, hint, problems: of its error, as :class:`hydractl.errors.HydraError` has them; message is None where
            there was none.
    """

    name: str
    code: int = 0
    answer: str = ""
    message: str | None = None
    hint: str | None = None
    problems: list[str] = field(default_factory=list)


class Child:
    """One command in a process of its own. A thread reads its log, so that it never waits for a full pipe.

    Attributes:
        device: it runs on.
        ended: what has been heard of it; its name is what its lines are marked with.
    """

    def __init__(
        self, name: str, device: str, argv: Sequence[str], environment: Mapping[str, str], heard: queue.Queue[_Heard]
    ) -> None:
        self.device, self.ended = device, Ended(name)
        self._last: list[str] = []
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed when it is read
        path = "\n".join(entry or os.getcwd() for entry in sys.path)
        # A session of its own: Ctrl-C reaches it only through this process, once.
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, path, *argv],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,
        )
        self._thread = threading.Thread(target=self._read_log, args=(heard,), daemon=True)
        self._thread.start()

    def _read_log(self, heard: queue.Queue[_Heard]) -> None:
        assert self._process.stderr is not None  # it is a pipe
        with self._process.stderr as pipe:
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
            log.warn(f"{ended.name}: {rest}")
        elif line and not line.startswith("wrote "):  # the answer says so
            self._last = [*self._last, line][-_TAIL:]
            log.info(f"{ended.name}: {line}")

    def finish(self) -> Ended:
        """It has closed its standard error: wait until it is gone."""
        code, ended = self.wait(), self.ended
        self._thread.join()
        with self._output as output:
            output.seek(0)
            ended.answer = output.read().decode("utf-8", "replace")
        ended.code = 128 - code if code < 0 else code
        if code < 0 and ended.message is None:
            names = {number.value: number.name for number in signal.Signals}
            ended.message, ended.problems = f"ended by {names.get(-code, f'signal {-code}')}", self._last
        return ended

    def wait(self) -> int:
        """Wait until it is gone. Returns what :mod:`subprocess` says of its end."""
        return self._process.wait()

    def stop(self) -> None:
        """Ask it to save and to end."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)


_Heard = tuple[Child, "str | None"]


def run_commands(
    commands: Mapping[str, Callable[[str], Sequence[str]]],
    devices: Sequence[str],
    threads: int | None,
    log: Log,
    signals: Interruptions,
) -> dict[str, Ended]:
    """Run commands, as many at a time as there are devices; one that fails does not stop the others.

    After SIGINT or SIGTERM those that run are asked once to end and are waited for, and no other one is begun.

    Args:
        commands: by name their command lines, given the device they run on.
        devices: a command runs on the first of them that is free; one may be there several times.
        threads: OMP_NUM_THREADS of each command; None: as it is.
        log: receives their lines, marked with their names.
        signals: entered by the caller.

    Returns:
        Those that were begun, ended by now, by name in the order of ``commands``.
    """
    environment = bare_environment(os.environ)
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    waiting, free = list(commands), list(devices)
    running: list[Child] = []
    ended: dict[str, Ended] = {}
    heard: queue.Queue[_Heard] = queue.Queue()
    stopping = False
    with log.progress("commands", len(commands), "commands") as progress:
        try:
            while running or (waiting and not signals.requested):
                while waiting and free and not signals.requested:
                    name, device = waiting.pop(0), free.pop(0)
                    log.info(f"{name}: begun on {device}")
                    running.append(Child(name, device, commands[name](device), environment, heard))
                if signals.requested and not stopping:
                    stopping = True
                    log.info(f"waiting for {', '.join(child.ended.name for child in running)} to save")
                    for child in running:
                        child.stop()
                try:
                    child, line = heard.get(timeout=_POLL_S)
                except queue.Empty:
                    continue
                if line is not None:
                    child.say(line, log)
                    continue
                end = child.finish()
                running.remove(child)
                free.append(child.device)
                ended[end.name] = end
                progress.advance(1, end.name)
                report(end, log, stopping=stopping)
        finally:  # whatever went wrong here, nobody is left behind
            for child in running:
                child.stop()
    return {name: ended[name] for name in commands if name in ended}


def report(ended: Ended, log: Log, *, stopping: bool) -> None:
    """Say how a command ended; ``stopping``: it was asked to."""
    if ended.code == 0:
        log.info(f"{ended.name}: done")
    elif ended.code == 128 + signal.SIGINT or (stopping and ended.code == 128 + signal.SIGTERM):  # before it listens
        saved = (ended.hint or "").rpartition("; ")[2]  # "add --resume ...; a.st.state has step 5 of 10"
        log.info(f"{ended.name}: stopped, {saved or 'nothing was saved'}")
    else:
        log.warn(f"{ended.name} failed with exit code {ended.code}: {ended.message or 'it said nothing'}")
