"""A checkpoint as a model of MLflow: a folder that ``mlflow models serve`` answers from with the rows of ``predict``.

The folder holds no pickle: this module is its loader, and the checkpoint its data.
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
"""The columns of the inputs: bytes of image files; texts, and the second of a pair where there are pairs."""

BATCH_SIZE = 64
"""Samples that are computed together."""

MOST_PIXELS = 25_000_000
"""Pixels of an image, by its header, before it is decoded."""

_NOT_SHOWN = ("id", "label")
"""What rows of unlabelled inputs say nothing by."""


def write_mlflow_model(source: Source, folder: Path) -> None:
    """Write a model into an empty folder, the same bytes for the same model and the same version of Python.

    Args:
        source: the model.
        folder: which is there.
    """
    # What lies beside the weights in a file, such as what its OOD score was fitted to, goes with them.
    tensors = with_tensors(source.tensors, beside(source.tensors))
    description = replace(source.description, layout="sliced")
    with open(folder / CHECKPOINT, "wb") as handle:
        write_tensors(handle, tensors, description.to_json())
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
    """Return the columns of the inputs, in MLflow's words: texts and perhaps their pairs, or bytes of images."""
    if source.description.reads == "text":
        return [
            {"type": "string", "name": TEXT_COLUMN, "required": True},
            {"type": "string", "name": PAIR_COLUMN, "required": False},
        ]
    return [{"type": "binary", "name": IMAGE_COLUMN, "required": True}]


def _output_columns(source: Source) -> list[dict[str, object]]:
    """Return the columns of the answers, in MLflow's words; flags and sets where calibrate made what they need."""
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
    """Open the checkpoint of a folder; MLflow calls this by its name."""
    source = open_source(path)
    return MlflowModel(build_model(source, "auto"))


class MlflowModel:
    """A model as MLflow calls it."""

    def __init__(self, model: HydraModel) -> None:
        self._model = model

    def predict(self, inputs: pandas.DataFrame, params: Mapping[str, Any] | None = None) -> pandas.DataFrame:
        """Return the rows of predict for a table of inputs.

        Args:
            inputs: the columns of the signature.
            params: there are none.

        Raises:
            InputError: an image cannot be decoded or has too many pixels, or the table has other columns.
        """
        try:
            import pandas
        except ImportError:
            raise HydraError("an MLflow model needs pandas, which is not installed", install_hint("pandas")) from None
        samples = self._samples(inputs)
        rows = []
        for start in range(0, len(samples), BATCH_SIZE):
            batch = []
            for place, sample in enumerate(samples[start : start + BATCH_SIZE], start):
                batch.append(self._decoded(sample, place))
            rows += self._predicted_rows(batch)
        return pandas.DataFrame(rows)

    def _samples(self, inputs: pandas.DataFrame) -> list[Any]:
        """Return the inputs of a table, as they are: images, texts, or pairs of texts where there is a second one.

        Raises:
            InputError: it has other columns.
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
        """Return a sample as the model preprocesses it: an image is decoded.

        Raises:
            InputError: it cannot be.
        """
        if self._reads_texts:
            return sample
        try:
            return decoded_image(bytes(sample), MOST_PIXELS)
        except MemoryError:
            raise
        # A damaged file makes the decoders raise nearly anything, in words that quote it.
        except Exception:
            raise InputError(
                f"input {position} is no image that can be decoded, or has more than {MOST_PIXELS:,} pixels"
            ) from None

    def _predicted_rows(self, batch: Sequence[Any]) -> list[dict[str, Any]]:
        """Predict samples, and return a row for each without what unlabelled inputs say nothing by."""
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
