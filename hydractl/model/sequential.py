"""Models that run one after another as one ensemble: the deep ensemble that a fused model is compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.log import Log
from hydractl.model.agreement import check_agreement
from hydractl.model.runtime import HydraModel, pooled_log_probs


class SequentialEnsemble(nn.Module):
    """Several models on the same inputs; called like a :class:`HydraModel`.

    Every member weighs the same in the averaged prediction, also those inside a fused model.

    Attributes:
        models: the models, in the order they run; they share nothing.
        labels: class names, or None where no model knows them.

    Raises:
        InputError: listing everything in which the models differ and must not.
    """

    def __init__(self, models: Sequence[HydraModel]) -> None:
        super().__init__()
        check_agreement([(f"model {index}", model.description) for index, model in enumerate(models)])
        self.models = nn.ModuleList(models)
        self.labels = next((model.labels for model in models if model.labels is not None), None)
        self.eval()

    @property
    def _each(self) -> list[HydraModel]:
        return list(self.models)  # type: ignore[arg-type]

    @property
    def preprocess(self) -> Callable[[list[Any]], Any]:
        """A function from a list of raw samples to inputs."""
        return self._each[0].preprocess

    @property
    def members(self) -> int:
        """Number of members of all models together."""
        return sum(model.members for model in self._each)

    @property
    def classes(self) -> int | None:
        """Number of classes; None for zero-shot models whose classes have not been named."""
        return self._each[0].classes

    def zero_shot(self, labels: str | Sequence[str], prompt: str | Sequence[str] | None = None) -> SequentialEnsemble:
        """A classifier into classes given by name, as of :meth:`HydraModel.zero_shot`."""
        return SequentialEnsemble([model.zero_shot(labels, prompt) for model in self._each])

    def with_classes(self) -> SequentialEnsemble:
        """As of :meth:`HydraModel.with_classes`."""
        return self if self.classes is not None else SequentialEnsemble([m.with_classes() for m in self._each])

    def read_prompts(self, log: Log, name: str) -> None:
        """As of :class:`HydraModel`."""
        for model in self._each:
            model.read_prompts(log, name)

    @property
    def whole_last_block(self) -> bool:
        """As of :class:`HydraModel`."""
        return self._each[0].whole_last_block

    @whole_last_block.setter
    def whole_last_block(self, whole: bool) -> None:
        for model in self._each:
            model.whole_last_block = whole

    @property
    def side_by_side(self) -> bool | None:
        """As of :class:`HydraModel`."""
        return self._each[0].side_by_side

    @side_by_side.setter
    def side_by_side(self, together: bool | None) -> None:
        for model in self._each:
            model.side_by_side = together

    def member_logits(self, inputs: Any) -> Tensor:
        """Logits of every member, ``[M, B, classes]``, M counted over all models."""
        return torch.cat([model.member_logits(inputs) for model in self._each])

    def forward(self, inputs: Any) -> Tensor:
        """log p ``[B, classes]``: softmax per member, then the mean over members, as a logarithm."""
        return pooled_log_probs(self.member_logits(inputs))

    def example_inputs(self, batch: int, seed: int = 0) -> Any:
        """Random inputs of the right shape on the models' device and dtype."""
        return self._each[0].example_inputs(batch, seed)
