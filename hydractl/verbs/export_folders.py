"""The formats of ``export`` that are folders: a model of MLflow, and a model repository for Triton."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from hydractl.errors import HydraError, UsageError
from hydractl.exports.formats import FORMATS
from hydractl.exports.targets import Claim, claimed, plan_exports
from hydractl.exports.triton import CONFIG_FILE, LABELS_FILE, MODEL_FILE, labels_of, triton_config
from hydractl.files.checkpoint import sha256_file
from hydractl.files.export_answer import ExportedFileRecord
from hydractl.model.loading import build_model
from hydractl.model.source import Source, open_source
from hydractl.serving.mlflow_model import CHECKPOINT, write_mlflow_model
from hydractl.settings.common import FOLDER_FORMATS

FOLDER_ENDINGS = {kind: ending for ending, kind in FOLDER_FORMATS.items()}
"""The endings of the folders, by their formats."""

WriteClaim = Callable[[Claim], list[ExportedFileRecord]]
"""Writes claimed files, each checked against the model."""


@dataclass(frozen=True)
class FolderTarget:
    """One folder to export.

    Attributes:
        kind: its format.
        path: the folder.
        name: the name of the model in the folder.
        source: the model.
    """

    kind: str
    path: Path
    name: str
    source: Source

    def planned(self) -> ExportedFileRecord:
        """Return the entry for this folder in an answer, before the folder is written."""
        return ExportedFileRecord(format=self.kind, path=str(self.path))

    def write(self, folder: Path, write: WriteClaim, max_batch: int) -> ExportedFileRecord:
        """Fill the empty folder and check what is in it.

        Args:
            folder: the temporary folder, which is moved to :attr:`path` when it is complete.
            write: writes files of other formats.
            max_batch: the largest number of samples that a server computes together.

        Raises:
            HydraError: what was written differs from the model.
        """
        if self.kind == "triton":
            return self._write_triton(folder, write, max_batch)
        return self._write_mlflow(folder)

    def _write_triton(self, folder: Path, write: WriteClaim, max_batch: int) -> ExportedFileRecord:
        """Write a model repository of Triton: ``NAME/1/model.onnx``, ``NAME/config.pbtxt``, and the labels, if any.

        Returns:
            The entry for the answer: the record of the graph that was written and checked, with the path of the folder.
        """
        model_folder = folder / self.name
        model_path = model_folder / MODEL_FILE
        model_path.parent.mkdir(parents=True)
        stem = model_path.with_suffix("")

        # Write the graph. The folder is a temporary one, so the file cannot exist yet.
        targets = plan_exports(["onnx"], stem, self.source.description, self.source.tensors)
        with claimed(targets, force=False) as claim:
            (record,) = write(claim)
            claim.commit()

        # Write what Triton needs beside it.
        config = triton_config(model_path, self.name, max_batch)
        (model_folder / CONFIG_FILE).write_text(config, encoding="utf-8")
        labels = labels_of(model_path)
        if labels:
            lines = "".join(f"{label}\n" for label in labels)
            (model_folder / LABELS_FILE).write_text(lines, encoding="utf-8")
        return replace(record, format=self.kind, path=str(self.path), data=None)

    def _write_mlflow(self, folder: Path) -> ExportedFileRecord:
        """Write the checkpoint and the files of an MLflow model, and check that the checkpoint has the model's logits.

        Returns:
            The entry for the answer: the size and the digest of the checkpoint in the folder.

        Raises:
            HydraError: the checkpoint in the folder has other logits than the model.
        """
        write_mlflow_model(self.source, folder)
        checkpoint = folder / CHECKPOINT

        # Check that the logits of one sample are the same to the last bit.
        model = build_model(self.source)
        inputs = model.example_inputs(1)
        with torch.inference_mode():
            expected_logits = model.member_logits(inputs)
            written_model = build_model(open_source(str(checkpoint)))
            logits = written_model.member_logits(inputs)
        if not torch.equal(logits, expected_logits):
            raise HydraError(f"{self.path}: the checkpoint in it has other logits than {self.source.name}")
        size = checkpoint.stat().st_size
        return replace(self.planned(), bytes=size, sha256=sha256_file(checkpoint))


def plan_folders(kinds: Sequence[str], stem: Path, source: Source) -> list[FolderTarget]:
    """Return the folders to write, after a check that reads only the headers of the model.

    Args:
        kinds: the formats that were asked for; formats of files, which need no folder, are skipped.
        stem: the path of the folders without their endings.
        source: the model.

    Raises:
        UsageError: the model cannot be exported to a graph, or its classes have no names.
    """
    has_classes = bool(source.classes or source.description.labels)
    folders = []
    for kind in kinds:
        if kind not in FOLDER_ENDINGS:
            continue
        # Check that the format can be written; each check raises an error. A folder of Triton holds an ONNX graph, and
        # planning its export checks the model. The other formats hold a model that predicts classes.
        if kind == "triton":
            FORMATS["onnx"].require()
            plan_exports(["onnx"], stem, source.description, source.tensors)
        elif not has_classes:
            raise UsageError(f"the classes of {source.name} have no names", hint="name them: --labels FILE")
        path = stem.with_name(f"{stem.name}{FOLDER_ENDINGS[kind]}")
        folders.append(FolderTarget(kind, path, stem.name, source))
    return folders
