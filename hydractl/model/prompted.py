"""The classes of a zero-shot classifier: prompts of their names, and what the tower of the labels makes of them."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hydractl.log import Log
from hydractl.model.chain import Chain
from hydractl.model.stacking import times_written

STAND_INS = tuple(f"class {number}" for number in range(10))
"""Class names for measuring a model that has none: they decide nothing but shapes."""

PROMPTS_AT_ONCE = 256
"""The number of prompts that run together while no gradient is wanted."""


class _WeightRead(NamedTuple):
    """A parameter that features were computed from, and how often it had been written to by then."""

    reference: weakref.ref[Tensor]
    times_written: int


class PromptedClasses:
    """Class names given to a model that compares samples with texts.

    The features of the prompts are computed once and kept while nothing can change them. They are computed anew after
    ``train()``, ``eval()`` and ``to()`` and when a weight was written to, and in every call while heads of their tower
    are gated or its gradients are wanted.

    Args:
        labels: class names.
        templates: each makes one prompt of a name; the features of several are averaged.
        prompts: inputs of the tower of the labels, all templates of one class after another.
        chain: the tower of the labels.
        networks: of all members, of which the chain runs a part.
        elsewhere: the attention of the other tower.

    Raises:
        UsageError: for no labels or no template.
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
        self.labels = list(labels)
        self.templates = list(templates)
        self._prompts = prompts
        self._chain = chain
        self._networks = networks
        self._attention_of_other_tower = list(elsewhere)
        self._features: Tensor | None = None
        self._read_from: list[_WeightRead] = []

    def inputs(self, at_once: int | None = None) -> list[Any]:
        """Return the prompts on the model's device, all of them or in parts of about ``at_once`` prompts.

        Returns:
            Inputs of the tower of the labels, by name ``[classes, ...]``; all prompts of a class are in one part.
        """
        device = next(self._networks.parameters()).device
        inputs = {}
        for name, tensor in self._prompts.items():
            inputs[name] = tensor.to(device)
        if at_once is None:
            return [inputs]
        prompts_of_class = len(self.templates)
        classes_at_once = max(1, at_once // prompts_of_class)
        parts = []
        for start in range(0, len(self.labels), classes_at_once):
            stop = start + classes_at_once
            part = {name: tensor[start:stop] for name, tensor in inputs.items()}
            parts.append(part)
        return parts

    def features(self) -> Tensor:
        """Return what the tower of the labels reads out for every member: ``[M, classes, D]``.

        They are kept for the next call, unless training, gates or gradients make them those of this call only.
        """
        if self._must_be_computed_anew():
            (all_prompts,) = self.inputs()
            return self._chain(all_prompts)
        features = self._features
        if features is None or self._weights_written():
            features = self._compute_features(Log(), "")
            self._features = features
        return features

    def read(self, log: Log, title: str) -> None:
        """Compute the features now, if they can be kept, with a progress bar: 80,000 prompts take their time."""
        with torch.no_grad():
            if self._must_be_computed_anew():
                return
            if self._features is None or self._weights_written():
                self._features = self._compute_features(log, title)

    def _compute_features(self, log: Log, title: str) -> Tensor:
        """Compute the features ``[M, classes, D]``, some prompts at a time, and note of which weights they are.

        Args:
            log: where a progress bar is shown.
            title: that of the bar.
        """
        self._read_from = []
        for weight in self._weights_of_features():
            weight_read = _WeightRead(weakref.ref(weight), times_written(weight))
            self._read_from.append(weight_read)

        # On the meta device only shapes matter: one class stands for all.
        classes = len(self.labels)
        if next(self._networks.parameters()).is_meta:
            first_class = self.inputs(at_once=1)[0]
            features_of_first_class = self._chain(first_class)  # [M, 1, D]
            return features_of_first_class.expand(-1, classes, -1)

        # Outside inference mode: a tensor of that mode could not take part in a graph of gradients later.
        with torch.inference_mode(False), torch.no_grad(), log.progress(title, classes, "classes") as progress:
            parts = []
            for inputs in self.inputs(PROMPTS_AT_ONCE):
                features = self._chain(inputs)  # [M, classes of the part, D]
                parts.append(features)
                progress.advance(features.shape[1])
            return torch.cat(parts, dim=1)

    def forget(self) -> None:
        """Drop the features: the weights may have changed."""
        self._features = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what was computed: a copy has other weights."""
        return {**vars(self), "_features": None, "_read_from": []}

    def _weights_written(self) -> bool:
        """Return whether a weight was written to in place since it was read, as by an optimizer."""
        if torch.compiler.is_compiling():  # a graph knows no versions
            return False
        for weight_read in self._read_from:
            weight = weight_read.reference()
            if weight is not None and times_written(weight) != weight_read.times_written:
                return True
        return False

    def _weights_of_features(self) -> list[nn.Parameter]:
        """Return all weights but the heads of the other tower, which have no part in the features."""
        ids_of_others: set[int] = set()
        for attention in self._attention_of_other_tower:
            ids_of_others.update(map(id, attention.parameters()))
        weights = []
        for parameter in self._networks.parameters():
            if id(parameter) not in ids_of_others:
                weights.append(parameter)
        return weights

    def _must_be_computed_anew(self) -> bool:
        """Return whether training, gates or gradients make the features those of this call only."""
        gates = [attention.head_gate for attention in self._chain.attentions]
        is_gated = any(gate is not None for gate in gates)
        # The mode of the networks, not of a model: several views of a model share them.
        if is_gated or self._networks.training:
            return True
        if not torch.is_grad_enabled():
            return False
        return any(weight.requires_grad for weight in self._weights_of_features())
