"""The network of MIMO: M inputs at once, M answers.

In training the M inputs are different samples; in tests they are M times the same one. Each input has its own patch
embedding (together they are one convolution of M * C channels) or its own table of words, and the network continues
with the sum of the embeddings. For M equal inputs that is a single embedding with the sum of the weights. So each
member is written as an ordinary checkpoint, and the members share all but the classifier.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hydractl.errors import UsageError
from hydractl.methods.classifiers.one_body import OneBody, draw_members, replace_parameter
from hydractl.model.runtime import HydraModel
from hydractl.model.source import Source
from hydractl.training.members import Together


@dataclass(frozen=True)
class Mimo:
    """The maker of the network, which also deals the samples of a batch to its inputs.

    Attributes:
        members: the number of inputs and of answers.
        equal: the share of rows whose inputs are all the same sample (rho).
        repeats: how often each sample of a batch occurs.
    """

    members: int
    equal: float
    repeats: int

    @property
    def passes(self) -> int:
        """See :class:`hydractl.training.members.MemberMaker`: one pass for each repeat of a sample."""
        return self.repeats

    def deal(self, samples: int) -> Tensor:
        """Draw the samples of each input, as their places in the batch: int64 ``[M, samples * repeats]``.

        Each sample occurs ``repeats`` times, in an order that torch's generator shuffles. The inputs differ in a first
        part of the rows, which is shuffled again for each of them, and agree in the others.
        """
        rows = samples * self.repeats
        shuffled = torch.randperm(rows) % samples
        differing_rows = int(rows * (1 - self.equal))
        differing = shuffled[:differing_rows]
        equal = shuffled[differing_rows:]

        inputs = []
        for _ in range(self.members):
            shuffled_again = differing[torch.randperm(differing_rows)]
            inputs.append(torch.cat([shuffled_again, equal]))
        return torch.stack(inputs)

    def sources(self, source: Source, seed: int) -> tuple[Source, ...]:
        """Return the one network."""
        return (source,)

    def model(self, models: Sequence[HydraModel], source: Source, seed: int) -> Together:
        """Return the network of many inputs, see :class:`hydractl.training.members.MemberMaker`."""
        drawn = draw_members(source, self.members, seed)
        from_scratch = source.drawn_by is not None
        return ManyInputs(models[0], drawn, self, scratch=from_scratch)


class ManyInputs(OneBody):
    """A model that takes M inputs in training, and otherwise one input as any other model.

    The weights of the embeddings are drawn by the library and divided by the root of M. For a pretrained model their
    mean over inputs is replaced by one Mth of the pretrained weights, so that M equal inputs give the same sum of
    embeddings as the one input did before.

    Args:
        model, drawn: as of :class:`OneBody`.
        options: deals the samples of a batch to the inputs.
        scratch: whether the weights of the model are random, not pretrained.
    """

    def __init__(self, model: HydraModel, drawn: Sequence[dict[str, Tensor]], options: Mimo, *, scratch: bool) -> None:
        super().__init__(model, drawn)
        self.options = options
        self._stem = f"{_stem_path(model)}.weight"

        # The weights of the embeddings.
        drawn_weights = [tensors[self._stem] for tensors in drawn]
        weights = torch.stack(drawn_weights) / self.members**0.5  # [M, d, C, p, p] or [M, words, d]
        if not scratch:
            pretrained = model.networks[0].get_parameter(self._stem).detach().cpu()
            weights = weights - weights.mean(0) + pretrained / self.members

        # The layer that embeds and sums.
        layer = replace_parameter(model, self._stem, weights)
        layer.dealt = None  # the inputs of the current batch, set by answers() and read by _embedded()
        layer.forward = partial(_embedded, layer)
        self._layer = [layer]  # in a list, so that it is not registered as a second submodule

    def answers(self, inputs: Any, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Deal a batch to the inputs.

        Returns logits ``[M, B * repeats, classes]`` and the labels ``[M, B * repeats]`` that they are compared with.
        """
        rows_of_inputs = self.options.deal(labels.shape[0])  # [M, B * repeats]
        rows_of_inputs = rows_of_inputs.to(labels.device)
        layer = self._layer[0]
        body: Any  # the input of the network: its first layer replaces it by the dealt ones
        if isinstance(inputs, Tensor):
            layer.dealt = [inputs[rows] for rows in rows_of_inputs]
            body = layer.dealt[0]
        else:
            texts = [_rows_of_text(inputs, rows) for rows in rows_of_inputs]
            layer.dealt = [text["input_ids"] for text in texts]
            body = unite_texts(texts)
        try:
            return self.member_logits(body), labels[rows_of_inputs]
        finally:
            layer.dealt = None

    def loss(self, logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        """Return the sum over members of the mean over the batch, as in the authors' code."""
        mean_over_members = super().loss(logits, labels, smoothing)
        return self.members * mean_over_members

    def stock_tensors(self, member: int) -> dict[str, Tensor]:
        """Return the weights of an ordinary model: the network for M equal inputs with the classifier of one member."""
        tensors = super().stock_tensors(member)
        weights = tensors[self._stem]  # [M, ...]
        tensors[self._stem] = weights.sum(0)
        return tensors


def _rows_of_text(inputs: Mapping[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    """Return some rows of the tensors of a text batch."""
    text = {}
    for name, value in inputs.items():
        text[name] = value[rows]
    return text


def unite_texts(texts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the tensors of texts that are read at once: their masks and whatever else belongs to their tokens.

    There is a token wherever at least one text has one, and its values are those of the first text that has it. The
    words of the texts are embedded separately.
    """
    united = dict(texts[-1])
    for text in reversed(texts[:-1]):
        all_there = torch.ones_like(text["input_ids"])
        is_there = text.get("attention_mask", all_there).bool()
        for name, value in united.items():
            united[name] = torch.where(is_there, text[name], value)
    return united


def _stem_path(model: HydraModel) -> str:
    """Return the path of the one layer that inputs enter first.

    Raises:
        UsageError: the model has no such layer, or several.
    """
    part: str
    kind: type[nn.Module]
    if model.description.reads == "text":
        part = "words"
        kind = nn.Embedding
        wanted = "table of words"
    else:
        part = "patch"
        kind = nn.Conv2d
        wanted = "convolution that makes patches"

    matches_nothing = "$."
    pattern = model.family.named_parts.get(part, matches_nothing)
    paths = []
    for path, module in model.networks[0].named_modules():
        if type(module) is kind and re.match(pattern, f"{path}.weight"):
            paths.append(path)
    if len(paths) != 1:
        raise UsageError(f"--ensemble mimo: {model.description.arch} has no single {wanted}")
    return paths[0]


def _embedded(layer: Any, x: Tensor) -> Tensor:
    """Return the sum of the embeddings of the dealt inputs; if none were dealt, of M copies of x.

    Args:
        layer: an embedding or a convolution with the weights ``[M, ...]`` of all inputs.
        x: the input of the network.
    """
    weight: Tensor = layer.weight
    inputs = layer.dealt
    if inputs is None:
        inputs = [x] * weight.shape[0]

    if isinstance(layer, nn.Embedding):
        embeddings = []
        for words, table in zip(inputs, weight.unbind(), strict=True):
            embedding = F.embedding(words, table, layer.padding_idx)  # [B, T, d]
            embeddings.append(embedding)
        return torch.stack(embeddings).sum(0)

    channels = torch.cat(inputs, 1)  # [B, M * C, H, W]
    kernels = weight.transpose(0, 1).flatten(1, 2)  # [M, d, C, p, p] -> [d, M * C, p, p]
    return F.conv2d(channels, kernels, layer.bias, layer.stride, layer.padding, layer.dilation)
