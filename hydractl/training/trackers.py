"""Trackers of experiments: TensorBoard, Weights & Biases and MLflow, each by its own library.

Not by ``accelerate.tracking``: its trackers need the state of an ``Accelerator``, which would set up processes too.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from hydractl.errors import UsageError, install_hint
from hydractl.files.atomic import storing
from hydractl.log import Log
from hydractl.training.run_log import RunFacts

_TAGS = {"loss": "train/loss", "lr": "train/lr", "samples_per_s": "train/samples_per_s"}


class Tracker(Protocol):
    """One run in a tracker, created with ``(where, name, first_step, about)``.

    These arguments are those of :class:`Tracked`; ``about`` is a flat object.
    """

    def add(self, step: int, numbers: Mapping[str, float]) -> None:
        """Add the numbers of one step, by tag."""

    def flush(self) -> None:
        """Put everything that was added on the disk."""

    def close(self) -> None:
        """Close the run: nothing more will be added."""


class TensorBoard:
    """A folder of events, ``where/name``, by ``torch.utils.tensorboard``; earlier events of later steps are hidden."""

    def __init__(self, where: str | None, name: str, first_step: int, about: Mapping[str, object]) -> None:
        """Begin the folder of a run, or continue it; what it has from ``first_step`` on is replaced."""
        from torch.utils.tensorboard import SummaryWriter

        folder = Path(where or "runs") / name
        self._writer = SummaryWriter(str(folder), purge_step=first_step)

    def add(self, step: int, numbers: Mapping[str, float]) -> None:
        for tag, value in numbers.items():
            self._writer.add_scalar(tag, value, step)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandB:
    """A run in a project of Weights & Biases; ``WANDB_MODE=offline`` keeps the run on this machine."""

    def __init__(self, where: str | None, name: str, first_step: int, about: Mapping[str, object]) -> None:
        """Begin a run of this name, with the settings of the training as its configuration."""
        import wandb

        # Standard output belongs to the result: keep the library from writing to it.
        settings = wandb.Settings(console="off", silent=True)
        self._run = wandb.init(project=where, name=name, config=dict(about), settings=settings, reinit="create_new")

    def add(self, step: int, numbers: Mapping[str, float]) -> None:
        logged = dict(numbers)
        self._run.log(logged, step=step)

    def flush(self) -> None:
        """Do nothing: the library writes in its own process."""

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """A run in the experiment ``hydractl`` of an MLflow store: a folder, a database or a server."""

    def __init__(self, where: str | None, name: str, first_step: int, about: Mapping[str, object]) -> None:
        """Begin a run of this name, with the settings of the training as its parameters."""
        import mlflow

        self._client = mlflow.MlflowClient(where)
        experiment = self._client.get_experiment_by_name("hydractl")
        if experiment is None:
            experiment_id = self._client.create_experiment("hydractl")
        else:
            experiment_id = experiment.experiment_id
        created = self._client.create_run(experiment_id, run_name=name)
        self._run = created.info.run_id
        for key, value in about.items():
            self._client.log_param(self._run, key, value)

    def add(self, step: int, numbers: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now_ms = int(time.time() * 1000)
        metrics = [Metric(tag, value, now_ms, step) for tag, value in numbers.items()]
        self._client.log_batch(self._run, metrics)

    def flush(self) -> None:
        """Do nothing: every batch has been sent already."""

    def close(self) -> None:
        self._client.set_terminated(self._run)


TRACKERS: dict[str, Callable[..., Tracker]] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}
"""The trackers by their names in ``--track``, which are also the names of their packages."""


def check_installed(names: Sequence[str]) -> None:
    """Raise an error before a training if the library of a tracker is not installed.

    Raises:
        UsageError: a library is not installed.
    """
    for name in names:
        if importlib.util.find_spec(name) is None:
            message = f"--track {name} needs the package {name}, which is not installed"
            raise UsageError(message, hint=install_hint(name))


class Tracked:
    """A training as a tracker shows it; one of the sinks of events, see :class:`hydractl.training.run_log.Sink`.

    Steps send ``train/loss``, ``train/lr`` and ``train/samples_per_s``; epochs ``train/epoch_loss`` and ``val/...``.

    With several learning rates, each has its own run. The first event that cannot be sent causes one warning; the
    training goes on.

    Args:
        kind: a key of :data:`TRACKERS`.
        where: a folder, a project or an address; None: the tracker's default.
        name: the name of the run.
        first_step: from this step on, events of an earlier run of this name are replaced.
        about: facts about the training.
        log: receives the warning.

    Raises:
        OutputError, StorageError: the folder of TensorBoard cannot be created or written to.
    """

    def __init__(self, kind: str, where: str | None, name: str, first_step: int, about: RunFacts, log: Log) -> None:
        """Check that the tracker can be written to; its run begins with the first event that has numbers."""
        self._kind = kind
        self._where = where
        self._name = name
        self._first_step = first_step
        self._about = about.flat()
        self._log = log
        self._part = ""
        self._tracker: Tracker | None = None
        self._failed = False

        # Events of TensorBoard are files, so their folder can be checked now. Other trackers are reached later.
        if kind == "tensorboard":
            folder = Path(where or "runs")
            with storing(folder):
                folder.mkdir(parents=True, exist_ok=True)
                if not os.access(folder, os.W_OK | os.X_OK):
                    raise PermissionError(13, "the folder is not writable")

    def event(self, event: str, **values: Any) -> None:
        """Send the tracker the numbers of a step or an epoch; begin another run for a candidate; ignore other events.

        Args:
            event: the name of the event, as in the log.
            values: the values of the event, as in the log.
        """
        if event == "candidate":
            self._begin_candidate(values["lr"])
        elif event == "step":
            numbers = {tag: values[name] for name, tag in _TAGS.items()}
            self._send_or_warn(values["step"], numbers)
        elif event == "epoch":
            # All numbers but the counters, e.g. val_accuracy as val/accuracy.
            numbers = {}
            for name, value in values.items():
                is_counter = name in ("epoch", "steps")
                if not is_counter and isinstance(value, (int, float)):
                    numbers[_epoch_tag(name)] = value
            self._send_or_warn(values["steps"], numbers)

    def _begin_candidate(self, lr: float) -> None:
        """End the run of the previous learning rate; the next event begins the run of this one."""
        self.close()
        is_first = not self._part
        if not is_first:
            self._first_step = 0  # only the first run after a resume continues an earlier one
        self._part = f"/lr-{lr:g}"

    def position(self) -> int:
        """Put everything sent on the disk, and return 0: a tracker cannot go on from a position."""
        if self._tracker is not None and not self._failed:
            self._try_or_warn(self._tracker.flush)
        return 0

    def close(self) -> None:
        """Close the run, if one was begun."""
        if self._tracker is not None:
            self._try_or_warn(self._tracker.close)
            self._tracker = None

    def _send_or_warn(self, step: int, numbers: Mapping[str, float]) -> None:
        """Send the numbers of a step, unless sending has failed before."""
        if not self._failed:
            self._try_or_warn(lambda: self._send(step, numbers))

    def _send(self, step: int, numbers: Mapping[str, float]) -> None:
        """Send the numbers of a step; the first call begins the run."""
        if self._tracker is None:
            self._tracker = self._new_run()
        self._tracker.add(step, numbers)

    def _new_run(self) -> Tracker:
        """Begin a new run in the tracker, and return it."""
        make = TRACKERS[self._kind]
        name = f"{self._name}{self._part}"
        return make(self._where, name, self._first_step, self._about)

    def _try_or_warn(self, action: Callable[[], None]) -> None:
        """Call an action of the tracker; if it fails for the first time, warn, and stop sending (``_failed``)."""
        try:
            action()
        except Exception as error:  # the library may raise anything, also from its own threads
            if not self._failed:
                self._log.warn(f"what {self._kind} is sent of {self._name} ends here: {error}")
            self._failed = True


def _epoch_tag(name: str) -> str:
    """Return the tag of an epoch's number in a tracker: ``val/accuracy`` for ``val_accuracy``."""
    part, _, rest = name.partition("_")
    if part == "val" and rest:
        return f"val/{rest}"
    return f"train/epoch_{name}"
