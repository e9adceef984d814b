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
        apply: the function.
        large: the constants of ImageNet-C.
        small: those of CIFAR-C.
    """

    apply: Corruption
    large: tuple[Any, ...]
    small: tuple[Any, ...]


TABLE: dict[str, Severities] = {}
"""Every corruption, by the names of :data:`hydractl.expressions.data_sets.CORRUPTIONS` and in their order."""


def _corruption(*, large: tuple[Any, ...], small: tuple[Any, ...]) -> Callable[[Corruption], Corruption]:
    """Declare the function below as the corruption of its name.

    Args:
        large: the constants that it takes of ImageNet-C, for severities 1 to 5.
        small: those of CIFAR-C.
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
    return x + random.normal(scale=scale, size=x.shape)


@_corruption(
    large=(60, 25, 12, 5, 3),
    small=(500, 250, 100, 75, 50),
)
def shot_noise(x: Pixels, photons: float, random: _Random) -> Pixels:
    """Draw Poisson noise, ``photons`` of them at white: variance ``x / photons``."""
    return random.poisson(x * photons) / photons


@_corruption(
    large=(0.03, 0.06, 0.09, 0.17, 0.27),
    small=(0.01, 0.02, 0.03, 0.05, 0.07),
)
def impulse_noise(x: Pixels, amount: float, random: _Random) -> Pixels:
    """Set a share ``amount`` of all values to 0 or 1, half of them each."""
    drawn = random.uniform(size=x.shape)
    salted = np.where(drawn < amount, 1.0, x)
    return np.where(drawn < amount / 2, 0.0, salted)


@_corruption(
    large=((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    small=((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
)
def defocus_blur(x: Pixels, constants: tuple[float, float], random: _Random) -> Pixels:
    """Blur with a disk of a radius (pixels), itself smoothed a little at its edge."""
    radius, smoothing = constants
    if radius <= 8:
        half_side, edge_reach = 8, 1
    else:
        half_side, edge_reach = int(radius), 2
    places = np.arange(-half_side, half_side + 1)
    squares = places**2
    disk = (squares[:, None] + squares[None, :] <= radius**2).astype(np.float64)
    disk = disk / disk.sum()
    edge = np.arange(-edge_reach, edge_reach + 1)
    bell = np.exp(-(edge**2) / (2 * smoothing**2))
    bell /= bell.sum()
    smooth_disk = filtered(disk[..., None], bell[:, None] * bell[None, :])
    return filtered(x, smooth_disk[..., 0])


@_corruption(
    large=((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    small=((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
)
def glass_blur(x: Pixels, constants: tuple[float, int, int], random: _Random) -> Pixels:
    """Smooth, then replace pixel after pixel by one nearby, then smooth again; (sigma, distance, rounds).

    The authors mean to swap the two pixels; their code copies the one over the other, and so made ImageNet-C.
    """
    sigma, distance, rounds = constants
    # They cut the smoothed image down to 8 bits.
    x = np.floor(np.clip(smoothed(x, sigma), 0, 1) * 255) / 255
    height, width, channels = x.shape
    # Pixels are numbered row by row. All are replaced but those at the border, from the last one to the first, as the
    # authors' loops go.
    rows = np.arange(height - distance, distance, -1)
    columns = np.arange(width - distance, distance, -1)
    replaced = (rows[:, None] * width + columns[None, :]).ravel()
    # origin_of[pixel]: the pixel of the smoothed image that is now there.
    origin_of = list(range(height * width))
    for _ in range(rounds):
        right, down = random.randint(-distance, distance, size=(len(replaced), 2)).T
        nearby = replaced + down * width + right
        # One after another: the pixel nearby may itself have been replaced already.
        for pixel, neighbour in zip(replaced.tolist(), nearby.tolist(), strict=True):
            origin_of[pixel] = origin_of[neighbour]
    shuffled = x.reshape(-1, channels)[origin_of].reshape(x.shape)
    return smoothed(shuffled, sigma)


@_corruption(
    large=((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    small=((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
)
def motion_blur(x: Pixels, constants: tuple[float, float], random: _Random) -> Pixels:
    """Blur with half a normal bell of (radius, sigma) pixels, in a direction within 45 degrees of the horizontal."""
    radius, sigma = constants
    return shifted_along(x, radius, sigma, random.uniform(-45, 45))


@_corruption(
    large=((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
    small=((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
)
def zoom_blur(x: Pixels, constants: tuple[float, float], random: _Random) -> Pixels:
    """Average the image and itself enlarged by 1, 1 + step, ... below ``end``."""
    end, step = constants
    factors = np.arange(1, end, step)
    enlarged = np.zeros_like(x)
    for factor in factors:
        enlarged += zoomed(x, float(factor))
    return (x + enlarged) / (len(factors) + 1)


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
    """Whiten the image and add flakes: enlarged normal noise above a threshold, blown along."""
    mean, deviation, zoom, threshold, radius, sigma, keep = constants
    height, width, channels = x.shape
    noise = random.normal(loc=mean, scale=deviation, size=(height, width, 1))
    enlarged = zoomed(noise, zoom)
    flakes = np.clip(np.where(enlarged < threshold, 0.0, enlarged), 0, 1)
    blown = shifted_along(flakes, radius, sigma, random.uniform(-135, -45))
    grey = x
    if channels == 3:
        # The weights of ITU-R BT.601.
        grey = 0.299 * x[..., :1] + 0.587 * x[..., 1:2] + 0.114 * x[..., 2:]
    lightened = np.maximum(x, grey * 1.5 + 0.5)
    whitened = keep * x + (1 - keep) * lightened
    return whitened + blown + blown[::-1, ::-1]


@_corruption(
    large=((1, 0.4, 1), (0.8, 0.6, 1), (0.7, 0.7, 1), (0.65, 0.7, 1), (0.6, 0.75, 1)),
    small=((1, 0.2, 5), (1, 0.3, 5), (0.9, 0.4, 5), (0.85, 0.4, 5), (0.75, 0.45, 5)),
)
def frost(x: Pixels, constants: tuple[float, float, int, Sequence[Image.Image]], random: _Random) -> Pixels:
    """Add a part of a photograph of frost; (share of the image, of the frost, every n-th pixel, photographs).

    The authors reduce the photographs to a fifth for small images, linearly between pixels without smoothing: that
    takes the middle one of every five pixels.
    """
    share, amount, stride, photographs = constants
    height, width, channels = x.shape
    mode = "L" if channels == 1 else "RGB"
    photograph = in_mode(photographs[random.randint(len(photographs))], mode)
    photograph = _covering(photograph, stride * width, stride * height)
    middle = stride // 2
    pixels = np.asarray(photograph)[middle::stride, middle::stride]
    top = random.randint(pixels.shape[0] - height + 1)
    left = random.randint(pixels.shape[1] - width + 1)
    part = pixels[top : top + height, left : left + width]
    part = part.reshape(x.shape)  # a grey one gets its channel
    return share * x + amount * part / 255


def _covering(photograph: Image.Image, width: int, height: int) -> Image.Image:
    """Enlarge a photograph that is smaller than so many pixels."""
    factor = max(1.0, width / photograph.width, height / photograph.height)
    if factor == 1:
        return photograph
    larger = (math.ceil(photograph.width * factor), math.ceil(photograph.height * factor))
    return photograph.resize(larger, Image.Resampling.BILINEAR)


@_corruption(
    large=((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    small=((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
)
def fog(x: Pixels, constants: tuple[float, float], random: _Random) -> Pixels:
    """Add a plasma fractal whose coarse parts outweigh the fine by ``decay``; (times as bright, decay)."""
    amount, decay = constants
    height, width = x.shape[:2]
    brightest = x.max()
    foggy = x + amount * plasma(height, width, decay, random)[..., None]
    return foggy * brightest / (brightest + amount)


@_corruption(
    large=(0.1, 0.2, 0.3, 0.4, 0.5),
    small=(0.05, 0.1, 0.15, 0.2, 0.3),
)
def brightness(x: Pixels, amount: float, random: _Random) -> Pixels:
    """Raise the value of HSV by ``amount``; hue and saturation are kept."""
    value = x.max(axis=2, keepdims=True)
    raised = np.clip(value + amount, 0, 1)
    divisor = np.where(value > 0, value, 1)
    # A black pixel has no hue: it becomes grey.
    return np.where(value > 0, x * (raised / divisor), raised)


@_corruption(
    large=(0.4, 0.3, 0.2, 0.1, 0.05),
    small=(0.75, 0.5, 0.4, 0.3, 0.15),
)
def contrast(x: Pixels, share: float, random: _Random) -> Pixels:
    """Draw every value towards the mean of its channel; ``share`` of the distance is left."""
    mean = x.mean(axis=(0, 1), keepdims=True)
    return (x - mean) * share + mean


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
    """Apply a random affine map, then smooth random shifts; (strength, smoothness, affine) in shorter sides."""
    height, width = x.shape[:2]
    side = min(height, width)
    strength, smoothness, affine = constants
    x = _affinely_moved(x, side * affine, random)
    shifts = random.uniform(-1, 1, size=(2, height, width))
    if smoothness > 0:
        sigma = side * smoothness
        shifts = ndimage.gaussian_filter(shifts, (0, sigma, sigma), mode="reflect", truncate=3)
    shifts = shifts * (side * strength)
    rows, columns = np.mgrid[:height, :width].astype(np.float64)
    return warped(x, rows + shifts[1], columns + shifts[0], mode="reflect")


def _affinely_moved(x: Pixels, most: float, random: _Random) -> Pixels:
    """Apply the affine map that moves each of three points near the middle by up to ``most`` pixels in x and in y."""
    height, width = x.shape[:2]
    reach = min(height, width) // 3
    top = height // 2 - reach
    bottom = height // 2 + reach
    left = width // 2 - reach
    right = width // 2 + reach
    corners = np.array([(right, bottom), (right, top), (left, top)], dtype=np.float64)  # (x, y) each
    moved = corners + random.uniform(-most, most, size=corners.shape)
    if reach == 0:
        return x
    # From a place in the result back to the place in the image that it shows.
    back = np.linalg.solve(np.column_stack([moved, np.ones(3)]), corners)
    rows, columns = np.mgrid[:height, :width].astype(np.float64)
    across = columns * back[0, 0] + rows * back[1, 0] + back[2, 0]
    down = columns * back[0, 1] + rows * back[1, 1] + back[2, 1]
    return warped(x, down, across, mode="mirror")


@_corruption(
    large=(0.6, 0.5, 0.4, 0.3, 0.25),
    small=(0.95, 0.9, 0.85, 0.75, 0.65),
)
def pixelate(x: Pixels, share: float, random: _Random) -> Pixels:
    """Reduce the image to a share of its sides and enlarge it again, by boxes."""
    image = to_image(x)
    width = max(1, int(image.width * share))
    height = max(1, int(image.height * share))
    small = image.resize((width, height), Image.Resampling.BOX)
    return to_pixels(small.resize(image.size, Image.Resampling.BOX))


@_corruption(
    large=(25, 18, 15, 10, 7),
    small=(80, 65, 58, 50, 40),
)
def jpeg_compression(x: Pixels, quality: int, random: _Random) -> Pixels:
    """Write the image as JPEG and read it back; the bits depend on the JPEG library of this Pillow."""
    with io.BytesIO() as file:
        to_image(x).save(file, "JPEG", quality=quality)
        return to_pixels(Image.open(file))


def filtered(x: Pixels, kernel: Pixels) -> Pixels:
    """Correlate an image with a kernel ``[rows, columns]``; beyond the border the image is reflected."""
    return np.asarray(ndimage.correlate(x, kernel[..., None], mode="mirror"))


def smoothed(x: Pixels, sigma: float) -> Pixels:
    """Smooth both sides of an image by a Gaussian; the edge pixels are repeated beyond the border."""
    return np.asarray(ndimage.gaussian_filter(x, (sigma, sigma, 0), mode="nearest"))


def zoomed(x: Pixels, factor: float) -> Pixels:
    """Enlarge the middle of an image to the size of the whole, linearly between the centres of its corner pixels."""
    height, width = x.shape[:2]
    middle = _middle(x, math.ceil(height / factor), math.ceil(width / factor))
    large = ndimage.zoom(middle, (factor, factor, 1), order=1, mode="nearest")
    return np.asarray(_middle(large, height, width))


def _middle(x: Pixels, height: int, width: int) -> Pixels:
    """Cut the part of a size out of the middle of an image."""
    top = (x.shape[0] - height) // 2
    left = (x.shape[1] - width) // 2
    return x[top : top + height, left : left + width]


def warped(x: Pixels, rows: Pixels, columns: Pixels, mode: str) -> Pixels:
    """Return the values at places between pixels, linear in both directions.

    Args:
        x: ``[height, width, channels]``.
        rows, columns: the place each pixel of the result is taken from, ``[height, width]`` each.
        mode: what lies beyond the border, by scipy's names.
    """
    channels = []
    for channel in np.moveaxis(x, 2, 0):
        channels.append(ndimage.map_coordinates(channel, [rows, columns], order=1, mode=mode))
    return np.stack(channels, axis=-1)


def shifted_along(x: Pixels, radius: float, sigma: float, angle: float) -> Pixels:
    """Blur as ImageMagick does: with one half of a normal bell along a direction, at whole pixels.

    Args:
        x: ``[height, width, channels]``; the edge pixels are repeated beyond the border.
        radius: the reach is ``2 * ceil(radius)`` pixels.
        sigma: of the bell, in pixels.
        angle: in degrees; 0 is to the right.
    """
    height, width = x.shape[:2]
    places = np.arange(2 * math.ceil(radius) + 1)
    weights = np.exp(-(places**2) / (2 * sigma**2))
    weights /= weights.sum()
    direction = math.radians(angle)
    down = np.ceil(places * math.sin(direction) - 0.5).astype(int)
    right = np.ceil(places * math.cos(direction) - 0.5).astype(int)
    blurred = np.zeros_like(x)
    for weight, dy, dx in zip(weights, down, right, strict=True):
        rows = np.clip(np.arange(height) + dy, 0, height - 1)
        columns = np.clip(np.arange(width) + dx, 0, width - 1)
        blurred += weight * x[rows][:, columns]
    return blurred


def plasma(height: int, width: int, decay: float, random: np.random.RandomState) -> Pixels:
    """Draw a height map by the diamond-square algorithm on a torus, scaled to 0 .. 1: ``[height, width]``.

    The amplitude of the noise is divided by ``decay`` squared from one scale to the next finer one.
    """
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
    return np.asarray((field[:height, :width] - lowest) / (highest - lowest))


def _refine(field: Pixels, step: int, amplitude: float, random: np.random.RandomState) -> None:
    """Fill the points of a map halfway between those that are ``step`` apart: means of four neighbours, and noise."""

    def noisy(total: Pixels) -> Pixels:
        noise = random.uniform(-1, 1, size=total.shape)
        return total / 4 + amplitude * noise

    half = step // 2
    corners = field[::step, ::step]
    # The middle of each square.
    left_side = corners + np.roll(corners, -1, axis=0)
    right_side = np.roll(left_side, -1, axis=1)
    field[half::step, half::step] = noisy(left_side + right_side)
    centres = field[half::step, half::step]
    # The middle of each horizontal edge: its ends, and the squares below and above.
    ends = corners + np.roll(corners, -1, axis=1)
    above = np.roll(centres, 1, axis=0)
    field[::step, half::step] = noisy(ends + centres + above)
    # The middle of each vertical edge.
    ends = corners + np.roll(corners, -1, axis=0)
    left = np.roll(centres, 1, axis=1)
    field[half::step, ::step] = noisy(ends + centres + left)


def to_pixels(image: Image.Image) -> Pixels:
    """Return an ``L`` or ``RGB`` image as float64 ``[height, width, channels]`` in [0, 1]."""
    pixels = np.asarray(image, dtype=np.float64) / 255
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    return pixels


def to_image(x: Pixels) -> Image.Image:
    """Return the nearest 8-bit image, ``L`` for one channel, ``RGB`` for three."""
    values = np.rint(np.clip(x, 0, 1) * 255).astype(np.uint8)
    if values.shape[2] == 1:
        values = values[..., 0]
    return Image.fromarray(values)
