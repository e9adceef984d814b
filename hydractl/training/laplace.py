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
from hydractl.training.losses import ROWS

PRIORS = torch.logspace(-4, 6, 41, dtype=torch.float64).tolist()
"""The precisions among which one is chosen, four a decade."""

Batches = Iterable[tuple[Any, Any]]


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
        (along_a, basis), (along_b, outer) = torch.linalg.eigh(a), torch.linalg.eigh(b)
        squares = float(layer.weight.cpu().double().square().sum())
        return cls(along_a.clamp(min=0), basis, along_b.clamp(min=0), outer, squares)

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
class Fit:
    """The curvatures of one member, and the logits that its posteriors are chosen by.

    Attributes:
        curvatures: by tower.
        logits: from posteriors of these layers to logits ``[N, classes]`` of validation data; None without.
    """

    curvatures: dict[str, Curvature]
    logits: Callable[[Sequence[Posterior]], Tensor] | None = None

    @torch.no_grad()
    def choose(self, count: float, labels: Tensor | None) -> dict[str, float]:
        """Choose the prior of each tower: of the lowest NLL on validation data, the same for both; else by evidence."""
        if self.logits is None or labels is None:
            by_evidence = {t: [own.evidence(p, count) for p in PRIORS] for t, own in self.curvatures.items()}
            return {tower: PRIORS[each.index(max(each))] for tower, each in by_evidence.items()}
        logits = self.logits

        def nll(prior: float) -> float:
            each = self.posteriors(dict.fromkeys(self.curvatures, prior), count)
            return float(F.cross_entropy(logits(list(each.values())), labels))

        return dict.fromkeys(self.curvatures, min(PRIORS, key=nll))

    def posteriors(self, priors: Mapping[str, float], count: float) -> dict[str, Posterior]:
        """Return the posteriors by tower."""
        return {tower: curvature.posterior(priors[tower], count) for tower, curvature in self.curvatures.items()}


@torch.no_grad()
def fit_classifier(model: HydraModel, batches: Batches, val: Batches | None) -> list[Fit]:
    """Compute the curvature of each member's classifier.

    Raises:
        InputError: for logits that are no linear function of what enters the last layer.
    """
    layers = [own for (own,) in last_layers(model)]
    factors: list[Any] = [[0.0, 0.0] for _ in layers]
    n = 0
    for logits, features in _outputs(model, batches):
        n += logits.shape[1]
        for layer, found, z, x in zip(layers, factors, logits, features, strict=True):
            x, p = with_one(x, layer.bias), z.softmax(dim=-1)
            found[0] = found[0] + x.T @ x
            found[1] = found[1] + torch.diag(p.sum(dim=0)) - p.T @ p
    kept = [] if val is None else list(_outputs(model, val))
    fits = []
    for member, (layer, (a, b)) in enumerate(zip(layers, factors, strict=True)):
        own = [(logits[member], with_one(features[member], layer.bias)) for logits, features in kept]
        scaled = _classified(*map(torch.cat, zip(*own, strict=True))) if own else None
        fits.append(Fit({layer.tower: Curvature.of(a / n, b / n, layer)}, scaled))
    return fits


def _outputs(model: HydraModel, batches: Batches) -> Iterator[tuple[Tensor, list[Tensor]]]:
    """Yield logits ``[M, B, C]``, and the features ``[B, D]`` of each member, float64 on the CPU."""
    linear = list(classifiers(model))
    for inputs, _ in batches:
        logits, features = read_features(model, inputs)
        for z, x, own in zip(logits, features, linear, strict=True):
            check_linear(z, x, *own)
        yield logits.cpu().double(), [x.cpu().double() for x in features]


def _classified(logits: Tensor, x: Tensor) -> Callable[[Sequence[Posterior]], Tensor]:
    return lambda posteriors: posteriors[0].scaled(logits, x)


# --- images and texts -------------------------------------------------------------------------------------------------


@torch.no_grad()
def fit_pairs(model: HydraModel, batches: Batches, val: Batches | None, classes: HydraModel | None) -> list[Fit]:
    """Compute the curvature of both projections of each member, from pairs of images and captions.

    Args:
        model: the model.
        batches: images and captions.
        val: images and labels, None for none.
        classes: the model with the classes of ``val``.
    """
    each = last_layers(model)
    images, texts = (chain.of_projection() for chain in (model.chain_of_samples, model.chain_of_labels))
    found = [(images(pixels), texts(captions)) for pixels, captions in batches]
    x, y = (torch.cat([pair[side] for pair in found], dim=1)[:, :, 0] for side in range(2))  # [M, N, d]
    shown: list[Tensor] = []
    if val is not None and classes is not None and classes.prompted is not None:
        shown = [torch.cat([images(pixels) for pixels, _ in val], dim=1)]
        shown += [torch.cat([texts(part) for part in classes.prompted.inputs(256)], dim=1)]
    fits = []
    for member, (network, layers) in enumerate(zip(model.networks, each, strict=True)):
        inputs = [with_one(own[member], layer.bias) for own, layer in zip((x, y), layers, strict=True)]
        g, h = (own @ layer.weight.T for own, layer in zip(inputs, layers, strict=True))
        scale, bias = (float(number) for number in scale_and_bias(model.family, network, g))
        each_alone = model.family.judges_each_pair(network)
        wide = [own.cpu().double() for own in inputs]
        curvatures = {
            layer.tower: Curvature.of(own.T @ own / len(own), compared_factor(*sides, scale, bias, each_alone), layer)
            for layer, own, sides in zip(layers, wide, ((g, h), (h, g)), strict=True)
        }
        given = _compared(model, member, layers, [one[member] for one in shown]) if shown else None
        fits.append(Fit(curvatures, given))
    return fits


def compared_factor(own: Tensor, others: Tensor, scale: float, bias: float, each_alone: bool) -> Tensor:
    """Compute B ``[D, D]``, float64, of features ``[N, D]`` of one tower before they are normalised.

    Args:
        own: features; the same rows of ``others`` belong to them.
        others: the features that each is compared with.
        scale, bias: of the logits.
        each_alone: whether every pair is judged by itself (sigmoid).
    """
    # J' L J sums up to two parts: what does not depend on the row but by its weight, and what lies along u.
    h, total = F.normalize(others.cpu().double(), dim=-1), torch.zeros(own.shape[1], own.shape[1], dtype=torch.float64)
    for g in own.cpu().double().split(ROWS):
        u, weight = F.normalize(g, dim=-1), scale**2 / g.square().sum(dim=-1, keepdim=True)
        cosines = u @ h.T
        logits = scale * cosines + bias
        p = logits.sigmoid() if each_alone else logits.softmax(dim=-1)
        m = torch.zeros_like(g) if each_alone else p @ h
        p = p * (1 - p) if each_alone else p
        along = (p * cosines) @ h - m * (m * u).sum(dim=-1, keepdim=True)  # H' L H u
        twice = (weight * u).T @ along
        total += h.T @ ((weight * p).sum(dim=0)[:, None] * h) - (weight * m).T @ m - twice - twice.T
        total += (weight * (u * along).sum(dim=-1, keepdim=True) * u).T @ u
    return total / len(own)


def _compared(
    model: HydraModel, member: int, layers: Sequence[LastLayer], inputs: Sequence[Tensor]
) -> Callable[[Sequence[Posterior]], Tensor]:
    def logits(posteriors: Sequence[Posterior]) -> Tensor:
        here = [posterior.to(inputs[0]) for posterior in posteriors]
        outputs = [gaussian_features(*each) for each in zip(here, inputs, layers, strict=True)]
        return gaussian_logits(model.family, model.networks[member], outputs, here).cpu()

    return logits
