"""ViLU: a network on the features of images and of class texts that predicts whether the prediction is wrong.

Lafon et al., ViLU: Learning Vision-Language Uncertainties for Failure Prediction (ICCV 2025).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from hydractl.metrics.probabilities import Floats

HIDDEN = (512, 256, 128)
_STEPS, _EPOCHS, _BATCH, _PEAK, _DECAY = 300, 15, 256, 1e-3, 1e-2


def logits(weights: Mapping[str, Tensor], features: Tensor, texts: Tensor) -> Tensor:
    """The logit of the probability that the prediction is wrong.

    Args:
        weights: ``query``, ``key`` and ``value`` ``[D, D]`` of the attention; ``weight.0``, ``bias.0`` and so on.
        features: of images ``[n, D]``, of length 1.
        texts: of the classes ``[C, D]``, of length 1; the prediction is the nearest one.

    Returns:
        ``[n]``.
    """
    root = math.sqrt(texts.shape[1])
    features, texts = root * features, root * texts  # their coordinates have a mean square of 1, as layers expect it
    keys = features @ weights["query"].T @ weights["key"]  # [n, D]; the attention logits are its products with texts
    attention = torch.softmax(keys @ texts.T / root, dim=1)
    weighed = attention @ texts @ weights["value"].T  # the texts of all classes, as the image asks for them: [n, D]
    predicted = texts[(features @ texts.T).argmax(dim=1)]
    state = torch.cat([features, weighed, predicted], dim=1)  # [n, 3 D]
    for layer in range(len(HIDDEN)):
        state = torch.relu(F.linear(state, weights[f"weight.{layer}"], weights[f"bias.{layer}"]))
    last = len(HIDDEN)
    return F.linear(state, weights[f"weight.{last}"], weights[f"bias.{last}"]).squeeze(1)


def fit(features: Floats, labels: NDArray[np.int64], texts: Floats) -> dict[str, Floats]:
    """Train the network on samples whose labels are known, from a fixed seed.

    Args:
        features, texts: as of :func:`logits`.
        labels: ``[n]``.

    Returns:
        Weights and ``texts`` for :func:`score`; where all predictions are right, or all are wrong, there is nothing to
        tell apart: ``constant``, the share of wrong ones.
    """
    parts = np.array_split(features, 1 + len(features) // 10_000)  # the products [n, C] would be too much at once
    wrong = np.concatenate([(part @ texts.T).argmax(axis=1) for part in parts]) != labels
    if wrong.all() or not wrong.any():
        return {"constant": np.array([wrong.mean()])}
    generator = torch.Generator().manual_seed(0)
    # The caller may be in inference mode, whose tensors cannot be trained.
    with torch.inference_mode(False), torch.enable_grad():
        weights = _drawn(features.shape[1], generator)
        x, t, y = (torch.from_numpy(part.astype(np.float32)) for part in (features, texts, wrong))
        weight = torch.log1p((1 - y).sum() / y.sum())  # of an error
        optimizer = torch.optim.AdamW(weights.values(), lr=_PEAK, weight_decay=_DECAY)
        steps = max(_STEPS, _EPOCHS * len(x) // _BATCH)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for _ in range(steps):
            chosen = torch.randint(len(x), (min(_BATCH, len(x)),), generator=generator)
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(logits(weights, x[chosen], t), y[chosen], pos_weight=weight).backward()
            optimizer.step()
            schedule.step()
    kept = {name: tensor.detach().double().numpy() for name, tensor in weights.items()}
    return {**kept, "texts": texts}


def _drawn(width: int, generator: torch.Generator) -> dict[str, Tensor]:
    """The MLP as torch draws linear layers, uniform within 1 / √(inputs).

    The attention starts as that of the zero-shot classifier: drawn at random, it would take far more data to learn that
    an image is to be compared with texts.
    """
    drawn = {name: torch.eye(width) for name in ("query", "key", "value")}
    for layer, (inputs, outputs) in enumerate(pairwise((3 * width, *HIDDEN, 1))):
        for name, shape in (("weight", (outputs, inputs)), ("bias", (outputs,))):
            drawn[f"{name}.{layer}"] = (2 * torch.rand(shape, generator=generator) - 1) / math.sqrt(inputs)
    return {name: tensor.requires_grad_() for name, tensor in drawn.items()}


def score(fitted: Mapping[str, Floats], features: Floats) -> Floats:
    """The probability ``[n]`` that the prediction for features ``[n, D]`` is wrong, in float64.

    Raises:
        LookupError, ValueError: what was fitted is not whole, or of other shapes.
    """
    if "constant" in fitted:
        return np.full(len(features), float(fitted["constant"][0]))
    weights = {name: torch.from_numpy(part) for name, part in fitted.items()}
    try:
        with torch.no_grad():
            return np.asarray(logits(weights, torch.from_numpy(features), weights.pop("texts")).sigmoid())
    except RuntimeError as error:  # torch's word for shapes that do not match
        raise ValueError(str(error)) from None
