"""Warnings of samples that are probably not what was meant: images of one colour or of a wrong range, empty texts,
the same samples again.
"""

from __future__ import annotations

import numpy as np
from PIL import Image

from hydractl.data.base import PAIRS, Dataset, UnreadableSample
from hydractl.data.overlap import is_more_than_a_handful
from hydractl.data.text import Text, parts_of
from hydractl.families.pixels import grey_or_rgb

_LOOKED_AT = 64
"""How many images of a set are decoded for this at most, at equal distances."""


def sample_doubts(dataset: Dataset, *, in_passing: bool = False) -> list[str]:
    """Return a sentence for everything that is odd about the samples of a set.

    Args:
        dataset: the samples.
        in_passing: do not look for repeated samples, for which all of them have to be read.

    Returns:
        The sentences, each with the name of the set before it; none where nothing is odd.
    """
    if dataset.kind == "text":
        doubts = _text_doubts(dataset)
    else:
        doubts = _image_doubts(dataset)
    if not in_passing and dataset.kind != PAIRS:  # an image with several captions is several samples
        doubts += _repetition_doubts(dataset)
    return [f"{dataset.where}: {doubt}" for doubt in doubts]


def _repetition_doubts(dataset: Dataset) -> list[str]:
    """Return a sentence about samples that are there several times, if these are half of the set or more."""
    total = len(dataset)
    different = len(set(dataset.sample_fingerprints()))
    repeated = total - different
    if not is_more_than_a_handful(repeated, total):
        return []
    if 2 * repeated < total:  # half of the set: as if each of the samples was there twice
        return []
    return [
        f"only {different} of {total} samples are distinct, and those that are there again make every interval too "
        "narrow: give each sample once"
    ]


def _text_doubts(dataset: Dataset) -> list[str]:
    """Return a sentence about empty texts, if there are more than a handful."""
    total = len(dataset)
    empty = 0
    for i in range(total):
        if _is_empty(dataset[i]):
            empty += 1
    if not is_more_than_a_handful(empty, total):
        return []
    return [f"{empty} of {total} texts are empty: leave them out, or name the column of the text with ?text=NAME"]


def _is_empty(sample: Text) -> bool:
    """Return whether a text, or both texts of a pair, hold nothing but spaces."""
    stripped = [part.strip() for part in parts_of(sample)]
    return not any(stripped)


def _image_doubts(dataset: Dataset) -> list[str]:
    """Return a sentence about images of one colour each, or of pixels 0 and 1 only, if most images are so."""
    ranges = _some_ranges(dataset)
    if not ranges:
        return []
    of_one_colour = sum(darkest == brightest for darkest, brightest in ranges)
    brightest_of_all = max(brightest for _, brightest in ranges)
    looked_at = f"{len(ranges)} images that were looked at"
    if 2 * of_one_colour > len(ranges):
        return [f"{of_one_colour} of {looked_at} are of one colour each: were they written as meant?"]
    if brightest_of_all > 1:
        return []
    return [
        f"all pixels of the {looked_at} are 0 or 1, and 255 is white: multiply pixels of 0..1 by 255 "
        "before they become bytes"
    ]


def _some_ranges(dataset: Dataset) -> list[tuple[int, int]]:
    """Return the darkest and the brightest value, 0 to 255, of each of some images at equal distances.

    Images that cannot be read are left out: they are dealt with elsewhere.
    """
    count = min(_LOOKED_AT, len(dataset))
    last = len(dataset) - 1
    indices = np.linspace(0, last, count).astype(int)
    ranges = []
    for index in indices.tolist():
        try:
            sample = dataset[index]
        except UnreadableSample:
            continue
        image = sample
        if dataset.kind == PAIRS:
            image, _ = sample
        assert isinstance(image, Image.Image)
        # One image at a time: a large one takes much of the memory there is.
        extrema = np.ravel(grey_or_rgb(image).getextrema())  # of every channel
        darkest = int(extrema.min())
        brightest = int(extrema.max())
        ranges.append((darkest, brightest))
    return ranges
