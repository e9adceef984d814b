"""Principal components of what some heads say together (paper B.2.1, Figure 4)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Plane:
    """ID and OOD samples in the plane of their two first principal components.

    Attributes:
        inside: ``[N, 2]``.
        outside: ``[K, 2]``.
        explained: the share of the variance of all samples along each of the two.
    """

    inside: Floats
    outside: Floats
    explained: tuple[float, float]


def principal_plane(inside: npt.NDArray[np.floating], outside: npt.NDArray[np.floating]) -> Plane:
    """Project both sets on the two directions along which all of them together vary most.

    Args:
        inside: outputs of the heads for ID samples, ``[N, heads, head_dim]``: the heads of one sample are one vector.
        outside: the same for OOD samples, ``[K, heads, head_dim]``.

    Returns:
        The samples in that plane; of each direction the component of the largest size is positive.

    Raises:
        ValueError: for fewer than two samples or dimensions.
    """
    together = np.concatenate([inside, outside]).reshape(len(inside) + len(outside), -1).astype(np.float64)
    if min(together.shape) < 2:
        raise ValueError(f"a plane needs two samples and two dimensions, there are {together.shape}")
    together -= together.mean(axis=0)
    _, sizes, directions = np.linalg.svd(together, full_matrices=False)
    axes = directions[:2]
    # A direction is as good as its opposite: the choice must not be left to the linear algebra library.
    axes = axes * np.sign(axes[np.arange(2), np.abs(axes).argmax(axis=1)])[:, None]
    total = float(np.square(sizes).sum())
    first, second = (float(size**2 / total) if total else 0.0 for size in sizes[:2])
    placed = together @ axes.T
    return Plane(placed[: len(inside)], placed[len(inside) :], (first, second))
