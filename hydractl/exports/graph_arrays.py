"""The operations of :class:`hydractl.metrics.arrays.Arrays` on float64 tensors, with operators that ONNX also has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor

from hydractl.metrics.arrays import SMALLEST, Arrays


class GraphArrays:
    """The operations, see :class:`Arrays`. Equal values keep their order in torch and ONNX Runtime, as in numpy."""

    exp = staticmethod(torch.exp)
    log = staticmethod(torch.log)
    sqrt = staticmethod(torch.sqrt)

    def entropy(self, probs: Tensor) -> Tensor:
        log_probs = torch.log(self.at_least(probs, SMALLEST))
        return 0.0 - (probs * log_probs).sum(dim=1)

    def at_least(self, values: Tensor, lowest: float) -> Tensor:
        return torch.maximum(values, self.number(lowest))

    def at_most(self, values: Tensor, highest: float) -> Tensor:
        return torch.minimum(values, self.number(highest))

    def max(self, values: Tensor, axis: int, *, keepdims: bool = False) -> Tensor:
        return torch.amax(values, dim=axis, keepdim=keepdims)

    def min(self, values: Tensor, axis: int) -> Tensor:
        return torch.amin(values, dim=axis)

    def argmax(self, values: Tensor, axis: int) -> Tensor:
        return torch.argmax(values, dim=axis)

    def variance(self, values: Tensor) -> Tensor:
        centred = values - values.mean(dim=0)
        return (centred * centred).mean(dim=0)

    def rising(self, values: Tensor) -> Tensor:
        rising, _ = torch.sort(values, dim=1)
        return rising

    def places_by_falling_value(self, values: Tensor) -> Tensor:
        _, places = torch.sort(values, dim=1, descending=True, stable=True)
        return places

    def kth_lowest(self, values: Tensor, k: int) -> Tensor:
        lowest, _ = torch.topk(values, k, dim=1, largest=False, sorted=True)
        return lowest[:, k - 1]

    def quotients(self, numerators: Tensor, denominators: Tensor) -> Tensor:
        is_zero = denominators == 0
        # Both branches of `where` are computed, so avoid the division by 0.
        divided = numerators / torch.where(is_zero, torch.ones_like(denominators), denominators)
        return torch.where(is_zero, torch.zeros_like(divided), divided)

    def taken(self, values: Tensor, places: Tensor) -> Tensor:
        # numpy broadcasts the indices over the other axes, torch does not.
        other_axes = values.shape[:-1]
        indices = places.expand(*other_axes, places.shape[-1])
        return torch.gather(values, -1, indices)

    def placed(self, values: Tensor, places: Tensor, width: int) -> Tensor:
        zeros = values.new_zeros(values.shape[0], width)
        return torch.scatter(zeros, 1, places, values)

    def cumulated(self, values: Tensor) -> Tensor:
        return torch.cumsum(values, dim=1)

    def number(self, number: float) -> Tensor:
        # A plain Python number would be written in float32 by the exporter to ONNX.
        return torch.tensor(number, dtype=torch.float64)

    def numbers(self, numbers: Sequence[float]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.float64)

    def filled(self, values: Tensor, number: float) -> Tensor:
        return torch.zeros_like(values) + self.number(number)

    def by_network(
        self, network: Callable[[Mapping[str, Tensor], Tensor], Tensor], weights: Mapping[str, Tensor], inputs: Tensor
    ) -> Tensor:
        return network(weights, inputs)


IN_GRAPH = cast("Arrays", GraphArrays())
"""The operations, typed as :class:`Arrays` for functions that are written for numpy arrays."""
