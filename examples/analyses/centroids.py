"""How far a head tells ID from OOD samples apart: the distance between their centroids (paper B.2.1, Table 5)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class CentroidDistances:
    """Of each head, how far the mean of the OOD samples lies from that of the ID samples.

    Attributes:
        euclidean: ``[heads]``, in the units of the head's output.
        mahalanobis: ``[heads]``, in standard deviations of the ID samples.
    """

    euclidean: Floats
    mahalanobis: Floats


def centroid_distances(inside: npt.NDArray[np.floating], outside: npt.NDArray[np.floating]) -> CentroidDistances:
    """The distances of every head: ``|c_id - c_ood|`` and ``sqrt((c_id - c_ood) S^+ (c_id - c_ood)^T)``.

    S is the covariance of the ID samples, shrunk as Ledoit and Wolf have it (2004, doi 10.1016/S0047-259X(03)00096-4),
    and S^+ its pseudo-inverse: a head that says the same to all ID samples has no distance along what it never says.

    Args:
        inside: outputs for ID samples, ``[N, heads, head_dim]`` with N > 1, finite.
        outside: outputs for OOD samples, ``[K, heads, head_dim]`` with K > 0, finite.

    Returns:
        One distance of each kind a head.
    """
    from sklearn.covariance import ledoit_wolf

    gap = outside.mean(axis=0, dtype=np.float64) - inside.mean(axis=0, dtype=np.float64)  # [heads, head_dim]
    squared = np.empty(len(gap))
    for head, difference in enumerate(gap):
        covariance, _ = ledoit_wolf(inside[:, head].astype(np.float64))
        squared[head] = difference @ np.linalg.pinv(np.atleast_2d(covariance), hermitian=True) @ difference
    # Rounding may leave a distance of zero a little below it.
    return CentroidDistances(np.linalg.norm(gap, axis=1), np.sqrt(np.maximum(squared, 0.0)))
