"""Confidence intervals of a share, of a difference of shares, and of a mean, at 95 %."""

from __future__ import annotations

import math
from typing import NamedTuple

from hydractl.metrics.probabilities import Floats

Z_95 = 1.959963984540054
"""The 0.975 quantile of the normal distribution."""


class ConfidenceInterval(NamedTuple):
    """The lower and the upper end of an interval."""

    low: float
    high: float


def share_interval(count: float, total: float) -> ConfidenceInterval:
    """Return Wilson's 95 % score interval of the share ``count / total``; ``total`` is above 0.

    With the share p, n in total and z = 1.96: (p + z^2/2n +- z * sqrt(p(1 - p)/n + z^2/4n^2)) / (1 + z^2/n). For
    example 8 of 10: 0.490 to 0.943.

    The formula is written out because importing scipy.stats would take more than a second of every eval; a test
    compares it with scipy's.

    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference".
    """
    z = Z_95
    # The interval is not symmetric around the share: its middle is pulled towards 1/2.
    share = count / total
    spread = z * z / total  # z^2/n
    middle = share + spread / 2
    variance = share * (1 - share) / total + spread / (4 * total)
    half = z * math.sqrt(variance)
    low = (middle - half) / (1 + spread)
    high = (middle + half) / (1 + spread)

    # With a count of 0 or of all samples one end is exactly 0 or 1; the formula would miss it by rounding.
    if count == 0:
        low = 0.0
    if count == total:
        high = 1.0
    return ConfidenceInterval(low, high)


def share_difference_interval(count: float, total: float, other_count: float, other_total: float) -> ConfidenceInterval:
    """Return the 95 % interval of ``count / total - other_count / other_total``, shares of two sets of samples.

    The sets are independent, and both totals are above 0. For shares of 0.8 (0.490 to 0.943 by itself) and 0.5 (0.237
    to 0.763), each of 10 samples, it is about -0.11 to 0.60.

    Source: Newcombe 1998, "Interval estimation for the difference between independent proportions", method 10: from the
    score intervals of both shares, without a continuity correction.
    """
    share = count / total
    other_share = other_count / other_total
    low, high = share_interval(count, total)
    other_low, other_high = share_interval(other_count, other_total)
    difference = share - other_share
    # The difference is lowest if the first share is lower and the other one higher. Independent errors add as squares.
    below = math.hypot(share - low, other_high - other_share)
    above = math.hypot(high - share, other_share - other_low)
    return ConfidenceInterval(difference - below, difference + above)


def mean_interval(values: Floats) -> ConfidenceInterval:
    """Return the 95 % interval of the mean of values [N], by its standard error; infinite for fewer than two values."""
    n = len(values)
    if n < 2:
        return ConfidenceInterval(-math.inf, math.inf)
    mean = float(values.mean())
    standard_deviation = float(values.std(ddof=1))
    standard_error = standard_deviation / math.sqrt(n)
    half = Z_95 * standard_error
    return ConfidenceInterval(mean - half, mean + half)
