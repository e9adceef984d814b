"""Kronecker factors of the curvature at the last linear layers, and the prior of a Laplace approximation.

The curvature is the generalised Gauss-Newton matrix of the loss (Martens and Grosse 2015; Botev et al. 2017), which
needs no labels. Let x be the input of the layer, p the probabilities, J the Jacobian of the logits with respect to the
output of the layer, and L the Hessian of the loss with respect to the logits. The factors are means over the data::

    A = E[x x']        B = E[J' L J]

For a classifier J = I and L = diag p - p p'. For a model that compares images with texts (Baumann et al. 2024) the loss
is that of each image among the texts of a batch and of each text among its images, with the others taken as fixed. Let
s be the factor of the logits, g a feature before it is normalised, u = g / |g|, and H the matrix whose rows are the
normalised features of the others. Then::

    J = s H (I - u u') / |g|
    L = diag p - p p' for the softmax (CLIP), diag p (1 - p) for the sigmoid (SigLIP)

The precision is ``n A (x) B + prior I``. Here n is the number of samples, or the pseudo-data count that the user sets.
Baumann et al. divide the sums over N pairs by the root of N, in A and in B, and multiply both by the root of tau, so
their tau corresponds to n = tau N. They also add the root of the prior to both factors, instead of the prior to the
product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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
"""The prior precisions to choose from: four per decade from 1e-4 to 1e6."""

PAIRS_COMPARED = 32_768
"""So many pairs of images and texts at most are compared with each other, as in a batch of contrastive training and
in Baumann et al. 2024; more are cut into equal parts."""

CELLS_AT_ONCE = 2**25
"""So many logits at most are computed at once: 256 MiB in float64, of which a few copies are held."""

Inputs = Iterable[Any]
"""Batches of inputs on the model's device."""

LogitsOfPosteriors = Callable[[Sequence[Posterior]], Tensor]
"""A function from the posteriors of a member's layers to its logits ``[N, classes]`` on validation data."""


@dataclass(frozen=True)
class Curvature:
    """The Kronecker factors of one layer by their eigenvalues and eigenvectors, in float64.

    Attributes:
        a, basis: the eigenvalues ``[d]`` of A, and its eigenvectors ``[d, d]`` in columns.
        b, outer: the eigenvalues ``[k]`` of B, and its eigenvectors ``[k, k]`` in columns.
        squares: the sum of the squared weights of the layer.
    """

    a: Tensor
    basis: Tensor
    b: Tensor
    outer: Tensor
    squares: float

    @classmethod
    def from_factors(cls, a: Tensor, b: Tensor, layer: LastLayer) -> Curvature:
        """Return the curvature of a layer: the eigenvalues and eigenvectors of its two Kronecker factors, in float64.

        Args:
            a: the factor A of the d inputs of the layer, ``[d, d]``, symmetric.
            b: the factor B of its k outputs, ``[k, k]``, symmetric.
            layer: the layer, whose weights count for the prior.
        """
        # Rounding may make an eigenvalue of zero negative, which `clamp` undoes.
        a_values, a_vectors = torch.linalg.eigh(a)
        b_values, b_vectors = torch.linalg.eigh(b)
        weight = layer.weight.cpu().double()
        squares = weight.square().sum()
        return cls(
            a=a_values.clamp(min=0),
            basis=a_vectors,
            b=b_values.clamp(min=0),
            outer=b_vectors,
            squares=float(squares),
        )

    def precision(self, prior: float, count: float) -> Tensor:
        """Return the precision of the weights along the eigenvectors of A and B, ``[d, k]``."""
        eigenvalues = torch.outer(self.a, self.b)  # of the Kronecker product A (x) B, [d, k]
        return count * eigenvalues + prior

    def posterior(self, prior: float, count: float) -> Posterior:
        """Return the posterior of the weights."""
        precision = self.precision(prior, count)
        variances = 1 / precision
        return Posterior(self.basis, variances, self.outer)

    def evidence(self, prior: float, count: float) -> float:
        """Return the log marginal likelihood by Laplace's method, without the terms that do not depend on the prior.

        Source: Daxberger et al. 2021.
        """
        precision = self.precision(prior, count)
        log_ratios = (prior / precision).log()
        log_ratio_of_determinants = log_ratios.sum()  # of the prior precision and of the posterior precision
        weight_penalty = prior * self.squares
        return 0.5 * float(log_ratio_of_determinants - weight_penalty)


@dataclass(frozen=True)
class LaplaceFit:
    """The curvatures of one member, and its logits as a function of the posteriors.

    Attributes:
        curvatures: the curvature of the last layer of each tower, by the name of the tower.
        logits: computes the logits on the validation data; None without validation data.
    """

    curvatures: dict[str, Curvature]
    logits: LogitsOfPosteriors | None = None

    @torch.no_grad()
    def choose_priors(self, count: float, labels: Tensor | None) -> dict[str, float]:
        """Return the best prior precision for each tower, by the name of the tower, out of :data:`PRIORS`.

        Without validation data, each tower gets the one with the highest evidence (the marginal likelihood of the
        training data). With validation data, all towers get the same one, with the lowest NLL on them.

        Args:
            count: how many training samples the curvature counts as.
            labels: the labels ``[N]`` of the validation data, or None.
        """
        if self.logits is None or labels is None:
            priors = {}
            for tower, curvature in self.curvatures.items():
                priors[tower] = max(PRIORS, key=partial(curvature.evidence, count=count))  # the first of equals
            return priors
        logits_of = self.logits

        def nll(prior: float) -> float:
            """Return the NLL on the validation data when all towers have this prior."""
            same_prior = dict.fromkeys(self.curvatures, prior)
            posteriors = self.posteriors(same_prior, count)
            logits = logits_of(list(posteriors.values()))
            return float(F.cross_entropy(logits, labels))

        best = min(PRIORS, key=nll)
        return dict.fromkeys(self.curvatures, best)

    def posteriors(self, priors: Mapping[str, float], count: float) -> dict[str, Posterior]:
        """Return the posteriors under given priors, by tower."""
        posteriors = {}
        for tower, curvature in self.curvatures.items():
            posteriors[tower] = curvature.posterior(priors[tower], count)
        return posteriors


# --- classifiers ------------------------------------------------------------------------------------------------------


_LogitsAndFeatures = tuple[Tensor, list[Tensor]]
"""The logits ``[M, B, C]`` of a batch, and each member's features ``[B, D]``; all float64 on the CPU."""


@torch.no_grad()
def fit_classifier(model: HydraModel, batches: Inputs, val: Inputs | None) -> list[LaplaceFit]:
    """Return for each member of a model the curvature of its classifier, i.e. of its last layer.

    The curvature says how much the loss bends if the weights of the layer change. It is approximated by a Kronecker
    product of two small matrices: A = mean x x' ``[d, d]`` over the inputs x of the layer, and B =
    mean (diag p - p p') ``[C, C]``, the curvature of the cross-entropy in its outputs, with p the probabilities.

    Args:
        model: the model.
        batches: the samples from which the curvature is computed.
        val: validation samples, or None.

    Returns:
        One fit for each member. With validation samples it also has a function that computes logits on them, by which a
        prior is chosen later.

    Raises:
        InputError: the logits are not a linear function of the features that enter the last layer.
    """
    # A classifier has one last layer in each member.
    layers = [layers_of_member[0] for layers_of_member in last_layers(model)]

    # Sum the factors of each member over all samples: x x' for A, and diag p - p p' for B.
    sums_of_a: list[Any] = [0.0] * len(layers)  # of tensors [d, d]
    sums_of_b: list[Any] = [0.0] * len(layers)  # of tensors [C, C]
    samples = 0
    for logits, features in _outputs(model, batches):
        samples += logits.shape[1]
        for member, layer in enumerate(layers):
            x = with_one(features[member], layer.bias)  # [B, d]; with a bias, a column of ones is appended
            sums_of_a[member] += x.T @ x
            p = logits[member].softmax(dim=-1)  # [B, C]
            sums_of_b[member] += torch.diag(p.sum(dim=0)) - p.T @ p

    validation: list[_LogitsAndFeatures] = []
    if val is not None:
        validation = list(_outputs(model, val))

    # Divide the sums by the number of samples, and decompose the factors.
    fits = []
    for member, layer in enumerate(layers):
        curvature = Curvature.from_factors(sums_of_a[member] / samples, sums_of_b[member] / samples, layer)
        logits_of: LogitsOfPosteriors | None = None
        if validation:
            logits_of = _scaled_logits(validation, member, layer)
        fits.append(LaplaceFit({layer.tower: curvature}, logits_of))
    return fits


def _outputs(model: HydraModel, batches: Inputs) -> Iterator[_LogitsAndFeatures]:
    """Yield the logits ``[M, B, C]`` of each batch, and for each member the features ``[B, D]`` of its classifier.

    Both are float64 on the CPU.

    Raises:
        InputError: the logits are not a linear function of these features.
    """
    linear_maps = list(classifiers(model))
    for inputs in batches:
        logits, features = read_features(model, inputs)
        for member, (weight, bias) in enumerate(linear_maps):
            check_linear(logits[member], features[member], weight, bias)
        features_in_float64 = [features_of_member.cpu().double() for features_of_member in features]
        yield logits.cpu().double(), features_in_float64


def _scaled_logits(validation: Sequence[_LogitsAndFeatures], member: int, layer: LastLayer) -> LogitsOfPosteriors:
    """Return a function from the posterior of a member's classifier to the member's logits ``[N, C]``.

    They are the logits z on the validation data, scaled by their variance v under the posterior (probit approximation):
    z / sqrt(1 + v pi / 8). The data are concatenated once here, as the function is called for every prior.
    """
    logits_of_batches = []
    inputs_of_batches = []
    for logits_of_members, features_of_members in validation:
        logits_of_batches.append(logits_of_members[member])
        inputs_of_batches.append(with_one(features_of_members[member], layer.bias))
    logits = torch.cat(logits_of_batches)  # [N, C]
    x = torch.cat(inputs_of_batches)  # [N, d]

    def scaled(posteriors: Sequence[Posterior]) -> Tensor:
        """Return the logits under the only posterior, scaled by their variance."""
        posterior = posteriors[0]  # a classifier has one layer
        return posterior.scaled(logits, x)

    return scaled


# --- images and texts -------------------------------------------------------------------------------------------------


@torch.no_grad()
def fit_pairs(
    model: HydraModel, batches: Iterable[tuple[Any, Any]], val: Inputs | None, classes: HydraModel | None
) -> list[LaplaceFit]:
    """Return for each member of a model the curvature of its two projections, from pairs of images and captions.

    The model compares images with texts. Its last layers are projections: one takes images and one takes texts to the
    space where they are compared. The curvature says how much the loss bends if their weights change.

    Args:
        model: the model.
        batches: images and captions from which the curvatures are computed.
        val: validation images, or None.
        classes: the model with the classes of ``val`` as its prompts, or None.

    Returns:
        One fit for each member. With validation images and classes it also has a function that computes logits on them,
        by which a prior is chosen later.
    """
    layers_of_members = last_layers(model)
    read_images = model.chain_of_samples.of_projection()
    read_texts = model.chain_of_labels.of_projection()

    # Compute the inputs of both projections for the pairs. Each input has a dimension of size 1, which is removed.
    image_batches = []
    text_batches = []
    for pixels, captions in batches:
        image_batches.append(read_images(pixels))
        text_batches.append(read_texts(captions))
    images = torch.cat(image_batches, dim=1)[:, :, 0]  # [M, N, 1, d] -> [M, N, d]
    texts = torch.cat(text_batches, dim=1)[:, :, 0]  # [M, N, d]

    # Do the same for the validation images and for the prompts of their classes; a class may have several prompts.
    compared: list[Tensor] = []  # empty, or [M, N, 1, d] for images and [M, classes, prompts, d] for classes
    if val is not None and classes is not None and classes.prompted is not None:
        images_to_classify = [read_images(pixels) for pixels in val]
        prompts_of_classes = [read_texts(prompts) for prompts in classes.prompted.inputs(256)]
        compared.append(torch.cat(images_to_classify, dim=1))
        compared.append(torch.cat(prompts_of_classes, dim=1))

    fits = []
    for member, layers in enumerate(layers_of_members):
        curvatures = _curvatures_of_towers(model, member, layers, [images[member], texts[member]])
        logits_of: LogitsOfPosteriors | None = None
        if compared:
            compared_by_member = [inputs[member] for inputs in compared]
            logits_of = _compared_logits(model, member, layers, compared_by_member)
        fits.append(LaplaceFit(curvatures, logits_of))
    return fits


def _curvatures_of_towers(
    model: HydraModel, member: int, layers: Sequence[LastLayer], inputs: Sequence[Tensor]
) -> dict[str, Curvature]:
    """Return the curvatures of the projections of both towers of one member, by the name of the tower.

    A tower is an encoder, of images or of texts. Its projection W turns its output x into the feature W x, which is
    compared with the other tower's features by cosines. The curvature of W is approximated by a Kronecker product of
    A = mean x x' and B, see :func:`compared_factor`.

    Args:
        model: the model.
        member: the index of the member.
        layers: its projections of images and of texts.
        inputs: the inputs of these projections, ``[N, d]`` each.
    """
    # The features of both towers before they are normalised. If a projection has a bias, its inputs get a column of
    # ones and its weight the bias as another column.
    entering = [with_one(x, layer.bias) for x, layer in zip(inputs, layers, strict=True)]  # [N, d] each
    features = [x @ layer.weight.T for x, layer in zip(entering, layers, strict=True)]  # [N, D] each

    # How the model turns cosines into logits, and whether each pair is judged alone (sigmoid) or among others.
    network = model.networks[member]
    scale, bias = scale_and_bias(model.family, network, features[0])
    each_alone = model.family.judges_each_pair(network)
    curvatures = {}
    for index, layer in enumerate(layers):
        x = entering[index].cpu().double()
        a = x.T @ x / len(x)  # A = E[x x']
        others = features[1 - index]  # of the other tower
        b = compared_factor(features[index], others, float(scale), float(bias), each_alone)
        curvatures[layer.tower] = Curvature.from_factors(a, b, layer)
    return curvatures


def compared_factor(features: Tensor, others: Tensor, scale: float, bias: float, each_alone: bool) -> Tensor:
    """Return the factor B of the projection of one tower (an encoder of images or of texts), ``[D, D]``, float64.

    B says how much the loss bends if the features of this tower move: it is the mean over samples of J' L J, where J
    leads from a change of a feature to the change of its logits, and L from there to the loss. Only the direction of a
    feature matters, as features are normalised.

    Args:
        features: the features of the tower before they are normalised, ``[N, D]``.
        others: the features of the other tower, ``[N, D]``; each feature is compared with those of its part, see
            :data:`PAIRS_COMPARED`.
        scale, bias: the logits are ``scale * cosine + bias``.
        each_alone: whether each pair has its own loss (sigmoid) instead of a softmax over all others.
    """
    # J = s H (I - u u') / |g|, where s is the scale, g a feature, u = g / |g|, and H has the normalised features of the
    # others as rows (`h`). L is the Hessian of the loss with respect to the logits.
    # Let w = s^2 / |g|^2. J' L J is w (I - u u') H' L H (I - u u'). Multiplied out and summed over samples, that is
    #   the sum of w H' L H,
    #   minus the sum of w u (H' L H u)' and its transpose,
    #   plus the sum of w (u' H' L H u) u u'.
    samples, width = features.shape
    total = torch.zeros(width, width, dtype=torch.float64)
    for g, h in _compared_parts(features.cpu().double(), F.normalize(others.cpu().double(), dim=-1)):
        u = F.normalize(g, dim=-1)
        squared_length = g.square().sum(dim=-1, keepdim=True)
        weight = scale**2 / squared_length  # w, [B, 1]
        cosines = u @ h.T  # [B, N]
        logits = scale * cosines + bias

        # L is diag(diagonal) for the sigmoid. For the softmax it is diag(diagonal) - p p', with p = diagonal and
        # mean = H' p. With a mean of zero, the formulas below hold for the sigmoid, too.
        if each_alone:
            p = logits.sigmoid()
            diagonal = p * (1 - p)
            mean = torch.zeros_like(g)
        else:
            diagonal = logits.softmax(dim=-1)
            mean = diagonal @ h

        # H' L H u for each sample, [B, D]
        mean_along_u = (mean * u).sum(dim=-1, keepdim=True)  # [B, 1]
        along = (diagonal * cosines) @ h - mean * mean_along_u

        # The sum of w H' L H, [D, D]: first the diagonal part, then minus w mean mean'.
        weight_of_other = (weight * diagonal).sum(dim=0)[:, None]  # [N, 1]
        around_mean = h.T @ (weight_of_other * h) - (weight * mean).T @ mean

        # The sum of w u (H' L H u)', [D, D]; it is subtracted together with its transpose.
        crossed = (weight * u).T @ along
        total += around_mean - crossed - crossed.T
        # The sum of w (u' H' L H u) u u', [D, D].
        length = (u * along).sum(dim=-1, keepdim=True)  # [B, 1]
        total += (weight * length * u).T @ u
    return total / samples


def _compared_parts(features: Tensor, others: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield features ``[B, D]`` of one tower with those of the other that they are compared with, ``[P, D]``.

    The N pairs are divided into parts of about :data:`PAIRS_COMPARED`; features are compared within their part only.
    B is limited, so that a table of ``[B, P]`` fits into memory.

    Args:
        features: the features of one tower, ``[N, D]``.
        others: those of the other tower, ``[N, D]``; row i of both is a pair.
    """
    parts = math.ceil(len(features) / PAIRS_COMPARED)
    for of_one, of_other in zip(features.tensor_split(parts), others.tensor_split(parts), strict=True):
        rows = max(1, min(ROWS_AT_ONCE, CELLS_AT_ONCE // len(of_other)))
        for g in of_one.split(rows):
            yield g, of_other


def _compared_logits(
    model: HydraModel, member: int, layers: Sequence[LastLayer], inputs: Sequence[Tensor]
) -> LogitsOfPosteriors:
    """Return a function from the posteriors of both projections to the logits ``[N, classes]`` of images.

    The logits compare each image with the prompts of each class.

    Args:
        model: the model.
        member: the index of the member.
        layers: its projections of images and of texts.
        inputs: the inputs of these projections: of the images, and of the prompts of the classes.
    """
    # The inputs stay the same: the function is called with other posteriors for every prior that is tried.
    network = model.networks[member]

    def logits_of(posteriors: Sequence[Posterior]) -> Tensor:
        """Return the logits ``[B, classes]`` under the posteriors of both projections."""
        on_device = [posterior.to(inputs[0]) for posterior in posteriors]
        features = []
        for tower, layer in enumerate(layers):
            features.append(gaussian_features(on_device[tower], inputs[tower], layer))
        logits = gaussian_logits(model.family, network, features, on_device)
        return logits.cpu()

    return logits_of
