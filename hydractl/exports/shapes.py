"""Names, shapes and dtypes of the inputs and outputs of an exported file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from hydractl.exports.answer import MEMBER_LOGITS

Size = int | str
"""The size of a dimension. A dimension of any size has a text that says what it counts, e.g. ``batch``."""


class TensorShape(NamedTuple):
    """The dtype and shape of an input or output.

    Attributes:
        dtype: the number format, e.g. ``float32``.
        shape: the sizes of the dimensions, e.g. ``("batch", 3, 224, 224)``.
    """

    dtype: str
    shape: tuple[Size, ...]

    def __str__(self) -> str:
        sizes = ", ".join(map(str, self.shape))
        return f"{self.dtype} [{sizes}]"


Shapes = Mapping[str, TensorShape]
"""Inputs or outputs by name."""


class GraphShapes(NamedTuple):
    """The inputs and outputs of a graph."""

    inputs: Shapes
    outputs: Shapes

    def to_json(self) -> dict[str, Any]:
        """Return the JSON document in the metadata of a file."""
        return {"inputs": _shapes_document(self.inputs), "outputs": _shapes_document(self.outputs)}


def _shapes_document(shapes: Shapes) -> dict[str, Any]:
    """Return inputs or outputs as a JSON document."""
    return {name: {"dtype": tensor.dtype, "shape": tensor.shape} for name, tensor in shapes.items()}


def shapes_of_inputs(example: Mapping[str, Tensor], dynamic: Mapping[str, Mapping[int, Any]]) -> Shapes:
    """Return the inputs of a graph.

    Args:
        example: example inputs by name.
        dynamic: for each input by name, the dimensions that may have any size: from the index of the dimension to a
            ``torch.export.Dim``, whose name becomes the text of the size.
    """
    shapes = {}
    for name, tensor in example.items():
        sizes: list[Size] = list(tensor.shape)
        for dimension, symbol in dynamic[name].items():
            sizes[dimension] = symbol.__name__
        shapes[name] = TensorShape(_dtype(tensor), tuple(sizes))
    return shapes


def shapes_of_outputs(example: Mapping[str, Tensor]) -> Shapes:
    """Return the outputs of a graph; their batch may have any size.

    Args:
        example: the outputs for an example, by name.
    """
    shapes = {}
    for name, tensor in example.items():
        sizes: list[Size] = list(tensor.shape)
        batch_dimension = 1 if name == MEMBER_LOGITS else 0  # member logits are [members, batch, classes]
        sizes[batch_dimension] = "batch"
        shapes[name] = TensorShape(_dtype(tensor), tuple(sizes))
    return shapes


def _dtype(tensor: Tensor) -> str:
    """Return the number format of a tensor, e.g. ``float32``."""
    return str(tensor.dtype).removeprefix("torch.")
