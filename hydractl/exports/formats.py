"""The formats of exported files: how a graph is written to an open file, and how a file is loaded and run."""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import torch

from hydractl.errors import HydraError
from hydractl.exports.graph import Graph, NamedTensors
from hydractl.families.reading import first_line, quiet_logger, refused_as
from hydractl.files.version import __version__

Runner = Callable[[NamedTensors], NamedTensors]
"""A function that runs a file: from inputs to outputs, some of :data:`hydractl.exports.answer.OUTPUTS`, by name."""

EXPORT_SCHEMA = "hydractl.export/2"
OPSET = 20
"""The version of ONNX's operators; ONNX Runtime 1.17 and later know it."""

_OURS = "hydractl."  # the beginning of the names of hydractl's metadata in an ONNX file


class Pt2:
    """The format of ``torch.export``, which plain PyTorch can run.

    Attributes:
        ending: the ending of its files.
        libraries: the packages beside torch that write and check them.
    """

    ending = ".pt2"
    libraries: Sequence[str] = ()

    def write(self, graph: Graph, metadata: Mapping[str, str], handle: IO[bytes]) -> None:
        """Write a graph with its metadata to an open file."""
        # In memory first, and from there to the file. Where a write fails, as on a full disk, torch's writer tries
        # again while it is freed, in C++, and the second failure would end the process by SIGABRT.
        archive = io.BytesIO()
        with warnings.catch_warnings(action="ignore"):
            torch.export.save(graph.program, archive, extra_files=dict(metadata))
        handle.write(archive.getbuffer())

    def runner(self, path: Path) -> tuple[Runner, str]:
        """Return a function from inputs to outputs, both tensors by name, and the name of the runtime with its version.

        It runs with as many threads as torch.
        """
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
    # torch needs onnx and onnxscript to write a file, and the check needs onnxruntime to run it.
    libraries: Sequence[str] = ("onnx", "onnxscript", "onnxruntime")

    def write(self, graph: Graph, metadata: Mapping[str, str], handle: IO[bytes]) -> None:
        """Write a graph with its metadata to an open file.

        Raises:
            HydraError: if torch cannot convert the graph to ONNX.
        """
        import onnx_ir

        try:
            model = _onnx_model(graph)
        except Exception as error:
            raise HydraError(f"torch cannot turn the graph into ONNX: {first_line(error)}") from error
        _forget_sources(model)
        proto = onnx_ir.serde.serialize_model(model)

        # Replace the exporter's metadata; the keys of hydractl have a prefix, so that they cannot clash.
        proto.producer_name = "hydractl"
        proto.producer_version = __version__
        proto.ClearField("metadata_props")
        for key, value in metadata.items():
            proto.metadata_props.add(key=f"{_OURS}{key}", value=value)
        handle.write(proto.SerializeToString(deterministic=True))

    def runner(self, path: Path) -> tuple[Runner, str]:
        """Return a function from inputs to outputs, both tensors by name, and the name of the runtime with its version.

        It runs on the CPU, with as many threads as torch.
        """
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors, no warnings
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


FORMATS: Mapping[str, Onnx | Pt2] = {"onnx": Onnx(), "pt2": Pt2()}
"""The formats by their names for ``--format``."""


def _onnx_model(graph: Graph) -> Any:
    """Return a graph as a model of ``onnx_ir``, converted by torch's exporter."""
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
    """Return the ONNX operators for torch's stable sort, which the exporter cannot translate: sorted values, indices.

    ONNX has no such sort, but TopK of all values sorts them, and keeps the order of equal values.
    """
    import onnxscript

    operators: Any = onnxscript.opset20
    shape = operators.Shape(values)
    length = operators.Gather(shape, operators.Constant(value_ints=[dim]))
    return operators.TopK(values, length, axis=dim, largest=int(descending), sorted=1)


def _forget_sources(model: Any) -> None:
    """Remove the exporter's notes from a model of ``onnx_ir``, in place: paths of source files, names of classes."""
    # Everything that can have notes: the model, its graph and functions, and their nodes and tensors.
    graph = model.graph
    nodes = list(graph.all_nodes())
    tensors = [*graph.inputs, *graph.outputs, *graph.initializers.values()]
    for node in nodes:
        tensors += node.outputs
    functions = model.functions.values()
    for annotated in (model, graph, *functions, *nodes, *tensors):
        annotated.metadata_props.clear()
        annotated.doc_string = None
