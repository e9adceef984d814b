"""Confidence intervals at 95 %: of a share of independent samples, and of a mean."""

from __future__ import annotations

import math
from typing import NamedTuple

from hydractl.metrics.probabilities import Floats

# The 0.975 quantile of the normal distribution.
_Z = 1.959963984540054


class ConfidenceInterval(NamedTuple):
    """The ends of a 95 % interval."""

    low: float
    high: float


def share_interval(count: int, total: int) -> ConfidenceInterval:
    """Return the score interval of the share of ``count`` among ``total`` > 0 samples.

    The formula is written out because importing scipy.stats would take more than a second of every eval; a test
    compares it with scipy's.

    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference".
    """
    share = count / total
    spread = _Z * _Z / total
    middle = share + spread / 2
    variance = share * (1 - share) / total + spread / (4 * total)
    half = _Z * math.sqrt(variance)
    low = (middle - half) / (1 + spread)
    high = (middle + half) / (1 + spread)
    # At a count of 0 or of all samples one end is exactly 0 or 1; the formula gives it but for rounding.
    if count == 0:
        low = 0.0
    if count == total:
        high = 1.0
    return ConfidenceInterval(low, high)


def mean_interval(values: Floats) -> ConfidenceInterval:
    """Return the interval of the mean of values [N] by its standard error; infinite for fewer than two values."""
    n = len(values)
    if n < 2:
        return ConfidenceInterval(-math.inf, math.inf)
    mean = float(values.mean())
    standard_deviation = float(values.std(ddof=1))
    standard_error = standard_deviation / math.sqrt(n)
    half = _Z * standard_error
    return ConfidenceInterval(mean - half, mean + half)
