"""Data that needs no file and no network: handwritten digits, three OOD sets for them, and one of English sentences.

The images are 8x8 and grey, from what scikit-learn and Pillow carry inside. ``digits`` is in-distribution; ``symbols``,
``letters`` and ``photos`` are out-of-distribution sets for it, without labels. ``docstrings`` are an OOD set for texts.
"""

from __future__ import annotations

import importlib.util
import itertools
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from hydractl.data.arrays import ArrayImages
from hydractl.data.base import Dataset, RowIds
from hydractl.data.docstrings import docstrings
from hydractl.data.labels import RawLabels
from hydractl.data.text import Texts
from hydractl.errors import InputError, UsageError, install_hint
from hydractl.expressions.data_sets import DataSpec

Images = npt.NDArray[np.uint8]

BUILTIN = ("digits/train", "digits/val", "digits/test", "symbols", "letters", "photos", "docstrings")
"""The sets, each split by itself."""

_OF_SKLEARN = ("digits", "photos")

DIGITS_TRAIN, DIGITS_VAL = 1000, 300

# Each 8x8 image is averaged from a bitmap of 32x32 pixels, block by block, like scikit-learn's digits.
_SIDE = 8
_BITMAP = 32
_BLOCK = _BITMAP // _SIDE
_MOST_WHITE = _BLOCK**2
"""The number of pixels in a block, and therefore the value of a white pixel in ``load_digits``."""

_FONT_SIZE = 160
_CANVAS = 2 * _FONT_SIZE  # room for the widest character, turned

SYMBOLS = "@#&%?+=*<>~^;:±«»"
"""Left out: ``| ! / \\ ( ) [ ] { }`` (a handwritten 1 at 8x8), ``$`` (5, 8), ``' , . _ -`` and the like (a speck)."""

LETTERS = "ACEFHJKLMNPRTUVWXYacdefhkmnprtuvwxy"
"""Left out, being digits in many hands: O o D Q (0), I i j l (1), Z z (2), S s (5), G b (6), B (8),
g q (9)."""

_PHOTO_PATCHES = 400
_PHOTO_SCALES = (1, 2, 4, 8)
"""Photo pixels per side of one pixel of a patch."""


def read_builtin(spec: DataSpec, limit: int | None) -> tuple[Dataset, RawLabels]:
    """Return the samples and labels of a data set that comes with the package: ``builtin:NAME[/SPLIT]``.

    Args:
        spec: the SPEC, the text that names a data set, in its parts; the path of ``builtin:digits/test`` is
            ``digits/test``.
        limit: take only this many samples from the start; None means all.

    Returns:
        The data set, and its labels before they are mapped to the classes of a model.

    Raises:
        UsageError: for an unknown name or split (the message lists the known ones), or if the set comes from
            scikit-learn and scikit-learn is not installed.
        InputError: for ``docstrings`` if Python's standard library is installed without source files.
    """
    spec.check_query(())
    name, _, split = spec.path.partition("/")
    _check_name(spec, name)

    # Texts without labels.
    if name == "docstrings":
        sentences = docstrings()[:limit]
        if not sentences:
            raise InputError(f"{spec.where}: this Python's standard library has no source files to take sentences from")
        return Texts(spec.text, spec.where, RowIds(f"builtin:{spec.path}", len(sentences)), sentences), RawLabels()

    # Images: the digits have labels; the others are OOD samples for them, and have none.
    if name == "digits":
        images, labels = digits(split)
        raw = RawLabels(labels[:limit].tolist(), list("0123456789"))
    else:
        images = ood_images(name)
        raw = RawLabels()
    images = images[:limit]
    ids = RowIds(f"builtin:{spec.path}", len(images))
    dataset = ArrayImages(spec.text, spec.where, ids, images)
    return dataset, raw


def _check_name(spec: DataSpec, name: str) -> None:
    """Refuse sets and splits that do not exist, and sets that need a library which is not installed.

    Args:
        spec: the SPEC, the text that names a data set, in its parts. Its path is the name with the split, for example
            ``digits/test``.
        name: the name alone, for example ``digits``.

    Raises:
        UsageError: saying which sets or splits there are.
    """
    if spec.path not in BUILTIN:
        splits = [known for known in BUILTIN if known.partition("/")[0] == name]
        listed = ", ".join(f"builtin:{known}" for known in splits or BUILTIN)
        raise UsageError(f"{spec.where}: no builtin set {spec.path!r}", hint=f"there are: {listed}")
    if name in _OF_SKLEARN and importlib.util.find_spec("sklearn") is None:
        message = f"{spec.where}: builtin:{name} needs scikit-learn, which is not installed"
        raise UsageError(message, hint=install_hint("sklearn"))


@lru_cache(maxsize=3)
def digits(split: str) -> tuple[Images, npt.NDArray[np.int64]]:
    """Return one split of scikit-learn's 1,797 handwritten digits (UCI). A split always has the same images.

    Args:
        split: ``train``, ``val`` or ``test``. The three have no image in common, and each has every class.

    Returns:
        Images uint8 ``[N, 8, 8]``, whose levels 0..16 are stretched to 0..255, and labels int64 ``[N]``. Both are
        read-only. N is 1,000 (train), 300 (val) or 497 (test).
    """
    from sklearn.datasets import load_digits

    source = load_digits()
    all_labels = np.asarray(source.target, dtype=np.int64)
    rows = _digits_of_split(all_labels, split)
    images = _to_grey(source.images[rows])
    labels = all_labels[rows]
    # The cache returns the same arrays to the next caller, so nobody may change them.
    images.setflags(write=False)
    labels.setflags(write=False)
    return images, labels


def _digits_of_split(labels: npt.NDArray[np.int64], split: str) -> npt.NDArray[np.int64]:
    """Return the indices of the digits that belong to a split, in ascending order.

    Args:
        labels: the labels of all digits.
        split: ``train``, ``val`` or ``test``. Each split has the same share of every class.
    """
    # Sort all digits by class, with a random order inside each class. Marking digits at even distances along this
    # line takes the same share of every class.
    shuffled = np.random.RandomState(0).permutation(len(labels))
    order_by_class = np.argsort(labels[shuffled], kind="stable")
    digits_by_class = shuffled[order_by_class]

    # Of all digits some are `train`, of the others some are `val`, and the rest is `test`. A mask of `_evenly_marked`
    # has as many values True as the split has digits, at even distances.
    in_train = _evenly_marked(len(digits_by_class), DIGITS_TRAIN)
    if split == "train":
        return np.sort(digits_by_class[in_train])
    not_in_train = digits_by_class[~in_train]
    in_val = _evenly_marked(len(not_in_train), DIGITS_VAL)
    if split == "val":
        return np.sort(not_in_train[in_val])
    return np.sort(not_in_train[~in_val])


def _evenly_marked(total: int, count: int) -> npt.NDArray[np.bool_]:
    """Return bool ``[total]`` with ``count`` values True, at even distances; for 5 and 2 these are values 2 and 4."""
    positions = np.arange(total + 1)
    marked_before = positions * count // total  # [total + 1]: how many are marked before each position
    return np.diff(marked_before) > 0


@lru_cache(maxsize=3)
def ood_images(name: str) -> Images:
    """Return the images of ``symbols``, ``letters`` or ``photos``: uint8 ``[N, 8, 8]``, read-only."""
    if name == "photos":
        images = _photo_patches()
    elif name == "symbols":
        images = _glyph_images(SYMBOLS, variants=22, seed=1)
    else:
        images = _glyph_images(LETTERS, variants=10, seed=2)
    images.setflags(write=False)
    return images


def _photo_patches() -> Images:
    """Cut square patches out of scikit-learn's two sample photographs, in grey, and average them down to 8x8.

    A patch has one of four sizes (scales) and a random position. The patches take turns: first every photograph at the
    first scale, then every photograph at the next scale, and so on, from the beginning again until there are enough.

    Returns:
        uint8 ``[400, 8, 8]``.
    """
    from sklearn.datasets import load_sample_images

    photos = [_rounded_grey(photo) for photo in load_sample_images().images]
    one_round = [(photo, scale) for scale in _PHOTO_SCALES for photo in photos]
    all_rounds = itertools.cycle(one_round)

    # With side 8 and scale 3, a patch has 24 x 24 pixels and becomes 8 x 8 means of 3 x 3 pixels.
    random = np.random.RandomState(3)
    patches = []
    for photo, scale in itertools.islice(all_rounds, _PHOTO_PATCHES):
        side = _SIDE * scale
        height, width = photo.shape
        top = int(random.randint(0, height - side + 1))
        left = int(random.randint(0, width - side + 1))
        rows = slice(top, top + side)
        columns = slice(left, left + side)
        patch = photo[rows, columns]
        # The rounded mean of each block of scale x scale pixels.
        blocks = patch.reshape(_SIDE, scale, _SIDE, scale)  # [block row, row in block, block column, column in block]
        totals = blocks.sum(axis=(1, 3))
        pixels = scale * scale
        means = (totals + pixels // 2) // pixels  # [8, 8]; adding half a divisor rounds to the nearest integer
        patches.append(means.astype(np.uint8))
    return np.stack(patches)


def _rounded_grey(photo: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Return a photograph ``[height, width, 3]`` as grey levels ``[height, width]``, by the weights of ITU-R BT.601.

    All arithmetic is in integers, so that the rounding is the same on every machine.
    """
    rgb = np.asarray(photo, dtype=np.int64)
    thousandfold = rgb @ np.array([299, 587, 114])
    return (thousandfold + 500) // 1000


def _to_grey(counts: npt.NDArray[Any]) -> Images:
    """Stretch the numbers of white pixels per block, 0..16, to grey levels 0..255. Any shape."""
    step = 255 / _MOST_WHITE
    levels = np.asarray(counts) * step
    nearest = np.rint(levels)
    return nearest.astype(np.uint8)


def _glyph_images(characters: str, variants: int, seed: int) -> Images:
    """Return images of characters, each drawn several times, so that no two images are equal.

    Args:
        characters: the characters to draw. Each round draws every character once.
        variants: the number of rounds.
        seed: seed of the random size, thickness, angle and position of each image.

    Returns:
        uint8 ``[variants * len(characters), 8, 8]``.
    """
    # RandomState's stream never changes between numpy versions, unlike default_rng's.
    random = np.random.RandomState(seed)
    font = ImageFont.load_default(size=_FONT_SIZE)
    earlier_images: set[bytes] = set()  # their pixels
    images = []
    for _ in range(variants):
        for character in characters:
            image = _draw_glyph(character, font, random)
            while image.tobytes() in earlier_images:  # draw again until the image is new
                image = _draw_glyph(character, font, random)
            earlier_images.add(image.tobytes())
            images.append(image)
    return np.stack(images)


def _draw_glyph(character: str, font: Any, random: np.random.RandomState) -> Images:
    """Draw one character with random thickness, angle, size and position: uint8 ``[8, 8]``."""
    thickness = int(random.randint(2, 9))
    angle = float(random.uniform(-12, 12))
    box_height = random.randint(28, _BITMAP + 1)
    box_width = random.randint(20, 27)

    # Draw it in white on black, turn it, and crop the black margin.
    canvas = Image.new("L", (_CANVAS, _CANVAS))
    text_position = (_FONT_SIZE // 2, _FONT_SIZE // 3)
    ImageDraw.Draw(canvas).text(text_position, character, fill=255, font=font, stroke_width=thickness)
    turned = canvas.rotate(angle, resample=Image.Resampling.BILINEAR)
    large = turned.crop(turned.getbbox())

    # Resize it to fit into the box, with its proportions kept.
    scale = min(box_height / large.height, box_width / large.width)
    fitted_width = max(1, round(large.width * scale))
    fitted_height = max(1, round(large.height * scale))
    small = large.resize((fitted_width, fitted_height), resample=Image.Resampling.BOX)

    # Paste it near the middle of the bitmap, up to a pixel to the side and a quarter of the free height up or down.
    free_width = _BITMAP - small.width
    free_height = _BITMAP - small.height
    left = free_width // 2 + int(random.randint(-1, 2))
    top = round(free_height * float(random.uniform(0.25, 0.75)))
    bitmap = Image.new("L", (_BITMAP, _BITMAP))
    bitmap.paste(small, (left, top))

    # Count the white pixels of each block, so that the edges of the character become grey. Pixel (row, column) of the
    # bitmap is in block (row // _BLOCK, column // _BLOCK): the second and the last axis count pixels within a block.
    is_white = np.asarray(bitmap) >= 128
    blocks = is_white.reshape(_SIDE, _BLOCK, _SIDE, _BLOCK)  # [8, block, 8, block]
    white_pixels = blocks.sum(axis=(1, 3))  # [8, 8]
    return _to_grey(white_pixels)
