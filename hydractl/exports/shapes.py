"""Names, shapes and dtypes of the inputs and outputs of an exported file, in its metadata and in its graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from hydractl.exports.answer import MEMBER_LOGITS
from hydractl.jsonio import shown

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

    def like(self, other: TensorShape) -> bool:
        """Return whether dtype and shape are equal; the texts of dimensions of any size may differ."""
        if self.dtype != other.dtype:
            return False
        return _without_names(self.shape) == _without_names(other.shape)


def _without_names(shape: Sequence[Size]) -> list[int | None]:
    """Return the sizes of the dimensions, with None for dimensions of any size."""
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
    """The inputs and outputs of a graph."""

    inputs: Shapes
    outputs: Shapes

    def to_json(self) -> dict[str, Any]:
        """Return a JSON document that :meth:`from_json` can read."""
        return {"inputs": _shapes_document(self.inputs), "outputs": _shapes_document(self.outputs)}

    @classmethod
    def from_json(cls, document: Any) -> GraphShapes:
        """Read the inputs and outputs from a JSON document in an exported file.

        Raises:
            ValueError: if the document has another form; the message names the wrong part.
        """
        if not isinstance(document, Mapping) or set(document) != set(cls._fields):
            raise ValueError(f"the shapes {shown(document)}")
        inputs = _shapes(document["inputs"])
        outputs = _shapes(document["outputs"])
        return cls(inputs, outputs)


def _shapes_document(shapes: Shapes) -> dict[str, Any]:
    """Return inputs or outputs as a JSON document."""
    return {name: {"dtype": tensor.dtype, "shape": tensor.shape} for name, tensor in shapes.items()}


def _shapes(entries: Any) -> Shapes:
    """Read inputs or outputs from a JSON document.

    Args:
        entries: the document: an object with the dtype and shape of each tensor, by name.

    Raises:
        ValueError: if the document or an entry has another form; the message names the first such entry.
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
    """Read one entry ``{"dtype": "float32", "shape": ["batch", 10]}``; return None if it has another form."""
    if not isinstance(entry, Mapping) or set(entry) != set(TensorShape._fields):
        return None
    dtype = entry["dtype"]
    sizes = entry["shape"]
    if not isinstance(dtype, str) or not isinstance(sizes, list):
        return None
    if not all(type(size) in (int, str) for size in sizes):  # type(), because a bool is an instance of int
        return None
    return TensorShape(dtype, tuple(sizes))


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
        batch_dimension = 0
        if name == MEMBER_LOGITS:
            batch_dimension = 1  # [members, batch, classes]
        sizes[batch_dimension] = "batch"
        shapes[name] = TensorShape(_dtype(tensor), tuple(sizes))
    return shapes


def _dtype(tensor: Tensor) -> str:
    """Return the number format of a tensor, e.g. ``float32``."""
    return str(tensor.dtype).removeprefix("torch.")
