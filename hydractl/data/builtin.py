"""Data that needs no file of the user's and no network: handwritten digits, and three sets that are no digits.

All are 8x8 grey images from what scikit-learn and Pillow carry inside. ``digits`` is in-distribution; ``symbols``,
``letters`` and ``photos`` are out-of-distribution sets for it, without labels.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from hydractl.data.arrays import ArrayImages
from hydractl.data.base import Dataset
from hydractl.data.glyphs import glyph_images, to_grey
from hydractl.data.labels import RawLabels
from hydractl.data.spec import Spec
from hydractl.errors import UsageError

Images = npt.NDArray[np.uint8]

SPLITS: dict[str, tuple[str, ...]] = {"digits": ("train", "val", "test"), "symbols": (), "letters": (), "photos": ()}
"""The sets and their splits; () means that the set is one piece."""

DIGITS_TRAIN, DIGITS_VAL = 1000, 300

SYMBOLS = "@#&%?+=*<>~^;:±«»"
"""Left out: ``| ! / \\ ( ) [ ] { }`` (a handwritten 1 at 8x8), ``$`` (5, 8), ``' , . _ -`` and the like (a speck)."""

LETTERS = "ACEFHJKLMNPRTUVWXYacdefhkmnprtuvwxy"
"""Left out, being digits in many hands: O o D Q (0), I i j l (1), Z z (2), S s (5), G b (6), B (8),
g q (9)."""

_VARIANTS = {"symbols": 22, "letters": 10}
_PHOTO_PATCHES = 400
_PHOTO_SCALES = (1, 2, 4, 8)
"""Photo pixels per side of one pixel of a patch."""


def read_builtin(spec: Spec, limit: int | None) -> tuple[Dataset, RawLabels]:
    """Open ``builtin:NAME`` or ``builtin:NAME/SPLIT``.

    Raises:
        UsageError: an unknown name or split, listing the known ones.
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
    if name == "digits":
        images, labels = digits(split)
        raw = RawLabels(labels[:limit], [str(digit) for digit in range(10)])
    else:
        images, raw = ood_images(name), RawLabels()
    images = images[:limit]
    ids = [f"builtin:{spec.path}#{i}" for i in range(len(images))]
    return ArrayImages(spec.text, spec.where, ids, images), raw


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
    images, labels = to_grey(source.images[chosen]), target[chosen]
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
        characters, seed = {"symbols": (SYMBOLS, 1), "letters": (LETTERS, 2)}[name]
        images = glyph_images(characters, _VARIANTS[name], seed)
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
