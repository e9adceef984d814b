"""The corruptions of ImageNet-C and CIFAR-C, reimplemented from their definitions, on scipy and Pillow.

Hendrycks & Dietterich, "Benchmarking neural network robustness to common corruptions and perturbations", ICLR 2019
(arXiv 1903.12261); the constants are those of the authors' ``ImageNet-C/imagenet_c`` and ``create_c/make_cifar_c.py``
(https://github.com/hendrycks/robustness). Their photographs of frost are not here: :func:`frost` is given some.

Each function takes an image as float64 ``[height, width, channels]`` in [0, 1], one channel or three, the constants of
a severity and a random generator, and returns an array of the same shape, not yet clipped.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy import ndimage

from hydractl.families.pixels import in_mode

Pixels = npt.NDArray[np.float64]
_Random = np.random.RandomState
Corruption = Callable[[Pixels, Any, _Random], Pixels]


class Severities(NamedTuple):
    """One corruption and its constants for severities 1 to 5.

    Attributes:
        apply: the function; it takes an image, the constants of one severity and a random generator.
        large: the constants of ImageNet-C.
        small: those of CIFAR-C.
    """

    apply: Corruption
    large: tuple[Any, ...]
    small: tuple[Any, ...]


TABLE: dict[str, Severities] = {}
"""Every corruption, by the names of :data:`hydractl.expressions.data_sets.CORRUPTIONS` and in their order."""


def _corruption(*, large: tuple[Any, ...], small: tuple[Any, ...]) -> Callable[[Corruption], Corruption]:
    """Return a decorator that enters a function into :data:`TABLE` under its name.

    Args:
        large: its constants for severities 1 to 5 in ImageNet-C.
        small: those in CIFAR-C.
    """

    def declare(apply: Corruption) -> Corruption:
        TABLE[apply.__name__] = Severities(apply, large, small)
        return apply

    return declare


@_corruption(
    large=(0.08, 0.12, 0.18, 0.26, 0.38),
    small=(0.04, 0.06, 0.08, 0.09, 0.10),
)
def gaussian_noise(x: Pixels, scale: float, random: _Random) -> Pixels:
    """Add normal noise of standard deviation ``scale`` to every value."""
    noise = random.normal(scale=scale, size=x.shape)
    return x + noise


@_corruption(
    large=(60, 25, 12, 5, 3),
    small=(500, 250, 100, 75, 50),
)
def shot_noise(x: Pixels, photons: float, random: _Random) -> Pixels:
    """Count photons with Poisson noise, ``photons`` of them at white: the variance is ``x / photons``."""
    counts = random.poisson(x * photons)
    return counts / photons


@_corruption(
    large=(0.03, 0.06, 0.09, 0.17, 0.27),
    small=(0.01, 0.02, 0.03, 0.05, 0.07),
)
def impulse_noise(x: Pixels, amount: float, random: _Random) -> Pixels:
    """Set a share ``amount`` of all values to 0 or 1, half of them each."""
    drawn = random.uniform(size=x.shape)
    is_replaced = drawn < amount
    is_black = drawn < amount / 2
    salted = np.where(is_replaced, 1.0, x)
    return np.where(is_black, 0.0, salted)


@_corruption(
    large=((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    small=((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
)
def defocus_blur(x: Pixels, constants: tuple[float, float], random: _Random) -> Pixels:
    """Blur with a disk, itself smoothed a little at its edge; (radius and sigma of the smoothing in pixels)."""
    radius, smoothing = constants
    # The sizes of the two kernels are the authors'.
    disk_reach = 8
    bell_reach = 1
    if radius > 8:
        disk_reach = int(radius)
        bell_reach = 2
    disk = _disk(radius, disk_reach)
    bell = _bell(np.arange(-bell_reach, bell_reach + 1), smoothing)
    bell_in_two_directions = bell[:, None] * bell[None, :]
    disk_as_image = disk[..., None]  # of one channel, [side, side, 1]
    smooth_disk = filtered(disk_as_image, bell_in_two_directions)
    return filtered(x, smooth_disk[..., 0])


def _disk(radius: float, reach: int) -> Pixels:
    """Return a kernel ``[2 * reach + 1, 2 * reach + 1]`` of equal weights within a radius, whose sum is 1."""
    squares = np.arange(-reach, reach + 1) ** 2
    squared_distances = squares[:, None] + squares[None, :]  # of each place from the centre
    is_inside = squared_distances <= radius**2
    weights = is_inside.astype(np.float64)
    return weights / weights.sum()


@_corruption(
    large=((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    small=((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
)
def glass_blur(x: Pixels, constants: tuple[float, int, int], random: _Random) -> Pixels:
    """Smooth, then replace pixel after pixel by one nearby, then smooth again; (sigma, distance, rounds).

    The authors mean to swap the two pixels; their code copies the one over the other, and so made ImageNet-C.
    """
    sigma, distance, rounds = constants
    height, width, channels = x.shape
    # They cut the smoothed image down to 8 bits.
    levels = np.clip(smoothed(x, sigma), 0, 1) * 255
    eight_bits = np.floor(levels) / 255
    origins = _origins_of_pixels(height, width, distance, rounds, random)
    pixels = eight_bits.reshape(-1, channels)
    shuffled = pixels[origins]  # [height * width, channels]
    return smoothed(shuffled.reshape(x.shape), sigma)


def _origins_of_pixels(height: int, width: int, distance: int, rounds: int, random: _Random) -> list[int]:
    """Replace pixel after pixel by one nearby, and return which pixel is at each place then.

    Args:
        height, width: of the image.
        distance: how far at most a pixel is from the one it replaces, in rows and in columns.
        rounds: how often all pixels are gone through.
        random: draws the pixels nearby.

    Returns:
        ``[height * width]``: for each place the pixel of the image that is there now, both counted row by row.
    """
    # All are replaced but those at the border, from the last one to the first, as the authors' loops go.
    rows = np.arange(height - distance, distance, -1)
    columns = np.arange(width - distance, distance, -1)
    places = rows[:, None] * width + columns[None, :]
    replaced = places.ravel()

    origins = list(range(height * width))
    for _ in range(rounds):
        shifts = random.randint(-distance, distance, size=(len(replaced), 2))
        right, down = shifts.T
        nearby = replaced + down * width + right
        # One after another: the pixel nearby may itself have been replaced already.
        for place, neighbour in zip(replaced.tolist(), nearby.tolist(), strict=True):
            origins[place] = origins[neighbour]
    return origins


@_corruption(
    large=((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    small=((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
)
def motion_blur(x: Pixels, constants: tuple[float, float], random: _Random) -> Pixels:
    """Blur with half a normal bell of (radius, sigma) pixels, in a direction within 45 degrees of the horizontal."""
    radius, sigma = constants
    angle = random.uniform(-45, 45)
    return shifted_along(x, radius, sigma, angle)


@_corruption(
    large=((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
    small=((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
)
def zoom_blur(x: Pixels, constants: tuple[float, float], random: _Random) -> Pixels:
    """Average the image and itself enlarged by 1, 1 + step, ... below the end; (end, step)."""
    end, step = constants
    factors = np.arange(1, end, step)
    total_of_enlarged = np.zeros_like(x)
    for factor in factors:
        total_of_enlarged += zoomed(x, float(factor))
    total = x + total_of_enlarged
    return total / (len(factors) + 1)


@_corruption(
    large=(
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ),
    small=(
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
)
def snow(x: Pixels, constants: tuple[float, ...], random: _Random) -> Pixels:
    """Whiten the image and add flakes: enlarged normal noise above a threshold, blown along.

    The constants: mean, deviation, enlargement and threshold of the noise, radius and sigma of the blowing in pixels,
    and the share of the image that is not whitened.
    """
    mean, deviation, zoom, threshold, radius, sigma, unchanged_share = constants
    height, width, _ = x.shape

    noise = random.normal(loc=mean, scale=deviation, size=(height, width, 1))
    enlarged = zoomed(noise, zoom)
    above_threshold = np.where(enlarged < threshold, 0.0, enlarged)
    flakes = np.clip(above_threshold, 0, 1)
    angle = random.uniform(-135, -45)
    blown = shifted_along(flakes, radius, sigma, angle)
    upside_down = blown[::-1, ::-1]

    whitened = _whitened(x, unchanged_share)
    return whitened + blown + upside_down


def _whitened(x: Pixels, unchanged_share: float) -> Pixels:
    """Mix an image with one in which dark and colourful pixels are replaced by light grey ones."""
    light_grey = _grey_values(x) * 1.5 + 0.5
    lightened = np.maximum(x, light_grey)
    return unchanged_share * x + (1 - unchanged_share) * lightened


def _grey_values(x: Pixels) -> Pixels:
    """Return an image in grey, ``[height, width, 1]``, by the weights of ITU-R BT.601."""
    if x.shape[2] == 1:
        return x
    red, green, blue = np.split(x, 3, axis=2)
    weighted_red = 0.299 * red
    weighted_green = 0.587 * green
    weighted_blue = 0.114 * blue
    return weighted_red + weighted_green + weighted_blue


@_corruption(
    large=((1, 0.4, 1), (0.8, 0.6, 1), (0.7, 0.7, 1), (0.65, 0.7, 1), (0.6, 0.75, 1)),
    small=((1, 0.2, 5), (1, 0.3, 5), (0.9, 0.4, 5), (0.85, 0.4, 5), (0.75, 0.45, 5)),
)
def frost(x: Pixels, constants: tuple[float, float, int, Sequence[Image.Image]], random: _Random) -> Pixels:
    """Add a part of a photograph of frost; (share of the image, of the frost, every n-th pixel, photographs).

    The authors reduce the photographs to a fifth for small images, linearly between pixels without smoothing: that
    takes the middle one of every five pixels.
    """
    image_share, frost_share, stride, photographs = constants
    height, width, channels = x.shape

    number = random.randint(len(photographs))
    photograph = photographs[number]
    mode = "L" if channels == 1 else "RGB"
    photograph = in_mode(photograph, mode)
    photograph = _covering(photograph, stride * width, stride * height)
    middle = stride // 2
    pixels = np.asarray(photograph)[middle::stride, middle::stride]
    part = _random_part(pixels, height, width, random)
    frosted = part.reshape(x.shape)  # [height, width] of a grey one -> [height, width, 1]
    return image_share * x + frost_share * frosted / 255


def _random_part(pixels: npt.NDArray[Any], height: int, width: int, random: _Random) -> npt.NDArray[Any]:
    """Cut a part of this size out of a larger image, at a random place."""
    free_height = pixels.shape[0] - height
    free_width = pixels.shape[1] - width
    top = random.randint(free_height + 1)
    left = random.randint(free_width + 1)
    return pixels[top : top + height, left : left + width]


def _covering(photograph: Image.Image, width: int, height: int) -> Image.Image:
    """Enlarge a photograph until it has at least so many pixels in both directions; return a larger one as it is."""
    horizontal = width / photograph.width
    vertical = height / photograph.height
    factor = max(1.0, horizontal, vertical)
    if factor == 1:
        return photograph
    larger_width = math.ceil(photograph.width * factor)
    larger_height = math.ceil(photograph.height * factor)
    larger_size = (larger_width, larger_height)
    return photograph.resize(larger_size, Image.Resampling.BILINEAR)


@_corruption(
    large=((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    small=((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
)
def fog(x: Pixels, constants: tuple[float, float], random: _Random) -> Pixels:
    """Add a plasma fractal, and keep the brightness of the image; (brightness of the fog, decay of :func:`plasma`)."""
    amount, decay = constants
    height, width, _ = x.shape
    brightest = x.max()
    fractal = plasma(height, width, decay, random)
    foggy = x + amount * fractal[..., None]
    return foggy * brightest / (brightest + amount)


@_corruption(
    large=(0.1, 0.2, 0.3, 0.4, 0.5),
    small=(0.05, 0.1, 0.15, 0.2, 0.3),
)
def brightness(x: Pixels, amount: float, random: _Random) -> Pixels:
    """Raise the value of HSV by ``amount``; hue and saturation are kept."""
    value = x.max(axis=2, keepdims=True)
    raised = np.clip(value + amount, 0, 1)
    is_coloured = value > 0
    divisor = np.where(is_coloured, value, 1)
    brighter = x * (raised / divisor)
    # A black pixel has no hue: it becomes grey.
    return np.where(is_coloured, brighter, raised)


@_corruption(
    large=(0.4, 0.3, 0.2, 0.1, 0.05),
    small=(0.75, 0.5, 0.4, 0.3, 0.15),
)
def contrast(x: Pixels, share: float, random: _Random) -> Pixels:
    """Draw every value towards the mean of its channel; ``share`` of the distance is left."""
    mean = x.mean(axis=(0, 1), keepdims=True)  # [1, 1, channels]
    distance = x - mean
    return distance * share + mean


# ImageNet-C's constants are written for a side of 244 where its images have 224.
_LARGER = 244 / 224


@_corruption(
    large=(
        (2 * _LARGER, 0.7 * _LARGER, 0.1 * _LARGER),
        (2 * _LARGER, 0.08 * _LARGER, 0.2 * _LARGER),
        (0.05 * _LARGER, 0.01 * _LARGER, 0.02 * _LARGER),
        (0.07 * _LARGER, 0.01 * _LARGER, 0.02 * _LARGER),
        (0.12 * _LARGER, 0.01 * _LARGER, 0.02 * _LARGER),
    ),
    small=((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
)
def elastic_transform(x: Pixels, constants: tuple[float, float, float], random: _Random) -> Pixels:
    """Apply a random affine map, then shift each pixel by a smooth random field.

    The constants, each a share of the image's shorter side: the largest shift, the sigma by which the shifts are
    smoothed (0: not at all), and how far the affine map moves a point at most.
    """
    strength, smoothness, affine = constants
    height, width, _ = x.shape
    side = min(height, width)
    moved = _randomly_mapped(x, side * affine, random)

    shifts = random.uniform(-1, 1, size=(2, height, width))  # to the right, and down
    if smoothness > 0:
        sigma = side * smoothness
        sigmas = (0, sigma, sigma)  # none between the two directions
        shifts = ndimage.gaussian_filter(shifts, sigmas, mode="reflect", truncate=3)
    right, down = shifts * (side * strength)

    rows, columns = _grid(height, width)
    shown_rows = rows + down
    shown_columns = columns + right
    return warped(moved, shown_rows, shown_columns, mode="reflect")


def _randomly_mapped(x: Pixels, most: float, random: _Random) -> Pixels:
    """Apply an affine map that moves each of three points near the middle by up to ``most`` pixels in x and in y."""
    height, width, _ = x.shape
    corners = _three_corners(height, width)
    moved_corners = corners + random.uniform(-most, most, size=corners.shape)
    is_one_point = min(height, width) < 3
    if is_one_point:  # no map is known by it; the numbers are drawn all the same
        return x

    # The map leads from a place in the result back to the place in the image that it shows: [x, y, 1] @ back.
    moved_with_ones = np.column_stack([moved_corners, np.ones(3)])
    back = np.linalg.solve(moved_with_ones, corners)  # [3, 2]
    x_by_x, x_by_y, x_shift = back[:, 0]
    y_by_x, y_by_y, y_shift = back[:, 1]
    rows, columns = _grid(height, width)
    shown_columns = columns * x_by_x + rows * x_by_y + x_shift
    shown_rows = columns * y_by_x + rows * y_by_y + y_shift
    return warped(x, shown_rows, shown_columns, mode="mirror")


def _three_corners(height: int, width: int) -> Pixels:
    """Return three corners of a square around the middle of an image, ``(x, y)`` each: float64 ``[3, 2]``.

    They are a third of the shorter side from the middle, in x and in y; of an image with a side below 3, they are one
    point.
    """
    reach = min(height, width) // 3
    top = height // 2 - reach
    bottom = height // 2 + reach
    left = width // 2 - reach
    right = width // 2 + reach
    corners = [(right, bottom), (right, top), (left, top)]
    return np.array(corners, dtype=np.float64)


def _grid(height: int, width: int) -> tuple[Pixels, Pixels]:
    """Return the row and the column of each pixel, float64 ``[height, width]`` each."""
    grid = np.mgrid[:height, :width]
    rows, columns = grid.astype(np.float64)
    return rows, columns


@_corruption(
    large=(0.6, 0.5, 0.4, 0.3, 0.25),
    small=(0.95, 0.9, 0.85, 0.75, 0.65),
)
def pixelate(x: Pixels, share: float, random: _Random) -> Pixels:
    """Reduce the image to a share of its sides and enlarge it again, by boxes."""
    image = to_image(x)
    width = int(image.width * share)
    height = int(image.height * share)
    small_size = (max(1, width), max(1, height))
    small = image.resize(small_size, Image.Resampling.BOX)
    enlarged = small.resize(image.size, Image.Resampling.BOX)
    return to_pixels(enlarged)


@_corruption(
    large=(25, 18, 15, 10, 7),
    small=(80, 65, 58, 50, 40),
)
def jpeg_compression(x: Pixels, quality: int, random: _Random) -> Pixels:
    """Write the image as JPEG and read it back; the bits depend on the JPEG library of this Pillow."""
    with io.BytesIO() as file:
        to_image(x).save(file, "JPEG", quality=quality)
        compressed = Image.open(file)
        return to_pixels(compressed)


def filtered(x: Pixels, kernel: Pixels) -> Pixels:
    """Correlate an image with a kernel ``[rows, columns]``; beyond the border the image is reflected."""
    kernel_of_each_channel = kernel[..., None]  # [rows, columns, 1]
    correlated = ndimage.correlate(x, kernel_of_each_channel, mode="mirror")
    return np.asarray(correlated)


def smoothed(x: Pixels, sigma: float) -> Pixels:
    """Smooth an image in both directions by a Gaussian; the edge pixels are repeated beyond the border."""
    sigmas = (sigma, sigma, 0)  # rows, columns, and none between channels
    return np.asarray(ndimage.gaussian_filter(x, sigmas, mode="nearest"))


def zoomed(x: Pixels, factor: float) -> Pixels:
    """Enlarge the middle of an image to the size of the whole, linearly between the centres of its corner pixels."""
    height, width, _ = x.shape
    small_height = math.ceil(height / factor)
    small_width = math.ceil(width / factor)
    middle = _middle(x, small_height, small_width)
    factors = (factor, factor, 1)  # rows, columns, channels
    enlarged = ndimage.zoom(middle, factors, order=1, mode="nearest")
    # Rounding may have made it a little larger than the image.
    return np.asarray(_middle(enlarged, height, width))


def _middle(x: Pixels, height: int, width: int) -> Pixels:
    """Cut a part of ``height`` times ``width`` pixels out of the middle of an image."""
    full_height, full_width, _ = x.shape
    top = (full_height - height) // 2
    left = (full_width - width) // 2
    rows = slice(top, top + height)
    columns = slice(left, left + width)
    return x[rows, columns]


def warped(x: Pixels, rows: Pixels, columns: Pixels, mode: str) -> Pixels:
    """Return the values at places between pixels, linear in both directions.

    Args:
        x: ``[height, width, channels]``.
        rows, columns: the place each pixel of the result is taken from, ``[height, width]`` each.
        mode: what lies beyond the border, by scipy's names.

    Returns:
        The warped image, ``[height, width, channels]``.
    """
    warped_channels = []
    for channel in np.moveaxis(x, 2, 0):
        values = ndimage.map_coordinates(channel, [rows, columns], order=1, mode=mode)
        warped_channels.append(values)
    return np.stack(warped_channels, axis=-1)


def shifted_along(x: Pixels, radius: float, sigma: float, angle: float) -> Pixels:
    """Blur as ImageMagick does: with one half of a normal bell along a direction, at whole pixels.

    Args:
        x: ``[height, width, channels]``; the edge pixels are repeated beyond the border.
        radius: the reach is ``2 * ceil(radius)`` pixels.
        sigma: of the bell, in pixels.
        angle: in degrees; 0 is to the right.

    Returns:
        The blurred image, ``[height, width, channels]``.
    """
    reach = 2 * math.ceil(radius)
    distances = np.arange(reach + 1)
    weights = _bell(distances, sigma)
    direction = math.radians(angle)
    steps_down = _nearest_integers(distances * math.sin(direction))
    steps_right = _nearest_integers(distances * math.cos(direction))

    # Each pixel is a weighted sum of those that stand behind it in this direction.
    blurred = np.zeros_like(x)
    for distance, weight in enumerate(weights):
        shifted = _shifted(x, steps_down[distance], steps_right[distance])
        blurred += weight * shifted
    return blurred


def _shifted(x: Pixels, down: int, right: int) -> Pixels:
    """Return an image whose pixels are taken so many rows below and columns to the right, its edges repeated."""
    height, width, _ = x.shape
    last_row = height - 1
    last_column = width - 1
    rows = np.clip(np.arange(height) + down, 0, last_row)
    columns = np.clip(np.arange(width) + right, 0, last_column)
    return x[rows][:, columns]


def _bell(distances: npt.NDArray[np.int_], sigma: float) -> Pixels:
    """Return the weights of a normal distribution at some distances from its mean; their sum is 1."""
    exponents = -(distances**2) / (2 * sigma**2)
    weights = np.exp(exponents)
    total = weights.sum()
    return weights / total


def _nearest_integers(values: npt.NDArray[Any]) -> npt.NDArray[np.int_]:
    """Round to the nearest integers, halves downwards."""
    nearest = np.ceil(values - 0.5)
    return nearest.astype(int)


def plasma(height: int, width: int, decay: float, random: np.random.RandomState) -> Pixels:
    """Draw a height map by the diamond-square algorithm on a torus, scaled to 0 .. 1: ``[height, width]``.

    The amplitude of the noise is divided by ``decay`` squared from one scale to the next finer one.
    """
    # The smallest power of two that the map fits into.
    size = 2
    while size < max(height, width):
        size *= 2
    field = np.zeros((size, size))
    step = size
    amplitude = 1.0
    while step >= 2:
        _refine(field, step, amplitude, random)
        step //= 2
        amplitude /= decay**2
    lowest = field.min()
    highest = field.max()
    part = field[:height, :width]
    return np.asarray((part - lowest) / (highest - lowest))


def _refine(field: Pixels, step: int, amplitude: float, random: np.random.RandomState) -> None:
    """Fill in the points of a map halfway between those that are ``step`` apart, in place.

    Each is the mean of its four neighbours and some noise. First come the middles of squares, between their four
    corners; then the middles of edges, between their two ends and the middles of the squares on either side.

    Args:
        field: the map ``[size, size]``, a torus; its points at every ``step``-th row and column are there: the corners.
        step: a power of two.
        amplitude: of the noise.
        random: where the noise is drawn from.
    """

    def noisy_mean(total_of_four: Pixels) -> Pixels:
        """Return the mean of four neighbours, given their sum, with noise added."""
        noise = random.uniform(-1, 1, size=total_of_four.shape)
        mean = total_of_four / 4
        return mean + amplitude * noise

    half = step // 2
    corners = field[::step, ::step]

    # The middle of each square.
    lower_corners = np.roll(corners, -1, axis=0)
    left_sides = corners + lower_corners
    right_sides = np.roll(left_sides, -1, axis=1)
    centres = noisy_mean(left_sides + right_sides)
    field[half::step, half::step] = centres

    # The middle of each horizontal edge: its ends, and the squares below and above.
    right_corners = np.roll(corners, -1, axis=1)
    ends = corners + right_corners
    squares_above = np.roll(centres, 1, axis=0)
    total = ends + centres + squares_above
    field[::step, half::step] = noisy_mean(total)

    # The middle of each vertical edge: its ends, and the squares to its right and left.
    ends = corners + lower_corners
    squares_to_the_left = np.roll(centres, 1, axis=1)
    total = ends + centres + squares_to_the_left
    field[half::step, ::step] = noisy_mean(total)


def to_pixels(image: Image.Image) -> Pixels:
    """Return an ``L`` or ``RGB`` image as float64 ``[height, width, channels]`` in [0, 1]."""
    pixels = np.asarray(image, dtype=np.float64) / 255
    if pixels.ndim == 2:
        pixels = pixels[..., None]  # [height, width] -> [height, width, 1]
    return pixels


def to_image(x: Pixels) -> Image.Image:
    """Return the nearest 8-bit image, ``L`` for one channel, ``RGB`` for three."""
    levels = np.clip(x, 0, 1) * 255
    values = np.rint(levels).astype(np.uint8)
    if values.shape[2] == 1:
        values = values[..., 0]  # [height, width, 1] -> [height, width]
    return Image.fromarray(values)
