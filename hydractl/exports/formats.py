"""The formats of exported files: how a graph is written to an open file, and how a file is loaded and run."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import math
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Protocol

import torch

from hydractl.errors import HydraError, UsageError
from hydractl.exports.graph import Graph, NamedTensors
from hydractl.families.reading import first_line, quiet_logger, refused_as
from hydractl.files.version import __version__

Runner = Callable[[NamedTensors], NamedTensors]
"""A function that runs a file: from inputs to outputs, some of :data:`hydractl.exports.answer.OUTPUTS`, by name."""

DATA_SHA256 = "data_sha256"
"""The key in the metadata of the SHA-256 of a second file of weights."""

EXPORT_SCHEMA = "hydractl.export/2"
OPSET = 20
"""The version of ONNX's operators; ONNX Runtime 1.17 and later know it."""

_LIBRARIES = ("onnx", "onnxscript", "onnxruntime")
_EXTERNAL_FROM = 1024  # tensors with fewer bytes stay in the graph even if there is a second file of weights
_OURS = "hydractl."  # the beginning of the names of hydractl's metadata in an ONNX file
_PAGE = 4096  # tensors in a second file start at multiples of this, so that they can be mapped into memory


class Format(Protocol):
    """One format of exported files.

    Attributes:
        ending: the ending of its files, e.g. ``.onnx``.
        has_weights_beside: whether weights may go into a second file if they do not fit into one.
    """

    ending: str
    has_weights_beside: bool

    def require(self) -> None:
        """Raise a UsageError if libraries for this format are not installed; the message names them."""

    def write(self, graph: Graph, metadata: Mapping[str, str], handle: IO[bytes], data: WeightsFile | None) -> None:
        """Write a graph with its metadata to ``handle``; if ``data`` is not None, write the weights there."""

    def runner(self, path: Path) -> tuple[Runner, str]:
        """Load a file; return a function that runs it with as many threads as torch, and the name of the runtime."""


class WeightsFile:
    """A second file for the weights of an ONNX file, because a message of protobuf is limited to 2 GiB.

    Attributes:
        handle: the open file.
        location: the file name by which the graph refers to it.
        offset: the number of bytes written so far.
    """

    def __init__(self, handle: IO[bytes], location: str) -> None:
        self.handle = handle
        self.location = location
        self.offset = 0
        self._digest = hashlib.sha256()

    def add(self, data: bytes) -> int:
        """Write the bytes of one tensor at the next multiple of 4096, and return this position."""
        pages_in_use = math.ceil(self.offset / _PAGE)
        start = pages_in_use * _PAGE
        padding = bytes(start - self.offset)
        for chunk in (padding, data):
            self.handle.write(chunk)
            self._digest.update(chunk)
        self.offset = start + len(data)
        return start

    @property
    def sha256(self) -> str:
        """The SHA-256 of everything that was written."""
        return self._digest.hexdigest()


class Pt2:
    """The format of ``torch.export``, which plain PyTorch can run."""

    ending = ".pt2"
    has_weights_beside = False

    def require(self) -> None:
        """Do nothing, because only torch is needed."""

    def write(self, graph: Graph, metadata: Mapping[str, str], handle: IO[bytes], data: WeightsFile | None) -> None:
        # In memory first: where a write fails, as on a full disk, torch's writer tries again while it is freed, in C++,
        # and the second failure ends the process by SIGABRT.
        archive = io.BytesIO()
        with warnings.catch_warnings(action="ignore"):
            torch.export.save(graph.program, archive, extra_files=dict(metadata))
        handle.write(archive.getbuffer())

    def runner(self, path: Path) -> tuple[Runner, str]:
        # torch takes a path only if it ends in .pt2, and a file that is not checked yet has another name.
        with (
            open(path, "rb") as handle,
            refused_as(f"cannot read {path}"),
            quiet_logger("torch.export"),
            warnings.catch_warnings(action="ignore"),
        ):
            module = torch.export.load(handle).module()

        def run(inputs: NamedTensors) -> NamedTensors:
            with torch.no_grad():
                return module(**inputs)

        version = torch.__version__.split("+")[0]
        return run, f"torch {version}"


class Onnx:
    """The format ONNX, written by torch's own exporter and run by ONNX Runtime."""

    ending = ".onnx"
    has_weights_beside = True

    def require(self) -> None:
        # torch needs onnx and onnxscript to write a file, and the check needs onnxruntime to run it.
        missing_libraries = [name for name in _LIBRARIES if importlib.util.find_spec(name) is None]
        if missing_libraries:
            raise UsageError(
                f"ONNX files need {', '.join(missing_libraries)}, not installed here",
                hint="pip install 'hydractl[deploy]'",
            )

    def write(self, graph: Graph, metadata: Mapping[str, str], handle: IO[bytes], data: WeightsFile | None) -> None:
        """Write a graph with its metadata.

        Args:
            graph: the traced model.
            metadata: texts by name.
            handle: the open file.
            data: the second file for weights of at least 1 KiB; None if all weights go into the first file.

        Raises:
            HydraError: if torch cannot convert the graph to ONNX.
        """
        import onnx_ir

        try:
            model = _onnx_model(graph)
        except Exception as error:
            raise HydraError(f"torch cannot turn the graph into ONNX: {first_line(error)}") from error
        _forget_sources(model)
        if data is not None:
            _move_weights(model, data)
        proto = onnx_ir.serde.serialize_model(model)

        # The metadata.
        proto.producer_name = "hydractl"
        proto.producer_version = __version__
        proto.ClearField("metadata_props")
        entries = dict(metadata)
        if data is not None:
            entries[DATA_SHA256] = data.sha256
        for key, value in entries.items():
            proto.metadata_props.add(key=f"{_OURS}{key}", value=value)
        handle.write(proto.SerializeToString(deterministic=True))

    def runner(self, path: Path) -> tuple[Runner, str]:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = torch.get_num_threads()
        # Idle threads would otherwise keep the processor busy.
        options.add_session_config_entry("session.force_spinning_stop", "1")

        with refused_as(f"cannot read {path}"):
            session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]

        def run(inputs: NamedTensors) -> NamedTensors:
            arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
            outputs = session.run(names, arrays)
            tensors = map(torch.from_numpy, outputs)
            return dict(zip(names, tensors, strict=True))

        return run, f"onnxruntime {onnxruntime.__version__}"


FORMATS: dict[str, Format] = {"onnx": Onnx(), "pt2": Pt2()}
"""The formats by their names for ``--format``."""


def _onnx_model(graph: Graph) -> Any:
    """Convert a graph to a model of ``onnx_ir`` with torch's exporter."""
    # The exporter prints to standard output, where hydractl prints its results, so send this to the null device.
    with (
        warnings.catch_warnings(action="ignore"),
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
    ):
        # The example only says what the inputs are: sizes that may vary are listed as dynamic.
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
    """Translate torch's stable sort, which the exporter does not know, to ONNX.

    TopK of all values sorts them, and keeps the order of equal values.
    """
    import onnxscript

    operators: Any = onnxscript.opset20
    shape = operators.Shape(values)
    length = operators.Gather(shape, operators.Constant(value_ints=[dim]))
    return operators.TopK(values, length, axis=dim, largest=int(descending), sorted=1)


def _forget_sources(model: Any) -> None:
    """Remove the exporter's notes from a model of ``onnx_ir``, in place: paths of source files, names of classes."""
    graph = model.graph
    nodes = list(graph.all_nodes())
    tensors = [*graph.inputs, *graph.outputs, *graph.initializers.values()]
    for node in nodes:
        tensors += node.outputs
    functions = model.functions.values()
    for annotated in (model, graph, *functions, *nodes, *tensors):
        annotated.metadata_props.clear()
        annotated.doc_string = None


def _move_weights(model: Any, data: WeightsFile) -> None:
    """Move weights of at least 1 KiB from a model of ``onnx_ir`` to the second file, in the order of their names.

    In the model, in place, they are replaced by references to the file.
    """
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
    """Return the bytes of an ONNX file, changed to refer to the file ``location`` for its external weights."""
    import onnx

    model = onnx.load_model(os.fspath(path), load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    return model.SerializeToString(deterministic=True)
