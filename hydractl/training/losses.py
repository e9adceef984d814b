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
        """Return the loss of a batch: the sum or the mean over members, as their method says, of the mean over it."""
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
        """Return the loss of all pairs of a step, of all processes: each is compared with every other one.

        Args:
            batches: images and captions of this process; each pair of tensors has the same length.
        """
        # Of several batches nothing is kept that gradients need: a step may be larger than memory.
        twice = len(batches) > 1
        read_images = self.model.chain_of_samples
        read_texts = self.model.chain_of_labels
        image_features = []
        for pixels, _ in batches:
            features = self._compute_features(read_images, pixels, twice)
            image_features.append(features)
        text_features = []
        for _, captions in batches:
            features = self._compute_features(read_texts, captions, twice)
            text_features.append(features)
        images = torch.cat(image_features)  # [B, D]
        texts = torch.cat(text_features)
        all_images = self._gather_features(images)  # [B of all processes, D]
        all_texts = self._gather_features(texts)
        return self._loss(self._compare, all_images, all_texts)

    def after_step(self) -> None:
        network = self.model.networks[0]
        self.model.family.bound_scale(network)

    def _compare(self, images: Tensor, texts: Tensor) -> Tensor:
        """Return the logits ``[I, T]`` of images with features ``[I, D]`` and texts with features ``[T, D]``."""
        features_of_members = [images[None], texts[None]]
        logits = self.model.logits(features_of_members)
        return logits[0]

    def _compute_features(self, chain: Callable[[Any], Tensor], inputs: Any, twice: bool) -> Tensor:
        """Return the features of inputs, ``[B, D]``.

        Args:
            chain: the encoder of the inputs, to features ``[members, B, D]`` of a model with one member.
            inputs: of one batch.
            twice: keep nothing for the gradients: they compute the features again, with the same random draws.
        """

        def compute() -> Tensor:
            with self.autocast():
                return chain(inputs)[0]

        features: Tensor
        if twice:
            features = checkpoint(compute, use_reentrant=False)
        else:
            features = compute()
        return _at_least_float32(features)

    def _gather_features(self, features: Tensor) -> Tensor:
        """Return the features of all processes, in the order of their ranks; only this process's have gradients.

        Args:
            features: of this process, ``[B, D]``.

        Returns:
            ``[sum of all B, D]``.
        """
        team = self.team
        if team.size == 1:
            return features
        counts = team.gather(len(features))
        start = sum(counts[: team.rank])
        stop = start + len(features)

        # Every process enters its rows into zeros: the sum over processes has the rows of all.
        of_all = features.new_zeros((sum(counts), features.shape[1]))
        of_all[start:stop] = features.detach()
        team.add(of_all)
        if features.requires_grad:
            # The loss of every process depends on these features, so their gradient is the sum over processes. What is
            # done with gradients later takes the mean over processes: times their number, that is the sum.
            features.register_hook(lambda gradient: gradient * team.size)
        of_lower_ranks = of_all[:start]
        of_higher_ranks = of_all[stop:]
        return torch.cat([of_lower_ranks, features, of_higher_ranks])


def softmax_loss(compare: Compare, images: Tensor, texts: Tensor, rows: int = ROWS_AT_ONCE) -> Tensor:
    """Compute CLIP's loss: the mean cross-entropy of the right text for each image and the right image for each text.

    Args:
        compare: features to logits.
        images, texts: features ``[B, D]``; those of one row belong together.
        rows: images or texts that are compared with all others at once.
    """
    pairs = len(images)

    def loss_of_rows(start: int) -> Tensor:
        """Return the sum of the losses of the images and of the texts of some rows."""
        stop = min(start + rows, pairs)
        right_answers = torch.arange(start, stop, device=images.device)
        texts_of_images = compare(images[start:stop], texts)  # [rows, B]
        loss_of_images = F.cross_entropy(texts_of_images, right_answers, reduction="sum")
        images_of_texts = compare(images, texts[start:stop]).T  # [rows, B]
        loss_of_texts = F.cross_entropy(images_of_texts, right_answers, reduction="sum")
        return loss_of_images + loss_of_texts

    total = _sum_in_parts(loss_of_rows, pairs, rows)
    return total / (2 * pairs)


def sigmoid_loss(compare: Compare, images: Tensor, texts: Tensor, rows: int = ROWS_AT_ONCE) -> Tensor:
    """Compute SigLIP's loss: every image with every text is a yes or no of its own.

    Args:
        compare: features to logits.
        images, texts: features ``[B, D]``; those of one row belong together.
        rows: images that are compared with all texts at once.

    Returns:
        The sum over all images and texts, divided by B, the number of pairs.
    """

    def loss_of_rows(start: int) -> Tensor:
        """Return the sum of the losses of the images of some rows, with all texts."""
        stop = start + rows
        logits = compare(images[start:stop], texts)  # [rows, B]
        signs = torch.full_like(logits, -1.0)
        signs.diagonal(start).fill_(1.0)  # the pairs themselves
        log_p = F.logsigmoid(signs * logits)
        return -log_p.sum()

    pairs = len(images)
    total = _sum_in_parts(loss_of_rows, pairs, rows)
    return total / pairs


def _sum_in_parts(loss_of_rows: Callable[[int], Tensor], count: int, rows: int) -> Tensor:
    """Return the sum over all rows; where it takes several parts, they keep nothing for gradients, which compute again.

    Args:
        loss_of_rows: from the first of some rows to the sum over them.
        count: how many rows there are in all.
        rows: how many of them are computed at once.
    """
    if count <= rows:
        return loss_of_rows(0)
    parts = []
    for start in range(0, count, rows):
        loss_of_part = checkpoint(loss_of_rows, start, use_reentrant=False)
        parts.append(loss_of_part)
    return torch.stack(parts).sum()


def _at_least_float32(values: Tensor) -> Tensor:
    """Return values in float32, or as they are in float64."""
    if values.dtype == torch.float64:
        return values
    return values.float()
