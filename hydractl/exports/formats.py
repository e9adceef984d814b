"""Formats of exported files: a graph is written to an open file, and a file is loaded to run it."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import math
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

import torch

from hydractl.errors import HydraError, UsageError
from hydractl.exports import archive
from hydractl.exports.answer import OUTPUTS
from hydractl.exports.graph import Graph, NamedTensors
from hydractl.exports.onnx_graph import files_beside, read_onnx, shapes_of_graph
from hydractl.exports.shapes import GraphShapes
from hydractl.families.reading import first_line, quiet_logger, refused_as
from hydractl.files.version import __version__

Runner = Callable[[NamedTensors], NamedTensors]
"""A file that runs: from inputs to outputs, which are some of :data:`hydractl.exports.answer.OUTPUTS`."""

DATA_SHA256 = "data_sha256"
"""The key in the metadata at which the digest of the weights beside a file stands."""

EXPORT_SCHEMA = "hydractl.export/2"
OPSET = 20
"""The operators of ONNX that are used: ONNX Runtime 1.17 knows them."""

_LIBRARIES = ("onnx", "onnxscript", "onnxruntime")
_EXTERNAL_FROM = 1024  # bytes of a tensor; smaller ones stay in the graph
_NO_LIMIT = 2**62
_WEIGHTS_BESIDE = "session.model_external_initializers_file_folder_path"
_OURS = "hydractl."  # the start of the names of metadata in an ONNX file
_PAGE = 4096  # where tensors start in a file of their own, so that they can be mapped


class Format(Protocol):
    """One format of exported files.

    Attributes:
        ending: of its files.
        exact: whether a file gives what the model gives, but for rounding in float32.
        has_weights_beside: whether weights that are too many for one file may go into another one.
        bytes_per_weight: of a file, about.
    """

    ending: str
    exact: bool
    has_weights_beside: bool
    bytes_per_weight: int

    def require(self) -> None:
        """Raise a UsageError that names those of its libraries that are not installed."""

    def write(self, graph: Graph, metadata: Mapping[str, str], handle: IO[bytes], data: WeightsFile | None) -> None:
        """Write a graph, the weights into ``data`` where that is given and the format may have them beside it."""

    def runner(self, path: Path) -> tuple[Runner, str]:
        """Load a written file; return it, running by as many threads as torch has, and the name of what runs it."""

    def facts(self, path: Path) -> ExportedFacts:
        """Read what a file says of itself, and what its graph takes and gives; nothing in it is run."""


class ExportedFacts(NamedTuple):
    """What is known of a file before it is loaded.

    Attributes:
        metadata: what :meth:`Format.write` put into it; nothing in a file of others.
        shapes: what its graph takes and gives.
        data: the files beside it that hold weights.
    """

    metadata: dict[str, str]
    shapes: GraphShapes
    data: Sequence[Path]


class WeightsFile:
    """A file beside the graph that holds the weights: a message of protobuf has at most 2 GiB.

    Args:
        handle: where they are written.
        location: the name of that file, as the graph is to say it.
    """

    def __init__(self, handle: IO[bytes], location: str) -> None:
        self.handle = handle
        self.location = location
        self.offset = 0
        self._digest = hashlib.sha256()

    def add(self, data: bytes) -> int:
        """Write one tensor; return where it starts, which is at a whole page."""
        pages_in_use = math.ceil(self.offset / _PAGE)
        start = pages_in_use * _PAGE
        padding = bytes(start - self.offset)
        for part in (padding, data):
            self.handle.write(part)
            self._digest.update(part)
        self.offset = start + len(data)
        return start

    @property
    def sha256(self) -> str:
        """The digest of what was written."""
        return self._digest.hexdigest()


class Pt2:
    """``torch.export``'s own file: plain PyTorch runs it."""

    ending = ".pt2"
    exact = True
    has_weights_beside = False
    bytes_per_weight = 4

    def require(self) -> None:
        """Nothing but torch is needed."""

    def write(self, graph: Graph, metadata: Mapping[str, str], handle: IO[bytes], data: WeightsFile | None) -> None:
        with warnings.catch_warnings(action="ignore"):
            torch.export.save(graph.program, handle, extra_files=dict(metadata))

    def runner(self, path: Path) -> tuple[Runner, str]:
        """Return a written file as a function from inputs to outputs by name, and the name of what runs it.

        torch is given a copy that is written from what was checked, never the file itself.
        """
        with archive.opened(path) as checked, tempfile.TemporaryFile() as copy:
            checked.copy(copy)
            with (
                refused_as(f"cannot read {path}"),
                quiet_logger("torch.export"),
                warnings.catch_warnings(action="ignore"),
            ):
                module = torch.export.load(copy).module()

        def run(inputs: NamedTensors) -> NamedTensors:
            with torch.no_grad():
                return module(**inputs)

        version = torch.__version__.split("+")[0]
        return run, f"torch {version}"

    def facts(self, path: Path) -> ExportedFacts:
        with archive.opened(path) as checked:
            return ExportedFacts(checked.metadata, checked.shapes(), [])


class Onnx:
    """ONNX, by torch's own exporter."""

    ending = ".onnx"
    exact = True
    has_weights_beside = True
    bytes_per_weight = 4

    def require(self) -> None:
        # torch needs two of the libraries to write a file, the check one to run it.
        missing = [name for name in _LIBRARIES if importlib.util.find_spec(name) is None]
        if missing:
            raise UsageError(
                f"ONNX files need {', '.join(missing)}, not installed here", hint="pip install 'hydractl[deploy]'"
            )

    def write(self, graph: Graph, metadata: Mapping[str, str], handle: IO[bytes], data: WeightsFile | None) -> None:
        """Write a graph with its metadata; weights of some size into ``data``, where that is given.

        Raises:
            HydraError: torch cannot turn the graph into ONNX.
        """
        import onnx_ir

        try:
            model = _onnx_model(graph)
        except Exception as error:
            raise HydraError(f"torch cannot turn the graph into ONNX: {first_line(error)}") from error
        _forget_sources(model)
        if data is not None:
            _move_weights(model, data)
        message = onnx_ir.serde.serialize_model(model)
        proto = self._finished_message(message)
        proto.producer_name = "hydractl"
        proto.producer_version = __version__
        proto.ClearField("metadata_props")
        if data is not None:
            metadata = {**metadata, DATA_SHA256: data.sha256}
        for key, value in metadata.items():
            proto.metadata_props.add(key=f"{_OURS}{key}", value=value)
        handle.write(proto.SerializeToString(deterministic=True))

    def _finished_message(self, proto: Any) -> Any:
        """Return the message of protobuf as it is written, but for its metadata: here as it is."""
        return proto

    def runner(self, path: Path) -> tuple[Runner, str]:
        """Return a written file as a function from inputs to outputs by name, and the name of what runs it.

        Outputs that are none of hydractl's are not computed.
        """
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = torch.get_num_threads()
        options.add_session_config_entry("session.force_spinning_stop", "1")  # idle threads take no time of others
        _, content = read_onnx(path)
        # What was checked is loaded, and the file is not read again; weights lie beside it.
        folder = os.path.abspath(path.parent)
        options.add_session_config_entry(_WEIGHTS_BESIDE, folder)
        with refused_as(f"cannot read {path}"):
            session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

        names = [output.name for output in session.get_outputs() if output.name in OUTPUTS]

        def run(inputs: NamedTensors) -> NamedTensors:
            arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
            outputs = session.run(names, arrays)
            tensors = map(torch.from_numpy, outputs)
            return dict(zip(names, tensors, strict=True))

        return run, f"onnxruntime {onnxruntime.__version__}"

    def facts(self, path: Path) -> ExportedFacts:
        model, _ = read_onnx(path)
        metadata = {}
        for entry in model.metadata_props:
            if entry.key.startswith(_OURS):
                metadata[entry.key.removeprefix(_OURS)] = entry.value
        return ExportedFacts(metadata, shapes_of_graph(model), files_beside(model, path))


class OnnxInt8(Onnx):
    """ONNX whose constant weights are int8, by ONNX Runtime's dynamic quantisation.

    Weights have seven bits and a scale for each output, activations eight bits and a scale for each call. With the
    eighth bit, sums of products overflow on x86 processors without VNNI, so answers would depend on the machine.
    """

    ending = ".int8.onnx"
    exact = False
    has_weights_beside = False
    bytes_per_weight = 1

    def _finished_message(self, proto: Any) -> Any:
        """Return the message with the weights of its products and look-ups rounded to int8.

        Raises:
            HydraError: ONNX Runtime cannot round them.
        """
        import onnx
        from onnxruntime.quantization import quantize_dynamic

        proto = _with_constants_computed(proto)
        proto.graph.ClearField("value_info")  # the shapes of weights that the quantiser transposes
        proto.metadata_props.add(key="onnx.quant.pre_process", value="onnxruntime.quant")  # else it warns
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "int8.onnx")
            kinds = ["MatMul", "Gather"]  # not convolutions, for which runtimes differ
            not_rounded = _nodes_in_float64(proto)
            try:
                quantize_dynamic(
                    proto,
                    path,
                    op_types_to_quantize=kinds,
                    nodes_to_exclude=not_rounded,
                    per_channel=True,
                    reduce_range=True,
                )
            except Exception as error:
                raise HydraError(f"ONNX Runtime cannot round the weights: {first_line(error)}") from error
            return onnx.load_model(path)


FORMATS: dict[str, Format] = {"onnx": Onnx(), "onnx-int8": OnnxInt8(), "pt2": Pt2()}
"""The formats by the names of ``--format``."""


def kind_of(path: str | os.PathLike[str]) -> str | None:
    """Return the format that a path ends in, the longest ending first; None for no exported file."""
    name = os.fspath(path)
    kinds = [kind for kind, export_format in FORMATS.items() if name.endswith(export_format.ending)]

    def length_of_ending(kind: str) -> int:
        return len(FORMATS[kind].ending)

    return max(kinds, key=length_of_ending, default=None)


def _nodes_in_float64(proto: Any) -> list[str]:
    """Return the names of the nodes behind logits and features: what comes of numbers that were cast to float64."""
    import onnx

    double = onnx.TensorProto.DOUBLE
    values_in_float64: set[str] = set()
    for initializer in proto.graph.initializer:
        if initializer.data_type == double:
            values_in_float64.add(initializer.name)
    nodes = []
    for node in proto.graph.node:  # inputs come before what is made of them
        casts = node.op_type == "Cast" and node.attribute[0].i == double
        takes_float64 = not values_in_float64.isdisjoint(node.input)
        if casts or takes_float64:
            values_in_float64.update(node.output)
            nodes.append(node.name)
    return nodes


def _with_constants_computed(proto: Any) -> Any:
    """Return a message in which weights behind a transposition are constants: it has been carried out."""
    import onnx_ir
    import onnxscript.optimizer

    model = onnx_ir.serde.deserialize_model(proto)
    with quiet_logger("onnxscript"):  # it warns of what it leaves as it is
        onnxscript.optimizer.optimize(model, input_size_limit=_NO_LIMIT, output_size_limit=_NO_LIMIT)
    _forget_sources(model)
    return onnx_ir.serde.serialize_model(model)


def _onnx_model(graph: Graph) -> Any:
    """Return a graph as a model of ``onnx_ir``."""
    # Standard output belongs to the result.
    with (
        warnings.catch_warnings(action="ignore"),
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
    ):
        program = torch.onnx.export(
            graph.program,
            kwargs=dict(graph.example),
            dynamo=True,
            input_names=list(graph.example),
            output_names=list(graph.outputs),
            opset_version=OPSET,
            custom_translation_table={torch.ops.aten.sort.stable: _stable_sort},
            dynamic_shapes=dict(graph.dynamic),
            verbose=False,
        )
    assert program is not None
    return program.model


def _stable_sort(values: Any, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    """Translate the sort that the exporter does not know: TopK of all values, which takes equal ones in their order."""
    import onnxscript

    operators: Any = onnxscript.opset20
    shape = operators.Shape(values)
    length = operators.Gather(shape, operators.Constant(value_ints=[dim]))
    return operators.TopK(values, length, axis=dim, largest=int(descending), sorted=1)


def _forget_sources(model: Any) -> None:
    """Remove what the exporter notes beside the graph: paths of source files and names of classes."""
    graph = model.graph
    nodes = list(graph.all_nodes())
    values = [*graph.inputs, *graph.outputs, *graph.initializers.values()]
    for node in nodes:
        values += node.outputs
    functions = model.functions.values()
    for holder in (model, graph, *functions, *nodes, *values):
        holder.metadata_props.clear()
        holder.doc_string = None


def _move_weights(model: Any, data: WeightsFile) -> None:
    """Write the larger weights into the file beside the graph, in the order of their names."""
    import onnx_ir

    for name, value in sorted(model.graph.initializers.items()):
        tensor = value.const_value
        if tensor.nbytes < _EXTERNAL_FROM:
            continue
        start = data.add(tensor.tobytes())
        value.const_value = onnx_ir.ExternalTensor(
            data.location, start, tensor.nbytes, tensor.dtype, shape=tensor.shape, name=name
        )


def relocated(path: Path, location: str) -> bytes:
    """Return an ONNX file that looks for its weights in the file ``location`` beside it, and is the same otherwise."""
    import onnx

    model = onnx.load_model(os.fspath(path), load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    return model.SerializeToString(deterministic=True)
