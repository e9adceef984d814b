"""The course of a training as TensorBoard shows it, written by ``torch.utils.tensorboard``."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydractl.errors import UsageError
from hydractl.files.atomic import storage_error
from hydractl.log import Log
from hydractl.training.run_log import Thinned
from hydractl.training.state import Saved

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_TAGS = {"loss": "train/loss", "lr": "train/lr", "samples_per_s": "train/samples_per_s"}


def check_tensorboard() -> None:
    """Refuse before any training what could not be written during it.

    Raises:
        UsageError: where TensorBoard is not installed.
    """
    if importlib.util.find_spec("tensorboard") is None:
        hint = "pip install 'hydractl[tensorboard]'"
        raise UsageError("--tensorboard needs the package tensorboard, which is not installed", hint=hint)


class Board(Thinned):
    """Of steps ``train/loss``, ``train/lr``, ``train/samples_per_s``; of epochs ``train/epoch_loss`` and ``val/...``.

    Of several learning rates each has a folder of its own. What cannot be written later on is warned of once; the
    training goes on.

    Args:
        folder: where the files of events go; it is made where it is missing.
        first_step: what earlier runs in this folder wrote from this step on is not shown any more.
        log: hears of what cannot be written.

    Raises:
        OutputError, StorageError: the folder cannot be made or written to.
    """

    def __init__(self, folder: Path, first_step: int, log: Log) -> None:
        super().__init__()
        self._folder, self._first_step, self._log = folder, first_step, log
        self._part = ""
        self._writer: SummaryWriter | None = None
        self._failed = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError(13, "the folder is not writable")
        except OSError as error:
            raise storage_error(error, folder) from error

    def event(self, event: str, **values: Any) -> None:
        if event == "candidate":
            self._leave()
            if self._part:  # only the first one of a resumed run goes on
                self._first_step = 0
            self._part = f"lr-{values['lr']:g}"
        elif event == "step":
            self._write(values["step"], {tag: values[name] for name, tag in _TAGS.items()})
        elif event == "epoch":
            numbers = {k: v for k, v in values.items() if k not in ("epoch", "steps") and isinstance(v, (int, float))}
            self._write(values["steps"], {_epoch_tag(name): value for name, value in numbers.items()})

    def position(self) -> int:
        if self._writer is not None and not self._failed:
            self._try(self._writer.flush)
        return 0

    def close(self) -> None:
        self._leave()

    def _write(self, step: int, numbers: Mapping[str, float]) -> None:
        if not self._failed:
            self._try(lambda: self._add(step, numbers))

    def _add(self, step: int, numbers: Mapping[str, float]) -> None:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._folder / self._part), purge_step=self._first_step)
        for tag, value in numbers.items():
            self._writer.add_scalar(tag, value, step)

    def _leave(self) -> None:
        if self._writer is not None:
            self._try(self._writer.close)
            self._writer = None

    def _try(self, action: Any) -> None:
        try:
            action()
        except Exception as error:  # whatever its thread for writing has met is raised here
            if not self._failed:
                self._log.warn(f"what is written for TensorBoard in {self._folder} ends here: {error}")
            self._failed = True


def first_step(saved: Saved | None, about: Mapping[str, Any]) -> int:
    """The first step that a run makes anew: 0, or the one after the step it was saved at.

    Saved between the last step of an epoch and its validation, the point of that validation comes again.

    Args:
        saved: the unfinished run.
        about: ``samples`` and ``steps`` of the training.
    """
    if saved is None or "steps" not in saved.progress:
        return 0
    steps, position = saved.progress["steps"], saved.progress["position"]
    at_end = position and (position >= about["samples"] or steps >= about["steps"])
    return int(steps) if at_end else int(steps) + 1


def _epoch_tag(name: str) -> str:
    part, _, rest = name.partition("_")
    return f"val/{rest}" if part == "val" and rest else f"train/epoch_{name}"
