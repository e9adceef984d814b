"""OOD samples made from ID samples: ``?ood=KIND`` after the SPEC of any images or texts, for validation if no other OOD
data are at hand.

Jigsaw and the mean of two images are validation sets of Hendrycks, Mazeika and Dietterich, "Deep Anomaly Detection with
Outlier Exposure", ICLR 2019, arXiv 1812.04606.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from hydractl.data.base import Dataset, seeded_by
from hydractl.data.text import Text, characters, parts_of
from hydractl.errors import InputError, UsageError
from hydractl.expressions.data_sets import AUTO, with_setting
from hydractl.families.pixels import grey_or_rgb, in_mode

_TILES = 4
"""The number of tiles per side of a jigsaw."""

_Random = np.random.RandomState


def _jigsaw(pixels: npt.NDArray[Any], random: _Random) -> npt.NDArray[Any]:
    """Return an image whose 4 x 4 tiles are in a random new order.

    If a side has fewer than 4 pixels, it has that many tiles of one pixel. If 4 does not divide a side, a margin of up
    to 3 pixels at its end is not moved.

    Args:
        pixels: ``[H, W]`` or ``[H, W, C]``.
        random: draws the order.

    Returns:
        A new image of the same shape.
    """
    image_height, image_width = pixels.shape[:2]

    # The number of tiles in each direction, and the size of a tile in pixels.
    rows = min(_TILES, image_height)
    columns = min(_TILES, image_width)
    height = max(1, image_height // _TILES)
    width = max(1, image_width // _TILES)

    # Cut out the part that the tiles cover. It is a view, so writing to it changes `result`.
    result = pixels.copy()
    without_margin = result[: rows * height, : columns * width]
    in_rows = without_margin.reshape(rows, height, columns, width, -1).swapaxes(1, 2)  # [rows, columns, h, w, C]
    tiles = in_rows.reshape(rows * columns, height, width, -1)

    # Write the tiles back in another order.
    order = _reordered(np.arange(len(tiles)), random)
    moved = tiles[order].reshape(in_rows.shape).swapaxes(1, 2)  # [rows, h, columns, w, C]
    without_margin[...] = moved.reshape(without_margin.shape)  # drops the last axis if `pixels` is [H, W]
    return result


def _noise(pixels: npt.NDArray[Any], random: _Random) -> npt.NDArray[Any]:
    """Put the pixels of an image into a random order."""
    channels = pixels.shape[2:]
    flat = pixels.reshape(-1, *channels)  # [H * W] or [H * W, C]: the channels of a pixel stay together
    order = random.permutation(len(flat))
    shuffled = flat[order]
    return shuffled.reshape(pixels.shape)


def _rotate(pixels: npt.NDArray[Any], random: _Random) -> npt.NDArray[Any]:
    """Turn an image by 90, 180 or 270 degrees, drawn at random."""
    quarters = int(random.randint(1, 4))
    return np.rot90(pixels, quarters)


def _shuffle(text: str, random: _Random) -> str:
    """Put the words of a text into a random new order; if all its words are equal, do so with its letters."""
    words = text.split()
    if len(set(words)) < 2:
        letters = np.array(list(text), dtype=object)
        moved_letters = _reordered(letters, random)
        return "".join(moved_letters)
    moved_words = _reordered(np.array(words, dtype=object), random)
    return " ".join(moved_words)


def _splice(text: str, other: str, random: _Random) -> str:
    """Join the first half of the words of a text and the second half of the words of another text."""
    words = text.split()
    other_words = other.split()
    # If the number of words is odd, the middle word belongs to both halves.
    end = (len(words) + 1) // 2
    start = len(other_words) // 2
    spliced = words[:end] + other_words[start:]
    return " ".join(spliced)


def _reordered(items: npt.NDArray[Any], random: _Random) -> npt.NDArray[Any]:
    """Shuffle the items until the order is different; if all items are equal, return them unchanged."""
    different_items = set(items.tolist())
    if len(different_items) < 2:
        return items
    while True:
        order = random.permutation(len(items))
        shuffled = items[order]
        is_moved = shuffled != items
        if is_moved.any():
            return shuffled


def _mixture(pixels: npt.NDArray[Any], other: npt.NDArray[Any], random: _Random) -> npt.NDArray[Any]:
    """Return the mean of two images of equal size, rounded up."""
    total = pixels.astype(np.uint16) + other  # 8 bits could not hold 255 + 255
    mean = (total + 1) // 2
    return mean.astype(np.uint8)


class PseudoOodKind(NamedTuple):
    """One way to make an OOD sample.

    Attributes:
        samples: ``image`` or ``text``: the samples it is made from.
        make: returns the OOD sample. It takes the pixels (uint8 ``[H, W]`` or ``[H, W, 3]``) or the text, then a second
            sample of the same form if ``takes_two`` is set, and a random generator.
        takes_two: whether the sample is made from two.
    """

    samples: str
    make: Callable[..., Any]
    takes_two: bool = False


PSEUDO_OOD_KINDS = {
    "jigsaw": PseudoOodKind("image", _jigsaw),
    "mixture": PseudoOodKind("image", _mixture, takes_two=True),
    "noise": PseudoOodKind("image", _noise),
    "rotate": PseudoOodKind("image", _rotate),
    "shuffle": PseudoOodKind("text", _shuffle),
    "splice": PseudoOodKind("text", _splice, takes_two=True),
}


class PseudoOod(Dataset):
    """The samples of a data set, each made into an OOD sample, the same at every reading; without labels.

    Random numbers come from a generator that is seeded by the kind, ``seed`` and the id of the sample, so neither the
    order of reading nor the number of workers matters. If labels are known, the second sample of a mixture or a splice
    has another class than the first.

    Args:
        clean: ID images or texts.
        ood_kind: one of :data:`PSEUDO_OOD_KINDS`, or ``auto``, which makes equally many samples of each kind that fits
            the data.
        seed: seed of all random draws.
        where: the name of the set in messages; None means the name of ``clean``.

    Raises:
        UsageError: for a kind that does not exist or does not fit the data.
        InputError: if the kind needs two samples and the set has fewer.
    """

    def __init__(self, clean: Dataset, ood_kind: str, seed: int = 0, where: str | None = None) -> None:
        """Check and store which kinds of OOD (out-of-distribution) samples to make; each is made when it is read.

        Args:
            clean: the samples of which they are made, one of each.
            ood_kind: a way of making them, such as ``jigsaw``, or ``auto`` for all that fit the data.
            seed: seed of the random draws.
            where: the name of the data in messages; None for that of the clean samples.
        """
        if where is None:
            where = clean.where

        # Which kinds apply to these data.
        names = _names_of_kind(clean, ood_kind, where)
        needs_two = any(PSEUDO_OOD_KINDS[name].takes_two for name in names)
        if needs_two and len(clean) < 2:
            raise InputError(f"{where}: ?ood={ood_kind} needs two samples")

        # SPEC and ids say that the samples are not the clean ones.
        spec = with_setting(clean.spec, f"ood={ood_kind}")
        ids = [f"{clean_id}?ood={ood_kind}" for clean_id in clean.ids]
        super().__init__(spec, where, ids)
        self.take_over(clean)
        self.labels = None
        self.label_names = None
        self.clean = clean
        self.seed = seed
        self._names = names

    @cached_property
    def _kinds(self) -> npt.NDArray[np.intp]:
        """The kind of each sample, as an index into ``_names``, ``[N]``. All kinds get equally many samples.

        The assignment is random, but depends only on the ids and the seed.
        """
        # With two kinds, the samples in random order get 0, 1, 0, 1, ... Hashes of their ids put them into that order.
        total = len(self)
        random_order = sorted(range(total), key=lambda i: self._digest("kind", i))
        kinds_in_turn = np.arange(total) % len(self._names)
        kinds = np.empty(total, dtype=np.intp)
        kinds[random_order] = kinds_in_turn
        return kinds

    def _digest(self, purpose: str, i: int) -> bytes:
        """Return a SHA-256 of sample ``i``'s id, the seed and a purpose, by which something is drawn for it."""
        clean_id = self.clean.ids[i]
        text = f"hydractl.ood {purpose} {self.seed} {clean_id}"
        return hashlib.sha256(text.encode("utf-8", "backslashreplace")).digest()

    def _possible_seconds(self, i: int) -> npt.NDArray[np.intp]:
        """Return the indices of samples that may be mixed with sample ``i``: those of other classes.

        Without labels, or if all samples are of one class, these are all samples but ``i``.
        """
        labels = self.clean.labels
        if labels is not None:
            of_other_classes = np.flatnonzero(labels != labels[i])
            if len(of_other_classes):
                return of_other_classes
        everything = np.arange(len(self))
        return np.delete(everything, i)

    def _sample(self, i: int) -> Any:
        """Return the OOD sample ``i``, made from the clean sample ``i`` and perhaps a second one."""
        name = self._names[self._kinds[i]]
        kind = PSEUDO_OOD_KINDS[name]

        # What is drawn depends on the sample's id and not on the order of reading. The second is of another class.
        random = seeded_by(self._digest(name, i))
        samples = [self.clean[i]]
        if kind.takes_two:
            candidates = self._possible_seconds(i)
            second = candidates[random.randint(len(candidates))]
            samples.append(self.clean[int(second)])
        make = _make_image if self.kind == "image" else _make_text
        return make(kind, samples, random)

    def origins(self) -> list[Dataset]:
        """Return this set and the ID samples it was made from."""
        return [self, *self.clean.origins()]

    def lengths(self) -> list[int] | None:
        """Return the number of characters of each text; None for images."""
        if self.kind != "text":
            return None
        return [characters(self[i]) for i in range(len(self))]


def _names_of_kind(clean: Dataset, kind: str, where: str) -> list[str]:
    """Return the ways of making OOD samples that ``?ood=KIND`` stands for: KIND, or for ``auto`` all that fit the data.

    Raises:
        UsageError: for a kind that does not exist or does not fit the data.
    """
    # The kinds that can be made of these data: some are for images, some for texts.
    fitting = [name for name, known_kind in PSEUDO_OOD_KINDS.items() if known_kind.samples == clean.kind]
    if kind == AUTO and fitting:
        return fitting
    if kind in fitting:
        return [kind]
    hint = f"for them there are: {', '.join(fitting)}, auto" if fitting else "give an OOD set"
    raise UsageError(f"{where} holds {clean.kind}s, of which ?ood={kind} makes no OOD samples", hint=hint)


def _make_image(kind: PseudoOodKind, images: list[Image.Image], random: _Random) -> Image.Image:
    """Return an OOD image made from one image or two; the second is converted to the mode and size of the first."""
    first = grey_or_rgb(images[0])
    sources = [np.asarray(first)]
    for second in images[1:]:
        resized = in_mode(second, first.mode).resize(first.size, Image.Resampling.BILINEAR)
        sources.append(np.asarray(resized))
    ood_pixels = kind.make(*sources, random)
    return Image.fromarray(np.ascontiguousarray(ood_pixels))


def _make_text(kind: PseudoOodKind, texts: list[Text], random: _Random) -> Text:
    """Make an OOD text from one or two texts; each text of a pair is made by itself."""
    ood_parts = []
    # The first texts together, then the second texts of pairs.
    for source_texts in zip(*map(parts_of, texts), strict=True):
        ood_parts.append(kind.make(*source_texts, random))
    if len(ood_parts) == 1:
        return ood_parts[0]
    return ood_parts[0], ood_parts[1]
