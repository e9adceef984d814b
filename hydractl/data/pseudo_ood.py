"""OOD samples made of ID samples: ``?ood=KIND`` after the SPEC of any images or texts, for validation where no other
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
from hydractl.data.corrupted import grey_or_rgb
from hydractl.data.text import Text, characters, parts_of
from hydractl.errors import InputError, UsageError
from hydractl.expressions.data_sets import AUTO, with_setting
from hydractl.families.pixels import in_mode

# Changes when a kind does, so that fingerprints of other samples are not taken for the same.
_VERSION = 1

_TILES = 4
"""Tiles per side of a jigsaw."""

_Random = np.random.RandomState


def _jigsaw(pixels: npt.NDArray[Any], random: _Random) -> npt.NDArray[Any]:
    """Move the tiles of an image, ``[H, W]`` or ``[H, W, C]``; a margin of up to 3 pixels stays."""
    rows = min(_TILES, pixels.shape[0])
    columns = min(_TILES, pixels.shape[1])
    height = max(1, pixels.shape[0] // _TILES)
    width = max(1, pixels.shape[1] // _TILES)
    inner = pixels[: rows * height, : columns * width]
    # [rows * h, columns * w, C] -> [rows, h, columns, w, C] -> [rows, columns, h, w, C]
    grid = inner.reshape(rows, height, columns, width, -1).swapaxes(1, 2)
    tiles = grid.reshape(rows * columns, height, width, -1)
    moved_tiles = tiles[_moved(np.arange(len(tiles)), random)]
    # and back
    moved_grid = moved_tiles.reshape(grid.shape).swapaxes(1, 2)
    result = pixels.copy()
    result[: rows * height, : columns * width] = moved_grid.reshape(inner.shape)
    return result


def _noise(pixels: npt.NDArray[Any], random: _Random) -> npt.NDArray[Any]:
    """Put the pixels of an image into another order."""
    flat = pixels.reshape(-1, *pixels.shape[2:])  # [H, W, C] -> [H * W, C]: the channels of a pixel stay together
    moved = flat[random.permutation(len(flat))]
    return moved.reshape(pixels.shape)


def _rotate(pixels: npt.NDArray[Any], random: _Random) -> npt.NDArray[Any]:
    """Turn an image by 90, 180 or 270 degrees."""
    return np.rot90(pixels, int(random.randint(1, 4)))


def _shuffle(text: str, random: _Random) -> str:
    """Put the words of a text into another order, or the letters of a single word."""
    words = text.split()
    if len(set(words)) < 2:
        letters = np.array(list(text), dtype=object)
        return "".join(_moved(letters, random))
    return " ".join(_moved(np.array(words, dtype=object), random))


def _splice(text: str, other: str, random: _Random) -> str:
    """Join the first half of a text and the second half of another one."""
    words = text.split()
    other_words = other.split()
    first_half = words[: (len(words) + 1) // 2]
    second_half = other_words[len(other_words) // 2 :]
    return " ".join(first_half + second_half)


def _moved(items: npt.NDArray[Any], random: _Random) -> npt.NDArray[Any]:
    """Shuffle the items into another order, if there is one."""
    if len(set(items.tolist())) < 2:
        return items
    while True:
        shuffled = items[random.permutation(len(items))]
        if (shuffled != items).any():
            return shuffled


def _mixture(pixels: npt.NDArray[Any], other: npt.NDArray[Any], random: _Random) -> npt.NDArray[Any]:
    """Return the mean of two images, rounded up."""
    total = pixels.astype(np.uint16) + other
    return ((total + 1) // 2).astype(np.uint8)


class PseudoOodKind(NamedTuple):
    """One way to make an OOD sample.

    Attributes:
        samples: ``image`` or ``text``.
        make: from the pixels, uint8 ``[H, W]`` or ``[H, W, 3]``, or the text, a second sample of the same form where
            ``two``, and a generator.
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
        where = where or clean.where
        names = _names_of_kind(clean, kind, where)
        if len(clean) < 2 and any(PSEUDO_OOD_KINDS[name].two for name in names):
            raise InputError(f"{where}: ?ood={kind} needs two samples")
        ids = [f"{clean_id}?ood={kind}" for clean_id in clean.ids]
        super().__init__(with_setting(clean.spec, f"ood={kind}"), where, ids)
        self.kind = clean.kind
        self.clean = clean
        self.seed = seed
        self.skipped = None if clean.skipped is None else {}
        self._names = names

    @cached_property
    def _kinds(self) -> npt.NDArray[np.intp]:
        """Assign a kind to each sample, equally many to each, drawn by the ids: positions among the kinds, ``[N]``."""
        kinds = np.empty(len(self), dtype=np.intp)
        drawn = sorted(range(len(self)), key=lambda i: self._digest("kind", i))
        kinds[drawn] = np.arange(len(self)) % len(self._names)
        return kinds

    def _digest(self, what: str, i: int) -> bytes:
        text = f"hydractl.ood {what} {self.seed} {self.clean.ids[i]}"
        return hashlib.sha256(text.encode("utf-8", "backslashreplace")).digest()

    def _drawn(self, i: int) -> tuple[PseudoOodKind, int | None, _Random]:
        """Return the kind of a sample, its second sample if it needs one, and its generator."""
        name = self._names[self._kinds[i]]
        kind = PSEUDO_OOD_KINDS[name]
        seeds = np.frombuffer(self._digest(name, i), dtype="<u4").astype(np.uint32)
        random = _Random(seeds)
        if not kind.two:
            return kind, None, random
        others = np.empty(0, dtype=np.intp)
        labels = self.clean.labels
        if labels is not None:
            others = np.flatnonzero(labels != labels[i])
        if not len(others):  # no labels, or no other class
            others = np.delete(np.arange(len(self)), i)
        other = int(others[random.randint(len(others))])
        return kind, other, random

    def _sample(self, i: int) -> Any:
        kind, other_index, random = self._drawn(i)
        sample = self.clean[i]
        other = None if other_index is None else self.clean[other_index]
        if isinstance(sample, Image.Image):
            return _make_image(kind, sample, other, random)
        return _make_text(kind, sample, other, random)

    def _content(self, i: int) -> Iterable[bytes]:
        # The clean samples are read once for all that is made of them.
        _, other, _ = self._drawn(i)
        digests = self.clean.sample_fingerprints()
        yield f"ood/{_VERSION} {self._names[self._kinds[i]]} ".encode() + self._digest("content", i)
        yield bytes.fromhex(digests[i])
        if other is not None:
            yield bytes.fromhex(digests[other])

    def origins(self) -> list[Dataset]:
        """Return this set and the ID samples it was made of."""
        return [self, *self.clean.origins()]

    def lengths(self) -> list[int] | None:
        """Return the characters of each text; None for images."""
        if self.kind != "text":
            return None
        return [characters(self[i]) for i in range(len(self))]


def _names_of_kind(clean: Dataset, kind: str, where: str) -> list[str]:
    """Return the names of the kinds that ``?ood=KIND`` means for some data: of ``auto`` all that fit them."""
    if kind not in (AUTO, *PSEUDO_OOD_KINDS):
        raise UsageError(
            f"{where}: unknown kind of OOD samples {kind!r}", hint=f"there are: {', '.join(PSEUDO_OOD_KINDS)}, auto"
        )
    fitting = [name for name in PSEUDO_OOD_KINDS if PSEUDO_OOD_KINDS[name].samples == clean.kind]
    if fitting and kind == AUTO:
        return fitting
    if kind in fitting:
        return [kind]
    hint = "give an OOD set"
    if fitting:
        hint = f"for them there are: {', '.join(fitting)}, auto"
    raise UsageError(f"{where} holds {clean.kind}s, of which ?ood={kind} makes no OOD samples", hint=hint)


def _make_image(kind: PseudoOodKind, image: Image.Image, other: Image.Image | None, random: _Random) -> Image.Image:
    """Make an image, and a second one where the kind takes two, into an OOD image."""
    image = grey_or_rgb(image)
    pixels = [np.asarray(image)]
    if other is not None:
        resized = in_mode(other, image.mode).resize(image.size, Image.Resampling.BILINEAR)
        pixels.append(np.asarray(resized))
    ood_pixels = kind.make(*pixels, random)
    return Image.fromarray(np.ascontiguousarray(ood_pixels))


def _make_text(kind: PseudoOodKind, text: Text, other: Text | None, random: _Random) -> Text:
    """Make a text, or each text of a pair for itself, into an OOD text."""
    sources = [parts_of(text)]
    if other is not None:
        sources.append(parts_of(other))
    ood_parts = []
    for texts in zip(*sources, strict=True):
        ood_parts.append(kind.make(*texts, random))
    if len(ood_parts) == 1:
        return ood_parts[0]
    return ood_parts[0], ood_parts[1]


def take_ood(spec: Spec) -> tuple[Spec, str | None]:
    """Return the SPEC of the ID samples, and the kind of OOD samples that its query asks for."""
    other_settings = {key: value for key, value in spec.query.items() if key != "ood"}
    return replace(spec, query=other_settings), spec.query.get("ood")
