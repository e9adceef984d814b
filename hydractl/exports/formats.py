"""A model as one graph of plain operators, which runs without hydractl and without the model's own library.

Two formats of files hold such a graph: it is written to an open file, and the file is loaded to run it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import math
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import torch
from torch import Tensor, nn

from hydractl.errors import HydraError, InputError, UsageError
from hydractl.exports import archive
from hydractl.exports.onnx_graph import read_onnx
from hydractl.families import FAMILIES
from hydractl.families.reading import first_line, refused_as
from hydractl.files.description import Description
from hydractl.files.version import __version__
from hydractl.jsonio import canonical_json, parse_json, shown
from hydractl.model.runtime import HydraModel, calibrated, pooled_log_probs

# --- the graph --------------------------------------------------------------------------------------------------------

OUTPUTS = ("probabilities", "member_logits")
EXAMPLE_BATCH = 2
"""Samples of the inputs that a graph is traced with: with a single one, torch would take the size for a constant."""

CHECKED_BATCHES = (1, EXAMPLE_BATCH + 1)
"""Sizes that a graph is checked with: those that it was not traced with."""

Named = Mapping[str, Tensor]
Expected = Sequence[tuple[Named, Mapping[str, Tensor]]]
"""Inputs, and what the model makes of them."""


@dataclass(frozen=True)
class Graph:
    """A traced model.

    Attributes:
        program: takes its inputs by name and gives a mapping of :data:`OUTPUTS`.
        example: the inputs that it was traced with.
        dynamic: which dimensions of each input may have any size, by name: ``batch``, and ``tokens`` of a text.
    """

    program: torch.export.ExportedProgram
    example: Named
    dynamic: Mapping[str, Mapping[int, Any]]

    def inputs(self) -> dict[str, str]:
        """Return the dtype and shape of each input, in words: ``float32 [batch, 3, 224, 224]``."""
        words = {}
        for name, tensor in self.example.items():
            dims = {place: dim.__name__ for place, dim in self.dynamic[name].items()}
            shape = ", ".join(dims.get(place, str(size)) for place, size in enumerate(tensor.shape))
            words[name] = f"{str(tensor.dtype).removeprefix('torch.')} [{shape}]"
        return words


class _OfImages(nn.Module):
    """The model with inputs and outputs by name: torch.export reads the names from the signature."""

    def __init__(self, model: HydraModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Tensor) -> dict[str, Tensor]:
        return answers(self.model, {"pixel_values": pixel_values})


class _OfTexts(_OfImages):
    def forward(  # type: ignore[override]
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> dict[str, Tensor]:
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        return answers(self.model, inputs if token_type_ids is None else {**inputs, "token_type_ids": token_type_ids})


def named(inputs: Any) -> dict[str, Tensor]:
    """Return the inputs of a model by name: images are ``pixel_values``; texts have the names of the stock model."""
    return dict(inputs) if isinstance(inputs, Mapping) else {"pixel_values": inputs}


def answers(model: HydraModel, inputs: Named) -> dict[str, Tensor]:
    """Compute the outputs of the graph of a model.

    Returns:
        ``probabilities`` ``[B, classes]``, the mean over members of their softmax, calibrated where the checkpoint
        holds a calibration, and ``member_logits`` ``[M, B, classes]``, which are never calibrated.
    """
    logits = model.member_logits(inputs["pixel_values"] if set(inputs) == {"pixel_values"} else inputs)
    probabilities = logits.softmax(-1).mean(0)
    if model.calibration is not None:
        probabilities = calibrated(pooled_log_probs(logits), model.calibration).exp()
    return {"probabilities": probabilities, "member_logits": logits}


@torch.no_grad()
def expectations(model: HydraModel, longest: int | None, seed: int) -> Expected:
    """Random inputs of several sizes, and what the model itself makes of them.

    Args:
        model: before it is traced.
        longest: tokens of a text at most; None for images.
        seed: draws the inputs.
    """
    expected = []
    for turn, batch in enumerate(CHECKED_BATCHES):
        inputs = named(model.example_inputs(batch, seed=seed + turn))
        if "spatial_shapes" in inputs:
            raise UsageError(f"{model.description.arch} looks at the rows of its images: no graph can be made of it")
        if longest is not None:
            inputs = _texts(inputs, longest, turn)
        expected.append((inputs, answers(model, inputs)))
    return expected


def _texts(inputs: Named, longest: int, turn: int) -> dict[str, Tensor]:
    """Texts of a length that the example does not have, one of them padded to half of it."""
    example = inputs["input_ids"].shape[1]
    longer = min(longest, 2 * example - 1)
    length = max(2, example // 2) if turn == 0 else longer if longer != example else example - 1
    cut = {name: torch.cat([tensor, tensor], dim=1)[:, :length].contiguous() for name, tensor in inputs.items()}
    if "attention_mask" in cut:
        cut["attention_mask"][0, length - length // 2 :] = 0
    return cut


@torch.no_grad()
def traced(model: HydraModel, longest: int | None) -> Graph:
    """Trace a model. Afterwards it is frozen, and a zero-shot model has no tower of the labels any more.

    Args:
        model: on the CPU, in float32, with classes.
        longest: tokens of a text at most; None for images.

    Raises:
        HydraError: for a model that torch.export cannot make a graph of.
    """
    module = (_OfTexts if longest else _OfImages)(model).eval().requires_grad_(False)
    model.side_by_side = True  # what is faster depends on the batch, of which a graph knows nothing
    model.batched = False  # stacked weights would be in the file once more
    _settle_labels(model)  # after eval(), which makes the model forget the features of its classes
    example = named(model.example_inputs(EXAMPLE_BATCH))
    batch = torch.export.Dim("batch")
    tokens = None if longest is None else torch.export.Dim("tokens", min=2, max=longest)
    dynamic = {name: {0: batch} if tokens is None else {0: batch, 1: tokens} for name in example}
    try:
        # The warnings are about how torch does it inside; the graph is checked by running it.
        with warnings.catch_warnings(action="ignore"):
            program = torch.export.export(module, (), dict(example), dynamic_shapes=dynamic, strict=False)
    except Exception as error:
        raise HydraError(f"torch cannot export {model.description.arch}: {first_line(error)}") from error
    _forget_sources(program)
    return Graph(program, example, dynamic)


def _settle_labels(model: HydraModel) -> None:
    """Compute the features of the classes, which the model then keeps, and let go of the weights they came from."""
    if model.prompted is None:
        return
    model.label_features()
    for network in model.networks:
        prefixes = tuple(p for stages in model.family.stages(network) if stages.of_labels for p in stages.prefixes)
        for name in [name for name, _ in network.named_parameters() if name.startswith(prefixes)]:
            parent, _, leaf = name.rpartition(".")
            network.get_submodule(parent).register_parameter(leaf, None)


def _forget_sources(program: torch.export.ExportedProgram) -> None:
    """Remove what a graph remembers of the machine: paths of source files, names of classes, example inputs."""
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                for key in ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "from_node"):
                    node.meta.pop(key, None)
    program.example_inputs = None


# --- the files --------------------------------------------------------------------------------------------------------

Runner = Callable[[Named], Mapping[str, Tensor]]

TOLERANCE = 1e-4
"""Largest allowed difference of logits and of probabilities, times max(1, largest logit)."""

EXPORT_SCHEMA = "hydractl.export/1"
OPSET = 20
"""The operators of ONNX that are used: ONNX Runtime 1.17 knows them."""

_LIBRARIES = ("onnx", "onnxscript", "onnxruntime")
_EXTERNAL_FROM = 1024  # bytes of a tensor; smaller ones stay in the graph
_NO_LIMIT = 2**62
_WEIGHTS_BESIDE = "session.model_external_initializers_file_folder_path"
_PAGE = 4096  # where tensors start in a file of their own, so that they can be mapped


def metadata_of(description: Description, inputs: list[str], macs: int) -> dict[str, str]:
    """Metadata of an exported file, every value a text.

    Args:
        description: of the model.
        inputs: SHA-256 of the models it was made of.
        macs: multiply-adds of one sample.
    """
    return {
        "schema": EXPORT_SCHEMA,
        "hydractl": __version__,
        "torch": torch.__version__.split("+")[0],
        "family": description.family,
        "arch": description.arch,
        "macs": str(macs),
        "members": str(len(description.masks)),
        "labels": json.dumps(None if description.labels is None else list(description.labels), ensure_ascii=False),
        "preprocess": canonical_json(dict(description.preprocess)),
        "inputs": json.dumps(inputs),
    }


class Format(Protocol):
    """One format of exported files.

    Attributes:
        ending: of its files.
        exact: whether a file gives what the model gives, but for rounding in float32.
        apart: whether weights that are too many for one file may go into another one.
        bytes_per_weight: of a file, about.
    """

    ending: str
    exact: bool
    apart: bool
    bytes_per_weight: int

    def require(self) -> None:
        """Raise a UsageError that names those of its libraries that are not installed."""

    def write(self, graph: Graph, metadata: Mapping[str, str], handle: IO[bytes], data: Weights | None) -> None:
        """Write a graph, the weights into ``data`` where that is given and the format may have them apart."""

    def runner(self, path: Path) -> tuple[Runner, str]:
        """A written file as something that runs, by as many threads as torch has, and the name of what runs it."""

    def metadata(self, path: Path) -> dict[str, str]:
        """Read what :func:`metadata_of` put into a file; nothing of it in a file of others."""


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

    ending, exact, apart, bytes_per_weight = ".pt2", True, False, 4

    def require(self) -> None:
        """Nothing but torch is needed."""

    def write(self, graph: Graph, metadata: Mapping[str, str], handle: IO[bytes], data: Weights | None) -> None:
        with warnings.catch_warnings(action="ignore"):
            torch.export.save(graph.program, handle, extra_files=dict(metadata))

    def runner(self, path: Path) -> tuple[Runner, str]:
        with archive.opened(path) as checked, tempfile.TemporaryFile() as copy:
            checked.copy(copy)
            with refused_as(f"cannot read {path}"), _quiet("torch.export"), warnings.catch_warnings(action="ignore"):
                module = torch.export.load(copy).module()

        def run(inputs: Named) -> Mapping[str, Tensor]:
            with torch.no_grad():
                return module(**inputs)

        return run, f"torch {torch.__version__.split('+')[0]}"

    def metadata(self, path: Path) -> dict[str, str]:
        with archive.opened(path) as checked:
            return checked.metadata


class Onnx:
    """ONNX, by torch's own exporter."""

    ending, exact, apart, bytes_per_weight = ".onnx", True, True, 4

    def require(self) -> None:
        # torch needs two of the libraries to write a file, the check one to run it.
        missing = [name for name in _LIBRARIES if importlib.util.find_spec(name) is None]
        if missing:
            raise UsageError(
                f"ONNX files need {', '.join(missing)}, not installed here", hint="pip install 'hydractl[deploy]'"
            )

    def write(self, graph: Graph, metadata: Mapping[str, str], handle: IO[bytes], data: Weights | None) -> None:
        import onnx_ir

        try:
            model = _onnx_model(graph)
        except Exception as error:
            raise HydraError(f"torch cannot turn the graph into ONNX: {first_line(error)}") from error
        _clean(model)
        if data is not None:
            _move_weights(model, data)
        proto = self._finished(onnx_ir.serde.serialize_model(model))
        proto.producer_name, proto.producer_version = "hydractl", __version__
        props = {f"hydractl.{key}": value for key, value in metadata.items()}
        proto.ClearField("metadata_props")
        for key, value in props.items():
            proto.metadata_props.add(key=key, value=value)
        handle.write(proto.SerializeToString(deterministic=True))

    def _finished(self, proto: Any) -> Any:
        return proto

    def runner(self, path: Path) -> tuple[Runner, str]:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = torch.get_num_threads()
        options.add_session_config_entry("session.force_spinning_stop", "1")  # idle threads take no time of others
        _, content = read_onnx(path)
        # What was checked is loaded, and the file is not read again; weights lie beside it.
        options.add_session_config_entry(_WEIGHTS_BESIDE, os.path.abspath(path.parent))
        with refused_as(f"cannot read {path}"):
            session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

        def run(inputs: Named) -> Mapping[str, Tensor]:
            arrays = session.run(list(OUTPUTS), {name: tensor.numpy() for name, tensor in inputs.items()})
            return {name: torch.from_numpy(array) for name, array in zip(OUTPUTS, arrays, strict=True)}

        return run, f"onnxruntime {onnxruntime.__version__}"

    def metadata(self, path: Path) -> dict[str, str]:
        model, _ = read_onnx(path)
        entries = model.metadata_props
        ours = [entry for entry in entries if entry.key.startswith("hydractl.")]
        return {entry.key.removeprefix("hydractl."): entry.value for entry in ours}


class OnnxInt8(Onnx):
    """ONNX whose constant weights are int8, by ONNX Runtime's dynamic quantisation.

    Weights have seven bits and a scale for each output, activations eight bits and a scale for each call. With the
    eighth bit, sums of products overflow on x86 processors without VNNI, so answers would depend on the machine.
    """

    ending, exact, apart, bytes_per_weight = ".int8.onnx", False, False, 1

    def _finished(self, proto: Any) -> Any:
        import onnx
        import onnx_ir
        import onnxscript.optimizer
        from onnxruntime.quantization import quantize_dynamic

        # Weights behind a transposition count as constants only when it has been carried out.
        model = onnx_ir.serde.deserialize_model(proto)
        with _quiet("onnxscript"):  # it warns of what it leaves as it is
            onnxscript.optimizer.optimize(model, input_size_limit=_NO_LIMIT, output_size_limit=_NO_LIMIT)
        _clean(model)
        proto = onnx_ir.serde.serialize_model(model)
        proto.graph.ClearField("value_info")  # the shapes of weights that the quantiser transposes
        proto.metadata_props.add(key="onnx.quant.pre_process", value="onnxruntime.quant")  # else it warns
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "int8.onnx")
            kinds = ["MatMul", "Gather"]  # not convolutions, for which runtimes differ
            try:
                quantize_dynamic(proto, path, op_types_to_quantize=kinds, per_channel=True, reduce_range=True)
            except Exception as error:
                raise HydraError(f"ONNX Runtime cannot round the weights: {first_line(error)}") from error
            return onnx.load_model(path)


FORMATS: dict[str, Format] = {"onnx": Onnx(), "onnx-int8": OnnxInt8(), "pt2": Pt2()}
"""The formats by the names of ``--export``."""


def kind_of(path: str | os.PathLike[str]) -> str | None:
    """Return the format that a path ends in, the longest ending first; None for no exported file."""
    kinds = [kind for kind, one in FORMATS.items() if os.fspath(path).endswith(one.ending)]
    return max(kinds, key=lambda kind: len(FORMATS[kind].ending), default=None)


def read_metadata(path: Path) -> dict[str, str]:
    """Return the metadata of an exported file, which is checked but for the numbers of its weights.

    Raises:
        InputError: it cannot be read, holds what no export of hydractl holds, or does not say what it is made of.
    """
    kind = kind_of(path)
    assert kind is not None
    with refused_as(f"cannot read {path}"):
        found = FORMATS[kind].metadata(path)
    hint = f"write it with fuse --export {kind}, of this version"
    if not {"family", "preprocess", "macs", "members", "format"} <= found.keys():
        raise InputError(f"{path} does not say what it is made of", hint=hint)
    problems = _metadata_problems(found, path)
    if problems:
        raise InputError(f"{path} says of itself what cannot be", hint=hint, problems=problems)
    if found["format"] != kind:
        raise InputError(f"{path} ends like a file of {kind} and says it is {shown(found['format'])}", hint=hint)
    return found


_COUNT = re.compile(r"[0-9]{1,18}")
_MOST_PIXELS = 1 << 26
_MOST_TOKENS = 1 << 20


def _metadata_problems(found: Mapping[str, str], path: Path) -> list[str]:
    """One line for each value that :func:`metadata_of` would not write."""
    problems = [f"{key} {shown(found[key])}" for key in ("macs", "members") if _COUNT.fullmatch(found[key]) is None]
    if found["family"] not in FAMILIES.names:
        problems.append(f"the unknown family {shown(found['family'])}")
    for key in ("labels", "inputs"):
        if not _are_texts(parse_json(found.get(key, "null"), f"{key} in {path}")):
            problems.append(f"{key} {shown(found[key])}")
    preprocess = parse_json(found["preprocess"], f"preprocess in {path}")
    if not isinstance(preprocess, dict):
        return [*problems, f"preprocess {shown(preprocess)}"]
    size, tokens = preprocess.get("input_size"), preprocess.get("max_length")
    if size is not None and not _are_sizes(size, _MOST_PIXELS):
        problems.append(f"images of {shown(size)}")
    if tokens is not None and not _are_sizes([tokens], _MOST_TOKENS):
        problems.append(f"texts of {shown(tokens)} tokens")
    return problems


def _are_texts(values: Any) -> bool:
    """Return whether this is a list of texts, or nothing."""
    return values is None or (isinstance(values, list) and all(isinstance(value, str) for value in values))


def _are_sizes(sizes: Any, most: int) -> bool:
    """Return whether these are positive whole numbers whose product is not absurd."""
    if not isinstance(sizes, list) or not all(type(size) is int and 0 < size <= most for size in sizes):
        return False
    return math.prod(sizes) <= most


@contextlib.contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Keep a library from giving warnings."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _onnx_model(graph: Graph) -> Any:
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
            output_names=list(OUTPUTS),
            opset_version=OPSET,
            dynamic_shapes=dict(graph.dynamic),
            verbose=False,
        )
    assert program is not None
    return program.model


def _clean(model: Any) -> None:
    """Remove what the exporter notes beside the graph: paths of source files and names of classes."""
    nodes = list(model.graph.all_nodes())
    values = [*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values()]
    values += [value for node in nodes for value in node.outputs]
    for holder in (model, model.graph, *model.functions.values(), *nodes, *values):
        holder.metadata_props.clear()
        holder.doc_string = None


def _move_weights(model: Any, data: Weights) -> None:
    """Write the larger weights into the file beside the graph, in the order of their names."""
    import onnx_ir

    for name, value in sorted(model.graph.initializers.items()):
        tensor = value.const_value
        if tensor.nbytes >= _EXTERNAL_FROM:
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


# --- the check of a file ----------------------------------------------------------------------------------------------


def compare(path: Path, run: Runner, runtime: str, expected: Expected, *, exact: bool) -> dict[str, Any]:
    """Run a file and compare it with its model.

    Returns:
        The sizes tried, the largest differences of each output, the largest logit and the tolerance; of a format that
        is not ``exact`` no tolerance.

    Raises:
        HydraError: where they differ by more than the tolerance, or the file does not run.
    """
    worst = dict.fromkeys(OUTPUTS, 0.0)
    largest = max(float(outputs["member_logits"].abs().max()) for _, outputs in expected)
    allowed = TOLERANCE * max(1.0, largest) if exact else math.inf
    for inputs, outputs in expected:
        try:
            answer = run(inputs)
        except Exception as error:  # whatever a runtime raises
            raise _failed(path, f"{runtime} cannot run it on {_sizes(inputs)}: {first_line(error)}") from error
        for name in OUTPUTS:
            if answer[name].shape != outputs[name].shape:
                shapes = f"{list(answer[name].shape)}, not {list(outputs[name].shape)}"
                raise _failed(path, f"in {runtime}, {name} on {_sizes(inputs)} are {shapes}")
            apart = float((answer[name].double() - outputs[name].double()).abs().max())
            if not apart <= allowed or not math.isfinite(apart):  # so that NaN is no agreement
                what = f"{name} on {_sizes(inputs)} differ from the model by {apart:.2e} (allowed {allowed:.2e})"
                raise _failed(path, f"in {runtime}, {what}")
            worst[name] = max(worst[name], apart)
    return {
        "runtime": runtime,
        "inputs": [{name: list(tensor.shape) for name, tensor in inputs.items()} for inputs, _ in expected],
        **{f"{name}_max_abs": float(f"{apart:.3g}") for name, apart in worst.items()},
        "max_abs_logit": float(f"{largest:.3g}"),
        "tolerance": float(f"{allowed:.3g}") if exact else None,
    }


def _sizes(inputs: Named) -> str:
    """``a batch of 3``, of texts with their tokens."""
    first = next(iter(inputs.values()))
    return f"a batch of {len(first)}" + (f" texts of {first.shape[1]} tokens" if "input_ids" in inputs else "")


def _failed(path: Path, why: str) -> HydraError:
    return HydraError(
        f"the export {path} failed its check: {why}",
        hint="this is a defect of hydractl or of a library it exports with: nothing was written",
    )
