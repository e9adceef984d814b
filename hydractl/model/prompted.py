"""The classes of a zero-shot classifier: prompts with their names, and the features of these prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.log import Log
from hydractl.model.chain import Chain
from hydractl.model.stacking import times_written

STAND_INS = tuple(f"class {number}" for number in range(10))
"""Class names for measuring a model that has none. They only determine shapes."""

PROMPTS_AT_ONCE = 256
"""How many prompts run together if no gradients are needed."""


class PromptedClasses:
    """The classes, given by name, of a model that compares samples with texts.

    The features of the prompts are computed once, and kept as long as nothing can have changed them. They are computed
    again after ``train()``, ``eval()`` and ``to()``, and after a weight was written to. While heads of their tower are
    gated, in training, or if gradients are needed, they are computed in every call.

    Args:
        labels: the class names.
        templates: each makes one prompt of a name; the features of several prompts are averaged.
        prompts: the inputs of the tower of labels, class after class, with all templates of a class together.
        chain: the tower of labels.
        networks: the networks of all members, of which the chain runs a part.
        elsewhere: the attention modules of the other tower.

    Raises:
        UsageError: if there are no labels or no templates.
    """

    def __init__(
        self,
        labels: Sequence[str],
        templates: Sequence[str],
        prompts: Mapping[str, Tensor],
        chain: Chain,
        networks: nn.ModuleList,
        elsewhere: Sequence[nn.Module],
    ) -> None:
        """Store the prompts and what is needed to compute their features, which happens later."""
        self.labels = list(labels)
        self.templates = list(templates)
        self._prompts = prompts
        self._chain = chain
        self._networks = networks
        self._attention_of_other_tower = list(elsewhere)
        self._features: Tensor | None = None
        self._read_from: list[tuple[Tensor, int]] = []  # the weights, and how often each had been written to

    def inputs(self, at_once: int | None = None) -> list[Any]:
        """Return the prompts on the model's device, all together or in parts.

        Args:
            at_once: about how many prompts a part has; a class is never split. None means one part with all prompts.

        Returns:
            For each part the inputs of the tower of labels, by name, ``[classes of the part, ...]``.
        """
        device = next(self._networks.parameters()).device
        inputs = {name: tensor.to(device) for name, tensor in self._prompts.items()}
        if at_once is None:
            return [inputs]

        # Cut between classes: with 80 templates, 200 prompts at once are 2 classes; a part has one class at least.
        prompts_of_class = len(self.templates)
        classes_at_once = max(1, at_once // prompts_of_class)
        parts = []
        for start in range(0, len(self.labels), classes_at_once):
            stop = start + classes_at_once
            parts.append({name: tensor[start:stop] for name, tensor in inputs.items()})
        return parts

    def features(self) -> Tensor:
        """Return what the tower of labels reads out for every member, ``[M, classes, D]``.

        The features are kept for the next call, unless training, gates or gradients make them valid for this call only.
        """
        if self._must_be_computed_anew():
            (all_prompts,) = self.inputs()
            return self._chain(all_prompts)
        return self._kept_features(Log(), "")

    def read(self, log: Log, title: str) -> None:
        """Compute the features now if they can be kept, with a progress bar, because 80,000 prompts take a while."""
        with torch.no_grad():
            if not self._must_be_computed_anew():
                self._kept_features(log, title)

    def _kept_features(self, log: Log, title: str) -> Tensor:
        """Return the features that are kept; compute them first if there are none, or a weight was written to since."""
        features = self._features
        if features is None or self._weights_written():
            features = self._compute_features(log, title)
            self._features = features
        return features

    def _compute_features(self, log: Log, title: str) -> Tensor:
        """Return the features of the classes for each member, ``[M, classes, D]``.

        Also record in ``_read_from`` the weights from which they were computed.

        Args:
            log: shows a progress bar.
            title: the title of the progress bar.
        """
        # Remember the weights, to notice later when they are written to.
        weights = self._weights_of_features()
        self._read_from = [(weight, times_written(weight)) for weight in weights]

        # On the meta device only shapes matter, so one class stands for all.
        classes = len(self.labels)
        if next(self._networks.parameters()).is_meta:
            first_class = self.inputs(at_once=1)[0]
            features_of_first_class = self._chain(first_class)  # [M, 1, D]
            return features_of_first_class.expand(-1, classes, -1)  # [M, classes, D]

        # Leave inference mode: a tensor of that mode could not be used with gradients later.
        with torch.inference_mode(False), torch.no_grad(), log.progress(title, classes, "classes") as progress:
            parts = []
            for inputs in self.inputs(PROMPTS_AT_ONCE):
                features = self._chain(inputs)  # [M, classes of the part, D]
                parts.append(features)
                progress.advance(features.shape[1])
            return torch.cat(parts, dim=1)

    def forget(self) -> None:
        """Drop the features, because the weights may have changed."""
        self._features = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what was computed, because a copy has other weights."""
        return {**vars(self), "_features": None, "_read_from": []}

    def _weights_written(self) -> bool:
        """Return whether a weight was written to in place since the features were computed, e.g. by an optimizer."""
        if torch.compiler.is_compiling():  # a compiled graph cannot compare versions
            return False
        return any(times_written(weight) != times for weight, times in self._read_from)

    def _weights_of_features(self) -> list[nn.Parameter]:
        """Return all weights except the attention of the other tower, which does not influence the features."""
        ids_of_others: set[int] = set()
        for attention in self._attention_of_other_tower:
            ids_of_others.update(map(id, attention.parameters()))
        return [parameter for parameter in self._networks.parameters() if id(parameter) not in ids_of_others]

    def _must_be_computed_anew(self) -> bool:
        """Return whether training, gates or gradients make the features valid for one call only."""
        # Gates on heads, or training. The networks know the mode, because several views of a model share them.
        gates = [attention.head_gate for attention in self._chain.attentions]
        is_gated = any(gate is not None for gate in gates)
        if is_gated or self._networks.training:
            return True

        # Gradients of the weights.
        if not torch.is_grad_enabled():
            return False
        return any(weight.requires_grad for weight in self._weights_of_features())
