"""A checkpoint as an MLflow model: a folder from which ``mlflow models serve`` answers with the rows of ``predict``.

The folder holds no pickle: MLflow loads it with this module, and the checkpoint is its data.
https://mlflow.org/docs/latest/ml/model/#storage-format
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import yaml

from hydractl.data.files import decoded_image
from hydractl.errors import HydraError, InputError, install_hint
from hydractl.evaluation.predicting import LineForm, prediction_rows
from hydractl.files.checkpoint import beside, with_tensors, write_tensors
from hydractl.files.version import __version__
from hydractl.model.loading import build_model
from hydractl.model.runtime import HydraModel, move
from hydractl.model.source import Source, open_source

if TYPE_CHECKING:
    import pandas

CHECKPOINT = "model.st"
"""The checkpoint in the folder."""

IMAGE_COLUMN = "image"
TEXT_COLUMN = "text"
PAIR_COLUMN = "text_b"
"""The columns of the inputs: bytes of image files; texts; for pairs of texts, the second text."""

BATCH_SIZE = 64
"""The largest number of samples that are computed together."""

MOST_PIXELS = 25_000_000
"""The largest number of pixels of an image, by its header."""

_NOT_SHOWN = ("id", "label")
"""The keys of a row that have no meaning for inputs without a name or a label."""


def write_mlflow_model(source: Source, folder: Path) -> None:
    """Write a model into an empty folder. The same model and the same version of Python give the same bytes.

    Args:
        source: the model.
        folder: an empty folder.
    """
    # Write the checkpoint, with the tensors that it stores beside the weights, such as fitted statistics of OOD scores.
    tensors = with_tensors(source.tensors, beside(source.tensors))
    description = replace(source.description, layout="sliced")
    with open(folder / CHECKPOINT, "wb") as handle:
        write_tensors(handle, tensors, description.to_json())

    # Write the files that MLflow reads.
    model = {
        "flavors": {
            "python_function": {
                "data": CHECKPOINT,
                "env": {"virtualenv": "python_env.yaml"},
                "loader_module": __name__,
                "python_version": platform.python_version(),
            }
        },
        "signature": {
            "inputs": json.dumps(_input_columns(source)),
            "outputs": json.dumps(_output_columns(source)),
            "params": None,
        },
    }
    _write_yaml(folder / "MLmodel", model)
    python = {"python": platform.python_version(), "dependencies": [{"-r": "requirements.txt"}]}
    _write_yaml(folder / "python_env.yaml", python)
    (folder / "requirements.txt").write_text(f"hydractl[mlflow]=={__version__}\n", encoding="utf-8")


def _write_yaml(path: Path, document: Mapping[str, object]) -> None:
    path.write_text(yaml.safe_dump(dict(document), sort_keys=True), encoding="utf-8")


def _input_columns(source: Source) -> list[dict[str, object]]:
    """Return the columns of the inputs in MLflow's form: texts and optionally their pairs, or bytes of images."""
    if source.description.reads == "text":
        return [
            {"type": "string", "name": TEXT_COLUMN, "required": True},
            {"type": "string", "name": PAIR_COLUMN, "required": False},
        ]
    return [{"type": "binary", "name": IMAGE_COLUMN, "required": True}]


def _output_columns(source: Source) -> list[dict[str, object]]:
    """Return the columns of the answers in MLflow's form; flags and sets only if calibrate has stored their basis."""
    class_type = "long"
    if source.description.labels:
        class_type = "string"
    columns: list[dict[str, object]] = [
        {"type": class_type, "name": "predicted", "required": True},
        {"type": "double", "name": "confidence", "required": True},
        {"type": "double", "name": "entropy", "required": True},
        {"type": "double", "name": "mi", "required": True},
        {"type": "double", "name": "ood_score", "required": False},
    ]
    if "threshold" in source.description.extra:
        columns.append({"type": "boolean", "name": "is_ood", "required": False})
    if "conformal" in source.description.extra:
        columns.append({"type": "array", "items": {"type": class_type}, "name": "set", "required": True})
    return columns


def _load_pyfunc(path: str) -> MlflowModel:
    """Open the checkpoint of a folder; MLflow calls this function by its name."""
    source = open_source(path)
    return MlflowModel(build_model(source, "auto"))


class MlflowModel:
    """A model with the interface that MLflow calls."""

    def __init__(self, model: HydraModel) -> None:
        self._model = model

    def predict(self, inputs: pandas.DataFrame, params: Mapping[str, Any] | None = None) -> pandas.DataFrame:
        """Return the rows of ``predict`` for a table of inputs.

        Args:
            inputs: a table with the columns of the signature.
            params: not used.

        Raises:
            InputError: an image cannot be decoded or has too many pixels, or the table lacks a column.
        """
        try:
            import pandas
        except ImportError:
            raise HydraError("an MLflow model needs pandas, which is not installed", install_hint("pandas")) from None
        samples = self._samples(inputs)
        rows = []
        for start in range(0, len(samples), BATCH_SIZE):
            batch = []
            for position, sample in enumerate(samples[start : start + BATCH_SIZE], start):
                batch.append(self._decoded(sample, position))
            rows += self._predicted_rows(batch)
        return pandas.DataFrame(rows)

    def _samples(self, inputs: pandas.DataFrame) -> list[Any]:
        """Return the inputs of a table, not yet decoded: images, texts, or pairs of texts in rows with a second text.

        Raises:
            InputError: the table lacks the column of the inputs.
        """
        column = IMAGE_COLUMN
        if self._reads_texts:
            column = TEXT_COLUMN
        if column not in inputs.columns:
            raise InputError(f"the model takes a column named {column}")
        values = list(inputs[column])
        if not self._reads_texts or PAIR_COLUMN not in inputs.columns:
            return values
        samples: list[Any] = []
        for text, second in zip(values, inputs[PAIR_COLUMN], strict=True):
            if isinstance(second, str):
                samples.append((text, second))
            else:
                samples.append(text)  # an empty cell of the second column is NaN or None
        return samples

    @property
    def _reads_texts(self) -> bool:
        return self._model.description.reads == "text"

    def _decoded(self, sample: Any, position: int) -> Any:
        """Return a sample in the form that the model preprocesses; images are decoded.

        Raises:
            InputError: the image cannot be decoded, or has too many pixels.
        """
        if self._reads_texts:
            return sample
        try:
            return decoded_image(bytes(sample), MOST_PIXELS)
        except MemoryError:
            raise
        # For a damaged file the decoders may raise nearly any error, whose text may quote the file.
        except Exception:
            raise InputError(
                f"input {position} is no image that can be decoded, or has more than {MOST_PIXELS:,} pixels"
            ) from None

    def _predicted_rows(self, batch: Sequence[Any]) -> list[dict[str, Any]]:
        """Predict samples; return a row for each, without keys that mean nothing for unnamed, unlabelled inputs."""
        inputs = move(self._model.preprocess(list(batch)), self._model.device, self._model.dtype)
        with torch.inference_mode():
            prediction = self._model.predict(inputs)
        no_names = [""] * len(batch)
        no_labels = [None] * len(batch)
        rows = prediction_rows(prediction, no_names, no_labels, LineForm())
        for row in rows:
            for key in _NOT_SHOWN:
                del row[key]
        return rows
