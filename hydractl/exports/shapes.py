"""Names, shapes and dtypes of the inputs and outputs of an exported file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

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
        return {
            "inputs": {name: shape._asdict() for name, shape in self.inputs.items()},
            "outputs": {name: shape._asdict() for name, shape in self.outputs.items()},
        }


def shapes_of(tensors: Mapping[str, Tensor], any_size: Mapping[str, Mapping[int, str]]) -> Shapes:
    """Return the shapes of a graph's inputs or outputs.

    Args:
        tensors: examples by name.
        any_size: for each by name, the dimensions that may have any size: from the index of the dimension to the text
            that says what it counts.
    """
    shapes = {}
    for name, tensor in tensors.items():
        sizes: list[Size] = list(tensor.shape)
        for dimension, counted in any_size[name].items():
            sizes[dimension] = counted
        dtype = str(tensor.dtype).removeprefix("torch.")
        shapes[name] = TensorShape(dtype, tuple(sizes))
    return shapes
