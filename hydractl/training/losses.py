"""Losses: the cross-entropy of the classes, and the contrastive losses of CLIP (softmax) and SigLIP (sigmoid).

The contrastive losses are those of open_clip on pairs of images and captions: Radford et al. 2021 (arXiv 2103.00020,
figure 3) and Zhai et al. 2023 (arXiv 2303.15343, algorithm 1). Every pair of a step is compared with every other one,
of all its batches and of all processes, so batches that are accumulated are not added up: their features come first,
without what gradients need, then one loss of all of them, then each batch is computed again for its gradients, as in
GradCache (Gao et al. 2021, arXiv 2101.06983).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from hydractl.distributed import Processes
from hydractl.model.runtime import HydraModel
from hydractl.training.members import AnyModel, Together
from hydractl.training.options import LossOptions

ROWS_AT_ONCE = 4096
"""Images (and texts) of a step that are compared with all others at once. Larger steps are compared in parts, each
computed again for its gradients: all similarities of 96,000 pairs would take 37 GB."""

Compare = Callable[[Tensor, Tensor], Tensor]
"""Features of images ``[I, D]`` and of texts ``[T, D]`` to logits ``[I, T]``."""


class Loss(nn.Module, ABC):
    """A loss of one model, which is part of it: called with samples, it gives a scalar.

    Args:
        model: with one member, or of members that are trained together; its trained parameters marked.
        options: of the loss.
        team: the processes among which each batch is divided.
    """

    def __init__(self, model: AnyModel, options: LossOptions, team: Processes) -> None:
        super().__init__()
        self.model: Any = model
        self.options = options
        self.team = team
        self.device = next(model.parameters()).device

    @abstractmethod
    def calls(self, batches: Sequence[tuple[Any, Any]], shares: Sequence[float]) -> Iterable[tuple[Any, float]]:
        """Return the arguments of the calls of one step, in order, each with its weight.

        Args:
            batches: what this process has of the batches of the step.
            shares: how much of all samples of the step each of them is.

        Returns:
            Weighted, the losses of all calls of all processes add up to the loss of the step.
        """

    def after_step(self) -> None:
        """Adjust to parameters that have changed."""

    def autocast(self) -> Any:
        """The context that activations are computed in."""
        if self.options.autocast is None:
            return nullcontext()
        dtype = getattr(torch, self.options.autocast)
        return torch.autocast(self.device.type, dtype)


def make_loss(model: AnyModel, options: LossOptions, team: Processes) -> Loss:
    """Build the loss of this name; for several members that of their method."""
    if isinstance(model, Together):
        return OfMembers(model, options, team)
    if options.name == "contrastive":
        return Contrastive(model, options, team)
    return CrossEntropy(model, options, team)


class CrossEntropy(Loss):
    """Cross-entropy of inputs and labels ``[B]``. Several batches count as one: each sample has the same weight."""

    def calls(self, batches: Sequence[tuple[Any, Any]], shares: Sequence[float]) -> Iterable[tuple[Any, float]]:
        return zip(batches, shares, strict=True)

    def forward(self, batch: tuple[Any, Tensor]) -> Tensor:
        """Return the mean over a batch."""
        inputs, labels = batch
        with self.autocast():
            logits = self.model.member_logits(inputs)[0]
        logits = _at_least_float32(logits)
        smoothing = self.options.label_smoothing
        return F.cross_entropy(logits, labels, label_smoothing=smoothing)


class OfMembers(CrossEntropy):
    """Cross-entropy of members that are trained together."""

    def forward(self, batch: tuple[Any, Tensor]) -> Tensor:
        """Return the sum or the mean over members of the mean over a batch."""
        inputs, labels = batch
        with self.autocast():
            logits, labels_of_members = self.model.answers(inputs, labels)
        logits = _at_least_float32(logits)
        smoothing = self.options.label_smoothing
        loss: Tensor = self.model.loss(logits, labels_of_members, smoothing)
        return loss


class Contrastive(Loss):
    """Contrastive loss of images and their captions: sigmoid for a model with a logit bias, else softmax.

    The factor of the similarities is trained as all else and kept between 1 and 100, as in open_clip.
    """

    def __init__(self, model: HydraModel, options: LossOptions, team: Processes) -> None:
        super().__init__(model, options, team)
        network = model.networks[0]
        self._loss = softmax_loss
        if model.family.judges_each_pair(network):
            self._loss = sigmoid_loss

    def calls(self, batches: Sequence[tuple[Any, Any]], shares: Sequence[float]) -> Iterable[tuple[Any, float]]:
        share = 1 / self.team.size  # every process has all similarities
        return [(batches, share)]

    def forward(self, batches: Sequence[tuple[Any, Any]]) -> Tensor:
        """Return the loss of all pairs, of all processes."""
        twice = len(batches) > 1
        read_images = self.model.chain_of_samples
        read_texts = self.model.chain_of_labels
        image_features = []
        for pixels, _ in batches:
            features = self._features(read_images, pixels, twice)
            image_features.append(features)
        text_features = []
        for _, captions in batches:
            features = self._features(read_texts, captions, twice)
            text_features.append(features)
        images = torch.cat(image_features)  # [B, D]
        texts = torch.cat(text_features)
        all_images = self._gathered(images)
        all_texts = self._gathered(texts)
        return self._loss(self._compare, all_images, all_texts)

    def after_step(self) -> None:
        network = self.model.networks[0]
        self.model.family.bound_scale(network)

    def _compare(self, images: Tensor, texts: Tensor) -> Tensor:
        features_of_members = [images[None], texts[None]]
        logits = self.model.logits(features_of_members)
        return logits[0]

    def _features(self, chain: Callable[[Any], Tensor], inputs: Any, twice: bool) -> Tensor:
        """Compute ``[B, D]``; with ``twice``, gradients compute it again with the same draws and nothing is kept."""

        def compute() -> Tensor:
            with self.autocast():
                return chain(inputs)[0]

        features: Tensor
        if twice:
            features = checkpoint(compute, use_reentrant=False)
        else:
            features = compute()
        return _at_least_float32(features)

    def _gathered(self, features: Tensor) -> Tensor:
        """Return the features of all processes; only those of this process have gradients."""
        team = self.team
        if team.size == 1:
            return features
        counts = team.gather(len(features))
        start = sum(counts[: team.rank])
        stop = start + len(features)
        of_all = features.new_zeros((sum(counts), features.shape[1]))
        of_all[start:stop] = features.detach()
        team.add(of_all)
        if features.requires_grad:
            # The loss of every process depends on these features, so their gradient is the sum over processes. What is
            # done with gradients later takes the mean over processes: times their number, that is the sum.
            features.register_hook(lambda gradient: gradient * team.size)
        return torch.cat([of_all[:start], features, of_all[stop:]])


def softmax_loss(compare: Compare, images: Tensor, texts: Tensor, rows: int = ROWS_AT_ONCE) -> Tensor:
    """Compute CLIP's loss: the mean cross-entropy of the right text for each image and the right image for each text.

    Args:
        compare: features to logits.
        images, texts: features ``[B, D]``; those of one row belong together.
        rows: images or texts that are compared with all others at once.
    """
    pairs = len(images)

    def part(start: int) -> Tensor:
        stop = min(start + rows, pairs)
        right_answers = torch.arange(start, stop, device=images.device)
        texts_of_images = compare(images[start:stop], texts)  # [rows, B]
        by_image = F.cross_entropy(texts_of_images, right_answers, reduction="sum")
        images_of_texts = compare(images, texts[start:stop]).T  # [rows, B]
        by_text = F.cross_entropy(images_of_texts, right_answers, reduction="sum")
        return by_image + by_text

    total = _in_parts(part, pairs, rows)
    return total / (2 * pairs)


def sigmoid_loss(compare: Compare, images: Tensor, texts: Tensor, rows: int = ROWS_AT_ONCE) -> Tensor:
    """Compute SigLIP's loss: every image with every text is a yes or no of its own; the sum over the number of pairs.

    Args:
        compare, images, texts, rows: as of :func:`softmax_loss`.
    """

    def part(start: int) -> Tensor:
        stop = start + rows
        logits = compare(images[start:stop], texts)  # [rows, B]
        signs = torch.full_like(logits, -1.0)
        signs.diagonal(start).fill_(1.0)  # the pairs themselves
        log_p = F.logsigmoid(signs * logits)
        return -log_p.sum()

    pairs = len(images)
    total = _in_parts(part, pairs, rows)
    return total / pairs


def _in_parts(part: Callable[[int], Tensor], count: int, rows: int) -> Tensor:
    """Sum ``part(0)``, ``part(rows)``, ...; several keep nothing for their gradients and compute it again."""
    if count <= rows:
        return part(0)
    parts = []
    for start in range(0, count, rows):
        loss_of_part = checkpoint(part, start, use_reentrant=False)
        parts.append(loss_of_part)
    return torch.stack(parts).sum()


def _at_least_float32(values: Tensor) -> Tensor:
    if values.dtype == torch.float64:
        return values
    return values.float()
