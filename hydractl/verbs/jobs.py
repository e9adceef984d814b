"""Running commands of hydractl side by side: on devices of this machine, or as jobs of a Slurm cluster by submitit."""

from __future__ import annotations

import importlib.util
import os
import queue
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from hydractl.errors import OutputError, UsageError, install_hint
from hydractl.files.atomic import storing
from hydractl.log import Log
from hydractl.model.loading import resolve_device
from hydractl.options.sources import bare_environment
from hydractl.training.checkpointing import Interruptions
from hydractl.verbs.children import Child, Ended, report, run_commands

_POLL_S = 1.0
"""Seconds between two looks at the jobs and at whether a signal has come."""
_OPTIONS_OF_ANY_CLUSTER = ("cpus_per_task", "gpus_per_node", "mem_gb", "nodes")
"""Options that submitit knows for any cluster; it passes others to sbatch."""


def check_devices_or_slurm(devices: Sequence[str], slurm: Sequence[str]) -> None:
    """Check, before any work, that :func:`run_side_by_side` will be able to start commands.

    Raises:
        UsageError: a device does not exist, or jobs are asked for and submitit is not installed.
    """
    if slurm:  # the nodes may have other devices than this machine, so devices are not checked
        if importlib.util.find_spec("submitit") is None:
            message = "--slurm needs the package submitit, which is not installed"
            raise UsageError(message, hint=install_hint("submitit"))
        return
    for device in dict.fromkeys(devices):
        resolve_device(device)


def threads_each(at_once: int) -> int | None:
    """Return OMP_NUM_THREADS for each of ``at_once`` processes that share the threads of this one.

    None means that the variable is left as it is: for a single process, or if the user has set the variable.
    """
    if at_once <= 1:
        return None
    if os.environ.get("OMP_NUM_THREADS"):
        return None
    share = torch.get_num_threads() // at_once
    return max(1, share)


def run_side_by_side(
    commands: Mapping[str, Callable[[str], Sequence[str]]],
    devices: Sequence[str],
    slurm: Sequence[str],
    folder: Path,
    log: Log,
    signals: Interruptions,
) -> dict[str, Ended]:
    """Run commands as jobs of a cluster if ``slurm`` has options for jobs, else on devices of this machine.

    Args:
        commands: by name, a function that returns the command line for a device.
        devices: each command runs on the first free one of them. Jobs all use the first.
        slurm: the options of the jobs, as ``KEY=VALUE``; empty to run on this machine.
        folder: the files of the jobs are written to its subfolder ``slurm``.
        log: receives the lines of the commands, marked with their names.
        signals: tells whether SIGINT or SIGTERM has come; the caller has entered this context manager.

    Returns:
        How each command that was started has ended, by name.
    """
    if not slurm:
        threads = threads_each(len(devices))
        return run_commands(commands, devices, threads, log, signals)
    device_of_jobs = devices[0]
    argv_by_name = {}
    for name, argv_for_device in commands.items():
        argv_by_name[name] = argv_for_device(device_of_jobs)
    options = dict(assignment.split("=") for assignment in slurm)
    job_folder = folder.absolute() / "slurm"
    return run_jobs(argv_by_name, options, job_folder, log, signals)


class Job:
    """One command, which submitit calls in a job; near the end of the job's time :meth:`checkpoint` queues it again."""

    def __init__(self, name: str, argv: Sequence[str]) -> None:
        self.name = name
        self.argv = list(argv)
        self._child: Child | None = None

    def __call__(self) -> Ended:
        """Run the command in a child process, copy its log to that of the job, and return how the command ended.

        Ctrl-C asks the command to save and to end; its log is read until then.
        """
        heard: queue.Queue[tuple[Child, str | None]] = queue.Queue()
        child = Child(self.name, "", self.argv, bare_environment(os.environ), heard)
        self._child = child
        while True:
            try:
                _, line = heard.get()
            except KeyboardInterrupt:
                child.stop()
                continue
            if line is None:  # the command has closed its log, so it is ending
                return child.finish()
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()
            child.take_line(line, Log())  # stores the parts of an error in child.ended; the new Log is silent

    def checkpoint(self) -> Any:
        """Let the command save and end, and return the job that continues it."""
        from submitit.helpers import DelayedSubmission

        if self._child is not None:
            self._child.stop()
            self._child.wait()
        verb, *arguments = self.argv
        # Other commands that can be continued have --resume from the start.
        if verb == "finetune" and "--resume" not in arguments:
            arguments.insert(0, "--resume")
        next_job = Job(self.name, [verb, *arguments])
        return DelayedSubmission(next_job)


def _own_folder(folder: Path) -> Path:
    """Create a new folder for submitit's files, which only this user may write to.

    submitit passes jobs and their results as pickles, and a pickle that somebody else put there could run any code.

    Args:
        folder: the folder to create it in; it is created if it does not exist.

    Raises:
        OutputError: ``folder`` is a link, or belongs to another user.
    """
    with storing(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
            raise OutputError(f"{folder} is a link, or belongs to another user", hint="choose another folder with -o")
        new_folder = tempfile.mkdtemp(prefix="run-", dir=folder)
        return Path(new_folder)


def run_jobs(
    commands: Mapping[str, Sequence[str]], options: Mapping[str, str], folder: Path, log: Log, signals: Interruptions
) -> dict[str, Ended]:
    """Submit commands as jobs and wait for them. After SIGINT or SIGTERM all are cancelled, and running ones can save.

    Args:
        commands: the command lines by name.
        options: options of the jobs, with the names of submitit or sbatch; ``time`` is in minutes. ``cluster`` is
            ``slurm``, or ``local`` for jobs on this machine.
        folder: the folder for submitit's files, such as logs of the jobs. All nodes must see it.
        log: receives which jobs are submitted and how they end.
        signals: tells whether SIGINT or SIGTERM has come; the caller has entered this context manager.

    Returns:
        How each command ended, by name in the order of ``commands``.

    Raises:
        UsageError: submitit does not know an option, or there is no Slurm.
    """
    jobs = _submit(commands, options, folder)
    for name, job in jobs.items():
        log.info(f"{name}: submitted as job {job.job_id}, which writes {job.paths.stderr}")
    ended: dict[str, Ended] = {}
    are_cancelled = False
    with log.progress("jobs", len(jobs), "jobs") as progress:
        while len(ended) < len(jobs):
            # After a signal, cancel all jobs, once.
            if signals.requested and not are_cancelled:
                are_cancelled = True
                for job in jobs.values():
                    job.cancel(check=False)

            # Take the results of the jobs that have ended since the last look.
            for name, job in jobs.items():
                if name in ended or not job.done():
                    continue
                ended[name] = _result(name, job, stopping=are_cancelled)
                progress.advance(1, name)
                report(ended[name], log, stopping=are_cancelled)
            time.sleep(_POLL_S)
    return {name: ended[name] for name in commands}


def _submit(commands: Mapping[str, Sequence[str]], options: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """Submit each command as a job; return submitit's jobs by the name of the command.

    Args:
        commands: the command lines by name.
        options: options of the jobs, with the names of submitit or sbatch; ``time`` in minutes. ``cluster`` is
            ``slurm`` by default.
        folder: a new folder for submitit's files is created in it.

    Raises:
        UsageError: submitit does not know an option, or there is no Slurm.
    """
    import submitit

    # Convert whole numbers, and rename the options: submitit's AutoExecutor takes ``timeout_min`` for ``time``, and
    # wants the prefix ``slurm_`` for options of sbatch.
    values: dict[str, int | str] = {}
    for key, text in options.items():
        values[key] = text
        if text.isdigit():
            values[key] = int(text)
    cluster = values.pop("cluster", "slurm")
    minutes = values.pop("time")
    parameters = {}
    for key, value in values.items():
        parameter = key
        if key not in _OPTIONS_OF_ANY_CLUSTER:
            parameter = f"slurm_{key}"
        parameters[parameter] = value

    run_folder = _own_folder(folder)
    try:
        executor = submitit.AutoExecutor(folder=run_folder, cluster=cluster)
        executor.update_parameters(timeout_min=minutes, name="hydractl", **parameters)
        jobs = {}
        with executor.batch():
            for name, argv in commands.items():
                jobs[name] = executor.submit(Job(name, argv))
    except (NameError, RuntimeError, TypeError, ValueError, submitit.core.utils.FailedJobError) as error:
        shutil.rmtree(run_folder, ignore_errors=True)
        first_line, _, _ = str(error).partition("\n")
        raise UsageError(f"--slurm: {first_line}") from error
    return jobs


def _result(name: str, job: Any, *, stopping: bool) -> Ended:
    """Return how the command of a job ended.

    A job without a result has failed, or was ended by SIGTERM if all jobs were cancelled (``stopping``).
    """
    # submitit raises several errors of its own for a job that was killed, and a broken result may raise any error.
    with suppress(Exception):
        return job.result()
    code = 1
    if stopping:
        code = 128 + signal.SIGTERM
    message = f"job {job.job_id} ended without a result: {job.state}"
    return Ended(name, code, message=message, hint=f"see {job.paths.stderr}")
