"""A model as one graph of plain operators, which runs without hydractl and without the model's own library."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.errors import HydraError, UsageError
from hydractl.exports.answer import CONFORMAL_SET, IS_OOD, MEMBER_LOGITS, OOD_SCORE, PROBABILITIES, GraphAnswer
from hydractl.exports.shapes import GraphShapes, shapes_of_inputs, shapes_of_outputs
from hydractl.families.base import ImageFormat
from hydractl.families.reading import first_line
from hydractl.model.detection import read_features
from hydractl.model.prediction import Chosen
from hydractl.model.runtime import HydraModel

EXAMPLE_BATCH = 2
"""Samples of the inputs that a graph is traced with: with a single one, torch would take the size for a constant."""

CHECKED_BATCHES = (1, EXAMPLE_BATCH + 1)
"""Sizes that a graph is checked with: those that it was not traced with."""

PIXELS = "pixel_values"
"""The input of images that are preprocessed, float32 ``[B, C, H, W]``."""

_ROUNDING = 8 * torch.finfo(torch.float32).eps

IMAGES = "images"
"""The input of images at the size of the model, uint8 ``[B, H, W, C]``."""

_SOURCES = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "from_node")
"""What the nodes of a graph remember of the program that they come from."""

NamedTensors = Mapping[str, Tensor]
"""Inputs or outputs of a graph, by name."""


@dataclass(frozen=True)
class Expectation:
    """Inputs of a graph, and what the model itself makes of them.

    Attributes:
        inputs, outputs: by name.
        by_rounding: how far the OOD score moves where float32 rounds features and logits otherwise, ``[B]``.
    """

    inputs: NamedTensors
    outputs: NamedTensors
    by_rounding: Tensor


@dataclass(frozen=True)
class Graph:
    """A traced model.

    Attributes:
        program: takes its inputs by name and gives a mapping of outputs.
        example: the inputs that it was traced with.
        dynamic: which dimensions of each input may have any size, by name: ``batch``, and ``tokens`` of a text.
        outputs: its outputs by name, in order: what they are for the example.
    """

    program: torch.export.ExportedProgram
    example: NamedTensors
    dynamic: Mapping[str, Mapping[int, Any]]
    outputs: NamedTensors

    def shapes(self) -> GraphShapes:
        """Return its inputs and outputs."""
        return GraphShapes(shapes_of_inputs(self.example, self.dynamic), shapes_of_outputs(self.outputs))


class _OfImages(nn.Module):
    """The model with inputs and outputs by name: torch.export reads the names from the signature."""

    def __init__(self, model: HydraModel, answer: GraphAnswer) -> None:
        super().__init__()
        self.model = model
        self.answer = answer

    def forward(self, pixel_values: Tensor) -> dict[str, Tensor]:
        return self.outputs(pixel_values)

    def outputs(self, inputs: Any) -> dict[str, Tensor]:
        """Return the outputs by name, from one run of the model on inputs as it takes them."""
        features: Sequence[Tensor] = []
        if self.answer.takes_features:
            logits, features = read_features(self.model, inputs)
        else:
            logits = self.model.member_logits(inputs)
        return self.answer(logits, features)


class _OfTexts(_OfImages):
    """The same for texts: numbers of tokens and their mask by the names of the stock model."""

    def forward(  # type: ignore[override]
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> dict[str, Tensor]:
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        return self.outputs(inputs)


class _OfPixels(_OfImages):
    """The same for images in uint8 ``[B, H, W, C]``, which it normalises first."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: HydraModel, answer: GraphAnswer, image_format: ImageFormat) -> None:
        super().__init__(model, answer)
        mean = torch.tensor(image_format.mean)[:, None, None]  # [C, 1, 1]
        std = torch.tensor(image_format.std)[:, None, None]
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        channels_first = images.permute(0, 3, 1, 2)
        from_0_to_1 = channels_first.float() / 255.0
        return self.outputs((from_0_to_1 - self.mean) / self.std)


def unnamed_inputs(inputs: NamedTensors) -> Any:
    """Return the inputs of a model as it takes them: the reverse of :func:`named_inputs`."""
    if set(inputs) == {PIXELS}:
        return inputs[PIXELS]
    return inputs


def named_inputs(inputs: Any) -> dict[str, Tensor]:
    """Return the inputs of a model by name: images are ``pixel_values``; texts have the names of the stock model."""
    if isinstance(inputs, Mapping):
        return dict(inputs)
    return {PIXELS: inputs}


def graph_answer_of(model: HydraModel) -> GraphAnswer:
    """Return what the graph of a model computes behind its logits and features."""
    chosen = Chosen.of(model.description.extra)
    return GraphAnswer(chosen, model.detector, model.members)


def reference_outputs(model: HydraModel, inputs: Any) -> dict[str, Tensor]:
    """Return what hydractl itself answers, by the names of a graph's outputs."""
    prediction = model.predict(inputs)
    outputs = {PROBABILITIES: prediction.probabilities, MEMBER_LOGITS: model.member_logits(inputs)}
    if prediction.ood_score is not None:
        outputs[OOD_SCORE] = prediction.ood_score
    if prediction.is_ood is not None:
        outputs[IS_OOD] = prediction.is_ood
    if prediction.sets is not None:
        outputs[CONFORMAL_SET] = prediction.sets
    return outputs


@torch.no_grad()
def expectations(
    model: HydraModel, longest: int | None, seed: int, image_format: ImageFormat | None = None
) -> list[Expectation]:
    """Draw random inputs of several sizes, and compute what the model itself makes of them.

    Args:
        model: before it is traced.
        longest: tokens of a text at most; None for images.
        seed: draws the inputs.
        image_format: how the graph makes inputs of images in uint8; None for a graph that takes them preprocessed.

    Raises:
        UsageError: the model looks at the shape of each image, which a graph cannot.
    """
    expected = []
    for turn, batch in enumerate(CHECKED_BATCHES):
        if image_format is not None:
            images = random_uint8_images(image_format, batch, seed + turn)
            inputs_of_model = normalised(images, image_format)
            expected.append(_expectation(model, {IMAGES: images}, inputs_of_model))
            continue
        example = model.example_inputs(batch, seed=seed + turn)
        inputs = named_inputs(example)
        if "spatial_shapes" in inputs:
            raise UsageError(f"{model.description.arch} looks at the rows of its images: no graph can be made of it")
        if longest is not None:
            # First shorter texts than a graph is traced with, then longer ones.
            inputs = _texts_of_other_length(inputs, longest, shorter=turn == 0)
        expected.append(_expectation(model, inputs, unnamed_inputs(inputs)))
    return expected


def _expectation(model: HydraModel, inputs: NamedTensors, inputs_of_model: Any) -> Expectation:
    """Return what a model makes of inputs.

    Args:
        model: before it is traced.
        inputs: as the graph takes them.
        inputs_of_model: the same as the model takes them.
    """
    outputs = reference_outputs(model, inputs_of_model)
    samples = outputs[MEMBER_LOGITS].shape[1]
    by_rounding = torch.zeros(samples)
    if model.detector is not None:
        by_rounding = _moved_by_rounding(model, inputs_of_model, outputs[OOD_SCORE])
    return Expectation(inputs, outputs, by_rounding)


def _moved_by_rounding(model: HydraModel, inputs: Any, scores: Tensor) -> Tensor:
    """Return how far scores on features ``[B]`` move when features and logits are rounded otherwise."""
    assert model.detector is not None
    generator = torch.Generator().manual_seed(0)
    logits, features = read_features(model, inputs)
    rounded_features = []
    for features_of_member in features:
        rounded_features.append(_rounded_otherwise(features_of_member, generator))
    rounded_logits = _rounded_otherwise(logits, generator)
    (scores_of_members,) = model.detector.scores(rounded_logits, rounded_features).values()  # [M, B]
    mean_scores = scores_of_members.mean(axis=0)
    return (torch.from_numpy(mean_scores) - scores).abs()


def _rounded_otherwise(values: Tensor, generator: torch.Generator) -> Tensor:
    """Move values by what sums of products in float32 are uncertain of: some units in the last place of the largest."""
    from_0_to_1 = torch.rand(values.shape, generator=generator)
    from_minus_1_to_1 = 2 * from_0_to_1 - 1
    largest = values.abs().max()
    return values + _ROUNDING * largest * from_minus_1_to_1


def random_uint8_images(image_format: ImageFormat, batch: int, seed: int) -> Tensor:
    """Draw images at the size of the model, uint8 ``[batch, H, W, C]``."""
    channels, height, width = image_format.size
    shape = (batch, height, width, channels)
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


def normalised(images: Tensor, image_format: ImageFormat) -> Tensor:
    """Return what a model takes of images in uint8 ``[B, H, W, C]``: float32 ``[B, C, H, W]``, computed in float64."""
    mean = torch.tensor(image_format.mean, dtype=torch.float64)
    std = torch.tensor(image_format.std, dtype=torch.float64)
    from_0_to_1 = images.double() / 255
    channels_last = (from_0_to_1 - mean) / std
    channels_first = channels_last.permute(0, 3, 1, 2)
    return channels_first.float().contiguous()


def images_of_inputs(inputs: Tensor, image_format: ImageFormat) -> Tensor:
    """Return the images, uint8 ``[B, H, W, C]``, that were normalised to inputs ``[B, C, H, W]``.

    Where a transform resizes images of whole numbers to images of whole numbers, as Pillow does, they are those images;
    elsewhere they are rounded.
    """
    mean = torch.tensor(image_format.mean, dtype=torch.float64)
    std = torch.tensor(image_format.std, dtype=torch.float64)
    channels_last = inputs.double().permute(0, 2, 3, 1)
    from_0_to_1 = channels_last * std + mean
    from_0_to_255 = 255 * from_0_to_1
    whole_numbers = from_0_to_255.round().clamp(0, 255)
    return whole_numbers.to(torch.uint8).contiguous()


def _texts_of_other_length(inputs: NamedTensors, longest: int, shorter: bool) -> dict[str, Tensor]:
    """Return texts of a length that the example does not have, the second half of the first one as padding.

    Args:
        inputs: of the length of the example, by name ``[B, tokens]``.
        longest: tokens of a text at most.
        shorter: whether they are shorter than the example, else longer, where the model takes longer ones.
    """
    length = _other_length(inputs["input_ids"].shape[1], longest, shorter)
    texts = {}
    for name, tensor in inputs.items():
        twice = torch.cat([tensor, tensor], dim=1)
        texts[name] = twice[:, :length].contiguous()
    if "attention_mask" in texts:
        padding = length // 2
        texts["attention_mask"][0, length - padding :] = 0
    return texts


def _other_length(length: int, longest: int, shorter: bool) -> int:
    """Return about half of a length, or about twice of it; one less where ``longest`` forbids anything longer."""
    if shorter:
        return max(2, length // 2)
    longer = min(longest, 2 * length - 1)
    if longer == length:
        return length - 1
    return longer


@torch.no_grad()
def traced(model: HydraModel, longest: int | None, image_format: ImageFormat | None = None) -> Graph:
    """Trace a model. Afterwards it is frozen, and a zero-shot model has no tower of the labels any more.

    Args:
        model: on the CPU, in float32, with classes.
        longest: tokens of a text at most; None for images.
        image_format: how the graph makes inputs of images in uint8; None for a graph that takes them preprocessed.

    Raises:
        HydraError: for a model that torch.export cannot make a graph of.
    """
    answer = graph_answer_of(model)
    module = _OfImages(model, answer)
    example = named_inputs(model.example_inputs(EXAMPLE_BATCH))
    if image_format is not None:
        module = _OfPixels(model, answer, image_format)
        example = {IMAGES: random_uint8_images(image_format, EXAMPLE_BATCH, seed=0)}
    elif longest:
        module = _OfTexts(model, answer)
    module.eval().requires_grad_(False)
    model.side_by_side = True  # what is faster depends on the batch, of which a graph knows nothing
    model.batched = False  # stacked weights would be in the file once more
    _settle_labels(model)  # after eval(), which makes the model forget the features of its classes

    dimensions_of_any_size = {0: torch.export.Dim("batch")}
    if longest is not None:
        dimensions_of_any_size[1] = torch.export.Dim("tokens", min=2, max=longest)
    dynamic = {name: dict(dimensions_of_any_size) for name in example}
    try:
        # The warnings are about how torch does it inside; the graph is checked by running it.
        with warnings.catch_warnings(action="ignore"):
            outputs = module(**example)
            program = torch.export.export(module, (), dict(example), dynamic_shapes=dynamic, strict=False)
    except Exception as error:
        raise HydraError(f"torch cannot export {model.description.arch}: {first_line(error)}") from error
    _forget_sources(program)
    return Graph(program, example, dynamic, outputs)


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
    """Let go of the parameters whose names start with one of the prefixes."""
    names = [name for name, _ in network.named_parameters() if name.startswith(prefixes)]
    for name in names:
        parent_name, _, leaf = name.rpartition(".")
        parent = network.get_submodule(parent_name)
        parent.register_parameter(leaf, None)


def _forget_sources(program: torch.export.ExportedProgram) -> None:
    """Remove what a graph remembers of the machine: paths of source files, names of classes, example inputs."""
    for module in program.graph_module.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in module.graph.nodes:
            for key in _SOURCES:
                node.meta.pop(key, None)
    program.example_inputs = None
