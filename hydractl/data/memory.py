"""Samples that a Python program holds, opened as a data set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from PIL import Image

from hydractl.data.base import Dataset, Spec
from hydractl.data.held import HeldSamples, HeldSet, LazySamples
from hydractl.data.hub import read_table_in_memory
from hydractl.data.labels import RawLabels, limited, raw_labels
from hydractl.data.text import Text, Texts
from hydractl.errors import InputError
from hydractl.families.pixels import image_of
from hydractl.jsonio import shown


class HeldImages(Dataset):
    """Images in memory.

    Args:
        spec: what documents call them.
        where: what messages call them.
        ids: one for each image.
        images: each in a form that :func:`hydractl.families.pixels.image_of` takes; converted when it is read.
    """

    def __init__(self, spec: str, where: str, ids: Sequence[str], images: Sequence[Any]) -> None:
        super().__init__(spec, where, ids)
        self.images = images

    def _sample(self, i: int) -> Image.Image:
        image = self.images[i]
        return image_of(image)

    def _content(self, i: int) -> Iterable[bytes]:
        # The same content as that of these pixels in a .npz file.
        pixels = np.asarray(self._sample(i))
        header = f"{pixels.dtype} {pixels.shape}\n"
        return [header.encode(), pixels.tobytes()]


def read_memory(spec: Spec, limit: int | None, seed: int = 0) -> tuple[Dataset, RawLabels]:
    """Open a set that a Python program holds: images, texts, or a table of the ``datasets`` library.

    Args:
        spec: its ``held`` are the samples; its path is their name, in ids.
        limit: how many samples; None: all.
        seed: draws them where the set is sorted by class, so that every class is there.

    Returns:
        The data set, and its labels before they are mapped to the classes of a model.

    Raises:
        InputError: for a name alone, an empty set, samples that are neither images nor texts, or another number of
            labels than of samples.
    """
    spec.check_query(())
    held_set: HeldSet | None = spec.held
    if held_set is None:
        raise InputError(f"{spec.where}: nothing of this name is in memory", hint="write the samples to a file")
    if not isinstance(held_set, HeldSamples):
        return read_table_in_memory(spec, held_set, limit, seed)
    samples = held_set.samples
    total = len(samples)
    if total == 0:
        raise InputError(f"{spec.where} has no samples")
    labels = None
    if held_set.labels is not None:
        labels = [_as_python(label) for label in held_set.labels]
    if labels is not None and len(labels) != total:
        raise InputError(f"{spec.where} has {len(labels)} labels for {total} samples")

    rows = limited(labels, total, limit, seed)
    ids = [f"{spec.path}#{row}" for row in rows]
    raw = RawLabels()
    if labels is not None:
        raw = _labels_of_rows(labels, rows, ids, held_set.class_names)
    first = samples[rows[0]]
    are_texts = isinstance(first, str | tuple | list)
    if are_texts:
        texts = [_text_or_pair(samples[row], spec) for row in rows]
        return Texts(spec.text, spec.where, ids, texts), raw
    image_of(first)  # called for its error: refuses now what is no image
    images = LazySamples(samples.__getitem__, rows)
    return HeldImages(spec.text, spec.where, ids, images), raw


def _labels_of_rows(
    labels: list[Any], rows: Sequence[int], ids: Sequence[str], class_names: list[str] | None
) -> RawLabels:
    """Return the labels of some samples; the names of their classes are those of all, whatever the limit.

    Args:
        labels: of all samples.
        rows: the samples.
        ids: theirs.
        class_names: what numbers point into; None where that is not known.
    """
    chosen = [labels[row] for row in rows]
    raw = raw_labels(chosen, ids, names=class_names)
    are_names = isinstance(labels[0], str)
    if are_names:
        all_names = {label for label in labels if isinstance(label, str)}
        raw.names = sorted(all_names)
    return raw


def _as_python(label: Any) -> Any:
    """Return a label as a Python object: numpy's and torch's numbers are not."""
    if hasattr(label, "item"):
        return label.item()
    return label


def _text_or_pair(sample: Any, spec: Spec) -> Text:
    """Return a sample as a text, or as a pair of texts.

    Args:
        sample: a text, or a tuple or a list of one or two of them.
        spec: of the set, for messages.

    Raises:
        InputError: where it is anything else.
    """
    parts = [sample]
    if isinstance(sample, tuple | list):
        parts = list(sample)
    are_texts = all(isinstance(part, str) for part in parts)
    if are_texts and len(parts) == 1:
        return parts[0]
    if are_texts and len(parts) == 2:
        first, second = parts
        return first, second
    raise InputError(f"{spec.where}: neither a text nor a pair of texts: {shown(sample)}")
