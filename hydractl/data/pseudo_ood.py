"""OOD samples made from ID samples: ``?ood=KIND`` after the SPEC of any images or texts, for validation where no other
OOD data are at hand.

Jigsaw and the mean of two images are validation sets of Hendrycks, Mazeika and Dietterich, "Deep Anomaly Detection with
Outlier Exposure", ICLR 2019, arXiv 1812.04606.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from hydractl.data.base import Dataset, Spec
from hydractl.data.text import Text, characters, parts_of
from hydractl.errors import InputError, UsageError
from hydractl.expressions.data_sets import AUTO, with_setting
from hydractl.families.pixels import grey_or_rgb, in_mode

# To be raised when a kind changes: its samples are others then, and so must their fingerprints be.
_VERSION = 1

_TILES = 4
"""Tiles per side of a jigsaw."""

_Random = np.random.RandomState


def _jigsaw(pixels: npt.NDArray[Any], random: _Random) -> npt.NDArray[Any]:
    """Put the tiles of an image, four in each direction, into another order.

    An image of fewer than four pixels on a side has tiles of one pixel there; where four do not divide a side, a margin
    of up to three pixels stays as it is.

    Args:
        pixels: ``[H, W]`` or ``[H, W, C]``.
        random: draws the order.
    """
    image_height, image_width = pixels.shape[:2]
    rows = min(_TILES, image_height)
    columns = min(_TILES, image_width)
    height = max(1, image_height // _TILES)
    width = max(1, image_width // _TILES)
    result = pixels.copy()
    without_margin = result[: rows * height, : columns * width]  # a view: what is written to it is in the result

    # [rows * h, columns * w, C] -> [rows, h, columns, w, C] -> [rows, columns, h, w, C] -> [tiles, h, w, C]
    grid = without_margin.reshape(rows, height, columns, width, -1)
    tiles_in_grid = grid.swapaxes(1, 2)
    tiles = tiles_in_grid.reshape(rows * columns, height, width, -1)
    order = _reordered(np.arange(len(tiles)), random)
    moved_tiles = tiles[order]

    # And back.
    moved_in_grid = moved_tiles.reshape(tiles_in_grid.shape)
    moved_grid = moved_in_grid.swapaxes(1, 2)
    without_margin[...] = moved_grid.reshape(without_margin.shape)
    return result


def _noise(pixels: npt.NDArray[Any], random: _Random) -> npt.NDArray[Any]:
    """Put the pixels of an image into another order."""
    channels = pixels.shape[2:]
    flat = pixels.reshape(-1, *channels)  # [H, W, C] -> [H * W, C]: the channels of a pixel stay together
    order = random.permutation(len(flat))
    shuffled = flat[order]
    return shuffled.reshape(pixels.shape)


def _rotate(pixels: npt.NDArray[Any], random: _Random) -> npt.NDArray[Any]:
    """Turn an image by 90, 180 or 270 degrees."""
    quarters = int(random.randint(1, 4))
    return np.rot90(pixels, quarters)


def _shuffle(text: str, random: _Random) -> str:
    """Put the words of a text into another order, or the letters of a single word."""
    words = text.split()
    if len(set(words)) < 2:
        letters = np.array(list(text), dtype=object)
        moved_letters = _reordered(letters, random)
        return "".join(moved_letters)
    moved_words = _reordered(np.array(words, dtype=object), random)
    return " ".join(moved_words)


def _splice(text: str, other: str, random: _Random) -> str:
    """Join the first half of a text and the second half of another one."""
    words = text.split()
    other_words = other.split()
    # The middle one of an odd number of words is in either half.
    end = (len(words) + 1) // 2
    start = len(other_words) // 2
    spliced = words[:end] + other_words[start:]
    return " ".join(spliced)


def _reordered(items: npt.NDArray[Any], random: _Random) -> npt.NDArray[Any]:
    """Shuffle the items into another order; return them as they are where they are all the same."""
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
    """Return the mean of two images of one size, rounded up."""
    total = pixels.astype(np.uint16) + other  # 16 bits, which hold 255 + 255
    mean = (total + 1) // 2
    return mean.astype(np.uint8)


class PseudoOodKind(NamedTuple):
    """One way to make an OOD sample.

    Attributes:
        samples: ``image`` or ``text``.
        make: returns the OOD sample. It takes the pixels, uint8 ``[H, W]`` or ``[H, W, 3]``, or the text; a second
            sample of the same form where ``two``; and a random generator.
        two: whether it takes two samples.
    """

    samples: str
    make: Callable[..., Any]
    two: bool = False


PSEUDO_OOD_KINDS = {
    "jigsaw": PseudoOodKind("image", _jigsaw),
    "mixture": PseudoOodKind("image", _mixture, two=True),
    "noise": PseudoOodKind("image", _noise),
    "rotate": PseudoOodKind("image", _rotate),
    "shuffle": PseudoOodKind("text", _shuffle),
    "splice": PseudoOodKind("text", _splice, two=True),
}


class _Recipe(NamedTuple):
    """How one OOD sample is made.

    Attributes:
        kind: what is done.
        second: the index of the second sample it is made of; None where it is made of one.
        random: what else is drawn for it.
    """

    kind: PseudoOodKind
    second: int | None
    random: _Random


class PseudoOod(Dataset):
    """The samples of a data set, each made into an OOD sample, the same at every reading; without labels.

    Random numbers are drawn from a generator seeded by the kind, ``seed`` and the id of the sample, so that neither the
    order of reading nor the number of workers matters. The second sample of a mixture or a splice is of another class
    where labels are known.

    Args:
        clean: ID images or texts.
        kind: one of :data:`PSEUDO_OOD_KINDS`, or ``auto``: as many samples of each kind that fits the data.
        seed: of all that is drawn.
        where: what messages call it; None: what they call ``clean``.

    Raises:
        UsageError: for a kind that there is not, or not for these data.
        InputError: for fewer than two samples where two are needed.
    """

    def __init__(self, clean: Dataset, kind: str, seed: int = 0, where: str | None = None) -> None:
        """Note which kinds of OOD samples are made; each sample is made when it is read."""
        if where is None:
            where = clean.where
        names = _names_of_kind(clean, kind, where)
        needs_two = any(PSEUDO_OOD_KINDS[name].two for name in names)
        if needs_two and len(clean) < 2:
            raise InputError(f"{where}: ?ood={kind} needs two samples")
        spec = with_setting(clean.spec, f"ood={kind}")
        ids = [f"{clean_id}?ood={kind}" for clean_id in clean.ids]
        super().__init__(spec, where, ids)
        self.kind = clean.kind
        self.clean = clean
        self.seed = seed
        if clean.skipped is not None:
            self.skipped = {}
        self._names = names

    @cached_property
    def _kinds(self) -> npt.NDArray[np.intp]:
        """Assign a kind to each sample, equally many to each, drawn by the ids: positions in ``_names``, ``[N]``."""
        total = len(self)
        drawn = sorted(range(total), key=lambda i: self._digest("kind", i))
        in_turn = np.arange(total) % len(self._names)
        kinds = np.empty(total, dtype=np.intp)
        kinds[drawn] = in_turn
        return kinds

    def _name_of_kind(self, i: int) -> str:
        """Return the name of the kind of a sample."""
        position = self._kinds[i]
        return self._names[position]

    def _digest(self, purpose: str, i: int) -> bytes:
        """Return the SHA-256 that a sample has for one purpose, by which something is drawn for it."""
        clean_id = self.clean.ids[i]
        text = f"hydractl.ood {purpose} {self.seed} {clean_id}"
        text_bytes = text.encode("utf-8", "backslashreplace")
        hashed = hashlib.sha256(text_bytes)
        return hashed.digest()

    def _draw_recipe(self, i: int) -> _Recipe:
        """Draw what is made of sample ``i`` and with which second sample; always the same for the same sample."""
        name = self._name_of_kind(i)
        kind = PSEUDO_OOD_KINDS[name]
        digest = self._digest(name, i)
        little_endian = np.frombuffer(digest, dtype="<u4")  # [8], the same numbers on every machine
        random = _Random(little_endian.astype(np.uint32))
        if not kind.two:
            return _Recipe(kind, None, random)
        candidates = self._possible_seconds(i)
        place = random.randint(len(candidates))
        return _Recipe(kind, int(candidates[place]), random)

    def _possible_seconds(self, i: int) -> npt.NDArray[np.intp]:
        """Return the samples of other classes; where there are no labels or no other class, all samples but ``i``."""
        labels = self.clean.labels
        if labels is not None:
            of_other_classes = np.flatnonzero(labels != labels[i])
            if len(of_other_classes):
                return of_other_classes
        everything = np.arange(len(self))
        return np.delete(everything, i)

    def _sample(self, i: int) -> Any:
        recipe = self._draw_recipe(i)
        sample = self.clean[i]
        second = None
        if recipe.second is not None:
            second = self.clean[recipe.second]
        if isinstance(sample, Image.Image):
            return _make_image(recipe.kind, sample, second, recipe.random)
        return _make_text(recipe.kind, sample, second, recipe.random)

    def _content(self, i: int) -> Iterable[bytes]:
        # By fingerprint, so that the clean samples are read once for all that is made from them.
        recipe = self._draw_recipe(i)
        fingerprints = self.clean.sample_fingerprints()
        header = f"ood/{_VERSION} {self._name_of_kind(i)} "
        yield header.encode() + self._digest("content", i)
        yield bytes.fromhex(fingerprints[i])
        if recipe.second is not None:
            yield bytes.fromhex(fingerprints[recipe.second])

    def origins(self) -> list[Dataset]:
        """Return this set and the ID samples it was made from."""
        origins: list[Dataset] = [self]
        origins += self.clean.origins()
        return origins

    def lengths(self) -> list[int] | None:
        """Return the number of characters of each text; None for images."""
        if self.kind != "text":
            return None
        return [characters(self[i]) for i in range(len(self))]


def _names_of_kind(clean: Dataset, kind: str, where: str) -> list[str]:
    """Return the names of the kinds that ``?ood=KIND`` means for some data; ``auto`` means all that fit them.

    Raises:
        UsageError: for a kind that does not exist, or does not fit the data.
    """
    if kind != AUTO and kind not in PSEUDO_OOD_KINDS:
        known = ", ".join(PSEUDO_OOD_KINDS)
        raise UsageError(f"{where}: unknown kind of OOD samples {kind!r}", hint=f"there are: {known}, auto")
    fitting = []
    for name, known_kind in PSEUDO_OOD_KINDS.items():
        if known_kind.samples == clean.kind:
            fitting.append(name)
    if kind == AUTO and fitting:
        return fitting
    if kind in fitting:
        return [kind]
    hint = "give an OOD set"
    if fitting:
        hint = f"for them there are: {', '.join(fitting)}, auto"
    raise UsageError(f"{where} holds {clean.kind}s, of which ?ood={kind} makes no OOD samples", hint=hint)


def _make_image(kind: PseudoOodKind, image: Image.Image, second: Image.Image | None, random: _Random) -> Image.Image:
    """Make an OOD image from an image, and from a second one where the kind takes two."""
    image = grey_or_rgb(image)
    sources = [np.asarray(image)]
    if second is not None:
        converted = in_mode(second, image.mode)
        resized = converted.resize(image.size, Image.Resampling.BILINEAR)
        sources.append(np.asarray(resized))
    ood_pixels = kind.make(*sources, random)
    return Image.fromarray(np.ascontiguousarray(ood_pixels))


def _make_text(kind: PseudoOodKind, text: Text, second: Text | None, random: _Random) -> Text:
    """Make an OOD text from a text, and from a second one where the kind takes two; each text of a pair by itself."""
    sources = [parts_of(text)]
    if second is not None:
        sources.append(parts_of(second))
    ood_parts = []
    for source_texts in zip(*sources, strict=True):
        ood_parts.append(kind.make(*source_texts, random))
    if len(ood_parts) == 1:
        return ood_parts[0]
    return ood_parts[0], ood_parts[1]


def take_ood(spec: Spec) -> tuple[Spec, str | None]:
    """Return the SPEC of the ID samples, and the kind of OOD samples that its query asks for, if it does."""
    settings = dict(spec.query)
    kind = settings.pop("ood", None)
    return replace(spec, query=settings), kind
