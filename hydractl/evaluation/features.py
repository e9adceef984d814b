"""The features that members make of training data, in a file: OOD scores are fitted to them without another pass."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import IO

import torch

from hydractl.errors import InputError
from hydractl.files.atomic import Output, write_with
from hydractl.files.checkpoint import DictTensors, FileTensors, write_tensors
from hydractl.files.header import Header, read_header
from hydractl.jsonio import differences
from hydractl.model.detection import TrainingFeatures

FEATURES_SCHEMA = "hydractl.features/1"

_HINT = "give the settings that it was made with, or name another file with --features"


class FeaturesFile:
    """The features of one row on training data: read where the file is there, else to be written.

    Args:
        target: the file that is there, or the claim on one that is not.
    """

    def __init__(self, target: Path | Output) -> None:
        self._output: Output | None = None
        if isinstance(target, Output):
            self._output = target
            self.path = target.path
        else:
            self.path = target

    def read(self, made_with: Mapping[str, object], members: int, samples: int) -> TrainingFeatures | None:
        """Return the features that the file holds; None where it is still to be written.

        Args:
            made_with: what decides the features, each by its name.
            members: the number of members of the row.
            samples: the number of samples of the training data.

        Raises:
            InputError: it is of another model, other data or other settings, or broken.
        """
        if self._output is not None:
            return None
        header = read_header(self.path)
        document = dict(header.description or {})
        if document.pop("schema", None) != FEATURES_SCHEMA:
            raise InputError(f"{self.path} is no file of features", hint="name another file with --features")
        problems = differences(document, made_with, "in the file")
        if problems:
            text = f"--features {self.path} has features of another model, other data or other settings"
            raise InputError(text, hint=_HINT, problems=problems)
        _check_tensors(self.path, header, members, samples)
        tensors = FileTensors(self.path, header)
        features = []
        highest = []
        for member in range(members):
            features_of_member = tensors.read(f"features.{member}")  # [N, D]
            highest_of_member = tensors.read(f"highest.{member}")  # [N], the highest logit of each sample
            features.append(features_of_member.numpy())
            highest.append(highest_of_member.numpy())
        rows = tensors.read("rows").numpy()
        return TrainingFeatures(rows, features, highest)

    def write(self, training: TrainingFeatures, made_with: Mapping[str, object]) -> None:
        """Write the file: the features and highest logits of all samples, and in its header what decides them.

        Args:
            training: the features.
            made_with: what decides them, each by its name, which :meth:`read` compares.
        """
        assert self._output is not None  # read() has returned None
        tensors = {"rows": torch.from_numpy(training.rows)}
        for member in range(len(training.features)):
            features = training.features[member]
            highest = training.highest[member]
            tensors[f"features.{member}"] = torch.from_numpy(features)
            tensors[f"highest.{member}"] = torch.from_numpy(highest)
        document = {"schema": FEATURES_SCHEMA, **made_with}

        def write_file(handle: IO[bytes]) -> None:
            write_tensors(handle, DictTensors(tensors), document)

        write_with(self._output, write_file)


def _check_tensors(path: Path, header: Header, members: int, samples: int) -> None:
    """Refuse a file without the tensors of so many members and samples.

    Raises:
        InputError: one is missing, or has another shape or format.
    """
    # The format of each tensor and its number of dimensions, the first of which is the samples.
    needed: dict[str, tuple[str, int]] = {"rows": ("I64", 1)}
    for member in range(members):
        needed[f"features.{member}"] = ("F32", 2)
        needed[f"highest.{member}"] = ("F64", 1)

    for name, (dtype, dimensions) in needed.items():
        info = header.tensors.get(name)
        is_as_needed = (
            info is not None and info.dtype == dtype and len(info.shape) == dimensions and info.shape[0] == samples
        )
        if not is_as_needed:
            raise InputError(f"{path} is broken: its {name} are missing or of another shape", hint="remove it")
