"""The network of MIMO: M inputs at once, M answers.

In training the M inputs are different samples; to be tested it takes the same one M times. Their embeddings are sums of
what each input has for itself, a patch embedding (that is one convolution of M * C channels) or a table of words. Of M
equal inputs that is one embedding whose weights are added up, so each member is written as an ordinary checkpoint, and
the members have all but the classifier in common.
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
    """The number of inputs, and how a batch is dealt to them.

    Attributes:
        members: inputs, and answers.
        equal: the share of rows (rho) whose inputs are all the same sample.
        repeats: how often each sample of a batch is there.
    """

    members: int
    equal: float
    repeats: int

    @property
    def passes(self) -> int:
        """The passes of :class:`hydractl.training.members.MemberMaker`: one for each repeat of a sample."""
        return self.repeats

    def deal(self, samples: int) -> Tensor:
        """Draw which sample of a batch each input of each row is: int64 ``[M, samples * repeats]``.

        All samples are shuffled, ``repeats`` times over, by torch's generator; of the rows a first part is shuffled
        again for each input.
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
        """Return one network."""
        return (source,)

    def model(self, models: Sequence[HydraModel], source: Source, seed: int) -> Together:
        """Make the network of many inputs, see :class:`hydractl.training.members.MemberMaker`."""
        drawn = draw_members(source, self.members, seed)
        return ManyInputs(models[0], drawn, self, scratch=source.drawn_by is not None)


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
        self._stem = f"{_stem_path(model)}.weight"
        drawn_weights = torch.stack([tensors[self._stem] for tensors in drawn])
        weights = drawn_weights / self.members**0.5
        if not scratch:
            pretrained = model.networks[0].get_parameter(self._stem).detach().cpu()
            weights = weights - weights.mean(0) + pretrained / self.members
        layer = replace_parameter(model, self._stem, weights)  # [M, d, C, p, p] or [M, words, d]
        layer.dealt = None
        layer.forward = partial(_embedded, layer)
        self._layer = [layer]  # in a list, or it would be a second module of this one

    def answers(self, inputs: Any, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Deal a batch: logits ``[M, B * repeats, classes]`` and labels ``[M, B * repeats]``."""
        rows_of_inputs = self.options.deal(labels.shape[0]).to(labels.device)  # [M, B * repeats]
        layer = self._layer[0]
        body: Any
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
        """Return the sum over members, as in the authors' code."""
        return self.members * super().loss(logits, labels, smoothing)

    def stock_tensors(self, member: int) -> dict[str, Tensor]:
        """Return the network that takes M equal inputs, with the classifier of one member."""
        tensors = super().stock_tensors(member)
        tensors[self._stem] = tensors[self._stem].sum(0)
        return tensors


def _rows_of_text(inputs: Mapping[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    return {name: value[rows] for name, value in inputs.items()}


def unite_texts(texts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Unite texts that are read at once, in all but their words.

    A token is there where one of the texts has one, and what is said of it is what the first of these says.
    """
    united = dict(texts[-1])
    for text in reversed(texts[:-1]):
        is_there = text.get("attention_mask", torch.ones_like(text["input_ids"])).bool()
        for name, value in united.items():
            united[name] = torch.where(is_there, text[name], value)
    return united


def _stem_path(model: HydraModel) -> str:
    """Return the path of the one layer that inputs go through first.

    Raises:
        UsageError: for a model that has no such layer.
    """
    part: str
    kind: type[nn.Module]
    if model.description.reads == "text":
        part, kind, wanted = "words", nn.Embedding, "table of words"
    else:
        part, kind, wanted = "patch", nn.Conv2d, "convolution that makes patches"
    pattern = model.family.named_parts.get(part, "$.")
    paths = []
    for path, module in model.networks[0].named_modules():
        if type(module) is kind and re.match(pattern, f"{path}.weight"):
            paths.append(path)
    if len(paths) != 1:
        raise UsageError(f"--ensemble mimo: {model.description.arch} has no single {wanted}")
    return paths[0]


def _embedded(layer: Any, x: Tensor) -> Tensor:
    """Return the sum of the embeddings of the inputs that were dealt, else of as many copies of x."""
    weight: Tensor = layer.weight
    inputs = layer.dealt
    if inputs is None:
        inputs = [x] * weight.shape[0]
    if isinstance(layer, nn.Embedding):
        embeddings = []
        for words, table in zip(inputs, weight.unbind(), strict=True):
            embeddings.append(F.embedding(words, table, layer.padding_idx))
        return torch.stack(embeddings).sum(0)
    channels = torch.cat(inputs, 1)  # [B, M * C, H, W]
    kernels = weight.transpose(0, 1).flatten(1, 2)  # [M, d, C, p, p] -> [d, M * C, p, p]
    return F.conv2d(channels, kernels, layer.bias, layer.stride, layer.padding, layer.dilation)
