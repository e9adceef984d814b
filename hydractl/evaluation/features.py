"""The features that members make of training data, in a file: OOD scores are fitted to them without another pass."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

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
        """Return what the file holds; None where it is to be written.

        Args:
            made_with: what decides the features, each by its name.
            members: of the row.
            samples: of the training data.

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
            features.append(tensors.read(f"features.{member}").numpy())
            highest.append(tensors.read(f"highest.{member}").numpy())
        rows = tensors.read("rows").numpy()
        return TrainingFeatures(rows, features, highest)

    def write(self, training: TrainingFeatures, made_with: Mapping[str, object]) -> None:
        """Keep the features of all samples, and what decides them."""
        assert self._output is not None  # read() has been here
        tensors = {"rows": torch.from_numpy(training.rows)}
        for member in range(len(training.features)):
            tensors[f"features.{member}"] = torch.from_numpy(training.features[member])
            tensors[f"highest.{member}"] = torch.from_numpy(training.highest[member])
        document = {"schema": FEATURES_SCHEMA, **made_with}
        write_with(self._output, lambda handle: write_tensors(handle, DictTensors(tensors), document))


def _check_tensors(path: Path, header: Header, members: int, samples: int) -> None:
    """Refuse a file whose tensors are not those of its header.

    Raises:
        InputError: one is missing, or has another shape or format.
    """
    wanted: dict[str, tuple[str, int]] = {"rows": ("I64", 1)}
    for member in range(members):
        wanted[f"features.{member}"] = ("F32", 2)
        wanted[f"highest.{member}"] = ("F64", 1)
    for name, (dtype, dimensions) in wanted.items():
        problem = f"{path} is broken: its {name} are missing or of another shape"
        info = header.tensors.get(name)
        if info is None or info.dtype != dtype:
            raise InputError(problem, hint="remove it")
        if len(info.shape) != dimensions or info.shape[0] != samples:
            raise InputError(problem, hint="remove it")
