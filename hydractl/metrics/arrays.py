"""The operations that numpy and torch call differently, so that one function runs on arrays and in an exported graph.

Scores, calibrations and prediction sets are each written once. Run on numpy arrays, they measure. Run on float64
tensors, :mod:`torch.export` makes them part of an exported graph. Both kinds of array have the operators of Python,
indexing, ``.T``, ``.sum``, ``.mean``, ``.shape`` and ``.reshape`` in common; everything else they need is here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

SMALLEST = float(np.finfo(np.float64).tiny)
"""The smallest normal float64. A probability below it adds less than 1e-304 to an entropy."""

_Floats = NDArray[np.float64]
_Places = NDArray[np.int64]
_Network = Callable[[Mapping[str, Any], Any], Any]
"""A torch function ``network(weights, inputs)``: the weights are tensors by name, the inputs and the result tensors."""


class Arrays:
    """The operations on numpy arrays. Those on tensors, in a graph, have the same names and number formats."""

    def exp(self, values: _Floats) -> _Floats:
        """Return the exponential of every value."""
        return np.exp(values)

    def log(self, values: _Floats) -> _Floats:
        """Return the natural logarithm of every value."""
        return np.log(values)

    def entropy(self, probs: _Floats) -> _Floats:
        """Return the entropy, in nats, of probabilities ``[n, C]``: ``[n]``; a probability of 0 adds 0."""
        # Work in one new array, which stays in the cache.
        terms = np.maximum(probs, SMALLEST)
        np.log(terms, out=terms)
        np.multiply(terms, probs, out=terms)
        entropy: _Floats = 0.0 - terms.sum(axis=1)  # unlike -sum, never a negative zero
        return entropy

    def sqrt(self, values: _Floats) -> _Floats:
        """Return the square root of every value."""
        return np.sqrt(values)

    def at_least(self, values: _Floats, lowest: float) -> _Floats:
        """Return the values, with every value below ``lowest`` replaced by ``lowest``."""
        return np.maximum(values, lowest)

    def at_most(self, values: _Floats, highest: float) -> _Floats:
        """Return the values, with every value above ``highest`` replaced by ``highest``."""
        return np.minimum(values, highest)

    def max(self, values: _Floats, axis: int, *, keepdims: bool = False) -> _Floats:
        """Return the highest values along an axis."""
        highest: _Floats = values.max(axis=axis, keepdims=keepdims)
        return highest

    def min(self, values: _Floats, axis: int) -> _Floats:
        """Return the lowest values along an axis."""
        lowest: _Floats = values.min(axis=axis)
        return lowest

    def argmax(self, values: _Floats, axis: int) -> _Places:
        """Return the indices of the highest values along an axis; the first index on a tie."""
        places = values.argmax(axis=axis)
        return np.asarray(places, dtype=np.int64)

    def variance(self, values: _Floats) -> _Floats:
        """Return the population variance along the first axis."""
        variance: _Floats = values.var(axis=0)
        return variance

    def rising(self, values: _Floats) -> _Floats:
        """Return the values ``[n, C]`` with each row sorted in rising order."""
        rising = values.copy()
        rising.sort(axis=1)
        return rising

    def places_by_falling_value(self, values: _Floats) -> _Places:
        """Return the indices that sort each row of ``[n, C]`` by falling value; equal values keep their order."""
        return np.argsort(-values, axis=1, kind="stable")

    def kth_lowest(self, values: _Floats, k: int) -> _Floats:
        """Return the k-th lowest value of each row of ``[n, N]``, counted from 1: ``[n]``."""
        import torch

        # numpy's partition gives the same number, but of 5,000 values takes more than twice as long.
        lowest = torch.from_numpy(values).topk(k, dim=1, largest=False, sorted=False).values  # [n, k]
        kth: _Floats = lowest.amax(dim=1).numpy()
        return kth

    def quotients(self, numerators: _Floats, denominators: _Floats) -> _Floats:
        """Return ``numerators / denominators``, arrays of equal shape; 0 where the denominator is 0."""
        quotients = np.zeros_like(numerators)
        return np.divide(numerators, denominators, out=quotients, where=denominators != 0)

    def taken(self, values: _Floats, places: _Places) -> _Floats:
        """Return the values at the indices ``places`` along the last axis; other axes of ``places`` may be 1 long."""
        return np.take_along_axis(values, places, axis=-1)

    def placed(self, values: _Floats, places: _Places, width: int) -> _Floats:
        """Return rows ``[n, width]`` of zeros with values ``[n, k]`` written at the indices ``places`` ``[n, k]``."""
        rows = np.zeros((len(values), width))
        np.put_along_axis(rows, places, values, axis=1)
        return rows

    def cumulated(self, values: _Floats) -> _Floats:
        """Return the running sums of each row of ``[n, C]``."""
        return np.cumsum(values, axis=1)

    def number(self, number: float) -> float:
        """Return a constant in full precision: a plain Python number in a graph would be rounded to float32."""
        return number

    def numbers(self, numbers: Sequence[float]) -> _Floats:
        """Return several constants as an array ``[k]``."""
        return np.array(numbers)

    def filled(self, values: _Floats, number: float) -> _Floats:
        """Return an array of the shape of ``values`` that holds one number everywhere."""
        return np.full_like(values, number)

    def by_network(self, network: _Network, weights: Mapping[str, _Floats], inputs: _Floats) -> _Floats:
        """Return, as a numpy array, what a torch function computes from weights and inputs; no gradients are kept.

        Args:
            network: the function: it gets the weights by name and the inputs, as tensors.
            weights: arrays by name.
            inputs: an array.

        Raises:
            ValueError: the shapes do not match.
        """
        import torch

        tensors = {name: torch.from_numpy(values) for name, values in weights.items()}
        try:
            with torch.no_grad():
                return np.asarray(network(tensors, torch.from_numpy(inputs)))
        except RuntimeError as error:  # torch raises this where shapes do not match
            raise ValueError(str(error)) from None


ON_ARRAYS = Arrays()
