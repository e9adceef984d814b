"""Losses: the cross-entropy of the classes, and the contrastive losses of CLIP (softmax) and SigLIP (sigmoid).

The contrastive losses are those of open_clip on pairs of images and captions: Radford et al. 2021 (arXiv 2103.00020,
figure 3) and Zhai et al. 2023 (arXiv 2303.15343, algorithm 1). Every pair of a step is compared with every other pair
of all its batches and of all processes. Therefore the losses of accumulated batches cannot simply be added up. First
the features of all batches are computed, without keeping what gradients need; then one loss of all features; then each
batch is computed again for its gradients, as in GradCache (Gao et al. 2021, arXiv 2101.06983).
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
"""How many images (and texts) of a step are compared with all others at once.

Larger steps are compared in parts, each computed again for its gradients: all similarities of 96,000 pairs would take
37 GB.
"""

Compare = Callable[[Tensor, Tensor], Tensor]
"""A function from features of images ``[I, D]`` and of texts ``[T, D]`` to logits ``[I, T]``."""


class Loss(nn.Module, ABC):
    """A loss that contains its model: called with samples, it returns a scalar.

    Args:
        model: a model with one member, or members that are trained together; its trained parameters must be marked.
        options: the options of the loss.
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
        """Return the arguments of the calls of one step, in order, each with a weight.

        Args:
            batches: this process's share of each batch of the step.
            shares: the size of each of them, as a share of all samples of the step.

        Returns:
            Arguments and weights such that the weighted losses of all calls of all processes add up to the loss of the
            step.
        """

    def after_step(self) -> None:
        """Adjust the model after a step has changed its parameters; does nothing by default."""

    def autocast(self) -> Any:
        """Return the context in which activations are computed: a narrower dtype if the options ask for one."""
        if self.options.autocast is None:
            return nullcontext()
        dtype = getattr(torch, self.options.autocast)
        return torch.autocast(self.device.type, dtype)


def make_loss(model: AnyModel, options: LossOptions, team: Processes) -> Loss:
    """Build the loss that the options name; members trained together use the loss of their method."""
    if isinstance(model, Together):
        return OfMembers(model, options, team)
    if options.loss == "contrastive":
        return Contrastive(model, options, team)
    return CrossEntropy(model, options, team)


class CrossEntropy(Loss):
    """Cross-entropy of inputs and labels ``[B]``. Every sample of a step has the same weight, whatever its batch.

    Where classes have weights, those of each batch are divided by their mean over it.
    """

    def calls(self, batches: Sequence[tuple[Any, Any]], shares: Sequence[float]) -> Iterable[tuple[Any, float]]:
        return zip(batches, shares, strict=True)

    def forward(self, batch: tuple[Any, Tensor]) -> Tensor:
        """Return the cross-entropy over a batch of inputs and labels, a scalar in nats.

        It is the mean over the samples, weighted by their classes if the options have class weights.
        """
        inputs, labels = batch
        with self.autocast():
            logits = self.model.member_logits(inputs)[0]  # [B, classes]; the model has one member
        logits = _at_least_float32(logits)
        options = self.options
        weights = None  # [C]; None for equal weights
        if options.class_weights is not None:
            weights = options.class_weights(logits.shape[1]).to(logits)
        return F.cross_entropy(logits, labels, weight=weights, label_smoothing=options.label_smoothing)


class OfMembers(CrossEntropy):
    """Cross-entropy of members that are trained together."""

    def forward(self, batch: tuple[Any, Tensor]) -> Tensor:
        """Return the loss of a batch of inputs and labels for members that are trained together, a scalar.

        It is the mean over samples, summed or averaged over the members, as their method says.
        """
        inputs, labels = batch
        with self.autocast():
            logits, labels_of_members = self.model.answers(inputs, labels)
        logits = _at_least_float32(logits)
        smoothing = self.options.label_smoothing
        loss: Tensor = self.model.loss(logits, labels_of_members, smoothing)
        return loss


class Contrastive(Loss):
    """Contrastive loss of images and their captions: sigmoid for a model with a logit bias, else softmax.

    The scale of the similarities is trained like other parameters, and kept between 1 and 100, as in open_clip.
    """

    def __init__(self, model: HydraModel, options: LossOptions, team: Processes) -> None:
        super().__init__(model, options, team)
        network = model.networks[0]
        self._loss = softmax_loss
        if model.family.judges_each_pair(network):
            self._loss = sigmoid_loss

    def calls(self, batches: Sequence[tuple[Any, Any]], shares: Sequence[float]) -> Iterable[tuple[Any, float]]:
        share = 1 / self.team.size  # every process computes the whole loss, so each counts as one n-th
        return [(batches, share)]

    def forward(self, batches: Sequence[tuple[Any, Any]]) -> Tensor:
        """Return the loss of all pairs of a step in all processes, a scalar. Each pair is compared with all others.

        Args:
            batches: the batches of this process, each as (pixels, captions), where row i of both is a pair.
        """
        # The activations of several batches may not fit into memory together. So they are not kept, but computed a
        # second time in the backward pass.
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

        # Join the batches of this process, then the features of all processes.
        images = torch.cat(image_features)  # [B, D]
        texts = torch.cat(text_features)  # [B, D]
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
        """Return the features of one batch of inputs, ``[B, D]``.

        Args:
            chain: the encoder, from inputs to features ``[1, B, D]`` of a model with one member.
            inputs: the images or captions of the batch.
            twice: keep nothing for the backward pass, which computes the features again with the same random draws.
        """

        def compute() -> Tensor:
            with self.autocast():
                return chain(inputs)[0]

        features: Tensor
        features = checkpoint(compute, use_reentrant=False) if twice else compute()
        return _at_least_float32(features)

    def _gather_features(self, features: Tensor) -> Tensor:
        """Return the features of all processes, in the order of their ranks, ``[sum of all B, D]``.

        Only this process's part has gradients.

        Args:
            features: the features of this process, ``[B, D]``; B may differ between processes.
        """
        team = self.team
        if team.size == 1:
            return features

        # The rows of this process in the result: those of lower ranks come before them.
        counts = team.gather(len(features))
        start = sum(counts[: team.rank])
        stop = start + len(features)

        # Every process writes its rows into zeros; the sum over processes then has the rows of all.
        of_all = features.new_zeros((sum(counts), features.shape[1]))
        of_all[start:stop] = features.detach()
        team.add(of_all)
        if features.requires_grad:
            # Every process computes the whole loss, but gets gradients of its own features only. So the gradient of a
            # weight is the sum over processes. Gradients are averaged over processes later (see `shared`): multiplied
            # by the number of processes here, the mean becomes the sum.
            features.register_hook(lambda gradient: gradient * team.size)

        # Put this process's features, which have gradients, in the place of their copy without gradients.
        of_lower_ranks = of_all[:start]
        of_higher_ranks = of_all[stop:]
        return torch.cat([of_lower_ranks, features, of_higher_ranks])


def softmax_loss(compare: Compare, images: Tensor, texts: Tensor, rows: int = ROWS_AT_ONCE) -> Tensor:
    """Return CLIP's loss: the mean cross-entropy of the right text for each image and the right image for each text.

    With l[i, j] as the logit of image i and text j, it is the sum over i of -log softmax(l[i, :])[i] and of
    -log softmax(l[:, i])[i], divided by 2B.

    Args:
        compare: returns the logits ``[n, m]`` of n image features and m text features.
        images, texts: features ``[B, D]``; row i of both is a pair.
        rows: how many images or texts are compared with all others at once, to bound memory.
    """
    pairs = len(images)

    def loss_of_rows(start: int) -> Tensor:
        """Return the summed loss of at most ``rows`` images and as many texts, from ``start`` on, a scalar."""
        stop = min(start + rows, pairs)
        right_answers = torch.arange(start, stop, device=images.device)  # image i belongs to text i
        texts_of_images = compare(images[start:stop], texts)  # [rows, B]
        loss_of_images = F.cross_entropy(texts_of_images, right_answers, reduction="sum")
        images_of_texts = compare(images, texts[start:stop]).T  # [rows, B]
        loss_of_texts = F.cross_entropy(images_of_texts, right_answers, reduction="sum")
        return loss_of_images + loss_of_texts

    total = _sum_in_parts(loss_of_rows, pairs, rows)
    return total / (2 * pairs)


def sigmoid_loss(compare: Compare, images: Tensor, texts: Tensor, rows: int = ROWS_AT_ONCE) -> Tensor:
    """Return SigLIP's loss: whether an image and a text belong together is a yes-or-no question for every two of them.

    With l[i, j] as the logit of image i and text j, and s[i, j] as +1 if i = j and -1 otherwise, it is the sum over all
    i and j of -log sigmoid(s[i, j] * l[i, j]), divided by B.

    Args:
        compare: returns the logits ``[n, m]`` of n image features and m text features.
        images, texts: features ``[B, D]``; row i of both is a pair.
        rows: how many images are compared with all texts at once, to bound memory.
    """

    def loss_of_rows(start: int) -> Tensor:
        """Return the summed loss of at most ``rows`` images, from ``start`` on, with all texts, a scalar."""
        stop = start + rows
        logits = compare(images[start:stop], texts)  # [rows, B]

        # +1 where image and text belong together: row r is image start + r, so this is the diagonal shifted by start.
        signs = torch.full_like(logits, -1.0)
        signs.diagonal(start).fill_(1.0)
        log_p = F.logsigmoid(signs * logits)
        return -log_p.sum()

    pairs = len(images)
    total = _sum_in_parts(loss_of_rows, pairs, rows)
    return total / pairs


def _sum_in_parts(loss_of_rows: Callable[[int], Tensor], count: int, rows: int) -> Tensor:
    """Return the loss summed over all rows, a scalar; many rows are computed in parts, so that they fit into memory.

    The activations of a part are not kept but computed again in the backward pass.

    Args:
        loss_of_rows: returns the sum over some rows, given the first of them.
        count: how many rows there are in all.
        rows: how many rows are computed at once.
    """
    if count <= rows:
        return loss_of_rows(0)
    parts = []
    for start in range(0, count, rows):
        loss_of_part = checkpoint(loss_of_rows, start, use_reentrant=False)
        parts.append(loss_of_part)
    return torch.stack(parts).sum()


def _at_least_float32(values: Tensor) -> Tensor:
    """Return values in float32; float64 values stay as they are."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
