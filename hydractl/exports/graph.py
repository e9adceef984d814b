"""A model as one graph of plain operators, which runs without hydractl and without the model's own library."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.errors import HydraError, UsageError
from hydractl.families.reading import first_line
from hydractl.model.runtime import HydraModel, calibrated, log_mean_softmax

OUTPUTS = ("probabilities", "member_logits")
"""What a graph gives, by name."""

EXAMPLE_BATCH = 2
"""Samples of the inputs that a graph is traced with: with a single one, torch would take the size for a constant."""

CHECKED_BATCHES = (1, EXAMPLE_BATCH + 1)
"""Sizes that a graph is checked with: those that it was not traced with."""

_PIXELS = "pixel_values"
_SOURCES = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "from_node")
"""What the nodes of a graph remember of the program that they come from."""

NamedTensors = Mapping[str, Tensor]
"""Inputs or outputs of a graph, by name."""


@dataclass(frozen=True)
class Expectation:
    """Inputs of a graph, and what the model itself makes of them."""

    inputs: NamedTensors
    outputs: NamedTensors


@dataclass(frozen=True)
class Graph:
    """A traced model.

    Attributes:
        program: takes its inputs by name and gives a mapping of :data:`OUTPUTS`.
        example: the inputs that it was traced with.
        dynamic: which dimensions of each input may have any size, by name: ``batch``, and ``tokens`` of a text.
    """

    program: torch.export.ExportedProgram
    example: NamedTensors
    dynamic: Mapping[str, Mapping[int, Any]]

    def inputs(self) -> dict[str, str]:
        """Return the dtype and shape of each input, in words: ``float32 [batch, 3, 224, 224]``."""
        words = {}
        for name, tensor in self.example.items():
            sizes = [str(size) for size in tensor.shape]
            for dimension, symbol in self.dynamic[name].items():
                sizes[dimension] = symbol.__name__
            dtype = str(tensor.dtype).removeprefix("torch.")
            words[name] = f"{dtype} [{', '.join(sizes)}]"
        return words


class _OfImages(nn.Module):
    """The model with inputs and outputs by name: torch.export reads the names from the signature."""

    def __init__(self, model: HydraModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Tensor) -> dict[str, Tensor]:
        return graph_outputs(self.model, {_PIXELS: pixel_values})


class _OfTexts(_OfImages):
    def forward(  # type: ignore[override]
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> dict[str, Tensor]:
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        return graph_outputs(self.model, inputs)


def named_inputs(inputs: Any) -> dict[str, Tensor]:
    """Return the inputs of a model by name: images are ``pixel_values``; texts have the names of the stock model."""
    if isinstance(inputs, Mapping):
        return dict(inputs)
    return {_PIXELS: inputs}


def graph_outputs(model: HydraModel, inputs: NamedTensors) -> dict[str, Tensor]:
    """Compute the outputs of the graph of a model.

    Returns:
        ``probabilities`` ``[B, classes]``, the mean over members of their softmax, calibrated where the checkpoint
        holds a calibration, and ``member_logits`` ``[M, B, classes]``, which are never calibrated.
    """
    is_images = set(inputs) == {_PIXELS}
    logits = model.member_logits(inputs[_PIXELS] if is_images else inputs)
    probabilities = logits.softmax(-1).mean(0)
    if model.calibration is not None:
        probabilities = calibrated(log_mean_softmax(logits), model.calibration).exp()
    return {"probabilities": probabilities, "member_logits": logits}


@torch.no_grad()
def expectations(model: HydraModel, longest: int | None, seed: int) -> list[Expectation]:
    """Draw random inputs of several sizes, and compute what the model itself makes of them.

    Args:
        model: before it is traced.
        longest: tokens of a text at most; None for images.
        seed: draws the inputs.
    """
    expected = []
    for turn, batch in enumerate(CHECKED_BATCHES):
        inputs = named_inputs(model.example_inputs(batch, seed=seed + turn))
        if "spatial_shapes" in inputs:
            raise UsageError(f"{model.description.arch} looks at the rows of its images: no graph can be made of it")
        if longest is not None:
            inputs = _texts_of_other_length(inputs, longest, shorter=turn == 0)
        expected.append(Expectation(inputs, graph_outputs(model, inputs)))
    return expected


def _texts_of_other_length(inputs: NamedTensors, longest: int, shorter: bool) -> dict[str, Tensor]:
    """Return texts of a length that the example does not have, one of them padded to half of it.

    Args:
        inputs: of the length of the example.
        longest: tokens of a text at most.
        shorter: whether they are shorter than the example, else longer, where the model takes longer ones.
    """
    example = inputs["input_ids"].shape[1]
    if shorter:
        length = max(2, example // 2)
    else:
        length = min(longest, 2 * example - 1)
        if length == example:
            length = example - 1
    texts = {}
    for name, tensor in inputs.items():
        twice = torch.cat([tensor, tensor], dim=1)
        texts[name] = twice[:, :length].contiguous()
    if "attention_mask" in texts:
        texts["attention_mask"][0, length - length // 2 :] = 0
    return texts


@torch.no_grad()
def traced(model: HydraModel, longest: int | None) -> Graph:
    """Trace a model. Afterwards it is frozen, and a zero-shot model has no tower of the labels any more.

    Args:
        model: on the CPU, in float32, with classes.
        longest: tokens of a text at most; None for images.

    Raises:
        HydraError: for a model that torch.export cannot make a graph of.
    """
    module = _OfTexts(model) if longest else _OfImages(model)
    module.eval().requires_grad_(False)
    model.side_by_side = True  # what is faster depends on the batch, of which a graph knows nothing
    model.batched = False  # stacked weights would be in the file once more
    _settle_labels(model)  # after eval(), which makes the model forget the features of its classes
    example = named_inputs(model.example_inputs(EXAMPLE_BATCH))
    dimensions = {0: torch.export.Dim("batch")}
    if longest is not None:
        dimensions[1] = torch.export.Dim("tokens", min=2, max=longest)
    dynamic = {name: dict(dimensions) for name in example}
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
        prefixes: list[str] = []
        for stages in model.family.stages(network):
            if stages.of_labels:
                prefixes += stages.prefixes
        _drop_parameters(network, tuple(prefixes))


def _drop_parameters(network: nn.Module, prefixes: tuple[str, ...]) -> None:
    """Let go of the parameters whose names start so."""
    names = [name for name, _ in network.named_parameters() if name.startswith(prefixes)]
    for name in names:
        parent, _, leaf = name.rpartition(".")
        network.get_submodule(parent).register_parameter(leaf, None)


def _forget_sources(program: torch.export.ExportedProgram) -> None:
    """Remove what a graph remembers of the machine: paths of source files, names of classes, example inputs."""
    for module in program.graph_module.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in module.graph.nodes:
            for key in _SOURCES:
                node.meta.pop(key, None)
    program.example_inputs = None
