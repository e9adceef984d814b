"""Samples that a Python program holds in memory, opened as a data set."""

from __future__ import annotations

import math
from typing import Any

from hydractl.data.arrays import ArrayImages
from hydractl.data.base import Dataset, RowIds
from hydractl.data.held import HeldSamples, HeldSet
from hydractl.data.hub import read_table_in_memory
from hydractl.data.labels import RawLabels, labels_of_column
from hydractl.data.text import Text, Texts
from hydractl.errors import InputError
from hydractl.expressions.data_sets import DataSpec
from hydractl.families.pixels import image_of
from hydractl.jsonio import shown


def read_memory(spec: DataSpec, limit: int | None) -> tuple[Dataset, RawLabels]:
    """Return the samples and labels that a Python program holds: images, texts, or a table of the ``datasets`` library.

    Args:
        spec: its ``held`` are the samples; its path is their name, and the beginning of the ids.
        limit: how many texts to take of a table; None means all.

    Returns:
        The data set, and its labels before they are mapped to the classes of a model.

    Raises:
        InputError: if the SPEC holds no samples, the set is empty, the samples are neither images nor texts, or the
            numbers of labels and samples differ.
    """
    spec.check_query(())  # refuses all settings: samples in memory have none
    held_set: HeldSet | None = spec.held
    if held_set is None:
        raise InputError(f"{spec.where}: nothing of this name is in memory", hint="write the samples to a file")
    if not isinstance(held_set, HeldSamples):
        return read_table_in_memory(spec, held_set, limit)

    # Check the samples and their labels.
    samples = held_set.samples
    total = len(samples)
    if total == 0:
        raise InputError(f"{spec.where} has no samples")
    raw = RawLabels()
    if held_set.labels is not None:
        labels = [_as_python(label) for label in held_set.labels]
        if len(labels) != total:
            raise InputError(f"{spec.where} has {len(labels)} labels for {total} samples")
        raw = labels_of_column(labels, held_set.class_names)

    # The first sample tells whether they are texts or images.
    ids = RowIds(spec.path, total)
    first = samples[0]
    if isinstance(first, str | tuple | list):
        texts = [_text_or_pair(samples[row], spec) for row in range(total)]
        return Texts(spec.text, spec.where, ids, texts), raw
    image_of(first)  # raises an error if the sample is no image
    return ArrayImages(spec.text, spec.where, ids, samples), raw


def _as_python(label: Any) -> Any:
    """Return a label as a plain Python value; numbers of numpy and torch, and arrays of one, are converted."""
    is_one_number = hasattr(label, "item") and math.prod(label.shape) == 1
    return label.item() if is_one_number else label


def _text_or_pair(sample: Any, spec: DataSpec) -> Text:
    """Return a sample as a text, or as a pair of texts.

    Args:
        sample: a text, or a tuple or a list of one or two texts.
        spec: the SPEC of the set, for messages.

    Raises:
        InputError: if the sample is anything else.
    """
    parts = list(sample) if isinstance(sample, tuple | list) else [sample]
    are_texts = all(isinstance(part, str) for part in parts)
    if are_texts and len(parts) == 1:
        return parts[0]
    if are_texts and len(parts) == 2:
        return parts[0], parts[1]
    raise InputError(f"{spec.where}: neither a text nor a pair of texts: {shown(sample)}")
