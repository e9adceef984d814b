"""The files of one training: their names, how outputs are written, and whether an earlier run has written them.

The outputs are ordinary checkpoints or published folders whose provenance says how they were trained. Beside them lie
the unfinished run and the log.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from hydractl.errors import HydraError, InputError, UsageError
from hydractl.files.atomic import Output, file_path, named_apart
from hydractl.files.checkpoint import DictTensors, TensorSource
from hydractl.files.description import provenance
from hydractl.files.fingerprints import entry, merged
from hydractl.files.header import read_header, torch_dtype
from hydractl.files.training_history import FinishedRecord
from hydractl.jsonio import differences
from hydractl.model.cost import nonzero_parameters
from hydractl.model.source import write_model
from hydractl.model.stored import check_finite_weights
from hydractl.training.checkpointing import START_OVER
from hydractl.training.grid import Trained
from hydractl.training.loop import Training
from hydractl.training.members import Together
from hydractl.training.start import Opened

Settings = Mapping[str, Any]
"""The settings in the provenance of an output."""
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

        For ``b/a.st`` and two models: the outputs ``b/a.1.st`` and ``b/a.2.st``, the saved state ``b/a.st.state``, and
        as the log beside them ``b/a.log.jsonl``.

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
        path = Path(output) if is_folder else file_path(output)
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
        weights_of_folders = [sorted(path.glob("*.safetensors")) for path in self.paths]
        return [weights[0] for weights in weights_of_folders if weights]


def stem(output: str) -> str:
    """Return an output's name without folder and ending: ``a`` for ``b/a.st``, ``a.st`` for the folder ``b/a.st/``."""
    path = Path(output)
    is_file_of_weights = path.suffix in (".safetensors", ".st") and not output.endswith("/")
    return path.stem if is_file_of_weights else path.name


def numbered(output: str, number: int) -> str:
    """Return the name of an output with a number: ``a.st`` becomes ``a.1.st``, a folder ``a/`` becomes ``a.1/``."""
    is_folder = output.endswith("/")
    name = str(named_apart(Path(output), number, folder=is_folder))
    return f"{name}/" if is_folder else name


# --- writing ----------------------------------------------------------------------------------------------------------


def write_all(outputs: Sequence[Output], opened: Opened, decisive: Mapping[str, object], trained: Trained) -> list[str]:
    """Write the model or models that a training leaves, and return the SHA-256 of each output.

    Args:
        outputs: one output for each model.
        opened: the data, and the model that the training started from.
        decisive: the settings that decided the result, by name, for the provenance (how a file was made).
        trained: the finished training.

    Raises:
        NonFiniteError: a model has weights that are not finite; it and the models after it are not written.
        OutputError, StorageError: an output cannot be written.
    """
    # The provenance of every model has the same settings, and then what differs: history, number of the member, ...
    parent = dict(opened.source.description.provenance)
    common_details = {**decisive, "lr": trained.outcome["lr"], "parent": parent}
    digests = []
    for output, (weights, details) in zip(outputs, _models_left(trained), strict=True):
        digests.append(_write_output(output, opened, trained.run, weights, {**common_details, **details}))
    return digests


def _models_left(trained: Trained) -> Iterator[tuple[Mapping[str, Tensor], dict[str, object]]]:
    """Yield for each model that a training leaves: its weights by their names in an ordinary model, and its history.

    ===============================================  ========================================
    several members were trained together            one model for each member
    the training has collected no models on its way  one model
    it has collected some, e.g. one for each cycle   each of them
    ===============================================  ========================================

    The training's model gets the weights of each collected model in turn, and keeps those of the last one.
    """
    model = trained.run.model
    outcome = trained.outcome

    # The results of the learning rates that were tried, without the loss curves, which are long.
    grid = []
    for result in trained.grid:
        grid.append({key: value for key, value in result.items() if key != "loss_curve"})
    details = {
        "history": outcome["epochs"],
        "kept_epoch": outcome["kept_epoch"],
        "stopped_early": outcome["stopped_early"],
        "grid": grid or None,
    }

    # The three cases. The history of a collected model ends with the step at which it was collected.
    if isinstance(model, Together):
        for index in range(model.members):
            yield model.stock_tensors(index), {**details, "member": index + 1}
    elif not trained.run.left:
        yield model.stock_tensors(), details
    else:
        for left in trained.run.left:
            trained.run.put(left.weights)
            history = [epoch for epoch in outcome["epochs"] if epoch["steps"] <= left.steps]
            course = {"steps": left.steps, **left.facts}
            yield model.stock_tensors(), {**details, "history": history, "stopped_early": False, "course": course}


def _write_output(
    output: Output, opened: Opened, run: Training, stock: Mapping[str, Tensor], details: Mapping[str, object]
) -> str:
    """Write one trained model, and return the SHA-256 of the output.

    Args:
        output: where to write.
        opened: the data, and the model that the training started from.
        run: the training.
        stock: the trained weights, by their names in an ordinary model.
        details: the provenance entries besides the verb, the seed and the model that the training started from.

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

    # A folder is for other libraries, which expect all heads to be there: pruned heads are written as zeros. A file of
    # hydractl leaves them out ("sliced").
    layout = "zeroed" if output.is_folder else "sliced"

    # Training and validation data decided the weights, so they are no longer valid test data: list them as "seen".
    entries_of_data = [entry("finetune", "train", opened.train_set)]
    if opened.val_set is not None:
        entries_of_data.append(entry("finetune", "val", opened.val_set))
    seen = merged(source.description.seen, entries_of_data)
    description = replace(
        source.description,
        layout=layout,
        family_version=source.family.version,
        extra=extra,
        provenance=provenance("finetune", run.options.seed, [source.sha256], details, source.bases),
        seen=tuple(seen),
    )
    return write_model(output, description, tensors)


# --- written before? --------------------------------------------------------------------------------------------------


def finished(files: RunFiles, fingerprint: Mapping[str, object], *, force: bool) -> Settings | None:
    """Return the settings that the last output records, with the results, if this training is finished; else None.

    It is finished if all its outputs are there and were written with exactly these settings. None if any output

    * is missing,
    * was not written by ``finetune``, or
    * was written with other settings, or broken ones, and ``force`` is set.

    Args:
        files: the files of this training.
        fingerprint: the settings that decide the result, by name; settings whose value is None are ignored.
        force: whether outputs of another training may be overwritten.

    Raises:
        InputError: an output was written with other settings, or its settings are broken, without ``force``; all
            differences are listed.
    """
    asked = {key: value for key, value in fingerprint.items() if value is not None}
    settings_of_outputs = []
    for path in files.weights():
        # Skip a file that `finetune` has not written. Whether it may be overwritten is checked on writing.
        try:
            made_by = (read_header(path).description or {}).get("provenance")
        except HydraError:
            continue
        if not isinstance(made_by, Mapping) or made_by.get("verb") != "finetune":
            continue
        try:
            FinishedRecord.checked(made_by, f"{path} does not say how it was trained", START_OVER)
        except InputError:
            if force:
                continue
            raise

        # Compare what the file records with the fingerprint, leaving out the results. Of several learning rates the
        # file records the best as "lr", and all as "grid"; the fingerprint has all of them as "lr".
        settings: Settings = made_by["settings"]
        decisive = {key: value for key, value in settings.items() if key not in _RESULTS}
        if "grid" in settings:
            decisive["lr"] = [result["lr"] for result in settings["grid"]]
        made = {"model": made_by["inputs"][0], "seed": made_by["seed"], **decisive}
        problems = differences(made, asked, "in the file")
        if problems and not force:
            hint = f"give the settings it was made with, or {START_OVER}"
            raise InputError(f"{path} is the output of another training", hint=hint, problems=problems)
        if not problems:
            settings_of_outputs.append(settings)
    all_are_there = len(settings_of_outputs) == len(files.paths)
    return settings_of_outputs[-1] if all_are_there else None
