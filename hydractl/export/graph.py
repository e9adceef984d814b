"""A model as one graph of plain operators, which runs without hydractl and without the model's own library."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.errors import HydraError
from hydractl.families.reading import first_line
from hydractl.model.runtime import HydraModel, calibrated, pooled_log_probs

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
        """Dtype and shape of each input, in words: ``float32 [batch, 3, 224, 224]``."""
        return {
            name: _words(tensor, {place: dim.__name__ for place, dim in self.dynamic[name].items()})
            for name, tensor in self.example.items()
        }


class _OfImages(nn.Module):
    """The model with inputs and outputs by name: torch.export reads the names from the signature."""

    def __init__(self, model: HydraModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Tensor) -> dict[str, Tensor]:
        """See :func:`answers`."""
        return answers(self.model, {"pixel_values": pixel_values})


class _OfTexts(nn.Module):
    """As :class:`_OfImages`, for texts."""

    def __init__(self, model: HydraModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> dict[str, Tensor]:
        """See :func:`answers`."""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        return answers(self.model, inputs if token_type_ids is None else {**inputs, "token_type_ids": token_type_ids})


def named(inputs: Any) -> dict[str, Tensor]:
    """The inputs of a model by name: images are ``pixel_values``; texts have the names of the stock model."""
    return dict(inputs) if isinstance(inputs, Mapping) else {"pixel_values": inputs}


def answers(model: HydraModel, inputs: Named) -> dict[str, Tensor]:
    """Outputs of the graph of a model.

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
    """Trace a model. Afterwards it is frozen, and of a zero-shot model the tower of the labels is gone.

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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about how torch does it inside; the graph is checked by running it
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
        for stages in model.family.stages(network):
            if stages.of_labels:
                _drop(network, stages.prefixes)


def _drop(network: nn.Module, prefixes: tuple[str, ...]) -> None:
    for name, _ in list(network.named_parameters()):
        if name.startswith(prefixes):
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


def _words(tensor: Tensor, dims: Mapping[int, str]) -> str:
    shape = ", ".join(dims.get(place, str(size)) for place, size in enumerate(tensor.shape))
    return f"{str(tensor.dtype).removeprefix('torch.')} [{shape}]"
