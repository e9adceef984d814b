"""The corruptions of ImageNet-C and CIFAR-C, reimplemented from their definitions, on scipy and Pillow.

Hendrycks & Dietterich, "Benchmarking neural network robustness to common corruptions and perturbations", ICLR 2019
(arXiv 1903.12261). The constants come from the authors' ``ImageNet-C/imagenet_c`` and ``create_c/make_cifar_c.py``
(https://github.com/hendrycks/robustness). ``frost`` is not among them, as it is made of their photographs.

Each function takes an image as float64 ``[height, width, channels]`` in [0, 1] with one or three channels, the
constants of one severity, and a random generator. It returns an array of the same shape, not yet clipped.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy import ndimage

Pixels = npt.NDArray[np.float64]
_Random = np.random.RandomState
Corruption = Callable[[Pixels, Any, _Random], Pixels]


class Severities(NamedTuple):
    """One corruption and its constants for severities 1 to 5.

    Attributes:
        apply: the function; it takes an image, the constants of one severity and a random generator.
        large: the constants of ImageNet-C, one entry per severity.
        small: the constants of CIFAR-C, one entry per severity.
    """

    apply: Corruption
    large: tuple[Any, ...]
    small: tuple[Any, ...]


TABLE: dict[str, Severities] = {}
"""All corruptions, by the names of :data:`hydractl.expressions.data_sets.CORRUPTIONS` and in their order."""


def _corruption(*, large: tuple[Any, ...], small: tuple[Any, ...]) -> Callable[[Corruption], Corruption]:
    """Return a decorator that adds a function to :data:`TABLE` under its name.

    Args:
        large: the constants for severities 1 to 5 in ImageNet-C.
        small: the constants for severities 1 to 5 in CIFAR-C.
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
    """Set a share ``amount`` of all values to 0 or 1, half of them each: with 0.1, 5 % become 0 and 5 % become 1."""
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
    """Return an image that is out of focus: blurred with a disk, which is itself smoothed a little at its edge.

    Args:
        x: the image, ``[height, width, channels]`` with values from 0 to 1.
        constants: the radius of the disk, and the standard deviation of its smoothing; both in pixels.
        random: not used.
    """
    radius, smoothing = constants

    # The authors chose these sizes of the two kernels.
    if radius <= 8:
        disk_reach = 8
        bell_reach = 1
    else:
        disk_reach = int(radius)
        bell_reach = 2
    disk = _disk(radius, disk_reach)  # [2 * disk_reach + 1, 2 * disk_reach + 1]

    # Smooth the edge of the disk with a small two-dimensional Gaussian.
    bell = _bell(np.arange(-bell_reach, bell_reach + 1), smoothing)
    bell_in_two_directions = bell[:, None] * bell[None, :]
    disk_as_image = disk[..., None]  # `filtered` takes images: [side, side, 1]
    smooth_disk = filtered(disk_as_image, bell_in_two_directions)
    return filtered(x, smooth_disk[..., 0])


def _disk(radius: float, reach: int) -> Pixels:
    """Return a kernel ``[2 * reach + 1, 2 * reach + 1]``: equal weights within ``radius``, 0 outside; the sum is 1."""
    squares = np.arange(-reach, reach + 1) ** 2
    squared_distances = squares[:, None] + squares[None, :]  # from the centre to each cell of the kernel
    is_inside = squared_distances <= radius**2
    weights = is_inside.astype(np.float64)
    return weights / weights.sum()


@_corruption(
    large=((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    small=((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
)
def glass_blur(x: Pixels, constants: tuple[float, int, int], random: _Random) -> Pixels:
    """Return an image as seen through rough glass: smoothed, pixel after pixel replaced by one nearby, smoothed again.

    The authors mean to swap the two pixels; their code copies the one over the other, and so made ImageNet-C.

    Args:
        x: the image, ``[height, width, channels]`` with values from 0 to 1.
        constants: the standard deviation of the smoothing in pixels, how many rows and columns a pixel may be away from
            its replacement, and how often every pixel is replaced.
        random: draws the replacements.
    """
    sigma, distance, rounds = constants
    height, width, channels = x.shape

    # The authors round the smoothed image down to 8 bits: 0.5 becomes 127 / 255.
    levels = np.clip(smoothed(x, sigma), 0, 1) * 255
    eight_bits = np.floor(levels) / 255

    # Replace the pixels.
    origins = _origins_of_pixels(height, width, distance, rounds, random)
    pixels = eight_bits.reshape(-1, channels)  # [height * width, channels]
    shuffled = pixels[origins]  # [height * width, channels]
    return smoothed(shuffled.reshape(x.shape), sigma)


def _origins_of_pixels(height: int, width: int, distance: int, rounds: int, random: _Random) -> list[int]:
    """Replace each pixel by a random one nearby, one after another, and return where each pixel then comes from.

    Pixels are numbered row by row: pixel ``row * width + column``.

    Args:
        height, width: the size of the image.
        distance: a pixel and its replacement are at most this many rows and this many columns apart.
        rounds: how often every pixel is replaced.
        random: draws the replacements.

    Returns:
        ``[height * width]``: for each pixel of the result, the number of the original pixel that it shows.
    """
    # The authors' loops leave out the pixels at the border, and run from the last pixel to the first.
    rows = np.arange(height - distance, distance, -1)
    columns = np.arange(width - distance, distance, -1)
    numbers = rows[:, None] * width + columns[None, :]  # [rows, columns]
    replaced = numbers.ravel()

    origins = list(range(height * width))  # at first every pixel shows itself
    for _ in range(rounds):
        shifts = random.randint(-distance, distance, size=(len(replaced), 2))
        right, down = shifts.T
        nearby = replaced + down * width + right
        # This loop must run in order, because the pixel nearby may itself have been replaced before.
        for pixel, neighbour in zip(replaced.tolist(), nearby.tolist(), strict=True):
            origins[pixel] = origins[neighbour]
    return origins


@_corruption(
    large=((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    small=((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
)
def motion_blur(x: Pixels, constants: tuple[float, float], random: _Random) -> Pixels:
    """Return an image blurred along a random direction, which is within 45 degrees of the horizontal.

    Args:
        x: the image, ``[height, width, channels]`` with values from 0 to 1.
        constants: radius and standard deviation, in pixels, of the half of a normal bell that weighs the pixels.
        random: draws the direction.
    """
    radius, sigma = constants
    angle = random.uniform(-45, 45)
    return shifted_along(x, radius, sigma, angle)


@_corruption(
    large=((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
    small=((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
)
def zoom_blur(x: Pixels, constants: tuple[float, float], random: _Random) -> Pixels:
    """Return the mean of an image and of its enlargements by 1, 1 + step, 1 + 2 step, ... below the end.

    With (1.05, 0.02) these are enlargements by 1, 1.02 and 1.04, so four images are averaged.

    Args:
        x: the image, ``[height, width, channels]`` with values from 0 to 1.
        constants: the end and the step of the enlargements.
        random: not used.
    """
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
    """Whiten an image ``[height, width, channels]`` and add flakes: enlarged noise above a threshold, blown along.

    The constants: mean, deviation, enlargement and threshold of the noise, radius and sigma of the blowing in pixels,
    and the share of the image that is not whitened.
    """
    mean, deviation, zoom, threshold, radius, sigma, unchanged_share = constants
    height, width, _ = x.shape

    # Flakes: normal noise, enlarged, of which only what exceeds the threshold is kept.
    noise = random.normal(loc=mean, scale=deviation, size=(height, width, 1))  # as one channel
    enlarged = zoomed(noise, zoom)  # [height, width, 1], like all that follows of the flakes
    above_threshold = np.where(enlarged < threshold, 0.0, enlarged)
    flakes = np.clip(above_threshold, 0, 1)

    # Blur the flakes along the wind, and add them once as they are and once turned by 180 degrees.
    angle = random.uniform(-135, -45)
    blown = shifted_along(flakes, radius, sigma, angle)
    upside_down = blown[::-1, ::-1]

    # Mix the image with a lighter copy, in which dark and colourful pixels are replaced by light grey ones.
    light_grey = _grey_values(x) * 1.5 + 0.5  # [height, width, 1]
    lightened = np.maximum(x, light_grey)
    whitened = unchanged_share * x + (1 - unchanged_share) * lightened
    return whitened + blown + upside_down


def _grey_values(x: Pixels) -> Pixels:
    """Return an image as grey values ``[height, width, 1]``, by the weights of ITU-R BT.601."""
    if x.shape[2] == 1:
        return x
    red, green, blue = np.split(x, 3, axis=2)
    return 0.299 * red + 0.587 * green + 0.114 * blue


@_corruption(
    large=((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    small=((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
)
def fog(x: Pixels, constants: tuple[float, float], random: _Random) -> Pixels:
    """Return an image in fog: a random height map (plasma fractal) is added, then all is dimmed by one factor.

    Args:
        x: the image, ``[height, width, channels]`` with values from 0 to 1.
        constants: the brightness of the fog, and how fast its finer structures become fainter.
        random: draws the fog.
    """
    amount, decay = constants
    height, width, _ = x.shape
    brightest = x.max()
    fractal = plasma(height, width, decay, random)
    foggy = x + amount * fractal[..., None]  # the same fog in every channel: [height, width, 1]
    return foggy * brightest / (brightest + amount)


@_corruption(
    large=(0.1, 0.2, 0.3, 0.4, 0.5),
    small=(0.05, 0.1, 0.15, 0.2, 0.3),
)
def brightness(x: Pixels, amount: float, random: _Random) -> Pixels:
    """Return a brighter image: the value of HSV is raised by ``amount``, up to 1; hue and saturation are kept.

    The value of a pixel is its largest channel. ``x`` is ``[height, width, channels]`` with values from 0 to 1.
    """
    value = x.max(axis=2, keepdims=True)
    raised = np.clip(value + amount, 0, 1)
    # Scaling all channels by the same factor raises the value and keeps hue and saturation.
    is_coloured = value > 0
    divisor = np.where(is_coloured, value, 1)
    brighter = x * (raised / divisor)
    # A black pixel has no hue, so it becomes grey.
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


# ImageNet-C's images have a side of 224, but its constants are written for a side of 244.
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

    # A smooth random field of shifts, two numbers for each pixel: to the right, and down.
    noise = random.uniform(-1, 1, size=(2, height, width))  # [2, height, width], like the shifts
    if smoothness > 0:
        sigma = side * smoothness
        sigmas = (0, sigma, sigma)  # no smoothing across the two directions
        shifts = ndimage.gaussian_filter(noise, sigmas, mode="reflect", truncate=3)
    else:
        shifts = noise
    right, down = shifts * (side * strength)

    # Each pixel of the result shows the pixel that lies at the shifted position.
    rows, columns = np.indices((height, width), dtype=np.float64)
    shown_rows = rows + down
    shown_columns = columns + right
    return warped(moved, shown_rows, shown_columns, mode="reflect")


def _randomly_mapped(x: Pixels, most: float, random: _Random) -> Pixels:
    """Apply a random affine map: three points near the middle each move by up to ``most`` pixels in x and in y."""
    height, width, _ = x.shape
    corners = _three_corners(height, width)
    moved_corners = corners + random.uniform(-most, most, size=corners.shape)  # [3, 2], x and y of each
    is_one_point = min(height, width) < 3
    if is_one_point:  # the three points coincide and define no map; the numbers above are drawn anyway
        return x

    # Three pairs of points determine an affine map. Find the one from a position in the result back to the position in
    # the image that it shows there, [x, y, 1] @ back: it takes the moved points to the points themselves.
    moved_with_ones = np.column_stack([moved_corners, np.ones(3)])
    back = np.linalg.solve(moved_with_ones, corners)  # [3, 2]
    x_by_x, x_by_y, x_shift = back[:, 0]
    y_by_x, y_by_y, y_shift = back[:, 1]

    # Apply the map to the position of every pixel.
    rows, columns = np.indices((height, width), dtype=np.float64)
    shown_columns = columns * x_by_x + rows * x_by_y + x_shift
    shown_rows = columns * y_by_x + rows * y_by_y + y_shift
    return warped(x, shown_rows, shown_columns, mode="mirror")


def _three_corners(height: int, width: int) -> Pixels:
    """Return three corners of a square around the middle of an image, ``(x, y)`` each: float64 ``[3, 2]``.

    In x and in y they are a third of the shorter side away from the middle. If a side is below 3, all three are the
    same point.
    """
    reach = min(height, width) // 3
    middle = np.array([width // 2, height // 2], dtype=np.float64)
    return middle + reach * np.array([(1, 1), (1, -1), (-1, -1)])  # lower right, upper right, upper left


@_corruption(
    large=(0.6, 0.5, 0.4, 0.3, 0.25),
    small=(0.95, 0.9, 0.85, 0.75, 0.65),
)
def pixelate(x: Pixels, share: float, random: _Random) -> Pixels:
    """Reduce the image to a share of its sides and enlarge it again, e.g. 224 x 224 by 0.25 to 56 x 56 squares."""
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
    """Correlate every channel of an image with a kernel ``[rows, columns]``; the image is mirrored at its border."""
    kernel_of_each_channel = kernel[..., None]  # [rows, columns, 1]
    correlated = ndimage.correlate(x, kernel_of_each_channel, mode="mirror")
    return np.asarray(correlated)


def smoothed(x: Pixels, sigma: float) -> Pixels:
    """Smooth an image in both directions by a Gaussian; beyond the border the edge pixels are repeated."""
    sigmas = (sigma, sigma, 0)  # for rows, columns and channels: channels are not mixed
    return np.asarray(ndimage.gaussian_filter(x, sigmas, mode="nearest"))


def zoomed(x: Pixels, factor: float) -> Pixels:
    """Enlarge the middle of an image by ``factor`` to the size of the whole, with linear interpolation.

    Positions are interpolated between the centres of the corner pixels.
    """
    height, width, _ = x.shape
    small_height = math.ceil(height / factor)
    small_width = math.ceil(width / factor)
    middle = _middle(x, small_height, small_width)
    factors = (factor, factor, 1)  # rows, columns, channels
    enlarged = ndimage.zoom(middle, factors, order=1, mode="nearest")

    # Rounding may have made the result a little larger than the image.
    return np.asarray(_middle(enlarged, height, width))


def _middle(x: Pixels, height: int, width: int) -> Pixels:
    """Cut a part of ``height`` x ``width`` pixels out of the middle of an image."""
    full_height, full_width, _ = x.shape
    top = (full_height - height) // 2
    left = (full_width - width) // 2
    rows = slice(top, top + height)
    columns = slice(left, left + width)
    return x[rows, columns]


def warped(x: Pixels, rows: Pixels, columns: Pixels, mode: str) -> Pixels:
    """Return an image whose pixels are taken from given positions in ``x``, with linear interpolation between pixels.

    Args:
        x: ``[height, width, channels]``.
        rows, columns: the position in ``x`` that each pixel of the result shows, ``[height, width]`` each.
        mode: how ``x`` continues beyond its border, by scipy's names, e.g. ``reflect``.

    Returns:
        The warped image, ``[height, width, channels]``.
    """
    warped_channels = []
    for channel in np.moveaxis(x, 2, 0):
        values = ndimage.map_coordinates(channel, [rows, columns], order=1, mode=mode)
        warped_channels.append(values)
    return np.stack(warped_channels, axis=-1)


def shifted_along(x: Pixels, radius: float, sigma: float, angle: float) -> Pixels:
    """Blur along a direction as ImageMagick does: by the weights of half a normal bell, at whole pixels.

    Args:
        x: ``[height, width, channels]``; beyond the border the edge pixels are repeated.
        radius: the blur reaches ``2 * ceil(radius)`` pixels far.
        sigma: the standard deviation of the bell, in pixels.
        angle: the direction in degrees; 0 is to the right.

    Returns:
        The blurred image, ``[height, width, channels]``.
    """
    height, width, _ = x.shape
    reach = 2 * math.ceil(radius)
    weights = _bell(np.arange(reach + 1), sigma)
    direction = math.radians(angle)
    padded = np.pad(x, ((reach, reach), (reach, reach), (0, 0)), mode="edge")

    # Each pixel of the result is the weighted sum of the pixels at all distances from it in this direction, in whole
    # pixels; halves are rounded down.
    blurred = np.zeros_like(x)
    for distance, weight in enumerate(weights):
        top = reach + math.ceil(distance * math.sin(direction) - 0.5)
        left = reach + math.ceil(distance * math.cos(direction) - 0.5)
        blurred += weight * padded[top : top + height, left : left + width]
    return blurred


def _bell(distances: npt.NDArray[np.int_], sigma: float) -> Pixels:
    """Return the weights exp(-d^2 / (2 sigma^2)) of a normal distribution at some distances d, scaled to the sum 1."""
    exponents = -(distances**2) / (2 * sigma**2)
    weights = np.exp(exponents)
    total = weights.sum()
    return weights / total


def plasma(height: int, width: int, decay: float, random: np.random.RandomState) -> Pixels:
    """Draw a height map ``[height, width]`` by the diamond-square algorithm on a torus, scaled to 0 .. 1.

    From one scale to the next finer one, the amplitude of the noise is divided by ``decay`` squared.
    """
    # The side of the map: the smallest power of two that is large enough.
    size = 2
    while size < max(height, width):
        size *= 2

    # Fill in the map from coarse to fine.
    field = np.zeros((size, size))
    step = size
    amplitude = 1.0
    while step >= 2:
        _refine(field, step, amplitude, random)
        step //= 2
        amplitude /= decay**2

    # Scale by the extremes of the whole map, and cut out the asked size.
    lowest = field.min()
    highest = field.max()
    part = field[:height, :width]
    return np.asarray((part - lowest) / (highest - lowest))


def _refine(field: Pixels, step: int, amplitude: float, random: np.random.RandomState) -> None:
    """Fill in, in place, the points of a map that lie halfway between known points ``step`` apart.

    This is one round of the diamond-square algorithm. The known points are the corners of squares with side ``step``.
    Each new point is the mean of its four neighbours plus noise. First come the middles of the squares, whose
    neighbours are the four corners. Then come the middles of the edges, whose neighbours are the two ends of the edge
    and the middles of the squares on either side.

    Args:
        field: the map ``[size, size]``, which wraps around at its borders (a torus). The points at every ``step``-th
            row and column are known.
        step: the side of the squares, a power of two.
        amplitude: the amplitude of the noise.
        random: draws the noise.
    """

    def noisy_mean(total_of_four: Pixels) -> Pixels:
        """Return the mean of four neighbours plus noise, from the sum of the four."""
        noise = random.uniform(-1, 1, size=total_of_four.shape)
        mean = total_of_four / 4
        return mean + amplitude * noise

    half = step // 2

    # This array and all arrays below have one value per square: [size / step, size / step].
    corners = field[::step, ::step]  # the top left corner of each square

    # The middle of each square. Rolling by -1 gives the neighbour below (axis 0) or to the right (axis 1).
    lower_corners = np.roll(corners, -1, axis=0)
    left_sides = corners + lower_corners
    right_sides = np.roll(left_sides, -1, axis=1)
    centres = noisy_mean(left_sides + right_sides)
    field[half::step, half::step] = centres

    # The middle of each horizontal edge, from its two ends and the middles of the squares below and above.
    right_corners = np.roll(corners, -1, axis=1)
    horizontal_ends = corners + right_corners
    squares_above = np.roll(centres, 1, axis=0)
    field[::step, half::step] = noisy_mean(horizontal_ends + centres + squares_above)

    # The middle of each vertical edge, from its two ends and the middles of the squares to its right and left.
    vertical_ends = corners + lower_corners
    squares_to_the_left = np.roll(centres, 1, axis=1)
    field[half::step, ::step] = noisy_mean(vertical_ends + centres + squares_to_the_left)


def to_pixels(image: Image.Image) -> Pixels:
    """Return an ``L`` or ``RGB`` image as float64 ``[height, width, channels]`` in [0, 1]."""
    pixels = np.asarray(image, dtype=np.float64) / 255
    if pixels.ndim == 2:
        pixels = pixels[..., None]  # a grey image [height, width] becomes [height, width, 1]
    return pixels


def to_image(x: Pixels) -> Image.Image:
    """Round to 8 bits and return an image, ``L`` for one channel and ``RGB`` for three."""
    levels = np.clip(x, 0, 1) * 255
    values = np.rint(levels).astype(np.uint8)
    if values.shape[2] == 1:
        values = values[..., 0]  # Pillow takes grey images as [height, width]
    return Image.fromarray(values)
