"""Traces a model to one graph of plain operators, which runs without hydractl and the library of the model."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.errors import HydraError
from hydractl.exports.answer import CONFORMAL_SET, IS_OOD, MEMBER_LOGITS, OOD_SCORE, PROBABILITIES, GraphAnswer
from hydractl.families.base import ImageFormat
from hydractl.families.reading import first_line
from hydractl.model.detection import read_features
from hydractl.model.prediction import Chosen
from hydractl.model.runtime import HydraModel

EXAMPLE_BATCH = 2
"""The batch size with which a graph is traced. With a batch of 1, torch would treat the size as a constant."""

CHECKED_BATCHES = (1, EXAMPLE_BATCH + 1)
"""The batch sizes with which a graph is checked; they differ from the one with which it was traced."""

PIXELS = "pixel_values"
"""The name of the input for preprocessed images, float32 ``[B, C, H, W]``."""

IMAGES = "images"
"""The name of the input for images of the model's size that are not yet normalised, uint8 ``[B, H, W, C]``."""

_SOURCES = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "from_node")
"""Metadata of a graph's nodes that describe the program from which they come."""

NamedTensors = Mapping[str, Tensor]
"""Inputs or outputs of a graph, by name."""

GraphShapes = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""``inputs`` and ``outputs`` of a graph: by name the ``dtype`` and the ``shape``, as JSON has them."""


@dataclass(frozen=True)
class Expectation:
    """Inputs of a graph, and the outputs that the model itself computes for them.

    Attributes:
        inputs, outputs: tensors by name.
    """

    inputs: NamedTensors
    outputs: NamedTensors


@dataclass(frozen=True)
class Graph:
    """A traced model.

    Attributes:
        program: the traced program; it takes its inputs by name and returns a mapping of outputs.
        example: the inputs with which it was traced, by name.
        dynamic: for each input, the dimensions that may have any size, by index: ``batch``, and for texts ``tokens``.
        outputs: the outputs for ``example``, by name, in order.
    """

    program: torch.export.ExportedProgram
    example: NamedTensors
    dynamic: Mapping[str, Mapping[int, Any]]
    outputs: NamedTensors

    def shapes(self) -> GraphShapes:
        """Return dtype and shape of each input and output; a dimension of any size has the name of what it counts."""
        inputs = {}
        for name, tensor in self.example.items():
            counted = {index: dimension.__name__ for index, dimension in self.dynamic[name].items()}
            inputs[name] = _shape_of(tensor, counted)
        outputs = {}
        for name, tensor in self.outputs.items():
            batch_axis = 1 if name == MEMBER_LOGITS else 0  # logits of members are [members, batch, classes]
            outputs[name] = _shape_of(tensor, {batch_axis: "batch"})
        return {"inputs": inputs, "outputs": outputs}


def _shape_of(tensor: Tensor, counted: Mapping[int, str]) -> dict[str, Any]:
    """Return the dtype and the shape of an input or output, e.g. ``float32`` and ``["batch", 3, 224, 224]``.

    Args:
        tensor: an example of it.
        counted: what the dimensions that may have any size count, by their indices.
    """
    sizes = [counted.get(index, size) for index, size in enumerate(tensor.shape)]
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": sizes}


class _OfImages(nn.Module):
    """Wraps a model of images with named inputs and outputs; torch.export takes the names from ``forward``."""

    def __init__(self, model: HydraModel, answer: GraphAnswer) -> None:
        super().__init__()
        self.model = model
        self.answer = answer

    def forward(self, pixel_values: Tensor) -> dict[str, Tensor]:
        return self.outputs(pixel_values)

    def outputs(self, inputs: Any) -> dict[str, Tensor]:
        """Run the model once on inputs in its own format, and return the outputs of the graph by name."""
        features: Sequence[Tensor] = []
        if self.answer.takes_features:
            logits, features = read_features(self.model, inputs, layers=self.answer.takes_layers)
        else:
            logits = self.model.member_logits(inputs)
        return self.answer(logits, features)


class _OfTexts(_OfImages):
    """Wraps a model of texts; the inputs have the names of the library's model."""

    def forward(  # type: ignore[override]
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> dict[str, Tensor]:
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        return self.outputs(inputs)


class _OfPixels(_OfImages):
    """Wraps a model of images so that it takes images in uint8, ``[B, H, W, C]``, and normalises them."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: HydraModel, answer: GraphAnswer, image_format: ImageFormat) -> None:
        super().__init__(model, answer)
        mean = torch.tensor(image_format.mean)[:, None, None]  # [C, 1, 1]
        std = torch.tensor(image_format.std)[:, None, None]
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        channels_first = images.permute(0, 3, 1, 2)  # [B, C, H, W]
        from_0_to_1 = channels_first.float() / 255.0
        return self.outputs((from_0_to_1 - self.mean) / self.std)


def named_inputs(inputs: Any) -> dict[str, Tensor]:
    """Return the inputs of a model by name; images get the name ``pixel_values``, texts already have names."""
    if isinstance(inputs, Mapping):
        return dict(inputs)
    return {PIXELS: inputs}


def reference_outputs(model: HydraModel, inputs: Any) -> dict[str, Tensor]:
    """Return hydractl's own answer to a batch, by the names of a graph's outputs."""
    prediction = model.predict(inputs)
    outputs = {
        PROBABILITIES: prediction.probabilities,
        MEMBER_LOGITS: model.member_logits(inputs),
        OOD_SCORE: prediction.ood_score,
        IS_OOD: prediction.is_ood,
        CONFORMAL_SET: prediction.sets,
    }
    return {name: values for name, values in outputs.items() if values is not None}


@torch.no_grad()
def expectations(
    model: HydraModel, longest: int | None, seed: int, image_format: ImageFormat | None
) -> list[Expectation]:
    """Return random inputs of several sizes, each with the outputs that the model itself computes for them.

    There is one for each batch size in :data:`CHECKED_BATCHES`; texts also differ in length.

    Args:
        model: the model, which must not have been traced yet.
        longest: the greatest number of tokens in a text; None for images.
        seed: the seed of the random inputs.
        image_format: how the graph normalises images in uint8; None if the graph takes preprocessed inputs.
    """
    expected = []
    for index, batch in enumerate(CHECKED_BATCHES):
        # The graph takes images in uint8, but the model itself takes normalised ones.
        if image_format is not None:
            images = random_uint8_images(image_format, batch, seed + index)
            inputs_of_model = normalised(images, image_format)
            expected.append(Expectation({IMAGES: images}, reference_outputs(model, inputs_of_model)))
            continue

        # The graph takes the same inputs as the model.
        example = model.example_inputs(batch, seed=seed + index)
        inputs = named_inputs(example)
        if longest is not None:
            # The first batch has shorter texts than those used for tracing, the second has longer ones. Repeat the
            # tokens once, so that longer texts can be cut out as well. Half of the first text becomes padding, which
            # the attention mask marks with 0.
            is_first_batch = index == 0
            length = _other_length(inputs["input_ids"].shape[1], longest, shorter=is_first_batch)
            for name, tensor in inputs.items():
                repeated = torch.cat([tensor, tensor], dim=1)  # [B, 2 * tokens]
                inputs[name] = repeated[:, :length].contiguous()
            if "attention_mask" in inputs:
                inputs["attention_mask"][0, length - length // 2 :] = 0
            expected.append(Expectation(inputs, reference_outputs(model, inputs)))
            continue
        expected.append(Expectation(inputs, reference_outputs(model, example)))
    return expected


def random_uint8_images(image_format: ImageFormat, batch: int, seed: int) -> Tensor:
    """Draw random images of the model's size, uint8 ``[batch, H, W, C]``."""
    channels, height, width = image_format.size
    shape = (batch, height, width, channels)
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


def normalised(images: Tensor, image_format: ImageFormat) -> Tensor:
    """Normalise images, uint8 ``[B, H, W, C]``, to inputs of the model, float32 ``[B, C, H, W]``.

    The numbers are computed in float64.
    """
    mean = torch.tensor(image_format.mean, dtype=torch.float64)
    std = torch.tensor(image_format.std, dtype=torch.float64)
    from_0_to_1 = images.double() / 255
    channels_last = (from_0_to_1 - mean) / std
    channels_first = channels_last.permute(0, 3, 1, 2)  # [B, H, W, C] -> [B, C, H, W]
    return channels_first.float().contiguous()


def _other_length(length: int, longest: int, shorter: bool) -> int:
    """Return another length of texts: of 16 tokens 8 if it is to be shorter, and else 31, but at most ``longest``.

    A shorter one has at least 2 tokens. If ``length`` is already ``longest``, no longer one is possible, and
    ``length - 1`` is returned.
    """
    if shorter:
        return max(2, length // 2)
    longer = min(longest, 2 * length - 1)
    if longer == length:
        return length - 1
    return longer


@torch.no_grad()
def traced(model: HydraModel, longest: int | None, image_format: ImageFormat | None = None) -> Graph:
    """Return the graph of a model, traced with torch.export; the model is changed in place and of no use afterwards.

    Args:
        model: a model on the CPU, in float32, whose classes are known.
        longest: the greatest number of tokens in a text; None for images.
        image_format: how the graph normalises images in uint8; None if the graph takes preprocessed inputs.

    Raises:
        HydraError: if torch.export cannot trace the model.
    """
    module = _module_to_trace(model, takes_texts=longest is not None, image_format=image_format)
    if image_format is not None:
        example = {IMAGES: random_uint8_images(image_format, EXAMPLE_BATCH, seed=0)}
    else:
        example = named_inputs(model.example_inputs(EXAMPLE_BATCH))

    # Change the model so that the graph holds nothing superfluous.
    module.eval().requires_grad_(False)
    model.side_by_side = True  # otherwise the size of the batch decides how members run, which a graph cannot do
    model.batched = False  # stacked weights would be stored in the file a second time
    _settle_labels(model)  # must come after eval(), which clears the features of the classes

    # In every input the batch may have any size, and for texts also the number of tokens.
    dimensions_of_any_size = {0: torch.export.Dim("batch")}
    if longest is not None:
        dimensions_of_any_size[1] = torch.export.Dim("tokens", min=2, max=longest)
    dynamic = {name: dict(dimensions_of_any_size) for name in example}

    try:
        # torch warns about its own internals. Whether the graph is right is checked later by running it.
        with warnings.catch_warnings(action="ignore"):
            outputs = module(**example)
            program = torch.export.export(module, (), dict(example), dynamic_shapes=dynamic, strict=False)
    except Exception as error:
        raise HydraError(f"torch cannot export {model.description.arch}: {first_line(error)}") from error
    _forget_sources(program)  # changes the program in place
    return Graph(program, example, dynamic, outputs)


def _module_to_trace(model: HydraModel, *, takes_texts: bool, image_format: ImageFormat | None) -> _OfImages:
    """Return the model wrapped as a module with named inputs and outputs, from which torch.export traces the graph.

    With an image format it takes images in uint8 and normalises them; of a model of texts ``input_ids``,
    ``attention_mask`` and so on; else preprocessed images.
    """
    answer = GraphAnswer(Chosen.of(model.description.extra), model.detector, model.members)
    if image_format is not None:
        return _OfPixels(model, answer, image_format)
    if takes_texts:
        return _OfTexts(model, answer)
    return _OfImages(model, answer)


def _settle_labels(model: HydraModel) -> None:
    """Compute the class features of a zero-shot model once, and remove the parameters of its text tower, in place.

    The graph then holds the features ``[classes, D]`` as constants. Models with a classifier are not changed.
    """
    if model.prompted is None:  # a classifier
        return
    model.label_features()  # called for its effect: the model stores the features of the classes

    for network in model.networks:
        # The parameters of the text tower, which encodes the names of the classes (labels).
        prefixes: list[str] = []
        for stages in model.family.stages(network):
            if stages.of_labels:
                prefixes += stages.prefixes
        names = [name for name, _ in network.named_parameters() if name.startswith(tuple(prefixes))]

        # Remove each from the module that holds it: of "text.proj.weight" that is "text.proj".
        for name in names:
            parent_name, _, leaf = name.rpartition(".")
            parent = network.get_submodule(parent_name)
            parent.register_parameter(leaf, None)


def _forget_sources(program: torch.export.ExportedProgram) -> None:
    """Remove paths of source files, names of classes and example inputs from a graph, in place."""
    for module in program.graph_module.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in module.graph.nodes:
            for key in _SOURCES:
                node.meta.pop(key, None)
    program.example_inputs = None
