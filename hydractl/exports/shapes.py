"""The inputs and outputs of an exported file: what its metadata say of them, and what its graph has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from hydractl.exports.answer import MEMBER_LOGITS
from hydractl.jsonio import shown

Size = int | str
"""The size of a dimension; a text where it may have any, which says what is counted."""


class TensorShape(NamedTuple):
    """An input or an output.

    Attributes:
        dtype: its number format.
        shape: the sizes of its dimensions.
    """

    dtype: str
    shape: tuple[Size, ...]

    def __str__(self) -> str:
        sizes = ", ".join(map(str, self.shape))
        return f"{self.dtype} [{sizes}]"

    def like(self, other: TensorShape) -> bool:
        """Return whether another one is the same but for the names of sizes."""
        if self.dtype != other.dtype:
            return False
        return _without_names(self.shape) == _without_names(other.shape)


def _without_names(shape: Sequence[Size]) -> list[int | None]:
    """Return the sizes of dimensions, None in the place of one that may have any."""
    sizes: list[int | None] = []
    for size in shape:
        if isinstance(size, int):
            sizes.append(size)
        else:
            sizes.append(None)
    return sizes


Shapes = Mapping[str, TensorShape]
"""Inputs or outputs by name."""


class GraphShapes(NamedTuple):
    """What a graph takes and gives."""

    inputs: Shapes
    outputs: Shapes

    def to_json(self) -> dict[str, Any]:
        """Return the document that :meth:`from_json` reads."""
        return {"inputs": _shapes_document(self.inputs), "outputs": _shapes_document(self.outputs)}

    @classmethod
    def from_json(cls, document: Any) -> GraphShapes:
        """Read what an exported file says of its inputs and outputs.

        Raises:
            ValueError: it is no such document; its text says where.
        """
        if not isinstance(document, Mapping) or set(document) != set(cls._fields):
            raise ValueError(f"the shapes {shown(document)}")
        inputs = _shapes(document["inputs"])
        outputs = _shapes(document["outputs"])
        return cls(inputs, outputs)


def _shapes_document(shapes: Shapes) -> dict[str, Any]:
    """Return inputs or outputs as JSON has them."""
    return {name: {"dtype": tensor.dtype, "shape": tensor.shape} for name, tensor in shapes.items()}


def _shapes(entries: Any) -> Shapes:
    """Read inputs or outputs, by name.

    Raises:
        ValueError: an entry is none; its text says which.
    """
    if not isinstance(entries, Mapping):
        raise ValueError(f"the shapes {shown(entries)}")
    shapes = {}
    for name, entry in entries.items():
        shape = _tensor_shape(entry)
        if shape is None:
            raise ValueError(f"the shape {shown(entry)} of {shown(name)}")
        shapes[name] = shape
    return shapes


def _tensor_shape(entry: Any) -> TensorShape | None:
    """Return the shape that an entry says; None where it is none."""
    if not isinstance(entry, Mapping) or set(entry) != set(TensorShape._fields):
        return None
    dtype = entry["dtype"]
    sizes = entry["shape"]
    if not isinstance(dtype, str) or not isinstance(sizes, list):
        return None
    if not all(type(size) in (int, str) for size in sizes):  # no truth value, which is an int as well
        return None
    return TensorShape(dtype, tuple(sizes))


def shapes_of_inputs(example: Mapping[str, Tensor], dynamic: Mapping[str, Mapping[int, Any]]) -> Shapes:
    """Return the inputs of a graph.

    Args:
        example: by name tensors that it takes.
        dynamic: by name which of their dimensions may have any size, each with the dimension of torch.export.
    """
    shapes = {}
    for name, tensor in example.items():
        sizes: list[Size] = list(tensor.shape)
        for dimension, symbol in dynamic[name].items():
            sizes[dimension] = symbol.__name__
        shapes[name] = TensorShape(_dtype(tensor), tuple(sizes))
    return shapes


def shapes_of_outputs(example: Mapping[str, Tensor]) -> Shapes:
    """Return the outputs of a graph, from those for an example: the batch may have any size."""
    shapes = {}
    for name, tensor in example.items():
        sizes: list[Size] = list(tensor.shape)
        batch_dimension = 0
        if name == MEMBER_LOGITS:
            batch_dimension = 1  # behind the members
        sizes[batch_dimension] = "batch"
        shapes[name] = TensorShape(_dtype(tensor), tuple(sizes))
    return shapes


def _dtype(tensor: Tensor) -> str:
    """Return the number format of a tensor: ``float32``."""
    return str(tensor.dtype).removeprefix("torch.")
