"""Where a curve of accuracy against the number of heads stops to rise steeply: the knee of a fitted polynomial."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_NOTHING = 1e-9
"""A distance from the chord, or a rise of the curve, below this is rounding."""


@dataclass(frozen=True)
class Knee:
    """The knee of one fitted curve.

    Attributes:
        heads: the number of heads there; the largest where the curve has no knee.
        distance: from the chord, in a square of side 1; None where the curve has no knee.
        fitted: the fitted accuracy at every number of heads.
    """

    heads: int
    distance: float | None
    fitted: npt.NDArray[np.float64]


def find_knee(heads: Sequence[int], accuracy: Sequence[float], degree: int) -> Knee:
    """Fit a polynomial by least squares and take the point of it that is furthest above its chord.

    The chord joins the first and the last point of the fitted curve, both axes scaled to 0..1. Only points above it
    count: below it lie those numbers of heads from which on accuracy begins to rise. Of points as far, that with the
    fewest heads counts.

    Args:
        heads: numbers of heads, ascending.
        accuracy: what was measured with each.
        degree: of the polynomial; one less than there are points, where it is not smaller.
    """
    counts, measured = np.asarray(heads, dtype=np.float64), np.asarray(accuracy, dtype=np.float64)
    if len(counts) < 3:  # no point between the ends of the chord
        return Knee(int(heads[-1]), None, measured)
    x = (counts - counts[0]) / (counts[-1] - counts[0])
    fitted = np.polynomial.Polynomial.fit(x, measured, min(degree, len(x) - 1), domain=[0.0, 1.0])(x)
    rise = fitted.max() - fitted.min()
    if rise <= _NOTHING:
        return Knee(int(heads[-1]), None, fitted)
    y = (fitted - fitted.min()) / rise
    slope = y[-1] - y[0]
    above = (y - y[0] - slope * x) / np.hypot(1.0, slope)
    best = int(above.argmax())
    if above[best] <= _NOTHING:
        return Knee(int(heads[-1]), None, fitted)
    return Knee(int(heads[best]), float(above[best]), fitted)
