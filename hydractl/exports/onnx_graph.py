"""An ``.onnx`` file read as data: what it may name beside itself, and which operators it may ask for.

ONNX Runtime runs operators that it has itself, so a graph runs no code of its own; but weights in a file of their own
are looked for under any path that the graph names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydractl.errors import InputError
from hydractl.exports.shapes import GraphShapes, Shapes, Size, TensorShape
from hydractl.families.reading import first_line
from hydractl.jsonio import shown

if TYPE_CHECKING:
    from onnx import ModelProto

_HINT = "export its checkpoint again: hydractl export FILE.st --format onnx"
_DOMAINS = ("", "ai.onnx")
"""Domains of ONNX's own operators; those of others come from libraries."""
_KEYS = ("location", "offset", "length", "checksum")
_NUMBER_FORMATS = {"FLOAT": "float32", "DOUBLE": "float64"}
"""Number formats that ONNX calls otherwise than torch."""
_FLATBUFFER = b"ORTM"
"""The mark of a format of ONNX Runtime's own, which nothing here reads."""


def read_onnx(path: Path) -> tuple[ModelProto, bytes]:
    """Read and check an ``.onnx`` file, but for the numbers of its weights.

    Returns:
        The file as a message, and its bytes: nothing else is to be loaded.

    Raises:
        InputError: it cannot be read, or names files outside its folder or operators that are not ONNX's.
    """
    import onnx

    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    if content[4:8] == _FLATBUFFER:
        raise InputError(f"{path} is in a format of ONNX Runtime's own, no .onnx file", hint=_HINT)
    try:
        model = onnx.load_model_from_string(content)
        problems = [*_foreign_operators(model), *_files_outside(model, path)]
    except Exception as error:  # whatever protobuf makes of a damaged message, and of texts in it that are no UTF-8
        raise InputError(f"{path} is no .onnx file: {first_line(error)}", hint=_HINT) from error
    if not model.graph.node:
        raise InputError(f"{path} is no .onnx file: it has no graph", hint=_HINT)
    if problems:
        first = problems[0]
        if len(problems) == 1:
            problems = []  # the message says it all
        raise InputError(
            f"{path} is not opened, for it holds what hydractl never exports: {first}",
            hint=_HINT,
            problems=problems,
        )
    return model, content


def shapes_of_graph(model: ModelProto) -> GraphShapes:
    """Return what a graph takes and gives."""
    return GraphShapes(_shapes_by_name(model.graph.input), _shapes_by_name(model.graph.output))


def _shapes_by_name(values: Any) -> Shapes:
    """Return the inputs or outputs of a graph by name; a size that is not fixed as the name of its dimension."""
    shapes = {}
    for value in values:
        tensor = value.type.tensor_type
        sizes: list[Size] = []
        for dimension in tensor.shape.dim:
            if dimension.HasField("dim_value"):
                sizes.append(dimension.dim_value)
            else:
                sizes.append(dimension.dim_param)
        dtype = _number_format(tensor.elem_type)
        shapes[value.name] = TensorShape(dtype, tuple(sizes))
    return shapes


def _number_format(elem_type: int) -> str:
    """Return torch's name of one of ONNX's number formats; ``unknown`` for a number that is none."""
    import onnx

    formats = onnx.TensorProto.DataType
    if elem_type not in formats.values():
        return "unknown"
    name = formats.Name(elem_type)
    return _NUMBER_FORMATS.get(name, name.lower())


def files_beside(model: ModelProto, path: Path) -> list[Path]:
    """Return the files beside a checked graph that hold its weights."""
    return [path.with_name(location) for location in sorted(_names_of_weight_files(model))]


def _names_of_weight_files(model: ModelProto) -> set[str]:
    """Return the names of the files that weights lie in."""
    locations = set()
    for tensor in _messages_of_type(model, "TensorProto"):
        for entry in tensor.external_data:
            if entry.key == "location":
                locations.add(entry.value)
    return locations


def _foreign_operators(model: ModelProto) -> list[str]:
    """List each domain of operators that neither ONNX nor the file itself defines, a line each."""
    defined_here = {function.domain for function in model.functions}
    known = defined_here.union(_DOMAINS)
    named = {node.domain for node in _messages_of_type(model, "NodeProto")}
    foreign = sorted(named - known)
    return [f"operators of {shown(domain)}" for domain in foreign]


def _files_outside(model: ModelProto, path: Path) -> list[str]:
    """List each place of weights that is no file in the folder of the graph, a line each."""
    problems = []
    for tensor in _messages_of_type(model, "TensorProto"):
        keys = {entry.key for entry in tensor.external_data}
        unknown = keys - set(_KEYS)
        if unknown:
            problems.append(f"weights with {shown(min(unknown))}")
    for location in sorted(_names_of_weight_files(model)):
        problem = _location_problem(location, path)
        if problem is not None:
            problems.append(problem)
    return problems


def _location_problem(location: str, path: Path) -> str | None:
    """Return the problem with a file of weights; None for a regular file beside the graph.

    Args:
        location: where the graph says that the weights lie.
        path: of the graph.
    """
    shown_location = shown(location)
    is_bare_name = os.path.basename(location) == location
    is_name_of_folder = location in ("", ".", "..")
    has_odd_characters = "\\" in location or "\0" in location
    if not is_bare_name or is_name_of_folder or has_odd_characters:
        return f"weights in {shown_location}, outside its folder"
    beside = path.with_name(location)
    if not os.path.exists(beside):
        return f"weights in {shown_location}, which is not there"
    # The folder of the path, and that of the file where the path is a link to it.
    folder = os.path.realpath(path.parent)
    folder_of_file = os.path.dirname(os.path.realpath(path))
    target = os.path.realpath(beside)
    folder_of_target = os.path.dirname(target)
    if folder_of_target not in (folder, folder_of_file):
        return f"weights in {shown_location}, a link that leads out of its folder"
    if not os.path.isfile(target):
        return f"weights in {shown_location}, which is no regular file"
    return None


def _messages_of_type(message: Any, name: str) -> Iterator[Any]:
    """Yield every message of the type ``name`` in a message of protobuf, in graphs inside of graphs too."""
    if message.DESCRIPTOR.name == name:
        yield message
    if message.DESCRIPTOR.name == "TensorProto":
        return  # holds numbers alone
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for item in _messages_of_field(value):
            yield from _messages_of_type(item, name)


def _messages_of_field(value: Any) -> Any:
    """Return the messages of a field, which is one or a list of them."""
    if hasattr(value, "DESCRIPTOR"):
        return [value]
    return value
