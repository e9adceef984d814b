"""The unfinished run on the disk: the state from which a training goes on, when it is saved, and what interrupts it.

The run lies beside the output, as one safetensors file that is replaced as a whole, so a kill leaves either the old or
the new state. Its header is JSON of the schema ``hydractl.training/1``; nothing in it is ever unpickled.
"""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hydractl.errors import InputError, OutputError
from hydractl.files.atomic import Output, storing
from hydractl.files.checkpoint import DictTensors, FileTensors, write_checkpoint
from hydractl.files.header import read_header
from hydractl.files.training_history import UnfinishedRecord
from hydractl.jsonio import differences
from hydractl.log import Log

SCHEMA = "hydractl.training/1"
START_OVER = "start over with --force and without --resume"
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600}
_CAUGHT = (signal.SIGINT, signal.SIGTERM)
# A scheduler may signal every process, and the parent of this process may pass the signal on: both are one request.
_ONE_WISH_S = 1.0


@dataclass
class Saved:
    """The state of a run, as it is saved.

    Attributes:
        progress: counters and results so far, as JSON.
        tensors: weights, optimizer state and states of random generators, by name.
    """

    progress: dict[str, Any]
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def part(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors whose names start with a prefix, by their names without it."""
        named = self.tensors.items()
        return {name.removeprefix(prefix): tensor for name, tensor in named if name.startswith(prefix)}

    def add(self, prefix: str, tensors: Mapping[str, Tensor]) -> None:
        """Add tensors whose names then start with a prefix, the reverse of :meth:`part`."""
        self.tensors |= {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


class StateFile:
    """The file of one unfinished run.

    Args:
        path: the file, beside the output.
        fingerprint: values that must be equal for a saved run to be resumed; a flat object of JSON values.
        environment: values that may differ, with a warning.
        every: how often the run is saved: ``200`` (steps), ``30s``, ``5m`` or ``1h``.
    """

    def __init__(
        self, path: Path, fingerprint: Mapping[str, object], environment: Mapping[str, object], every: str = "1"
    ) -> None:
        """Note the file of an unfinished run, and when to save into it; nothing is written yet.

        Args:
            path: the file.
            fingerprint: the settings that identify the training; a saved run with others is refused.
            environment: versions and hardware, which may change the rounding; a saved run with others gives a warning.
            every: when to save: a number of steps (``100``), or a time (``30s``, ``10m`` or ``2h``).
        """
        self.path = path
        self.fingerprint = dict(fingerprint)
        self.environment = dict(environment)
        self._seconds = 0
        self._steps: int | None = None  # None: save by time, every `_seconds`
        unit = every[-1]
        if unit in _UNIT_SECONDS:
            self._seconds = int(every[:-1]) * _UNIT_SECONDS[unit]
        else:
            self._steps = int(every)
        self._saved_at = time.monotonic()

    def due(self, steps: int) -> bool:
        """Return whether it is time to save after step ``steps``."""
        if self._steps is not None:
            return steps % self._steps == 0
        return time.monotonic() - self._saved_at >= self._seconds

    def exists(self) -> bool:
        """Return whether an unfinished run is saved."""
        return self.path.exists()

    def begin(self, log: Log, *, resume: bool, force: bool) -> Saved | None:
        """Return the saved run to resume, or None for a new run.

        ==============  ==========  ======================================================
        a run is saved  ``resume``  what comes back
        ==============  ==========  ======================================================
        yes             yes         it is returned
        no              yes         None, and the log says that the run starts afresh
        yes             no          with ``force``, it is removed, and None; else an error
        no              no          None
        ==============  ==========  ======================================================

        Call it while the output files are claimed, so that no other process works on this run.

        Raises:
            OutputError: a run is saved, and neither ``resume`` nor ``force`` is set.
            InputError: the saved run has other settings, or is damaged.
        """
        with Output(self.path, force=True):  # removes the temporary file of a process that was killed while saving
            pass
        if resume and self.exists():
            saved = self.load(log)
            log.info(f"going on with the run in {self.path}, at step {saved.progress.get('steps', 0)}")
            return saved
        if resume:
            log.info(f"no unfinished run is saved in {self.path}: starting afresh")
        refuse_unfinished(self.path, force=force)
        self.remove()
        return None

    def save(self, saved: Saved) -> None:
        """Replace the file in one step, and restart the clock.

        Raises:
            OutputError, StorageError: the file cannot be written; the old file stays.
        """
        header = {
            "schema": SCHEMA,
            "fingerprint": self.fingerprint,
            "environment": self.environment,
            "progress": saved.progress,
            "data_sha256": _digest_of_tensors(saved.tensors),
        }
        with Output(self.path, force=True) as output:
            write_checkpoint(output, DictTensors(saved.tensors), header)
        self._saved_at = time.monotonic()

    def load(self, log: Log) -> Saved:
        """Return the saved state: its JSON values and its tensors.

        Logs a warning if it was saved in another environment, e.g. another version of torch, which may round otherwise.

        Raises:
            InputError: the file is of another kind, damaged, or belongs to another run; all differences are listed.
        """
        file = FileTensors(self.path)
        header = self.header()
        tensors = {name: file.read(name) for name in file.names()}
        if header.get("data_sha256") != _digest_of_tensors(tensors):
            raise InputError(f"{self.path} is damaged: its tensors are not those that were saved", hint=START_OVER)

        # Other versions or another machine only make a warning: the run can go on, with other rounding.
        changed = differences(header["environment"], self.environment, "then")
        if changed:
            listed = "; ".join(changed)
            log.warn(f"the run was begun in another environment: {listed}")
        progress = dict(header["progress"])
        return Saved(progress, tensors)

    def header(self) -> dict[str, Any]:
        """Return the header of the saved run, after checking that it was begun with the settings of this one.

        Raises:
            InputError: the file is of another kind, damaged, or belongs to another run; all differences are listed.
        """
        header = read_header(self.path).description or {}
        if header.get("schema") != SCHEMA:
            raise InputError(f"{self.path} is no {SCHEMA} file", hint="move it away, or choose another output with -o")
        UnfinishedRecord.checked(header, f"{self.path} is damaged: its header is not as it was saved", START_OVER)
        problems = differences(header["fingerprint"], self.fingerprint, "in the unfinished run")
        if problems:
            hint = f"give the settings it was begun with, or {START_OVER}"
            raise InputError(f"{self.path} is of another run", hint=hint, problems=problems)
        return header

    def remove(self) -> None:
        """Delete the file, if it exists: the run is finished, or starts over."""
        with storing(self.path):
            self.path.unlink(missing_ok=True)


def refuse_unfinished(path: Path, *, force: bool) -> None:
    """Check that no unfinished run is in the way of a new one, unless ``force`` replaces it.

    Raises:
        OutputError: there is an unfinished run.
    """
    if path.exists() and not force:
        hint = "add --resume to go on with it, or --force to start over"
        raise OutputError(f"an unfinished run is saved in {path}", hint=hint)


# --- signals ----------------------------------------------------------------------------------------------------------


class Interruptions:
    """A context in which the first signal only sets ``requested``; one that comes a second later ends the process.

    It may be entered again inside itself. Outside the main thread signals cannot be caught, and it does nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self._since = 0.0
        self._before: dict[int, Any] = {}
        self._depth = 0

    def __enter__(self) -> Interruptions:
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread and self._depth == 0:
            for number in _CAUGHT:
                self._before[number] = signal.signal(number, self._handle_signal)
        self._depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth:
            return
        for number, handler in self._before.items():
            # Restore the old handler, which treats the next signal as its first.
            signal.signal(number, handler)

    def _handle_signal(self, number: int, _: object) -> None:
        """Note the first signal; handle a later one as the system does by default, which ends the process."""
        if not self.requested:
            self.requested = True
            self._since = time.monotonic()
        elif time.monotonic() - self._since >= _ONE_WISH_S:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


# --- state as tensors and text ----------------------------------------------------------------------------------------


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the state of an optimizer by names ``INDEX.KEY``, e.g. ``3.exp_avg``; INDEX is that of the parameter."""
    tensors = {}
    for index, memory in optimizer.state_dict()["state"].items():
        for key, value in memory.items():
            if isinstance(value, Tensor):
                tensors[f"{index}.{key}"] = value
    return tensors


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Restore the state of an optimizer with the same parameters.

    Args:
        optimizer: the new optimizer; its learning rate and other options stay.
        tensors: what :func:`optimizer_tensors` has returned: ``3.exp_avg`` is the entry ``exp_avg`` of parameter 3.
    """
    # Sort the tensors by parameters, as torch wants them: {3: {"exp_avg": tensor, ...}, ...}.
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        index, _, key = name.partition(".")
        state_of_parameter = state.setdefault(int(index), {})
        state_of_parameter[key] = tensor

    # Learning rate and other options are in the groups, which are taken from the new optimizer itself.
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def random_state(device: torch.device) -> Tensor:
    """Return the state of the generators that dropout uses: the CPU's, followed by the GPU's if there is one."""
    state_of_cpu = torch.get_rng_state()
    if device.type != "cuda":
        return state_of_cpu
    state_of_gpu = torch.cuda.get_rng_state(device)
    return torch.cat([state_of_cpu, state_of_gpu])


def set_random_state(state: Tensor, device: torch.device) -> None:
    """Set the generators to a state from :func:`random_state`."""
    size_on_cpu = torch.get_rng_state().numel()
    state_of_cpu = state[:size_on_cpu]
    torch.set_rng_state(state_of_cpu.clone())
    if device.type == "cuda":
        state_of_gpu = state[size_on_cpu:]
        torch.cuda.set_rng_state(state_of_gpu.clone(), device)


def _digest_of_tensors(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256, in hex, of some tensors with their names, dtypes and shapes, sorted by name."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        shape = list(tensor.shape)
        title = f"{name} {tensor.dtype} {shape}\n"
        digest.update(title.encode())
        if tensor.numel():  # an empty tensor has no view of its bytes
            as_bytes = tensor.reshape(-1).view(torch.uint8)
            digest.update(as_bytes.numpy().data)
    return digest.hexdigest()
