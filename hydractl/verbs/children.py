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

# The child gets this process's sys.path: "python -m" would look in the working directory first.
# It ignores SIGUSR2, which Slurm sends to every process of a job near the end of its time: the parent handles that
# signal, and sends SIGTERM.
_START = (
    "import signal, sys; signal.signal(signal.SIGUSR2, signal.SIG_IGN); sys.path[:] = sys.argv.pop(1).split('\\n'); "
    "from hydractl.cli.app import main; sys.exit(main())"
)
_POLL_S = 0.2
"""Seconds between two looks at whether a signal has come."""
_TAIL = 5
"""How many last lines of a command are shown when it is ended by a signal."""


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

    Args:
        name: of the command; its lines in the log begin with it.
        device: it runs on.
        argv: its command line, without ``hydractl``.
        environment: of the process.
        heard: receives the lines of its log, and None when it has closed its standard error.

    Attributes:
        device: it runs on.
        ended: its end, as far as it is known by now.
    """

    def __init__(
        self, name: str, device: str, argv: Sequence[str], environment: Mapping[str, str], heard: queue.Queue[_Heard]
    ) -> None:
        self.device = device
        self.ended = Ended(name)
        self._last_lines: list[str] = []
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed when it is read
        import_path = "\n".join(entry or os.getcwd() for entry in sys.path)
        # A session of its own: Ctrl-C reaches it only through this process, once.
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, import_path, *argv],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,
        )
        self._thread = threading.Thread(target=self._read_log, args=(heard,), daemon=True)
        self._thread.start()

    def _read_log(self, heard: queue.Queue[_Heard]) -> None:
        """Put each line of the log into a queue, and None at the end of the log."""
        assert self._process.stderr is not None  # it is a pipe
        with self._process.stderr as pipe:
            for line in pipe:
                text = line.decode("utf-8", "replace")
                heard.put((self, text.rstrip()))
        heard.put((self, None))

    def take_line(self, line: str, log: Log) -> None:
        """Take one line of its log: pass it on, marked with its name, or keep it as part of its error.

        The lines of an error come last, as the command line shows them: ``error: MESSAGE``, then ``  - PROBLEM`` for
        each of several problems, and ``hint: HINT``. They are said when the command has ended.
        """
        ended = self.ended
        has_error = ended.message is not None
        kind, _, rest = line.partition(": ")
        if kind == "error" and not has_error:
            ended.message = rest
        elif kind == "hint" and has_error:
            ended.hint = rest
        elif line.startswith("  - ") and has_error:
            problem = line.removeprefix("  - ")
            ended.problems.append(problem)
        elif kind == "warning":
            log.warn(f"{ended.name}: {rest}")
        elif line and not line.startswith("wrote "):  # the answer names the files
            self._last_lines.append(line)
            del self._last_lines[:-_TAIL]
            log.info(f"{ended.name}: {line}")

    def finish(self) -> Ended:
        """Wait until the process is gone, which has closed its standard error; return how it ended."""
        ended = self.ended
        code = self.wait()
        self._thread.join()
        with self._output as output:
            output.seek(0)
            ended.answer = output.read().decode("utf-8", "replace")
        if code >= 0:
            ended.code = code
            return ended
        signal_number = -code
        ended.code = 128 + signal_number
        if ended.message is None:
            ended.message = f"ended by {_signal_name(signal_number)}"
            ended.problems = self._last_lines
        return ended

    def wait(self) -> int:
        """Wait until the process is gone; return its exit code, negative after a signal."""
        return self._process.wait()

    def stop(self) -> None:
        """Ask it to save and to end."""
        is_running = self._process.poll() is None
        if is_running:
            self._process.send_signal(signal.SIGTERM)


_Heard = tuple[Child, "str | None"]
"""A command and a line of its log; None: it has closed its standard error."""


def _signal_name(number: int) -> str:
    """Return the name of a signal, such as ``SIGKILL``; its number where it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:  # most of the real-time signals
        return f"signal {number}"


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
        commands: by name, a function from the device that a command runs on to its command line.
        devices: a command runs on the first of them that is free; one may be there several times.
        threads: OMP_NUM_THREADS of each command; None leaves it as it is.
        log: receives their lines, marked with their names.
        signals: says whether SIGINT or SIGTERM has come; entered by the caller.

    Returns:
        The ends of the commands that were begun, by name in the order of ``commands``.
    """
    environment = bare_environment(os.environ)
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    waiting = list(commands)
    free_devices = list(devices)
    running: list[Child] = []
    ended: dict[str, Ended] = {}
    heard: queue.Queue[_Heard] = queue.Queue()
    stopping = False
    with log.progress("commands", len(commands), "commands") as progress:
        try:
            while running or (waiting and not signals.requested):
                # Begin as many as there are free devices.
                while waiting and free_devices and not signals.requested:
                    name = waiting.pop(0)
                    device = free_devices.pop(0)
                    log.info(f"{name}: begun on {device}")
                    argv = commands[name](device)
                    running.append(Child(name, device, argv, environment, heard))

                # After a signal, ask all that run to end, once.
                if signals.requested and not stopping:
                    stopping = True
                    names = ", ".join(child.ended.name for child in running)
                    log.info(f"waiting for {names} to save")
                    for child in running:
                        child.stop()

                # Pass on what is heard next, if anything is.
                try:
                    child, line = heard.get(timeout=_POLL_S)
                except queue.Empty:
                    continue  # to see whether a signal has come
                if line is not None:
                    child.take_line(line, log)
                    continue

                # A command has ended.
                end = child.finish()
                running.remove(child)
                free_devices.append(child.device)
                ended[end.name] = end
                progress.advance(1, end.name)
                report(end, log, stopping=stopping)
        finally:  # no process outlives an error of this loop
            for child in running:
                child.stop()
    return {name: ended[name] for name in commands if name in ended}


def report(ended: Ended, log: Log, *, stopping: bool) -> None:
    """Say how a command ended: done, stopped with what it has saved, or, as a warning, failed.

    Args:
        ended: how it ended.
        log: hears it.
        stopping: whether it was asked to end.
    """
    if ended.code == 0:
        log.info(f"{ended.name}: done")
        return
    was_interrupted = ended.code == 128 + signal.SIGINT
    # SIGTERM ends a command that does not handle it yet, shortly after its start.
    ended_on_request = stopping and ended.code == 128 + signal.SIGTERM
    if was_interrupted or ended_on_request:
        # The hint ends with what was saved: "add --resume ...; a.st.state has step 5 of 10".
        hint = ended.hint or ""
        saved = hint.rpartition("; ")[2] or "nothing was saved"
        log.info(f"{ended.name}: stopped, {saved}")
        return
    message = ended.message or "it said nothing"
    log.warn(f"{ended.name} failed with exit code {ended.code}: {message}")
