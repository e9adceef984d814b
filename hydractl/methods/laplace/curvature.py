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
    def of(cls, a: Tensor, b: Tensor, layer: LastLayer) -> Curvature:
        """Build it from the factors ``[d, d]`` and ``[k, k]``."""
        a_values, a_vectors = torch.linalg.eigh(a)
        b_values, b_vectors = torch.linalg.eigh(b)
        squares = float(layer.weight.cpu().double().square().sum())
        return cls(a_values.clamp(min=0), a_vectors, b_values.clamp(min=0), b_vectors, squares)

    def precision(self, prior: float, count: float) -> Tensor:
        """Return the precision of the weights along the eigenvectors, ``[d, k]``."""
        return count * torch.outer(self.a, self.b) + prior

    def posterior(self, prior: float, count: float) -> Posterior:
        """Return the posterior of the weights."""
        return Posterior(self.basis, 1 / self.precision(prior, count), self.outer)

    def evidence(self, prior: float, count: float) -> float:
        """Return the log marginal likelihood by Laplace's method, but for what no prior changes.

        See Daxberger et al. 2021.
        """
        precision = self.precision(prior, count)
        return 0.5 * float((prior / precision).log().sum() - prior * self.squares)


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
        logits = self.logits

        def nll(prior: float) -> float:
            same_prior = dict.fromkeys(self.curvatures, prior)
            posteriors = list(self.posteriors(same_prior, count).values())
            return float(F.cross_entropy(logits(posteriors), labels))

        best = min(PRIORS, key=nll)
        return dict.fromkeys(self.curvatures, best)

    def posteriors(self, priors: Mapping[str, float], count: float) -> dict[str, Posterior]:
        """Return the posteriors by tower."""
        return {tower: curvature.posterior(priors[tower], count) for tower, curvature in self.curvatures.items()}


def _most_evident(curvature: Curvature, count: float) -> float:
    """Return the prior of the highest evidence, the first of equals."""
    evidence = [curvature.evidence(prior, count) for prior in PRIORS]
    best: float = PRIORS[evidence.index(max(evidence))]
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
        self.a = self.a + x.T @ x
        self.b = self.b + torch.diag(p.sum(dim=0)) - p.T @ p


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
    validation = [] if val is None else list(_outputs(model, val))
    fits = []
    for member, layer in enumerate(layers):
        curvature = Curvature.of(sums[member].a / samples, sums[member].b / samples, layer)
        scaled = _scaled_logits(validation, member, layer) if validation else None
        fits.append(LaplaceFit({layer.tower: curvature}, scaled))
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
    """Return what scales a member's logits of validation data by a posterior of its classifier."""
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
    pairs = [(read_images(pixels), read_texts(captions)) for pixels, captions in batches]
    images = torch.cat([pair[0] for pair in pairs], dim=1)[:, :, 0]  # [M, N, d]
    texts = torch.cat([pair[1] for pair in pairs], dim=1)[:, :, 0]
    shown: list[Tensor] = []
    if val is not None and classes is not None and classes.prompted is not None:
        shown.append(torch.cat([read_images(pixels) for pixels, _ in val], dim=1))
        shown.append(torch.cat([read_texts(prompts) for prompts in classes.prompted.inputs(256)], dim=1))
    fits = []
    for member, layers in enumerate(layers_of_members):
        curvatures = _curvatures_of_towers(model, member, layers, (images[member], texts[member]))
        logits = None
        if shown:
            logits = _compared_logits(model, member, layers, [inputs[member] for inputs in shown])
        fits.append(LaplaceFit(curvatures, logits))
    return fits


def _curvatures_of_towers(
    model: HydraModel, member: int, layers: Sequence[LastLayer], inputs: tuple[Tensor, Tensor]
) -> dict[str, Curvature]:
    """Compute the curvatures of both projections of one member from what enters them, ``[N, d]`` each."""
    network = model.networks[member]
    of_images, of_texts = layers
    x = with_one(inputs[0], of_images.bias)
    y = with_one(inputs[1], of_texts.bias)
    g = x @ of_images.weight.T
    h = y @ of_texts.weight.T
    scale, bias = (float(number) for number in scale_and_bias(model.family, network, g))
    each_alone = model.family.judges_each_pair(network)
    curvatures = {}
    for layer, entering, features, others in ((of_images, x, g, h), (of_texts, y, h, g)):
        entering = entering.cpu().double()
        a = entering.T @ entering / len(entering)
        b = compared_factor(features, others, scale, bias, each_alone)
        curvatures[layer.tower] = Curvature.of(a, b, layer)
    return curvatures


def compared_factor(features: Tensor, others: Tensor, scale: float, bias: float, each_alone: bool) -> Tensor:
    """Compute B ``[D, D]``, float64, of features ``[N, D]`` of one tower before they are normalised.

    Args:
        features: of the tower; the same rows of ``others`` belong to them.
        others: the features that each is compared with.
        scale, bias: of the logits.
        each_alone: whether every pair is judged by itself (sigmoid).
    """
    # J' L J sums up to two parts: what does not depend on the row but by its weight, and what lies along u.
    h = F.normalize(others.cpu().double(), dim=-1)
    width = features.shape[1]
    total = torch.zeros(width, width, dtype=torch.float64)
    for g in features.cpu().double().split(ROWS_AT_ONCE):
        u = F.normalize(g, dim=-1)
        weight = scale**2 / g.square().sum(dim=-1, keepdim=True)
        cosines = u @ h.T
        logits = scale * cosines + bias
        if each_alone:
            p = logits.sigmoid()
            m = torch.zeros_like(g)
            p = p * (1 - p)
        else:
            p = logits.softmax(dim=-1)
            m = p @ h
        along = (p * cosines) @ h - m * (m * u).sum(dim=-1, keepdim=True)  # H' L H u
        twice = (weight * u).T @ along
        total += h.T @ ((weight * p).sum(dim=0)[:, None] * h) - (weight * m).T @ m - twice - twice.T
        total += (weight * (u * along).sum(dim=-1, keepdim=True) * u).T @ u
    return total / len(features)


def _compared_logits(
    model: HydraModel, member: int, layers: Sequence[LastLayer], inputs: Sequence[Tensor]
) -> LogitsOfPosteriors:
    """Return what compares images with classes, given the posteriors of both projections."""

    def logits(posteriors: Sequence[Posterior]) -> Tensor:
        placed = [posterior.to(inputs[0]) for posterior in posteriors]
        outputs = [gaussian_features(*of_tower) for of_tower in zip(placed, inputs, layers, strict=True)]
        return gaussian_logits(model.family, model.networks[member], outputs, placed).cpu()

    return logits
