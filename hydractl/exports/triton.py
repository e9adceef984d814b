"""The configuration of an ONNX file for NVIDIA's Triton inference server.

https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hydractl.errors import HydraError

MODEL_FILE = "1/model.onnx"
"""The path of the ONNX file in the model's folder: version 1, with the server's default name."""

CONFIG_FILE = "config.pbtxt"
LABELS_FILE = "labels.txt"

_CLASSES = "probabilities"
"""The output with one number for each class; with a file of labels, the server can return the best classes by name."""

_MOST_DELAY = 2000
"""The longest time in microseconds that a request waits for others."""


class _Tensor(NamedTuple):
    """An input or output of the graph, as Triton describes it.

    Attributes:
        name: the name of the tensor.
        data_type: Triton's name of the number format, e.g. ``TYPE_FP32``.
        sizes: the sizes of all dimensions after the batch; -1 means any size.
    """

    name: str
    data_type: str
    sizes: Sequence[int]


def triton_config(model_path: Path, name: str, max_batch: int) -> str:
    """Return the text of ``config.pbtxt`` for an ONNX file, from the inputs and outputs of its graph.

    The server splits every output along its first dimension between its clients. Outputs whose first dimension is not
    the batch (the logits of members) are left out.

    Args:
        model_path: the ONNX file.
        name: the name of the model's folder in the repository of the server.
        max_batch: the greatest number of samples in one batch.

    Raises:
        HydraError: if the batch of the graph has a fixed size, or Triton does not know a number format.
    """
    import onnx

    model = onnx.load_model(model_path, load_external_data=False)
    # The name of the batch dimension, which comes first in every input. A fixed size has no name.
    batch_name = _first_dimension_name(model.graph.input[0])
    if batch_name is None:
        raise HydraError(f"{model_path} takes no batch of any size, which Triton needs")
    inputs = [_triton_tensor(value) for value in model.graph.input]
    outputs = [_triton_tensor(value) for value in model.graph.output if _first_dimension_name(value) == batch_name]
    labels = labels_of(model_path)

    lines = [
        f"name: {_quoted(name)}",
        'backend: "onnxruntime"',
        f"max_batch_size: {max_batch}",
        f"dynamic_batching {{ max_queue_delay_microseconds: {_MOST_DELAY} }}",
    ]

    # One entry for every input and output; the classes get a file with their names.
    for tensor in inputs:
        lines += _config_lines("input", tensor, [])
    for tensor in outputs:
        extra_lines = []
        if tensor.name == _CLASSES and labels:
            extra_lines.append(f"  label_filename: {_quoted(LABELS_FILE)}")
        lines += _config_lines("output", tensor, extra_lines)
    return "\n".join(lines) + "\n"


def labels_of(model_path: Path) -> list[str]:
    """Return the class names in the metadata of an ONNX file.

    The list is empty if there are none, or if a name has several lines, because the file of labels has one per line.
    """
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
    """Return the name of the first dimension of an input or output; None if it is missing or has a fixed size."""
    dimensions = value.type.tensor_type.shape.dim
    if not dimensions:
        return None
    return dimensions[0].dim_param or None


def _triton_tensor(value: Any) -> _Tensor:
    """Describe an input or output of an ONNX graph in Triton's words.

    Raises:
        HydraError: if Triton does not know its number format.
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

    # The sizes after the batch; -1 means any size.
    sizes = []
    dimensions_after_batch = tensor.shape.dim[1:]
    for dimension in dimensions_after_batch:
        if dimension.HasField("dim_value"):
            sizes.append(dimension.dim_value)
        else:
            sizes.append(-1)
    return _Tensor(value.name, data_types[tensor.elem_type], sizes)


def _config_lines(kind: str, tensor: _Tensor, further: Sequence[str]) -> list[str]:
    """Return the lines of ``config.pbtxt`` for one input or output.

    Args:
        kind: ``input`` or ``output``.
        tensor: the input or output.
        further: more lines to put at the end of the entry.
    """
    lines = [f"{kind} {{", f"  name: {_quoted(tensor.name)}", f"  data_type: {tensor.data_type}"]
    if tensor.sizes:
        sizes = ", ".join(map(str, tensor.sizes))
        lines.append(f"  dims: [ {sizes} ]")
    else:
        # The graph gives one number for each sample, but the server needs a dimension, so it has to reshape.
        lines.append("  dims: [ 1 ]")
        lines.append("  reshape { shape: [ ] }")
    return [*lines, *further, "}"]


def _quoted(text: str) -> str:
    """Quote a text for protobuf's text format: printable ASCII stays, all other bytes are written in octal."""
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
