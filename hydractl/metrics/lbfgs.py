"""Minimising a smooth convex function of many variables: L-BFGS with backtracking.

Source: Nocedal and Wright 2006, algorithms 7.4 and 7.5 (two-loop recursion) and 3.1 (backtracking). Written out because
scipy is no requirement of hydractl.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hydractl.metrics.probabilities import Floats

_MEMORY = 10
_SUFFICIENT = 1e-4


def minimize(
    objective: Callable[[Floats], tuple[float, Floats]], start: Floats, *, tolerance: float = 1e-8, steps: int = 500
) -> Floats:
    """The point of lowest value, [D].

    Ends when the largest entry of the gradient is at most ``tolerance``, when no step along the direction lowers the
    value any more (it is as low as float64 shows), or after ``steps`` steps. The value never rises.

    Args:
        objective: of a point [D], the value and the gradient [D].
        start: where to begin, [D].
        tolerance: in units of the value for one unit of a variable.
        steps: how many steps at most.
    """
    point = np.array(start, dtype=np.float64)
    value, gradient = objective(point)
    history: list[tuple[Floats, Floats, float]] = []
    for _ in range(steps):
        if np.abs(gradient).max() <= tolerance:
            break
        direction = -_inverse_hessian_times(history, gradient)
        slope = float(direction @ gradient)
        length = 1.0 if history else 1.0 / max(1.0, float(np.abs(gradient).sum()))
        for _ in range(60):
            following = point + length * direction
            new_value, new_gradient = objective(following)
            if new_value <= value + _SUFFICIENT * length * slope and new_value < value:
                break
            length /= 2
        else:
            break
        moved, turned = following - point, new_gradient - gradient
        along = float(moved @ turned)
        # Of a convex function it cannot be negative; where it is rounding, it says nothing of the curvature.
        if along > 1e-12 * float(turned @ turned):
            history = [*history[1 - _MEMORY :], (moved, turned, along)]
        point, value, gradient = following, new_value, new_gradient
    return point


def _inverse_hessian_times(history: list[tuple[Floats, Floats, float]], gradient: Floats) -> Floats:
    """The two-loop recursion over the last steps; the gradient itself without any."""
    result = gradient.copy()
    factors = []
    for moved, turned, along in reversed(history):
        factors.append(float(moved @ result) / along)
        result -= factors[-1] * turned
    if history:
        _, turned, along = history[-1]
        result *= along / float(turned @ turned)
    for (moved, turned, along), factor in zip(history, reversed(factors), strict=True):
        result += (factor - float(turned @ result) / along) * moved
    return result
