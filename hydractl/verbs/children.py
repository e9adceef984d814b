"""Commands of hydractl in child processes, several at a time: what they log, how they end, how they are stopped."""

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
from hydractl.options.sources import bare_environment
from hydractl.training.checkpointing import Interruptions

# Code that a child process runs. It sets the parent's sys.path, because "python -m" would look in the working directory
# first. It ignores SIGUSR2, which Slurm sends to every process of a job near the end of its time: the parent handles
# that signal, and sends SIGTERM to the child.
_START = (
    "import signal, sys; signal.signal(signal.SIGUSR2, signal.SIG_IGN); sys.path[:] = sys.argv.pop(1).split('\\n'); "
    "from hydractl.cli.app import main; sys.exit(main())"
)
_POLL_S = 0.2
"""Seconds between two looks at whether a signal has come."""
_TAIL = 5
"""How many of a command's last lines are shown if a signal ends it."""


@dataclass
class Ended:
    """How a command ended.

    Attributes:
        name: the name of the command.
        code: its exit code; 128 + n if signal n ended it.
        answer: what it wrote to standard output.
        message, hint, problems: the parts of its error, as in :class:`hydractl.errors.HydraError`; message is None
            if there was no error.
    """

    name: str
    code: int = 0
    answer: str = ""
    message: str | None = None
    hint: str | None = None
    problems: list[str] = field(default_factory=list)


class Child:
    """One command in a child process. A thread reads its log, so that the child never waits for a full pipe.

    Args:
        name: the name of the command; its lines in the log begin with it.
        device: the device it runs on.
        argv: its command line, without ``hydractl``.
        environment: the environment variables of the process.
        heard: receives each line of the child's log, and None when the child has closed its standard error.

    Attributes:
        device: the device it runs on.
        ended: how it ended, as far as that is known by now.
    """

    def __init__(
        self, name: str, device: str, argv: Sequence[str], environment: Mapping[str, str], heard: queue.Queue[_Heard]
    ) -> None:
        self.device = device
        self.ended = Ended(name)
        self._last_lines: list[str] = []
        # Standard output goes to a file, which finish() reads; standard error to a pipe, which a thread reads.
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed when it is read
        # An empty entry of sys.path stands for the working directory of this process.
        import_path = "\n".join(entry or os.getcwd() for entry in sys.path)
        # A new session: the terminal sends Ctrl-C to this process only, which passes it on once.
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
        assert self._process.stderr is not None  # Popen was asked for a pipe
        with self._process.stderr as pipe:
            for line in pipe:
                text = line.decode("utf-8", "replace")
                heard.put((self, text.rstrip()))
        heard.put((self, None))

    def take_line(self, line: str, log: Log) -> None:
        """Take one line of the command's log: pass it on, marked with the command's name, or store it in :attr:`ended`.

        The lines of an error come last, in the form the command line shows them: ``error: MESSAGE``, then
        ``  - PROBLEM`` for each of several problems, and ``hint: HINT``. These are stored in :attr:`ended` and not
        logged: :func:`report` logs them when the command has ended.
        """
        ended = self.ended
        has_error = ended.message is not None
        kind, _, rest = line.partition(": ")  # e.g. "error", "MESSAGE"
        # Parts of an error are stored. A hint or a problem is a part of an error only after the line "error: ...".
        if kind == "error" and not has_error:
            ended.message = rest
        elif kind == "hint" and has_error:
            ended.hint = rest
        elif line.startswith("  - ") and has_error:
            problem = line.removeprefix("  - ")
            ended.problems.append(problem)
        elif kind == "warning":
            log.warn(f"{ended.name}: {rest}")
        elif line and not line.startswith("wrote "):
            # Any other line is passed on, except "wrote FILE": the answer names the files. The last lines are kept,
            # because they become the problems of a command that a signal ends.
            self._last_lines.append(line)
            del self._last_lines[:-_TAIL]
            log.info(f"{ended.name}: {line}")

    def finish(self) -> Ended:
        """Wait until the process has ended, and return :attr:`ended`, now complete.

        The thread that reads the log has stored the error of the command there. This adds the exit code and the answer,
        and an error message if a signal ended the command without one.
        """
        ended = self.ended
        code = self.wait()
        self._thread.join()  # all lines of standard error are read now
        with self._output as output:
            output.seek(0)
            ended.answer = output.read().decode("utf-8", "replace")
        if code >= 0:
            ended.code = code
            return ended

        # Popen gives -n for signal n; a shell gives 128 + n.
        signal_number = -code
        ended.code = 128 + signal_number
        if ended.message is None:
            ended.message = f"ended by {_signal_name(signal_number)}"
            ended.problems = self._last_lines
        return ended

    def wait(self) -> int:
        """Wait until the process has ended; return its exit code, which is -n if signal n ended it."""
        return self._process.wait()

    def stop(self) -> None:
        """Send SIGTERM, which asks the command to save and to end."""
        is_running = self._process.poll() is None
        if is_running:
            self._process.send_signal(signal.SIGTERM)


_Heard = tuple[Child, "str | None"]
"""A command and a line of its log; None instead of a line means that it has closed its standard error."""


def _signal_name(number: int) -> str:
    """Return the name of a signal, such as ``SIGKILL``, or ``signal N`` if it has no name."""
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

    After SIGINT or SIGTERM no further command is started. The running commands are asked once to end, and are waited
    for.

    Args:
        commands: by name, a function that returns the command line for a device.
        devices: each command runs on the first free one of them. A device that is listed twice runs two at a time.
        threads: the value of OMP_NUM_THREADS for each command; None leaves the variable as it is.
        log: receives the lines of the commands, marked with their names.
        signals: tells whether SIGINT or SIGTERM has come; the caller has entered this context manager.

    Returns:
        How each command that was started has ended, by name, in the order of ``commands``.
    """
    environment = bare_environment(os.environ)
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    waiting = list(commands)
    free_devices = list(devices)
    running: list[Child] = []
    ended: dict[str, Ended] = {}
    heard: queue.Queue[_Heard] = queue.Queue()
    asked_to_stop = False
    with log.progress("commands", len(commands), "commands") as progress:
        try:
            while running or (waiting and not signals.requested):
                # Start a command on each free device.
                while waiting and free_devices and not signals.requested:
                    name = waiting.pop(0)
                    device = free_devices.pop(0)
                    log.info(f"{name}: begun on {device}")
                    argv = commands[name](device)
                    running.append(Child(name, device, argv, environment, heard))

                # After a signal, ask all running commands to end, once.
                if signals.requested and not asked_to_stop:
                    asked_to_stop = True
                    names = ", ".join(child.ended.name for child in running)
                    log.info(f"waiting for {names} to save")
                    for child in running:
                        child.stop()

                # Wait a moment for the next line of any command, and pass it on.
                try:
                    child, line = heard.get(timeout=_POLL_S)
                except queue.Empty:
                    continue  # look again whether a signal has come
                if line is not None:
                    child.take_line(line, log)
                    continue

                # The line is None: this command has ended, and its device is free again.
                command_end = child.finish()
                running.remove(child)
                free_devices.append(child.device)
                ended[command_end.name] = command_end
                progress.advance(1, command_end.name)
                report(command_end, log, stopping=asked_to_stop)
        finally:  # if this loop fails, no command is left running
            for child in running:
                child.stop()
    return {name: ended[name] for name in commands if name in ended}


def report(ended: Ended, log: Log, *, stopping: bool) -> None:
    """Log how a command ended: done, stopped (with what it has saved), or, as a warning, failed.

    Args:
        ended: how the command ended.
        log: receives the line.
        stopping: whether the command was asked to end.
    """
    if ended.code == 0:
        log.info(f"{ended.name}: done")
        return
    was_interrupted = ended.code == 128 + signal.SIGINT
    # A command that has only just started does not handle SIGTERM yet, and is killed by it.
    ended_on_request = stopping and ended.code == 128 + signal.SIGTERM
    if was_interrupted or ended_on_request:
        # The hint ends with what was saved: "add --resume ...; a.st.state has step 5 of 10".
        hint = ended.hint or ""
        saved = hint.rpartition("; ")[2] or "nothing was saved"
        log.info(f"{ended.name}: stopped, {saved}")
        return
    message = ended.message or "it said nothing"
    log.warn(f"{ended.name} failed with exit code {ended.code}: {message}")
