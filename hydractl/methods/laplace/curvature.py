"""Kronecker factors of the curvature at the last linear layers, and the prior of a Laplace approximation.

The curvature is the generalised Gauss-Newton matrix of the loss (Martens and Grosse 2015; Botev et al. 2017), which
needs no labels. With x what enters the layer and p the probabilities, both means over the data::

    A = E[x x']        B = E[J' L J]

Of a classifier J = I and L = diag p - p p'. Of a model that compares images with texts (Baumann et al. 2024) the loss
is that of each image among all texts, and of each text among all images; what it is compared with is taken as fixed.
With s the factor of the logits, g a feature before it is normalised, u = g / |g| and H the normalised features of the
others in rows::

    J = s H (I - u u') / |g|    L = diag p - p p' of the softmax (CLIP), diag p (1 - p) of the sigmoid (SigLIP)

The precision is ``n A (x) B + prior I``, with n the number of samples, or the pseudo-data count that is asked for
(tau of the paper, which adds the roots of prior and count to A and B instead).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hydractl.model.detection import check_linear, classifiers, read_features
from hydractl.model.laplace import (
    LastLayer,
    Posterior,
    gaussian_features,
    gaussian_logits,
    last_layers,
    scale_and_bias,
    with_one,
)
from hydractl.model.runtime import HydraModel
from hydractl.training.losses import ROWS_AT_ONCE

PRIORS = torch.logspace(-4, 6, 41, dtype=torch.float64).tolist()
"""The precisions among which one is chosen, four a decade."""

InputsAndOthers = Iterable[tuple[Any, Any]]
"""Batches: inputs on the model's device, and captions or whatever else lies beside them."""

LogitsOfPosteriors = Callable[[Sequence[Posterior]], Tensor]
"""From posteriors of a member's layers to its logits ``[N, classes]`` of validation data."""


@dataclass(frozen=True)
class Curvature:
    """The factors of one layer by their eigenvalues and eigenvectors, float64.

    Attributes:
        a, basis: of A, ``[d]`` and ``[d, d]``.
        b, outer: of B, ``[k]`` and ``[k, k]``.
        squares: the sum of the squares of the weights.
    """

    a: Tensor
    basis: Tensor
    b: Tensor
    outer: Tensor
    squares: float

    @classmethod
    def from_factors(cls, a: Tensor, b: Tensor, layer: LastLayer) -> Curvature:
        """Build it from the factors ``[d, d]`` and ``[k, k]``."""
        a_values, a_vectors = torch.linalg.eigh(a)
        b_values, b_vectors = torch.linalg.eigh(b)
        weight = layer.weight.cpu().double()
        return cls(
            a=a_values.clamp(min=0),
            basis=a_vectors,
            b=b_values.clamp(min=0),
            outer=b_vectors,
            squares=float(weight.square().sum()),
        )

    def precision(self, prior: float, count: float) -> Tensor:
        """Return the precision of the weights along the eigenvectors, ``[d, k]``."""
        return count * torch.outer(self.a, self.b) + prior

    def posterior(self, prior: float, count: float) -> Posterior:
        """Return the posterior of the weights."""
        variances = 1 / self.precision(prior, count)
        return Posterior(self.basis, variances, self.outer)

    def evidence(self, prior: float, count: float) -> float:
        """Return the log marginal likelihood by Laplace's method, but for what no prior changes.

        See Daxberger et al. 2021.
        """
        precision = self.precision(prior, count)
        log_ratio = (prior / precision).log().sum()  # of the determinants of prior and posterior precision
        return 0.5 * float(log_ratio - prior * self.squares)


@dataclass(frozen=True)
class LaplaceFit:
    """The curvatures of one member, and the logits that its posteriors are chosen by.

    Attributes:
        curvatures: by tower.
        logits: of validation data; None without them.
    """

    curvatures: dict[str, Curvature]
    logits: LogitsOfPosteriors | None = None

    @torch.no_grad()
    def choose_priors(self, count: float, labels: Tensor | None) -> dict[str, float]:
        """Choose the prior of each tower: of the lowest NLL on validation data, the same for both; else by evidence."""
        if self.logits is None or labels is None:
            return {tower: _most_evident(curvature, count) for tower, curvature in self.curvatures.items()}
        logits_of = self.logits

        def nll(prior: float) -> float:
            same_prior = dict.fromkeys(self.curvatures, prior)
            posteriors = self.posteriors(same_prior, count)
            logits = logits_of(list(posteriors.values()))
            return float(F.cross_entropy(logits, labels))

        best = min(PRIORS, key=nll)
        return dict.fromkeys(self.curvatures, best)

    def posteriors(self, priors: Mapping[str, float], count: float) -> dict[str, Posterior]:
        """Return the posteriors by tower."""
        return {tower: curvature.posterior(priors[tower], count) for tower, curvature in self.curvatures.items()}


def _most_evident(curvature: Curvature, count: float) -> float:
    """Return the prior of the highest evidence, the first of equals."""
    evidence = [curvature.evidence(prior, count) for prior in PRIORS]
    place_of_highest = evidence.index(max(evidence))
    best: float = PRIORS[place_of_highest]
    return best


# --- classifiers ------------------------------------------------------------------------------------------------------


@dataclass
class _FactorSums:
    """The factors of one classifier, summed over samples; numbers before the first of them."""

    a: Any = 0.0
    b: Any = 0.0

    def add(self, logits: Tensor, x: Tensor) -> None:
        """Add samples: logits ``[B, C]``, and what enters the layer ``[B, d]``."""
        p = logits.softmax(dim=-1)
        self.a = self.a + x.T @ x  # [d, d]
        self.b = self.b + torch.diag(p.sum(dim=0)) - p.T @ p  # [C, C]


_LogitsAndFeatures = tuple[Tensor, list[Tensor]]
"""Logits ``[M, B, C]``, and the features ``[B, D]`` of each member, float64 on the CPU."""


@torch.no_grad()
def fit_classifier(model: HydraModel, batches: InputsAndOthers, val: InputsAndOthers | None) -> list[LaplaceFit]:
    """Compute the curvature of each member's classifier.

    Raises:
        InputError: for logits that are no linear function of what enters the last layer.
    """
    layers = [layers_of_member[0] for layers_of_member in last_layers(model)]
    sums = [_FactorSums() for _ in layers]
    samples = 0
    for logits, features in _outputs(model, batches):
        samples += logits.shape[1]
        for member, layer in enumerate(layers):
            sums[member].add(logits[member], with_one(features[member], layer.bias))
    validation: list[_LogitsAndFeatures] = []
    if val is not None:
        validation = list(_outputs(model, val))
    fits = []
    for member, layer in enumerate(layers):
        a = sums[member].a / samples
        b = sums[member].b / samples
        curvature = Curvature.from_factors(a, b, layer)
        logits_of: LogitsOfPosteriors | None = None
        if validation:
            logits_of = _scaled_logits(validation, member, layer)
        fits.append(LaplaceFit({layer.tower: curvature}, logits_of))
    return fits


def _outputs(model: HydraModel, batches: InputsAndOthers) -> Iterator[_LogitsAndFeatures]:
    """Yield the logits of each batch, and what enters the classifiers."""
    linear = list(classifiers(model))
    for inputs, _ in batches:
        logits, features = read_features(model, inputs)
        for member_logits, x, (weight, bias) in zip(logits, features, linear, strict=True):
            check_linear(member_logits, x, weight, bias)
        yield logits.cpu().double(), [x.cpu().double() for x in features]


def _scaled_logits(validation: Sequence[_LogitsAndFeatures], member: int, layer: LastLayer) -> LogitsOfPosteriors:
    """Return a function that scales a member's logits of validation data by a posterior of its classifier."""
    logits = torch.cat([batch_logits[member] for batch_logits, _ in validation])
    x = torch.cat([with_one(features[member], layer.bias) for _, features in validation])
    return lambda posteriors: posteriors[0].scaled(logits, x)


# --- images and texts -------------------------------------------------------------------------------------------------


@torch.no_grad()
def fit_pairs(
    model: HydraModel, batches: InputsAndOthers, val: InputsAndOthers | None, classes: HydraModel | None
) -> list[LaplaceFit]:
    """Compute the curvature of both projections of each member, from pairs of images and captions.

    Args:
        model: the model.
        batches: images and captions.
        val: images and labels, None for none.
        classes: the model with the classes of ``val``.
    """
    layers_of_members = last_layers(model)
    read_images = model.chain_of_samples.of_projection()
    read_texts = model.chain_of_labels.of_projection()
    image_batches = []
    text_batches = []
    for pixels, captions in batches:
        image_batches.append(read_images(pixels))
        text_batches.append(read_texts(captions))
    images = torch.cat(image_batches, dim=1)[:, :, 0]  # [M, N, d]
    texts = torch.cat(text_batches, dim=1)[:, :, 0]
    compared: list[Tensor] = []  # validation images, and the prompts of their classes
    if val is not None and classes is not None and classes.prompted is not None:
        compared.append(torch.cat([read_images(pixels) for pixels, _ in val], dim=1))
        prompts_of_classes = classes.prompted.inputs(256)
        compared.append(torch.cat([read_texts(prompts) for prompts in prompts_of_classes], dim=1))
    fits = []
    for member, layers in enumerate(layers_of_members):
        curvatures = _curvatures_of_towers(model, member, layers, (images[member], texts[member]))
        logits_of: LogitsOfPosteriors | None = None
        if compared:
            logits_of = _compared_logits(model, member, layers, [inputs[member] for inputs in compared])
        fits.append(LaplaceFit(curvatures, logits_of))
    return fits


def _curvatures_of_towers(
    model: HydraModel, member: int, layers: Sequence[LastLayer], inputs: tuple[Tensor, Tensor]
) -> dict[str, Curvature]:
    """Compute the curvatures of both projections of one member from what enters them, ``[N, d]`` each."""
    network = model.networks[member]
    image_layer, text_layer = layers
    x = with_one(inputs[0], image_layer.bias)
    y = with_one(inputs[1], text_layer.bias)
    g = x @ image_layer.weight.T
    h = y @ text_layer.weight.T
    scale, bias = (float(number) for number in scale_and_bias(model.family, network, g))
    each_alone = model.family.judges_each_pair(network)

    def curvature_of(layer: LastLayer, entering: Tensor, features: Tensor, others: Tensor) -> Curvature:
        entering = entering.cpu().double()
        a = entering.T @ entering / len(entering)
        b = compared_factor(features, others, scale, bias, each_alone)
        return Curvature.from_factors(a, b, layer)

    return {
        image_layer.tower: curvature_of(image_layer, x, features=g, others=h),
        text_layer.tower: curvature_of(text_layer, y, features=h, others=g),
    }


def compared_factor(features: Tensor, others: Tensor, scale: float, bias: float, each_alone: bool) -> Tensor:
    """Compute B ``[D, D]``, float64, of features ``[N, D]`` of one tower before they are normalised.

    Args:
        features: of the tower; the same rows of ``others`` belong to them.
        others: the features that each is compared with.
        scale, bias: of the logits.
        each_alone: whether every pair is judged by itself (sigmoid).
    """
    # With w = s^2 / |g|^2, J' L J is w (I - u u') H' L H (I - u u'). Multiplied out and summed over rows that is the
    # sum of w H' L H, less the sum of w u (H' L H u)' and its transpose, plus the sum of w (u' H' L H u) u u'.
    h = F.normalize(others.cpu().double(), dim=-1)
    width = features.shape[1]
    total = torch.zeros(width, width, dtype=torch.float64)
    for g in features.cpu().double().split(ROWS_AT_ONCE):  # [B, D]
        u = F.normalize(g, dim=-1)
        weight = scale**2 / g.square().sum(dim=-1, keepdim=True)  # [B, 1]
        cosines = u @ h.T  # [B, N]
        logits = scale * cosines + bias
        # L is diag(diagonal), less p p' for the softmax alone; mean is H' p of this second part.
        if each_alone:
            p = logits.sigmoid()
            diagonal = p * (1 - p)
            mean = torch.zeros_like(g)
        else:
            diagonal = logits.softmax(dim=-1)
            mean = diagonal @ h
        along = (diagonal * cosines) @ h - mean * (mean * u).sum(dim=-1, keepdim=True)  # H' L H u, [B, D]
        weight_of_other = (weight * diagonal).sum(dim=0)[:, None]  # [N, 1]
        around_mean = h.T @ (weight_of_other * h) - (weight * mean).T @ mean  # sum of w H' L H, [D, D]
        crossed = (weight * u).T @ along
        total += around_mean - crossed - crossed.T
        length = (u * along).sum(dim=-1, keepdim=True)  # u' H' L H u, [B, 1]
        total += (weight * length * u).T @ u
    return total / len(features)


def _compared_logits(
    model: HydraModel, member: int, layers: Sequence[LastLayer], inputs: Sequence[Tensor]
) -> LogitsOfPosteriors:
    """Return a function that compares images with classes, given the posteriors of both projections."""

    def logits(posteriors: Sequence[Posterior]) -> Tensor:
        placed = [posterior.to(inputs[0]) for posterior in posteriors]
        features = []
        for posterior, inputs_of_tower, layer in zip(placed, inputs, layers, strict=True):
            features.append(gaussian_features(posterior, inputs_of_tower, layer))
        return gaussian_logits(model.family, model.networks[member], features, placed).cpu()

    return logits
