"""ViLU: a network on features of images and of class texts that predicts whether the model's prediction is wrong.

Lafon et al., ViLU: Learning Vision-Language Uncertainties for Failure Prediction (ICCV 2025).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from hydractl.metrics.probabilities import Floats

HIDDEN = (512, 256, 128)
"""Widths of the hidden layers."""

# The training: about 15 epochs, at least 300 steps.
_FEWEST_STEPS = 300
_EPOCHS = 15
_BATCH = 256
_PEAK_LEARNING_RATE = 1e-3
_WEIGHT_DECAY = 1e-2
_MOST_SAMPLES = 10_000
"""The number of samples, roughly, whose products with all class texts are computed at once."""


def vilu_logits(weights: Mapping[str, Tensor], features: Tensor, texts: Tensor, scale: Tensor | float | None) -> Tensor:
    """Return the logit of the probability that the model's prediction is wrong, ``[n]``, by the ViLU network.

    Each image attends to all class texts, with attention = softmax(scale * cosines) for identity projections. An MLP
    then reads the features of the image, what it attends to, and the text of the predicted class.

    Args:
        weights: ``query``, ``key`` and ``value`` ``[D, D]`` of the attention; ``weight.0``, ``bias.0`` and so on of the
            layers of the MLP.
        features: the features of the images ``[n, D]``, of length 1.
        texts: the features of the class texts ``[C, D]``, of length 1; the nearest one is the prediction.
        scale: the factor of the cosines in the attention; None means √D.
    """
    root = math.sqrt(texts.shape[1])  # √D
    # Scale features to length √D, so that their coordinates have a mean square of 1, as layers expect.
    long_features = root * features
    long_texts = root * texts

    # The attention of each image to all texts. The key projection is applied to the n queries and not to the C texts:
    # (q Q^T)(t K^T)^T = q Q^T K t^T.
    queries = long_features @ weights["query"].T @ weights["key"]  # [n, D]
    attention_logits = queries @ long_texts.T / root  # [n, C]; with identity projections √D times the cosines
    # The factor of the cosines is √D so far: replace it by `scale`.
    if scale is not None:
        attention_logits = attention_logits * (scale / root)
    attention = torch.softmax(attention_logits, dim=1)  # [n, C]
    attended = attention @ long_texts @ weights["value"].T  # [n, D]

    # The state that the MLP reads: the image, what it attends to, and the text of the predicted class.
    similarities = long_features @ long_texts.T  # [n, C]
    predicted = similarities.argmax(dim=1)  # [n]
    state = torch.cat([long_features, attended, long_texts[predicted]], dim=1)  # [n, 3 D]

    # The MLP: hidden layers with ReLU, and a last layer with one output.
    for layer in range(len(HIDDEN)):
        linear = F.linear(state, weights[f"weight.{layer}"], weights[f"bias.{layer}"])
        state = torch.relu(linear)
    last = len(HIDDEN)
    logits = F.linear(state, weights[f"weight.{last}"], weights[f"bias.{last}"])  # [n, 1]
    return logits.squeeze(1)


def fit_vilu(features: Floats, labels: NDArray[np.int64], texts: Floats, scale: float | None) -> dict[str, Floats]:
    """Return the network that predicts wrong predictions, trained on labelled samples from a fixed seed.

    Args:
        features, texts, scale: see :func:`vilu_logits`.
        labels: ``[n]``.

    Returns:
        The arrays for :func:`vilu_probabilities`: the weights, ``texts``, and ``scale`` if it is not None. If all
        predictions are right, or all are wrong, there is nothing to learn: then only ``constant``, the share of wrong
        predictions.
    """
    # The prediction is the text nearest to a sample.
    predicted = []
    for chunk in np.array_split(features, 1 + len(features) // _MOST_SAMPLES):
        similarities = chunk @ texts.T
        predicted.append(similarities.argmax(axis=1))
    wrong = np.concatenate(predicted) != labels
    # All right or all wrong: a network could learn nothing else than this.
    all_alike = wrong.all() or not wrong.any()
    if all_alike:
        share = wrong.mean()
        return {"constant": np.array([share])}

    fitted = {}
    # The caller may be in inference mode, whose tensors cannot be trained.
    with torch.inference_mode(False), torch.enable_grad():
        weights = _trained(_as_float32(features), _as_float32(texts), _as_float32(wrong), scale)
        for name, tensor in weights.items():
            fitted[name] = tensor.detach().double().numpy()
    if scale is not None:
        fitted["scale"] = np.array([scale])
    return {**fitted, "texts": texts}


def _as_float32(values: NDArray[Any]) -> Tensor:
    copied = values.astype(np.float32)
    return torch.from_numpy(copied)


def _trained(features: Tensor, texts: Tensor, wrong: Tensor, scale: float | None) -> dict[str, Tensor]:
    """Return the weights of the network, trained to predict wrong predictions.

    It minimises a binary cross-entropy in which wrong predictions weigh more the rarer they are.

    Args:
        features, texts, scale: see :func:`vilu_logits`; features and texts are float32.
        wrong: ``[n]``, 1 if the prediction is wrong, else 0.
    """
    generator = torch.Generator().manual_seed(0)
    samples, width = features.shape

    # The start, and the weight of errors: log(1 + right predictions for each wrong one).
    weights = _starting_weights(width, generator)
    right_for_each_wrong = (1 - wrong).sum() / wrong.sum()
    error_weight = torch.log1p(right_for_each_wrong)

    optimizer = torch.optim.AdamW(weights.values(), lr=_PEAK_LEARNING_RATE, weight_decay=_WEIGHT_DECAY)
    batch_size = min(_BATCH, samples)
    steps = max(_FEWEST_STEPS, _EPOCHS * samples // _BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    for _ in range(steps):
        batch = torch.randint(samples, (batch_size,), generator=generator)
        optimizer.zero_grad()
        logits = vilu_logits(weights, features[batch], texts, scale)
        loss = F.binary_cross_entropy_with_logits(logits, wrong[batch], pos_weight=error_weight)
        loss.backward()
        optimizer.step()
        schedule.step()
    return weights


def _starting_weights(width: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Return the weights that the training starts from.

    The attention starts with identity projections, as in the zero-shot classifier: from random ones it would need far
    more data to learn that an image is to be compared with texts. The MLP starts as torch's linear layers do, uniform
    within 1 / √(inputs).

    Args:
        width: D, the number of features.
        generator: draws the weights.
    """
    weights = {}
    for name in ("query", "key", "value"):
        weights[name] = torch.eye(width)

    # Layer i of the MLP has widths[i] inputs and widths[i + 1] outputs.
    widths = (3 * width, *HIDDEN, 1)
    for layer, (inputs, outputs) in enumerate(pairwise(widths)):
        for name, shape in ((f"weight.{layer}", (outputs, inputs)), (f"bias.{layer}", (outputs,))):
            within_1 = 2 * torch.rand(shape, generator=generator) - 1
            weights[name] = within_1 / math.sqrt(inputs)

    for tensor in weights.values():
        tensor.requires_grad_()
    return weights


def vilu_probabilities(fitted: Mapping[str, Tensor], features: Tensor) -> Tensor:
    """Return the probability ``[n]`` that the prediction is wrong.

    Args:
        fitted: the arrays that :func:`fit_vilu` returned, as tensors.
        features: the features of the images ``[n, D]``, of length 1.

    Raises:
        LookupError: one of the arrays is missing.
    """
    weights = dict(fitted)
    texts = weights.pop("texts")
    scale = weights.pop("scale", None)
    return vilu_logits(weights, features, texts, scale).sigmoid()
