"""What a training leaves: ordinary checkpoints or published folders, with how they came to be."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydractl.errors import HydraError, InputError, UsageError
from hydractl.files.atomic import Output, file_path, write_with
from hydractl.files.checkpoint import DictTensors, TensorSource, read_header, torch_dtype, write_tensors
from hydractl.files.fingerprints import entry, merged
from hydractl.files.provenance import provenance
from hydractl.log import Log
from hydractl.model.checks import check_finite
from hydractl.model.runtime import HydraModel
from hydractl.model.slicing import zeroed
from hydractl.settings import FinetuneSettings
from hydractl.training.checkpointing import START_OVER, Saved, StateFile, differences
from hydractl.training.grid import Trained
from hydractl.training.run_log import Board, FileLog, RunLog, Together, first_step
from hydractl.training.start import Opened


def write_all(
    outputs: Sequence[Output],
    opened: Opened,
    settings: FinetuneSettings,
    details: Mapping[str, Any],
    trained: Trained,
) -> list[str]:
    """Write the weights that are kept, or those at the end of each cycle.

    Args:
        outputs: claimed: one, or one for each cycle.
        opened: what the training started from.
        settings: of the verb.
        details: what decided the result.
        trained: what came out.

    Returns:
        The SHA-256 of each.

    Raises:
        NonFiniteError: of weights that are not finite; nothing more is written.
        OutputError, StorageError: it cannot be written.
    """
    history, run = trained.history, trained.run
    details = {**details, "lr": trained.lr, "parent": dict(opened.source.description.provenance)}
    if settings.snapshots is None:
        results = {
            "history": history.epochs,
            "kept_epoch": history.kept_epoch,
            "stopped_early": history.stopped_early,
            "grid": [{k: v for k, v in entry.items() if k != "loss_curve"} for entry in trained.grid] or None,
        }
        return [_write(outputs[0], opened, settings, run.model, {**details, **results})]
    digests = []
    for number, (output, end) in enumerate(zip(outputs, run.cycles.ends, strict=True), start=1):
        run.put(run.snapshots[number - 1])
        results = {
            "history": [epoch for epoch in history.epochs if epoch["steps"] <= end],
            "stopped_early": False,
            "cycle": number,
            "cycle_end": end,
        }
        digests.append(_write(output, opened, settings, run.model, {**details, **results}))
    return digests


def _write(
    output: Output, opened: Opened, settings: FinetuneSettings, model: HydraModel, made: Mapping[str, Any]
) -> str:
    """One output, committed. Returns its SHA-256."""
    source, family = opened.source, opened.source.family
    description = replace(
        source.description,
        layout="zeroed" if output.is_folder else "sliced",
        family_version=family.version,
        extra={},
        provenance=provenance("finetune", settings, [source.sha256], made),
        seen=tuple(merged(source.description.seen, _seen(opened))),
    )
    # Trained weights in the dtype each tensor had.
    stock = model.stock_tensors()
    tensors: TensorSource = DictTensors({n: t.to(torch_dtype(source.tensors.info(n))) for n, t in stock.items()})
    check_finite(f"{source.name} after training", tensors)
    if output.is_folder:
        mask = description.mask
        tensors = zeroed(tensors, family, source.sites, mask, mask)
        weights = family.export_folder(output.temporary, description.config, description.preprocess, description.labels)
        with open(output.temporary / weights, "wb") as handle:
            digest = write_tensors(handle, tensors, description.to_json())
        output.commit()
        return digest
    digests: list[str] = []
    write_with(output, lambda h: digests.append(write_tensors(h, tensors, description.to_json())))
    return digests[0]


def _seen(opened: Opened) -> list[dict[str, Any]]:
    """The samples that the weights, or the choice of an epoch, come from: no test data for them any more."""
    sets = (("train", opened.train_set), ("val", opened.val_set))
    return [entry("finetune", role, dataset) for role, dataset in sets if dataset is not None]


# What the provenance of an output says beside what decided it.
_RESULTS = ("history", "kept_epoch", "stopped_early", "grid", "parent", "cycle", "cycle_end")


@dataclass(frozen=True)
class RunFiles:
    """Where a training writes.

    Attributes:
        paths: the checkpoints, or the published folders: one, or one for each cycle.
        folder: whether they are folders.
        state: the unfinished run.
        log: the log, or None.
        board: the folder for TensorBoard, or None.
    """

    paths: tuple[Path, ...]
    folder: bool
    state: Path
    log: Path | None
    board: Path | None = None

    @classmethod
    def of(cls, output: str, log: str | None, snapshots: int | None = None, board: str | None = None) -> RunFiles:
        """The files of an output as a person named it; of several, ``a.st`` becomes ``a.1.st`` and so on."""
        folder = output.endswith("/") and bool(Path(output).name)
        path = Path(output) if folder else file_path(output)
        bare = path.name if folder else path.name.removesuffix(".safetensors").removesuffix(".st")
        beside = path.with_name(f"{bare}.log.jsonl")
        logged = None if log is None else beside if log == "beside" else file_path(log)
        state = path.with_name(f"{path.name}.state")
        paths = (path,) if snapshots is None else numbered(path, snapshots, folder=folder)
        if logged is not None and os.path.realpath(logged) in map(os.path.realpath, (*paths, state)):
            raise UsageError(f"--log {log} is the name of another file of this training", hint="choose another --log")
        if board is not None and os.path.realpath(board) in map(os.path.realpath, (*paths, state)):
            raise UsageError(f"--tensorboard {board} is the name of another file of this training")
        return cls(paths, folder, state, logged, None if board is None else Path(board))

    def weights(self) -> list[Path]:
        """The files of the outputs that describe themselves; an output that is not there has none."""
        if not self.folder:
            return [path for path in self.paths if path.is_file()]
        found = (next(iter(sorted(path.glob("*.safetensors"))), None) for path in self.paths if path.is_dir())
        return [path for path in found if path is not None]

    def open_log(self, saved: Saved | None, about: Mapping[str, Any], log: Log) -> RunLog:
        """The log, going on where the saved run was."""
        logs: list[RunLog] = []
        if self.log is not None:
            logs.append(FileLog(self.log, None if saved is None else saved.progress["log"], about, log))
        if self.board is not None:
            logs.append(Board(self.board, first_step(saved, about), log))
        return Together(logs) if logs else RunLog()


def numbered(path: Path, count: int, *, folder: bool = False) -> tuple[Path, ...]:
    """``a.st`` as ``a.1.st``, ``a.2.st`` and so on; the folder ``a`` as ``a.1``, ``a.2``."""
    suffix = "" if folder else path.suffix
    bare = path.name.removesuffix(suffix)
    return tuple(path.with_name(f"{bare}.{number}{suffix}") for number in range(1, count + 1))


def finished(files: RunFiles, fingerprint: Mapping[str, Any], *, force: bool) -> dict[str, Any] | None:
    """The provenance of the (last) output that this very training has written; None where one of them is missing.

    Args:
        files: of this training.
        fingerprint: what decides its result.
        force: an output of another training is in the way and may be replaced: None.

    Raises:
        InputError: an output is of another training; all differences are listed.
    """
    found = [_finished(path, fingerprint, force=force) for path in files.weights()]
    return found[-1] if len(found) == len(files.paths) and None not in found else None


def _finished(path: Path, fingerprint: Mapping[str, Any], *, force: bool) -> dict[str, Any] | None:
    try:
        made = (read_header(path).description or {}).get("provenance", {})
    except HydraError:
        return None  # a stranger's file, which --force may replace
    if made.get("verb") != "finetune":
        return None
    there = {"model": made["inputs"][0], "seed": made["seed"]}
    there |= {key: value for key, value in made["settings"].items() if key not in _RESULTS}
    if "grid" in made["settings"]:
        there["lr"] = [entry["lr"] for entry in made["settings"]["grid"]]
    now = {key: value for key, value in fingerprint.items() if value is not None}
    problems = differences(there, now, "in the file")
    if problems and force:
        return None
    if problems:
        hint = f"give the settings it was made with, or {START_OVER}"
        raise InputError(f"{path} is the output of another training", hint=hint, problems=problems)
    return dict(made)


def begin(files: RunFiles, state: StateFile, settings: FinetuneSettings, log: Log) -> Saved | None:
    """The saved run to go on with, or None for a new one. To be called while the output is claimed.

    Raises:
        OutputError: a run is saved, and neither ``--resume`` nor ``--force`` is given.
        InputError: the saved run is of other settings, or damaged.
    """
    state.sweep()
    if settings.resume and state.exists():
        saved = state.load(log)
        log.info(f"going on with the run in {files.state}, at step {saved.progress.get('steps', 0)}")
        return saved
    if settings.resume:
        log.info(f"no unfinished run is saved in {files.state}: starting afresh")
    state.make_way(force=settings.force)
    return None
