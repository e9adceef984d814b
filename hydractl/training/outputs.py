"""Files of one training: how they are called, how its outputs are written, and whether they were written before.

The outputs are ordinary checkpoints or published folders that say how they came to be; beside them lie the unfinished
run and the log.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor

from hydractl.errors import HydraError, InputError, UsageError
from hydractl.files.atomic import Output, file_path, named_apart
from hydractl.files.checkpoint import DictTensors, TensorSource
from hydractl.files.description import provenance
from hydractl.files.fingerprints import Entry, entry, merged
from hydractl.files.header import read_header, torch_dtype
from hydractl.jsonio import differences
from hydractl.log import Log
from hydractl.model.cost import nonzero_parameters
from hydractl.model.source import write_model
from hydractl.model.stored import check_finite_weights
from hydractl.training.checkpointing import START_OVER, Saved
from hydractl.training.grid import CandidateResult, Trained
from hydractl.training.loop import EpochFigures, Training
from hydractl.training.members import Together
from hydractl.training.run_log import FileLog, RunFacts, RunLog, Sink, first_new_step
from hydractl.training.start import Opened
from hydractl.training.trackers import Tracked

_ENDINGS = (".safetensors", ".st")
# What the provenance of an output says beside what decided it.
_RESULTS = (
    "history",
    "kept_epoch",
    "stopped_early",
    "grid",
    "parent",
    "cycle",
    "cycle_end",
    "averaged",
    "draw",
    "member",
)


@dataclass(frozen=True)
class RunFiles:
    """Paths that a training writes to.

    Attributes:
        paths: the checkpoints, or the published folders: one, or several of one training.
        folder: whether they are folders.
        state: the unfinished run.
        log: the log, or None.
        trackers: by name, where each has its runs; None: where it does by itself.
        name: of the run there.
    """

    paths: tuple[Path, ...]
    folder: bool
    state: Path
    log: Path | None
    trackers: Mapping[str, str | None] = field(default_factory=dict)
    name: str = ""

    @classmethod
    def of_output(
        cls,
        output: str,
        log: str | None,
        several: int | None = None,
        trackers: Mapping[str, str | None] = MappingProxyType({}),
    ) -> RunFiles:
        """Return the files of an output as a person named it.

        Args:
            output: a file, or a folder where it ends in a slash.
            log: a file; ``beside`` for one beside the output, None for no log.
            several: how many models the training leaves: ``a.st`` becomes ``a.1.st`` and so on. None: one model.
            trackers: by name, where each has its runs; None: where it does by itself.

        Raises:
            UsageError: the log, or the folder of a tracker, would be another file of this training.
        """
        is_folder = output.endswith("/") and Path(output).name != ""
        if is_folder:
            path = Path(output)
        else:
            path = file_path(output)
        paths = [path]
        if several is not None:
            paths = [named_apart(path, number, folder=is_folder) for number in range(1, several + 1)]

        # Beside the output, whatever the number of models.
        state = path.with_name(f"{path.name}.state")
        log_path = None
        if log == "beside":
            log_path = path.with_name(f"{stem(output)}.log.jsonl")
        elif log is not None:
            log_path = file_path(log)

        # The names may differ and be one place all the same, by links or dots.
        places_in_use = {os.path.realpath(other) for other in (*paths, state)}
        if log_path is not None and os.path.realpath(log_path) in places_in_use:
            raise UsageError(f"--log {log} is the name of another file of this training", hint="choose another --log")
        events = trackers.get("tensorboard")
        if events is not None and os.path.realpath(events) in places_in_use:
            raise UsageError(f"--track tensorboard:{events} is the name of another file of this training")
        return cls(tuple(paths), is_folder, state, log_path, trackers, name=stem(output))

    def weights(self) -> list[Path]:
        """Return the file of each output that says how it came to be; an output that is not there has none."""
        if not self.folder:
            return [path for path in self.paths if path.is_file()]
        files = []
        for path in self.paths:
            if path.is_dir():
                weight_files = sorted(path.glob("*.safetensors"))
                files += weight_files[:1]
        return files

    def open_log(self, saved: Saved | None, about: RunFacts, log: Log) -> RunLog:
        """Open the log, a file and trackers as they are asked for, which goes on where the saved run was.

        Args:
            saved: the run that is taken up; None: a new one.
            about: the training.
            log: hears of what cannot be logged.
        """
        sinks: list[Sink] = []
        if self.log is not None:
            position = None
            if saved is not None:
                position = saved.progress["log"]
            lines = FileLog(self.log, position, about, log)
            sinks.append(lines)
        if self.trackers:
            first_step = first_new_step(saved, about)
            for kind, where in self.trackers.items():
                tracked = Tracked(kind, where, self.name, first_step, about, log)
                sinks.append(tracked)
        return RunLog(sinks)


def stem(output: str) -> str:
    """Return an output's name without folder and ending: ``a`` of ``b/a.st``, ``a.st`` of the folder ``b/a.st/``."""
    name = Path(output).name
    if output.endswith("/"):
        return name
    for ending in _ENDINGS:
        if name.endswith(ending):
            return name.removesuffix(ending)
    return name


def numbered(output: str, number: int) -> str:
    """Return the name of an output with a number: ``a.st`` becomes ``a.1.st``, a folder ``a/`` becomes ``a.1/``."""
    is_folder = output.endswith("/")
    path = Path(output)
    name = str(named_apart(path, number, folder=is_folder))
    if is_folder:
        return f"{name}/"
    return name


# --- writing ----------------------------------------------------------------------------------------------------------


def write_all(outputs: Sequence[Output], opened: Opened, decisive: Mapping[str, object], trained: Trained) -> list[str]:
    """Write the model, or each of the several models, that a training leaves.

    Args:
        outputs: one for each model.
        opened: the data and the start of the training.
        decisive: the settings that decided its result, for the provenance.
        trained: its outcome.

    Returns:
        The SHA-256 of each.

    Raises:
        NonFiniteError: of weights that are not finite; nothing more is written.
        OutputError, StorageError: it cannot be written.
    """
    run = trained.run
    model = run.model
    details = dict(decisive)
    details["lr"] = trained.lr
    details["parent"] = dict(opened.source.description.provenance)
    leaves_several = len(run.course.left_models()) > 0  # snapshots, say
    if leaves_several:
        return _write_left_models(outputs, opened, details, trained)
    details.update(_results_of_one_model(trained))
    if not isinstance(model, Together):
        stock = model.stock_tensors()
        return [_write_output(outputs[0], opened, run, stock, details)]
    digests = []
    for index, output in enumerate(outputs):
        member_details = {**details, "member": index + 1}
        stock = model.stock_tensors(index)
        digests.append(_write_output(output, opened, run, stock, member_details))
    return digests


def _results_of_one_model(trained: Trained) -> dict[str, object]:
    """Return what the provenance says of how a training went that leaves the weights of its model."""
    outcome = trained.outcome
    grid = []
    for result in trained.grid:
        short_result = dict(result)
        short_result.pop("loss_curve", None)
        grid.append(short_result)
    return {
        "history": outcome["epochs"],
        "kept_epoch": outcome["kept_epoch"],
        "stopped_early": outcome["stopped_early"],
        "grid": grid or None,
        **trained.run.course.facts(),
    }


def _write_left_models(
    outputs: Sequence[Output], opened: Opened, details: Mapping[str, object], trained: Trained
) -> list[str]:
    """Write each of several models that one training leaves, such as snapshots.

    Args:
        outputs: one for each model.
        opened: the data and the start of the training.
        details: what the provenance says of all of them.
        trained: the training.

    Returns:
        The SHA-256 of each. The model of the training has the weights of the last one then.
    """
    run = trained.run
    model = run.model
    assert not isinstance(model, Together)  # members that are trained together are left as they are
    digests = []
    for output, left in zip(outputs, run.course.left_models(), strict=True):
        run.put(left.weights)
        history = [epoch for epoch in trained.outcome["epochs"] if epoch["steps"] <= left.steps]
        details_of_left = {
            **details,
            "history": history,
            "stopped_early": False,
            **left.facts,
        }
        digest = _write_output(output, opened, run, model.stock_tensors(), details_of_left)
        digests.append(digest)
    return digests


def _write_output(
    output: Output, opened: Opened, run: Training, stock: Mapping[str, Tensor], details: Mapping[str, object]
) -> str:
    """Write one output and commit it.

    Args:
        output: where.
        opened: the data and the start of the training.
        run: the training.
        stock: the weights, by the names of an ordinary model.
        details: what the provenance says beside the verb, the seed and the model it started from.

    Returns:
        Its SHA-256.

    Raises:
        NonFiniteError: of weights that are not finite.
    """
    source = opened.source
    # A published folder is read by other libraries, which know no missing heads: they are zeros there.
    layout = "zeroed" if output.is_folder else "sliced"
    seen = merged(source.description.seen, _entries_of_data(opened))
    description = replace(
        source.description,
        layout=layout,
        family_version=source.family.version,
        extra={},
        provenance=provenance("finetune", run.options.seed, [source.sha256], details, source.bases),
        seen=tuple(seen),
    )

    # Every tensor in the dtype that it had before.
    typed = {}
    for name, tensor in stock.items():
        dtype_before = torch_dtype(source.tensors.info(name))
        typed[name] = tensor.to(dtype_before)
    tensors: TensorSource = DictTensors(typed)
    check_finite_weights(f"{source.name} after training", tensors)

    # The count of weights that pruning has left may have changed.
    if source.description.params_nonzero is not None:
        sparse = {**source.description.extra["sparse"], "params_nonzero": nonzero_parameters(tensors)}
        description = replace(description, extra={**description.extra, "sparse": sparse})
    return write_model(output, description, tensors)


def _entries_of_data(opened: Opened) -> list[Entry]:
    """Return the data that the weights, or the choice of an epoch, come from: they are no test data any more."""
    seen = [entry("finetune", "train", opened.train_set)]
    if opened.val_set is not None:
        seen.append(entry("finetune", "val", opened.val_set))
    return seen


# --- written before? --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FinishedTraining:
    """What a training that was finished before says in its output.

    Attributes:
        history: its epochs.
        kept_epoch, stopped_early: as of :class:`TrainingOutcome`; None where it does not say.
        lr: the learning rate.
        grid: what each of several learning rates reached; empty where there was one.
    """

    history: Sequence[EpochFigures]
    kept_epoch: int | None
    stopped_early: bool | None
    lr: float
    grid: Sequence[CandidateResult]

    @classmethod
    def of_settings(cls, settings: Mapping[str, Any]) -> FinishedTraining:
        """Return what the settings in the provenance of an output say."""
        return cls(
            history=settings["history"],
            kept_epoch=settings.get("kept_epoch"),
            stopped_early=settings.get("stopped_early"),
            lr=settings["lr"],
            grid=settings.get("grid", ()),
        )


def finished(files: RunFiles, fingerprint: Mapping[str, object], *, force: bool) -> FinishedTraining | None:
    """Return what the (last) output says that this very training has written; None where one is missing.

    Args:
        files: of this training.
        fingerprint: what decides its result.
        force: an output of another training is in the way and may be replaced: None.

    Raises:
        InputError: an output is of another training; all differences are listed.
    """
    outputs = [_read_finished(path, fingerprint, force=force) for path in files.weights()]
    if len(outputs) < len(files.paths) or None in outputs:
        return None
    return outputs[-1]


def _read_finished(path: Path, fingerprint: Mapping[str, object], *, force: bool) -> FinishedTraining | None:
    """Return what one output says of the training that wrote it, if that is this very one.

    Args:
        path: of the output, which is there.
        fingerprint: what decides the result of this training; a value of None is none.
        force: whether an output of another training may be replaced.

    Returns:
        What it says; None where another program has written it, or another training and it may be replaced.

    Raises:
        InputError: it is of another training and may not be replaced; all differences are listed.
    """
    try:
        description = read_header(path).description or {}
    except HydraError:
        return None  # a file of another program, which --force may replace
    made_by = description.get("provenance", {})
    if made_by.get("verb") != "finetune":
        return None

    # Of its settings, those that decided the result.
    settings = made_by["settings"]
    in_file = {"model": made_by["inputs"][0], "seed": made_by["seed"]}
    for key, value in settings.items():
        if key not in _RESULTS:
            in_file[key] = value
    if "grid" in settings:  # its "lr" is the one of the grid that was kept
        in_file["lr"] = [result["lr"] for result in settings["grid"]]
    asked_for = {key: value for key, value in fingerprint.items() if value is not None}
    problems = differences(in_file, asked_for, "in the file")
    if not problems:
        return FinishedTraining.of_settings(settings)
    if force:
        return None
    hint = f"give the settings it was made with, or {START_OVER}"
    raise InputError(f"{path} is the output of another training", hint=hint, problems=problems)
