"""Interface of every data set: samples by index, ids, labels, fingerprints, and which samples were skipped."""

from __future__ import annotations

import hashlib
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hydractl.errors import InputError
from hydractl.log import Log

PAIRS = "image-caption pair"
"""The :attr:`Dataset.kind` of images with captions."""

MOST_LISTED = 1000
"""Ids of skipped samples in a document at most; their number is exact."""

_MOST_SAID = 5


class UnreadableSample(InputError):
    """One sample that is damaged, empty or gone, in a set whose other samples may be in order."""


class Dataset(ABC):
    """A finite sequence of samples in a fixed order.

    Attributes:
        spec: the SPEC it was opened from.
        kind: ``"image"``, ``"text"`` or :data:`PAIRS`: what a sample is.
        where: how messages call this data set (option and SPEC).
        ids: one id per sample, the same on every machine.
        labels: int64 ``[samples]``, in the order of the checkpoint's names when such were given; None when unlabelled.
        label_names: the checkpoint's names when such were given, else the data's own; None when there are none.
        skipped: None where a sample that cannot be read is an error; else such samples are left out of the batches,
            and this says which were met so far: index -> why.
    """

    kind = "image"

    def __init__(self, spec: str, where: str, ids: Sequence[str]) -> None:
        self.spec = spec
        self.where = where
        self.ids = list(ids)
        self.labels: npt.NDArray[np.int64] | None = None
        self.label_names: list[str] | None = None
        self.skipped: dict[int, str] | None = None
        self._fingerprints: list[str] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Any:
        """The sample, fully loaded: a ``PIL.Image.Image`` in the mode it is stored in, a ``str``, ``(str, str)``, or
        an image and its caption.

        Raises:
            IndexError: outside the data set.
            UnreadableSample: naming a file that cannot be read.
        """
        i = operator.index(index)
        if not -len(self) <= i < len(self):
            raise IndexError(f"sample {i} of {len(self)}")
        return self._sample(i % len(self))

    @abstractmethod
    def _sample(self, i: int) -> Any:
        """Sample ``i``, 0 <= i < len(self)."""

    @abstractmethod
    def _content(self, i: int) -> Iterable[bytes]:
        """The bytes that make sample ``i`` what it is, in pieces of any size."""

    def lengths(self) -> list[int] | None:
        """Length of each sample if batches of similar length are cheaper (texts: characters); else None."""
        return None

    def sample_fingerprints(self) -> list[str]:
        """SHA-256 of each sample's content alone, in hex: equal samples are equal, wherever and however labelled.

        Content is the file for image files, shape and pixels for arrays: the same picture in another format differs.
        Of texts it is the characters: the same text in another format is the same. Computed once.

        Raises:
            UnreadableSample: for a file that cannot be read at all; where such are skipped its id counts instead.
        """
        if self._fingerprints is None:
            self._fingerprints = [self._sample_fingerprint(i) for i in range(len(self))]
        return self._fingerprints

    def _sample_fingerprint(self, i: int) -> str:
        try:
            return _sha256(self._content(i))
        except UnreadableSample:
            if self.skipped is None:
                raise
            return _sha256([b"unreadable\n", self.ids[i].encode("utf-8", "backslashreplace")])

    def fingerprint(self) -> str:
        """SHA-256 in hex over every sample's content, their order and ``labels`` as mapped."""
        labels = b"unlabelled" if self.labels is None else self.labels.astype("<i8").tobytes()
        digests = (bytes.fromhex(digest) for digest in self.sample_fingerprints())
        return _sha256([f"hydractl.data/1 {self.kind} {len(self)}\n".encode(), *digests, labels])


def _sha256(pieces: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def reason(error: Exception) -> str:
    """Why the system or a library failed, in one line."""
    words = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return words.strip().partition("\n")[0] or type(error).__name__


def skipped_document(dataset: Dataset) -> dict[str, Any] | None:
    """Skipped samples, for an artefact: ``n`` and the first :data:`MOST_LISTED` ``ids`` in order; None for nothing."""
    if not dataset.skipped:
        return None
    indices = sorted(dataset.skipped)
    return {"n": len(indices), "ids": [dataset.ids[i] for i in indices[:MOST_LISTED]]}


def report_skipped(dataset: Dataset, log: Log) -> None:
    """Warn of what was skipped: how many, and the first few with the reason; every one of them is a detail."""
    if not dataset.skipped:
        return
    indices = sorted(dataset.skipped)
    for i in indices:
        log.detail(f"skipped {dataset.ids[i]}: {dataset.skipped[i]}")
    count = f"{len(indices)} of {len(dataset)} images {'is' if len(indices) == 1 else 'are'}"
    named = ", ".join(dataset.ids[i] for i in indices[:_MOST_SAID])
    more = f" and {len(indices) - _MOST_SAID} more" if len(indices) > _MOST_SAID else ""
    log.warn(f"{dataset.where}: {count} left out, as they cannot be read: {named}{more}")
