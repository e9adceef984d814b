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

    Written out, because importing scipy.stats takes more than a second of every eval; a test holds it to scipy's.

    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference".
    """
    share = count / total
    spread = _Z * _Z / total
    middle = share + spread / 2
    half = _Z * math.sqrt(share * (1 - share) / total + spread / (4 * total))
    # At a count of 0 or of all samples one end is 0 or 1 but for rounding.
    low = 0.0 if count == 0 else (middle - half) / (1 + spread)
    high = 1.0 if count == total else (middle + half) / (1 + spread)
    return ConfidenceInterval(low, high)


def mean_interval(values: Floats) -> ConfidenceInterval:
    """Return the interval of the mean of values [N] by its standard error; infinite for a single value."""
    if len(values) < 2:
        return ConfidenceInterval(-math.inf, math.inf)
    mean = float(values.mean())
    standard_error = float(values.std(ddof=1)) / math.sqrt(len(values))
    half = _Z * standard_error
    return ConfidenceInterval(mean - half, mean + half)
