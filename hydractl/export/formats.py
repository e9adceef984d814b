"""The two exported formats: writing a graph to an open file, and loading the file to run it."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Protocol

import torch
from torch import Tensor

import hydractl
from hydractl.errors import HydraError, UsageError
from hydractl.export.graph import OUTPUTS, Graph, Named
from hydractl.families.reading import first_line
from hydractl.files.description import Description
from hydractl.jsonio import canonical_json

Runner = Callable[[Named], Mapping[str, Tensor]]

EXPORT_SCHEMA = "hydractl.export/1"
OPSET = 20
"""The operators of ONNX that are used: ONNX Runtime 1.17 knows them."""

_LIBRARIES = ("onnx", "onnxscript", "onnxruntime")
_EXTERNAL_FROM = 1024  # bytes of a tensor; smaller ones stay in the graph
_PAGE = 4096  # where tensors start in a file of their own, so that they can be mapped


def metadata_of(description: Description, inputs: list[str]) -> dict[str, str]:
    """Metadata of an exported file, every value a text.

    Args:
        description: of the model.
        inputs: SHA-256 of the models it was made of.
    """
    return {
        "schema": EXPORT_SCHEMA,
        "hydractl": hydractl.__version__,
        "torch": torch.__version__.split("+")[0],
        "arch": description.arch,
        "members": str(len(description.masks)),
        "labels": json.dumps(None if description.labels is None else list(description.labels), ensure_ascii=False),
        "preprocess": canonical_json(dict(description.preprocess)),
        "inputs": json.dumps(inputs),
    }


class Format(Protocol):
    """One format of exported files."""

    def require(self) -> None:
        """Check that its libraries are installed.

        Raises:
            UsageError: naming those that are not.
        """
        ...

    def write(self, graph: Graph, metadata: Mapping[str, str], handle: IO[bytes], data: Weights | None) -> None:
        """Write a graph, the weights into ``data`` where that is given."""
        ...

    def runner(self, path: Path) -> tuple[Runner, str]:
        """A written file as something that runs, and the name of what runs it."""
        ...


class Weights:
    """A file beside the graph that holds the weights: a message of protobuf has at most 2 GiB.

    Args:
        handle: where they are written.
        location: the name of that file, as the graph is to say it.
    """

    def __init__(self, handle: IO[bytes], location: str) -> None:
        self.handle, self.location = handle, location
        self.offset = 0

    def add(self, data: bytes) -> int:
        """Write one tensor; returns where it starts."""
        start = -(-self.offset // _PAGE) * _PAGE
        self.handle.write(bytes(start - self.offset) + data)
        self.offset = start + len(data)
        return start


class Pt2:
    """``torch.export``'s own file: plain PyTorch runs it."""

    def require(self) -> None:
        """Nothing but torch."""

    def write(self, graph: Graph, metadata: Mapping[str, str], handle: IO[bytes], data: Weights | None) -> None:
        """See :class:`Format`; the weights are always in the file."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.export.save(graph.program, handle, extra_files=dict(metadata))

    def runner(self, path: Path) -> tuple[Runner, str]:
        """See :class:`Format`."""
        with open(path, "rb") as handle, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = torch.export.load(handle).module()

        def run(inputs: Named) -> Mapping[str, Tensor]:
            with torch.no_grad():
                return module(**inputs)

        return run, f"torch {torch.__version__.split('+')[0]}"


class Onnx:
    """ONNX, by torch's own exporter."""

    def require(self) -> None:
        """See :class:`Format`: torch needs two libraries to write a file, the check one to run it."""
        missing = [name for name in _LIBRARIES if importlib.util.find_spec(name) is None]
        if missing:
            raise UsageError(
                f"--export onnx needs {', '.join(missing)}, not installed here", hint="pip install 'hydractl[deploy]'"
            )

    def write(self, graph: Graph, metadata: Mapping[str, str], handle: IO[bytes], data: Weights | None) -> None:
        """See :class:`Format`."""
        import onnx_ir

        try:
            model = _onnx_model(graph)
        except Exception as error:
            raise HydraError(f"torch cannot turn the graph into ONNX: {first_line(error)}") from error
        _clean(model)
        model.producer_name, model.producer_version = "hydractl", hydractl.__version__
        model.metadata_props.update({f"hydractl.{key}": value for key, value in metadata.items()})
        if data is not None:
            _move_weights(model, data)
        handle.write(onnx_ir.serde.serialize_model(model).SerializeToString(deterministic=True))

    def runner(self, path: Path) -> tuple[Runner, str]:
        """See :class:`Format`."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])

        def run(inputs: Named) -> Mapping[str, Tensor]:
            arrays = session.run(list(OUTPUTS), {name: tensor.numpy() for name, tensor in inputs.items()})
            return {name: torch.from_numpy(array) for name, array in zip(OUTPUTS, arrays, strict=True)}

        return run, f"onnxruntime {onnxruntime.__version__}"


FORMATS: dict[str, Format] = {"onnx": Onnx(), "pt2": Pt2()}
"""The formats by the names of ``--export``, which are also what their files end in."""


def _onnx_model(graph: Graph) -> Any:
    with warnings.catch_warnings(), _silent():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            graph.program,
            kwargs=dict(graph.example),
            dynamo=True,
            input_names=list(graph.example),
            output_names=list(OUTPUTS),
            opset_version=OPSET,
            dynamic_shapes=dict(graph.dynamic),
            verbose=False,
        )
    assert program is not None
    return program.model


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keep a library's messages off standard output, which belongs to the result."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def _clean(model: Any) -> None:
    """Remove what the exporter notes beside the graph: paths of source files and names of classes."""
    values = [*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values()]
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = None
        values += node.outputs
    for value in values:
        value.metadata_props.clear()
        value.doc_string = None
    for holder in (model, model.graph, *model.functions.values()):
        holder.metadata_props.clear()
        holder.doc_string = None


def _move_weights(model: Any, data: Weights) -> None:
    """Write the larger weights into the file beside the graph, in the order of their names."""
    import onnx_ir

    for name, value in sorted(model.graph.initializers.items()):
        tensor = value.const_value
        if tensor.nbytes >= _EXTERNAL_FROM:
            value.const_value = onnx_ir.ExternalTensor(
                data.location,
                data.add(tensor.tobytes()),
                tensor.nbytes,
                tensor.dtype,
                shape=tensor.shape,
                name=name,
            )


def relocated(path: Path, location: str) -> bytes:
    """An ONNX file, except that it looks for its weights in another file beside it.

    Args:
        path: the file.
        location: the name of that other file.
    """
    import onnx

    model = onnx.load_model(os.fspath(path), load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    return model.SerializeToString(deterministic=True)
