"""Masks on the neurons of MLPs, one for each member, which all train the same weights.

A neuron that a member's mask leaves out adds nothing to the output of its MLP. So a member is an ordinary checkpoint,
in which the columns of these neurons are zero in the last layer of each MLP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.errors import UsageError
from hydractl.model.projections import is_linear
from hydractl.model.runtime import HydraModel
from hydractl.model.source import Source
from hydractl.training.members import Together


@dataclass(frozen=True)
class Masksembles:
    """The maker of the network.

    Attributes:
        members: the number of masks.
        scale: about how many times as many neurons as a mask keeps the masks are drawn from; 1 for equal masks.
    """

    members: int
    scale: float
    passes = 1

    def sources(self, source: Source, seed: int) -> tuple[Source, ...]:
        """Return the one network."""
        return (source,)

    def model(self, models: Sequence[HydraModel], source: Source, seed: int) -> Together:
        """Return the network with masks, see :class:`hydractl.training.members.MemberMaker`."""
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
    """Draw masks, bool ``[M, neurons]``, that keep about the same number of neurons each, and every neuron in one.

    The neurons of each mask are drawn among ``scale`` times as many; what nobody has drawn is left out. The number of
    what is left is random, so some are taken away or given to a mask, to have as many as the layer has.
    """
    share_of_union = 1 - (1 - 1 / scale) ** members
    kept = max(1, round(neurons / (scale * share_of_union)))
    candidates = max(neurons, round(kept * scale))
    masks = torch.zeros(members, candidates, dtype=torch.bool)
    for mask in masks:
        drawn = torch.randperm(candidates, generator=generator)[:kept]
        mask[drawn] = True

    # The columns that some mask keeps, at first those that several keep, as many as the layer has neurons.
    shares = masks.sum(dim=0)
    order = torch.argsort(shares, descending=True, stable=True)
    chosen = order[:neurons].sort().values
    masks = masks[:, chosen]
    # Each neuron that is left for nobody goes to the mask that keeps the fewest.
    for neuron in (~masks.any(dim=0)).nonzero()[:, 0]:
        poorest = int(masks.sum(dim=1).argmin())
        masks[poorest, neuron] = True
    return masks


def last_layers_of_mlps(model: HydraModel) -> dict[str, Any]:
    """Return the last linear layer of the MLP of each block, which reads its neurons, by path."""
    layers = {}
    for block in model.block_paths:
        for path, module in model.networks[0].get_submodule(block).named_modules():
            full_path = f"{block}.{path}"
            if is_linear(module) and model.family.part(f"{full_path}.weight", model.sites) == "mlp":
                last_of_block = (full_path, module)
                layers[block] = last_of_block
    return dict(layers.values())


def _axis(layer: nn.Module) -> int:
    """Return the dimension of a layer's weight that stands for its inputs; some libraries store it transposed."""
    if isinstance(layer, nn.Linear):
        return 1
    return 0


def _neurons(layer: Any) -> int:
    """Return the number of inputs of a layer."""
    count: int = layer.weight.shape[_axis(layer)]
    return count


class MaskedMlps(Together):
    """A network that masks the neurons of its MLPs: in training those of each sample, else those of one member.

    Args:
        model: of one member; hooks are put on it.
        masks: ``[M, neurons]`` by the path of the last layer of an MLP.
    """

    def __init__(self, model: HydraModel, masks: dict[str, Tensor]) -> None:
        (first_mask, *_) = masks.values()
        super().__init__([model], len(first_mask))
        self._masks = masks
        self._axes = {}
        self._member_of_row: Tensor | None = None  # [B], of the last training batch
        self._member = 0
        for path, mask in masks.items():
            layer = model.networks[0].get_submodule(path)
            self._axes[path] = _axis(layer)
            layer.register_forward_pre_hook(self._masking(mask))

    def _masking(self, mask: Tensor) -> Any:
        """Return a hook that masks the inputs ``[B, ..., neurons]`` of a layer."""

        def masked(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            x = inputs[0]
            if self._member_of_row is None:
                of_rows = mask[self._member]
            else:
                by_row = mask[self._member_of_row]  # [B, neurons]
                between = [1] * (x.dim() - 2)
                of_rows = by_row.view(len(by_row), *between, by_row.shape[1])
            return (x * of_rows.to(x), *inputs[1:])

        return masked

    def member_logits(self, inputs: Any) -> Tensor:
        """Return logits ``[M, B, classes]``: each member runs on all samples."""
        self._member_of_row = None
        logits = []
        for member in range(self.members):
            self._member = member
            logits.append(self.each[0].member_logits(inputs))
        return torch.cat(logits)

    def answers(self, inputs: Any, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits ``[1, B, classes]`` and labels ``[1, B]``: each sample is that of one member, in turns."""
        rows = torch.arange(len(labels))
        self._member_of_row = (
            rows % self.members
        )  # kept, as blocks that are checkpointed run again in the backward pass
        logits = self.each[0].member_logits(inputs)
        return logits, labels[None]

    def loss(self, logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        """Return the mean over the batch."""
        sum_over_members = super().loss(logits, labels, smoothing)
        return sum_over_members / self.members

    def stock_tensors(self, member: int) -> dict[str, Tensor]:
        """Return the weights of an ordinary model: those of all, with zeros for the neurons that the member lacks."""
        tensors = dict(super().stock_tensors(0))
        for path, mask in self._masks.items():
            name = f"{path}.weight"
            kept = mask[member].to(tensors[name])
            if self._axes[path] == 0:
                kept = kept[:, None]
            tensors[name] = tensors[name] * kept
        return tensors
