"""Warnings about samples that the user probably did not mean: files that are left out, images of one colour or with a
wrong range of values, empty texts, repeated samples.
"""

from __future__ import annotations

import numpy as np
from PIL import Image

from hydractl.data.base import PAIRS, Dataset, UnreadableSample, left_out_warnings, orientation_warnings
from hydractl.data.batching import read_ahead
from hydractl.data.overlap import is_more_than_a_handful
from hydractl.data.text import parts_of
from hydractl.families.pixels import grey_or_rgb

_LOOKED_AT = 64
"""At most this many images of a set are decoded for the check, at equal distances."""


def sample_warnings(dataset: Dataset, *, in_passing: bool = False) -> list[str]:
    """Return one sentence for each odd thing about the samples of a set.

    Args:
        dataset: the samples.
        in_passing: skip the search for repeated samples, for which all samples have to be read.

    Returns:
        The sentences, each beginning with the name of the set; empty if nothing is odd.
    """
    # On files that are no samples, and on what single samples hold.
    about_other_files = left_out_warnings(dataset)
    if dataset.kind == "text":
        about_contents = _text_warnings(dataset)
    else:
        about_contents = _image_warnings(dataset)
    warnings = [*about_other_files, *(f"{dataset.where}: {warning}" for warning in about_contents)]
    if in_passing:
        return warnings

    # On repetitions, and on images that their files say to turn: all samples are read.
    return [*warnings, *repetition_warnings(dataset), *orientation_warnings(dataset)]


def repetition_warnings(dataset: Dataset) -> list[str]:
    """Return a sentence in a list if at least half of the samples repeat others; otherwise an empty list.

    Samples are equal if a model sees the same of them, by their fingerprints. Three equal ones are two repetitions.
    """
    if dataset.kind == PAIRS:  # pairs may repeat an image, with another caption
        return []
    read_ahead(dataset)
    total = len(dataset)
    different = len(set(dataset.sample_fingerprints()))
    repeated = total - different
    if not is_more_than_a_handful(repeated, total):
        return []
    if 2 * repeated < total:  # half of the set means that every sample occurs twice
        return []
    return [
        f"{dataset.where}: only {different} of {total} samples are distinct, and those that are there again make every "
        "interval too narrow: give each sample once"
    ]


def _text_warnings(dataset: Dataset) -> list[str]:
    """Return a sentence about empty texts, if there are more than a handful."""
    total = len(dataset)
    empty_count = 0
    for i in range(total):
        parts = parts_of(dataset[i])  # one text, or the two of a pair
        if not any(part.strip() for part in parts):
            empty_count += 1
    if not is_more_than_a_handful(empty_count, total):
        return []
    return [f"{empty_count} of {total} texts are empty: leave them out, or name the column of the text with ?text=NAME"]


def _image_warnings(dataset: Dataset) -> list[str]:
    """Return a sentence if most images have only one colour, or if all pixels are 0 or 1; otherwise an empty list."""
    ranges = _some_ranges(dataset)  # the darkest and the brightest value of each image, 0 to 255
    if not ranges:
        return []

    # An image has one colour if its darkest and its brightest value are the same.
    of_one_colour = sum(darkest == brightest for darkest, brightest in ranges)
    looked_at = f"{len(ranges)} images that were looked at"
    if 2 * of_one_colour > len(ranges):
        return [f"{of_one_colour} of {looked_at} are of one colour each: were they written as meant?"]
    if any(brightest > 1 for _, brightest in ranges):
        return []
    return [
        f"all pixels of the {looked_at} are 0 or 1, and 255 is white: multiply pixels of 0..1 by 255 "
        "before they become bytes"
    ]


def _some_ranges(dataset: Dataset) -> list[tuple[float, float]]:
    """Return the darkest and the brightest value (0 to 255) of some images of the set, at equal distances.

    Unreadable images are left out; they are reported elsewhere.
    """
    count = min(_LOOKED_AT, len(dataset))
    last = len(dataset) - 1
    indices = np.linspace(0, last, count).astype(int)
    ranges = []
    for index in indices.tolist():
        try:
            image = dataset[index]
        except UnreadableSample:
            continue
        assert isinstance(image, Image.Image)
        # Only the two extremes are kept, because a large image takes much memory.
        extrema = np.ravel(grey_or_rgb(image).getextrema())  # the darkest and brightest value of every channel
        ranges.append((extrema.min(), extrema.max()))
    return ranges
