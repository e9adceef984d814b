"""Masks on the neurons of MLPs, one for each member. All members train the same weights.

A neuron that a member's mask leaves out adds nothing to the output of its MLP. So a member is an ordinary checkpoint in
which the columns of these neurons are zero in the last layer of each MLP.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.errors import UsageError
from hydractl.model.projections import is_linear
from hydractl.model.runtime import HydraModel
from hydractl.model.source import Source
from hydractl.training.members import MemberMaker, Together


@dataclass(frozen=True)
class Masksembles(MemberMaker):
    """Makes a network with masks.

    Attributes:
        members: the number of masks.
        scale: the masks are drawn from about this many times as many neurons as a mask keeps; 1 for equal masks.
    """

    members: int
    scale: float

    def model(self, models: Sequence[HydraModel], source: Source, seed: int) -> Together:
        """Return the network with masks, made of the one model."""
        generator = torch.Generator().manual_seed(seed)
        (model,) = models
        layers = last_layers_of_mlps(model)
        if not layers:
            raise UsageError(f"{model.description.arch} has no MLPs whose neurons could be masked")
        masks = {}
        for path, layer in layers.items():
            masks[path] = draw_masks(self.members, _neurons(layer), self.scale, generator)
        return MaskedMlps(model, masks)


def draw_masks(members: int, neurons: int, scale: float, generator: torch.Generator) -> Tensor:
    """Draw masks, bool ``[M, neurons]``, that keep equally many neurons, of which each is in one mask or more.

    All such masks are equally probable. Each draws its neurons among more than the layer has, about ``scale`` times as
    many as it keeps; where together they have drawn as many as the layer has, those are its neurons, else all are drawn
    again. How many they are drawn among decides only how often that is. Source: ``generation_wrapper`` of the authors.

    Args:
        members: the number of masks.
        neurons: the number of neurons of the layer.
        scale: a mask draws its neurons among about this many times as many.
        generator: draws the masks.
    """
    # How many neurons each mask keeps, so that together they are expected to draw as many as the layer has.
    kept = int(neurons / _expected_union(1.0, scale, members))
    kept = max(kept, math.ceil(neurons / members))  # fewer could not have all neurons

    # Rounding has changed this number, so find how many candidates to draw them among. More candidates overlap less.
    candidates = neurons
    while _expected_union(kept, candidates / kept, members) < neurons - 0.5:
        candidates += 1

    # Draw until together they have exactly as many, and leave out the candidates that no mask has drawn.
    while True:
        masks = torch.zeros(members, candidates, dtype=torch.bool)
        for mask in masks:
            drawn = torch.randperm(candidates, generator=generator)[:kept]
            mask[drawn] = True
        is_in_some = masks.any(dim=0)
        if int(is_in_some.sum()) == neurons:
            return masks[:, is_in_some]


def _expected_union(kept: float, scale: float, members: int) -> float:
    """Return how many neurons are expected in some mask, where each draws ``kept`` of ``scale`` times as many."""
    share_in_none = (1 - 1 / scale) ** members
    return kept * scale * (1 - share_in_none)


def last_layers_of_mlps(model: HydraModel) -> dict[str, Any]:
    """Return the last linear layer of the MLP of each block, whose inputs are the MLP's neurons, by path.

    In a model with two towers only the tower that reads samples counts: the other one reads the prompts of the classes,
    which are not divided among the members.
    """
    layers = {}
    for block in model.chain_of_samples.block_paths:
        for path, module in model.networks[0].get_submodule(block).named_modules():
            full_path = f"{block}.{path}"
            if is_linear(module) and model.family.part(f"{full_path}.weight") == "mlp":
                last_of_block = (full_path, module)
                layers[block] = last_of_block  # a later layer of the block replaces an earlier one
    return dict(layers.values())


def _axis(layer: nn.Module) -> int:
    """Return the dimension of a layer's weight that belongs to its inputs; some libraries store weights transposed."""
    if isinstance(layer, nn.Linear):
        return 1
    return 0


def _neurons(layer: Any) -> int:
    """Return the number of inputs of a layer, which are the neurons of the MLP."""
    count: int = layer.weight.shape[_axis(layer)]
    return count


class MaskedMlps(Together):
    """A network that masks the neurons of its MLPs: in training by the member of each sample, else by one member.

    Args:
        model: a model with one member, on which hooks are put.
        masks: masks ``[M, neurons]``, by the path of the last layer of an MLP.
    """

    def __init__(self, model: HydraModel, masks: dict[str, Tensor]) -> None:
        """Register a hook on the last layer of each MLP, which masks the neurons that enter it."""
        (first_mask, *_) = masks.values()
        super().__init__([model], len(first_mask))
        self._masks = masks
        self._axes = {}
        self._member_of_row: Tensor | None = None  # [B] in training; None outside: then `_member` runs all samples
        self._member = 0
        for path, mask in masks.items():
            layer = model.networks[0].get_submodule(path)
            self._axes[path] = _axis(layer)
            layer.register_forward_pre_hook(self._masking(mask))

    def _masking(self, mask: Tensor) -> Any:
        """Return a hook that masks the inputs ``[B, ..., neurons]`` of a layer, by the members that run now."""

        def masked(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            """Return the inputs of the layer, the first of them masked."""
            x = inputs[0]

            # Outside training: one mask for all samples, [neurons].
            if self._member_of_row is None:
                mask_of_rows = mask[self._member]
            # In training: the mask of each sample's member, [B, neurons] -> [B, 1, ..., 1, neurons].
            else:
                mask_by_row = mask[self._member_of_row]
                ones_between = [1] * (x.dim() - 2)
                mask_of_rows = mask_by_row.view(len(mask_by_row), *ones_between, mask_by_row.shape[1])
            return (x * mask_of_rows.to(x), *inputs[1:])

        return masked

    def member_logits(self, inputs: Any) -> Tensor:
        """Return the logits of all members, ``[M, B, classes]``: each member runs on all samples."""
        self._member_of_row = None
        logits = []
        for member in range(self.members):
            self._member = member
            logits.append(self.each[0].member_logits(inputs))
        return torch.cat(logits)

    def answers(self, inputs: Any, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits ``[1, B, classes]`` and labels ``[1, B]``; the members take turns, one for each sample."""
        rows = torch.arange(len(labels))

        # Keep it after this call: checkpointed blocks run again in the backward pass.
        self._member_of_row = rows % self.members
        logits = self.each[0].member_logits(inputs)
        return logits, labels[None]

    def loss(self, logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        """Return the mean loss over the batch."""
        sum_over_members = super().loss(logits, labels, smoothing)
        return sum_over_members / self.members

    def stock_tensors(self, member: int) -> dict[str, Tensor]:
        """Return the weights of an ordinary model: the common weights, with zeros for neurons that the member lacks."""
        tensors = dict(super().stock_tensors(0))
        for path, mask in self._masks.items():
            name = f"{path}.weight"
            kept = mask[member].to(tensors[name])
            if self._axes[path] == 0:
                kept = kept[:, None]
            tensors[name] = tensors[name] * kept
        return tensors
