"""Commands of hydractl side by side: on devices of this machine, or as jobs of a Slurm cluster by submitit."""

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
from hydractl.settings.sources import bare_environment
from hydractl.training.checkpointing import Interruptions
from hydractl.verbs.children import Child, Ended, report, run_commands

_POLL_S = 1.0
"""Seconds between two looks at the jobs and at whether a signal has come."""
_OPTIONS_OF_ANY_CLUSTER = ("cpus_per_task", "gpus_per_node", "mem_gb", "nodes")
"""Options that submitit takes for any cluster; others are those of sbatch."""


def check_places(devices: Sequence[str], slurm: Sequence[str]) -> None:
    """Refuse, before any work, what :func:`run_side_by_side` could not begin.

    Raises:
        UsageError: for a device that is not there, or for jobs where submitit is not installed.
    """
    if slurm:  # the nodes may have other devices than this machine, so devices are not checked
        if importlib.util.find_spec("submitit") is None:
            message = "--slurm needs the package submitit, which is not installed"
            raise UsageError(message, hint=install_hint("submitit"))
        return
    for device in dict.fromkeys(devices):
        resolve_device(device)


def threads_each(at_once: int) -> int | None:
    """Return OMP_NUM_THREADS for each of several processes that share the threads of this one.

    None, which leaves it as it is, for a single process or where the user has set the variable.
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
    """Run commands as jobs of a cluster where ``slurm`` has options for them, else on devices of this machine.

    Args:
        commands: by name, a function from the device that a command runs on to its command line.
        devices: a command runs on the first of them that is free; each job is given the first.
        slurm: options of the jobs, as ``KEY=VALUE``; empty for none.
        folder: the files of the jobs are written to its subfolder ``slurm``.
        log: receives the lines of the commands, marked with their names.
        signals: says whether SIGINT or SIGTERM has come; entered by the caller.

    Returns:
        How each command that was begun has ended, by name.
    """
    if not slurm:
        threads = threads_each(len(devices))
        return run_commands(commands, devices, threads, log, signals)
    device_of_jobs = devices[0]
    jobs = {}
    for name, argv_on in commands.items():
        jobs[name] = argv_on(device_of_jobs)
    options = dict(item.split("=") for item in slurm)
    job_folder = folder.absolute() / "slurm"
    return run_jobs(jobs, options, job_folder, log, signals)


class Job:
    """One command, as submitit calls it in a job; near the end of its time :meth:`checkpoint` queues it again."""

    def __init__(self, name: str, argv: Sequence[str]) -> None:
        self.name = name
        self.argv = list(argv)
        self._child: Child | None = None

    def __call__(self) -> Ended:
        """Run the command in a process of its own, with its log as that of the job, and return how it ended.

        Ctrl-C asks the command to save and to end, and its log is read until it has.
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
            if line is None:  # it has closed its log
                return child.finish()
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()
            child.take_line(line, Log())

    def checkpoint(self) -> Any:
        """Let the command save, and return the job that goes on with it."""
        from submitit.helpers import DelayedSubmission

        if self._child is not None:
            self._child.stop()
            self._child.wait()
        verb, *arguments = self.argv
        # Other verbs that can go on are given --resume from the beginning.
        if verb == "finetune" and "--resume" not in arguments:
            arguments.insert(0, "--resume")
        next_job = Job(self.name, [verb, *arguments])
        return DelayedSubmission(next_job)


def _own_folder(folder: Path) -> Path:
    """Return a new folder for submitit's files, which only this user may write to.

    submitit passes jobs and their results as pickles, and a pickle that somebody else put there could run any code.

    Args:
        folder: the folder above it, which is made where it is missing.

    Raises:
        OutputError: the folder above is a link, or belongs to somebody else.
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
    """Submit commands and wait for them. After SIGINT or SIGTERM all are cancelled, which lets those that run save.

    Args:
        commands: by name their command lines.
        options: of the jobs, by names of submitit or sbatch; ``time`` in minutes. ``cluster`` is ``slurm`` or, for jobs
            on this machine, ``local``.
        folder: of submitit's files, logs of the jobs among them, which all nodes must see.
        log: hears what happens.
        signals: says whether SIGINT or SIGTERM has come; entered by the caller.

    Returns:
        How each command ended, by name in the order of ``commands``.

    Raises:
        UsageError: for options that submitit does not know, or where there is no Slurm.
    """
    jobs = _submit(commands, options, folder)
    for name, job in jobs.items():
        log.info(f"{name}: submitted as job {job.job_id}, which writes {job.paths.stderr}")
    ended: dict[str, Ended] = {}
    stopping = False
    with log.progress("jobs", len(jobs), "jobs") as progress:
        while len(ended) < len(jobs):
            # After a signal, cancel all jobs, once.
            if signals.requested and not stopping:
                stopping = True
                for job in jobs.values():
                    job.cancel(check=False)

            # Take the results of those that have ended since the last look.
            for name, job in jobs.items():
                if name in ended or not job.done():
                    continue
                ended[name] = _result(name, job, stopping=stopping)
                progress.advance(1, name)
                report(ended[name], log, stopping=stopping)
            time.sleep(_POLL_S)
    return {name: ended[name] for name in commands}


def _submit(commands: Mapping[str, Sequence[str]], options: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """Submit commands, each as a job; return submitit's jobs by the name of the command.

    Args:
        commands: by name their command lines.
        options: of the jobs, by names of submitit or sbatch; ``time`` in minutes, and ``cluster``, else ``slurm``.
        folder: a new folder of submitit's files is made in it.

    Raises:
        UsageError: for options that submitit does not know, or where there is no Slurm.
    """
    import submitit

    # The options by the names that submitit's executor for any cluster has for them.
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

    A job that left no result has failed, or, where all jobs were cancelled (``stopping``), was ended by SIGTERM.
    """
    # submitit has errors of its own for a job that was killed, and reading a broken result may raise anything.
    with suppress(Exception):
        return job.result()
    code = 1
    if stopping:
        code = 128 + signal.SIGTERM
    message = f"job {job.job_id} ended without a result: {job.state}"
    return Ended(name, code, message=message, hint=f"see {job.paths.stderr}")
