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

_FEWEST_STEPS = 300
_EPOCHS = 15
_BATCH = 256
_PEAK_LEARNING_RATE = 1e-3
_WEIGHT_DECAY = 1e-2
_MOST_ROWS = 10_000
"""Samples whose products with all class texts are taken at once."""


def vilu_logits(weights: Mapping[str, Tensor], features: Tensor, texts: Tensor) -> Tensor:
    """Return the logit of the probability that the prediction is wrong.

    Args:
        weights: ``query``, ``key`` and ``value`` ``[D, D]`` of the attention; ``weight.0``, ``bias.0`` and so on.
        features: of images ``[n, D]``, of length 1.
        texts: of the classes ``[C, D]``, of length 1; the prediction is the nearest one.

    Returns:
        ``[n]``.
    """
    root = math.sqrt(texts.shape[1])
    # Scaled so that their coordinates have a mean square of 1, as layers expect it.
    features = root * features
    texts = root * texts
    asked = features @ weights["query"].T @ weights["key"]  # [n, D]; the attention logits are its products with texts
    attention = torch.softmax(asked @ texts.T / root, dim=1)  # [n, C]
    attended = attention @ texts @ weights["value"].T  # [n, D]
    predicted = (features @ texts.T).argmax(dim=1)  # [n]
    state = torch.cat([features, attended, texts[predicted]], dim=1)  # [n, 3 D]
    for layer in range(len(HIDDEN)):
        state = torch.relu(F.linear(state, weights[f"weight.{layer}"], weights[f"bias.{layer}"]))
    last = len(HIDDEN)
    logits = F.linear(state, weights[f"weight.{last}"], weights[f"bias.{last}"])  # [n, 1]
    return logits.squeeze(1)


def fit_vilu(features: Floats, labels: NDArray[np.int64], texts: Floats) -> dict[str, Floats]:
    """Train the network on samples whose labels are known, from a fixed seed.

    Args:
        features, texts: as of :func:`vilu_logits`.
        labels: ``[n]``.

    Returns:
        Weights and ``texts`` for :func:`vilu_score`; where all predictions are right, or all are wrong, there is
        nothing to tell apart: ``constant``, the share of wrong ones.
    """
    wrong = _predictions(features, texts) != labels
    if wrong.all() or not wrong.any():
        return {"constant": np.array([wrong.mean()])}
    # The caller may be in inference mode, whose tensors cannot be trained.
    with torch.inference_mode(False), torch.enable_grad():
        weights = _trained(_as_float32(features), _as_float32(texts), _as_float32(wrong))
        fitted = {name: tensor.detach().double().numpy() for name, tensor in weights.items()}
    return {**fitted, "texts": texts}


def _as_float32(values: NDArray[Any]) -> Tensor:
    return torch.from_numpy(values.astype(np.float32))


def _predictions(features: Floats, texts: Floats) -> NDArray[np.int64]:
    """Return the class of the nearest text of each sample, ``[n]``."""
    classes = []
    for part in np.array_split(features, 1 + len(features) // _MOST_ROWS):
        similarities = part @ texts.T
        classes.append(similarities.argmax(axis=1))
    return np.concatenate(classes)


def _trained(features: Tensor, texts: Tensor, wrong: Tensor) -> dict[str, Tensor]:
    """Return the weights that minimise the cross-entropy, in which errors weigh more where they are rare.

    Args:
        features, texts: as of :func:`vilu_logits`.
        wrong: ``[n]``, 1 where the prediction is wrong, else 0.
    """
    generator = torch.Generator().manual_seed(0)
    weights = _drawn(features.shape[1], generator)
    error_weight = torch.log1p((1 - wrong).sum() / wrong.sum())
    optimizer = torch.optim.AdamW(weights.values(), lr=_PEAK_LEARNING_RATE, weight_decay=_WEIGHT_DECAY)
    samples = len(features)
    batch_size = min(_BATCH, samples)
    steps = max(_FEWEST_STEPS, _EPOCHS * samples // _BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        batch = torch.randint(samples, (batch_size,), generator=generator)
        optimizer.zero_grad()
        logits = vilu_logits(weights, features[batch], texts)
        loss = F.binary_cross_entropy_with_logits(logits, wrong[batch], pos_weight=error_weight)
        loss.backward()
        optimizer.step()
        schedule.step()
    return weights


def _drawn(width: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Return weights to start from: those of the MLP as torch draws linear layers, uniform within 1 / √(inputs).

    The attention starts as that of the zero-shot classifier: drawn at random, it would take far more data to learn that
    an image is to be compared with texts.
    """
    drawn = {name: torch.eye(width) for name in ("query", "key", "value")}
    widths = (3 * width, *HIDDEN, 1)
    for layer, (inputs, outputs) in enumerate(pairwise(widths)):
        drawn[f"weight.{layer}"] = _uniform((outputs, inputs), inputs, generator)
        drawn[f"bias.{layer}"] = _uniform((outputs,), inputs, generator)
    for tensor in drawn.values():
        tensor.requires_grad_()
    return drawn


def _uniform(shape: tuple[int, ...], inputs: int, generator: torch.Generator) -> Tensor:
    within_one = 2 * torch.rand(shape, generator=generator) - 1
    return within_one / math.sqrt(inputs)


def vilu_score(fitted: Mapping[str, Floats], features: Floats) -> Floats:
    """Return the probability ``[n]`` that the prediction for features ``[n, D]`` is wrong, in float64.

    Raises:
        LookupError, ValueError: what was fitted is not whole, or of other shapes.
    """
    if "constant" in fitted:
        return np.full(len(features), float(fitted["constant"][0]))
    weights = {name: torch.from_numpy(part) for name, part in fitted.items()}
    texts = weights.pop("texts")
    try:
        with torch.no_grad():
            logits = vilu_logits(weights, torch.from_numpy(features), texts)
            return np.asarray(logits.sigmoid())
    except RuntimeError as error:  # torch's word for shapes that do not match
        raise ValueError(str(error)) from None
