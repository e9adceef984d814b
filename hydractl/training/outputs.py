"""The files of one training: their names, how outputs are written, and whether an earlier run has written them.

The outputs are ordinary checkpoints or published folders whose provenance says how they were trained. Beside them lie
the unfinished run and the log.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
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
from hydractl.training.run_log import FileLog, RunLog
from hydractl.training.start import Opened

_ENDINGS = (".safetensors", ".st")
# The settings in an output's provenance that record results; all others decided the result.
_RESULTS = ("history", "kept_epoch", "stopped_early", "grid", "parent", "course", "member")


@dataclass(frozen=True)
class RunFiles:
    """The paths that a training writes to.

    Attributes:
        paths: the output checkpoints or published folders; several if one training leaves several models.
        folder: whether the outputs are folders.
        state: the file of the unfinished run.
        log: the log file, or None.
    """

    paths: tuple[Path, ...]
    folder: bool
    state: Path
    log: Path | None

    @classmethod
    def of_output(cls, output: str, log: str | None, several: int | None = None) -> RunFiles:
        """Return the files of a training from the output as the user named it.

        Args:
            output: a file; a folder if it ends in a slash.
            log: a file; ``beside`` for a file beside the output, None for no log.
            several: how many models the training leaves: ``a.st`` becomes ``a.1.st`` and so on. None: one model, which
                keeps the name.

        Raises:
            UsageError: the log would be another file of this training.
        """
        # The outputs; several of them get numbers in their names.
        is_folder = output.endswith("/") and Path(output).name != ""
        if is_folder:
            path = Path(output)
        else:
            path = file_path(output)
        paths = [path]
        if several is not None:
            paths = [named_apart(path, number, folder=is_folder) for number in range(1, several + 1)]

        # These lie beside the output, whatever the number of models.
        state = path.with_name(f"{path.name}.state")
        log_path = None
        if log == "beside":
            log_path = path.with_name(f"{stem(output)}.log.jsonl")
        elif log is not None:
            log_path = file_path(log)

        # Compare real paths, since different names may lead to one file, by links or dots.
        paths_in_use = {os.path.realpath(other) for other in (*paths, state)}
        if log_path is not None and os.path.realpath(log_path) in paths_in_use:
            raise UsageError(f"--log {log} is the name of another file of this training", hint="choose another --log")
        return cls(tuple(paths), is_folder, state, log_path)

    def weights(self) -> list[Path]:
        """Return one weights file of each output that exists: the file whose header has the provenance."""
        if not self.folder:
            return [path for path in self.paths if path.is_file()]
        files = []
        for path in self.paths:
            if path.is_dir():
                weight_files = sorted(path.glob("*.safetensors"))
                files += weight_files[:1]
        return files

    def open_log(self, saved: Saved | None, about: Mapping[str, object], log: Log) -> RunLog:
        """Open the log, and write its first line. A saved run's log is continued.

        Args:
            saved: the saved run to resume; None: a new run.
            about: facts about the training, for the beginning of the log.
            log: receives a warning about what cannot be logged, and every line.
        """
        # On a resume, what the file has after the saved position is cut off.
        file = None
        if self.log is not None:
            position = None
            if saved is not None:
                position = saved.progress["log"]
            file = FileLog(self.log, position, log)
        run_log = RunLog(file, log.line_of_training)
        run_log.begin(about, resumed=saved is not None)
        return run_log


def stem(output: str) -> str:
    """Return an output's name without folder and ending: ``a`` for ``b/a.st``, ``a.st`` for the folder ``b/a.st/``."""
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
    """Write the model or models that a training leaves.

    There are three cases: one model; members that were trained together; or models that the course has collected.

    Args:
        outputs: one output for each model.
        opened: the data, and the model that the training started from.
        decisive: the settings that decided the result, for the provenance.
        trained: the finished training.

    Returns:
        The SHA-256 of each output.

    Raises:
        NonFiniteError: a model has weights that are not finite; it and the models after it are not written.
        OutputError, StorageError: an output cannot be written.
    """
    run = trained.run
    model = run.model
    parent = dict(opened.source.description.provenance)
    common_details = {**decisive, "lr": trained.lr, "parent": parent}

    # Case 1: the course of the training has collected several models.
    if trained.models:
        return _write_left_models(outputs, opened, common_details, trained)

    # Case 2: one model.
    details = {**common_details, **_results_of_one_model(trained)}
    if not isinstance(model, Together):
        stock = model.stock_tensors()
        return [_write_output(outputs[0], opened, run, stock, details)]

    # Case 3: members that were trained together; each is written as an ordinary model.
    digests = []
    for index, output in enumerate(outputs):
        member_details = {**details, "member": index + 1}
        stock = model.stock_tensors(index)
        digests.append(_write_output(output, opened, run, stock, member_details))
    return digests


def _results_of_one_model(trained: Trained) -> dict[str, object]:
    """Return provenance entries on how a training went, if it leaves one set of final weights."""
    outcome = trained.outcome
    return {
        "history": outcome["epochs"],
        "kept_epoch": outcome["kept_epoch"],
        "stopped_early": outcome["stopped_early"],
        "grid": _short_grid(trained),
        "course": dict(trained.facts) or None,
    }


def _short_grid(trained: Trained) -> list[dict[str, object]] | None:
    """Return what the provenance says of each of several learning rates; None where there was one."""
    grid = []

    # Leave out the loss curve of each learning rate, which is long.
    for result in trained.grid:
        short_result = dict(result)
        short_result.pop("loss_curve", None)
        grid.append(short_result)
    return grid or None


def _write_left_models(
    outputs: Sequence[Output], opened: Opened, details: Mapping[str, object], trained: Trained
) -> list[str]:
    """Write each of several models that the course of a training has collected.

    The training's model gets the weights of each in turn, and keeps those of the last one.

    Args:
        outputs: one output for each model.
        opened: the data, and the model that the training started from.
        details: the provenance entries that all these models share.
        trained: the finished training.

    Returns:
        The SHA-256 of each output.
    """
    run = trained.run
    model = run.model
    assert not isinstance(model, Together)  # members trained together are not collected over several steps
    digests = []
    for output, left in zip(outputs, trained.models, strict=True):
        run.put(left.weights)
        # The history of this model ends with the step at which its weights were taken.
        history = [epoch for epoch in trained.outcome["epochs"] if epoch["steps"] <= left.steps]
        details_of_left = {
            **details,
            "history": history,
            "stopped_early": False,
            "grid": _short_grid(trained),
            "course": {"steps": left.steps, **left.facts},
        }
        digest = _write_output(output, opened, run, model.stock_tensors(), details_of_left)
        digests.append(digest)
    return digests


def _write_output(
    output: Output, opened: Opened, run: Training, stock: Mapping[str, Tensor], details: Mapping[str, object]
) -> str:
    """Write one output and commit it.

    Args:
        output: where to write.
        opened: the data, and the model that the training started from.
        run: the training.
        stock: the weights, by the names of an ordinary model.
        details: the provenance entries besides the verb, the seed and the model that the training started from.

    Returns:
        The SHA-256 of the output.

    Raises:
        NonFiniteError: weights are not finite.
    """
    source = opened.source

    # Store every tensor in the dtype that it had in the model the training started from.
    typed = {}
    for name, tensor in stock.items():
        dtype_before = torch_dtype(source.tensors.info(name))
        typed[name] = tensor.to(dtype_before)
    tensors: TensorSource = DictTensors(typed)
    check_finite_weights(f"{source.name} after training", tensors)

    # `extra` holds facts about the old weights, which are no longer true. For a model with pruned weights, count the
    # weights that are left anew, since training may have changed their number.
    extra: dict[str, object] = {}
    if source.description.params_nonzero is not None:
        extra["sparse"] = {**source.description.extra["sparse"], "params_nonzero": nonzero_parameters(tensors)}

    # Other libraries read a published folder and expect all heads to be there: pruned heads are written as zeros.
    layout = "zeroed" if output.is_folder else "sliced"
    seen = merged(source.description.seen, _entries_of_data(opened))
    description = replace(
        source.description,
        layout=layout,
        family_version=source.family.version,
        extra=extra,
        provenance=provenance("finetune", run.options.seed, [source.sha256], details, source.bases),
        seen=tuple(seen),
    )
    return write_model(output, description, tensors)


def _entries_of_data(opened: Opened) -> list[Entry]:
    """Return entries for the data that decided the weights or the kept epoch; they are no longer valid test data."""
    seen = [entry("finetune", "train", opened.train_set)]
    if opened.val_set is not None:
        seen.append(entry("finetune", "val", opened.val_set))
    return seen


# --- written before? --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FinishedTraining:
    """The record of a finished training, read from the provenance of its output.

    Attributes:
        history: the epochs.
        kept_epoch, stopped_early: as in :class:`TrainingOutcome`; None if the output does not say.
        lr: the learning rate.
        grid: the result of each of several learning rates; empty if there was only one.
    """

    history: Sequence[EpochFigures]
    kept_epoch: int | None
    stopped_early: bool | None
    lr: float
    grid: Sequence[CandidateResult]

    @classmethod
    def of_settings(cls, settings: Mapping[str, Any]) -> FinishedTraining:
        """Return the record from the settings in the provenance of an output."""
        return cls(
            history=settings["history"],
            kept_epoch=settings.get("kept_epoch"),
            stopped_early=settings.get("stopped_early"),
            lr=settings["lr"],
            grid=settings.get("grid", ()),
        )


def finished(files: RunFiles, fingerprint: Mapping[str, object], *, force: bool) -> FinishedTraining | None:
    """Return the record of a finished training if all its outputs were written by exactly this training.

    Args:
        files: the files of this training.
        fingerprint: the settings that decide the result, by name; settings whose value is None are ignored.
        force: whether outputs of another training may be overwritten; then they are treated as missing.

    Returns:
        The record in the last output. None if an output is missing or may be overwritten.

    Raises:
        InputError: an output belongs to another training; all differences are listed.
    """
    outputs = [_read_finished(path, fingerprint, force=force) for path in files.weights()]
    if len(outputs) < len(files.paths) or None in outputs:
        return None
    return outputs[-1]


def _read_finished(path: Path, fingerprint: Mapping[str, object], *, force: bool) -> FinishedTraining | None:
    """Return the record of a finished training if an output file was written by exactly this training.

    Args:
        path: the output file; it exists.
        fingerprint: the settings that decide the result of this training, by name; settings whose value is None are
            ignored.
        force: whether an output of another training may be overwritten.

    Returns:
        The record, or None if the file may be overwritten: it was not written by a training, or it belongs to another
        training and ``force`` is set.

    Raises:
        InputError: the file belongs to another training and ``force`` is not set; all differences are listed.
    """
    try:
        description = read_header(path).description or {}
    except HydraError:
        return None  # the file of another program; whether it may be overwritten is checked on writing
    made_by = description.get("provenance", {})
    if made_by.get("verb") != "finetune":
        return None

    # Collect the settings that decided the result in the file, under the names of the fingerprint.
    settings = made_by["settings"]
    settings_in_file = {"model": made_by["inputs"][0], "seed": made_by["seed"]}
    for key, value in settings.items():
        if key not in _RESULTS:
            settings_in_file[key] = value
    if "grid" in settings:  # "lr" is the one learning rate that was kept: compare the whole grid instead
        settings_in_file["lr"] = [result["lr"] for result in settings["grid"]]

    # Compare them with the settings of this training.
    settings_asked_for = {key: value for key, value in fingerprint.items() if value is not None}
    problems = differences(settings_in_file, settings_asked_for, "in the file")
    if not problems:
        return FinishedTraining.of_settings(settings)
    if force:
        return None
    hint = f"give the settings it was made with, or {START_OVER}"
    raise InputError(f"{path} is the output of another training", hint=hint, problems=problems)
