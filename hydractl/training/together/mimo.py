"""MIMO: one network that takes M inputs at once and gives M answers, each for an input of its own.

In training the M inputs are different samples; to be tested it takes the same one M times. Their embeddings are sums of
what each input has for itself, a patch embedding (that is one convolution of M * C channels) or a table of words. Of M
equal inputs that is one embedding whose weights are added up, so each member is written as an ordinary checkpoint, and
the members have all but the classifier in common.

Havasi et al., Training independent subnetworks for robust prediction (ICLR 2021), sections 2 and 3. Which samples meet
is dealt as in the authors' code (google/uncertainty-baselines, ``baselines/cifar/mimo.py``).
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
from hydractl.model.runtime import HydraModel
from hydractl.model.source import Source
from hydractl.training.together.base import Together
from hydractl.training.together.classifiers import OneBody, drawn, replaced


@dataclass(frozen=True)
class Mimo:
    """The number of inputs, and how a batch is dealt to them.

    Attributes:
        members: inputs, and answers.
        equal: the share of rows (rho) whose inputs are all the same sample.
        repeats: how often each sample of a batch is there.
    """

    members: int = 3
    equal: float = 0.5
    repeats: int = 4

    @property
    def passes(self) -> int:
        """The passes of :class:`hydractl.training.together.base.Method`: one for each repeat of a sample."""
        return self.repeats

    def deal(self, samples: int) -> Tensor:
        """Draw which sample of a batch each input of each row is: int64 ``[M, samples * repeats]``.

        All samples are shuffled, ``repeats`` times over, by torch's generator; of the rows a first part is shuffled
        again for each input.
        """
        main = torch.randperm(samples * self.repeats) % samples
        count = int(samples * self.repeats * (1 - self.equal))
        apart, rest = main[:count], main[count:]
        return torch.stack([torch.cat([apart[torch.randperm(count)], rest]) for _ in range(self.members)])

    def sources(self, source: Source, seed: int) -> tuple[Source, ...]:
        """Return one network."""
        return (source,)

    def model(self, models: Sequence[HydraModel], source: Source, seed: int) -> Together:
        """Make the network of many inputs, see :class:`hydractl.training.together.base.Method`."""
        return ManyInputs(models[0], drawn(source, self.members, seed), self, scratch=source.drawn_by is not None)


class ManyInputs(OneBody):
    """A model that takes M inputs in training, and one as any other model.

    The weights of the embedding are those that the library draws, divided by the root of M. A model that was trained
    before starts from them less their mean, plus one Mth of its own: of M equal inputs it makes what it made of one.

    Args:
        model, drawn: as of :class:`OneBody`.
        options: how batches are dealt.
        scratch: whether the weights of the model are drawn ones.
    """

    def __init__(self, model: HydraModel, drawn: Sequence[dict[str, Tensor]], options: Mimo, *, scratch: bool) -> None:
        super().__init__(model, drawn)
        self.options = options
        self._stem = f"{_stem(model)}.weight"
        apart = torch.stack([tensors[self._stem] for tensors in drawn]) / self.members**0.5
        if not scratch:
            whole = model.networks[0].get_parameter(self._stem).detach().cpu()
            apart = apart - apart.mean(0) + whole / self.members
        layer = replaced(model, self._stem, apart)  # [M, d, C, p, p] or [M, words, d]
        layer.given, layer.forward = None, partial(_embedded, layer)
        self._layer = [layer]  # in a list, or it would be a second module of this one

    def answers(self, inputs: Any, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Deal a batch: logits ``[M, B * repeats, classes]`` and labels ``[M, B * repeats]``."""
        rows = self.options.deal(labels.shape[0]).to(labels.device)
        layer = self._layer[0]
        if isinstance(inputs, Tensor):
            layer.given = [inputs[own] for own in rows]
            body: Any = layer.given[0]
        else:
            texts = [{name: value[own] for name, value in inputs.items()} for own in rows]
            layer.given, body = [text["input_ids"] for text in texts], united(texts)
        try:
            return self.member_logits(body), labels[rows]
        finally:
            layer.given = None

    def loss(self, logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        """Return the sum over members, as in the authors' code."""
        return self.members * super().loss(logits, labels, smoothing)

    def stock_tensors(self, member: int) -> dict[str, Tensor]:
        """Return the network that takes M equal inputs, with the classifier of one member."""
        tensors = super().stock_tensors(member)
        return {**tensors, self._stem: tensors[self._stem].sum(0)}


def united(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Unite texts that are read at once, in all but their words.

    A token is there where one of the texts has one, and what is said of it is what the first of these says.
    """
    whole = dict(parts[-1])
    for part in reversed(parts[:-1]):
        there = part.get("attention_mask", torch.ones_like(part["input_ids"])).bool()
        whole = {name: torch.where(there, part[name], value) for name, value in whole.items()}
    return whole


def _stem(model: HydraModel) -> str:
    """Return the path of the one layer that inputs go through first.

    Raises:
        UsageError: for a model that has no such layer.
    """
    part, kind = ("words", nn.Embedding) if model.description.reads == "text" else ("patch", nn.Conv2d)
    pattern = model.family.named_parts.get(part, "$.")
    paths = [p for p, m in model.networks[0].named_modules() if type(m) is kind and re.match(pattern, f"{p}.weight")]
    if len(paths) != 1:
        wanted = "table of words" if kind is nn.Embedding else "convolution that makes patches"
        raise UsageError(f"--mimo: {model.description.arch} has no single {wanted}")
    return paths[0]


def _embedded(layer: Any, x: Tensor) -> Tensor:
    """Return the sum of the embeddings of the inputs that were dealt, else of as many copies of x."""
    weight: Tensor = layer.weight
    inputs = [x] * weight.shape[0] if layer.given is None else layer.given
    if isinstance(layer, nn.Embedding):
        each = [F.embedding(i, own, layer.padding_idx) for i, own in zip(inputs, weight.unbind(), strict=True)]
        return torch.stack(each).sum(0)
    kernels = weight.transpose(0, 1).flatten(1, 2)  # [M, d, C, p, p] -> [d, M * C, p, p]
    return F.conv2d(torch.cat(inputs, 1), kernels, layer.bias, layer.stride, layer.padding, layer.dilation)


def method(value: str) -> Mimo:
    """Return the method that ``--mimo`` asks for by ``M[,RHO[,REPEATS]]``."""
    members, equal, repeats, *_ = [*value.split(","), None, None]
    return Mimo(int(members or 3), float(equal or 0.5), int(repeats or 4))
