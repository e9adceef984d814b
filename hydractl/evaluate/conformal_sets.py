"""Prediction sets of the test samples, batch by batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from hydractl.metrics.calibrators import Calibration
from hydractl.metrics.conformal import Conformal, nonconformity
from hydractl.metrics.samples import calibrated_blocks


class ConformalTally:
    """A sink that counts the sets of a fitted conformal predictor.

    Args:
        fitted: on validation data.
        labels: of the test samples, ``[N]``.
        calibration: of the averaged prediction, as it was in the fit.
    """

    def __init__(self, fitted: Conformal, labels: npt.NDArray[np.int64], calibration: Calibration | None) -> None:
        self._fitted, self._labels, self._calibration = fitted, labels, calibration
        self._n = self._covered = self._classes = self._empty = 0

    def __call__(self, rows: Sequence[int], logits: npt.NDArray[Any]) -> None:
        """Count one batch."""
        labels = self._labels[list(rows)]
        for part, probs in calibrated_blocks(logits, self._calibration):
            inside = nonconformity(probs, self._fitted.method) <= self._fitted.qhat
            sizes = inside.sum(axis=1)
            self._n += len(probs)
            self._covered += int(inside[np.arange(len(probs)), labels[part]].sum())
            self._classes += int(sizes.sum())
            self._empty += int(np.count_nonzero(sizes == 0))

    def to_json(self) -> dict[str, Any]:
        """As :func:`hydractl.metrics.conformal.conformal_block` gives it."""
        counts = {"coverage": self._covered, "mean_size": self._classes, "empty": self._empty}
        return {**asdict(self._fitted), **{name: count / self._n for name, count in counts.items()}}
