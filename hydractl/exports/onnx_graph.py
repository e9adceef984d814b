"""Reads an ``.onnx`` file as data, and rejects it if it uses foreign operators or files outside its folder.

ONNX Runtime only runs its own operators, so a graph cannot run other code. But weights may be in other files, and ONNX
Runtime would open any path that the graph names.
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
"""The domains of ONNX's own operators; operators of other domains come from libraries."""
_KEYS = ("location", "offset", "length", "checksum")
_NUMBER_FORMATS = {"FLOAT": "float32", "DOUBLE": "float64"}
"""ONNX's names of number formats that differ from torch's, with torch's names."""
_FLATBUFFER = b"ORTM"
"""The mark of ONNX Runtime's own file format, which is not supported."""


def read_onnx(path: Path) -> tuple[ModelProto, bytes]:
    """Read an ``.onnx`` file, and check everything in it except the values of its weights.

    Returns:
        The file as a message of protobuf, and its bytes. A runtime should load these bytes, not the file again, which
        could have changed.

    Raises:
        InputError: if the file cannot be read, is not an ONNX file, refers to files outside its folder, or uses
            operators that are not ONNX's.
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
    except Exception as error:  # protobuf raises errors of many kinds for damaged messages and texts
        raise InputError(f"{path} is no .onnx file: {first_line(error)}", hint=_HINT) from error
    if not model.graph.node:
        raise InputError(f"{path} is no .onnx file: it has no graph", hint=_HINT)
    if problems:
        first_problem = problems[0]
        listed_problems = problems if len(problems) > 1 else []  # a single one is already in the message
        raise InputError(
            f"{path} is not opened, for it holds what hydractl never exports: {first_problem}",
            hint=_HINT,
            problems=listed_problems,
        )
    return model, content


def shapes_of_graph(model: ModelProto) -> GraphShapes:
    """Return the inputs and outputs of a graph."""
    return GraphShapes(_shapes_by_name(model.graph.input), _shapes_by_name(model.graph.output))


def _shapes_by_name(values: Any) -> Shapes:
    """Return the dtypes and shapes of inputs or outputs by name; a dimension of any size is given as its name."""
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
    """Return torch's name of an ONNX number format, e.g. ``float32``; ``unknown`` if there is no such format."""
    import onnx

    formats = onnx.TensorProto.DataType
    if elem_type not in formats.values():
        return "unknown"
    name = formats.Name(elem_type)
    return _NUMBER_FORMATS.get(name, name.lower())


def files_beside(model: ModelProto, path: Path) -> list[Path]:
    """Return the paths of the files that have weights of a checked graph."""
    return [path.with_name(location) for location in sorted(_names_of_weight_files(model))]


def _names_of_weight_files(model: ModelProto) -> set[str]:
    """Return the names of all other files in which a graph looks for weights."""
    locations = set()
    for tensor in _messages_of_type(model, "TensorProto"):
        for entry in tensor.external_data:
            if entry.key == "location":
                locations.add(entry.value)
    return locations


def _foreign_operators(model: ModelProto) -> list[str]:
    """Return one line for each domain of operators that is neither ONNX's nor defined in the file."""
    domains_in_file = {function.domain for function in model.functions}
    known_domains = domains_in_file.union(_DOMAINS)
    used_domains = {node.domain for node in _messages_of_type(model, "NodeProto")}
    foreign_domains = sorted(used_domains - known_domains)
    return [f"operators of {shown(domain)}" for domain in foreign_domains]


def _files_outside(model: ModelProto, path: Path) -> list[str]:
    """Return one line for each file with weights that is not a regular file in the folder of the graph.

    Unknown entries in the location of weights are reported as well.
    """
    problems = []
    for tensor in _messages_of_type(model, "TensorProto"):
        keys = {entry.key for entry in tensor.external_data}
        unknown_keys = keys - set(_KEYS)
        if unknown_keys:
            problems.append(f"weights with {shown(min(unknown_keys))}")
    for location in sorted(_names_of_weight_files(model)):
        problem = _location_problem(location, path)
        if problem is not None:
            problems.append(problem)
    return problems


def _location_problem(location: str, path: Path) -> str | None:
    """Return the problem with a file of weights; None if it is a regular file in the folder of the graph.

    Args:
        location: the path of the weights as the graph states it.
        path: the path of the graph.
    """
    shown_location = shown(location)
    # The location must be the name of a file, without any folder.
    is_bare_name = os.path.basename(location) == location
    is_name_of_folder = location in ("", ".", "..")
    has_odd_characters = "\\" in location or "\0" in location
    if not is_bare_name or is_name_of_folder or has_odd_characters:
        return f"weights in {shown_location}, outside its folder"
    weights = path.with_name(location)
    if not os.path.exists(weights):
        return f"weights in {shown_location}, which is not there"

    # Both files may be symbolic links, e.g. in the cache of the hub. The weights must really be in the folder of the
    # link to the graph, or in the folder of the graph itself.
    folder_of_path = os.path.realpath(path.parent)
    folder_of_graph = os.path.dirname(os.path.realpath(path))
    real_weights = os.path.realpath(weights)
    folder_of_weights = os.path.dirname(real_weights)
    if folder_of_weights not in (folder_of_path, folder_of_graph):
        return f"weights in {shown_location}, a link that leads out of its folder"
    if not os.path.isfile(real_weights):
        return f"weights in {shown_location}, which is no regular file"
    return None


def _messages_of_type(message: Any, name: str) -> Iterator[Any]:
    """Yield every message of a type inside a message of protobuf, at any depth, the message itself included.

    Args:
        message: the message to search.
        name: the name of the type, e.g. ``NodeProto``.
    """
    if message.DESCRIPTOR.name == name:
        yield message
    if message.DESCRIPTOR.name == "TensorProto":
        return  # a tensor contains only numbers, so there is nothing to search
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for item in _messages_of_field(value):
            yield from _messages_of_type(item, name)


def _messages_of_field(value: Any) -> Any:
    """Return the messages of a field as an iterable; the field is one message or a list of messages."""
    if hasattr(value, "DESCRIPTOR"):
        return [value]
    return value
