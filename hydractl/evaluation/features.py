"""A file with the members' features of training data, so that OOD scores can be fitted without running the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import torch

from hydractl.errors import InputError
from hydractl.files.atomic import Output, write_with
from hydractl.files.checkpoint import DictTensors, FileTensors, write_tensors
from hydractl.files.header import Header, read_header
from hydractl.jsonio import differences
from hydractl.metrics.feature_scores.layers import LayerSums
from hydractl.model.detection import TrainingFeatures

FEATURES_SCHEMA = "hydractl.features/1"

_PARTS_OF_LAYERS = tuple(part.name for part in dataclasses.fields(LayerSums))

_HINT = "give the settings that it was made with, or name another file with --features"


class FeaturesFile:
    """A file with the features of one row on training data: an existing one to read, or a new one to write.

    Args:
        target: the path of an existing file, or the output of a new one.
    """

    def __init__(self, target: Path | Output) -> None:
        self._output: Output | None = None
        if isinstance(target, Output):
            self._output = target
            self.path = target.path
        else:
            self.path = target

    def read(self, made_with: Mapping[str, object], members: int, samples: int) -> TrainingFeatures | None:
        """Read the features from an existing file; return None if the file is a new one.

        Args:
            made_with: the settings that decide the features (model, data and so on), by name. They must equal those in
                the file.
            members: the number of members of the row.
            samples: the number of samples in the training data.

        Raises:
            InputError: if the file was made with another model, other data or other settings, or is broken.
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
        features = []  # of each member
        highest_logits = []  # of each member
        for member in range(members):
            features_of_member = tensors.read(f"features.{member}")  # [N, D]
            highest_of_member = tensors.read(f"highest.{member}")  # [N]: the highest logit of each sample
            features.append(features_of_member.numpy())
            highest_logits.append(highest_of_member.numpy())
        rows = tensors.read("rows").numpy()
        return TrainingFeatures(rows, features, highest_logits, _read_layers(self.path, tensors, members))

    def write(self, training: TrainingFeatures, made_with: Mapping[str, object]) -> None:
        """Write the features and the highest logits of all samples; :meth:`read` must have returned None before.

        Args:
            training: the features of all members.
            made_with: the settings that decide the features, by name; they go into the header, where :meth:`read`
                compares them.
        """
        assert self._output is not None  # read() has returned None
        tensors = {"rows": torch.from_numpy(training.rows)}  # [N]
        for member in range(len(training.features)):
            features = training.features[member]  # [N, D]
            highest_logits = training.highest[member]  # [N]
            tensors[f"features.{member}"] = torch.from_numpy(features)
            tensors[f"highest.{member}"] = torch.from_numpy(highest_logits)
        for member, layers in enumerate(training.layers):
            for place, sums in enumerate(layers):
                for part in _PARTS_OF_LAYERS:
                    tensors[f"layers.{member}.{place}.{part}"] = torch.from_numpy(getattr(sums, part))
        document = {"schema": FEATURES_SCHEMA, **made_with}

        def write_file(handle: IO[bytes]) -> None:
            write_tensors(handle, DictTensors(tensors), document)

        write_with(self._output, write_file)


def open_features(path: Path, stack: ExitStack) -> FeaturesFile:
    """Return the file that stores features: an existing file is read, otherwise a new one is claimed.

    A new file becomes an output of ``stack``, which puts it in place at the end.
    """
    if path.exists():
        return FeaturesFile(path)
    output = stack.enter_context(Output(path))
    return FeaturesFile(output)


def _read_layers(path: Path, tensors: FileTensors, members: int) -> list[list[LayerSums]]:
    """Return for each member the sums of its layers; nothing if the file has none.

    Raises:
        InputError: if a part is missing, or of another shape.
    """
    names = [name for name in tensors.header.tensors if name.startswith("layers.")]
    if not names:
        return []
    count = len(names) // (members * len(_PARTS_OF_LAYERS))
    try:
        return [
            [_read_sums(tensors, f"layers.{member}.{place}") for place in range(count)] for member in range(members)
        ]
    except (KeyError, ValueError):
        raise InputError(f"{path} is broken: its sums of layers are incomplete", hint="remove it") from None


def _read_sums(tensors: FileTensors, start: str) -> LayerSums:
    """Return the sums of one layer.

    Args:
        tensors: the file.
        start: the beginning of their names.

    Raises:
        KeyError: if a part is missing.
        ValueError: if a part is of another shape.
    """
    parts = {part: tensors.read(f"{start}.{part}").numpy() for part in _PARTS_OF_LAYERS}
    (width,) = parts["origin"].shape
    (classes,) = parts["counts"].shape
    if parts["sums"].shape != (classes, width) or parts["products"].shape != (width, width):
        raise ValueError(start)
    return LayerSums(**parts)


def _check_tensors(path: Path, header: Header, members: int, samples: int) -> None:
    """Raise an error if a tensor is missing in a file of features, or has another shape or dtype than needed.

    Args:
        path: the file, for the message.
        header: its header.
        members: the number of members of the row.
        samples: the number of samples in the training data.

    Raises:
        InputError: with the name of the first such tensor.
    """
    # The dtype and the number of dimensions of each tensor. The first dimension is always that of the samples.
    dtype_and_dimensions: dict[str, tuple[str, int]] = {"rows": ("I64", 1)}
    for member in range(members):
        dtype_and_dimensions[f"features.{member}"] = ("F32", 2)
        dtype_and_dimensions[f"highest.{member}"] = ("F64", 1)

    for name, (dtype, dimensions) in dtype_and_dimensions.items():
        info = header.tensors.get(name)
        is_as_expected = (
            info is not None and info.dtype == dtype and len(info.shape) == dimensions and info.shape[0] == samples
        )
        if not is_as_expected:
            raise InputError(f"{path} is broken: its {name} are missing or of another shape", hint="remove it")
