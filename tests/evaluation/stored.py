"""A small predictions file, written without any model."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hydractl.data import open_data
from hydractl.evaluation.predictions.store import PredictionsWriter
from hydractl.evaluation.sets import EvalSet


def write_predictions(path: str, spec: str = "builtin:digits/test", limit: int = 30) -> None:
    """Random logits of two members for the first samples of a set, as ``hydractl eval --predictions`` keeps them."""
    data = open_data(spec, limit=limit)
    labels = np.asarray(data.labels)
    entry = EvalSet("id", "id", None, data.ids, labels, data.fingerprint())
    logits = np.random.default_rng(0).normal(size=(2, len(data), 10)).astype(np.float32)
    with PredictionsWriter(Path(path), {"name": "stored"}, [entry], members=2, classes=10) as writer:
        writer.write(0, range(len(data)), logits)
