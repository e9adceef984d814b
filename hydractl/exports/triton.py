"""A model repository for Triton: an ONNX file in the folder that the server looks for, and what it asks of it.

https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hydractl.errors import HydraError

MODEL_FILE = "1/model.onnx"
"""The model in its folder: version 1, under the name that the server takes where nothing else is said."""

CONFIG_FILE = "config.pbtxt"
LABELS_FILE = "labels.txt"

_CLASSES = "probabilities"
"""The output that has one number for each class, by which the server may tell the best classes by name."""

_MOST_DELAY = 2000
"""Microseconds that a request waits for others."""


class _Tensor(NamedTuple):
    """An input or an output of the graph.

    Attributes:
        name: its name.
        data_type: Triton's name of its numbers.
        sizes: its dimensions behind the batch; -1 for any size.
    """

    name: str
    data_type: str
    sizes: Sequence[int]


def triton_config(model_path: Path, name: str, max_batch: int) -> str:
    """Return ``config.pbtxt`` of an ONNX file, by what its graph takes and gives.

    Outputs whose first dimension is not the batch, as the logits of members, are left out: the server cuts every
    output into those of its clients.

    Args:
        model_path: the file.
        name: of the folder of the model.
        max_batch: samples that the server computes together, at most.

    Raises:
        HydraError: the graph has no batch of any size, or numbers that the server does not know.
    """
    import onnx

    model = onnx.load_model(model_path, load_external_data=False)
    batch = _first_dimension_name(model.graph.input[0])
    if batch is None:
        raise HydraError(f"{model_path} takes no batch of any size, which Triton needs")
    inputs = [_triton_tensor(value) for value in model.graph.input]
    outputs = [_triton_tensor(value) for value in model.graph.output if _first_dimension_name(value) == batch]
    labels = labels_of(model_path)

    lines = [
        f"name: {_quoted(name)}",
        'backend: "onnxruntime"',
        f"max_batch_size: {max_batch}",
        f"dynamic_batching {{ max_queue_delay_microseconds: {_MOST_DELAY} }}",
    ]
    for tensor in inputs:
        lines += _config_lines("input", tensor, [])
    for tensor in outputs:
        further = []
        if tensor.name == _CLASSES and labels:
            further.append(f"  label_filename: {_quoted(LABELS_FILE)}")
        lines += _config_lines("output", tensor, further)
    return "\n".join(lines) + "\n"


def labels_of(model_path: Path) -> list[str]:
    """Return the names of the classes of an ONNX file, for a file of one a line; empty where that cannot be."""
    import onnx

    model = onnx.load_model(model_path, load_external_data=False)
    for entry in model.metadata_props:
        if entry.key == "hydractl.labels":
            labels = json.loads(entry.value) or []
            if any(len(label.splitlines()) != 1 for label in labels):
                return []
            return list(labels)
    return []


def _first_dimension_name(value: Any) -> str | None:
    """Return the name of the first dimension of an input or output; None where that has a size, or is not there."""
    dimensions = value.type.tensor_type.shape.dim
    if not dimensions:
        return None
    return dimensions[0].dim_param or None


def _triton_tensor(value: Any) -> _Tensor:
    """Return what the configuration says of an input or an output of the graph.

    Raises:
        HydraError: its numbers have no name there.
    """
    import onnx

    data_types = {
        onnx.TensorProto.BOOL: "TYPE_BOOL",
        onnx.TensorProto.UINT8: "TYPE_UINT8",
        onnx.TensorProto.INT32: "TYPE_INT32",
        onnx.TensorProto.INT64: "TYPE_INT64",
        onnx.TensorProto.FLOAT16: "TYPE_FP16",
        onnx.TensorProto.FLOAT: "TYPE_FP32",
        onnx.TensorProto.DOUBLE: "TYPE_FP64",
    }
    tensor = value.type.tensor_type
    if tensor.elem_type not in data_types:
        raise HydraError(f"{value.name} has numbers that Triton has no name for")
    sizes = []
    dimensions_behind_batch = tensor.shape.dim[1:]
    for dimension in dimensions_behind_batch:
        if dimension.HasField("dim_value"):
            sizes.append(dimension.dim_value)
        else:
            sizes.append(-1)
    return _Tensor(value.name, data_types[tensor.elem_type], sizes)


def _config_lines(kind: str, tensor: _Tensor, further: Sequence[str]) -> list[str]:
    """Return the lines of an input or an output, the further ones last.

    Args:
        kind: ``input`` or ``output``.
        tensor: what it is.
        further: lines that only this one has.
    """
    lines = [f"{kind} {{", f"  name: {_quoted(tensor.name)}", f"  data_type: {tensor.data_type}"]
    if tensor.sizes:
        sizes = ", ".join(map(str, tensor.sizes))
        lines.append(f"  dims: [ {sizes} ]")
    else:
        # One number for each sample: the server wants a dimension, which the graph does not have.
        lines.append("  dims: [ 1 ]")
        lines.append("  reshape { shape: [ ] }")
    return [*lines, *further, "}"]


def _quoted(text: str) -> str:
    """Return a text as protobuf's text format has it: printable ASCII, all other bytes in octal."""
    characters = []
    for byte in text.encode("utf-8", "surrogateescape"):
        character = chr(byte)
        if character in '"\\':
            characters.append(f"\\{character}")
        elif 0x20 <= byte < 0x7F:
            characters.append(character)
        else:
            characters.append(f"\\{byte:03o}")
    return f'"{"".join(characters)}"'
