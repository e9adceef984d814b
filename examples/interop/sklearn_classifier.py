"""A model as an estimator of scikit-learn: ``predict`` and ``predict_proba`` for its scores, curves and displays.

    python examples/interop/sklearn_classifier.py hydra.st test.npz

It is trained already: ``fit`` notes the classes and changes no weight, so cross-validation measures how its scores
scatter over parts of the data.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import log_loss
from sklearn.model_selection import cross_val_score

import hydractl


class HydraClassifier(ClassifierMixin, BaseEstimator):
    """A classifier for images as arrays ``[N, H, W, C]`` or for texts, and labels as numbers.

    Args:
        model: what ``hydractl.load`` takes.
        batch_size: samples that are computed together.
        device: where.
    """

    def __init__(self, model: Any, batch_size: int = 64, device: str = "auto") -> None:
        self.model, self.batch_size, self.device = model, batch_size, device

    def fit(self, X: Any, y: Any = None) -> HydraClassifier:
        """Load the model."""
        self.module_ = hydractl.load(self.model, device=self.device)
        self.classes_ = np.arange(self.module_.classes)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities ``[N, classes]``."""
        device = next(self.module_.parameters()).device
        parts = []
        for start in range(0, len(X), self.batch_size):
            inputs = self.module_.preprocess(list(X[start : start + self.batch_size]))
            with torch.no_grad():
                moved = {k: v.to(device) for k, v in inputs.items()} if isinstance(inputs, dict) else inputs.to(device)
                parts.append(self.module_(moved).exp().double().cpu().numpy())
        probabilities = np.concatenate(parts)
        return probabilities / probabilities.sum(axis=1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class, ``[N]``."""
        return self.classes_[self.predict_proba(X).argmax(axis=1)]


def main(model: str, data: str) -> None:
    """Scores of a model on an ``.npz`` with ``x`` and ``y``."""
    arrays = np.load(data)
    classifier = HydraClassifier(model).fit(arrays["x"])
    probabilities = classifier.predict_proba(arrays["x"])
    print(f"accuracy {classifier.score(arrays['x'], arrays['y']):.4f}")
    print(f"log loss {log_loss(arrays['y'], probabilities, labels=classifier.classes_):.4f}")
    print("accuracy on fifths", np.round(cross_val_score(classifier, arrays["x"], arrays["y"], cv=5), 4))


if __name__ == "__main__":
    main(*sys.argv[1:])
