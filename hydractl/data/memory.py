"""Samples that a Python program holds: ``memory:NAME`` is a set of the call that is running."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np
from PIL import Image

from hydractl.data.base import Dataset, Spec
from hydractl.data.labels import RawLabels, limited, raw_labels
from hydractl.data.text import Text, Texts
from hydractl.errors import InputError
from hydractl.families.pixels import image_of
from hydractl.jsonio import shown

Held = tuple[Any, Any]
"""Samples and labels, or None in their place; anything that has a length and can be indexed."""

HELD: ContextVar[Mapping[str, Held]] = ContextVar("HELD")
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
    held = HELD.get({})
    if spec.path not in held:
        raise InputError(f"{spec.where}: nothing of this name is in memory", hint="write the samples to a file")
    samples, held_labels = held[spec.path]
    if len(samples) == 0:
        raise InputError(f"{spec.where} has no samples")
    labels = None if held_labels is None else list(map(_plain, held_labels))
    if labels is not None and len(labels) != len(samples):
        raise InputError(f"{spec.where} has {len(labels)} labels for {len(samples)} samples")
    rows = limited(labels, len(samples), limit, seed)
    ids = [f"{spec.path}#{row}" for row in rows]
    raw = RawLabels() if labels is None else _raw_labels(labels, rows, ids)
    chosen = [samples[row] for row in rows]
    if isinstance(chosen[0], str | tuple | list):
        texts = [_text(sample, spec) for sample in chosen]
        return Texts(spec.text, spec.where, ids, texts), raw
    image_of(chosen[0])  # refuses now what is no image
    return HeldImages(spec.text, spec.where, ids, chosen), raw


def _raw_labels(labels: list[Any], rows: Sequence[int], ids: Sequence[str]) -> RawLabels:
    """Return the labels of some samples; the names of their classes are those of all, whatever the limit."""
    raw = raw_labels([labels[row] for row in rows], ids)
    if isinstance(labels[0], str):
        raw.names = sorted({label for label in labels if isinstance(label, str)})
    return raw


def _plain(label: Any) -> Any:
    """Return a label as a Python object: numpy's and torch's numbers are not."""
    return label.item() if hasattr(label, "item") else label


def _text(sample: Any, spec: Spec) -> Text:
    """Return a sample as a text or a pair of texts."""
    parts = list(sample) if isinstance(sample, tuple | list) else [sample]
    are_texts = all(isinstance(part, str) for part in parts)
    if are_texts and len(parts) == 1:
        return parts[0]
    if are_texts and len(parts) == 2:
        return parts[0], parts[1]
    raise InputError(f"{spec.where}: neither a text nor a pair of texts: {shown(sample)}")
