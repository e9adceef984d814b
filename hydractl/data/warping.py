"""What the corruptions of images are made of: filters, zooms, warps and fractals, in float64 and without a library.

Images are ``[height, width, channels]``. Sums run in a fixed order and without BLAS, so that results do not depend on
the number of threads.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.float64]

# numpy's names: "reflect" is d c b | a b c d | c b a, "symmetric" is d c b a | a b c d | d c b a.
Border = Literal["reflect", "symmetric"]


def filtered(x: Pixels, kernel: Pixels) -> Pixels:
    """Correlation with a kernel of odd sides, by the Fourier transform; beyond the border the image is reflected.

    Args:
        x: ``[height, width, channels]``.
        kernel: ``[rows, columns]``.
    """
    above, left = kernel.shape[0] // 2, kernel.shape[1] // 2
    height, width = x.shape[:2]
    rows = _inside(np.arange(-above, height + above), height, "reflect")
    columns = _inside(np.arange(-left, width + left), width, "reflect")
    padded = x[rows][:, columns]
    shape = padded.shape[:2]
    spectrum = np.fft.rfft2(padded, axes=(0, 1)) * np.conj(np.fft.rfft2(kernel, shape))[..., None]
    return np.asarray(np.fft.irfft2(spectrum, shape, axes=(0, 1))[:height, :width])


def smoothed(x: Pixels, sigma: float) -> Pixels:
    """An image smoothed by a normal bell, cut at 4 sigma; beyond the border its edge goes on."""
    reach = int(4 * sigma + 0.5)
    offsets = np.arange(-reach, reach + 1)
    weights = np.exp(-(offsets**2) / (2 * sigma**2))
    weights /= weights.sum()
    for axis in (0, 1):
        places = np.arange(x.shape[axis])
        taken = (np.take(x, np.clip(places + offset, 0, len(places) - 1), axis) for offset in offsets)
        x = np.asarray(sum(weight * part for weight, part in zip(weights, taken, strict=True)))
    return x


def shifted_along(x: Pixels, radius: float, sigma: float, angle: float) -> Pixels:
    """The motion blur of ImageMagick: one half of a normal bell along a direction, at whole pixels.

    Args:
        x: ``[height, width, channels]``; beyond the border its edge goes on.
        radius: the reach is ``2 * ceil(radius)`` pixels.
        sigma: of the bell, in pixels.
        angle: in degrees; 0 is to the right.
    """
    places = np.arange(2 * math.ceil(radius) + 1)
    weights = np.exp(-(places**2) / (2 * sigma**2))
    weights /= weights.sum()
    direction = math.radians(angle)
    down = np.ceil(places * math.sin(direction) - 0.5).astype(int)
    right = np.ceil(places * math.cos(direction) - 0.5).astype(int)
    rows, columns = np.arange(x.shape[0]), np.arange(x.shape[1])
    found = np.zeros_like(x)
    for weight, dy, dx in zip(weights, down, right, strict=True):
        found += weight * x[np.clip(rows + dy, 0, x.shape[0] - 1)][:, np.clip(columns + dx, 0, x.shape[1] - 1)]
    return found


def zoomed(x: Pixels, factor: float) -> Pixels:
    """The middle of an image, enlarged to the size of the whole, linearly between the centres of its corner pixels."""
    for axis in (0, 1):
        length = x.shape[axis]
        taken = math.ceil(length / factor)
        start = (length - taken) // 2
        made = round(taken * factor)
        trim = (made - length) // 2
        step = (taken - 1) / (made - 1) if made > 1 else 0.0
        x = _linear(x, start + (np.arange(length) + trim) * step, axis)
    return x


def _linear(x: Pixels, places: Pixels, axis: int) -> Pixels:
    """Values between the pixels of one axis; places lie within it."""
    low = np.clip(np.floor(places).astype(int), 0, x.shape[axis] - 1)
    high = np.minimum(low + 1, x.shape[axis] - 1)
    share = (places - low).reshape([-1 if a == axis else 1 for a in range(x.ndim)])
    return np.take(x, low, axis) * (1 - share) + np.take(x, high, axis) * share


def warped(x: Pixels, rows: Pixels, columns: Pixels, mode: Border) -> Pixels:
    """The values at places between pixels, linear in both directions.

    Args:
        x: ``[height, width, channels]``.
        rows, columns: the place each pixel of the result is taken from, ``[height, width]`` each.
        mode: what lies beyond the border.
    """
    top, left = np.floor(rows), np.floor(columns)
    down, right = (rows - top)[..., None], (columns - left)[..., None]
    row = [_inside(top.astype(int) + step, x.shape[0], mode) for step in (0, 1)]
    column = [_inside(left.astype(int) + step, x.shape[1], mode) for step in (0, 1)]
    above = x[row[0], column[0]] * (1 - right) + x[row[0], column[1]] * right
    below = x[row[1], column[0]] * (1 - right) + x[row[1], column[1]] * right
    return np.asarray(above * (1 - down) + below * down)


def _inside(places: npt.NDArray[np.int_], length: int, mode: Border) -> npt.NDArray[np.int_]:
    """Places beyond the border, at any distance, folded back to ``0 .. length - 1``."""
    if length == 1:
        return np.zeros_like(places)
    period = 2 * length if mode == "symmetric" else 2 * (length - 1)
    folded = places % period
    return np.where(folded < length, folded, period - folded - (mode == "symmetric"))


def blurred(field: Pixels, sigma: float) -> Pixels:
    """A field ``[height, width]`` smoothed by a normal bell, cut at 3 sigma; beyond the border it is mirrored."""
    if sigma <= 0:
        return field
    for _ in range(2):
        field = np.einsum("ij,jk->ki", _smoothing(field.shape[0], sigma), field)  # transposed, for the other axis
    return field


@lru_cache(maxsize=8)
def _smoothing(length: int, sigma: float) -> Pixels:
    """What each of the values of a line takes of the others: ``[length, length]``, read-only."""
    reach = int(3 * sigma + 0.5)
    offsets = np.arange(-reach, reach + 1)
    weights = np.exp(-(offsets**2) / (2 * sigma**2))
    weights /= weights.sum()
    matrix = np.zeros((length, length))
    places = _inside(np.arange(length)[:, None] + offsets[None, :], length, "symmetric")
    np.add.at(matrix, (np.repeat(np.arange(length), len(offsets)), places.ravel()), np.tile(weights, length))
    matrix.setflags(write=False)
    return matrix


def plasma(height: int, width: int, decay: float, random: np.random.RandomState) -> Pixels:
    """A height map by the diamond-square algorithm on a torus, scaled to 0 .. 1: ``[height, width]``.

    The amplitude of the noise is divided by ``decay`` squared from one scale to the next finer one.
    """
    size = 2
    while size < max(height, width):
        size *= 2
    field = np.zeros((size, size))
    step, amplitude = size, 1.0
    while step >= 2:
        half = step // 2

        def noisy(total: Pixels, amplitude: float = amplitude) -> Pixels:
            return total / 4 + amplitude * random.uniform(-1, 1, size=total.shape)

        corners = field[::step, ::step]
        squares = corners + np.roll(corners, -1, axis=0)
        field[half::step, half::step] = noisy(squares + np.roll(squares, -1, axis=1))
        centres = field[half::step, half::step]
        beside = corners + np.roll(corners, -1, axis=1)  # left and right of a point on a horizontal edge
        field[::step, half::step] = noisy(beside + centres + np.roll(centres, 1, axis=0))
        beside = corners + np.roll(corners, -1, axis=0)
        field[half::step, ::step] = noisy(beside + centres + np.roll(centres, 1, axis=1))
        step, amplitude = half, amplitude / decay**2
    low, high = field.min(), field.max()
    return np.asarray((field[:height, :width] - low) / (high - low))
