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
_OF_ALL_CLUSTERS = ("cpus_per_task", "gpus_per_node", "mem_gb", "nodes")
"""Names that submitit knows for any cluster; others are those of sbatch."""


def check_places(devices: Sequence[str], slurm: Sequence[str]) -> None:
    """Refuse before anything else what :func:`run_side_by_side` could not begin.

    Raises:
        UsageError: for a device that is not there, or for jobs where submitit is not installed.
    """
    if not slurm:  # whose nodes may have other devices than this machine
        for device in dict.fromkeys(devices):
            resolve_device(device)
    elif importlib.util.find_spec("submitit") is None:
        message = "--slurm needs the package submitit, which is not installed"
        raise UsageError(message, hint=install_hint("submitit"))


def threads_each(at_once: int) -> int | None:
    """Return OMP_NUM_THREADS for each of some processes, which share the threads of this one; None: as it is."""
    divided = at_once > 1 and not os.environ.get("OMP_NUM_THREADS")
    return max(1, torch.get_num_threads() // at_once) if divided else None


def run_side_by_side(
    commands: Mapping[str, Callable[[str], Sequence[str]]],
    devices: Sequence[str],
    slurm: Sequence[str],
    folder: Path,
    log: Log,
    signals: Interruptions,
) -> dict[str, Ended]:
    """Run commands as :func:`run_jobs` does where there are options of jobs, else as :func:`run_commands` does.

    Args:
        commands, log, signals: as of :func:`run_commands`.
        devices: as of :func:`run_commands`; each job is given the first.
        slurm: options of the jobs, as ``KEY=VALUE``.
        folder: where jobs have theirs, ``slurm``.
    """
    if slurm:
        jobs = {name: argv(devices[0]) for name, argv in commands.items()}
        return run_jobs(jobs, dict(item.split("=") for item in slurm), folder.absolute() / "slurm", log, signals)
    return run_commands(commands, devices, threads_each(len(devices)), log, signals)


class Job:
    """One command, as submitit calls it in a job; near the end of its time :meth:`checkpoint` queues it again."""

    def __init__(self, name: str, argv: Sequence[str]) -> None:
        self.name, self.argv = name, list(argv)
        self._child: Child | None = None

    def __call__(self) -> Ended:
        heard: queue.Queue[tuple[Child, str | None]] = queue.Queue()
        child = self._child = Child(self.name, "", self.argv, bare_environment(os.environ), heard)
        line: str | None = ""
        while line is not None:
            try:
                line = heard.get()[1]
            except KeyboardInterrupt:
                child.stop()
                continue
            if line is not None:
                sys.stderr.write(f"{line}\n")  # the job's log
                sys.stderr.flush()
                child.say(line, Log())
        return child.finish()

    def checkpoint(self) -> Any:
        """Let the command save, and return what goes on with it."""
        from submitit.helpers import DelayedSubmission

        if self._child is not None:
            self._child.stop()
            self._child.wait()
        # Other verbs have it where they can go on.
        more = ["--resume"] if self.argv[0] == "finetune" and "--resume" not in self.argv else []
        return DelayedSubmission(Job(self.name, [self.argv[0], *more, *self.argv[1:]]))  # behind the verb


def _own_folder(folder: Path) -> Path:
    """Return a new folder for submitit's files, which only this user may write to.

    submitit passes jobs and what they give as pickles: one that somebody else put there would run.

    Raises:
        OutputError: the folder for all of them is a link, or belongs to somebody else.
    """
    with storing(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
            raise OutputError(f"{folder} is a link, or belongs to another user", hint="choose another folder with -o")
        return Path(tempfile.mkdtemp(prefix="run-", dir=folder))


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
        signals: entered by the caller.

    Raises:
        UsageError: for options that submitit does not know, or where there is no Slurm.
    """
    import submitit

    values: dict[str, Any] = {key: int(value) if value.isdigit() else value for key, value in options.items()}
    cluster, minutes = values.pop("cluster", "slurm"), values.pop("time")
    named = {key if key in _OF_ALL_CLUSTERS else f"slurm_{key}": value for key, value in values.items()}
    own = _own_folder(folder)
    try:
        executor = submitit.AutoExecutor(folder=own, cluster=cluster)
        executor.update_parameters(timeout_min=minutes, name="hydractl", **named)
        with executor.batch():
            jobs = {name: executor.submit(Job(name, argv)) for name, argv in commands.items()}
    except (NameError, RuntimeError, TypeError, ValueError, submitit.core.utils.FailedJobError) as error:
        shutil.rmtree(own, ignore_errors=True)
        raise UsageError(f"--slurm: {str(error).partition(chr(10))[0]}") from error
    for name, job in jobs.items():
        log.info(f"{name}: submitted as job {job.job_id}, which writes {job.paths.stderr}")
    ended: dict[str, Ended] = {}
    stopping = False
    with log.progress("jobs", len(jobs), "jobs") as progress:
        while len(ended) < len(jobs):
            if signals.requested and not stopping:
                stopping = True
                for job in jobs.values():
                    job.cancel(check=False)
            for name, job in jobs.items():
                if name not in ended and job.done():
                    ended[name] = _result(name, job, 128 + signal.SIGTERM if stopping else 1)
                    progress.advance(1, name)
                    report(ended[name], log, stopping=stopping)
            time.sleep(_POLL_S)
    return {name: ended[name] for name in commands}


def _result(name: str, job: Any, code: int) -> Ended:
    """Return what the job gave, or an end with this exit code where it gave nothing."""
    with suppress(Exception):  # submitit's own, of a job that was killed, and those of reading what it left
        return job.result()
    message = f"job {job.job_id} ended without a result: {job.state}"
    return Ended(name, code, message=message, hint=f"see {job.paths.stderr}")
