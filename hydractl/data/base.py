"""Interface of every data set: samples by index, ids, labels and fingerprints."""

from __future__ import annotations

import hashlib
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hydractl.errors import InputError

PAIRS = "image-caption pair"
"""The :attr:`Dataset.kind` of images with captions."""


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
