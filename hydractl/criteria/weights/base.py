"""Importance of single weights: which weights have one, what declares it, and which weights are the lowest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hydractl.criteria.base import Calibration

if TYPE_CHECKING:
    from torch import Tensor, nn

_MATRICES = ("proj", "text_projection", "qkv", "out", "gate", "pos_q", "pos_k")
"""The names of matrices that a module holds itself: projections of open_clip, and the heads of hydractl."""


def matrices(network: nn.Module) -> dict[str, nn.Parameter]:
    """The weights of linear layers and convolutions of a network, a library's own or one that runs, by name.

    Biases, norms, LayerScale, tokens, embeddings of words and positions, and tables of distances are none.
    """
    from torch import nn

    found: dict[str, nn.Parameter] = {}
    for path, module in network.named_modules():
        for name, parameter in () if isinstance(module, nn.Embedding) else module.named_parameters(recurse=False):
            matrix = parameter.ndim > 1 and (name.endswith("weight") or name in _MATRICES)
            # Behind features of distances the table of heads is a linear layer of the library.
            if matrix or (name == "table" and not isinstance(module.features, nn.Identity)):
                found[f"{path}.{name}" if path else name] = parameter
    return found


class WeightCriterion(ABC):
    """Importance of single weights: higher means keep.

    Attributes:
        name: of the file, and of ``--method`` with ``--weights``.
        needs_data: whether it measures on samples. If not, the model is never built.
    """

    name: str
    needs_data: bool

    @abstractmethod
    def score(self, weights: Mapping[str, Tensor], model: Any, calibration: Calibration) -> dict[str, Tensor]:
        """A score of each weight, not negative, on the CPU.

        Args:
            weights: those that may be removed, by their stock names.
            model: a :class:`hydractl.model.runtime.HydraModel` of one member, of which these require gradients, all
                others not; None for a criterion that needs no data.
            calibration: the sample; the model may be changed in place.
        """


def lowest_weights(scores: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """The ``count`` weights of the lowest scores, as masks; of equal ones the first by name, then by position."""
    import numpy as np

    if not count:
        return {name: own < own for name, own in scores.items()}
    flat = np.concatenate([own.reshape(-1).numpy() for own in scores.values()])
    flat.partition(count - 1)
    limit = flat[count - 1].item()
    equal, masks = count - int((flat[:count] < limit).sum()), {}
    for name in sorted(scores):
        ties = (scores[name] == limit).reshape(-1).nonzero()[:equal, 0]
        masks[name] = scores[name] < limit
        masks[name].view(-1)[ties] = True
        equal -= ties.numel()
    return masks
