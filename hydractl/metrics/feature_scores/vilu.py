"""ViLU: a network on the features of images and of class texts that predicts whether the prediction is wrong.

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
"""About the largest number of samples whose products with all class texts are computed at once."""


def vilu_logits(
    weights: Mapping[str, Tensor], features: Tensor, texts: Tensor, scale: Tensor | float | None = None
) -> Tensor:
    """Return the logit of the probability that the prediction is wrong.

    Args:
        weights: ``query``, ``key`` and ``value`` ``[D, D]`` of the attention; ``weight.0``, ``bias.0`` and so on.
        features: of images ``[n, D]``, of length 1.
        texts: of the classes ``[C, D]``, of length 1; the prediction is the nearest one.
        scale: the factor of the cosines in the attention; None for √D.

    Returns:
        ``[n]``.
    """
    root = math.sqrt(texts.shape[1])
    # Scaled so that their coordinates have a mean square of 1, as layers expect it.
    features = root * features
    texts = root * texts
    # The attention of each image to all texts. The key projection is applied to the queries, not to the texts.
    queries = features @ weights["query"].T @ weights["key"]  # [n, D]
    attention_logits = queries @ texts.T / root  # [n, C], √D times the cosines while the projections are identities
    if scale is not None:
        attention_logits = attention_logits * (scale / root)
    attention = torch.softmax(attention_logits, dim=1)  # [n, C]
    attended = attention @ texts @ weights["value"].T  # [n, D]

    similarities = features @ texts.T  # [n, C]
    predicted = similarities.argmax(dim=1)  # [n]
    state = torch.cat([features, attended, texts[predicted]], dim=1)  # [n, 3 D]

    # The MLP on the features, what the image attends to, and the text of the predicted class.
    for layer in range(len(HIDDEN)):
        linear = F.linear(state, weights[f"weight.{layer}"], weights[f"bias.{layer}"])
        state = torch.relu(linear)
    last = len(HIDDEN)
    logits = F.linear(state, weights[f"weight.{last}"], weights[f"bias.{last}"])  # [n, 1]
    return logits.squeeze(1)


def fit_vilu(
    features: Floats, labels: NDArray[np.int64], texts: Floats, scale: float | None = None
) -> dict[str, Floats]:
    """Train the network on samples whose labels are known, from a fixed seed.

    Args:
        features, texts, scale: as for :func:`vilu_logits`.
        labels: ``[n]``.

    Returns:
        Weights, ``texts`` and ``scale``, if there is one, for :func:`vilu_probabilities`. Where all predictions are
        right, or all are wrong, there is nothing to learn: ``constant`` alone, the share of wrong predictions.
    """
    wrong = _predictions(features, texts) != labels
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


def _predictions(features: Floats, texts: Floats) -> NDArray[np.int64]:
    """Return the class of the nearest text of each sample, ``[n]``."""
    parts = 1 + len(features) // _MOST_SAMPLES
    classes = []
    for some_features in np.array_split(features, parts):
        similarities = some_features @ texts.T
        nearest = similarities.argmax(axis=1)
        classes.append(nearest)
    return np.concatenate(classes)


def _trained(features: Tensor, texts: Tensor, wrong: Tensor, scale: float | None) -> dict[str, Tensor]:
    """Return the weights that minimise the cross-entropy, in which errors weigh more where they are rare.

    Args:
        features, texts: as for :func:`vilu_logits`, float32.
        wrong: ``[n]``, 1 where the prediction is wrong, else 0.
        scale: as for :func:`vilu_logits`.
    """
    generator = torch.Generator().manual_seed(0)
    samples, width = features.shape
    weights = _drawn(width, generator)
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


def _drawn(width: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Return weights to start from: those of the MLP as torch draws linear layers, uniform within 1 / √(inputs).

    The attention starts as that of the zero-shot classifier: drawn at random, it would take far more data to learn that
    an image is to be compared with texts.

    Args:
        width: D, of the features.
        generator: of the draw.
    """
    weights = {}
    for name in ("query", "key", "value"):
        weights[name] = torch.eye(width)
    widths = (3 * width, *HIDDEN, 1)
    for layer, (inputs, outputs) in enumerate(pairwise(widths)):
        weights[f"weight.{layer}"] = _uniform((outputs, inputs), inputs, generator)
        weights[f"bias.{layer}"] = _uniform((outputs,), inputs, generator)
    for tensor in weights.values():
        tensor.requires_grad_()
    return weights


def _uniform(shape: tuple[int, ...], inputs: int, generator: torch.Generator) -> Tensor:
    """Draw a tensor of a shape, uniform within 1 / √(inputs) on both sides of 0."""
    from_0_to_1 = torch.rand(shape, generator=generator)
    within_1 = 2 * from_0_to_1 - 1
    return within_1 / math.sqrt(inputs)


def vilu_probabilities(fitted: Mapping[str, Tensor], features: Tensor) -> Tensor:
    """Return the probability ``[n]`` that the prediction for features ``[n, D]`` is wrong.

    Args:
        fitted: what :func:`fit_vilu` returned, as tensors.
        features: of images ``[n, D]``, of length 1.

    Raises:
        LookupError: a part of what was fitted is missing.
    """
    weights = dict(fitted)
    texts = weights.pop("texts")
    scale = weights.pop("scale", None)
    return vilu_logits(weights, features, texts, scale).sigmoid()
