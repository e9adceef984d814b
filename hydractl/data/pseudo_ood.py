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
from hydractl.data.text import Text
from hydractl.errors import InputError, UsageError
from hydractl.expressions.data_sets import AUTO, with_setting
from hydractl.families.pixels import in_mode

# Changes when a kind does, so that fingerprints of other samples are not taken for the same.
_VERSION = 1

_TILES = 4
"""Tiles per side of a jigsaw."""

Random = np.random.RandomState


def _jigsaw(pixels: npt.NDArray[Any], random: Random) -> npt.NDArray[Any]:
    height, width = (max(1, side // _TILES) for side in pixels.shape[:2])
    rows, columns = min(_TILES, pixels.shape[0]), min(_TILES, pixels.shape[1])
    # [rows * h, columns * w, C] -> [rows, h, columns, w, C] -> [rows * columns, h, w, C]; a margin of up to 3 stays
    tiled = pixels[: rows * height, : columns * width].reshape(rows, height, columns, width, -1)
    tiles = tiled.swapaxes(1, 2).reshape(rows * columns, height, width, -1)
    moved = tiles[_moved(np.arange(len(tiles)), random)].reshape(rows, columns, height, width, -1).swapaxes(1, 2)
    result = pixels.copy()
    result[: rows * height, : columns * width] = moved.reshape(rows * height, columns * width, *pixels.shape[2:])
    return result


def _noise(pixels: npt.NDArray[Any], random: Random) -> npt.NDArray[Any]:
    flat = pixels.reshape(-1, *pixels.shape[2:])  # [H, W, C] -> [H * W, C]: the channels of a pixel stay together
    return flat[random.permutation(len(flat))].reshape(pixels.shape)


def _rotate(pixels: npt.NDArray[Any], random: Random) -> npt.NDArray[Any]:
    return np.rot90(pixels, int(random.randint(1, 4)))


def _shuffle(text: str, random: Random) -> str:
    words: list[str] = text.split()
    if len(set(words)) < 2:  # one word has only its letters
        return "".join(_moved(np.array(list(text), dtype=object), random))
    return " ".join(_moved(np.array(words, dtype=object), random))


def _splice(text: str, other: str, random: Random) -> str:
    first, second = text.split(), other.split()
    return " ".join([*first[: (len(first) + 1) // 2], *second[len(second) // 2 :]])


def _moved(items: npt.NDArray[Any], random: Random) -> npt.NDArray[Any]:
    """Shuffle the items into another order, if there is one."""
    if len(set(items.tolist())) < 2:
        return items
    while True:
        order = items[random.permutation(len(items))]
        if (order != items).any():
            return order


def _mixture(pixels: npt.NDArray[Any], other: npt.NDArray[Any], random: Random) -> npt.NDArray[Any]:
    return ((pixels.astype(np.uint16) + other + 1) // 2).astype(np.uint8)


class Kind(NamedTuple):
    """One way to make an OOD sample.

    Attributes:
        of: ``image`` or ``text``.
        make: from the pixels, uint8 ``[H, W]`` or ``[H, W, 3]``, or the text, a second sample of the same form where
            ``two``, and a generator.
        two: whether it takes two samples.
    """

    of: str
    make: Callable[..., Any]
    two: bool = False


KINDS = {
    "jigsaw": Kind("image", _jigsaw),
    "mixture": Kind("image", _mixture, two=True),
    "noise": Kind("image", _noise),
    "rotate": Kind("image", _rotate),
    "shuffle": Kind("text", _shuffle),
    "splice": Kind("text", _splice, two=True),
}


class PseudoOod(Dataset):
    """The samples of a data set, each made into an OOD sample, the same at every reading; without labels.

    Random numbers are drawn from a generator seeded by the kind, ``seed`` and the id of the sample, so that neither the
    order of reading nor the number of workers matters. The second sample of a mixture or a splice is of another class
    where labels are known.

    Args:
        clean: ID images or texts.
        kind: one of :data:`KINDS`, or ``auto``: as many samples of each kind that fits the data.
        seed: of all that is drawn.
        where: what messages call it; None: what they call ``clean``.

    Raises:
        UsageError: for a kind that there is not, or not for these data.
        InputError: for fewer than two samples where two are needed.
    """

    def __init__(self, clean: Dataset, kind: str, seed: int = 0, where: str | None = None) -> None:
        where = where or clean.where
        fitting = [name for name, one in KINDS.items() if one.of == clean.kind]
        if kind not in (AUTO, *KINDS):
            raise UsageError(
                f"{where}: unknown kind of OOD samples {kind!r}", hint=f"there are: {', '.join(KINDS)}, auto"
            )
        if not fitting or kind not in (AUTO, *fitting):
            hint = f"for them there are: {', '.join(fitting)}, auto" if fitting else "give an OOD set"
            raise UsageError(f"{where} holds {clean.kind}s, of which ?ood={kind} makes no OOD samples", hint=hint)
        if len(clean) < 2 and any(KINDS[name].two for name in (fitting if kind == AUTO else [kind])):
            raise InputError(f"{where}: ?ood={kind} needs two samples")
        super().__init__(with_setting(clean.spec, f"ood={kind}"), where, [f"{one}?ood={kind}" for one in clean.ids])
        self.kind, self.clean, self.seed = clean.kind, clean, seed
        self.skipped = None if clean.skipped is None else {}
        self._names = fitting if kind == AUTO else [kind]

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

    def _drawn(self, i: int) -> tuple[Kind, int | None, Random]:
        """Return the kind of a sample, its second sample if it needs one, and its generator."""
        name = self._names[self._kinds[i]]
        random = Random(np.frombuffer(self._digest(name, i), dtype="<u4").astype(np.uint32))
        if not KINDS[name].two:
            return KINDS[name], None, random
        labels = self.clean.labels
        others = np.empty(0) if labels is None else np.flatnonzero(labels != labels[i])
        if not len(others):
            others = np.delete(np.arange(len(self)), i)
        return KINDS[name], int(others[random.randint(len(others))]), random

    def _sample(self, i: int) -> Any:
        kind, other, random = self._drawn(i)
        own = self.clean[i]
        more = None if other is None else self.clean[other]
        if isinstance(own, Image.Image):
            return _of_image(kind, own, more, random)
        return _of_text(kind, own, more, random)

    def _content(self, i: int) -> Iterable[bytes]:
        # The clean samples are read once for all that is made of them.
        other = self._drawn(i)[1]
        digests = self.clean.sample_fingerprints()
        yield f"ood/{_VERSION} {self._names[self._kinds[i]]} ".encode() + self._digest("content", i)
        yield bytes.fromhex(digests[i] if other is None else digests[i] + digests[other])

    def origins(self) -> list[Dataset]:
        """Return this set and the ID samples it was made of."""
        return [self, *self.clean.origins()]

    def lengths(self) -> list[int] | None:
        """Return the characters of each text; None for images."""
        return [sum(map(len, _parts(self[i]))) for i in range(len(self))] if self.kind == "text" else None


def _of_image(kind: Kind, image: Image.Image, other: Image.Image | None, random: Random) -> Image.Image:
    image = grey_or_rgb(image)
    pixels = [np.asarray(image)]
    if other is not None:
        pixels.append(np.asarray(in_mode(other, image.mode).resize(image.size, Image.Resampling.BILINEAR)))
    return Image.fromarray(np.ascontiguousarray(kind.make(*pixels, random)))


def _parts(text: Text) -> tuple[str, ...]:
    return (text,) if isinstance(text, str) else text


def _of_text(kind: Kind, text: Text, other: Text | None, random: Random) -> Text:
    """Make a text, or of a pair of texts each for itself, into an OOD sample."""
    both = [_parts(text)] if other is None else [_parts(text), _parts(other)]
    made = [kind.make(*parts, random) for parts in zip(*both, strict=True)]
    return made[0] if len(made) == 1 else (made[0], made[1])


def take_ood(spec: Spec) -> tuple[Spec, str | None]:
    """Return the SPEC of the ID samples, and the kind of OOD samples that its query asks for."""
    rest = {key: value for key, value in spec.query.items() if key != "ood"}
    return replace(spec, query=rest), spec.query.get("ood")
