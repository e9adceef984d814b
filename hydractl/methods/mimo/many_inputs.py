"""The network of MIMO: it takes M inputs at once and returns M answers.

In training, the M inputs are different images; in tests, all M are the same image. Each input has its own patch
embedding (together they are one convolution of M * C channels), and the network continues with the sum of the
embeddings. For M equal inputs, the sum is a single embedding with the sum of the weights. So each member is written as
an ordinary checkpoint, and the members share all weights but the classifier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hydractl.errors import UsageError
from hydractl.families.pixels import input_size
from hydractl.methods.classifiers.one_body import OneBody, draw_members, replace_parameter
from hydractl.methods.mimo import MimoOptions
from hydractl.model.runtime import HydraModel
from hydractl.model.source import Source
from hydractl.training.members import MemberMaker, Together


@dataclass(frozen=True)
class Mimo(MemberMaker):
    """Makes the network, and deals the samples of a batch to its inputs."""

    options: MimoOptions

    def deal(self, samples: int) -> Tensor:
        """Return which samples of a batch the network gets at each of its M inputs, one input for each member.

        Each run of the network (a row) reads M samples at once, mostly different ones. In the share ``equal`` of the
        rows all inputs get the same sample, as in tests.

        Args:
            samples: the number of samples in the batch.

        Returns:
            Indices of samples in the batch, int64 ``[M, rows]`` with rows = samples * repeats. Every input gets each
            sample ``repeats`` times. E.g. for 4 samples, M = 2, repeats = 1 and equal = 0.5:
            ``[[2, 0, 3, 1], [0, 2, 3, 1]]``, which differ in the first two rows only.
        """
        # Shuffle the rows. The remainder turns the row numbers 0, ..., rows - 1 into indices of samples, each of which
        # occurs `repeats` times.
        rows = samples * self.options.repeats
        shuffled = torch.randperm(rows) % samples

        # In the first part of the rows the inputs differ, in the rest they are equal.
        differing_rows = int(rows * (1 - self.options.equal))
        differing_samples = shuffled[:differing_rows]
        equal_samples = shuffled[differing_rows:]

        # Each input gets the first part in another order, and the rest as it is.
        inputs = []
        for _ in range(self.options.members):
            shuffled_again = differing_samples[torch.randperm(differing_rows)]
            inputs.append(torch.cat([shuffled_again, equal_samples]))
        return torch.stack(inputs)

    def model(self, models: Sequence[HydraModel], source: Source, seed: int) -> Together:
        """Return the network of many inputs, made of the one model."""
        drawn = draw_members(source, self.options.members, seed)
        from_scratch = source.drawn_by is not None
        return ManyInputs(models[0], drawn, self, scratch=from_scratch)


class ManyInputs(OneBody):
    """A model that takes M inputs in training, and otherwise one input like any other model.

    The weights of the embeddings are drawn as the library draws them, and divided by the root of M. For a pretrained
    model, their mean over inputs is then replaced by one Mth of the pretrained weights: M equal inputs give the same
    sum of embeddings as the one input did before.

    Args:
        model, drawn: as in :class:`OneBody`.
        maker: deals the samples of a batch to the inputs.
        scratch: whether the weights of the model are random, not pretrained.
    """

    def __init__(self, model: HydraModel, drawn: Sequence[dict[str, Tensor]], maker: Mimo, *, scratch: bool) -> None:
        """Replace the first layer of the model, in place, by one that embeds M inputs and sums their embeddings.

        Args:
            model: the model, with one classifier.
            drawn: for each of M members the weights of a whole model, as its library initialises them.
            maker: deals the samples of a batch to the inputs.
            scratch: whether the weights of the model are random, not pretrained.
        """
        super().__init__(model, drawn)
        self.maker = maker
        self._stem = f"{_stem_path(model)}.weight"

        # Draw the embedding weights of all inputs. Divided by the root of M, the sum of M embeddings varies as much as
        # a single one. Shift their mean to one Mth of the pretrained weights, if there are any: for M equal inputs the
        # sum is then the pretrained embedding.
        drawn_weights = [tensors[self._stem] for tensors in drawn]
        weights = torch.stack(drawn_weights) / self.members**0.5  # [M, d, C, p, p]
        if not scratch:
            pretrained = model.networks[0].get_parameter(self._stem).detach().cpu()
            weights = weights - weights.mean(0) + pretrained / self.members

        # Let the first layer embed M inputs and sum their embeddings. The inputs reach it by the attribute `dealt`, as
        # the layers between here and there pass on a single input.
        layer = replace_parameter(model, self._stem, weights)
        layer.dealt = None  # the inputs of the current batch, set by answers() and read by _embedded()
        layer.forward = partial(_embedded, layer)
        self._layer = [layer]  # in a list, so that it is not registered as a second submodule

    def answers(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of all members, ``[M, B * repeats, classes]``, and the labels they should give.

        The labels are ``[M, B * repeats]``. Each run of the network reads M samples, one at each input, and member m
        classifies the sample at input m. Every input gets each sample of the batch ``repeats`` times, in random order.

        Args:
            inputs: the images of a batch, ``[B, C, H, W]``.
            labels: their classes, ``[B]``.
        """
        # For each input, the samples that it takes, by their indices in the batch.
        rows_of_inputs = self.maker.deal(labels.shape[0])  # [M, B * repeats]
        rows_of_inputs = rows_of_inputs.to(labels.device)

        # The first layer reads all inputs from `dealt`; the network is called with any of them.
        layer = self._layer[0]
        layer.dealt = [inputs[rows] for rows in rows_of_inputs]
        try:
            return self.member_logits(layer.dealt[0]), labels[rows_of_inputs]
        finally:
            layer.dealt = None

    def loss(self, logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        """Return the mean loss over the batch, summed over members, as in the authors' code."""
        mean_over_members = super().loss(logits, labels, smoothing)
        return self.members * mean_over_members

    def stock_tensors(self, member: int) -> dict[str, Tensor]:
        """Return the weights of an ordinary model: the network for M equal inputs with the classifier of one member."""
        tensors = super().stock_tensors(member)
        weights = tensors[self._stem]  # [M, ...]
        tensors[self._stem] = weights.sum(0)
        return tensors


def _stem_path(model: HydraModel) -> str:
    """Return the path of the first layer of a model: the single convolution that makes patches of the images.

    Raises:
        UsageError: the model reads texts; it has no such convolution, or several; or the convolution reads the features
            of other layers instead of the image, as in hybrids of a CNN and a transformer.
    """
    if model.description.reads == "text":
        raise UsageError(f"--ensemble mimo takes models that read images, not {model.description.arch}")
    convolutions = {}
    for path, module in model.networks[0].named_modules():
        if type(module) is nn.Conv2d and model.family.has_role(f"{path}.weight", "patch"):
            convolutions[path] = module
    if len(convolutions) != 1:
        raise UsageError(f"--ensemble mimo: {model.description.arch} has no single convolution that makes patches")
    [(path, convolution)] = convolutions.items()
    channels, *_ = input_size(model.description.preprocess)
    if convolution.in_channels != channels:
        raise UsageError(f"--ensemble mimo: {model.description.arch} makes patches of features, not of the image")
    return path


def _embedded(layer: Any, x: Tensor) -> Tensor:
    """Return the sum of the embeddings of M inputs, ``[B, d, H / p, W / p]``, for patches of p pixels.

    In training the M inputs are different images, in ``layer.dealt``. Otherwise that is None, and all M are ``x``.

    Args:
        layer: a convolution with the weights of all inputs, ``[M, d, C, p, p]``.
        x: the input that the network was called with, ``[B, C, H, W]``.
    """
    weight: Tensor = layer.weight
    inputs = layer.dealt
    if inputs is None:
        inputs = [x] * weight.shape[0]

    # One convolution over the channels of all inputs adds up by itself:
    # sum over m of conv(x_m, W_m) = conv([x_1, ..., x_M], [W_1, ..., W_M]).
    channels = torch.cat(inputs, 1)  # [B, M * C, H, W]
    kernels = weight.transpose(0, 1).flatten(1, 2)  # [M, d, C, p, p] -> [d, M * C, p, p]
    return F.conv2d(channels, kernels, layer.bias, layer.stride, layer.padding, layer.dilation)
