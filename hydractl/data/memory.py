"""Samples that a Python program holds: ``memory:NAME`` is a set of the call that is running."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
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

HELD_SETS: ContextVar[Mapping[str, HeldSet]] = ContextVar("HELD_SETS")
"""The sets of the running call, by name. A context of its own in every thread: calls side by side do not meet."""


class HeldImages(Dataset):
    """Images in memory, each as :func:`hydractl.families.pixels.image_of` takes it; made an image when it is read."""

    def __init__(self, spec: str, where: str, ids: Sequence[str], images: Sequence[Any]) -> None:
        super().__init__(spec, where, ids)
        self.images = images

    def _sample(self, i: int) -> Image.Image:
        return image_of(self.images[i])

    def _content(self, i: int) -> Iterable[bytes]:
        pixels = np.asarray(self._sample(i))  # the same content as that of these pixels in a .npz file
        return [f"{pixels.dtype} {pixels.shape}\n".encode(), pixels.tobytes()]


def read_memory(spec: Spec, limit: int | None, seed: int = 0) -> tuple[Dataset, RawLabels]:
    """Open a set that the running call holds.

    Raises:
        InputError: no such set, nothing in it, samples that are neither images nor texts, or another number of labels.
    """
    spec.check_query(())
    held = HELD_SETS.get({})
    if spec.path not in held:
        raise InputError(f"{spec.where}: nothing of this name is in memory", hint="write the samples to a file")
    held_set = held[spec.path]
    if not isinstance(held_set, HeldSamples):
        return read_table_in_memory(spec, held_set, limit, seed)
    if len(held_set.samples) == 0:
        raise InputError(f"{spec.where} has no samples")
    labels = None
    if held_set.labels is not None:
        labels = [_plain(label) for label in held_set.labels]
    samples = held_set.samples
    if labels is not None and len(labels) != len(samples):
        raise InputError(f"{spec.where} has {len(labels)} labels for {len(samples)} samples")
    rows = limited(labels, len(samples), limit, seed)
    ids = [f"{spec.path}#{row}" for row in rows]
    raw = RawLabels()
    if labels is not None:
        raw = _raw_labels(labels, rows, ids, held_set.class_names)
    first = samples[rows[0]]
    if isinstance(first, str | tuple | list):
        texts = [_text(samples[row], spec) for row in rows]
        return Texts(spec.text, spec.where, ids, texts), raw
    image_of(first)  # refuses now what is no image
    return HeldImages(spec.text, spec.where, ids, LazySamples(samples.__getitem__, rows)), raw


def _raw_labels(labels: list[Any], rows: Sequence[int], ids: Sequence[str], class_names: list[str] | None) -> RawLabels:
    """Return the labels of some samples; the names of their classes are those of all, whatever the limit."""
    chosen = [labels[row] for row in rows]
    raw = raw_labels(chosen, ids, names=class_names)
    if isinstance(labels[0], str):
        raw.names = sorted({label for label in labels if isinstance(label, str)})
    return raw


def _plain(label: Any) -> Any:
    """Return a label as a Python object: numpy's and torch's numbers are not."""
    if hasattr(label, "item"):
        return label.item()
    return label


def _text(sample: Any, spec: Spec) -> Text:
    """Return a sample as a text or a pair of texts."""
    parts = list(sample) if isinstance(sample, tuple | list) else [sample]
    are_texts = all(isinstance(part, str) for part in parts)
    if are_texts and len(parts) == 1:
        return parts[0]
    if are_texts and len(parts) == 2:
        return parts[0], parts[1]
    raise InputError(f"{spec.where}: neither a text nor a pair of texts: {shown(sample)}")
