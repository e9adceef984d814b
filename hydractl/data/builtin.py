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
    _check_name(spec, name, split)
    if name == "docstrings":
        return _sentences(spec, limit), RawLabels()
    if name == "digits":
        images, labels = digits(split)
        raw = RawLabels(labels[:limit], list("0123456789"))
    else:
        images = ood_images(name)
        raw = RawLabels()
    images = images[:limit]
    ids = [f"builtin:{spec.path}#{i}" for i in range(len(images))]
    return ArrayImages(spec.text, spec.where, ids, images), raw


def _check_name(spec: Spec, name: str, split: str) -> None:
    """Refuse sets and splits that there are not, or not on this machine."""
    if name not in SPLITS:
        all_names = [full_name for known in SPLITS for full_name in _full_names(known)]
        raise UsageError(f"{spec.where}: no builtin set {name!r}", hint=f"there are: {', '.join(all_names)}")
    splits = SPLITS[name]
    if split not in (splits or ("",)):
        problem = f"no split {split!r}" if splits else "no splits"
        raise UsageError(f"{spec.where}: builtin:{name} has {problem}", hint=f"write {' or '.join(_full_names(name))}")
    if name in _OF_SKLEARN and importlib.util.find_spec("sklearn") is None:
        message = f"{spec.where}: builtin:{name} needs scikit-learn, which is not installed"
        raise UsageError(message, hint=install_hint("sklearn"))


def _full_names(name: str) -> list[str]:
    """Return the SPECs of a set: one for each split."""
    if not SPLITS[name]:
        return [f"builtin:{name}"]
    return [f"builtin:{name}/{split}" for split in SPLITS[name]]


def _sentences(spec: Spec, limit: int | None) -> Texts:
    """Return the set of English sentences."""
    sentences = docstrings()[:limit]
    if not sentences:
        raise InputError(f"{spec.where}: this Python's standard library has no source files to take sentences from")
    ids = [f"builtin:{spec.path}#{number}" for number in range(len(sentences))]
    return Texts(spec.text, spec.where, ids, sentences)


@lru_cache(maxsize=3)
def digits(split: str) -> tuple[Images, npt.NDArray[np.int64]]:
    """Return a fixed stratified part of scikit-learn's handwritten digits (UCI, 1,797 images, 0..16 made 0..255).

    Returns:
        Images uint8 ``[N, 8, 8]`` and labels int64 ``[N]``; N = 1,000 (train), 300 (val), 497 (test).
    """
    from sklearn.datasets import load_digits

    source = load_digits()
    target = np.asarray(source.target, dtype=np.int64)
    # Class after class, each in random order; then every split takes its even share along this line.
    line = np.random.RandomState(0).permutation(len(target))
    line = line[np.argsort(target[line], kind="stable")]
    in_train = _even(len(line), DIGITS_TRAIN)
    rest = line[~in_train]
    in_val = _even(len(rest), DIGITS_VAL)
    parts = {"train": line[in_train], "val": rest[in_val], "test": rest[~in_val]}
    chosen = np.sort(parts[split])
    images = _to_grey(source.images[chosen])
    labels = target[chosen]
    images.setflags(write=False)
    labels.setflags(write=False)
    return images, labels


def _even(total: int, count: int) -> npt.NDArray[np.bool_]:
    """Mark ``count`` of ``total`` places, spread evenly: bool ``[total]``."""
    steps = np.arange(total + 1) * count // total
    return np.diff(steps) > 0


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
    """Cut square patches of scikit-learn's two sample photographs, in grey, averaged down to 8x8 at four scales."""
    from sklearn.datasets import load_sample_images

    grey_photos = []
    for photo in load_sample_images().images:
        # Integer arithmetic (the weights of ITU-R BT.601), so that no rounding depends on the machine.
        weighted = np.asarray(photo, dtype=np.int64) @ np.array([299, 587, 114])
        grey_photos.append((weighted + 500) // 1000)
    random = np.random.RandomState(3)
    patches = []
    for i in range(_PHOTO_PATCHES):
        photo = grey_photos[i % len(grey_photos)]
        scale = _PHOTO_SCALES[i // len(grey_photos) % len(_PHOTO_SCALES)]
        side = 8 * scale
        top = int(random.randint(0, photo.shape[0] - side + 1))
        left = int(random.randint(0, photo.shape[1] - side + 1))
        blocks = photo[top : top + side, left : left + side].reshape(8, scale, 8, scale)
        pixels = scale * scale
        means = (blocks.sum(axis=(1, 3)) + pixels // 2) // pixels
        patches.append(means.astype(np.uint8))
    return np.stack(patches)


_BITMAP = 32
_BLOCK = 4
_FONT_SIZE = 160
_CANVAS = 2 * _FONT_SIZE  # room for the widest character, turned


def _to_grey(counts: npt.NDArray[Any]) -> Images:
    """Turn block counts 0..16 into grey levels 0..255, any shape."""
    return np.rint(np.asarray(counts) * (255 / _BLOCK**2)).astype(np.uint8)


def _glyph_images(characters: str, variants: int, seed: int) -> Images:
    """Draw each character in several ways, all of them different: uint8 ``[variants * len(characters), 8, 8]``.

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
    """Draw one character, uint8 ``[8, 8]``, of random thickness, angle, size and place."""
    thickness = int(random.randint(2, 9))
    angle = float(random.uniform(-12, 12))
    height = random.randint(28, _BITMAP + 1)
    width = random.randint(20, 27)
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
    is_white = np.asarray(bitmap) >= 128
    blocks = is_white.reshape(_BITMAP // _BLOCK, _BLOCK, _BITMAP // _BLOCK, _BLOCK)
    return _to_grey(blocks.sum(axis=(1, 3)))
