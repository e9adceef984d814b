"""Data that needs no file and no network: handwritten digits, three OOD sets for them, and one of English sentences.

The images are 8x8 and grey, from what scikit-learn and Pillow carry inside. ``digits`` is in-distribution; ``symbols``,
``letters`` and ``photos`` are out-of-distribution sets for it, without labels. ``docstrings`` are an OOD set for texts.
"""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from hydractl.data.arrays import ArrayImages
from hydractl.data.base import Dataset, Spec
from hydractl.data.docstrings import docstrings
from hydractl.data.labels import RawLabels
from hydractl.data.text import Texts
from hydractl.errors import InputError, UsageError, install_hint

Images = npt.NDArray[np.uint8]

SPLITS: dict[str, tuple[str, ...]] = {
    "digits": ("train", "val", "test"),
    "symbols": (),
    "letters": (),
    "photos": (),
    "docstrings": (),
}
"""The sets and their splits; () means that the set is one piece."""

_OF_SKLEARN = ("digits", "photos")

DIGITS_TRAIN, DIGITS_VAL = 1000, 300

SYMBOLS = "@#&%?+=*<>~^;:±«»"
"""Left out: ``| ! / \\ ( ) [ ] { }`` (a handwritten 1 at 8x8), ``$`` (5, 8), ``' , . _ -`` and the like (a speck)."""

LETTERS = "ACEFHJKLMNPRTUVWXYacdefhkmnprtuvwxy"
"""Left out, being digits in many hands: O o D Q (0), I i j l (1), Z z (2), S s (5), G b (6), B (8),
g q (9)."""

_PHOTO_PATCHES = 400
_PHOTO_SCALES = (1, 2, 4, 8)
"""Photo pixels per side of one pixel of a patch."""


def read_builtin(spec: Spec, limit: int | None) -> tuple[Dataset, RawLabels]:
    """Open ``builtin:NAME`` or ``builtin:NAME/SPLIT``.

    Raises:
        UsageError: an unknown name or split, listing the known ones; a set of scikit-learn where that is not installed.
        InputError: ``docstrings`` where Python's standard library has no source files.
    """
    spec.check_query(())
    name, _, split = spec.path.partition("/")
    if name not in SPLITS:
        raise UsageError(f"{spec.where}: no builtin set {name!r}", hint=f"there are: {', '.join(_all_names())}")
    if split not in (SPLITS[name] or ("",)):
        raise UsageError(
            f"{spec.where}: builtin:{name} has " + (f"no split {split!r}" if SPLITS[name] else "no splits"),
            hint=f"write {' or '.join(n for n in _all_names() if n.split('/')[0] == f'builtin:{name}')}",
        )
    if name in _OF_SKLEARN and importlib.util.find_spec("sklearn") is None:
        message = f"{spec.where}: builtin:{name} needs scikit-learn, which is not installed"
        raise UsageError(message, hint=install_hint("sklearn"))
    if name == "docstrings":
        return _sentences(spec, limit), RawLabels()
    if name == "digits":
        images, labels = digits(split)
        raw = RawLabels(labels[:limit], [str(digit) for digit in range(10)])
    else:
        images, raw = ood_images(name), RawLabels()
    images = images[:limit]
    ids = [f"builtin:{spec.path}#{i}" for i in range(len(images))]
    return ArrayImages(spec.text, spec.where, ids, images), raw


def _sentences(spec: Spec, limit: int | None) -> Texts:
    """Return the set of English sentences."""
    sentences = docstrings()[:limit]
    if not sentences:
        raise InputError(f"{spec.where}: this Python's standard library has no source files to take sentences from")
    ids = [f"builtin:{spec.path}#{number}" for number in range(len(sentences))]
    return Texts(spec.text, spec.where, ids, sentences)


def _all_names() -> list[str]:
    return [f"builtin:{name}/{split}".rstrip("/") for name, splits in SPLITS.items() for split in splits or ("",)]


@lru_cache(maxsize=3)
def digits(split: str) -> tuple[Images, npt.NDArray[np.int64]]:
    """A fixed stratified part of scikit-learn's handwritten digits (UCI, 1,797 images, grey 0..16 scaled to 0..255).

    Returns:
        Images uint8 ``[N, 8, 8]`` and labels int64 ``[N]``; N = 1,000 (train), 300 (val), 497 (test).
    """
    from sklearn.datasets import load_digits

    source = load_digits()
    target = np.asarray(source.target, dtype=np.int64)
    # Class after class, each in random order; then every split takes its even share along this line.
    line = np.random.RandomState(0).permutation(len(target))
    line = line[np.argsort(target[line], kind="stable")]
    train = _even(len(line), DIGITS_TRAIN)
    rest = line[~train]
    val = _even(len(rest), DIGITS_VAL)
    chosen = np.sort({"train": line[train], "val": rest[val], "test": rest[~val]}[split])
    images, labels = _to_grey(source.images[chosen]), target[chosen]
    images.setflags(write=False)
    labels.setflags(write=False)
    return images, labels


def _even(total: int, count: int) -> npt.NDArray[np.bool_]:
    """``count`` of ``total`` places, spread evenly: bool ``[total]``."""
    steps = np.arange(total + 1) * count // total
    return np.diff(steps) > 0


@lru_cache(maxsize=3)
def ood_images(name: str) -> Images:
    """The images of ``symbols``, ``letters`` or ``photos``: uint8 ``[N, 8, 8]``, read-only."""
    if name == "photos":
        images = _photo_patches()
    else:
        characters, variants, seed = {"symbols": (SYMBOLS, 22, 1), "letters": (LETTERS, 10, 2)}[name]
        images = _glyph_images(characters, variants, seed)
    images.setflags(write=False)
    return images


def _photo_patches() -> Images:
    """Square patches of scikit-learn's two sample photographs, in grey, averaged down to 8x8 at four scales."""
    from sklearn.datasets import load_sample_images

    photos = [np.asarray(photo, dtype=np.int64) for photo in load_sample_images().images]
    # Integer arithmetic (the weights of ITU-R BT.601), so that no rounding depends on the machine.
    grey = [(photo @ np.array([299, 587, 114]) + 500) // 1000 for photo in photos]
    random = np.random.RandomState(3)
    patches = []
    for i in range(_PHOTO_PATCHES):
        photo = grey[i % len(grey)]
        scale = _PHOTO_SCALES[i // len(grey) % len(_PHOTO_SCALES)]
        side = 8 * scale
        top, left = (int(random.randint(0, length - side + 1)) for length in photo.shape)
        blocks = photo[top : top + side, left : left + side].reshape(8, scale, 8, scale)
        patches.append(((blocks.sum(axis=(1, 3)) + scale * scale // 2) // (scale * scale)).astype(np.uint8))
    return np.stack(patches)


_BITMAP = 32
_BLOCK = 4
_FONT_SIZE = 160
_CANVAS = 2 * _FONT_SIZE  # room for the widest character, turned


def _to_grey(counts: npt.NDArray[Any]) -> Images:
    """Block counts 0..16 to grey levels 0..255, any shape."""
    return np.rint(np.asarray(counts) * (255 / _BLOCK**2)).astype(np.uint8)


def _glyph_images(characters: str, variants: int, seed: int) -> Images:
    """Each character drawn in several ways, all of them different: uint8 ``[variants * len(characters), 8, 8]``.

    The seed is of size, thickness, angle and place; each character comes once in every ``len(characters)`` images.
    """
    # RandomState's stream never changes between numpy versions, unlike default_rng's.
    random = np.random.RandomState(seed)
    font = ImageFont.load_default(size=_FONT_SIZE)
    seen: set[bytes] = set()
    images = []
    for _ in range(variants):
        for character in characters:
            image = _draw(character, font, random)
            while image.tobytes() in seen:
                image = _draw(character, font, random)
            seen.add(image.tobytes())
            images.append(image)
    return np.stack(images)


def _draw(character: str, font: Any, random: np.random.RandomState) -> Images:
    """One character, uint8 ``[8, 8]``, of random thickness, angle, size and place."""
    thickness, angle = int(random.randint(2, 9)), float(random.uniform(-12, 12))
    height, width = random.randint(28, _BITMAP + 1), random.randint(20, 27)
    large = Image.new("L", (_CANVAS, _CANVAS))
    place = (_FONT_SIZE // 2, _FONT_SIZE // 3)
    ImageDraw.Draw(large).text(place, character, fill=255, font=font, stroke_width=thickness)
    large = large.rotate(angle, resample=Image.Resampling.BILINEAR)
    large = large.crop(large.getbbox())
    # Into a box of the digits' size; flat or narrow signs keep their proportions.
    scale = min(height / large.height, width / large.width)
    size = (max(1, round(large.width * scale)), max(1, round(large.height * scale)))
    small = large.resize(size, resample=Image.Resampling.BOX)
    bitmap = Image.new("L", (_BITMAP, _BITMAP))
    left = (_BITMAP - size[0]) // 2 + int(random.randint(-1, 2))
    top = round((_BITMAP - size[1]) * float(random.uniform(0.25, 0.75)))
    bitmap.paste(small, (left, top))
    black = np.asarray(bitmap) >= 128
    blocks = black.reshape(_BITMAP // _BLOCK, _BLOCK, _BITMAP // _BLOCK, _BLOCK)
    return _to_grey(blocks.sum(axis=(1, 3)))
